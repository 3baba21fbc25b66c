"""Attention within each sequence: three interchangeable implementations, one place that chooses.

Shapes: B sequences, L columns of the longest, T tokens laid out in rows, N heads, D channels per head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.model.layout import Layout, Packed

MAX_EAGER_SCORES = 1 << 22
"""Scores per head that attention may write out where it need not: 8 MB in bf16."""

AttentionImplementation = Literal["auto", "eager", "sdpa", "varlen"]
"""`eager` is the formula, `sdpa` torch's fused kernel, `varlen` its variable-length kernel for packed sequences, and
`auto` the fastest that computes the case."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    implementation: AttentionImplementation = "auto",
) -> Tensor:
    """Scaled dot-product attention within each sequence: (T, N, D) in, (T, N, D) out.

    `bias`, (N, L, L), is added to the scores by column, the same for every sequence.
    """
    if implementation == "auto":
        implementation = choose_attention(q.dtype, q.is_cuda, layout, bias, dropout)
    return _IMPLEMENTATIONS[implementation](q, k, v, layout, bias, dropout)


def choose_attention(
    dtype: torch.dtype, is_cuda: bool, layout: Layout, bias: Tensor | None, dropout: float
) -> AttentionImplementation:
    """The fastest implementation that computes this case; SDPA computes every case."""
    half = dtype in (torch.bfloat16, torch.float16)
    if isinstance(layout, Packed) and is_cuda and half and bias is None and dropout == 0.0 and _has_varlen():
        return "varlen"
    if half and not is_cuda and layout.batch * layout.length**2 <= MAX_EAGER_SCORES:
        return "eager"  # the fused kernel's backward is two to seven times slower there
    return "sdpa"


def relative_position_bias(table: Tensor, length: int) -> Tensor:  # (2 * distance + 1, N) -> (N, L, L)
    """The learned bias of each head for every query and key, by their distance; far ones share the last."""
    limit = len(table) // 2
    column = torch.arange(length, device=table.device)
    distance = (column[:, None] - column[None, :]).clamp(-limit, limit) + limit
    return table[distance].permute(2, 0, 1)


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


_IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Layout, Tensor | None, float], Tensor]] = {
    "eager": _eager,
    "sdpa": _sdpa,
    "varlen": _varlen,
}


@cache
def _has_varlen() -> bool:
    try:
        import torch.nn.attention.varlen  # noqa: F401
    except ImportError:
        return False
    return True
