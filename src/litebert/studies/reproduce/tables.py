"""The report of `litebert reproduce` in words and tables: all of it follows from the numbers of the cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from litebert.measure.intervals import Mean, spread_of
from litebert.studies.reproduce.paper import PAPER, SOURCE, WORDS, Claim
from litebert.studies.reproduce.variants import Cell, TableName
from litebert.studies.reproduce.verdicts import REFERENCES, Change, Judgement, Results, Verdict, changes

MARKS = {
    "holds": "✓ holds", "does not hold": "✗ does not hold", "too close to tell": "≈ too close", "not run": "– not run",
    "nothing learned": "– nothing learned",
    "helps": "✓ helps", "hurts": "✗ hurts",
}  # fmt: skip
FIGURES = {
    "mlm": "hidden tokens", "mlm_token": "single hidden tokens", "average": "downstream", "few_shot": "few-shot",
    "order_probe": "SOP", "next_probe": "NSP", "order_head": "SOP, own head", "next_head": "NSP, own head",
}  # fmt: skip
"""Shares of right answers, in percent on the page."""
THEIRS = {"parameters": "parameters", "average": "average"}
COLUMNS: dict[TableName, tuple[str, ...]] = {
    "sentence-loss": ("mlm", "next_probe", "order_probe", "next_head", "order_head", "few_shot", "average"),
    "masking": ("mlm", "mlm_token", "order_probe", "few_shot", "average"),
}
USUAL_COLUMNS = ("mlm", "order_probe", "few_shot", "average")
DEMONSTRATION = (
    "This is a demonstration: small models that have read a few hundred thousand tokens of the documentation on this "
    "machine. It shows how the experiments work and says nothing about ALBERT; give --data for that."
)
SETTLING = (
    "One layer that is used again and again could come to rest: in the end, what goes in comes out. Every pass is "
    "measured by how far it moves the state of a token and by which angle it turns it, in the mean over held-out text, "
    "as in figure 1 of the paper, which finds that the steps of shared layers are smoother and smaller but do not "
    "go to zero."
)
FEW_SHOT = (
    "What do models know that nobody has fine-tuned? Some examples of each class are read by litebert adapt, which "
    "trains nothing, and the others are asked. It also looks at runs of characters, which are the same for all models, "
    "so differences are smaller than between the models alone."
)
TASK_BY_TASK = (
    "Where a model scores what always the same answer does, it has not learned the task, and a difference of the means "
    "in the tables above may be nothing but that: one fine-tuning that did not begin to learn."
)
SURE = (
    "Every cell has read the same text in the same order for the same seed. ± in tables is the deviation over seeds. "
    "Margins of differences hold the truth 19 times out of 20, by Student's distribution, with the deviation estimated "
    "from all cells of a table together, as two or three seeds of one cell say little about it; of many statements one "
    "in twenty is called sure by luck. Questions of yes or no have the error of the number of pairs asked added. With "
    "one seed nothing is sure and nothing is called so."
)
RAMPED = (
    "All models here begin with fewer passes and grow, without which short runs of deep shared layers do not get off "
    "the ground; layers that are not shared start as copies of the lower ones. "
)


@dataclass(frozen=True)
class Block:
    """A part of the report."""

    kind: Literal["heading", "text", "table", "figure"]
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: Any = None
    """matplotlib's."""
    name: str = ""
    """Of the figure's files."""


def told(results: Results, tables: Sequence[TableName], judgements: Sequence[Judgement], draws: bool) -> list[Block]:
    """All of it; without drawings where there is nothing to draw with."""
    from litebert.studies.reproduce.plots import draw_few_shot, draw_passes, draw_table

    blocks = _summary(results, judgements)
    for table in (table for table in tables if results.is_told(table)):
        blocks += [Block("heading", WORDS[table].title), Block("text", WORDS[table].question)]
        if draws:
            for name, (figure, caption) in draw_table(results, table).items():
                blocks.append(Block("figure", caption, figure=figure, name=name))
        blocks += [table_of(results, table), *_findings(results, table, judgements)]
        if WORDS[table].differs:
            blocks.append(Block("text", WORDS[table].differs))
    for title, words, draw, name in (
        ("Does sharing make the network settle?", SETTLING, draw_passes, "passes"),
        ("Few examples", FEW_SHOT, draw_few_shot, "few-shot"),
    ):
        if draws and (drawn := draw(results)):
            blocks += [Block("heading", title), Block("text", words)]
            blocks.append(Block("figure", drawn[1], figure=drawn[0], name=name))
            blocks += [Block("text", line) for line in _settled(results, name)]
    return [*blocks, *_task_by_task(results, tables), *_closing(results), *_missing(results, tables)]


def _settled(results: Results, name: str) -> list[str]:
    """What these drawings say of sharing, where both were run."""
    figure, factor, unit = {"passes": ("last_angle", 1.0, "°"), "few-shot": ("few_shot", 100.0, " points")}[name]
    shared, separate = (results.values(Cell.of(results.plan, sharing=kind), figure) for kind in ("all", "none"))
    if not shared or not separate:
        return []
    found = results.noise("sharing", figure).difference(separate, shared)
    sure = abs(found.value) > found.margin
    return [
        f"Not shared against all shared: {difference(found, factor)}{unit}"
        + (f"{' at the last pass' if name == 'passes' else ''}, ")
        + ("which is more than its margin." if sure else "too close to tell.")
    ]


