"""Means over stretches: how right answers are by how sure they were, and by how long the text was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litebert.measure.plots import Point


def by_confidence(confidence: Sequence[float], right: Sequence[float], bins: int = 10) -> list[Point]:
    """Stretches of equal width from 0 to 1; those that nothing falls into are left out."""
    numbers = np.minimum((np.asarray(confidence) * bins).astype(int), bins - 1)
    return [_point(confidence, right, numbers == number) for number in range(bins) if (numbers == number).any()]


def by_size(sizes: Sequence[float], right: Sequence[float], bins: int = 8) -> list[Point]:
    """Stretches that as many fall into, as far as equal sizes allow."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, bins + 1)))
    numbers = np.searchsorted(edges[1:-1], sizes, side="right")
    return [
        _point(sizes, right, numbers == number) for number in range(max(1, len(edges) - 1)) if (numbers == number).any()
    ]


def calibration_error(points: Sequence[Point]) -> float:
    """How far, in the mean, sureness lies from rightness (the expected calibration error)."""
    return sum(point.count * abs(point.x - point.y) for point in points) / sum(point.count for point in points)


def _point(x: Sequence[float], y: Sequence[float], chosen: np.ndarray) -> Point:
    return Point(float(np.mean(np.asarray(x)[chosen])), float(np.mean(np.asarray(y)[chosen])), int(chosen.sum()))
