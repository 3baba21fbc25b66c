"""Batches made ahead: the same ones, in whatever order they are asked for."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.prefetch import Prefetcher
from litebert.tokenizer import Tokenizer
from tests.data.counting import corpus_of, prose, same

WORKERS = [0, 1, 4]


def threads() -> int:
    return sum(thread.name.startswith("batches") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", WORKERS)
def test_the_number_of_workers_does_not_change_the_batches(tokenizer: Tokenizer, workers: int) -> None:
    data = corpus_of(prose(50)).data(tokenizer)
    prefetch = Prefetcher(data.batch, workers)
    assert all(same(prefetch(step), data.batch(step)) for step in [*range(12), 3, 4, 100, 0])
    prefetch.close()


@given(steps=st.lists(st.integers(0, 12), max_size=15), workers=st.sampled_from(WORKERS), ahead=st.integers(1, 5))
def test_steps_may_be_asked_for_in_any_order(steps: list[int], workers: int, ahead: int) -> None:
    prefetch = Prefetcher(lambda step: step * step, workers, ahead)
    assert [prefetch(step) for step in steps] == [step * step for step in steps]
    prefetch.close()


def test_the_next_steps_are_made_before_they_are_asked_for() -> None:
    made = {step: threading.Event() for step in range(10)}
    prefetch = Prefetcher(lambda step: made[step].set(), 2, ahead=4)
    prefetch(0)
    assert all(made[step].wait(10) for step in range(4))
    assert not made[4].is_set()
    prefetch.close()


def test_steps_to_come_are_made_when_that_is_begun() -> None:
    made = {step: threading.Event() for step in range(10)}
    prefetch = Prefetcher(lambda step: made[step].set(), 2, ahead=3)
    prefetch(0)
    prefetch(1)
    assert made[2].wait(10)
    assert not made[3].wait(0.05)  # nobody has said so
    prefetch.schedule(2)
    assert all(made[step].wait(10) for step in (3, 4))
    prefetch.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_mistake_surfaces_at_its_own_step_and_every_time(workers: int) -> None:
    def make(step: int) -> int:
        if step == 2:
            raise ValueError(f"step {step} is broken")
        return step

    prefetch = Prefetcher(make, workers)
    assert [prefetch(0), prefetch(1)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="step 2 is broken"):
            prefetch(2)
    assert prefetch(3) == 3
    prefetch.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_what_was_made_ahead_is_made_again_after_forgetting(workers: int) -> None:
    factor = 1
    prefetch = Prefetcher(lambda step: factor * step, workers)
    assert prefetch(1) == 1
    factor = 10
    prefetch.clear()
    assert [prefetch(step) for step in (2, 3, 4)] == [20, 30, 40]
    prefetch.close()


def test_closing_ends_the_threads() -> None:
    before = threads()
    prefetch = Prefetcher(lambda step: step, 4)
    prefetch(0)
    assert threads() > before
    prefetch.close()
    assert threads() == before
    with pytest.raises(RuntimeError):
        prefetch(1)
