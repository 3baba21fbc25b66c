"""CUDA graphs, one for each shape of the work: the host launches one thing instead of a thousand kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

Recording = TypeVar("Recording")
Output = TypeVar("Output")


class RecordingCache(Generic[Recording]):
    """Recordings by key, each made when its key comes for the second time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Work with further keys is launched kernel by kernel."""
        self.clear()

    def clear(self) -> None:
        self.recordings: dict[Hashable, Recording] = {}
        self._seen: set[Hashable] = set()
        self._pool: Any = None
        self._is_full = False

    def get(self, key: Hashable, record: Callable[[], Recording]) -> Recording | None:
        """The recording for this key, made now if it is time; None where the caller must run the work itself."""
        if key in self.recordings:
            return self.recordings[key]
        # the first time is never recorded: libraries make their plans then, which no graph may hold
        if key not in self._seen or self._is_full or len(self.recordings) == self.limit:
            if not self._is_full:
                self._seen.add(key)
            return None
        try:
            self.recordings[key] = record()
        except torch.OutOfMemoryError:
            self._stop()
        return self.recordings.get(key)

    def capture(self, work: Callable[[], Output]) -> tuple[torch.cuda.CUDAGraph, Output]:
        """Record what `work` launches. All graphs of a cache share their memory."""
        graph = torch.cuda.CUDAGraph()
        # other threads may go on as they like: one of them writes checkpoints, say
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = work()
        self._pool = self._pool or graph.pool()
        return graph, output

    def _stop(self) -> None:
        """Give the memory back, and record nothing more."""
        self.recordings, self._pool, self._is_full = {}, None, True
        torch.cuda.empty_cache()
