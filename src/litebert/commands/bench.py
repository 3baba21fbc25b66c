"""Ours against transformers on this machine, side by side in one run.

Examples:
  litebert bench
  litebert bench infer --preset small --out runs/bench
  litebert bench pretrain --data shards --length 128 512

Everybody has the same precision and takes turns, and the same weights and texts; only pretrain gives the others
made-up sequences that fill every column, and where we are asked for fp8 they have bf16. Real tokens are counted, not
padding. What they reach, by the model's formula, is held against a large matrix product (in bf16 where we have fp8).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from litebert import __version__
from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError, require_extra
from litebert.run_folder import refuse_overwrite

if TYPE_CHECKING:
    from rich.table import Table

    from litebert.studies.benchmark.harness import Measured

Kind = Literal["infer", "finetune", "pretrain"]
OURS = "litebert"
BUSY = 0.2
"""A spread that says nothing can be said."""
BUSY_NOTE = f"± above {BUSY:.0%}: the machine is busy with other work; do not rely on these figures"


@dataclass(frozen=True)
class Config:
    """What to measure, and on what."""

    POSITIONAL: ClassVar[str] = "what"

    what: tuple[Kind, ...] = ("infer", "finetune")
    """What to do in turns: infer, the vectors of texts, many and one at a time; finetune, steps of a classifier;
    pretrain, steps with their loader and log."""
    preset: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] = "base"
    """The size of the model."""
    model: str | None = None
    """For infer and finetune: a model folder, in place of --preset."""
    data: Path | None = None
    """For pretrain: what `litebert prepare` wrote. For the others, with --model: a file of texts, a line each; without
    it, lengths are drawn as those of sentences fall."""
    length: tuple[int, ...] = (128,)
    """Tokens of a sequence."""
    batch_size: int | None = None
    """Sequences at once; by default 256 to infer on a GPU, 8 on a CPU (texts of many lengths: as many tokens as those
    have), 32 to fine-tune, and 65,536 tokens to pre-train on a GPU, 512 on a CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """auto: bf16 on a GPU and, for training, on a CPU with instructions for it; fp32 elsewhere. fp8, to infer and to
    pre-train on a newer GPU: our larger matrix products from eight bits, the others in bf16."""
    compiled: bool | None = None
    """Let transformers run under torch.compile too; by default on a GPU only."""
    rounds: int = 7
    """Turns that everybody takes; the median counts."""
    out: Path | None = None
    """Folder for bench.json and a page with drawings."""
    json: bool = False
    """Print JSON instead of a table."""
    seed: int = 0
    """Decides the weights and the texts."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        check_counts_and_seed(self, "rounds", *(["batch_size"] if self.batch_size is not None else []))
        if not self.what or not self.length or min(self.length) < 8:
            raise ConfigError("give something to measure, such as infer, and lengths of 8 or more")
        if self.precision == "fp8" and "finetune" in self.what:
            raise ConfigError(
                "precision=fp8: finetune takes no eight bits; say what to measure: litebert bench infer --precision fp8"
            )
        if "pretrain" in self.what and self.data is None:
            raise ConfigError("bench pretrain reads real text: give the shards of litebert prepare with --data")
        if "pretrain" in self.what and len(self.what) > 1:
            raise ConfigError(
                "--data is shards for pretrain and texts for the others; measure pretrain in a run of its own"
            )
        if self.data is not None and self.model is None and "pretrain" not in self.what:
            raise ConfigError(
                "--data without --model: whose tokenizer is to count the tokens of these texts? give both"
            )


@dataclass(frozen=True)
class Row:
    """What one of them reached in one case."""

    case: str
    who: str
    milliseconds: float
    """Of one call: the median over the rounds."""
    spread: float
    """Half the distance between the quartiles, as a share of that."""
    tokens_per_second: float
    """Real tokens."""
    operations_per_second: float
    """Floating-point operations that the model needs, by its formula; who leaves some out is credited with them."""
    of_matmul: float
    """The same as a share of what a large matrix product reaches."""
    intensity: float
    """Operations per byte of memory traffic, both by formula."""
    memory: int | None
    """Bytes that a call needs at its peak beside the weights, on a GPU; of our pre-training, with weights and
    optimizer. CUDA graphs hold theirs between calls."""


def run(config: Config) -> None:
    import torch
    from rich.console import Console

    from litebert.device import pick_device
    from litebert.measure.timing import copy_rate, matmul_rate
    from litebert.studies.benchmark import inference as _bench_inference
    from litebert.studies.benchmark import training as _bench_training
    from litebert.studies.benchmark.harness import Arena

    if config.out is not None:
        refuse_overwrite(config.out / "bench.json", "a benchmark")
    require_extra("transformers", "peers")
    device, console = pick_device(config.device), make_console()
    torch.manual_seed(config.seed)
    arena = Arena(config, device, console)
    cases = {
        "infer": lambda: _bench_inference.cases(arena),
        "finetune": lambda: [_bench_training.finetuning(arena)],
        "pretrain": lambda: _bench_training.pretraining(arena),
    }
    rows, rates = [], {}
    for case in (case for kind in config.what for case in cases[kind]()):
        if case.dtype not in rates:
            rates[case.dtype] = matmul_rate(device, case.dtype)
        found = case.measure()
        mine = f"{OURS}, fp8" if config.precision == "fp8" else OURS
        rows += [_row(case.name, mine if who == OURS else who, one, rates[case.dtype]) for who, one in found.items()]
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    measured = {str(dtype).removeprefix("torch."): rate for dtype, rate in rates.items()}
    summary: dict[str, Any] = {
        "machine": machine, "threads": torch.get_num_threads(), "litebert": __version__, "torch": torch.__version__,
        "transformers": version("transformers"), "model": config.model or config.preset,
        "settings": {key: value if isinstance(value, (int, tuple, type(None))) else str(value)
                     for key, value in asdict(config).items()},
        "matmul_operations_per_second": measured, "copy_bytes_per_second": copy_rate(device),
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    if config.json:
        print(json.dumps(summary))
    else:
        out = Console()
        told = ", ".join(f"{rate / 1e12:.3g} TFLOP/s in {dtype}" for dtype, rate in measured.items())
        out.print(f"{machine}: a large matrix product reaches {told}", highlight=False, markup=False)
        out.print(table_of(rows))
        if is_busy(rows):
            out.print(BUSY_NOTE)
    if config.out is not None:
        from litebert.studies.benchmark.report import write_page

        write_page(config.out, summary, rows)
        console.print(f"look at {config.out / 'report.html'}", highlight=False, markup=False)


def is_busy(rows: list[Row]) -> bool:
    return max(row.spread for row in rows) > BUSY


def _row(case: str, who: str, measured: Measured, matmul: float) -> Row:
    timing = measured.timing
    operations = measured.operations / timing.median
    return Row(
        case, who, timing.median * 1e3, timing.spread, measured.tokens / timing.median, operations,
        operations / matmul, measured.operations / measured.traffic, timing.memory,
    )  # fmt: skip


def table_of(rows: list[Row]) -> Table:
    """One line per case and contender; how many times as fast as the first of its case each is."""
    from rich.table import Table

    table = Table()
    memory = any(row.memory is not None for row in rows)
    for name in ("case", "who", "ms", "±", "tokens/s", "speed", "of matmul", *(["memory"] if memory else [])):
        table.add_column(name, justify="left" if name in ("case", "who") else "right")
    last = None
    for row in rows:
        first = next(one for one in rows if one.case == row.case)
        if last is not None and row.case != last:
            table.add_section()
        table.add_row(
            "" if row.case == last else row.case,
            row.who,
            f"{row.milliseconds:,.2f}",
            f"{row.spread:.0%}",
            f"{row.tokens_per_second:,.0f}",
            f"{row.tokens_per_second / first.tokens_per_second:.2f}×",
            f"{row.of_matmul:.0%}",
            *([] if row.memory is None else [f"{row.memory / 1e9:.2f} GB"]),
            style="bold" if row.who.startswith(OURS) else None,
        )
        last = row.case
    return table


def _cpu_name() -> str:
    import platform

    import torch

    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return str(able.get("cpu_name") or platform.processor() or "CPU")
