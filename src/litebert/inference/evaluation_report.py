"""Evaluations for people: tables in the terminal, and the page that `litebert evaluate --out` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from litebert.console import say
from litebert.files import atomic_write, write_json
from litebert.inference.evaluation import Evaluation
from litebert.inference.records import as_record
from litebert.measure.calibration import bin_by_quantile
from litebert.measure.html_report import Report

MAX_TERMINAL_LABELS = 12
MAX_PAGE_LABELS = 40
"""Largest confusion matrix that is drawn."""
MAX_PAGE_ERRORS = 50


def print_evaluation(console: Console, evaluation: Evaluation, errors: int) -> None:
    """Metrics, labels, confusion matrix and up to `errors` wrong answers of one model on one file."""
    say(console, f"{evaluation.model} on {evaluation.data}, {evaluation.examples:,} examples")
    table = _table(["metric", "value", "baseline"], left=("metric",))
    for name, value in evaluation.metrics.items():
        baseline = f"{evaluation.baseline[name]:.4f}" if name in evaluation.baseline else ""
        table.add_row(escape(name), f"{value:.4f}", baseline)
    if evaluation.calibration_error is not None:
        table.add_row("calibration error", f"{evaluation.calibration_error:.4f}", "")
    if evaluation.passes is not None:
        table.add_row("mean passes", f"{evaluation.passes:.2f}", "")
    console.print(table)
    say(console, *(f"{name}: {signature}" for name, signature in evaluation.signatures.items()))
    if len(evaluation.by_label) > 1:
        columns, *rows = label_table(evaluation)
        table = _table(columns, left=("label",), overflow="fold")
        for cells in rows[:MAX_TERMINAL_LABELS]:
            table.add_row(*map(escape, cells))
        console.print(table)
        if len(rows) > MAX_TERMINAL_LABELS:
            say(console, f"and {len(rows) - MAX_TERMINAL_LABELS:,} more labels: --json and --out list them all")
    if evaluation.labels and len(evaluation.labels) <= MAX_TERMINAL_LABELS:
        table = _table(["", *evaluation.labels], left=("",), title="rows: true labels, columns: predicted labels")
        for label, counts in zip(evaluation.labels, evaluation.confusion, strict=True):
            table.add_row(escape(label), *(str(count) if count else "·" for count in counts))
        console.print(table)
    if errors and evaluation.errors:
        title, (columns, *rows) = evaluation.error_table(errors)
        table = _table(columns, left=columns, title=title, overflow="fold")
        for *cells, text in rows:
            table.add_row(*(escape(cell[:80]) for cell in cells), escape(text[:300]))
        console.print(table)
    if evaluation.skipped:
        say(console, f"{len(evaluation.skipped):,} rows left out: {evaluation.skipped[0]}")


def print_comparison(console: Console, evaluations: Sequence[Sequence[Evaluation]]) -> None:
    """Every model (a row) on every file (a column), by the main metric."""
    names = dict.fromkeys(evaluation.metric for row in evaluations for evaluation in row)
    files = [evaluation.data for evaluation in evaluations[0]]
    table = _table(["", *files], left=("",), title=", ".join(names), overflow="fold")
    for row in evaluations:
        table.add_row(escape(row[0].model), *(f"{evaluation.main_score:.4f}" for evaluation in row))
    console.print(table)


def label_table(evaluation: Evaluation) -> list[list[str]]:
    """Metrics of each label, the most frequent first; the first row holds the column names."""
    ordered = sorted(evaluation.by_label.items(), key=lambda pair: -pair[1]["examples"])
    return [["label", *ordered[0][1]]] + [
        [label, *(f"{int(value):,}" if name == "examples" else f"{value:.4f}" for name, value in metrics.items())]
        for label, metrics in ordered
    ]


def write_page(evaluation: Evaluation, out: Path) -> None:
    """report.html, answers.jsonl and, last, evaluation.json."""
    report = Report(f"{evaluation.task}: {evaluation.data}", f"{evaluation.model}, {evaluation.examples:,} examples")
    rows = [[name, value, evaluation.baseline.get(name, "")] for name, value in evaluation.metrics.items()]
    report.table(["metric", "value", "baseline"], rows)
    if len(evaluation.by_label) > 1:
        report.heading("By label")
        columns, *label_rows = label_table(evaluation)
        report.table(columns, label_rows)
    if evaluation.labels and len(evaluation.labels) <= MAX_PAGE_LABELS:
        report.heading("Confusion matrix")
        report.confusion(evaluation.labels, evaluation.confusion, "Rows are true labels, columns predicted labels.")
    if evaluation.reliability:
        report.heading("Calibration")
        caption = (
            f"Accuracy over confidence; on the dashed line both are equal. "
            f"Expected calibration error: {evaluation.calibration_error:.3f}."
        )
        report.points(evaluation.reliability, caption, "confidence", "accuracy", diagonal=True)
    report.heading("Accuracy by length")
    sizes = [len(judgement.text) for judgement in evaluation.judgements]
    scores = [judgement.right for judgement in evaluation.judgements]
    report.points(
        bin_by_quantile(sizes, scores), "Each dot is the mean of about as many examples as every other.",
        "characters of the text", "accuracy",
    )  # fmt: skip
    if evaluation.errors:
        title, (columns, *errors) = evaluation.error_table(MAX_PAGE_ERRORS)
        report.heading(title[0].upper() + title[1:])
        report.table(columns, [[*cells, text[:500]] for *cells, text in errors])
    if evaluation.skipped:
        report.heading("Rows left out")
        report.table(["row"], [[line] for line in evaluation.skipped])
    report.write(out / "report.html")
    lines = (
        {"text": judgement.text, "truth": judgement.truth, "right": judgement.right, "answer": as_record(answer)}
        for judgement, answer in zip(evaluation.judgements, evaluation.answers, strict=True)
    )
    atomic_write(out / "answers.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    write_json(out / "evaluation.json", evaluation.summary())


def _table(columns: Sequence[str], left: Sequence[str], title: str | None = None, overflow: str = "ellipsis") -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(escape(name), justify="left" if name in left else "right", overflow=overflow)  # type: ignore[arg-type]
    return table
