"""Run the paper's experiments again at a chosen budget, and say which of its findings hold.

Examples:
  litebert reproduce sharing --out runs/reproduce
  litebert reproduce --data shards/ --proxy --budget hour --seeds 2 --out runs/reproduce
  litebert reproduce embedding sharing --data shards/ --tasks configs/sst-2.toml configs/mrpc.toml --out runs/reproduce
  torchrun --nproc-per-node 8 -m litebert reproduce --data shards/ --budget 1G --out runs/reproduce
  litebert reproduce --redraw --out runs/reproduce

Tables: embedding, sharing, sentence-loss, depth, strategies, width, masking, optimizer. A cell is one model; those that
several tables mean are trained once. A command that was stopped goes on when it is given again, with more tables or
seeds too. Without --data it is a demonstration, of small models on documentation that is on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.run_folder import INTERRUPTED, refuse_other_run, refuse_unwritable
from litebert.studies.reproduce.variants import TABLES, TableName
from litebert.train.settings import OptimizerName, Precision


@dataclass(frozen=True, kw_only=True)
class Config:
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
    """Where to run."""

    def __post_init__(self) -> None:
        maybe = ("hidden_size", "layers", "length", "batch_size", "rows")
        given = [name for name in maybe if getattr(self, name) is not None]
        check_counts_and_seed(self, "seeds", "task_examples", "task_epochs", "shots", *given)
        if not self.tables:
            raise ConfigError(f"no table named; give some of {', '.join(TABLES)}, or none of them for all")
        if self.proxy and self.hidden_size is not None:
            raise ConfigError(f"--proxy is a hidden size of its own; leave it or hidden_size={self.hidden_size} out")


def run(config: Config) -> int:
    from litebert.studies.reproduce.report import write_pages

    console = make_console()
    refuse_unwritable(config.out)
    refuse_other_run(config.out, "reproduce")
    finished = True
    if not config.redraw:
        from litebert.device import pick_device
        from litebert.studies.reproduce.runner import processes, work

        with processes(pick_device(config.device)) as process:
            console.quiet = process.rank > 0
            finished = work(config, console, process)
        if process.rank or config.estimate:
            return 0 if finished else INTERRUPTED
    for line in write_pages(config.out, config.tables):
        console.print(line, highlight=False, markup=False)
    if not finished:
        console.print("stopped; to go on, run the same command again", highlight=False, markup=False)
        return INTERRUPTED
    return 0
