"""Timing that is fair on a busy machine."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from litebert.measure import timing
from litebert.measure.timing import Timing, matmul_rate, time_round_robin

CPU = torch.device("cpu")


def test_who_sleeps_three_times_as_long_takes_three_times_as_long() -> None:
    found = time_round_robin({"short": lambda: time.sleep(0.02), "long": lambda: time.sleep(0.06)}, CPU, rounds=3)
    assert found["long"].median > 2 * found["short"].median
    assert all(len(one.seconds) == 3 and one.memory is None for one in found.values())


def test_they_take_turns_and_every_round_begins_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MIN_SECONDS", 0.0)  # one call each
    order: list[str] = []
    told = itertools.count()
    contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}
    time_round_robin(contenders, CPU, rounds=3, advance=lambda: next(told))
    warm, rounds = order[:9], order[9:]
    assert warm == list("aaabbbccc")  # to warm up, to see its memory, to see how long it takes
    assert ["".join(rounds[i : i + 3]) for i in (0, 3, 6)] == ["abc", "bca", "cab"]
    assert next(told) == 3 + 9


def test_a_short_call_is_made_often_enough_to_be_measured() -> None:
    calls = itertools.count()
    time_round_robin({"short": lambda: next(calls)}, CPU, rounds=1)
    assert next(calls) > 100


def test_the_spread_is_half_the_distance_between_the_quartiles() -> None:
    assert Timing([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).spread == pytest.approx((6 - 2) / 2 / 4)
    assert Timing([1.0]).spread == 0.0
    assert Timing([3.0, 1.0, 2.0]).median == 2.0


def test_the_rate_of_a_matrix_product_is_believable() -> None:
    assert 1e8 < matmul_rate(CPU, torch.float32) < 1e14
