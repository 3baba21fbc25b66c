"""Write results.json, tables.md, plots/ and report.html of `litebert reproduce`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from litebert import __version__
from litebert.files import atomic_write, write_json
from litebert.measure.intervals import Estimate, sample_deviation
from litebert.studies.reproduce.paper import PAPER_RESULTS
from litebert.studies.reproduce.tables import METRIC_NAMES, ReportBlock, report_blocks
from litebert.studies.reproduce.variants import TableName, TableRow
from litebert.studies.reproduce.verdicts import REFERENCE_ROWS, ClaimVerdict, Results, judge_claims, variant_effects

TITLE = "The paper's experiments, again"
MAX_UNBROKEN = 28
"""Table cells with at most so many characters are not wrapped."""
NO_BREAK, NO_BREAK_HYPHEN = "\u00a0", "\u2011"


def write_pages(out: Path, tables: Sequence[TableName]) -> list[str]:
    """Write all results, and return lines that say where they are."""
    results = Results(out)
    verdicts = judge_claims(results, [table for table in tables if results.has_results(table)])
    write_json(out / "results.json", as_json(results, tables, verdicts))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        atomic_write(out / "tables.md", _markdown(report_blocks(results, tables, verdicts, draws=False)))
        return [
            f"tables in {out / 'tables.md'}, figures in {out / 'results.json'}; to have them drawn, where matplotlib "
            f"is installed: litebert reproduce --redraw --out {out}"
        ]
    blocks = report_blocks(results, tables, verdicts, draws=True)
    _write_page(out, blocks)
    atomic_write(out / "tables.md", _markdown(blocks))
    return [f"look at {out / 'report.html'}; tables in {out / 'tables.md'}, figures in {out / 'results.json'}"]


def as_json(results: Results, tables: Sequence[TableName], verdicts: Sequence[ClaimVerdict]) -> dict[str, Any]:
    """The content of results.json."""
    return {
        "litebert": __version__,
        "plan": results.plan,
        "devices": results.devices,
        "tables": {table: [_row(results, table, row) for row in results.rows(table)] for table in tables},
        "verdicts": [
            {
                "claim": asdict(verdict.claim),
                "figure": verdict.figure,
                "verdict": verdict.verdict,
                "found": _mean(verdict.estimate),
            }
            for verdict in verdicts
        ],
        "changes": {
            table: [
                {
                    "row": effect.row.name,
                    "figure": figure,
                    "effect": effect.effect,
                    "difference": _mean(effect.estimate),
                }
                for figure in ("mlm", "average")
                for effect in variant_effects(results, table, figure)
            ]
            for table in tables
            if table in REFERENCE_ROWS
        },
        "failed": [{"cell": cell.key, "seed": seed, "reason": why} for (cell, seed), why in results.failed.items()],
    }


def _row(results: Results, table: TableName, row: TableRow) -> dict[str, Any]:
    values = {name: results.values(row.cell, name) for name in ("parameters", "tokens_per_second", *METRIC_NAMES)}
    return {
        "name": row.name,
        "label": row.label,
        "cell": row.cell.key,
        "runs": results.runs.get(row.cell, []),
        "mean": {name: mean(found) for name, found in values.items() if found},
        "deviation": {name: sample_deviation(found) for name, found in values.items() if found},
        "paper": PAPER_RESULTS.get(table, {}).get(row.name),
    }


def _mean(estimate: Estimate | None) -> dict[str, float | None] | None:
    """JSON has no infinity."""
    return estimate and {"value": estimate.value, "margin": estimate.margin if math.isfinite(estimate.margin) else None}


def _markdown(blocks: Sequence[ReportBlock]) -> str:
    lines = [f"# {TITLE}", ""]
    for block in blocks:
        if block.kind == "heading":
            lines += [f"## {block.text}", ""]
        elif block.kind == "text":
            lines += [block.text, ""]
        elif block.kind == "figure":
            lines += [f"![{block.text}](plots/{block.name}.svg)", ""]
        else:
            lines += [_line(block.header), _line(["---"] * len(block.header)), *map(_line, block.rows), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _write_page(out: Path, blocks: Sequence[ReportBlock]) -> None:
    """One file with all plots, which are also saved in plots/."""
    from litebert.measure.experiment_plots import save_figure
    from litebert.measure.html_report import Report
    from litebert.measure.plots import to_svg

    report = Report(TITLE, f"litebert {__version__} reproduce")
    for block in blocks:
        if block.kind == "heading":
            report.heading(block.text)
        elif block.kind == "text":
            report.text(block.text)
        elif block.kind == "figure":
            save_figure(block.figure, out / "plots" / block.name)
            report.drawing(to_svg(block.figure, block.name, bbox_inches="tight", pad_inches=0.03), block.text)
        else:
            report.table(block.header, [[_without_breaks(cell) for cell in row] for row in block.rows])
    report.write(out / "report.html")


def _without_breaks(cell: str) -> str:
    if len(cell) > MAX_UNBROKEN:
        return cell.replace(" = ", f"{NO_BREAK}={NO_BREAK}")
    return cell.replace(" ", NO_BREAK).replace("-", NO_BREAK_HYPHEN)
