"""Dynamic batching: items of many requests are computed together by one worker thread.

There is one queue per computation; a batch holds items of one queue. Requests share the thread by fair queueing: a
request with one text does not wait for another's thousand texts, and those do not wait for everything that arrives
later. Batches are short: each holds about what the machine computes in 0.2 s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

INITIAL_TOKENS_PER_SECOND = 5000.0
"""Assumed until the first batch is measured."""
RATE_DECAY = 0.9
"""Decay per batch of the exponentially weighted throughput."""
MAX_BATCH_S = 0.2
"""Target duration of a batch: a request that arrives meanwhile waits for all of it."""
MIN_BATCH_TOKENS = 256
"""Lower bound on a full batch. Throughput of the built-in model per CPU core, by tokens in the batch: 590 tokens/s at
256, 609 at 512, 606 at 1024, 596 at 4096 (embed_examples, 60 texts, mean of two)."""
LENGTH_WINDOW_BATCHES = 4
"""How many batches' worth of queued items are searched for items of similar length."""


class Computation(Hashable, Protocol):
    """Items of equal computations may share a batch."""

    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return one result per item; called in the worker thread."""


class QueueFullError(Exception):
    """The queue holds as many tokens as it may."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class _Request:
    computation: Computation
    results: list[Any]
    done: asyncio.Future[list[Any]]
    pending_items: int
    waiting_tokens: int
    enqueued_at: float
    virtual_time: float
    """Tokens computed for it, plus the batcher's virtual time at its arrival."""
    is_unserved: bool = True
    """Nothing of it has been computed yet."""


@dataclass(eq=False)
class _Item:
    request: _Request
    index: int
    value: Any
    tokens: int


@dataclass
class BatchStatistics:
    """Totals for the metrics."""

    batches: int = 0
    items: int = 0
    tokens: int = 0
    cancelled_items: int = 0
    """Items removed from the queue because their request was cancelled."""
    compute_seconds: float = 0.0
    observers: list[Callable[[int, int, float], None]] = field(default_factory=list)
    """Called after every batch with its items, tokens and seconds."""


