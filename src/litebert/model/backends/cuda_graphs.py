"""Small batches as CUDA graphs, one for each shape: a GPU is not left waiting for the host."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from litebert.cuda_graphs import RecordingCache
from litebert.model.backends.base import AnyEncoder, compute_dtype, is_current_device
from litebert.model.config import AlbertConfig
from litebert.model.hooks import has_hooks

MAX_RECORDINGS = 128
LAUNCH_BOUND_WORK = 8192 * 12 * 768**2
"""Tokens × passes × hidden² up to which launching kernels takes longer than running them."""

_LOCK = Lock()
"""Two threads would write to the same inputs, and only one thing can be recorded at a time."""


def is_launch_bound(config: AlbertConfig, tokens: int, passes: int) -> bool:
    """Is it so little work that a GPU waits for the host to launch the next kernel?"""
    return tokens * passes * config.hidden_size**2 <= LAUNCH_BOUND_WORK


@dataclass(frozen=True)
class Recording:
    """Work that can be done again with other numbers in the same memory."""

    graph: torch.cuda.CUDAGraph
    inputs: Mapping[str, Tensor]
    output: Tensor


class CudaGraphs:
    """Runs an encoder by replaying what was recorded when a shape came for the second time."""

    def __init__(self) -> None:
        self._addresses: Hashable = None
        self._cache: RecordingCache[Recording] = RecordingCache(MAX_RECORDINGS)
        self._output_read: torch.cuda.Event | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, here or in another process, starts empty."""
        return CudaGraphs, ()

    def supports(self, encoder: AnyEncoder, inputs: Mapping[str, Tensor], depth: int | None) -> bool:
        """A small batch on a GPU, without randomness or gradients."""
        ids = inputs.get("input_ids")
        if ids is None or not ids.is_cuda or encoder.training or torch.is_grad_enabled():
            return False
        small = is_launch_bound(encoder.config, ids.numel(), encoder.checked_depth(depth))
        plain = encoder.weight_at is None and not any(has_hooks(part) for part in encoder.children())
        return small and plain and is_current_device(ids.device) and not torch.cuda.is_current_stream_capturing()

    def __call__(
        self, encoder: AnyEncoder, inputs: Mapping[str, Tensor], depth: int | None, options: Hashable
    ) -> Tensor:
        """`options` are those of the backend that runs the passes."""
        addresses = tuple(parameter.data_ptr() for parameter in encoder.parameters())  # a graph reads from there
        dtype = compute_dtype(encoder.word_embeddings.weight)
        setting = depth, encoder.attention_implementation, options, dtype
        return self.replay(partial(encoder.encode_padded, depth), inputs, setting, addresses)

    def replay(
        self, work: Callable[..., Tensor], inputs: Mapping[str, Tensor], setting: Hashable, addresses: Hashable
    ) -> Tensor:
        """`work(**inputs)`. It may depend on nothing but its inputs, what `setting` names and the memory at these
        addresses, and it may not ask the device for a value."""
        key = (setting, *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()))
        with _LOCK:
            if addresses != self._addresses:
                self._cache.clear()
                self._addresses, self._output_read = addresses, None
            recording = self._cache.get(key, partial(self._record_copy, work, inputs))
            return work(**inputs) if recording is None else self._replay(recording, inputs)

    def _replay(self, recording: Recording, inputs: Mapping[str, Tensor]) -> Tensor:
        stream = torch.cuda.current_stream()
        if self._output_read is not None:  # on another stream, the last output may still be being copied
            stream.wait_event(self._output_read)
        for name, tensor in inputs.items():
            recording.inputs[name].copy_(tensor, non_blocking=True)
        recording.graph.replay()
        output = recording.output.clone()
        self._output_read = stream.record_event()
        return output

    def _record_copy(self, work: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> Recording:
        with torch.inference_mode(False):  # so that calls outside of inference mode may write there, too
            copies = {name: tensor.clone() for name, tensor in inputs.items()}
        return self._record(work, copies)

    def _record(self, work: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> Recording:
        half, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        # copies of weights that autocast keeps are gone when its region ends, and a graph would read them still
        with torch.autocast("cuda", dtype, enabled=half, cache_enabled=False):
            graph, output = self._cache.capture(lambda: work(**inputs))
        return Recording(graph, inputs, output)
