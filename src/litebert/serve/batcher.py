"""A queue before the one thread that computes: what many requests ask is computed together.

An item waits in the lane of its kind; a batch is made of one lane. Turns are fair: the requests that wait share the
thread alike (fair queueing), so that one of a single text does not wait for all of another's thousand, nor that for all
that come later. No turn is long: a batch holds what the machine computes in a fifth of a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

INITIAL_TOKENS_PER_SECOND = 5000.0
"""Tokens per second, before anything was computed."""
RATE_DECAY = 0.9
"""How much the batches before count, beside the last one, in the rate that is measured."""
MAX_BATCH_S = 0.2
"""A batch should take no longer: whoever comes while it is computed waits for all of it."""
MIN_BATCH_TOKENS = 256
"""In a full batch, however slow the machine is. Tokens of the built-in model per second of a CPU core's time, by the
size of the batch: 590 at 256, 609 at 512, 606 at 1024, 596 at 4096 (embed_examples, 60 texts, means of two)."""
LENGTH_WINDOW_BATCHES = 4
"""So many batches of items are looked at for those of similar length."""


class Computation(Hashable, Protocol):
    """What is computed alike, and so together."""

    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        """A result per item; called in the thread that computes."""


class QueueFullError(Exception):
    """The queue takes no more for now."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class _Request:
    lane: Computation
    results: list[Any]
    done: asyncio.Future[list[Any]]
    unanswered: int
    waiting_tokens: int
    since: float
    turn: float
    """The tokens that it got, on top of those that each request that waited had got when it came."""
    is_new: bool = True
    """It has got nothing so far."""


@dataclass(eq=False)
class _Item:
    request: _Request
    place: int
    value: Any
    tokens: int


@dataclass
class BatchStatistics:
    """For the metrics."""

    batches: int = 0
    items: int = 0
    tokens: int = 0
    dropped: int = 0
    """Items that nobody waited for any more."""
    seconds: float = 0.0
    """In which something was computed."""
    observers: list[Callable[[int, int, float], None]] = field(default_factory=list)
    """Hear the items, the tokens and the seconds of every batch."""


