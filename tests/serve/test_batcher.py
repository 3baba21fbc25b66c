"""The queue: what is computed together, in whose turn, and for whom no more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from litebert.serve import batcher as batcher_module
from litebert.serve.batcher import Batcher, QueueFullError


class Doubling:
    """A lane that waits until it is let go, and remembers its batches."""

    def __init__(self, is_open: bool = True) -> None:
        self.batches: list[list[Any]] = []
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        self.batches.append(list(items))
        assert self.gate.wait(30)
        if "bad" in items:
            raise ValueError("bad")
        return [item * 2 for item in items]


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0.001)


def test_everybody_gets_his_own_results_in_order() -> None:
    async def run() -> list[list[int]]:
        batcher, lane = Batcher(batch_tokens=10), Doubling()
        batcher.start()
        asked = [batcher.submit(lane, list(range(start, start + 5)), [3, 1, 4, 1, 5]) for start in (0, 10, 20)]
        found = await asyncio.gather(*asked)
        await batcher.close()
        assert all(len(batch) > 1 for batch in lane.batches[:-1])
        assert batcher.waiting_tokens == 0
        return found

    assert asyncio.run(run()) == [[2 * number for number in range(start, start + 5)] for start in (0, 10, 20)]


def test_a_batch_holds_so_many_tokens_of_similar_length() -> None:
    async def run() -> list[list[Any]]:
        batcher, lane = Batcher(batch_tokens=40), Doubling(is_open=False)
        batcher.start()
        first = asyncio.ensure_future(batcher.submit(lane, ["x"], [1]))
        await settled()  # it is being computed, and the next ones gather
        lengths = [10, 2, 9, 3, 11, 2, 10, 3]
        rest = asyncio.ensure_future(batcher.submit(lane, [f"{length}." for length in lengths], lengths))
        await settled()
        lane.gate.set()
        await asyncio.gather(first, rest)
        await batcher.close()
        return lane.batches

    _, second, third = asyncio.run(run())
    assert sorted(second) == ["10.", "10.", "11.", "9."]
    assert sorted(third) == ["2.", "2.", "3.", "3."]


def test_a_short_request_does_not_wait_for_all_of_a_long_one_nor_the_reverse() -> None:
    async def run() -> list[list[Any]]:
        batcher, lane = Batcher(batch_tokens=10), Doubling(is_open=False)
        batcher.start()
        long = asyncio.ensure_future(batcher.submit(lane, ["long"] * 20, [5] * 20))
        await settled()
        short = [asyncio.ensure_future(batcher.submit(lane, [f"short{number}"], [5])) for number in range(4)]
        await settled()
        lane.gate.set()
        await asyncio.gather(long, *short)
        await batcher.close()
        return lane.batches

    order = [item for batch in asyncio.run(run()) for item in batch]
    places = [place for place, item in enumerate(order) if item.startswith("short")]
    assert max(places) <= 8  # of 24
    assert "long" in order[2:8]


class Clock:
    """In the place of `time`: it goes on when something is computed."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


class Steady(Doubling):
    """A lane that computes so many tokens in a second; an item is its number of tokens."""

    def __init__(self, clock: Clock, rate: float, is_open: bool = True) -> None:
        super().__init__(is_open)
        self._clock, self._rate = clock, rate

    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        found = super().compute(items)
        self._clock.now += sum(items) / self._rate
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(batcher_module, "time", found)
    return found


@pytest.mark.parametrize(("rate", "most"), [(100, 256), (4000, 800), (1e6, 4096)])
def test_a_word_waits_for_the_batch_that_runs_and_is_in_the_next(clock: Clock, rate: float, most: int) -> None:
    """Of a fifth of a second, unless the machine is so slow that it would hold next to nothing."""

    async def run() -> list[list[int]]:
        batcher, lane = Batcher(max_wait_s=0), Steady(clock, rate)
        batcher.start()
        await batcher.submit(lane, [256], [256])  # from which it knows the rate
        lane.gate.clear()
        lengths = [20 + number % 30 for number in range(600)]
        long = asyncio.ensure_future(batcher.submit(lane, lengths, lengths))
        await settled()
        word = asyncio.ensure_future(batcher.submit(lane, [3], [3]))
        await settled()
        lane.gate.set()
        await asyncio.gather(long, word)
        await batcher.close()
        return lane.batches[1:]

    batches = asyncio.run(run())
    assert 3 in batches[1]
    assert all(most - 50 < sum(batch) <= most for batch in batches[:-2])


