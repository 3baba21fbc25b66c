"""What the cells of `litebert reproduce` say: their figures, and whether the paper's findings hold in them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from litebert.errors import ConfigError
from litebert.files import read_json
from litebert.measure.intervals import Mean
from litebert.measure.seed_statistics import Noise, noise_of
from litebert.studies.reproduce.paper import CLAIMS, Claim
from litebert.studies.reproduce.variants import Cell, Row, TableName, rows_of

Verdict = Literal["holds", "does not hold", "too close to tell", "nothing learned", "not run"]
Effect = Literal["helps", "hurts", "too close to tell", "not run"]
CHANCE, NEAR = 0.5, 0.05
"""A share of right answers to a question of two is at chance if it is within this of a half."""
REFERENCES: dict[TableName, str] = {"strategies": "none", "masking": "ngram/0.15", "optimizer": "lamb"}
"""Rows that the others of a table are held against."""


class Results:
    """The results of all cells in a folder."""

    def __init__(self, out: Path) -> None:
        if not (out / "plan.json").is_file():
            raise ConfigError(f"{out}: holds no cells (no plan.json); give the --out of a litebert reproduce")
        self.plan: dict[str, Any] = read_json(out / "plan.json")
        runs = [read_json(path) for path in sorted((out / "cells").glob("*/result.json"))]
        self.runs: dict[Cell, list[dict[str, Any]]] = {}
        for one in sorted(runs, key=lambda run: run["seed"]):
            self.runs.setdefault(_cell_of(one), []).append(one)
        failed = [read_json(path) for path in sorted((out / "cells").glob("*/failed.json"))]
        self.failed = {(_cell_of(one), one["seed"]): str(one["reason"]) for one in failed}

    def rows(self, table: TableName) -> list[Row]:
        return rows_of(table, self.plan)

    def is_told(self, table: TableName) -> bool:
        """Is there anything to compare?"""
        return sum(row.cell in self.runs for row in self.rows(table)) > 1

    def values(self, cell: Cell, figure: str) -> list[float]:
        """One for each seed; none where the cell was not run or not asked."""
        found = (figure_of(run, figure) for run in self.runs.get(cell, []))
        return [value for value in found if value is not None]

    def noise(self, table: TableName, figure: str) -> Noise:
        """How far seeds lie apart, by all cells of a table."""
        return noise_of(self.values(row.cell, figure) for row in self.rows(table))

    @property
    def seeds(self) -> int:
        """The most that any cell was run with."""
        return max((len(runs) for runs in self.runs.values()), default=0)

    @property
    def devices(self) -> list[str]:
        return sorted({run["device"] for runs in self.runs.values() for run in runs})

    @property
    def has_downstream(self) -> bool:
        return any(run["downstream"] for runs in self.runs.values() for run in runs)


def figure_of(run: dict[str, Any], figure: str) -> float | None:
    if figure == "average":
        return statistics.mean(run["downstream"].values()) if run["downstream"] else None
    value = run.get(figure)
    return None if value is None else float(value)


@dataclass(frozen=True)
class Judgement:
    """A claim and what our figures say of it."""

    claim: Claim
    figure: str
    verdict: Verdict
    found: Mean | None
    """The smallest difference to the others, or the share of right answers itself."""


def judge_all(results: Results, tables: Sequence[TableName]) -> list[Judgement]:
    """All claims about these tables, by each figure that they are about."""
    usual = ["mlm", *(["average"] if results.has_downstream else [])]
    return [
        judge(results, claim, figure)
        for claim in CLAIMS
        if claim.table in tables
        for figure in ([claim.figure] if claim.figure else usual)
    ]


def judge(results: Results, claim: Claim, figure: str) -> Judgement:
    cells = {row.name: row.cell for row in results.rows(claim.table)}  # a narrow model has no large embeddings
    values = {name: results.values(cells[name], figure) for name in (claim.row, *claim.others) if name in cells}
    rivals = [values[other] for other in claim.others if other in values]
    if claim.learned and claim.row in cells:
        values[claim.learned] = results.values(cells[claim.row], claim.learned)
    if claim.witness:
        values[claim.witness] = results.values(cells[claim.witness], figure) if claim.witness in cells else []
    if claim.row not in values or not all(values.values()) or (claim.others and not rivals):
        return Judgement(claim, figure, "not run", None)
    if claim.kind == "above":
        noise = results.noise(claim.table, figure)
        differences = [noise.difference(values[claim.row], rival) for rival in rivals]
        return Judgement(claim, figure, verdict_of(differences), min(differences))
    share = _share(results, claim.table, cells[claim.row], figure)
    verdict = verdict_of([_beyond_chance(share, claim.kind == "above chance")])
    needed = [(claim.row, claim.learned)] * bool(claim.learned) + [(claim.witness, figure)] * bool(claim.witness)
    for row, asked in needed:
        known = _share(results, claim.table, cells[str(row)], str(asked))
        if verdict_of([_beyond_chance(known, True)]) != "holds":
            verdict = "nothing learned"
    return Judgement(claim, figure, verdict, share)


def _share(results: Results, table: TableName, cell: Cell, figure: str) -> Mean:
    """Of right answers, with the error of as many questions."""
    questions = min(run[f"{figure.split('_')[0]}_pairs"] for run in results.runs[cell])
    sampling = float((CHANCE * (1 - CHANCE) / questions) ** 0.5)
    return results.noise(table, figure).mean(results.values(cell, figure), sampling)


def _beyond_chance(share: Mean, above: bool) -> Mean:
    beyond = share.value - CHANCE - NEAR
    return Mean(beyond if above else -beyond, share.margin)


def verdict_of(differences: Sequence[Mean]) -> Verdict:
    """Of differences that should all be above zero."""
    if any(one.value + one.margin < 0 for one in differences):
        return "does not hold"
    return "holds" if all(one.value - one.margin > 0 for one in differences) else "too close to tell"


@dataclass(frozen=True)
class Change:
    """A row against the reference of its table."""

    row: Row
    figure: str
    effect: Effect
    found: Mean | None


def changes(results: Results, table: TableName, figure: str) -> list[Change]:
    """What every row of a table does to a figure of which more is better, against the table's reference."""
    rows = results.rows(table)
    reference = results.values(next(row for row in rows if row.name == REFERENCES[table]).cell, figure)
    noise = results.noise(table, figure)
    found = []
    for row in (row for row in rows if row.name != REFERENCES[table]):
        ours = results.values(row.cell, figure)
        if not ours or not reference:
            found.append(Change(row, figure, "not run", None))
            continue
        difference = noise.difference(ours, reference)
        effect: Effect = "too close to tell"
        if abs(difference.value) > difference.margin:
            effect = "helps" if difference.value > 0 else "hurts"
        found.append(Change(row, figure, effect, difference))
    return found


def _cell_of(run: dict[str, Any]) -> Cell:
    return Cell(tuple(sorted(run["cell"].items())))
