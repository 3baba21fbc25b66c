"""Means over stretches of sureness and of length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.measure.calibration import bin_by_confidence, bin_by_quantile, calibration_error
from litebert.measure.plots import Point
from tests.conftest import peer

SHARES = st.floats(0, 1)


def test_sureness_falls_into_stretches_of_equal_width() -> None:
    points = bin_by_confidence([0.0625, 0.625, 0.6875, 1.0], [0, 1, 0, 1])
    assert points == [Point(0.0625, 0, 1), Point(0.65625, 0.5, 2), Point(1.0, 1, 1)]


@pytest.mark.parametrize(("confidence", "stretch"), [(0.0, 0), (0.1, 1), (0.99, 9), (1.0, 9)])
def test_an_edge_belongs_to_the_stretch_above_it_and_one_to_the_last(confidence: float, stretch: int) -> None:
    centres = [0.1 * number + 0.05 for number in range(10)]
    points = bin_by_confidence([*centres, confidence], [1.0] * 11)
    assert [point.count for point in points] == [2 if number == stretch else 1 for number in range(10)]


def test_the_calibration_error_is_what_one_computes_by_hand() -> None:
    # two of three right at 0.9, 0.9 and 0.96; one of two right at 0.55 and 0.57
    points = bin_by_confidence([0.9, 0.9, 0.96, 0.55, 0.57], [1, 1, 0, 1, 0])
    by_hand = 3 / 5 * abs(0.92 - 2 / 3) + 2 / 5 * abs(0.56 - 1 / 2)
    assert calibration_error(points) == pytest.approx(by_hand)


def test_the_calibration_error_is_torchmetrics_s() -> None:
    torch, torchmetrics = peer("torch"), peer("torchmetrics.functional.classification")
    random = np.random.default_rng(0)
    probability = random.dirichlet([0.5, 0.5, 0.5], 400)
    truth = random.integers(0, 3, 400)
    sure, right = probability.max(1), (probability.argmax(1) == truth).astype(float)
    expected = torchmetrics.multiclass_calibration_error(
        torch.from_numpy(probability), torch.from_numpy(truth), 3, n_bins=10
    )
    assert calibration_error(bin_by_confidence(sure.tolist(), right.tolist())) == pytest.approx(
        expected.item(), abs=1e-6
    )


@pytest.mark.parametrize(("right", "error"), [([1, 1, 1, 0], 0.0), ([0, 0, 0, 0], 0.75), ([1, 1, 1, 1], 0.25)])
def test_a_model_that_is_as_right_as_it_is_sure_has_no_calibration_error(right: list[float], error: float) -> None:
    assert calibration_error(bin_by_confidence([0.75] * 4, right)) == pytest.approx(error)


def test_stretches_of_size_hold_about_as_many() -> None:
    points = bin_by_quantile(list(range(80)), [1.0] * 40 + [0.0] * 40)
    assert [point.count for point in points] == [10] * 8
    assert [point.y for point in points] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [point.x for point in points] == [10 * number + 4.5 for number in range(8)]


@pytest.mark.parametrize("sizes", [[7], [7, 7, 7], [1, 2], [1, 1, 1, 1, 1, 1, 1, 1, 9]])
def test_few_or_equal_sizes_are_all_there(sizes: list[float]) -> None:
    points = bin_by_quantile(sizes, [1.0] * len(sizes))
    assert sum(point.count for point in points) == len(sizes)
    assert len(points) <= len(set(sizes))


@given(st.lists(st.tuples(st.integers(0, 50), SHARES), min_size=1))
def test_no_text_is_lost_and_the_means_are_those_of_all(texts: list[tuple[int, float]]) -> None:
    sizes, right = [float(size) for size, _ in texts], [share for _, share in texts]
    points = bin_by_quantile(sizes, right)
    assert sum(point.count for point in points) == len(texts)
    assert sum(point.count * point.x for point in points) == pytest.approx(sum(sizes))
    assert sum(point.count * point.y for point in points) == pytest.approx(sum(right), abs=1e-9)
    assert [point.x for point in points] == sorted(point.x for point in points)


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1))
def test_no_answer_is_lost_whatever_its_sureness(answers: list[tuple[float, float]]) -> None:
    points = bin_by_confidence([sure for sure, _ in answers], [right for _, right in answers])
    assert sum(point.count for point in points) == len(answers)
    assert all(0 <= point.y <= 1 for point in points)
    assert 0 <= calibration_error(points) <= 1
