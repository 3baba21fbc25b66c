"""Make a model smaller and faster on CPUs: weights and products of eight bits, or of bfloat16.

Examples:
  litebert quantize --model runs/mine --data train.csv --test test.csv --out runs/int8
  litebert quantize --data text.txt --out runs/encoder-int8
  litebert quantize --model runs/mine --to bf16 --out runs/half
  litebert predict --model runs/int8 --input texts.txt

An int8 folder is a model like any other, for litebert alone; it is trained no further. --data are texts such as the
model will read, in the form of its task, or one text per line: on up to 256 of them it is measured how far its hidden
states are off, and from as many others it is known between what numbers the inputs of its products lie, for CPUs
without a C++ compiler, where oneDNN multiplies. On a CPU without instructions for eight bits, and on a GPU, the same
weights are used in float32. --to bf16 halves the weights; everybody reads that folder, and `predict --precision bf16`
computes in bfloat16, which is hardly less exact and about twice as fast as float32 on CPUs with instructions for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from litebert.builtin import DEFAULT
from litebert.compress.evaluation import TIMED_TOKENS, check_test, examples_of, milliseconds, scores_of
from litebert.console import make_console, status
from litebert.errors import ConfigError
from litebert.files import write_json
from litebert.run_folder import refuse_overwrite, removed_unless_done, write_run

if TYPE_CHECKING:
    from rich.console import Console

    from litebert.data.batches import Example
    from litebert.inference import Model


@dataclass(frozen=True)
class Config:
    out: Path
    """Folder for the smaller model."""
    model: str = DEFAULT
    """Folder of a model, or the name of one."""
    to: Literal["int8", "bf16"] = "int8"
    """What it becomes; int8: a quarter of float32's size, the fastest; bf16: half of it, more exact."""
    data: Path | None = None
    """Texts such as it will read: a table as for its task, or one text per line."""
    test: Path | None = None
    """Labelled examples on which the score is measured, before and after."""
    columns: tuple[str, ...] = ()
    """What stands where, if not under its usual name: text=sentence label=class, or text=1 label=2."""
    json: bool = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        refuse_overwrite(self.out / "config.json", "a model")


@dataclass(frozen=True)
class Figures:
    """What was gained and what was lost."""

    megabytes: tuple[float, float]
    """Of the weights' file, before and after."""
    milliseconds: tuple[float, float]
    """For one text of 64 tokens, the encoder alone."""
    off_by_pass: list[float]
    """How far hidden states are off after each pass, as a share of their length; empty without --data."""
    metric: str = ""
    scores: tuple[float, float] | None = None


def run(config: Config) -> None:
    from litebert.compress.quantize import MOST
    from litebert.loading import load
    from litebert.model.backends.int8 import has_int8
    from litebert.tasks import TrainableTask

    if config.to == "int8" and not has_int8():
        raise ConfigError(
            "this CPU has no instructions for eight bits (AVX-512 VNNI or AMX; with a C++ compiler AVX2 or ARM's dot "
            "products will do); quantize on one that does, or use --to bf16"
        )
    console = make_console()
    with status(console, f"loading {config.model}"):
        model = load(config.model, engine="torch")
    if model.int8 is not None:
        raise ConfigError(f"{config.model} is in eight bits already; give the model that it was made from")
    check_test(model, config.test, config.columns)
    examples = [] if config.data is None else examples_of(model, config.data, config.columns, 2 * MOST)
    with removed_unless_done(config.out):
        found = _made(config, model, examples, console)
    _print(config, found)
    console.print(f"model in {config.out}", highlight=False, markup=False)
    text = "" if isinstance(model.task, TrainableTask) else "echo 'a text with a [MASK]' | "
    flag = " --precision bf16" if config.to == "bf16" else ""
    console.print(f"next: {text}litebert predict --model {config.out}{flag}", highlight=False, markup=False)


def _made(config: Config, model: Model, examples: list[Example], console: Console) -> Figures:
    """Write the small model, and say what it is worth."""
    from litebert.builtin import folder_of
    from litebert.compress.quantize import loss_of, quantized
    from litebert.console import progress_bar
    from litebert.loading import load

    learned, others = examples[::2], examples[1::2]
    title = f"making {config.to}" + (f", reading {len(examples):,} texts" if examples else "")
    if not console.is_terminal:
        console.print(title, highlight=False, markup=False)
    with progress_bar(console, title, len(examples) or None) as bar:
        advance = lambda count: bar.advance(bar.task_ids[0], count)  # noqa: E731
        if config.to == "bf16":
            model.save(config.out, half=True)
        else:
            quantized(model, learned, advance).save(config.out)
        write_run(config.out, "quantize", config)
        # what people will load is what is measured
        small = load(config.out, engine="bf16" if config.to == "bf16" else "auto")
        off = loss_of(model, small, others, advance).by_pass if others else []
    weighs = [_weighs(folder, model) for folder in (folder_of(config.model), config.out)]
    metric, scores = "", None
    if config.test is not None:
        metric, (was, now) = scores_of([model, small], config.test, config.columns)
        scores = was, now
    with status(console, f"timing both on {TIMED_TOKENS} tokens"):
        before, after = milliseconds([model, small])
    found = Figures((weighs[0], weighs[1]), (before, after), off, metric, scores)
    write_json(config.out / "quantize.json", asdict(found))
    return found


def _weighs(folder: Path, model: Model) -> float:
    """Megabytes of the weights' file; where they are not in one such file, of as many numbers of float32."""
    file = folder / "model.safetensors"
    size = file.stat().st_size if file.is_file() else 4 * sum(one.numel() for one in model.albert.parameters())
    return size / 1e6


def _print(config: Config, found: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    if config.json:
        print(json.dumps(asdict(found)))
        return
    table = Table()
    for name in ("", "before", config.to, ""):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("weights, MB", *(f"{one:.1f}" for one in found.megabytes), "")
    was, now = found.milliseconds
    table.add_row(f"{TIMED_TOKENS} tokens, ms", f"{was:.1f}", f"{now:.1f}", f"{was / now:.1f} times as fast")
    if found.scores is not None:
        before, after = found.scores
        share = f"{after / before:.1%} of it" if before > 0 else ""
        table.add_row(found.metric, f"{before:.4f}", f"{after:.4f}", share)
    if found.off_by_pass:
        last = len(found.off_by_pass)
        shown = sorted({1, (last + 1) // 2, last})
        table.add_row(
            "hidden states off", "", "", ", ".join(f"{found.off_by_pass[n - 1]:.1%} after pass {n}" for n in shown)
        )
    Console().print(table)
