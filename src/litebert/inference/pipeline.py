"""Overlapping the work of the host and the device: tokenize ahead, copy results while the next batch computes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from typing import TypeVar

import torch
from torch import Tensor

S = TypeVar("S")
T = TypeVar("T")


def copy_to_cpu(values: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
    """Start copying tensors to the CPU; call the result to wait for them."""
    copies = {name: value.to("cpu", non_blocking=value.is_cuda) for name, value in values.items()}
    gpu = next((value.device for value in values.values() if value.is_cuda), None)
    copied = None if gpu is None else torch.cuda.current_stream(gpu).record_event()

    def wait() -> Mapping[str, Tensor]:
        if copied is not None:
            copied.synchronize()
        return copies

    return wait


def delay_by_one(items: Iterator[T]) -> Iterator[T]:
    """Each item once the next has been started: the GPU computes while the host prepares a batch or reads results."""
    for previous, _ in pairwise(chain(items, [None])):
        assert previous is not None
        yield previous


def map_ahead(function: Callable[[Sequence[S]], T], items: Sequence[S], size: int) -> Generator[T, None, None]:
    """The function of each chunk of items; another thread computes the next one meanwhile. Closing ends the thread."""
    if len(items) <= size:
        yield function(items)
        return
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(1, "tokenize") as worker:
        pending = worker.submit(function, chunks[0])
        for chunk in chunks[1:]:
            result, pending = pending.result(), worker.submit(function, chunk)
            yield result
        yield pending.result()
