"""How sure a few runs make one."""

from __future__ import annotations

import math

import pytest

from litebert.measure.seed_statistics import PooledDeviation, pool_deviations


def test_the_difference_of_two_groups_is_that_of_students_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    ours, others = [0.41, 0.44, 0.42], [0.39, 0.40]
    found = pool_deviations([ours, others]).difference(ours, others)
    low, high = stats.ttest_ind(ours, others).confidence_interval(0.95)
    assert found.value - found.margin == pytest.approx(low)
    assert found.value + found.margin == pytest.approx(high)


def test_further_groups_make_it_surer_if_they_agree_about_the_spread() -> None:
    ours, others = [0.41, 0.43], [0.39, 0.41]
    few, many = pool_deviations([ours, others]), pool_deviations([ours, others, [0.1, 0.12], [0.2, 0.22], [0.3, 0.32]])
    assert many.deviation == pytest.approx(few.deviation)
    assert many.difference(ours, others).margin < few.difference(ours, others).margin


def test_without_a_second_run_nothing_is_known() -> None:
    noise = pool_deviations([[0.4], [0.3], []])
    assert noise == PooledDeviation(0.0, 0)
    assert noise.difference([0.4], [0.3]).margin == math.inf


def test_an_error_that_all_runs_share_does_not_shrink_with_their_number() -> None:
    noise = PooledDeviation(0.0, 10)
    assert noise.mean([0.5] * 100, sampling=0.01).margin == noise.mean([0.5], sampling=0.01).margin > 0.019
