"""The plots of `litebert reproduce`, each with its caption."""

from __future__ import annotations

import statistics
from typing import Any

from litebert.measure.experiment_plots import Series, VariantScores, plot_passes, plot_series, plot_variants
from litebert.studies.reproduce.paper import PAPER_RESULTS
from litebert.studies.reproduce.variants import ModelVariant, TableName
from litebert.studies.reproduce.verdicts import REFERENCE_ROWS, Results

X_AXES = {"depth": "layers", "width": "hidden size", "masking": "share hidden, %"}
"""Tables that are plotted as lines over a number."""
PAPER_LABEL = "the paper: average, %"
Plot = tuple[Any, str]


def draw_table(results: Results, table: TableName) -> dict[str, Plot]:
    """The plots of a table by file name."""
    if table == "sentence-loss":
        return {"sentence-loss": _draw_sentences(results)}
    plots: dict[str, Plot] = {table: _draw(results, table, "mlm", "ours: hidden tokens found")}
    if any(results.values(row.cell, "average") for row in results.rows(table)):
        plots[f"{table}-downstream"] = _draw(results, table, "average", "ours: downstream")
    return plots


def _draw(results: Results, table: TableName, figure: str, ours: str) -> Plot:
    rows = results.rows(table)
    published = {row.name: PAPER_RESULTS.get(table, {}).get(row.name, {}).get("average") for row in rows}
    beside = " The paper's averages, of other tasks, stand at the right." if any(published.values()) else ""
    if table in X_AXES:
        names = list(dict.fromkeys(row.group for row in rows))
        groups = {name: [row for row in rows if row.group == name] for name in names}
        own = [
            Series(name, [row.x or 0 for row in group_rows], [results.values(row.cell, figure) for row in group_rows])
            for name, group_rows in groups.items()
        ]
        theirs = [
            Series(name, [row.x or 0 for row in group_rows], [[published[row.name] or 0.0] for row in group_rows])
            for name, group_rows in groups.items()
            if all(published[row.name] for row in group_rows)
        ]
        caption = (
            f"{ours[6:].capitalize()} over {X_AXES[table]}: a dot for every seed, lines through the means.{beside}"
        )
        return plot_series(own, theirs, X_AXES[table], (ours, PAPER_LABEL)), caption
    level = None
    if table in REFERENCE_ROWS:
        reference = results.values(next(row.cell for row in rows if row.name == REFERENCE_ROWS[table]), figure)
        level = statistics.mean(reference) if reference else None
    rungs = [VariantScores(row.label, results.values(row.cell, figure), published[row.name]) for row in rows]
    dashed = " The dashed line is the mean of what they are held against." if level is not None else ""
    caption = f"{ours[6:].capitalize()}: a dot for every seed, a bar for their mean.{dashed}{beside}"
    return plot_variants(rungs, ours, PAPER_LABEL, level), caption


def _draw_sentences(results: Results) -> Plot:
    rungs = [
        VariantScores(f"trained with {row.label}, asked {question}", results.values(row.cell, figure),
             PAPER_RESULTS["sentence-loss"][row.name][figure])
        for figure, question in (("next_probe", "NSP"), ("order_probe", "SOP"))
        for row in results.rows("sentence-loss")
    ]  # fmt: skip
    caption = (
        "Pairs judged rightly by a probe: a dot for every seed, a bar for their mean; the dashed line is chance. "
        "The paper's values stand at the right."
    )
    return plot_variants(rungs, "ours: pairs judged rightly", "the paper: accuracy, %", 0.5), caption


def draw_passes(results: Results) -> Plot | None:
    """Movement of hidden states by pass, mean over seeds, by kind of sharing."""
    moves = {}
    for name, cell in _sharing_variants(results).items():
        runs = results.runs.get(cell, [])
        if runs:
            moved = [[statistics.mean(values) for values in zip(*(run[part] for run in runs), strict=True)]
                     for part in ("distances", "angles")]  # fmt: skip
            moves[name] = (moved[0], moved[1])
    if not moves:
        return None
    ends = ", ".join(f"{name} {angles[-1]:.1f}°" for name, (_, angles) in moves.items())
    return plot_passes(
        moves
    ), f"Each pass of the trained models, from its input to its output. At the last one: {ends}."


def draw_few_shot(results: Results) -> Plot | None:
    cells = _sharing_variants(results)
    rungs = [VariantScores(name, results.values(cell, "few_shot")) for name, cell in cells.items()]
    rungs = [rung for rung in rungs if rung.values]
    if not rungs:
        return None
    shots = results.plan["shots"]
    caption = (
        f"Accuracy with {shots} examples of each class and no training: a dot for every seed, a bar for their mean."
    )
    return plot_variants(rungs, f"accuracy, {shots} examples per class", ""), caption


def _sharing_variants(results: Results) -> dict[str, ModelVariant]:
    """The variants of parameter sharing, with the common embedding size."""
    names = {"all": "all shared", "attention": "attention shared", "ffn": "feed-forward shared", "none": "not shared"}
    return {name: ModelVariant.of(results.plan, sharing=sharing) for sharing, name in names.items()}
