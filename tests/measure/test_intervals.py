"""Means and what they are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from litebert.measure.intervals import mean_with_margin, paired_difference, sample_deviation

VALUES = np.random.default_rng(0).normal(0.6, 0.1, 600).tolist()


def test_the_margin_is_that_of_a_mean() -> None:
    value, margin = mean_with_margin(VALUES)
    low, high = stats.norm.interval(0.95, loc=np.mean(VALUES), scale=stats.sem(VALUES))
    assert (value - margin, value + margin) == pytest.approx((low, high), abs=1e-5)


def test_a_difference_on_the_same_things_is_surer_than_one_on_others() -> None:
    better = [value + 0.02 for value in VALUES]
    assert paired_difference(better, VALUES) == pytest.approx((0.02, 0.0), abs=1e-9)
    assert mean_with_margin(better).margin > 0.005


def test_one_value_says_nothing_about_others() -> None:
    assert mean_with_margin([0.5]) == (0.5, math.inf)
    assert sample_deviation([0.5]) is None


def test_the_spread_is_that_of_the_many_which_these_few_stand_for() -> None:
    assert sample_deviation([0.4, 0.5, 0.6]) == pytest.approx(0.1)
