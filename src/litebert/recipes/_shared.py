"""What every recipe does: say where the results go, refuse to overwrite them, remember how they were made."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litebert import __version__
from litebert.errors import ConfigError
from litebert.files import write_json

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130


def make_console() -> Console:
    """Reports go to standard error: standard output is for results."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)


def refuse_overwrite(path: Path, made_by: str) -> None:
    """Stop before replacing somebody's results."""
    if path.exists():
        raise ConfigError(
            f"{path.parent} already holds a finished {made_by} ({path.name}); choose another --out, or delete it first"
        )


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
