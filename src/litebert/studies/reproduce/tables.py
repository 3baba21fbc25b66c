"""Sentences and tables of the report of `litebert reproduce`, all derived from the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from litebert.measure.intervals import Estimate, sample_deviation
from litebert.studies.reproduce.paper import PAPER_RESULTS, SOURCE, TABLE_TEXTS, Claim
from litebert.studies.reproduce.variants import ModelVariant, TableName
from litebert.studies.reproduce.verdicts import (
    REFERENCE_ROWS,
    ClaimVerdict,
    Results,
    VariantEffect,
    Verdict,
    variant_effects,
)

MARKS = {
    "holds": "✓ holds", "does not hold": "✗ does not hold", "too close to tell": "≈ too close", "not run": "– not run",
    "nothing learned": "– nothing learned",
    "helps": "✓ helps", "hurts": "✗ hurts",
}  # fmt: skip
METRIC_NAMES = {
    "mlm": "hidden tokens", "mlm_token": "single hidden tokens", "average": "downstream", "few_shot": "few-shot",
    "order_probe": "SOP", "next_probe": "NSP", "order_head": "SOP, own head", "next_head": "NSP, own head",
}  # fmt: skip
"""Metrics that are accuracies, in percent on the page."""
PAPER_METRIC_NAMES = {"parameters": "parameters", "average": "average"}
COLUMNS: dict[TableName, tuple[str, ...]] = {
    "sentence-loss": ("mlm", "next_probe", "order_probe", "next_head", "order_head", "few_shot", "average"),
    "masking": ("mlm", "mlm_token", "order_probe", "few_shot", "average"),
}
DEFAULT_COLUMNS = ("mlm", "order_probe", "few_shot", "average")
DEMO_TEXT = (
    "This is a demonstration: small models that have read a few hundred thousand tokens of the documentation on this "
    "machine. It shows how the experiments work and says nothing about ALBERT; give --data for that."
)
CONVERGENCE_TEXT = (
    "One layer that is used again and again could come to rest: in the end, what goes in comes out. Every pass is "
    "measured by how far it moves the state of a token and by which angle it turns it, in the mean over held-out text, "
    "as in figure 1 of the paper, which finds that the steps of shared layers are smoother and smaller but do not "
    "go to zero."
)
FEW_SHOT_TEXT = (
    "What do models know that nobody has fine-tuned? Some examples of each class are read by litebert adapt, which "
    "trains nothing, and the others are asked. It also looks at runs of characters, which are the same for all models, "
    "so differences are smaller than between the models alone."
)
TASK_TEXT = (
    "Where a model scores what always the same answer does, it has not learned the task, and a difference of the means "
    "in the tables above may be nothing but that: one fine-tuning that did not begin to learn."
)
CONFIDENCE_TEXT = (
    "Every cell has read the same text in the same order for the same seed. ± in tables is the deviation over seeds. "
    "Margins of differences hold the truth 19 times out of 20, by Student's distribution, with the deviation estimated "
    "from all cells of a table together, as two or three seeds of one cell say little about it; of many statements one "
    "in twenty is called sure by luck. Questions of yes or no have the error of the number of pairs asked added. With "
    "one seed nothing is sure and nothing is called so."
)
DEPTH_RAMP_TEXT = (
    "All models here begin with fewer passes and grow, without which short runs of deep shared layers do not get off "
    "the ground; layers that are not shared start as copies of the lower ones. "
)


@dataclass(frozen=True)
class ReportBlock:
    """A heading, paragraph, table or figure of the report."""

    kind: Literal["heading", "text", "table", "figure"]
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: Any = None
    """A matplotlib figure."""
    name: str = ""
    """Name of the figure's files."""


