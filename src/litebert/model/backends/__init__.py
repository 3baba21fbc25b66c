"""Ways to run the passes of an encoder, all tested against the loop in albert.py.

| backend | what it does | chosen |
|---|---|---|
| `CudaGraphs` | replays small batches on a GPU, whatever runs their passes | by `AutoBackend` |
| `FusedBackend` | all passes as one function of Triton kernels, on a GPU in bf16, fp16 or fp8 | by `AutoBackend` |
| `EagerBackend` | the loop itself; float32 products on x86 by oneDNN (`cpu_linear.py`) | by `AutoBackend` |
| native, oneDNN int8 | all passes in int8 on a CPU | by `use_int8` alone: int8 changes the numbers |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from litebert.errors import ConfigError
from litebert.model.backends.base import AnyEncoder, Backend, EagerBackend, Passes, cpu_batch_layout
from litebert.model.backends.cuda_graphs import CudaGraphs, is_launch_bound
from litebert.model.backends.fp8 import supports_fp8
from litebert.model.backends.fused import FusedBackend, can_fuse
from litebert.model.layout import BatchLayout, Layout

__all__ = ["AutoBackend", "Backend", "EagerBackend", "FusedBackend", "Passes", "enable_fp8", "fp8_disabled"]


@dataclass(frozen=True)
class AutoBackend(Backend):
    """Runs each case on the fastest backend that supports it. They agree but for rounding."""

    fused: FusedBackend = field(default_factory=FusedBackend)
    eager: EagerBackend = field(default_factory=EagerBackend)
    graphs: CudaGraphs = field(default_factory=CudaGraphs)

    def choose(self, encoder: AnyEncoder, hidden: Tensor, passes: Passes) -> Backend:
        fastest_first = (self.fused, self.eager)
        return next(backend for backend in fastest_first if backend.supports(encoder, hidden, passes))

    def __call__(
        self, encoder: AnyEncoder, hidden: Tensor, layout: Layout, passes: Passes, bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return self.choose(encoder, hidden, passes)(encoder, hidden, layout, passes, bias, rows)

    def batch_layout(
        self, encoder: AnyEncoder, hidden: Tensor, mask: Tensor, passes: Passes, tokens: int | None
    ) -> BatchLayout:
        """On a GPU, to find the padding takes a moment, which much work makes up for; a graph cannot look for it."""
        if not self.fused.supports(encoder, hidden, passes):
            return cpu_batch_layout(encoder, hidden, mask, tokens)
        if is_launch_bound(encoder.config, mask.numel(), passes.stop) or torch.cuda.is_current_stream_capturing():
            return BatchLayout.padded((mask.shape[0], mask.shape[1]), mask)
        return BatchLayout.packed(mask, tokens)

    def replay(self, encoder: AnyEncoder, inputs: Mapping[str, Tensor], depth: int | None) -> Tensor | None:
        if not self.graphs.supports(encoder, inputs, depth):
            return None
        return self.graphs(encoder, inputs, depth, self.fused)


def enable_fp8(encoder: AnyEncoder, enabled: bool = True) -> None:
    """Compute the larger matrix products in fp8, or in the type of the weights."""
    if enabled:
        _check_fp8(encoder)
    if isinstance(encoder.backend, AutoBackend):
        encoder.backend = replace(encoder.backend, fused=FusedBackend(fp8=enabled))


def _check_fp8(encoder: AnyEncoder) -> None:
    weight, config = encoder.word_embeddings.weight, encoder.config
    if not supports_fp8(weight.device):
        raise ConfigError("precision=fp8 needs an NVIDIA GPU that computes in fp8 (H100, H200); use bf16")
    with torch.autocast(weight.device.type, torch.bfloat16):
        fits = config.hidden_size % 16 == config.intermediate_size % 16 == 0 and can_fuse(encoder, weight)
    if not fits:
        raise ConfigError(
            "precision=fp8 needs what our kernels compute: Triton, one shared layer with GELU and sizes that 16 "
            "divides, no LoRA, relative bias, depth embedding or hook, and in training no dropout, no "
            "checkpointing and no strategy that changes weights from pass to pass; use bf16"
        )


@contextmanager
def fp8_disabled(encoder: AnyEncoder) -> Iterator[None]:
    """As the model will be used elsewhere."""
    before = encoder.backend
    enable_fp8(encoder, False)
    try:
        yield
    finally:
        encoder.backend = before
