"""Training steps as CUDA graphs, one for each shape of batch: the host launches one thing instead of a thousand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

LIMIT = 64  # graphs; batches of further shapes are computed kernel by kernel


class Shaped(Protocol):
    """What a graph can read: tensors, and what else decides how they are computed."""

    def tensors(self) -> list[Tensor]: ...
    def key(self) -> Hashable: ...


@dataclass(frozen=True)
class _Recording:
    graph: Any
    inputs: list[Tensor]
    outputs: Mapping[str, Tensor]
    gradients: Sequence[Tensor | None]


class Graphed:
    """A loss whose forward and backward are recorded when a shape comes for the second time, and replayed from then on.

    After a replay the gradients are there already, and "loss" asks for none. The loss may not depend on anything but
    the batch, the weights and the random numbers of the device, nor ask the host for anything.
    """

    def __init__(self, loss: Callable[[Any], Mapping[str, Tensor]], parameters: Sequence[nn.Parameter]) -> None:
        self._loss, self._parameters = loss, parameters
        self._gradients = [torch.zeros_like(parameter) for parameter in parameters]  # where all graphs leave them
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool: Any = None

    def __call__(self, batch: Shaped) -> Mapping[str, Tensor]:
        if any(parameter.grad is not None for parameter in self._parameters):
            return self._loss(batch)  # a replay would replace what is to be added to
        key = batch.key()
        if key not in self._recordings:
            if key not in self._seen or len(self._recordings) == LIMIT:
                self._seen.add(key)
                return self._loss(batch)  # libraries make their plans at the first use, which no graph may hold
            self._recordings[key] = self._record(batch)
        recording = self._recordings[key]
        for fixed, new in zip(recording.inputs, batch.tensors(), strict=True):
            fixed.copy_(new, non_blocking=True)
        recording.graph.replay()
        for parameter, gradient in zip(self._parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        return recording.outputs

    def _record(self, batch: Shaped) -> _Recording:
        """The batch's own tensors become the places from which the graph reads."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            found = self._loss(batch)
            slopes = torch.autograd.grad(found["loss"], self._parameters, allow_unused=True)
            used = [(fixed, slope) for fixed, slope in zip(self._gradients, slopes, strict=True) if slope is not None]
            torch._foreach_copy_([fixed for fixed, _ in used], [slope for _, slope in used])
        self._pool = self._pool or graph.pool()
        gradients = [None if slope is None else fixed for fixed, slope in zip(self._gradients, slopes, strict=True)]
        outputs = {name: value.detach() for name, value in found.items()}
        return _Recording(graph, batch.tensors(), outputs, gradients)
