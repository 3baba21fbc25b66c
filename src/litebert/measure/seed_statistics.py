"""Confidence intervals for means over few seeds.

Two or three runs say little about their own variance. Variants of one experiment have about the same, so the standard
deviation is pooled over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from litebert.errors import require_extra
from litebert.measure.intervals import Z_95, Estimate

CONFIDENCE_LEVEL = 0.95
"""Of the confidence intervals."""


@dataclass(frozen=True)
class PooledDeviation:
    """Standard deviation over seeds, pooled over variants."""

    deviation: float
    freedom: int
    """Degrees of freedom; 0 = unknown."""

    def margin(self, error: float) -> float:
        """Half-width of the confidence interval for a standard error, by Student's t; infinite if nothing is known."""
        if not self.freedom:
            return float("inf")
        student = require_extra("scipy.stats", "train").t
        return float(student.ppf((1 + CONFIDENCE_LEVEL) / 2, self.freedom)) * error

    def mean(self, values: Sequence[float], sampling: float = 0.0) -> Estimate:
        """`sampling` is a further known standard error, such as that of a finite test set."""
        seeds, questions = self.margin(self.deviation / len(values) ** 0.5), Z_95 * sampling
        return Estimate(float(np.mean(values)), (seeds**2 + questions**2) ** 0.5)

    def difference(self, ours: Sequence[float], others: Sequence[float]) -> Estimate:
        """Difference of the means."""
        error = self.deviation * (1 / len(ours) + 1 / len(others)) ** 0.5
        return Estimate(float(np.mean(ours) - np.mean(others)), self.margin(error))


def pool_deviations(groups: Iterable[Sequence[float]]) -> PooledDeviation:
    """From the scores of several variants, one group each."""
    arrays = [np.asarray(group, dtype=float) for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in arrays)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in arrays)
    return PooledDeviation((squares / freedom) ** 0.5 if freedom else 0.0, freedom)
