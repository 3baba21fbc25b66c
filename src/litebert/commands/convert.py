"""Convert any ALBERT checkpoint to the format of another library.

Examples:
  litebert convert albert_base_v2 runs/albert
  litebert convert albert_tiny_zh/albert_model.ckpt runs/tiny --verify
  litebert convert runs/mine tf --to google
  litebert convert runs/mine keras --to keras

It reads checkpoints of TensorFlow (Google's, TF-Hub's, SavedModels, both kinds of albert_zh's), folders and files of
PyTorch and safetensors, also with lonePatient's names, and keras-hub's weights, recognised by their content; neither
TensorFlow nor Keras is needed. A table shows what became of every tensor and what was left out, and why; convert.json
keeps it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.run_folder import refuse_overwrite, write_run

if TYPE_CHECKING:
    from litebert.interop.convert import ConversionReport

LOG_WIDTH = 200
"""Columns of the table where the output is not a terminal."""
RESULT_FILES = {"config.json": "a model", "albert_config.json": "a checkpoint", "model.onnx": "an exported model"}


@dataclass(frozen=True)
class Config:
    POSITIONAL: ClassVar[tuple[str, str]] = ("source", "out")
    source: str
    """Folder or file of a checkpoint, the common prefix of its files, or the name of a model."""
    out: Path
    """Folder to write."""
    to: Literal["huggingface", "google", "keras", "sentence-transformers", "onnx"] = "huggingface"
    """Format to write. huggingface: a folder for transformers and litebert; sentence-transformers: the same, for text
    embeddings; google: a TensorFlow checkpoint for google-research/albert; keras: a preset for keras-hub; onnx: a
    graph, as litebert export writes it."""
    verify: bool = False
    """Compare our hidden states with those of the source's own framework, if it is installed."""
    json: bool = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        path = Path(self.source).resolve()
        places = (path, path / "variables") if path.is_dir() else (path.parent,)  # where a SavedModel has them
        if self.out.resolve() in places:
            raise ConfigError(f"{self.out} is where the source lies; choose another --out")
        for name, what in RESULT_FILES.items():
            refuse_overwrite(self.out / name, what)


def run(config: Config) -> None:
    from litebert.fewshot.persistence import SavedClassifier
    from litebert.inference.loading import locate
    from litebert.interop.convert import convert_checkpoint

    path = locate(config.source)
    if SavedClassifier.is_at(path):
        raise ConfigError(
            f"{path} is an adapted model, a head on another one; convert that one, or use litebert export"
        )
    report = convert_checkpoint(path, config.out, config.to, config.verify, make_console())
    write_run(config.out, "convert", config)
    _print(config, report)


def _print(config: Config, report: ConversionReport) -> None:
    from rich.console import Console
    from rich.table import Table

    if config.json:
        print(json.dumps(asdict(report)))
        return
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    kept = [row for row in report.rows if row.becomes]
    table = Table(title=f"{config.source}: {report.kind}", title_justify="left")
    for name in ("tensor", "shape", "becomes", ""):
        table.add_column(name, overflow="fold")
    for row in kept:
        table.add_row(row.name, " × ".join(map(str, row.shape)), row.becomes, row.why)
    console.print(table)
    left_out = Counter(row.why for row in report.rows if not row.becomes)
    for why, count in left_out.items():
        names = [row.name for row in report.rows if not row.becomes and row.why == why]
        print(f"left out, {why}: {', '.join(names[:3])}" + (f" and {count - 3} more" if count > 3 else ""))
    for remark in report.remarks:
        print(remark)
    if report.off is not None:
        print(f"hidden states are off by {report.off:.1e} at most from what the source's framework gives")
    print(f"{len(report.rows)} tensors found, {len(kept)} taken, {len(report.rows) - len(kept)} left out; "
          f"{config.out} is for {config.to}")  # fmt: skip
