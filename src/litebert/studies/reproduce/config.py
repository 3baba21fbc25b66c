"""Settings of `litebert reproduce`. No torch here: the command line builds its flags from this class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from litebert.checks import check_counts_and_seed
from litebert.errors import ConfigError
from litebert.studies.reproduce.variants import TABLES, TableName
from litebert.train.options import OptimizerName, Precision


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    POSITIONAL: ClassVar[str] = "tables"

    tables: tuple[TableName, ...] = TABLES
    """Which experiments; by default all, in this order."""
    out: Path = Path("runs/reproduce")
    """Folder for the cells, the tables and the report; a former run there goes on."""
    data: Path | None = None
    """Folder that `litebert prepare` wrote, with documents held out."""
    budget: str | None = None
    """Tokens that each model is trained on: a number such as 50M, or minutes, hour or paper; by default minutes."""
    proxy: bool = False
    """Models of hidden size 384 in the place of 768, which learn from four times as many tokens in the same time."""
    seeds: int = 2
    """Train every model with so many seeds. Without a second one nothing can be said for sure."""
    estimate: bool = False
    """Say what it will cost, and stop."""
    redraw: bool = False
    """Write tables and report from the cells in --out, and train nothing."""

    tasks: tuple[Path, ...] = ()
    """Settings files of `litebert finetune` (task, train, test), such as configs/sst-2.toml: their mean is the
    downstream score."""
    task_examples: int = 8000
    """The most examples to fine-tune on."""
    task_epochs: int = 3
    """Times to go through them."""
    few_shot: Path | None = None
    """Labelled texts to learn a few of each class from and be asked about the rest; by default 360 support messages."""
    columns: tuple[str, ...] = ()
    """What stands where in that file, if not under its usual name: text=sentence label=class."""
    shots: int = 5
    """How many of each class."""

    hidden_size: int | None = None
    """Another hidden size of the common model."""
    layers: int | None = None
    """Another number of layers than 12."""
    length: int | None = None
    """Tokens per sequence; by default 128."""
    batch_size: int | None = None
    """Sequences per step; by default 256."""
    optimizer: OptimizerName = "muon"
    """Of the common model."""
    depth_ramp: str | None = None
    """As of `litebert pretrain`: by default all models begin with fewer passes; "" is as in the paper."""
    rows: int | None = None
    """Held-out sequences that models are asked about; by default 2048."""
    precision: Precision = "auto"
    """As of `litebert pretrain`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        optional_counts = ("hidden_size", "layers", "length", "batch_size", "rows")
        counts = [name for name in optional_counts if getattr(self, name) is not None]
        check_counts_and_seed(self, "seeds", "task_examples", "task_epochs", "shots", *counts)
        if not self.tables:
            raise ConfigError(f"no table named; give some of {', '.join(TABLES)}, or none of them for all")
        if self.proxy and self.hidden_size is not None:
            raise ConfigError(f"--proxy is a hidden size of its own; leave it or hidden_size={self.hidden_size} out")
