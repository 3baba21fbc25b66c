"""Run the cases of `litebert bench` and collect their results."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from litebert import __version__
from litebert.device import pick_device
from litebert.measure.timing import copy_rate, matmul_rate
from litebert.studies.benchmark import inference, training
from litebert.studies.benchmark.config import BenchmarkConfig
from litebert.studies.benchmark.harness import OURS, Harness, Measurement

MAX_SPREAD = 0.2
"""Spread above which results cannot be relied on."""
NOISE_NOTE = f"± above {MAX_SPREAD:.0%}: the machine is busy with other work; do not rely on these results"


@dataclass(frozen=True)
class Result:
    """A row of bench.json: one contender in one case."""

    case: str
    who: str
    milliseconds: float
    """Of one call: median over the rounds."""
    spread: float
    """Half the interquartile range over the median."""
    tokens_per_second: float
    """Real tokens."""
    operations_per_second: float
    """FLOP/s by the model's formula, also for a contender that skips some of them."""
    of_matmul: float
    """The same over the FLOP/s of a large matrix product."""
    intensity: float
    """Arithmetic intensity: operations per byte of memory traffic, both by formula."""
    memory: int | None
    """Peak bytes of a call on a GPU, without the weights; for our pre-training with weights and optimizer. CUDA graphs
    keep theirs between calls."""


def run_benchmark(config: BenchmarkConfig, console: Console) -> tuple[dict[str, Any], list[Result]]:
    """The content of bench.json, and its rows."""
    device = pick_device(config.device)
    torch.manual_seed(config.seed)
    harness = Harness(config, device, console)
    cases = {
        "infer": lambda: inference.cases(harness),
        "finetune": lambda: [training.finetuning(harness)],
        "pretrain": lambda: training.pretraining(harness),
    }
    results: list[Result] = []
    peaks: dict[torch.dtype, float] = {}
    our_name = f"{OURS}, fp8" if config.precision == "fp8" else OURS
    for case in (case for kind in config.what for case in cases[kind]()):
        if case.dtype not in peaks:
            peaks[case.dtype] = matmul_rate(device, case.dtype)
        results += [
            _result(case.name, our_name if who == OURS else who, measurement, peaks[case.dtype])
            for who, measurement in case.measure().items()
        ]
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    settings = {
        key: value if isinstance(value, (int, tuple, type(None))) else str(value)
        for key, value in asdict(config).items()
    }
    summary: dict[str, Any] = {
        "machine": machine, "threads": torch.get_num_threads(), "litebert": __version__, "torch": torch.__version__,
        "transformers": version("transformers"), "model": config.model or config.preset, "settings": settings,
        "matmul_operations_per_second": {str(dtype).removeprefix("torch."): rate for dtype, rate in peaks.items()},
        "copy_bytes_per_second": copy_rate(device), "rows": [asdict(result) for result in results],
    }  # fmt: skip
    return summary, results


def is_noisy(rows: Sequence[Result]) -> bool:
    """Do the rounds differ too much to be compared?"""
    return max(row.spread for row in rows) > MAX_SPREAD


def _result(case: str, who: str, measurement: Measurement, matmul: float) -> Result:
    timing = measurement.timing
    operations = measurement.operations / timing.median
    return Result(
        case, who, timing.median * 1e3, timing.spread, measurement.tokens / timing.median, operations,
        operations / matmul, measurement.operations / measurement.traffic, timing.memory,
    )  # fmt: skip


def result_table(rows: Sequence[Result]) -> Table:
    """One line per case and contender, with its speed relative to the first of its case."""
    table = Table()
    memory = any(row.memory is not None for row in rows)
    for name in ("case", "who", "ms", "±", "tokens/s", "speed", "of matmul", *(["memory"] if memory else [])):
        table.add_column(name, justify="left" if name in ("case", "who") else "right")
    last = None
    for row in rows:
        first = next(other for other in rows if other.case == row.case)
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
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return str(capabilities.get("cpu_name") or platform.processor() or "CPU")
