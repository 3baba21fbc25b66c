"""Means and paired differences with 95 % confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Z_95 = 1.96
"""Half-width of a 95 % confidence interval in standard errors."""


class Estimate(NamedTuple):
    """A value and the half-width of its 95 % confidence interval."""

    value: float
    margin: float


def mean_with_margin(values: Sequence[float]) -> Estimate:
    if len(values) < 2:
        return Estimate(float(np.mean(values)), float("inf"))
    return Estimate(float(np.mean(values)), float(Z_95 * np.std(values, ddof=1) / len(values) ** 0.5))


def sample_deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_difference(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    """Mean of the paired differences `ours - others`."""
    return mean_with_margin(np.subtract(ours, others).tolist())
