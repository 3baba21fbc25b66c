"""Means of measurements, and of differences between two on the same things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

USUAL = 1.96
"""Standard errors that hold 95 % of such means."""


class Mean(NamedTuple):
    """It lies within `margin` of the truth, 19 times out of 20."""

    value: float
    margin: float


def mean_of(values: Sequence[float]) -> Mean:
    if len(values) < 2:
        return Mean(float(np.mean(values)), float("inf"))
    return Mean(float(np.mean(values)), float(USUAL * np.std(values, ddof=1) / len(values) ** 0.5))


def spread_of(values: Sequence[float]) -> float | None:
    """The standard deviation, as far as so many say; of one value, none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def mean_difference(ours: Sequence[float], others: Sequence[float]) -> Mean:
    """How much more ours are, each beside the one of others on the same thing."""
    return mean_of(np.subtract(ours, others).tolist())
