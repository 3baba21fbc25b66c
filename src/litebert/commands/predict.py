"""Answer for every line of a file or of standard input; JSON lines out.

Examples:
  echo 'my parcel never came' | litebert predict --model runs/finetune
  litebert predict --model runs/pretrain --input gaps.txt --output filled.jsonl

A line is a text, a pair ["first", "second"], or a JSON object with `text` (or `text_a` and `text_b`); a blank line gets
the answer null. With --input, CSV, TSV, JSONL and Parquet files work too; a row without text gets null.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.console import make_console, say
from litebert.errors import ConfigError
from litebert.files import atomic_path


@dataclass(frozen=True)
class Config:
    model: str = DEFAULT
    """Model folder, or the name of one that is built in or on the hub."""
    input: str = "-"
    """File to read; - is standard input."""
    output: str = "-"
    """File to write; - is standard output."""
    columns: tuple[str, ...] = ()
    """Column names of a table, if not the usual ones: text=sentence; or column numbers without a header: text=1."""
    skip_bad: bool = False
    """Do not stop at unreadable input: a line gets null, a row of a table is skipped; both are counted."""
    batch_size: int | None = None
    """Lines per batch; by default 32, on a GPU 32,768 tokens."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """Numeric precision. auto: bf16 on a GPU that has it, fp32 elsewhere. fp8: bf16 with the larger matrix products in
    fp8, on GPUs such as an H100: faster for large batches, less exact."""
    passes: int | None = None
    """Number of passes, instead of all; for models that were trained for it (distill --elastic)."""
    speed: float = 1.0
    """Early exit: texts take 1 / speed of the passes on average; 2 is usual. For classifiers that were trained for it
    (distill --elastic)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_counts_and_seed(self, "batch_size")


def run(config: Config) -> None:
    from litebert.data.tables import TableOptions
    from litebert.device import pick_device
    from litebert.inference.streaming import CHUNK_RECORDS, answer_stream, chunk_as_they_come, read_records
    from litebert.loading import load

    if "-" not in (config.input, config.output) and Path(config.input).resolve() == Path(config.output).resolve():
        raise ConfigError(f"output={config.output} is the input, which the answers would replace; name another file")
    model = load(config.model).to(pick_device(config.device))
    model.configure(config.precision, config.passes, config.speed)
    source = TableOptions.parse(config.columns, config.skip_bad, keep_empty=True)
    records = read_records(config.input, source, model)
    console, count = make_console(), 0
    with ExitStack() as stack:
        if config.output == "-":
            out = sys.stdout
        else:
            status = stack.enter_context(console.status("answering"))
            out = stack.enter_context(stack.enter_context(atomic_path(Path(config.output))).open("w", encoding="utf-8"))
        for chunk in chunk_as_they_come(records, max(CHUNK_RECORDS[model.device.type], config.batch_size or 0)):
            for answer in answer_stream(model, chunk, source, config.batch_size):
                out.write(json.dumps(answer, ensure_ascii=False) + "\n")
                count += 1
            out.flush()  # a pipe's reader gets every batch as soon as it is done
            if config.output != "-":
                status.update(f"{count:,} answers")
    if source.skipped:
        say(console, f"{len(source.skipped):,} left out, the first: {source.skipped[0]}")
    if config.output != "-":
        say(console, f"{count:,} answers in {config.output}")