def report_blocks(
    results: Results, tables: Sequence[TableName], verdicts: Sequence[ClaimVerdict], draws: bool
) -> list[ReportBlock]:
    """All blocks of the report; without figures where matplotlib is missing."""
    from litebert.studies.reproduce.plots import draw_few_shot, draw_passes, draw_table

    blocks = _summary(results, verdicts)
    for table in (table for table in tables if results.has_results(table)):
        blocks += [ReportBlock("heading", TABLE_TEXTS[table].title), ReportBlock("text", TABLE_TEXTS[table].question)]
        if draws:
            for name, (figure, caption) in draw_table(results, table).items():
                blocks.append(ReportBlock("figure", caption, figure=figure, name=name))
        blocks += [table_of(results, table), *_claim_sentences(results, table, verdicts)]
        if TABLE_TEXTS[table].differs:
            blocks.append(ReportBlock("text", TABLE_TEXTS[table].differs))
    for title, words, draw, name in (
        ("Does sharing make the network settle?", CONVERGENCE_TEXT, draw_passes, "passes"),
        ("Few examples", FEW_SHOT_TEXT, draw_few_shot, "few-shot"),
    ):
        if draws and (drawn := draw(results)):
            blocks += [ReportBlock("heading", title), ReportBlock("text", words)]
            blocks.append(ReportBlock("figure", drawn[1], figure=drawn[0], name=name))
            blocks += [ReportBlock("text", line) for line in _sharing_sentences(results, name)]
    return [*blocks, *_task_by_task(results, tables), *_closing(results), *_missing(results, tables)]


def _sharing_sentences(results: Results, name: str) -> list[str]:
    """Sentences that compare shared and separate layers, if both were run."""
    figure, factor, unit = {"passes": ("last_angle", 1.0, "°"), "few-shot": ("few_shot", 100.0, " points")}[name]
    shared, separate = (results.values(ModelVariant.of(results.plan, sharing=kind), figure) for kind in ("all", "none"))
    if not shared or not separate:
        return []
    gap = results.noise("sharing", figure).difference(separate, shared)
    significant = abs(gap.value) > gap.margin
    return [
        f"Not shared against all shared: {format_difference(gap, factor)}{unit}"
        + (f"{' at the last pass' if name == 'passes' else ''}, ")
        + ("which is more than its margin." if significant else "too close to tell.")
    ]


def table_of(results: Results, table: TableName) -> ReportBlock:
    """Our scores, mean ± deviation over seeds, beside the paper's."""
    rows, paper = results.rows(table), PAPER_RESULTS.get(table, {})
    metrics = [
        name for name in COLUMNS.get(table, DEFAULT_COLUMNS) if any(results.values(row.cell, name) for row in rows)
    ]
    paper_metrics = [name for name in ("parameters", *METRIC_NAMES) if any(name in values for values in paper.values())]
    sizes = {"parameters": _millions, "tokens_per_second": _thousands, "memory_bytes": _gigabytes}
    if not any(results.values(row.cell, "memory_bytes") for row in rows):
        del sizes["memory_bytes"]  # which only a GPU tells
    header = ["", "parameters", "tokens/s", "memory"][: len(sizes) + 1]
    header += [METRIC_NAMES[name] for name in metrics] + [
        f"paper: {PAPER_METRIC_NAMES.get(name) or METRIC_NAMES[name]}" for name in paper_metrics
    ]
    lines = []
    for row in rows:
        line = [row.label, *(shown(results.values(row.cell, name)) for name, shown in sizes.items())]
        line += [format_spread(results.values(row.cell, name)) for name in metrics]
        lines.append([*line, *(_format_published(paper.get(row.name, {}).get(name), name) for name in paper_metrics)])
    return ReportBlock("table", header=header, rows=lines)


