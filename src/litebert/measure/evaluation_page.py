"""What `litebert evaluate --out` writes."""

from __future__ import annotations

import json
from pathlib import Path

from litebert.commands.evaluate import Evaluation, label_rows
from litebert.files import atomic_write, write_json
from litebert.inference.records import as_record
from litebert.measure.calibration import by_size
from litebert.measure.html_report import Report

SHOWN_ERRORS = 50
DRAWN_LABELS = 40


def write_page(found: Evaluation, out: Path) -> None:
    """report.html, answers.jsonl and, last, evaluation.json."""
    report = Report(f"{found.task}: {found.data}", f"{found.model}, {found.examples:,} examples")
    rows = [[name, value, found.baseline.get(name, "")] for name, value in found.metrics.items()]
    report.table(["metric", "value", "without reading"], rows)
    if len(found.by_label) > 1:
        report.heading("Label by label")
        titles, *each = label_rows(found)
        report.table(titles, each)
    if found.labels and len(found.labels) <= DRAWN_LABELS:
        report.heading("What is taken for what")
        report.confusion(found.labels, found.confusion, "Rows are the truth, columns the model's answers.")
    if found.sureness:
        report.heading("How sure, how right")
        caption = (
            f"On the dashed line the model is as right as it is sure. Mean distance: {found.calibration_error:.3f}."
        )
        report.points(found.sureness, caption, "how sure the model was", "how right it was", diagonal=True)
    report.heading("Does length matter?")
    sizes = [len(one.text) for one in found.judgements]
    caption = "Each dot is the mean of about as many examples as every other."
    report.points(
        by_size(sizes, [one.right for one in found.judgements]), caption, "characters of the text", "how right"
    )
    if found.worst:
        title, (titles, *worst) = found.worst_table(SHOWN_ERRORS)
        report.heading(title[0].upper() + title[1:])
        report.table(titles, [[*cells, text[:500]] for *cells, text in worst])
    if found.skipped:
        report.heading("Left out")
        report.table(["row"], [[line] for line in found.skipped])
    report.write(out / "report.html")
    lines = (
        {"text": one.text, "truth": one.truth, "right": one.right, "answer": as_record(answer)}
        for one, answer in zip(found.judgements, found.answers, strict=True)
    )
    atomic_write(out / "answers.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    write_json(out / "evaluation.json", found.figures())
