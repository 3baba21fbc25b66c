"""Accuracy by confidence and by text length, in bins, and the expected calibration error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litebert.measure.plots import Point


def bin_by_confidence(confidence: Sequence[float], right: Sequence[float], bins: int = 10) -> list[Point]:
    """Bins of equal width from 0 to 1; empty bins are left out."""
    numbers = np.minimum((np.asarray(confidence) * bins).astype(int), bins - 1)
    return [_mean_point(confidence, right, numbers == number) for number in range(bins) if (numbers == number).any()]


def bin_by_quantile(sizes: Sequence[float], right: Sequence[float], bins: int = 8) -> list[Point]:
    """Bins with equal counts, as far as ties allow."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, bins + 1)))
    numbers = np.searchsorted(edges[1:-1], sizes, side="right")
    return [
        _mean_point(sizes, right, numbers == number)
        for number in range(max(1, len(edges) - 1))
        if (numbers == number).any()
    ]


def calibration_error(points: Sequence[Point]) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy."""
    return sum(point.count * abs(point.x - point.y) for point in points) / sum(point.count for point in points)


def _mean_point(x: Sequence[float], y: Sequence[float], chosen: np.ndarray) -> Point:
    return Point(float(np.mean(np.asarray(x)[chosen])), float(np.mean(np.asarray(y)[chosen])), int(chosen.sum()))
