"""Left-one-out by an equation is what leaving one out really gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from litebert.tasks import evidence
from litebert.tasks.evidence import halves, solve


def examples_of(sizes: list[int], seed: int, names: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around a middle of each class, and the classes; names of classes at the end."""
    chance = np.random.default_rng(seed)
    middles = chance.normal(size=(len(sizes), 12))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    owners = np.concatenate([owners, np.arange(len(sizes))]) if names else owners
    rows = middles[owners] + chance.normal(size=(len(owners), 12))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), owners


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("sizes", "names"), [([4, 4, 4], False), ([2, 7, 3], False), ([1, 2, 5], True)])
def test_left_out_scores_are_those_of_solving_without_the_example(
    sizes: list[int], names: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "SCALES", np.ones(1))
    rows, owners = examples_of(sizes, seed, names)
    found = solve(rows @ rows.T, owners, 3, 3 if names else 0, usual=True)
    for number in range(sum(sizes)):
        rest = np.delete(np.arange(len(rows)), number)
        again = solve(rows[rest] @ rows[rest].T, owners[rest], 3, 3 if names else 0, usual=True)
        # all classes are as large together as they were: only a factor of all scores
        factor = np.bincount(owners, minlength=3).mean() / np.bincount(owners[rest], minlength=3).mean()
        expected = rows[number] @ rows[rest].T @ again.weights * factor
        np.testing.assert_allclose(found.left_out[number], expected, atol=1e-9)


def test_the_only_example_of_a_class_cannot_be_left_out() -> None:
    rows, owners = examples_of([1, 4, 3], 0)
    assert solve(rows @ rows.T, owners, 3).truth.tolist() == [1] * 4 + [2] * 3
    rows, owners = examples_of([1, 1], 0)
    alone = solve(rows @ rows.T, owners, 2)
    assert alone.accuracy is None
    assert alone.loss == math.inf
    assert (rows @ rows.T @ alone.weights).argmax(1).tolist() == [0, 1]


def test_probabilities_of_what_is_left_out_suit_it() -> None:
    rows, owners = examples_of([30, 30, 30], 1)
    found = solve(rows @ rows.T, owners, 3)
    sure = np.exp(found.left_out) / np.exp(found.left_out).sum(1, keepdims=True)
    assert found.accuracy is not None
    assert sure.max(1).mean() == pytest.approx(found.accuracy, abs=0.06)
    for scale in (0.5, 2.0):
        assert evidence._losses(found.left_out * scale, found.truth).mean() > found.loss


def test_nobody_is_sure_after_a_handful() -> None:
    rows, owners = np.eye(2).repeat(4, axis=0), np.repeat([0, 1], 4)
    sure = [np.exp(scores).max() / np.exp(scores).sum() for scores in solve(rows @ rows.T, owners, 2).left_out]
    assert min(sure) > 0.8
    assert max(sure) < 0.97


def test_a_large_class_is_no_more_likely_than_a_small_one() -> None:
    rows, owners = examples_of([40, 4], 3)
    found = solve(rows @ rows.T, owners, 2)
    answers = found.left_out.argmax(1)
    for number in (0, 1):
        assert (answers[owners == number] == number).mean() > 0.7


def test_halves_share_every_class_out() -> None:
    classes = np.array([0, 1, 0, 1, 0, 1, 2, 2, 2, 0])
    for some, rest in halves(classes, 4):
        assert sorted([*some, *rest]) == list(range(10))
        assert np.bincount(classes[some]).tolist() == [2, 2, 2]