class Batcher:
    """Lives in one event loop. `start` it there, and `close` it to have all that waits computed first."""

    def __init__(self, batch_tokens: int = 4096, max_wait_s: float = 0.002, queue_tokens: int = 1 << 16) -> None:
        self.batch_tokens, self.max_wait_s, self.queue_tokens = batch_tokens, max_wait_s, queue_tokens
        self.waiting_tokens = self._running_tokens = 0
        self.tokens_per_second = INITIAL_TOKENS_PER_SECOND
        self._recent_tokens = self._recent_seconds = 0.0
        self.figures = BatchStatistics()
        self._lanes: dict[Computation, list[_Item]] = {}
        self._requests = 0
        self._turn = 0.0
        """Tokens that a request has got that waits all the time: each batch is shared among those that wait."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="litebert-compute")
        self._more = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runner = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """When all that waits has been computed."""
        while self._requests:
            await asyncio.sleep(0.01)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._worker.shutdown()

    def retry_after_s(self) -> float:
        """When what waits and what is being computed will be done, at the rate that was measured."""
        return max(1.0, (self.waiting_tokens + self._running_tokens) / self.tokens_per_second)

    @property
    def full_batch(self) -> int:
        """Tokens that are computed together at most: of `MAX_BATCH_S`, at the rate that was measured."""
        return min(self.batch_tokens, max(MIN_BATCH_TOKENS, int(MAX_BATCH_S * self.tokens_per_second)))

    async def ask(self, lane: Computation, items: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """A result per item. Whoever is cancelled while waiting takes his items out of the queue."""
        if not items:
            return []
        total = sum(tokens)
        if self.waiting_tokens and self.waiting_tokens + total > self.queue_tokens:
            raise QueueFullError(self.retry_after_s())
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        request = _Request(lane, [None] * len(items), done, len(items), total, time.monotonic(), self._turn)
        queue = self._lanes.setdefault(lane, [])
        for place, (value, size) in enumerate(zip(items, tokens, strict=True)):
            queue.append(_Item(request, place, value, size))
        self.waiting_tokens += total
        self._requests += 1
        self._more.set()
        try:
            return await done
        finally:
            self.waiting_tokens -= request.waiting_tokens  # of items that were not computed
            request.waiting_tokens = 0
            self._requests -= 1

    async def call(self, function: Callable[[], Any], tokens: int) -> Any:
        """Something that is computed alone, about as much work as so many tokens."""
        return (await self.ask(_SingleCall(function), [None], [tokens]))[0]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._more.wait()
            await self._gather()
            batch = self._next_batch()
            if not batch:
                continue
            began, self._running_tokens = time.perf_counter(), sum(item.tokens for item in batch)
            await self._compute(loop, batch)
            self._measure(batch, time.perf_counter() - began)
            self._running_tokens = 0

    async def _gather(self) -> None:
        """Wait a moment for a fuller batch."""
        while self._lanes and self.waiting_tokens < self.full_batch:
            oldest = min(item.request.since for queue in self._lanes.values() for item in queue[:1])
            left = oldest + self.max_wait_s - time.monotonic()
            if left <= 0:
                return
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), left)
            except asyncio.TimeoutError:
                self._more.set()
                return

    def _next_batch(self) -> list[_Item]:
        """From the lane whose turn it is: the item whose turn it is, and those most like it in length."""
        for lane, queue in list(self._lanes.items()):
            left = [item for item in queue if not item.request.done.done()]
            self.figures.dropped += len(queue) - len(left)
            self._keep(lane, left)
        if not self._lanes:
            return []
        ordered = {lane: _fair_order(queue) for lane, queue in self._lanes.items()}
        lane, (_, queue) = min(ordered.items(), key=lambda pair: pair[1][0])
        batch = _similar_in_length(queue, self.full_batch)
        taken = set(map(id, batch))
        self._keep(lane, [item for item in self._lanes[lane] if id(item) not in taken])
        self._turn += sum(item.tokens for item in batch) / max(1, self._requests)
        for item in batch:
            item.request.turn += item.tokens
            item.request.is_new = False
            item.request.waiting_tokens -= item.tokens
            self.waiting_tokens -= item.tokens
        return batch

    def _keep(self, lane: Computation, items: list[_Item]) -> None:
        """So much of a lane, in the order in which it came."""
        if items:
            self._lanes[lane] = items
        else:
            del self._lanes[lane]
        if not self._lanes:
            self._more.clear()

    async def _compute(self, loop: asyncio.AbstractEventLoop, batch: list[_Item]) -> None:
        lane = batch[0].request.lane
        try:
            results = await loop.run_in_executor(self._worker, lane.compute, [item.value for item in batch])
        except Exception as error:  # noqa: BLE001  # it belongs to whoever asked
            requests = list({id(item.request): item.request for item in batch}.values())
            if len(requests) == 1:
                if not requests[0].done.done():
                    requests[0].done.set_exception(error)
                return
            for request in requests:  # one of them is to blame, and the others are not
                await self._compute(loop, [item for item in batch if item.request is request])
            return
        for item, result in zip(batch, results, strict=True):
            request = item.request
            request.results[item.place] = result
            request.unanswered -= 1
            if not request.unanswered and not request.done.done():
                request.done.set_result(request.results)

    def _measure(self, batch: Sequence[_Item], seconds: float) -> None:
        tokens = sum(item.tokens for item in batch)
        self.figures.batches += 1
        self.figures.items += len(batch)
        self.figures.tokens += tokens
        self.figures.seconds += seconds
        # tokens and seconds apart, so that single words, which take long for their size, count for little
        self._recent_tokens = RATE_DECAY * self._recent_tokens + tokens
        self._recent_seconds = RATE_DECAY * self._recent_seconds + seconds
        self.tokens_per_second = self._recent_tokens / max(self._recent_seconds, 1e-6)
        for observe in self.figures.observers:
            observe(len(batch), tokens, seconds)


class _SingleCall:
    """A lane of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        return [self._function()]


def _fair_order(queue: Sequence[_Item]) -> tuple[tuple[float, bool], list[_Item]]:
    """The turn of the first item, and all of them by their turns: what their request has got, and what comes before
    them in it. Where these are equal, one that has got nothing so far comes first."""
    ahead: dict[int, float] = {}
    turns = []
    for item in queue:
        request = item.request
        turn = ahead.get(id(request), request.turn)
        turns.append((turn, not request.is_new))
        ahead[id(request)] = turn + item.tokens
    order = sorted(range(len(queue)), key=turns.__getitem__)
    return turns[order[0]], [queue[place] for place in order]


def _similar_in_length(queue: Sequence[_Item], budget: int) -> list[_Item]:
    """The first item, and of the next ones those nearest to it in length, as many as the budget of tokens allows."""
    first, window, seen = queue[0], [], 0
    for item in queue[1:]:
        if seen > LENGTH_WINDOW_BATCHES * budget:
            break
        window.append(item)
        seen += item.tokens
    batch, total = [first], first.tokens
    for item in sorted(window, key=lambda item: abs(item.tokens - first.tokens)):
        if total + item.tokens > budget:
            break
        batch.append(item)
        total += item.tokens
    return batch
