"""The folder of a run: where results go, what must not be overwritten, how they were made."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litebert import __version__
from litebert.errors import ConfigError
from litebert.files import read_json, write_json

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130


@contextmanager
def removed_unless_done(out: Path) -> Iterator[None]:
    """A folder that was not there, or was empty, holds all of it in the end or nothing."""
    new = not out.exists() or not any(out.iterdir())
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(out, ignore_errors=True)
        raise


def refuse_unwritable(out: Path) -> None:
    """Stop before working for results that cannot be kept."""
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        problem = "you may not write there" if nearest.is_dir() else f"{nearest} is not a folder"
        raise ConfigError(f"{out}: cannot hold the results ({problem}); choose another --out")


def refuse_overwrite(path: Path, what: str) -> None:
    """Stop before replacing somebody's results."""
    refuse_unwritable(path.parent)
    for name, held in ((path.name, what), ("few_shot.json", "an adapted model")):
        if (path.parent / name).exists():
            raise ConfigError(f"{path.parent} already holds {held} ({name}); choose another --out, or delete it first")


def refuse_other_run(out: Path, command: str) -> None:
    """Stop before going on from what another command has begun."""
    if (out / "run.json").is_file():
        other = read_json(out / "run.json").get("command")
        if other != command:
            raise ConfigError(f"{out} already holds a run of litebert {other} (run.json); choose another --out")


def is_finished(out: Path, command: str, what: str, resume: bool, console: Console) -> bool:
    """Is there nothing left to resume? What must not be replaced or gone on from is refused."""
    refuse_other_run(out, command)
    if resume and (out / "finished.json").exists():
        console.print(f"the run in {out} is finished: nothing to resume", highlight=False, markup=False)
        return True
    refuse_overwrite(out / "finished.json", what)
    if not resume:
        refuse_overwrite(out / "checkpoints" / "latest", "an unfinished run, which --resume continues")
        refuse_overwrite(out / "config.json", "a finished model")
    elif not (out / "run.json").exists():
        console.print(f"no run in {out}: starting from the first step", highlight=False, markup=False)
    return False


def write_run(out: Path, command: str, config: Any) -> None:
    """run.json: the resolved settings and everything else needed to do it again."""
    packages: dict[str, str | None] = {}
    for name in ("torch", "numpy", "tokenizers", "safetensors", "sentencepiece"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    write_json(
        out / "run.json",
        {
            "command": command,
            "config": dataclasses.asdict(config),
            "litebert": __version__,
            "git_commit": _git_commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": packages,
            "argv": sys.argv[1:],
        },
    )


def _git_commit() -> str | None:
    """The commit of this source tree, when it is one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