def _summary(results: Results, verdicts: Sequence[ClaimVerdict]) -> list[ReportBlock]:
    plan, seeds = results.plan, results.seeds
    places = plan["steps"] * plan["batch_size"] * plan["length"]
    read = mean([run["tokens"] for runs in results.runs.values() for run in runs] or [0])
    blocks = [
        ReportBlock(
            "text",
            f"{len(results.runs)} models with up to {seeds} seed{'s' * (seeds != 1)} each, hidden size "
            f"{plan['hidden_size']}, {plan['layers']} layers unless a table says otherwise, trained for "
            f"{plan['steps']:,} steps of {plan['batch_size']} × {plan['length']} ({places / 1e6:,.1f} million places, "
            f"{read / 1e6:,.1f} million of them tokens) on {', '.join(results.devices) or 'nothing yet'}.",
        )
    ]
    if plan["made_up"]:
        blocks.append(ReportBlock("text", DEMO_TEXT))
    if not verdicts:
        return blocks
    first = [verdict for verdict in verdicts if verdict.figure != "average"]
    then = [verdict for verdict in verdicts if verdict.figure == "average"]
    counted = f"Of {len(first)} statements {_counts(first)}" + (
        f". By the mean of the downstream tasks, of {len(then)}, {_counts(then)}" if then else ""
    )
    counted += (
        ". A statement holds, or does not, only where the difference is larger than its margin. Scores are in percent."
    )
    rows = [
        [
            verdict.claim.text,
            MARKS[verdict.verdict],
            format_measured(verdict),
            _metric_name(verdict),
            paper_says(verdict.claim),
        ]
        for verdict in verdicts
    ]
    header = ("the paper's numbers say", "here", "difference", "of", "paper")
    heading = ReportBlock("heading", "Which of the paper's findings hold here")
    return [*blocks, heading, ReportBlock("text", counted), ReportBlock("table", header=header, rows=rows)]


def _counts(verdicts: Sequence[ClaimVerdict]) -> str:
    """Number of claims by verdict, as a sentence."""
    words: dict[Verdict, str] = {
        "holds": "{} hold here", "does not hold": "{} do not", "too close to tell": "{} are too close to tell",
        "nothing learned": "{} say nothing, as what they rest on was not learned", "not run": "{} were not run",
    }  # fmt: skip
    counts = {name: sum(verdict.verdict == name for verdict in verdicts) for name in words}
    always = ("holds", "does not hold", "too close to tell")
    return ", ".join(words[name].format(count) for name, count in counts.items() if count or name in always)


def _claim_sentences(results: Results, table: TableName, verdicts: Sequence[ClaimVerdict]) -> list[ReportBlock]:
    """The claims of a table by verdict, in sentences."""
    starts = {
        "holds": "Found here too", "does not hold": "Not so here, but the other way round",
        "too close to tell": "Too close to tell",
        "nothing learned": "What this rests on was not learned, so it says nothing",
    }  # fmt: skip
    blocks = []
    for verdict, start in starts.items():
        sentences = [
            f"{judged.claim.text} ({_metric_name(judged)}: {format_measured(judged)})"
            for judged in verdicts
            if judged.claim.table == table and judged.verdict == verdict
        ]
        if sentences:
            blocks.append(ReportBlock("text", f"{start}: {'; '.join(sentences)}."))
    return blocks + (_effect_blocks(results, table) if table in REFERENCE_ROWS else [])


def _effect_blocks(results: Results, table: TableName) -> list[ReportBlock]:
    """Every row compared with the table's reference row."""
    figures = ["mlm", *(["average"] if results.has_downstream else [])]
    reference = next(row.label for row in results.rows(table) if row.name == REFERENCE_ROWS[table])
    effects = [variant_effects(results, table, figure) for figure in figures]
    header = ["", *(cell for figure in figures for cell in (METRIC_NAMES[figure], "verdict"))]
    rows = [
        [same_row[0].row.label, *(cell for effect in same_row for cell in _effect_cells(effect))]
        for same_row in zip(*effects, strict=True)
    ]
    return [ReportBlock("text", f"Each against {reference}:"), ReportBlock("table", header=header, rows=rows)]


def _effect_cells(change: VariantEffect) -> tuple[str, str]:
    return "–" if change.estimate is None else format_difference(change.estimate), MARKS[change.effect]


