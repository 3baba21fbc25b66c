"""The drawings of `litebert reproduce`, each with its caption."""

from __future__ import annotations

import statistics
from typing import Any

from litebert.measure.experiment_plots import Arm, Rung, arms, ladder, passes
from litebert.studies.reproduce.paper import PAPER
from litebert.studies.reproduce.variants import Cell, TableName
from litebert.studies.reproduce.verdicts import REFERENCES, Results

OVER = {"depth": "layers", "width": "hidden size", "masking": "share hidden, %"}
"""Tables that are lines over a number."""
AVERAGE = "the paper: average, %"
Drawing = tuple[Any, str]


def draw_table(results: Results, table: TableName) -> dict[str, Drawing]:
    """The scores of a table, by the names of their files."""
    if table == "sentence-loss":
        return {"sentence-loss": _draw_sentences(results)}
    found: dict[str, Drawing] = {table: _draw(results, table, "mlm", "ours: hidden tokens found")}
    if any(results.values(row.cell, "average") for row in results.rows(table)):
        found[f"{table}-downstream"] = _draw(results, table, "average", "ours: downstream")
    return found


def _draw(results: Results, table: TableName, figure: str, ours: str) -> Drawing:
    rows = results.rows(table)
    published = {row.name: PAPER.get(table, {}).get(row.name, {}).get("average") for row in rows}
    beside = " The paper's averages, of other tasks, stand at the right." if any(published.values()) else ""
    if table in OVER:
        names = list(dict.fromkeys(row.group for row in rows))
        groups = {name: [row for row in rows if row.group == name] for name in names}
        own = [Arm(name, [row.x or 0 for row in some], [results.values(row.cell, figure) for row in some])
               for name, some in groups.items()]  # fmt: skip
        theirs = [
            Arm(name, [row.x or 0 for row in some], [[published[row.name] or 0.0] for row in some])
            for name, some in groups.items()
            if all(published[row.name] for row in some)
        ]
        caption = f"{ours[6:].capitalize()} over {OVER[table]}: a dot for every seed, lines through the means.{beside}"
        return arms(own, theirs, OVER[table], (ours, AVERAGE)), caption
    level = None
    if table in REFERENCES:
        reference = results.values(next(row.cell for row in rows if row.name == REFERENCES[table]), figure)
        level = statistics.mean(reference) if reference else None
    rungs = [Rung(row.label, results.values(row.cell, figure), published[row.name]) for row in rows]
    dashed = " The dashed line is the mean of what they are held against." if level is not None else ""
    caption = f"{ours[6:].capitalize()}: a dot for every seed, a bar for their mean.{dashed}{beside}"
    return ladder(rungs, ours, AVERAGE, level), caption


def _draw_sentences(results: Results) -> Drawing:
    rungs = [
        Rung(f"trained with {row.label}, asked {asked}", results.values(row.cell, figure),
             PAPER["sentence-loss"][row.name][figure])
        for figure, asked in (("next_probe", "NSP"), ("order_probe", "SOP"))
        for row in results.rows("sentence-loss")
    ]  # fmt: skip
    caption = (
        "Pairs judged rightly by a probe: a dot for every seed, a bar for their mean; the dashed line is chance. "
        "The paper's values stand at the right."
    )
    return ladder(rungs, "ours: pairs judged rightly", "the paper: accuracy, %", 0.5), caption


def draw_passes(results: Results) -> Drawing | None:
    """Shared and not shared, the mean over seeds."""
    moves = {}
    for name, cell in _contenders(results).items():
        runs = results.runs.get(cell, [])
        if runs:
            moved = [[statistics.mean(some) for some in zip(*(run[part] for run in runs), strict=True)]
                     for part in ("distances", "angles")]  # fmt: skip
            moves[name] = (moved[0], moved[1])
    if not moves:
        return None
    ends = ", ".join(f"{name} {angles[-1]:.1f}°" for name, (_, angles) in moves.items())
    return passes(moves), f"Each pass of the trained models, from its input to its output. At the last one: {ends}."


def draw_few_shot(results: Results) -> Drawing | None:
    cells = _contenders(results)
    rungs = [Rung(name, results.values(cell, "few_shot")) for name, cell in cells.items()]
    rungs = [rung for rung in rungs if rung.values]
    if not rungs:
        return None
    shots = results.plan["shots"]
    caption = (
        f"Accuracy with {shots} examples of each class and no training: a dot for every seed, a bar for their mean."
    )
    return ladder(rungs, f"accuracy, {shots} examples per class", ""), caption


def _contenders(results: Results) -> dict[str, Cell]:
    """What is shared, with the common embedding size."""
    names = {"all": "all shared", "attention": "attention shared", "ffn": "feed-forward shared", "none": "not shared"}
    return {name: Cell.of(results.plan, sharing=sharing) for sharing, name in names.items()}
