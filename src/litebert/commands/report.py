"""Plot the metrics of a training run, or of several in the same axes, on one page.

Example:
  litebert report runs/pretrain
  litebert report runs/small runs/base --out compare.html
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from litebert.console import make_console, say
from litebert.errors import ConfigError


@dataclass(frozen=True)
class Config:
    runs: tuple[Path, ...]
    """Folders of `litebert pretrain` or `litebert finetune`, also while they run."""
    out: Path | None = None
    """The page to write; by default report.html, in the folder of the run or, for several, here."""

    POSITIONAL: ClassVar[str] = "runs"


def run(config: Config) -> int:
    from litebert.trainers.training_report import write_report

    if not config.runs:
        raise ConfigError("no run named; give one or more folders, such as: litebert report runs/pretrain")
    out = config.out or (config.runs[0] if len(config.runs) == 1 else Path()) / "report.html"
    say(make_console(), write_report(config.runs, out))
    return 0
