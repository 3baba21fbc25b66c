"""Turn texts into vectors.

Examples:
  litebert embed --input texts.txt --output vectors.npy
  litebert embed --model runs/similar --input questions.csv --columns text=question --size 256 --output vectors.npy
  echo 'where is my order' | litebert embed

A file is plain text, a text a line, or a table. An .npy file gets one row for each text, in order, blank lines left
out; standard output gets a JSON list a line. Vectors have length 1; in eight bits only their directions count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from litebert.builtin import SENTENCES
from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError, DataError

AT_ONCE = 4096  # texts


@dataclass(frozen=True)
class Config:
    model: str = SENTENCES
    """Model folder, or the name of one that is built in or on the hub."""
    input: str = "-"
    """File of texts; - is standard input."""
    output: str = "-"
    """An .npy file; - is standard output."""
    columns: tuple[str, ...] = ()
    """Where the texts stand in a table, if not under the usual name: text=question."""
    size: int | None = None
    """The first so many numbers of a vector: for models that learned such --sizes."""
    storage: Literal["float32", "int8", "binary"] = "float32"
    """Numbers of four bytes, of one, or one bit for each: its sign."""
    batch_size: int | None = None
    """Texts at a time; by default 32, and on a GPU as many as make 32,768 tokens."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """auto: bf16 on a GPU that has it, fp32 elsewhere."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        check_counts_and_seed(self, *(name for name in ("size", "batch_size") if getattr(self, name) is not None))
        if self.output != "-" and Path(self.output).suffix != ".npy":
            raise ConfigError(f"output={self.output} must end in .npy, or be - for JSON lines")


def run(config: Config) -> None:
    import numpy as np

    from litebert.console import progress_bar
    from litebert.data.texts import read_texts
    from litebert.device import pick_device
    from litebert.files import atomic_path
    from litebert.loading import load
    from litebert.search.knn import quantize, truncate

    model = load(config.model).to(pick_device(config.device))
    model.configure(config.precision)
    if config.size is not None and config.size > model.dimensions:
        raise ConfigError(f"size={config.size} is more than the {model.dimensions} numbers of this model's vectors")
    texts = list(read_texts(config.input, config.columns))
    if not texts:
        raise DataError(f"{config.input}: holds no text; give a file with a text per line")
    console, rows = make_console(), []
    with progress_bar(console, f"reading {len(texts):,} texts", len(texts)) as bar:
        for start in range(0, len(texts), AT_ONCE):
            some = model.embed(texts[start : start + AT_ONCE], config.batch_size)
            found = truncate(some, config.size)
            found = np.packbits(found > 0, axis=1) if config.storage == "binary" else quantize(found, config.storage)
            bar.advance(bar.task_ids[0], len(found))
            if config.output == "-":
                for row in found.tolist():
                    print(json.dumps(row))
            else:
                rows.append(found)
    if config.output != "-":
        with atomic_path(Path(config.output)) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate(rows), allow_pickle=False)
        console.print(f"{len(texts):,} vectors in {config.output}", highlight=False, markup=False)
