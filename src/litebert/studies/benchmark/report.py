"""What `litebert bench --out` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litebert.files import write_json
from litebert.measure.html_report import Report
from litebert.measure.plots import MachineLimits, RooflinePoint
from litebert.studies.benchmark.runner import NOISE_NOTE, Result, is_noisy


def write_page(out: Path, summary: dict[str, Any], rows: Sequence[Result]) -> None:
    """report.html and, last, bench.json."""
    rates = summary["matmul_operations_per_second"]
    rates_text = ", ".join(f"{rate / 1e12:.3g} TFLOP/s in {dtype}" for dtype, rate in rates.items())
    parts = ", ".join(f"{name} {summary[name]}" for name in ("litebert", "torch", "transformers"))
    machine = f"{summary['machine']}, {summary['threads']} threads, {parts}, {summary['model']}"
    report = Report("Side by side", f"{machine}; a large matrix product reaches {rates_text}.")
    if is_noisy(rows):
        report.text(NOISE_NOTE)
    many = [row for row in rows if not row.case.startswith("one ")]
    single = [row for row in rows if row.case.startswith("one ")]
    if many:
        report.heading("Tokens per second")
        report.bars(_grouped(many, "tokens_per_second"), "Without padding; higher is better.", "tokens per second")
    if single:
        report.heading("One text at a time")
        report.bars(_grouped(single, "milliseconds"), "Latency; lower is better.", "milliseconds")
    report.heading("Roofline")
    numbers = {case: str(number) for number, case in enumerate(dict.fromkeys(row.case for row in rows), start=1)}
    copied = summary["copy_bytes_per_second"]
    report.roofline(
        [RooflinePoint(row.who, numbers[row.case], row.intensity, row.operations_per_second) for row in rows],
        MachineLimits(copied, rates),
        "No call in their precision can be above the lines: the flat ones are a large matrix product, the slanted one "
        f"is memory, {copied / 1e9:,.0f} GB/s in a large copy. Bytes are those of a model that reads its weights once "
        "a pass and writes down every step; caches can beat that. The numbers are those of the cases below.",
    )
    report.heading("All results")
    memory = any(row.memory is not None for row in rows)
    report.table(
        ["", "case", "who", "ms", "±", "tokens/s", "of matmul", *(["memory, GB"] if memory else [])],
        [
            [numbers[row.case], row.case, row.who, row.milliseconds, f"{row.spread:.0%}", round(row.tokens_per_second),
             f"{row.of_matmul:.0%}", *([] if row.memory is None else [row.memory / 1e9])]
            for row in rows
        ],
    )  # fmt: skip
    report.text(
        "Medians of round-robin runs; ± is half the interquartile range. "
        '"Of matmul": FLOP/s by the model\'s formula over those of the matrix product.'
    )
    report.write(out / "report.html")
    write_json(out / "bench.json", summary)


def _grouped(rows: Sequence[Result], figure: str) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row.case, {})[row.who] = getattr(row, figure)
    return groups
