"""Attention over real tokens: two layouts, four interchangeable backends, one place that chooses.

Shapes: B sequences, L columns of the widest, T tokens laid out in rows, N heads, D channels per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PLAIN_LIMIT = 1 << 22
"""Scores per head that attention may write out where it need not: 8 MB in bf16."""

Backend = Literal["auto", "eager", "sdpa", "varlen", "flex"]


@dataclass(frozen=True)
class Dense:
    """B sequences of L columns each, T = B * L rows. The layout of export, CPUs and double backward."""

    batch: int
    length: int
    mask: Tensor | None
    """(B, L), True at real tokens; None when every token is real."""

    def pad(self, rows: Tensor) -> Tensor:  # (T, N, D) -> (B, N, L, D)
        return rows.view(self.batch, self.length, *rows.shape[1:]).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:  # (B, N, L, D) -> (T, N, D)
        return padded.transpose(1, 2).reshape(self.batch * self.length, padded.shape[1], padded.shape[3])

    @cached_property
    def visible(self) -> Tensor | None:  # (B, 1, 1, L)
        """Which keys a query may see. A sequence of padding only sees itself: softmax over nothing is not a number."""
        if self.mask is None:
            return None
        return (self.mask | ~self.mask.any(dim=1, keepdim=True))[:, None, None, :]


@dataclass(frozen=True)
class Packed:
    """Sequences laid end to end without padding. The layout of variable-length work on a GPU."""

    starts: Tensor
    """(B + 1,) int32: where each sequence starts, and T."""
    length: int
    """The longest sequence, L, or more."""
    total: int | None = None
    """T, where it is known without asking the device."""

    @staticmethod
    def of(lengths: Tensor, longest: int | None = None, total: int | None = None) -> Packed:
        starts = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        return Packed(starts, int(lengths.max()) if longest is None else longest, total)

    @property
    def batch(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def sequence(self) -> Tensor:  # (T,)
        lengths = self.starts.diff().long()
        numbers = torch.arange(self.batch, device=lengths.device)
        return torch.repeat_interleave(numbers, lengths, output_size=self.total)

    @cached_property
    def column(self) -> Tensor:  # (T,)
        return torch.arange(len(self.sequence), device=self.starts.device) - self.starts[self.sequence]

    def pad(self, rows: Tensor) -> Tensor:  # (T, N, D) -> (B, N, L, D)
        padded = rows.new_zeros(self.batch, self.length, *rows.shape[1:])
        return padded.index_put((self.sequence, self.column), rows).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:  # (B, N, L, D) -> (T, N, D)
        return padded.transpose(1, 2)[self.sequence, self.column]

    @cached_property
    def visible(self) -> Tensor:  # (B, 1, 1, L)
        return (torch.arange(self.length, device=self.starts.device) < self.starts.diff()[:, None])[:, None, None, :]

    @cached_property
    def flex_mask(self) -> Any:
        """FlexAttention's form of "only tokens of the same sequence see each other"."""
        from torch.nn.attention.flex_attention import create_block_mask

        sequence = self.sequence
        total = len(sequence)
        return create_block_mask(
            lambda batch, head, query, key: sequence[query] == sequence[key],
            None,
            None,
            total,
            total,
            device=str(sequence.device),
        )


Layout = Dense | Packed


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
) -> Tensor:
    """Scaled dot-product attention within each sequence: (T, N, D) in, (T, N, D) out.

    `bias`, (N, L, L), is added to the scores by column, the same for every sequence.
    """
    if backend == "auto":
        backend = choose_backend(q.dtype, q.is_cuda, layout, bias, dropout)
    return _BACKENDS[backend](q, k, v, layout, bias, dropout)


def choose_backend(dtype: torch.dtype, is_cuda: bool, layout: Layout, bias: Tensor | None, dropout: float) -> Backend:
    """The fastest backend that computes this case; SDPA computes every case."""
    half = dtype in (torch.bfloat16, torch.float16)
    if isinstance(layout, Packed) and is_cuda and half and bias is None and dropout == 0.0 and _has_varlen():
        return "varlen"
    if half and not is_cuda and layout.batch * layout.length**2 <= PLAIN_LIMIT:
        return "eager"  # the fused kernel's backward is two to seven times slower there
    return "sdpa"


def _eager(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor | None, dropout: float) -> Tensor:
    """The formula itself. Unlike the fused kernels it can be differentiated twice."""
    q, k, v = layout.pad(q), layout.pad(k), layout.pad(v)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (B, N, L, L)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if layout.visible is not None:
        scores = scores + torch.zeros_like(layout.visible, dtype=scores.dtype).masked_fill(~layout.visible, -torch.inf)
    weights = F.dropout(scores.softmax(dim=-1), dropout)
    return layout.unpad(weights @ v)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor | None, dropout: float) -> Tensor:
    mask = layout.visible
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias[None] if mask is None else bias.masked_fill(~mask, float("-inf"))
    return layout.unpad(
        F.scaled_dot_product_attention(layout.pad(q), layout.pad(k), layout.pad(v), attn_mask=mask, dropout_p=dropout)
    )


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor | None, dropout: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    assert isinstance(layout, Packed)
    assert bias is None
    assert dropout == 0.0
    out = varlen_attn(q, k, v, layout.starts, layout.starts, layout.length, layout.length)
    assert isinstance(out, Tensor)  # it returns more only when asked to
    return out


def _flex(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor | None, dropout: float) -> Tensor:
    assert isinstance(layout, Packed)
    assert dropout == 0.0
    column = layout.column

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        return score + bias[head, column[query], column[key]]

    rows = (x.transpose(0, 1)[None] for x in (q, k, v))  # (1, N, T, D)
    out = _compiled_flex()(*rows, score_mod=None if bias is None else add_bias, block_mask=layout.flex_mask)
    return out[0].transpose(0, 1)


_BACKENDS: dict[str, Callable[[Tensor, Tensor, Tensor, Layout, Tensor | None, float], Tensor]] = {
    "eager": _eager,
    "sdpa": _sdpa,
    "varlen": _varlen,
    "flex": _flex,
}


@cache
def _has_varlen() -> bool:
    try:
        import torch.nn.attention.varlen  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
