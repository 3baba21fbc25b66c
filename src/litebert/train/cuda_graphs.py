"""Training steps as CUDA graphs, one for each shape of batch: the host launches one thing instead of a thousand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

MAX_GRAPHS = 64
"""Batches of further shapes are computed kernel by kernel."""


class Shaped(Protocol):
    """What a graph can read."""

    def tensors(self) -> Mapping[str, Tensor]: ...

    def setting(self) -> Hashable:
        """What else decides how they are computed."""
        ...


AnyShaped = TypeVar("AnyShaped", bound=Shaped)
Loss = Callable[[AnyShaped], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Recording:
    """Work that can be done again with other numbers in the same places."""

    graph: torch.cuda.CUDAGraph
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    gradients: Sequence[Tensor | None]


class Graphs:
    """Computes losses and gradients, by replaying what was recorded when a shape came for the second time.

    After a replay the gradients are there already, and "loss" asks for none. A loss may depend on the batch, the
    weights and the device's random numbers alone, and may not ask the device for a value; when it is recorded, no loss
    of an earlier call may be alive, because autograd would wait for the stream of that one. A replay gives what the
    kernels would have given one by one, so it does not matter which steps are replays.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.replays = 0
        self._parameters = parameters
        self._gradients: list[Tensor] = []  # where all graphs leave them
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, Recording] = {}
        self._pool: Any = None
        self._is_full = False

    def anew(self) -> Graphs:
        """Without any recording."""
        return type(self)(self._parameters)

    def __call__(self, loss: Loss[AnyShaped], batch: AnyShaped) -> Mapping[str, Tensor]:
        if any(parameter.grad is not None for parameter in self._parameters):
            return loss(batch)  # a replay would replace what is to be added to
        shapes = ((name, tensor.shape, tensor.dtype) for name, tensor in batch.tensors().items())
        key = (batch.setting(), *shapes)
        if key not in self._recordings:
            # the first time is never recorded: libraries make their plans then, which no graph may hold
            if key not in self._seen or self._is_full or len(self._recordings) == MAX_GRAPHS:
                self._seen.add(key)
                return loss(batch)
            try:
                self._recordings[key] = self._record(loss, batch)
            except torch.OutOfMemoryError:
                self._forget()
        recording = self._recordings.get(key)
        if recording is None:  # out here, where the error no longer keeps alive what it has met
            return loss(batch)
        for name, tensor in batch.tensors().items():
            recording.inputs[name].copy_(tensor, non_blocking=True)
        recording.graph.replay()
        self.replays += 1
        for parameter, gradient in zip(self._parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        return recording.outputs

    def _record(self, loss: Loss[AnyShaped], batch: AnyShaped) -> Recording:
        """The batch's own tensors become the places from which the graph reads."""
        self._gradients = self._gradients or [torch.zeros_like(parameter) for parameter in self._parameters]
        graph = torch.cuda.CUDAGraph()
        # other threads may go on as they like: one of them writes checkpoints
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs, gradients = self._compute(loss, batch)
        self._pool = self._pool or graph.pool()
        return Recording(graph, batch.tensors(), outputs, gradients)

    def _compute(self, loss: Loss[AnyShaped], batch: AnyShaped) -> tuple[Mapping[str, Tensor], Sequence[Tensor | None]]:
        """The figures, and the gradients in their places; None for a parameter that has none."""
        found = loss(batch)
        slopes = torch.autograd.grad(found["loss"], self._parameters, allow_unused=True)
        used = [(fixed, slope) for fixed, slope in zip(self._gradients, slopes, strict=True) if slope is not None]
        torch._foreach_copy_([fixed for fixed, _ in used], [slope for _, slope in used])
        gradients = [None if slope is None else fixed for fixed, slope in zip(self._gradients, slopes, strict=True)]
        return {name: value.detach() for name, value in found.items()}, gradients

    def _forget(self) -> None:
        """Give the memory back, and record nothing more."""
        self._recordings, self._gradients, self._pool, self._is_full = {}, [], None, True
        torch.cuda.empty_cache()