def table_of(results: Results, table: TableName) -> Block:
    """Ours, mean ± deviation over seeds, and the paper's beside."""
    rows, paper = results.rows(table), PAPER.get(table, {})
    asked = [name for name in COLUMNS.get(table, USUAL_COLUMNS) if any(results.values(row.cell, name) for row in rows)]
    theirs = [name for name in ("parameters", *FIGURES) if any(name in values for values in paper.values())]
    sizes = {"parameters": _millions, "tokens_per_second": _thousands, "memory_bytes": _gigabytes}
    if not any(results.values(row.cell, "memory_bytes") for row in rows):
        del sizes["memory_bytes"]  # which only a GPU tells
    header = ["", "parameters", "tokens/s", "memory"][: len(sizes) + 1]
    header += [FIGURES[name] for name in asked] + [f"paper: {THEIRS.get(name) or FIGURES[name]}" for name in theirs]
    lines = []
    for row in rows:
        line = [row.label, *(shown(results.values(row.cell, name)) for name, shown in sizes.items())]
        line += [spread(results.values(row.cell, name)) for name in asked]
        lines.append([*line, *(_published(paper.get(row.name, {}).get(name), name) for name in theirs)])
    return Block("table", header=header, rows=lines)


def _summary(results: Results, judgements: Sequence[Judgement]) -> list[Block]:
    plan, seeds = results.plan, results.seeds
    places = plan["steps"] * plan["batch_size"] * plan["length"]
    read = mean([run["tokens"] for runs in results.runs.values() for run in runs] or [0])
    blocks = [
        Block(
            "text",
            f"{len(results.runs)} models with up to {seeds} seed{'s' * (seeds != 1)} each, hidden size "
            f"{plan['hidden_size']}, {plan['layers']} layers unless a table says otherwise, trained for "
            f"{plan['steps']:,} steps of {plan['batch_size']} × {plan['length']} ({places / 1e6:,.1f} million places, "
            f"{read / 1e6:,.1f} million of them tokens) on {', '.join(results.devices) or 'nothing yet'}.",
        )
    ]
    if plan["made_up"]:
        blocks.append(Block("text", DEMONSTRATION))
    if not judgements:
        return blocks
    first = [one for one in judgements if one.figure != "average"]
    then = [one for one in judgements if one.figure == "average"]
    counted = f"Of {len(first)} statements {_counts(first)}" + (
        f". By the mean of the downstream tasks, of {len(then)}, {_counts(then)}" if then else ""
    )
    counted += (
        ". A statement holds, or does not, only where the difference is larger than its margin. Shares are in percent."
    )
    rows = [
        [one.claim.text, MARKS[one.verdict], measured(one), _figure(one), paper_says(one.claim)] for one in judgements
    ]
    header = ("the paper's numbers say", "here", "difference", "of", "paper")
    heading = Block("heading", "Which of the paper's findings hold here")
    return [*blocks, heading, Block("text", counted), Block("table", header=header, rows=rows)]


def _counts(judgements: Sequence[Judgement]) -> str:
    """So many hold, so many do not, ..."""
    words: dict[Verdict, str] = {
        "holds": "{} hold here", "does not hold": "{} do not", "too close to tell": "{} are too close to tell",
        "nothing learned": "{} say nothing, as what they rest on was not learned", "not run": "{} were not run",
    }  # fmt: skip
    found = {name: sum(one.verdict == name for one in judgements) for name in words}
    always = ("holds", "does not hold", "too close to tell")
    return ", ".join(words[name].format(count) for name, count in found.items() if count or name in always)


def _findings(results: Results, table: TableName, judgements: Sequence[Judgement]) -> list[Block]:
    """What was found, in words."""
    starts = {
        "holds": "Found here too", "does not hold": "Not so here, but the other way round",
        "too close to tell": "Too close to tell",
        "nothing learned": "What this rests on was not learned, so it says nothing",
    }  # fmt: skip
    blocks = []
    for verdict, start in starts.items():
        said = [
            f"{one.claim.text} ({_figure(one)}: {measured(one)})"
            for one in judgements
            if one.claim.table == table and one.verdict == verdict
        ]
        if said:
            blocks.append(Block("text", f"{start}: {'; '.join(said)}."))
    return blocks + (_changes(results, table) if table in REFERENCES else [])


def _changes(results: Results, table: TableName) -> list[Block]:
    """Every row against the table's reference."""
    figures = ["mlm", *(["average"] if results.has_downstream else [])]
    reference = next(row.label for row in results.rows(table) if row.name == REFERENCES[table])
    found = [changes(results, table, figure) for figure in figures]
    header = ["", *(cell for figure in figures for cell in (FIGURES[figure], "verdict"))]
    rows = [[some[0].row.label, *(cell for one in some for cell in _changed(one))] for some in zip(*found, strict=True)]
    return [Block("text", f"Each against {reference}:"), Block("table", header=header, rows=rows)]


