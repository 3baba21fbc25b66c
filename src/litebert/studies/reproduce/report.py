"""What `litebert reproduce` writes from its cells: results.json, tables.md, plots/, report.html."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from litebert import __version__
from litebert.files import atomic_write, write_json
from litebert.measure.intervals import Mean, spread_of
from litebert.studies.reproduce.paper import PAPER
from litebert.studies.reproduce.tables import FIGURES, Block, told
from litebert.studies.reproduce.variants import Row, TableName
from litebert.studies.reproduce.verdicts import REFERENCES, Judgement, Results, changes, judge_all

TITLE = "The paper's experiments, again"
UNBROKEN = 28
"""Characters: a figure with its margin, or the name of a row, stays on one line."""
NO_BREAK, NO_BREAK_HYPHEN = "\u00a0", "\u2011"


def write_pages(out: Path, tables: Sequence[TableName]) -> list[str]:
    """Write everything that the cells can tell, and say where it is."""
    results = Results(out)
    judgements = judge_all(results, [table for table in tables if results.is_told(table)])
    write_json(out / "results.json", as_json(results, tables, judgements))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        atomic_write(out / "tables.md", _markdown(told(results, tables, judgements, draws=False)))
        return [
            f"tables in {out / 'tables.md'}, figures in {out / 'results.json'}; to have them drawn, where matplotlib "
            f"is installed: litebert reproduce --redraw --out {out}"
        ]
    blocks = told(results, tables, judgements, draws=True)
    _write_page(out, blocks)
    atomic_write(out / "tables.md", _markdown(blocks))
    return [f"look at {out / 'report.html'}; tables in {out / 'tables.md'}, figures in {out / 'results.json'}"]


def as_json(results: Results, tables: Sequence[TableName], judgements: Sequence[Judgement]) -> dict[str, Any]:
    """Everything, for other programs."""
    return {
        "litebert": __version__,
        "plan": results.plan,
        "devices": results.devices,
        "tables": {table: [_row(results, table, row) for row in results.rows(table)] for table in tables},
        "verdicts": [asdict(one) | {"found": _mean(one.found)} for one in judgements],
        "changes": {
            table: [
                {"row": one.row.name, "figure": figure, "effect": one.effect, "difference": _mean(one.found)}
                for figure in ("mlm", "average")
                for one in changes(results, table, figure)
            ]
            for table in tables
            if table in REFERENCES
        },
        "failed": [{"cell": cell.key, "seed": seed, "reason": why} for (cell, seed), why in results.failed.items()],
    }


def _row(results: Results, table: TableName, row: Row) -> dict[str, Any]:
    values = {name: results.values(row.cell, name) for name in ("parameters", "tokens_per_second", *FIGURES)}
    return {
        "name": row.name,
        "label": row.label,
        "cell": row.cell.key,
        "runs": results.runs.get(row.cell, []),
        "mean": {name: mean(found) for name, found in values.items() if found},
        "deviation": {name: spread_of(found) for name, found in values.items() if found},
        "paper": PAPER.get(table, {}).get(row.name),
    }


def _mean(found: Mean | None) -> dict[str, float | None] | None:
    """JSON has no infinity."""
    return found and {"value": found.value, "margin": found.margin if math.isfinite(found.margin) else None}


def _markdown(blocks: Sequence[Block]) -> str:
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


def _write_page(out: Path, blocks: Sequence[Block]) -> None:
    """One file, with its drawings in it; they also lie in plots/."""
    from litebert.measure.experiment_plots import save
    from litebert.measure.html_report import Report
    from litebert.measure.plots import as_svg

    report = Report(TITLE, f"litebert {__version__} reproduce")
    for block in blocks:
        if block.kind == "heading":
            report.heading(block.text)
        elif block.kind == "text":
            report.text(block.text)
        elif block.kind == "figure":
            save(block.figure, out / "plots" / block.name)
            report.drawing(as_svg(block.figure, block.name, bbox_inches="tight", pad_inches=0.03), block.text)
        else:
            report.table(block.header, [[_unbroken(cell) for cell in row] for row in block.rows])
    report.write(out / "report.html")


def _unbroken(cell: str) -> str:
    if len(cell) > UNBROKEN:
        return cell.replace(" = ", f"{NO_BREAK}={NO_BREAK}")
    return cell.replace(" ", NO_BREAK).replace("-", NO_BREAK_HYPHEN)
