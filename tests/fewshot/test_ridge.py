"""Left-one-out by an equation is what leaving one out really gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from litebert.fewshot import ridge as module
from litebert.fewshot.ridge import fit_ridge, smoothed_cross_entropy, stratified_halves


def test_a_name_counts_as_much_whether_one_is_left_out_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at right angles to all others: what is left of the scores is what the name says."""
    monkeypatch.setattr(module, "calibrate_scale", lambda *_: 1.0)
    owners = np.array([0, 0, 1, 1, 1, 1, 0, 1])
    for number in (0, 2):
        likeness = np.eye(8)
        likeness[number, 6:] = likeness[6:, number] = 0.5  # like both names, and like no other example
        found = fit_ridge(likeness, owners, 2, 2, coarse=True)
        scores = found.left_out_scores[found.left_out.tolist().index(number)]
        assert scores[0] == pytest.approx(scores[1])


def examples_of(sizes: list[int], seed: int, names: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around a middle of each class, and the classes; names of classes at the end."""
    chance = np.random.default_rng(seed)
    middles = chance.normal(size=(len(sizes), 12))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    owners = np.concatenate([owners, np.arange(len(sizes))]) if names else owners
    rows = middles[owners] + chance.normal(size=(len(owners), 12))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), owners


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("sizes", "names"), [([4, 4, 4], False), ([2, 7, 3], False)])
def test_left_out_scores_are_those_of_solving_without_the_example(
    sizes: list[int], names: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "calibrate_scale", lambda *_: 1.0)
    rows, owners = examples_of(sizes, seed, names)
    named = 3 if names else 0
    found = fit_ridge(rows @ rows.T, owners, 3, named, coarse=True)
    assert found.truth.tolist() == owners[found.left_out].tolist()
    assert len(found.left_out) == sum(size for size in sizes if size > 1)
    for scores, number in zip(found.left_out_scores, found.left_out, strict=True):
        rest = np.delete(np.arange(len(rows)), number)
        again = fit_ridge(rows[rest] @ rows[rest].T, owners[rest], 3, named, coarse=True)
        scale = module.DEFAULT_SCALE if not len(again.truth) else 1.0
        expected = rows[number] @ rows[rest].T @ again.weights / scale
        if not names:  # all classes together are as large as they were: a factor of all scores
            expected *= sum(sizes) / (sum(sizes) - 1)
        np.testing.assert_allclose(scores, expected, atol=1e-9)


@pytest.mark.parametrize("names", [False, True])
def test_the_only_example_of_a_class_is_not_left_out(names: bool) -> None:
    rows, owners = examples_of([1, 4, 3], 0, names)
    assert fit_ridge(rows @ rows.T, owners, 3, 3 if names else 0).truth.tolist() == [1] * 4 + [2] * 3
    rows, owners = examples_of([1, 1], 0, names)
    alone = fit_ridge(rows @ rows.T, owners, 2, 2 if names else 0)
    assert not len(alone.left_out)
    assert alone.loss == math.inf
    assert (rows @ rows.T @ alone.weights).argmax(1).tolist() == owners.tolist()


@pytest.mark.parametrize("sizes", [[2, 400], [1, 5, 300]])
def test_nobody_is_surer_than_a_coin_where_classes_look_alike(sizes: list[int]) -> None:
    chance = np.random.default_rng(0)
    rows, owners = chance.normal(size=(sum(sizes), 6)), np.repeat(np.arange(len(sizes)), sizes)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert fit_ridge(rows @ rows.T, owners, len(sizes)).loss < math.log(len(sizes)) + 0.02


def test_probabilities_of_what_is_left_out_suit_it() -> None:
    rows, owners = examples_of([30, 30, 30], 1)
    found = fit_ridge(rows @ rows.T, owners, 3)
    sure = np.exp(found.left_out_scores) / np.exp(found.left_out_scores).sum(1, keepdims=True)
    assert sure.max(1).mean() == pytest.approx((found.left_out_scores.argmax(1) == found.truth).mean(), abs=0.06)
    for scale in (0.5, 2.0):
        assert smoothed_cross_entropy(found.left_out_scores * scale, found.truth).mean() > found.loss


def test_a_penalty_that_is_given_is_used() -> None:
    rows, owners = examples_of([4, 4, 4], 0)
    chosen = fit_ridge(rows @ rows.T, owners, 3)
    again = fit_ridge(rows @ rows.T, owners, 3, ridge=chosen.ridge)
    np.testing.assert_array_equal(again.weights, chosen.weights)
    assert fit_ridge(rows @ rows.T, owners, 3, ridge=7.0).ridge == 7.0
    assert fit_ridge(rows @ rows.T, owners, 3, coarse=True).ridge == module.DEFAULT_RIDGE
    assert not np.allclose(fit_ridge(rows @ rows.T, owners, 3, ridge=7.0).weights, chosen.weights)


def test_nobody_is_sure_after_a_handful() -> None:
    rows, owners = np.eye(2).repeat(4, axis=0), np.repeat([0, 1], 4)
    sure = [
        np.exp(scores).max() / np.exp(scores).sum() for scores in fit_ridge(rows @ rows.T, owners, 2).left_out_scores
    ]
    assert min(sure) > 0.8
    assert max(sure) < 0.97


def test_a_large_class_is_no_more_likely_than_a_small_one() -> None:
    rows, owners = examples_of([40, 4], 3)
    found = fit_ridge(rows @ rows.T, owners, 2)
    answers = found.left_out_scores.argmax(1)
    for number in (0, 1):
        assert (answers[owners == number] == number).mean() > 0.7


def test_halves_share_every_class_out() -> None:
    classes = np.array([0, 1, 0, 1, 0, 1, 2, 2, 2, 0])
    for some, rest in stratified_halves(classes, 4):
        assert sorted([*some, *rest]) == list(range(10))
        assert np.bincount(classes[some]).tolist() == [2, 2, 2]