def _changed(change: Change) -> tuple[str, str]:
    return "–" if change.found is None else difference(change.found), MARKS[change.effect]


def _task_by_task(results: Results, tables: Sequence[TableName]) -> list[Block]:
    """What the downstream scores are the mean of, every cell once, and what answering always the same gets."""
    tasks = list(results.plan["tasks"])
    if not tasks or not results.has_downstream:
        return []
    told = [run.get("without_reading", {}) for runs in results.runs.values() for run in runs]
    idle = [[one[task] for one in told if one.get(task) is not None][:1] for task in tasks]
    rows, seen = [["always the same answer", *map(spread, idle)]], set[Cell]()
    for table in tables:
        for row in results.rows(table):
            taught = [run["downstream"] for run in results.runs.get(row.cell, []) if run["downstream"]]
            if taught and row.cell not in seen:
                seen.add(row.cell)
                rows.append([f"{table}: {row.label}", *(spread([run[task] for run in taught]) for task in tasks)])
    return [Block("heading", "Downstream, task by task"), Block("text", TASK_BY_TASK),
            Block("table", header=["", *tasks], rows=rows)]  # fmt: skip


def _closing(results: Results) -> list[Block]:
    plan = results.plan
    tasks = f", and the mean over {', '.join(plan['tasks'])} after fine-tuning" if plan["tasks"] else ""
    differs = (
        "The paper trains on 16 GB of text for 125,000 steps of 4096 sequences of 512 tokens with LAMB; here it is "
        f"{plan['steps']:,} steps of {plan['batch_size']} × {plan['length']} with {plan['optimizer']}. "
        f"{'' if plan['depth_ramp'] == '' else RAMPED}The paper's averages are over SQuAD 1.1 and 2.0, MNLI, SST-2 and "
        f"RACE after fine-tuning; ours are shares of hidden tokens found in held-out documents{tasks}. Levels cannot "
        "be compared across the two, orders can."
    )
    return [
        Block("heading", "How sure is this?"), Block("text", SURE),
        Block("heading", "What differs from the paper, and why"), Block("text", differs),
        Block("text", f"The paper's values are those of {SOURCE}."),
    ]  # fmt: skip


def _missing(results: Results, tables: Sequence[TableName]) -> list[Block]:
    absent = [table for table in tables if not results.is_told(table)]
    cells = [
        f"{row.label} ({table})"
        for table in tables
        for row in results.rows(table)
        if table not in absent and row.cell not in results.runs
    ]
    fewer = [f"{cell.key} ({len(runs)})" for cell, runs in results.runs.items() if len(runs) < results.seeds]
    lines = [f"Whole tables: {', '.join(absent)}."] if absent else []
    lines += [f"Of the others, {len(cells)} cells: {', '.join(cells)}."] if cells else []
    lines += [f"With fewer than {results.seeds} seeds: {', '.join(fewer)}."] if fewer else []
    lines += [f"Failed: {cell.key}, seed {seed}: {reason}" for (cell, seed), reason in results.failed.items()]
    return [Block("heading", "What was not run"), *(Block("text", line) for line in lines)] if lines else []


def measured(one: Judgement) -> str:
    """What a claim was judged by."""
    if one.found is None:
        return "–"
    if one.claim.kind != "above":
        return f"{100 * one.found.value:.1f}{_margin(one.found, 100)}"
    return difference(one.found, 1 if one.figure == "last_angle" else 100)


def difference(found: Mean, factor: float = 100) -> str:
    return f"{factor * found.value:+.1f}{_margin(found, factor)}".replace("-", "−")


def paper_says(claim: Claim) -> str:
    figure = claim.figure or "average"
    values = [PAPER[claim.table].get(name, {}).get(figure) for name in (claim.row, *claim.others)]
    if values[0] is None:
        return "figure 1" if figure == "last_angle" else "–"
    return f"{values[0]}" + (f" against {', '.join(map(str, values[1:]))}" if values[1:] else "")


def spread(values: Sequence[float]) -> str:
    """Shares in percent: mean ± deviation."""
    if not values:
        return "–"
    deviation = spread_of(values)
    return f"{100 * mean(values):.1f}" + (f" ± {100 * deviation:.1f}" if deviation is not None else "")


def _figure(one: Judgement) -> str:
    return FIGURES.get(one.figure, "angle of the last pass, degrees")


def _margin(found: Mean, factor: float) -> str:
    return f" ± {factor * found.margin:.1f}" if math.isfinite(found.margin) else " (one seed)"


def _millions(values: Sequence[float]) -> str:
    return f"{values[0] / 1e6:.1f} M" if values else "–"


def _thousands(values: Sequence[float]) -> str:
    return f"{mean(values) / 1000:,.4g} k" if values else "–"


def _gigabytes(values: Sequence[float]) -> str:
    return f"{max(values) / 1e9:.1f} GB" if values else "–"


def _published(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    return f"{value / 1e6:.0f} M" if name == "parameters" else f"{value}"
