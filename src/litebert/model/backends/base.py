"""What a backend is: a way to run the passes of an encoder. The loop in albert.py is the reference for all of them.

Shapes: B sequences, L columns, T tokens in rows, R selected rows, S sequences laid end to end, H hidden, E embedding,
V vocabulary, C classes, D size of a sentence vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from litebert.model.layout import BatchLayout, Layout, has_much_padding

AnyEncoder = Any
"""An `Encoder` of albert.py. It imports its backends, so these cannot import it."""
RunBlock = Callable[..., Tensor]
"""`run_block` of albert.py, or a function that takes its place."""


class Passes(NamedTuple):
    """Which passes to run: those from `start` up to, but not including, `stop`."""

    start: int
    stop: int
    total: int
    """The depth of the whole run, which `Encoder.weight_at` is told."""
    partial: bool = False
    """Hidden states between passes are read as well, or the run is resumed: not one call from first to last."""


class Backend:
    """Runs passes. Every method but `__call__` has a default that is right for any backend."""

    has_fast_paths: ClassVar[bool] = False
    """Whether `embed` and `classify_early`, which begin at token ids, are there to be tried."""

    def supports(self, encoder: AnyEncoder, hidden: Tensor, passes: Passes) -> bool:
        """Whether it computes these passes. `hidden` tells device and type; the layout may be any."""
        return True

    def __call__(
        self, encoder: AnyEncoder, hidden: Tensor, layout: Layout, passes: Passes, bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # (T, H), or (R, H)  # fmt: skip
        """`bias`, (N, L, L), is added to attention scores. `rows`, (R,), are all that is wanted of the last pass."""
        raise NotImplementedError

    def batch_layout(
        self, encoder: AnyEncoder, hidden: Tensor, mask: Tensor, passes: Passes, tokens: int | None
    ) -> BatchLayout:
        """Decides whether the padding of a (B, L) batch is removed. `tokens` is T, if the caller knows it."""
        return cpu_batch_layout(encoder, hidden, mask, tokens)

    def replay(self, encoder: AnyEncoder, inputs: Mapping[str, Tensor], depth: int | None) -> Tensor | None:
        """All of `Encoder.encode_padded` as one recorded piece of work; None to run it step by step."""
        return None

    def embed(
        self, encoder: AnyEncoder, input_ids: Tensor, lengths: Tensor, token_type_ids: Tensor,
        linear: nn.Linear | None, token_weights: Tensor | None,
    ) -> Tensor | None:  # (S, D)  # fmt: skip
        """Fast path from packed token ids to sentence vectors: the mean of the last hidden states, weighted by token
        (V,), through a linear map. None where the backend has none."""
        return None

    def classify_early(
        self, encoder: AnyEncoder, input_ids: Tensor, lengths: Tensor, token_type_ids: Tensor, depths: Sequence[int],
        head: nn.Linear, threshold: float,
    ) -> tuple[Tensor, Tensor] | None:  # (S, C), (S,)  # fmt: skip
        """Fast path of early exit: the scores of packed sequences at the first depth at which the probability of a
        class reaches the threshold, and these depths. None where the backend has none."""
        return None


@dataclass(frozen=True)
class EagerBackend(Backend):
    """The loop in albert.py, pass by pass through autograd. It computes every case."""

    run_block: RunBlock | None = None
    """What runs one attention and feed-forward block in place of `run_block` in albert.py; `torch.compile` of that, for
    example: every pass of every depth then uses the one compiled function."""

    def __call__(
        self, encoder: AnyEncoder, hidden: Tensor, layout: Layout, passes: Passes, bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        states: Tensor = encoder.run_passes(hidden, layout, passes, bias, rows, self.run_block)
        return states


def batch_layout(
    encoder: AnyEncoder, hidden: Tensor, attention_mask: Tensor | None, passes: Passes, tokens: int | None = None
) -> BatchLayout:
    """The layout of a padded batch, (B, L, ...), as the encoder's backend wants it."""
    if attention_mask is None:
        return BatchLayout.padded((hidden.shape[0], hidden.shape[1]), None)
    mask, backend = attention_mask.bool().contiguous(), encoder.backend
    layout: BatchLayout = backend.batch_layout(encoder, hidden, mask, passes, tokens)
    return layout


def cpu_batch_layout(encoder: AnyEncoder, hidden: Tensor, mask: Tensor, tokens: int | None) -> BatchLayout:
    """Remove padding on a CPU where there is much of it. Not in a traced graph, which must serve other batches too, nor
    for eager attention and relative bias, for which a packed layout would be padded again."""
    padded_again = encoder.attention_implementation == "eager" or encoder.relative_bias is not None
    if (
        hidden.device.type == "cpu"
        and not padded_again
        and not torch.compiler.is_compiling()
        and has_much_padding(mask)
    ):
        return BatchLayout.packed(mask, tokens)
    return BatchLayout.padded((hidden.shape[0], hidden.shape[1]), mask)


def int8_batch_layout(mask: Tensor, tokens: int | None) -> BatchLayout:
    """int8 on a CPU leaves out even a little padding."""
    if bool(mask.all()):
        return BatchLayout.padded((mask.shape[0], mask.shape[1]), None)
    return BatchLayout.packed(mask, tokens)


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """The type of matrix products: that of autocast, if it is on."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def is_current_device(device: torch.device) -> bool:
    """Whether kernels of ours would be launched there; those of torch find any device."""
    return not torch.cuda.is_available() or device.index in (None, torch.cuda.current_device())


@cache
def has_triton(device: torch.device) -> bool:
    """Whether there is a compiler for our GPU kernels."""
    return device.type == "cuda" and find_spec("triton") is not None