def test_whoever_leaves_takes_his_items_out_of_the_queue() -> None:
    async def run() -> None:
        batcher, lane = Batcher(batch_tokens=4), Doubling(is_open=False)
        batcher.start()
        first = asyncio.ensure_future(batcher.submit(lane, [1], [4]))
        await settled()
        gone = asyncio.ensure_future(batcher.submit(lane, [50, 60], [4, 4]))
        kept = asyncio.ensure_future(batcher.submit(lane, [3], [4]))
        await settled()
        gone.cancel()
        await settled()
        assert batcher.waiting_tokens == 4
        lane.gate.set()
        assert await asyncio.gather(first, kept) == [[2], [6]]
        await batcher.close()
        assert lane.batches == [[1], [3]]
        assert batcher.statistics.cancelled_items == 2

    asyncio.run(run())


def test_a_full_queue_refuses_at_once_and_says_for_how_long() -> None:
    async def run() -> None:
        batcher, lane = Batcher(batch_tokens=10, queue_tokens=20), Doubling(is_open=False)
        batcher.start()
        first = asyncio.ensure_future(batcher.submit(lane, [1], [10]))
        await settled()
        waiting = asyncio.ensure_future(batcher.submit(lane, [2, 3], [10, 10]))
        await settled()
        with pytest.raises(QueueFullError) as full:
            await batcher.submit(lane, [4], [1])
        assert full.value.retry_after_s >= 1
        lane.gate.set()
        await asyncio.gather(first, waiting)
        assert await batcher.submit(lane, [4], [10_000]) == [8]  # more than the queue, but alone
        await batcher.close()

    asyncio.run(run())


def test_how_long_to_wait_follows_from_what_was_measured_and_what_is_being_computed(clock: Clock) -> None:
    async def run() -> None:
        batcher, lane = Batcher(max_wait_s=0, queue_tokens=1000), Steady(clock, rate=100)
        batcher.start()
        await batcher.submit(lane, [200], [200])  # two seconds
        lane.gate.clear()
        asked = [asyncio.ensure_future(batcher.submit(lane, [250], [250])) for _ in range(4)]
        await settled()
        with pytest.raises(QueueFullError) as full:
            await batcher.submit(lane, [300], [300])
        assert full.value.retry_after_s == pytest.approx(10)
        lane.gate.set()
        await asyncio.gather(*asked)
        await settled()
        assert batcher.retry_after_s() == 1
        await batcher.close()

    asyncio.run(run())


def test_one_that_cannot_be_computed_harms_no_other() -> None:
    async def run() -> None:
        batcher, lane = Batcher(batch_tokens=100, max_wait_s=0.05), Doubling()
        batcher.start()
        bad, good = await asyncio.gather(
            batcher.submit(lane, ["bad"], [1]), batcher.submit(lane, ["good"], [1]), return_exceptions=True
        )
        assert isinstance(bad, ValueError)
        assert good == ["goodgood"]
        assert await batcher.run_alone(lambda: "alone", 5) == "alone"
        await batcher.close()

    asyncio.run(run())


def test_closing_waits_for_all_that_was_asked() -> None:
    async def run() -> None:
        batcher, lane = Batcher(batch_tokens=2), Doubling()
        batcher.start()
        asked = asyncio.ensure_future(batcher.submit(lane, list(range(20)), [1] * 20))
        await asyncio.sleep(0)
        await batcher.close()
        assert await asked == [2 * number for number in range(20)]

        held, slow = Batcher(), Doubling(is_open=False)
        held.start()
        last = asyncio.ensure_future(held.submit(slow, [1], [1]))
        await settled()  # nothing waits, and one is being computed
        closing = asyncio.ensure_future(held.close())
        await settled()
        slow.gate.set()
        await closing
        assert await last == [2]

    asyncio.run(run())
