"""Prefetching batches in threads. The batch of a step does not depend on the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

BatchT = TypeVar("BatchT")


class Prefetcher(Generic[BatchT]):
    """Returns the batch of a step; `schedule` computes the next ones in threads, as numpy releases the GIL."""

    def __init__(self, make: Callable[[int], BatchT], workers: int, ahead: int = 4) -> None:
        self._make_batch, self._ahead = make, ahead
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="batches") if workers else None
        self._futures: dict[int, Future[BatchT]] = {}

    def schedule(self, step: int) -> None:
        """Start computing the batch of this step and those after it."""
        if self._pool is None:
            return
        for upcoming in range(step, step + self._ahead):
            if upcoming not in self._futures:
                self._futures[upcoming] = self._pool.submit(self._make_batch, upcoming)
        for past in [other for other in self._futures if other < step]:
            self._futures.pop(past).cancel()

    def __call__(self, step: int) -> BatchT:
        if step not in self._futures:  # the first step, or an earlier one after a rollback
            self.schedule(step)
        return self._make_batch(step) if self._pool is None else self._futures.pop(step).result()

    def clear(self) -> None:
        """Discard prefetched batches, which are outdated."""
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()

    def close(self) -> None:
        self.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
