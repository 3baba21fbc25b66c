"""Vectors of sentences after the mean."""

from __future__ import annotations

import numpy as np
import pytest

from litebert.errors import DataError
from litebert.model.sentence_head import whitened


def vectors(count: int) -> np.ndarray:
    """In a narrow cone, far from 0."""
    random = np.random.default_rng(0)
    mixing = random.normal(size=(6, 6)) * np.array([5, 1, 1, 0.5, 0.2, 0.1])[:, None]
    return (random.normal(size=(count, 6)) @ mixing + 7).astype(np.float32)


def test_after_whitening_all_directions_count_alike() -> None:
    means = vectors(500)
    found = whitened(means)(means)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(np.cov(found.T), np.eye(6), atol=2e-3)


def test_the_strongest_directions_can_be_kept_alone() -> None:
    means = vectors(500)
    np.testing.assert_allclose(whitened(means, 2)(means), whitened(means)(means)[:, :2], atol=1e-4)


def test_a_direction_that_never_varies_is_not_blown_up() -> None:
    means = vectors(500)
    means[:, 3] = means[:, 2]
    assert np.abs(whitened(means)(means)).max() < 10


@pytest.mark.parametrize(("count", "size", "complaint"), [(500, 7, "between 1 and the 6"), (11, 6, "give 12 or more")])
def test_what_cannot_be_whitened_is_refused(count: int, size: int, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        whitened(vectors(count), size)
