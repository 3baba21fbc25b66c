"""Quantize a model to int8 or bf16: smaller, and faster on CPUs.

Examples:
  litebert quantize --model runs/mine --data train.csv --test test.csv --out runs/int8
  litebert quantize --data text.txt --out runs/encoder-int8
  litebert quantize --model runs/mine --to bf16 --out runs/half
  litebert predict --model runs/int8 --input texts.txt

An int8 folder is a model like any other, for litebert alone; it cannot be trained further. --data are texts such as the
model will read, in the form of its task, or one text per line: up to 256 of them measure the error of the hidden
states, and as many others calibrate the ranges of activations, for CPUs without a C++ compiler, where oneDNN computes.
On a CPU without int8 instructions, and on a GPU, the same weights are used in float32. --to bf16 halves the weights;
other libraries read that folder too, and `predict --precision bf16` computes in bfloat16, which is hardly less exact
and about twice as fast as float32 on CPUs with instructions for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from litebert.builtin import DEFAULT
from litebert.console import make_console, say, status
from litebert.errors import ConfigError
from litebert.files import write_json
from litebert.run_folder import refuse_overwrite, removed_unless_done, write_run


@dataclass(frozen=True)
class Config:
    out: Path
    """Folder for the smaller model."""
    model: str = DEFAULT
    """Folder of a model, or the name of one."""
    to: Literal["int8", "bf16"] = "int8"
    """Data type of the weights. int8: a quarter of float32's size, the fastest. bf16: half the size, more exact."""
    data: Path | None = None
    """Texts such as the model will read: a table as for its task, or one text per line."""
    test: Path | None = None
    """Labelled examples to score the model on, before and after."""
    columns: tuple[str, ...] = ()
    """Column names, if not the usual ones: text=sentence label=class; or column numbers: text=1 label=2."""
    json: bool = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        refuse_overwrite(self.out / "config.json", "a model")


def run(config: Config) -> None:
    from rich.console import Console

    from litebert.compress.evaluation import check_test_file, read_examples
    from litebert.compress.quantize import MAX_EXAMPLES
    from litebert.compress.report import report_table, write_quantized
    from litebert.loading import load
    from litebert.model.backends.int8 import has_int8
    from litebert.tasks import TrainableTask

    if config.to == "int8" and not has_int8():
        raise ConfigError(
            "this CPU has no int8 instructions (AVX-512 VNNI or AMX; with a C++ compiler AVX2 or ARM's dot products "
            "will do); quantize on one that does, or use --to bf16"
        )
    console = make_console()
    with status(console, f"loading {config.model}"):
        model = load(config.model, engine="torch")
    if model.int8 is not None:
        raise ConfigError(f"{config.model} is int8 already; give the model that it was made from")
    check_test_file(model, config.test, config.columns)
    examples = [] if config.data is None else read_examples(model, config.data, config.columns, 2 * MAX_EXAMPLES)
    with removed_unless_done(config.out):
        report = write_quantized(
            model, config.model, config.out, config.to, examples, config.test, config.columns, console
        )
        write_run(config.out, "quantize", config)
        write_json(config.out / "quantize.json", asdict(report))
    if config.json:
        print(json.dumps(asdict(report)))
    else:
        Console().print(report_table(report, config.to))
    text = "" if isinstance(model.task, TrainableTask) else "echo 'a text with a [MASK]' | "
    flag = " --precision bf16" if config.to == "bf16" else ""
    say(console, f"model in {config.out}", f"next: {text}litebert predict --model {config.out}{flag}")
