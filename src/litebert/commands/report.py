"""Draw the curves of a run, or of several in the same axes, on one page.

Example:
  litebert report runs/pretrain
  litebert report runs/small runs/base --out compare.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.files import read_json, write_json

if TYPE_CHECKING:
    from litebert.measure.training_page import Run


@dataclass(frozen=True)
class Config:
    runs: tuple[Path, ...]
    """Folders of `litebert pretrain` or `litebert finetune`, also while they run."""
    out: Path | None = None
    """The page to write; by default report.html, in the folder of the run or, for several, here."""

    POSITIONAL: ClassVar[str] = "runs"


def run(config: Config) -> int:
    if not config.runs:
        raise ConfigError("no run named; give one or more folders, such as: litebert report runs/pretrain")
    out = config.out or (config.runs[0] if len(config.runs) == 1 else Path()) / "report.html"
    make_console().print(write_report(config.runs, out), highlight=False, markup=False)
    return 0


def write_report(runs: Sequence[Path], out: Path) -> str:
    """Write the page and return a line that says where; without matplotlib the figures go to a JSON file instead."""
    from litebert.measure.training_page import page_of

    read = [_read(folder, name) for folder, name in zip(runs, _names(runs), strict=True)]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        figures = out.with_suffix(".json")
        write_json(figures, {"runs": [_as_json(one) for one in read]})
        return f"figures in {figures}; to have them drawn: pip install 'litebert[train]' (matplotlib is not installed)"
    page_of(read).write(out)
    return f"report in {out}"


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or all of it where the last parts are the same."""
    names = [folder.resolve().name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    return [name.encode("utf-8", "replace").decode("utf-8") for name in names]  # a disk may hold names that are no text


def _read(folder: Path, name: str) -> Run:
    from litebert.measure.training_page import Run
    from litebert.train.log import read_events, read_metrics

    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give the --out of a litebert pretrain or finetune")
    if not (folder / "metrics.jsonl").is_file():
        raise ConfigError(f"{folder}: has no metrics.jsonl; give the --out of a litebert pretrain or finetune")
    curves = read_metrics(folder)
    if not curves:
        raise ConfigError(f"{folder / 'metrics.jsonl'}: holds no steps; train first, then report")
    about = read_json(folder / "run.json") if (folder / "run.json").is_file() else {}
    return Run(name, curves, read_events(folder), about, _parameters(folder))


def _parameters(folder: Path) -> int | None:
    """How many numbers the model has, from the header of its file; of a run that goes on, from its last checkpoint."""
    from math import prod

    from safetensors import SafetensorError, safe_open

    checkpoints = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    for file in (place / "model.safetensors" for place in (folder, *checkpoints)):
        try:
            with safe_open(file, framework="np") as tensors:
                return sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        except (OSError, SafetensorError):  # absent, or being written: the report can do without
            continue
    return None


def _as_json(one: Run) -> dict[str, Any]:
    return {
        "name": one.name,
        "steps": one.steps,
        "parameters": one.parameters,
        "settings": one.about.get("config", {}),
        "last": {name: curve.values[-1] for name, curve in one.curves.items()},
        "curves": {name: {"steps": curve.steps, "values": curve.values} for name, curve in one.curves.items()},
        "events": [{"step": event.step, "event": event.text} for event in one.events],
    }
