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
from litebert.console import make_console, say
from litebert.errors import ConfigError, DataError

CHUNK_TEXTS = 4096  # texts


@dataclass(frozen=True)
class Config:
    model: str = SENTENCES
    """Model folder, or the name of one that is built in or on the hub."""
    input: str = "-"
    """File of texts; - is standard input."""
    output: str = "-"
    """An .npy file; - is standard output."""
    columns: tuple[str, ...] = ()
    """Column of the texts in a table, if not the usual name: text=question."""
    size: int | None = None
    """Truncate vectors to this size, for models that were trained with such --sizes."""
    storage: Literal["float32", "int8", "binary"] = "float32"
    """Storage type: four bytes, one byte, or one bit (the sign) for each number."""
    batch_size: int | None = None
    """Texts per batch; by default 32, on a GPU 32,768 tokens."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """Numeric precision. auto: bf16 on a GPU that has it, fp32 elsewhere."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

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
        for start in range(0, len(texts), CHUNK_TEXTS):
            vectors = truncate(model.embed(texts[start : start + CHUNK_TEXTS], config.batch_size), config.size)
            vectors = (
                np.packbits(vectors > 0, axis=1) if config.storage == "binary" else quantize(vectors, config.storage)
            )
            bar.advance(bar.task_ids[0], len(vectors))
            if config.output == "-":
                for row in vectors.tolist():
                    print(json.dumps(row))
            else:
                rows.append(vectors)
    if config.output != "-":
        with atomic_path(Path(config.output)) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate(rows), allow_pickle=False)
        say(console, f"{len(texts):,} vectors in {config.output}")
