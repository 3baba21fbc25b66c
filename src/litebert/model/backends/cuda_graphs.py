"""Answers to small batches as CUDA graphs, one for each shape: a GPU is not left waiting for the host."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from litebert.model.config import AlbertConfig

MAX_RECORDINGS = 128
SMALL_WORK = 8192 * 12 * 768**2
"""Tokens × passes × hidden² of what is worth a graph: more keeps a GPU busy while the host launches what comes next."""

_LOCK = Lock()
"""Two threads would write to the same places, and only one thing can be recorded at a time."""


def is_small(config: AlbertConfig, tokens: int, passes: int) -> bool:
    return tokens * passes * config.hidden_size**2 <= SMALL_WORK


@dataclass(frozen=True)
class Recording:
    """Work that can be done again with other numbers in the same places."""

    graph: torch.cuda.CUDAGraph
    inputs: Mapping[str, Tensor]
    output: Tensor


class Recorder:
    """Does some work, by replaying what was recorded when a shape came for the second time."""

    def __init__(self) -> None:
        self._places: Hashable = None
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, Recording] = {}
        self._pool: Any = None
        self._read: torch.cuda.Event | None = None
        self._is_full = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, here or in another process, begins anew."""
        return Recorder, ()

    def __call__(
        self, work: Callable[..., Tensor], inputs: Mapping[str, Tensor], setting: Hashable, places: Hashable
    ) -> Tensor:
        """`work(**inputs)`; it may depend on nothing else but what `setting` names and what stands at these `places`
        in memory, nor ask the device for a value."""
        key = (setting, *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()))
        with _LOCK:
            if places != self._places:
                self._forget()
                self._places = places
            recording = self._recordings.get(key) or self._recorded(work, inputs, key)
            return work(**inputs) if recording is None else self._replayed(recording, inputs)

    def _recorded(self, work: Callable[..., Tensor], inputs: Mapping[str, Tensor], key: Hashable) -> Recording | None:
        # the first time is never recorded: libraries make their plans then, which no graph may hold
        if key not in self._seen or self._is_full or len(self._recordings) == MAX_RECORDINGS:
            self._seen.add(key)
            return None
        try:
            with torch.inference_mode(False):  # so that whoever comes without it may write there, too
                inputs = {name: tensor.clone() for name, tensor in inputs.items()}
            self._recordings[key] = self._record(work, inputs)
        except torch.OutOfMemoryError:
            self._forget()
            self._is_full = True
            return None
        return self._recordings[key]

    def _replayed(self, recording: Recording, inputs: Mapping[str, Tensor]) -> Tensor:
        stream = torch.cuda.current_stream()
        if self._read is not None:  # on another stream, the answer before may still be being copied
            stream.wait_event(self._read)
        for name, tensor in inputs.items():
            recording.inputs[name].copy_(tensor, non_blocking=True)
        recording.graph.replay()
        answer = recording.output.clone()
        self._read = stream.record_event()
        return answer

    def _record(self, work: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        half, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        # copies of weights that autocast keeps are gone when its region ends, and a graph would read them still
        with (
            torch.autocast("cuda", dtype, enabled=half, cache_enabled=False),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            output = work(**inputs)
        self._pool = self._pool or graph.pool()
        return Recording(graph, inputs, output)

    def _forget(self) -> None:
        self._seen, self._recordings, self._pool, self._read, self._is_full = set(), {}, None, None, False