def _task_by_task(results: Results, tables: Sequence[TableName]) -> list[ReportBlock]:
    """Downstream scores by task, every variant once, with the majority baseline."""
    tasks = list(results.plan["tasks"])
    if not tasks or not results.has_downstream:
        return []
    baselines = [run.get("without_reading", {}) for runs in results.runs.values() for run in runs]
    baseline_scores = [[scores[task] for scores in baselines if scores.get(task) is not None][:1] for task in tasks]
    rows, seen = [["always the same answer", *map(format_spread, baseline_scores)]], set[ModelVariant]()
    for table in tables:
        for row in results.rows(table):
            taught = [run["downstream"] for run in results.runs.get(row.cell, []) if run["downstream"]]
            if taught and row.cell not in seen:
                seen.add(row.cell)
                rows.append(
                    [f"{table}: {row.label}", *(format_spread([run[task] for run in taught]) for task in tasks)]
                )
    return [ReportBlock("heading", "Downstream, task by task"), ReportBlock("text", TASK_TEXT),
            ReportBlock("table", header=["", *tasks], rows=rows)]  # fmt: skip


def _closing(results: Results) -> list[ReportBlock]:
    plan = results.plan
    tasks = f", and the mean over {', '.join(plan['tasks'])} after fine-tuning" if plan["tasks"] else ""
    differs = (
        "The paper trains on 16 GB of text for 125,000 steps of 4096 sequences of 512 tokens with LAMB; here it is "
        f"{plan['steps']:,} steps of {plan['batch_size']} × {plan['length']} with {plan['optimizer']}. "
        f"{'' if plan['depth_ramp'] == '' else DEPTH_RAMP_TEXT}The paper's averages are over SQuAD 1.1 and 2.0, MNLI, "
        f"SST-2 and RACE after fine-tuning; ours are shares of hidden tokens found in held-out documents{tasks}. "
        "Levels cannot be compared across the two, orders can."
    )
    return [
        ReportBlock("heading", "How sure is this?"), ReportBlock("text", CONFIDENCE_TEXT),
        ReportBlock("heading", "What differs from the paper, and why"), ReportBlock("text", differs),
        ReportBlock("text", f"The paper's values are those of {SOURCE}."),
    ]  # fmt: skip


def _missing(results: Results, tables: Sequence[TableName]) -> list[ReportBlock]:
    absent = [table for table in tables if not results.has_results(table)]
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
    return [ReportBlock("heading", "What was not run"), *(ReportBlock("text", line) for line in lines)] if lines else []


def format_measured(verdict: ClaimVerdict) -> str:
    """The number that decided a verdict."""
    if verdict.estimate is None:
        return "–"
    if verdict.claim.kind != "above":
        return f"{100 * verdict.estimate.value:.1f}{_margin(verdict.estimate, 100)}"
    return format_difference(verdict.estimate, 1 if verdict.figure == "last_angle" else 100)


def format_difference(estimate: Estimate, factor: float = 100) -> str:
    return f"{factor * estimate.value:+.1f}{_margin(estimate, factor)}".replace("-", "−")


def paper_says(claim: Claim) -> str:
    figure = claim.figure or "average"
    values = [PAPER_RESULTS[claim.table].get(name, {}).get(figure) for name in (claim.row, *claim.others)]
    if values[0] is None:
        return "figure 1" if figure == "last_angle" else "–"
    return f"{values[0]}" + (f" against {', '.join(map(str, values[1:]))}" if values[1:] else "")


def format_spread(values: Sequence[float]) -> str:
    """Mean ± deviation in percent."""
    if not values:
        return "–"
    deviation = sample_deviation(values)
    return f"{100 * mean(values):.1f}" + (f" ± {100 * deviation:.1f}" if deviation is not None else "")


def _metric_name(verdict: ClaimVerdict) -> str:
    return METRIC_NAMES.get(verdict.figure, "angle of the last pass, degrees")


def _margin(estimate: Estimate, factor: float) -> str:
    return f" ± {factor * estimate.margin:.1f}" if math.isfinite(estimate.margin) else " (one seed)"


def _millions(values: Sequence[float]) -> str:
    return f"{values[0] / 1e6:.1f} M" if values else "–"


def _thousands(values: Sequence[float]) -> str:
    return f"{mean(values) / 1000:,.4g} k" if values else "–"


def _gigabytes(values: Sequence[float]) -> str:
    return f"{max(values) / 1e9:.1f} GB" if values else "–"


def _format_published(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    return f"{value / 1e6:.0f} M" if name == "parameters" else f"{value}"