class Batcher:
    """Belongs to one event loop. `start` runs it there; `close` waits until the queue is empty."""

    def __init__(self, batch_tokens: int = 4096, max_wait_s: float = 0.002, queue_tokens: int = 1 << 16) -> None:
        self.batch_tokens, self.max_wait_s, self.queue_tokens = batch_tokens, max_wait_s, queue_tokens
        self.waiting_tokens = self._running_tokens = 0
        self.tokens_per_second = INITIAL_TOKENS_PER_SECOND
        self._recent_tokens = self._recent_seconds = 0.0
        self.statistics = BatchStatistics()
        self._queues: dict[Computation, list[_Item]] = {}
        self._open_requests = 0
        self._virtual_time = 0.0
        """Tokens that a request waiting since the start would have received (fair queueing)."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="litebert-compute")
        self._items_available = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runner = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop once everything queued has been computed."""
        while self._open_requests:
            await asyncio.sleep(0.01)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._worker.shutdown()

    def retry_after_s(self) -> float:
        """Estimated seconds until the queue and the running batch are done, at the measured throughput."""
        return max(1.0, (self.waiting_tokens + self._running_tokens) / self.tokens_per_second)

    @property
    def max_batch_tokens(self) -> int:
        """Upper bound on a batch: what `MAX_BATCH_S` allows at the measured throughput."""
        return min(self.batch_tokens, max(MIN_BATCH_TOKENS, int(MAX_BATCH_S * self.tokens_per_second)))

    async def submit(self, computation: Computation, items: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """One result per item. Cancelling the caller removes its items from the queue."""
        if not items:
            return []
        total = sum(tokens)
        if self.waiting_tokens and self.waiting_tokens + total > self.queue_tokens:
            raise QueueFullError(self.retry_after_s())
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        request = _Request(
            computation, [None] * len(items), done, len(items), total, time.monotonic(), self._virtual_time
        )
        queue = self._queues.setdefault(computation, [])
        for index, (value, size) in enumerate(zip(items, tokens, strict=True)):
            queue.append(_Item(request, index, value, size))
        self.waiting_tokens += total
        self._open_requests += 1
        self._items_available.set()
        try:
            return await done
        finally:
            self.waiting_tokens -= request.waiting_tokens  # items that were cancelled before they were computed
            request.waiting_tokens = 0
            self._open_requests -= 1

    async def run_alone(self, function: Callable[[], Any], tokens: int) -> Any:
        """Run a function in the worker thread, in a batch of its own; `tokens` estimates its cost."""
        return (await self.submit(_SingleCall(function), [None], [tokens]))[0]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._items_available.wait()
            await self._wait_for_items()
            batch = self._next_batch()
            if not batch:
                continue
            began, self._running_tokens = time.perf_counter(), sum(item.tokens for item in batch)
            await self._compute(loop, batch)
            self._measure(batch, time.perf_counter() - began)
            self._running_tokens = 0

    async def _wait_for_items(self) -> None:
        """Wait up to `max_wait_s` for a batch to fill."""
        while self._queues and self.waiting_tokens < self.max_batch_tokens:
            oldest = min(item.request.enqueued_at for queue in self._queues.values() for item in queue[:1])
            left = oldest + self.max_wait_s - time.monotonic()
            if left <= 0:
                return
            self._items_available.clear()
            try:
                await asyncio.wait_for(self._items_available.wait(), left)
            except asyncio.TimeoutError:
                self._items_available.set()
                return

    def _next_batch(self) -> list[_Item]:
        """The next item in fair order, and those of its queue most similar to it in length."""
        for computation, queue in list(self._queues.items()):
            open_items = [item for item in queue if not item.request.done.done()]
            self.statistics.cancelled_items += len(queue) - len(open_items)
            self._set_queue(computation, open_items)
        if not self._queues:
            return []
        ordered = {computation: _fair_order(queue) for computation, queue in self._queues.items()}
        computation, (_, queue) = min(ordered.items(), key=lambda pair: pair[1][0])
        batch = _similar_in_length(queue, self.max_batch_tokens)
        batch_ids = set(map(id, batch))
        self._set_queue(computation, [item for item in self._queues[computation] if id(item) not in batch_ids])
        self._virtual_time += sum(item.tokens for item in batch) / max(1, self._open_requests)
        for item in batch:
            item.request.virtual_time += item.tokens
            item.request.is_unserved = False
            item.request.waiting_tokens -= item.tokens
            self.waiting_tokens -= item.tokens
        return batch

    def _set_queue(self, computation: Computation, items: list[_Item]) -> None:
        """Replace a queue by the items that remain, in order of arrival."""
        if items:
            self._queues[computation] = items
        else:
            del self._queues[computation]
        if not self._queues:
            self._items_available.clear()

    async def _compute(self, loop: asyncio.AbstractEventLoop, batch: list[_Item]) -> None:
        computation = batch[0].request.computation
        try:
            results = await loop.run_in_executor(self._worker, computation.compute, [item.value for item in batch])
        except Exception as error:  # noqa: BLE001  # passed on to the request
            requests = list({id(item.request): item.request for item in batch}.values())
            if len(requests) == 1:
                if not requests[0].done.done():
                    requests[0].done.set_exception(error)
                return
            for request in requests:  # find the request that failed; the others get their results
                await self._compute(loop, [item for item in batch if item.request is request])
            return
        for item, result in zip(batch, results, strict=True):
            request = item.request
            request.results[item.index] = result
            request.pending_items -= 1
            if not request.pending_items and not request.done.done():
                request.done.set_result(request.results)

    def _measure(self, batch: Sequence[_Item], seconds: float) -> None:
        tokens = sum(item.tokens for item in batch)
        self.statistics.batches += 1
        self.statistics.items += len(batch)
        self.statistics.tokens += tokens
        self.statistics.compute_seconds += seconds
        # a ratio of sums: tiny batches, which are slow for their size, count for little
        self._recent_tokens = RATE_DECAY * self._recent_tokens + tokens
        self._recent_seconds = RATE_DECAY * self._recent_seconds + seconds
        self.tokens_per_second = self._recent_tokens / max(self._recent_seconds, 1e-6)
        for observe in self.statistics.observers:
            observe(len(batch), tokens, seconds)


class _SingleCall:
    """Equal to no other computation, so never batched."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        return [self._function()]


def _fair_order(queue: Sequence[_Item]) -> tuple[tuple[float, bool], list[_Item]]:
    """The smallest virtual start time, and all items ordered by theirs: their request's virtual time plus the tokens
    ahead of them in it. On a tie, a request that got nothing so far comes first."""
    next_time: dict[int, float] = {}
    virtual_times = []
    for item in queue:
        request = item.request
        virtual_time = next_time.get(id(request), request.virtual_time)
        virtual_times.append((virtual_time, not request.is_unserved))
        next_time[id(request)] = virtual_time + item.tokens
    order = sorted(range(len(queue)), key=virtual_times.__getitem__)
    return virtual_times[order[0]], [queue[index] for index in order]


def _similar_in_length(queue: Sequence[_Item], budget: int) -> list[_Item]:
    """The first item and, up to a budget of tokens, those of the following items nearest to it in length."""
    first, window, window_tokens = queue[0], [], 0
    for item in queue[1:]:
        if window_tokens > LENGTH_WINDOW_BATCHES * budget:
            break
        window.append(item)
        window_tokens += item.tokens
    batch, total = [first], first.tokens
    for item in sorted(window, key=lambda item: abs(item.tokens - first.tokens)):
        if total + item.tokens > budget:
            break
        batch.append(item)
        total += item.tokens
    return batch
