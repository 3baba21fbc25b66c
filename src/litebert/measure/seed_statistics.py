"""What a few runs with other seeds can say: differences of means, and how sure one may be of them.

Two or three runs say little about their own spread. Runs of other settings in the same experiment have about the same,
so it is estimated from all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from litebert.errors import require_extra
from litebert.measure.intervals import USUAL, Mean

SURE = 0.95
"""How often a margin holds the truth."""


@dataclass(frozen=True)
class Noise:
    """How far runs that differ in their seed alone lie apart."""

    deviation: float
    freedom: int
    """How many independent deviations that was estimated from; 0 = nothing is known."""

    def margin(self, error: float) -> float:
        """Around an estimate of this standard error; infinite where nothing is known."""
        if not self.freedom:
            return float("inf")
        student = require_extra("scipy.stats", "train").t
        return float(student.ppf((1 + SURE) / 2, self.freedom)) * error

    def mean(self, values: Sequence[float], sampling: float = 0.0) -> Mean:
        """`sampling` is a further standard error, known and the same for all runs: that of the questions asked."""
        seeds, questions = self.margin(self.deviation / len(values) ** 0.5), USUAL * sampling
        return Mean(float(np.mean(values)), (seeds**2 + questions**2) ** 0.5)

    def difference(self, ours: Sequence[float], others: Sequence[float]) -> Mean:
        """How much more ours are on the average."""
        error = self.deviation * (1 / len(ours) + 1 / len(others)) ** 0.5
        return Mean(float(np.mean(ours) - np.mean(others)), self.margin(error))


def noise_of(groups: Iterable[Sequence[float]]) -> Noise:
    """Of the runs of several settings, a group for each."""
    kept = [np.asarray(group, dtype=float) for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in kept)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in kept)
    return Noise((squares / freedom) ** 0.5 if freedom else 0.0, freedom)
