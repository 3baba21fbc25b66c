"""Batches made ahead of time by threads. What a step sees does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

BatchT = TypeVar("BatchT")


class Prefetcher(Generic[BatchT]):
    """Call it with a step; `begin` has the next few made meanwhile. numpy lets threads run beside each other."""

    def __init__(self, make: Callable[[int], BatchT], workers: int, ahead: int = 4) -> None:
        self._make, self._ahead = make, ahead
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="batches") if workers else None
        self._coming: dict[int, Future[BatchT]] = {}

    def begin(self, step: int) -> None:
        """Have this one and those after it made."""
        if self._pool is None:
            return
        for wanted in range(step, step + self._ahead):
            if wanted not in self._coming:
                self._coming[wanted] = self._pool.submit(self._make, wanted)
        for passed in [other for other in self._coming if other < step]:
            self._coming.pop(passed).cancel()

    def __call__(self, step: int) -> BatchT:
        if step not in self._coming:  # the first, or one to which a run has gone back
            self.begin(step)
        return self._make(step) if self._pool is None else self._coming.pop(step).result()

    def forget(self) -> None:
        """What was made ahead no longer fits: make it again."""
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()

    def close(self) -> None:
        self.forget()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
