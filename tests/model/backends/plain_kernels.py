"""The layer kernels in plain torch: for machines without a GPU, and to hold the Triton kernels against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.model.attention import attend as plain_attend
from litebert.model.backends.fp8 import EIGHT, MOST, Eight
from litebert.model.layout import Layout


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, keeps: bool, eight: bool
) -> tuple[Tensor, ...]:
    total = x + residual
    wide = total.to(weight.dtype)
    mean = wide.mean(-1)
    scale = (wide.var(-1, correction=0) + eps).rsqrt()
    out = F.layer_norm(wide, weight.shape, weight, bias, eps)
    return out.to(x.dtype), rounded(out) if eight else out.to(x.dtype), total, mean, scale


def rounded(x: Tensor) -> Tensor:
    return x.clamp(-MOST, MOST).to(EIGHT)


def norm_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.zeros(2, 3, columns, dtype=torch.float64, device=device)


def norm_backward(
    slope: Tensor, more: Tensor | None, total: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, sums: Tensor,
    eight: bool,
) -> tuple[Tensor, Eight | None, Tensor | None]:  # fmt: skip
    normed = (total.to(weight.dtype) - mean[:, None]) * scale[:, None]
    above = slope.to(weight.dtype)
    if more is not None:
        above = above + more
    sums[0, 0] += (above * normed).sum(0)
    sums[0, 1] += above.sum(0)
    above = above * weight
    here = (above - normed * (above * normed).mean(-1, keepdim=True) - above.mean(-1, keepdim=True)) * scale[:, None]
    sums[0, 2] += here.sum(0)
    if not eight:
        return here.to(slope.dtype), None, None
    unit = here.abs().amax(1, keepdim=True).float().clamp(min=1e-30) / MOST
    return here.to(slope.dtype), Eight(rounded(here / unit), unit), here.norm(dim=1, keepdim=True).float()


def column_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.zeros(2, columns, dtype=torch.float64, device=device)


def gelu(x: Tensor, tanh: bool, eight: bool = False) -> Tensor:
    out = F.gelu(x, approximate="tanh" if tanh else "none")
    return rounded(out) if eight else out


def product_gelu(bias: Tensor, left: Tensor, right: Tensor, tanh: bool) -> Tensor:
    return gelu(torch.addmm(bias, left, right), tanh)


def gelu_backward(
    x: Tensor, slope: Tensor, tanh: bool, sums: Tensor, length: Tensor | None = None, reach: Tensor | None = None
) -> Eight | None:
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        out = gelu(leaf, tanh)
    slope.copy_(torch.autograd.grad(out, leaf, slope.clone())[0])
    x.copy_(out.detach())
    sums[1] += slope.sum(0)
    if length is None or reach is None:
        return None
    unit = (length * reach).clamp(min=1e-30) / MOST
    assert (slope.abs() <= length * reach).all()
    return Eight(rounded(slope / unit), unit)


def sum_rows(x: Tensor, sums: Tensor) -> None:
    sums[1] += x.sum(0)


def can_attend(channels: int, device: torch.device) -> bool:
    return True


def attend(qkv: Tensor, layout: Layout, heads: int) -> tuple[Tensor, None]:
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)
    return plain_attend(q, k, v, layout, implementation="eager").flatten(-2), None


def query_sums(layout: Layout, columns: int, device: torch.device) -> Tensor:
    return torch.zeros(layout.batch, columns, dtype=torch.float64, device=device)


def attend_backward(
    qkv: Tensor, context: Tensor, peaks: None, layout: Layout, heads: int, slope: Tensor, sums: Tensor
) -> Tensor:
    with torch.enable_grad():
        leaf = qkv.detach().requires_grad_()
        out, _ = attend(leaf, layout, heads)
    torch.testing.assert_close(out.detach(), context)
    (to_qkv,) = torch.autograd.grad(out, leaf, slope)
    sums[0] += to_qkv.sum(0)[: sums.shape[1]]
    return to_qkv


def token_loss(scores: Tensor, labels: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
    losses = F.cross_entropy(scores, labels, reduction="none")
    right = (scores.argmax(-1) == labels).to(losses.dtype)
    if learns:
        asked = labels >= 0
        slope = scores.softmax(-1) - F.one_hot(labels.clamp(min=0), scores.shape[1])
        scores.copy_(slope * asked[:, None])
    return losses, right
