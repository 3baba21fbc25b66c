"""Training steps as CUDA graphs, one for each shape of batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from litebert.cuda_graphs import RecordingCache

MAX_RECORDINGS = 64


class GraphInput(Protocol):
    """A batch that a graph can read."""

    def tensors(self) -> Mapping[str, Tensor]: ...

    def setting(self) -> Hashable:
        """What else decides how they are computed."""
        ...


AnyInput = TypeVar("AnyInput", bound=GraphInput)
Loss = Callable[[AnyInput], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Recording:
    """A step that can be done again with other numbers in the same memory."""

    graph: torch.cuda.CUDAGraph
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    gradients: Sequence[Tensor | None]


class StepGraphs:
    """Computes losses and gradients, by replaying what was recorded when a shape came for the second time.

    After a replay the gradients are there already, and "loss" asks for none. A loss may depend on the batch, the
    weights and the device's random numbers alone, and may not ask the device for a value; when it is recorded, no loss
    of an earlier call may be alive, because autograd would wait for the stream of that one. A replay gives what the
    kernels would have given one by one, so it does not matter which steps are replays.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.replays = 0
        self.parameters = parameters
        self.cache: RecordingCache[Recording] = RecordingCache(MAX_RECORDINGS)
        self._gradients: list[Tensor] = []  # where all graphs leave them

    def emptied(self) -> StepGraphs:
        """The same without any recording."""
        return type(self)(self.parameters)

    def __call__(self, loss: Loss[AnyInput], batch: AnyInput) -> Mapping[str, Tensor]:
        if any(parameter.grad is not None for parameter in self.parameters):
            return loss(batch)  # a replay would replace what is to be added to
        shapes = ((name, tensor.shape, tensor.dtype) for name, tensor in batch.tensors().items())
        recording = self.cache.get((batch.setting(), *shapes), lambda: self._record(loss, batch))
        if recording is None:
            self._gradients = self._gradients if self.cache.recordings else []  # memory may have run out
            return loss(batch)
        for name, tensor in batch.tensors().items():
            recording.inputs[name].copy_(tensor, non_blocking=True)
        recording.graph.replay()
        self.replays += 1
        for parameter, gradient in zip(self.parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        return recording.outputs

    def _record(self, loss: Loss[AnyInput], batch: AnyInput) -> Recording:
        """The batch's own tensors become the memory that the graph reads from."""
        self._gradients = self._gradients or [torch.zeros_like(parameter) for parameter in self.parameters]
        graph, (outputs, gradients) = self.cache.capture(lambda: self._compute(loss, batch))
        return Recording(graph, batch.tensors(), outputs, gradients)

    def _compute(self, loss: Loss[AnyInput], batch: AnyInput) -> tuple[Mapping[str, Tensor], Sequence[Tensor | None]]:
        """The figures, and the gradients in their memory; None for a parameter that has none."""
        figures = loss(batch)
        grads = torch.autograd.grad(figures["loss"], self.parameters, allow_unused=True)
        used = [(fixed, grad) for fixed, grad in zip(self._gradients, grads, strict=True) if grad is not None]
        torch._foreach_copy_([fixed for fixed, _ in used], [grad for _, grad in used])
        gradients = [None if grad is None else fixed for fixed, grad in zip(self._gradients, grads, strict=True)]
        return {name: value.detach() for name, value in figures.items()}, gradients
