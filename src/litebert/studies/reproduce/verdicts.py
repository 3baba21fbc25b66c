"""Results of `litebert reproduce`, and whether the paper's claims hold in them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from litebert.errors import ConfigError
from litebert.files import read_json
from litebert.measure.intervals import Estimate
from litebert.measure.seed_statistics import PooledDeviation, pool_deviations
from litebert.studies.reproduce.paper import CLAIMS, Claim
from litebert.studies.reproduce.variants import ModelVariant, TableName, TableRow, table_rows

Verdict = Literal["holds", "does not hold", "too close to tell", "nothing learned", "not run"]
Effect = Literal["helps", "hurts", "too close to tell", "not run"]
CHANCE, CHANCE_TOLERANCE = 0.5, 0.05
"""An accuracy on two classes is at chance if it is within this of a half."""
REFERENCE_ROWS: dict[TableName, str] = {"strategies": "none", "masking": "ngram/0.15", "optimizer": "lamb"}
"""Reference rows, which the other rows of a table are compared with."""


class Results:
    """The results of all variants in a folder."""

    def __init__(self, out: Path) -> None:
        if not (out / "plan.json").is_file():
            raise ConfigError(f"{out}: holds no cells (no plan.json); give the --out of a litebert reproduce")
        self.plan: dict[str, Any] = read_json(out / "plan.json")
        runs = [read_json(path) for path in sorted((out / "cells").glob("*/result.json"))]
        self.runs: dict[ModelVariant, list[dict[str, Any]]] = {}
        for run in sorted(runs, key=lambda run: run["seed"]):
            self.runs.setdefault(_variant_of(run), []).append(run)
        failed = [read_json(path) for path in sorted((out / "cells").glob("*/failed.json"))]
        self.failed = {(_variant_of(run), run["seed"]): str(run["reason"]) for run in failed}

    def rows(self, table: TableName) -> list[TableRow]:
        return table_rows(table, self.plan)

    def has_results(self, table: TableName) -> bool:
        """Are there at least two variants to compare?"""
        return sum(row.cell in self.runs for row in self.rows(table)) > 1

    def values(self, cell: ModelVariant, figure: str) -> list[float]:
        """One value per seed; empty for variants without this metric."""
        values = (metric_of(run, figure) for run in self.runs.get(cell, []))
        return [value for value in values if value is not None]

    def noise(self, table: TableName, figure: str) -> PooledDeviation:
        """Standard deviation over seeds, pooled over the variants of a table."""
        return pool_deviations(self.values(row.cell, figure) for row in self.rows(table))

    @property
    def seeds(self) -> int:
        """Largest number of seeds of any variant."""
        return max((len(runs) for runs in self.runs.values()), default=0)

    @property
    def devices(self) -> list[str]:
        return sorted({run["device"] for runs in self.runs.values() for run in runs})

    @property
    def has_downstream(self) -> bool:
        return any(run["downstream"] for runs in self.runs.values() for run in runs)


def metric_of(run: dict[str, Any], figure: str) -> float | None:
    if figure == "average":
        return statistics.mean(run["downstream"].values()) if run["downstream"] else None
    value = run.get(figure)
    return None if value is None else float(value)


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, and its verdict by one metric."""

    claim: Claim
    figure: str
    verdict: Verdict
    estimate: Estimate | None
    """The smallest difference to the other rows, or the accuracy itself."""


def judge_claims(results: Results, tables: Sequence[TableName]) -> list[ClaimVerdict]:
    """All claims about these tables, by each of their metrics."""
    usual = ["mlm", *(["average"] if results.has_downstream else [])]
    return [
        judge_claim(results, claim, figure)
        for claim in CLAIMS
        if claim.table in tables
        for figure in ([claim.figure] if claim.figure else usual)
    ]


def judge_claim(results: Results, claim: Claim, figure: str) -> ClaimVerdict:
    cells = {row.name: row.cell for row in results.rows(claim.table)}  # a narrow model has no large embeddings
    values = {name: results.values(cells[name], figure) for name in (claim.row, *claim.others) if name in cells}
    rivals = [values[other] for other in claim.others if other in values]
    if claim.learned and claim.row in cells:
        values[claim.learned] = results.values(cells[claim.row], claim.learned)
    if claim.witness:
        values[claim.witness] = results.values(cells[claim.witness], figure) if claim.witness in cells else []
    if claim.row not in values or not all(values.values()) or (claim.others and not rivals):
        return ClaimVerdict(claim, figure, "not run", None)
    if claim.kind == "above":
        noise = results.noise(claim.table, figure)
        differences = [noise.difference(values[claim.row], rival) for rival in rivals]
        return ClaimVerdict(claim, figure, verdict_of(differences), min(differences))
    share = _accuracy(results, claim.table, cells[claim.row], figure)
    verdict = verdict_of([_beyond_chance(share, claim.kind == "above chance")])
    needed = [(claim.row, claim.learned)] * bool(claim.learned) + [(claim.witness, figure)] * bool(claim.witness)
    for row, metric in needed:
        accuracy = _accuracy(results, claim.table, cells[str(row)], str(metric))
        if verdict_of([_beyond_chance(accuracy, True)]) != "holds":
            verdict = "nothing learned"
    return ClaimVerdict(claim, figure, verdict, share)


def _accuracy(results: Results, table: TableName, cell: ModelVariant, figure: str) -> Estimate:
    """Accuracy with the sampling error of the test set."""
    questions = min(run[f"{figure.split('_')[0]}_pairs"] for run in results.runs[cell])
    sampling = float((CHANCE * (1 - CHANCE) / questions) ** 0.5)
    return results.noise(table, figure).mean(results.values(cell, figure), sampling)


def _beyond_chance(share: Estimate, above: bool) -> Estimate:
    beyond = share.value - CHANCE - CHANCE_TOLERANCE
    return Estimate(beyond if above else -beyond, share.margin)


def verdict_of(differences: Sequence[Estimate]) -> Verdict:
    """The verdict on differences that should all be above zero."""
    if any(difference.value + difference.margin < 0 for difference in differences):
        return "does not hold"
    return (
        "holds" if all(difference.value - difference.margin > 0 for difference in differences) else "too close to tell"
    )


@dataclass(frozen=True)
class VariantEffect:
    """A row compared with the reference row of its table."""

    row: TableRow
    figure: str
    effect: Effect
    estimate: Estimate | None


def variant_effects(results: Results, table: TableName, figure: str) -> list[VariantEffect]:
    """Every row of a table compared with its reference row, by a metric for which higher is better."""
    rows = results.rows(table)
    reference = results.values(next(row for row in rows if row.name == REFERENCE_ROWS[table]).cell, figure)
    noise = results.noise(table, figure)
    effects = []
    for row in (row for row in rows if row.name != REFERENCE_ROWS[table]):
        ours = results.values(row.cell, figure)
        if not ours or not reference:
            effects.append(VariantEffect(row, figure, "not run", None))
            continue
        difference = noise.difference(ours, reference)
        effect: Effect = "too close to tell"
        if abs(difference.value) > difference.margin:
            effect = "helps" if difference.value > 0 else "hurts"
        effects.append(VariantEffect(row, figure, effect, difference))
    return effects


def _variant_of(run: dict[str, Any]) -> ModelVariant:
    return ModelVariant(tuple(sorted(run["cell"].items())))
