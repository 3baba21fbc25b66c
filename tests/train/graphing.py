"""Graphs for machines without a GPU: what was recorded is computed again, in the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litebert.train.cuda_graphs import Recording, StepGraphs


class Again:
    """In the place of a CUDA graph."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class ComputedGraphs(StepGraphs):
    """All of `StepGraphs` but the capture itself, which bench/check_gpu.py tries on a GPU."""

    def _record(self, loss: Any, batch: Any) -> Recording:
        self._gradients = self._gradients or [parameter.new_zeros(parameter.shape) for parameter in self.parameters]
        with torch.random.fork_rng(devices=[]):  # a capture draws nothing
            shapes, used = self._compute(loss, batch)
        outputs = {name: value.new_empty(value.shape) for name, value in shapes.items()}

        def work() -> None:
            for name, value in self._compute(loss, batch)[0].items():
                outputs[name].copy_(value)

        again: Any = Again(work)
        recording: Any = Recording(again, batch.tensors(), outputs, used)
        return recording
