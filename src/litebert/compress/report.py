"""Write a quantized model and report its size, latency, error and score before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from litebert.builtin import folder_of
from litebert.compress.evaluation import TIMED_TOKENS, encoder_latency_ms, score_on_cpu
from litebert.compress.quantize import measure_error, quantize_model
from litebert.console import progress_bar, say, status
from litebert.data.batches import Example
from litebert.inference import Model
from litebert.loading import load


@dataclass(frozen=True)
class QuantizationReport:
    """The content of quantize.json. Pairs are before and after."""

    megabytes: tuple[float, float]
    """Size of the file of weights."""
    milliseconds: tuple[float, float]
    """Latency of the encoder for one text of 64 tokens."""
    off_by_pass: list[float]
    """Relative error of the hidden states after each pass; empty without --data."""
    metric: str = ""
    scores: tuple[float, float] | None = None


def write_quantized(
    model: Model,
    name: str,
    out: Path,
    to: Literal["int8", "bf16"],
    examples: Sequence[Example],
    test: Path | None,
    columns: tuple[str, ...],
    console: Console,
) -> QuantizationReport:
    """Save the smaller model and measure it as users will load it. Half of the examples calibrate it, the others
    measure its error."""
    calibration, held_out = examples[::2], examples[1::2]
    title = f"making {to}" + (f", reading {len(examples):,} texts" if examples else "")
    if not console.is_terminal:
        say(console, title)
    with progress_bar(console, title, len(examples) or None) as bar:

        def advance(count: int) -> None:
            bar.advance(bar.task_ids[0], count)

        if to == "bf16":
            model.save(out, half=True)
        else:
            quantize_model(model, calibration, advance).save(out)
        small = load(out, engine="bf16" if to == "bf16" else "auto")
        error = measure_error(model, small, held_out, advance).by_pass if held_out else []
    megabytes = _megabytes(folder_of(name), model), _megabytes(out, model)
    metric, scores = "", None
    if test is not None:
        metric, (before, after) = score_on_cpu([model, small], test, columns)
        scores = before, after
    with status(console, f"timing both on {TIMED_TOKENS} tokens"):
        before, after = encoder_latency_ms([model, small])
    return QuantizationReport(megabytes, (before, after), error, metric, scores)


def _megabytes(folder: Path, model: Model) -> float:
    """Size of the file of weights; for a model in another format, of its parameters in float32."""
    file = folder / "model.safetensors"
    size = file.stat().st_size if file.is_file() else 4 * sum(weight.numel() for weight in model.albert.parameters())
    return size / 1e6


def report_table(report: QuantizationReport, to: str) -> Table:
    table = Table()
    for name in ("", "before", to, ""):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("weights, MB", *(f"{size:.1f}" for size in report.megabytes), "")
    before, after = report.milliseconds
    table.add_row(f"{TIMED_TOKENS} tokens, ms", f"{before:.1f}", f"{after:.1f}", f"{before / after:.1f} times as fast")
    if report.scores is not None:
        before, after = report.scores
        share = f"{after / before:.1%} of it" if before > 0 else ""
        table.add_row(report.metric, f"{before:.4f}", f"{after:.4f}", share)
    if report.off_by_pass:
        last = len(report.off_by_pass)
        shown = sorted({1, (last + 1) // 2, last})
        errors = ", ".join(f"{report.off_by_pass[number - 1]:.1%} after pass {number}" for number in shown)
        table.add_row("hidden states, error", "", "", errors)
    return table
