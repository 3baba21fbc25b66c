"""The layer kernels in plain torch: for machines without a GPU, and to hold the Triton kernels against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.model.attention import attend as plain_attend
from litebert.model.backends.fp8 import FLOAT8, FLOAT8_MAX, Float8Matrix
from litebert.model.layout import Layout


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, save: bool, fp8: bool
) -> tuple[Tensor, ...]:
    total = x + residual
    wide = total.to(weight.dtype)
    mean = wide.mean(-1)
    rstd = (wide.var(-1, correction=0) + eps).rsqrt()
    out = F.layer_norm(wide, weight.shape, weight, bias, eps)
    return out.to(x.dtype), rounded(out) if fp8 else out.to(x.dtype), total, mean, rstd


def rounded(x: Tensor) -> Tensor:
    return x.clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8)


def norm_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.zeros(2, 3, columns, dtype=torch.float64, device=device)


def norm_backward(
    grad: Tensor, extra: Tensor | None, total: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, sums: Tensor,
    fp8: bool,
) -> tuple[Tensor, Float8Matrix | None, Tensor | None]:  # fmt: skip
    normed = (total.to(weight.dtype) - mean[:, None]) * rstd[:, None]
    grad_out = grad.to(weight.dtype)
    if extra is not None:
        grad_out = grad_out + extra
    sums[0, 0] += (grad_out * normed).sum(0)
    sums[0, 1] += grad_out.sum(0)
    grad_out = grad_out * weight
    grad_in = (grad_out - normed * (grad_out * normed).mean(-1, keepdim=True) - grad_out.mean(-1, keepdim=True)) * rstd[
        :, None
    ]
    sums[0, 2] += grad_in.sum(0)
    if not fp8:
        return grad_in.to(grad.dtype), None, None
    scale = grad_in.abs().amax(1, keepdim=True).float().clamp(min=1e-30) / FLOAT8_MAX
    return (
        grad_in.to(grad.dtype),
        Float8Matrix(rounded(grad_in / scale), scale),
        grad_in.norm(dim=1, keepdim=True).float(),
    )


def column_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.zeros(2, columns, dtype=torch.float64, device=device)


def gelu(x: Tensor, tanh: bool, fp8: bool = False) -> Tensor:
    out = F.gelu(x, approximate="tanh" if tanh else "none")
    return rounded(out) if fp8 else out


def product_gelu(bias: Tensor, left: Tensor, right: Tensor, tanh: bool) -> Tensor:
    return gelu(torch.addmm(bias, left, right), tanh)


def gelu_backward(
    x: Tensor, grad: Tensor, tanh: bool, sums: Tensor, row_norm: Tensor | None = None, grad_bound: Tensor | None = None
) -> Float8Matrix | None:
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        out = gelu(leaf, tanh)
    grad.copy_(torch.autograd.grad(out, leaf, grad.clone())[0])
    x.copy_(out.detach())
    sums[1] += grad.sum(0)
    if row_norm is None or grad_bound is None:
        return None
    scale = (row_norm * grad_bound).clamp(min=1e-30) / FLOAT8_MAX
    assert (grad.abs() <= row_norm * grad_bound).all()
    return Float8Matrix(rounded(grad / scale), scale)


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
    qkv: Tensor, context: Tensor, logsumexps: None, layout: Layout, heads: int, grad: Tensor, sums: Tensor
) -> Tensor:
    with torch.enable_grad():
        leaf = qkv.detach().requires_grad_()
        out, _ = attend(leaf, layout, heads)
    torch.testing.assert_close(out.detach(), context)
    (grad_qkv,) = torch.autograd.grad(out, leaf, grad)
    sums[0] += grad_qkv.sum(0)[: sums.shape[1]]
    return grad_qkv


def token_loss(scores: Tensor, labels: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor]:
    losses = F.cross_entropy(scores, labels, reduction="none")
    right = (scores.argmax(-1) == labels).to(losses.dtype)
    if needs_grad:
        has_label = labels >= 0
        grad = scores.softmax(-1) - F.one_hot(labels.clamp(min=0), scores.shape[1])
        scores.copy_(grad * has_label[:, None])
    return losses, right
