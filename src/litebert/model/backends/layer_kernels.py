"""Triton kernels for what lies between the matrix products of a layer, each with the bias gradient that it can sum.

All work on rows, (T, C) contiguous, in the rows' own type with float32 inside. Sums over the rows are added to `sums`,
float32, of which every program has a row: no two write to one place, so results do not depend on which is faster, and
the passes of a layer add to the same buffer.

Shapes: T rows, C columns, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from litebert.model.backends.fp8 import FLOAT8, Float8Matrix

MAX_PROGRAMS = 2048  # that share the rows of a sum
MIN_ROWS_PER_PROGRAM = 8  # at least
TILE_ROWS, TILE_COLUMNS = 8, 256  # of a tile that is summed column by column


@triton.jit
def _to_float8(values):
    """With the scale 1."""
    return tl.minimum(tl.maximum(values, -448.0), 448.0).to(tl.float8e4nv)


@triton.jit
def _add_norm(x, residual, weight, bias, out, quantized, mean, rstd, eps,
              SAVE: tl.constexpr, QUANTIZE: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    at = row * C + column
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32) + tl.load(residual + at, mask=inside, other=0)
    if SAVE:
        tl.store(x + at, value.to(x.dtype.element_ty), mask=inside)
    average = tl.sum(value, axis=0) / C
    value = tl.where(inside, value - average, 0.0)
    factor = tl.rsqrt(tl.sum(value * value, axis=0) / C + eps)
    normed = value * factor * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)
    if QUANTIZE:
        tl.store(quantized + at, _to_float8(normed), mask=inside)
    if SAVE:
        tl.store(mean + row, average)
        tl.store(rstd + row, factor)


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, save: bool, fp8: bool
) -> tuple[Tensor, ...]:
    """LayerNorm of the sum; the same as an operand of matrix products, in fp8 if they want it; and what the backward
    needs: the sum, which overwrites `x`, its mean and 1 / standard deviation."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    quantized = torch.empty_like(x, dtype=FLOAT8) if fp8 else out
    mean, rstd = (torch.empty(rows if save else 0, dtype=torch.float32, device=x.device) for _ in range(2))
    block = triton.next_power_of_2(columns)
    _add_norm[(rows,)](
        x, residual, weight, bias, out, quantized, mean, rstd, eps, SAVE=save, QUANTIZE=fp8, C=columns, BLOCK=block,
        num_warps=max(1, block // 1024),
    )  # fmt: skip
    return out, quantized, x, mean, rstd


@triton.jit(do_not_specialize=["rows"])
def _norm_backward(grad, extra, total, weight, mean, rstd, out, quantized, scale, row_norm, sums, rows,
                   EXTRA: tl.constexpr, QUANTIZE: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < C
    by = tl.load(weight + column, mask=inside, other=0)
    grad_weight = tl.zeros([BLOCK], tl.float32)
    grad_bias = tl.zeros([BLOCK], tl.float32)
    grad_bias_before = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = row * tl.cast(C, tl.int64) + column
        grad_out = tl.load(grad + at, mask=inside, other=0).to(tl.float32)
        if EXTRA:
            grad_out += tl.load(extra + at, mask=inside, other=0)
        factor = tl.load(rstd + row)
        normed = (tl.load(total + at, mask=inside, other=0).to(tl.float32) - tl.load(mean + row)) * factor
        normed = tl.where(inside, normed, 0.0)
        grad_weight += grad_out * normed
        grad_bias += grad_out
        grad_out *= by
        value = (grad_out - normed * (tl.sum(grad_out * normed, axis=0) / C) - tl.sum(grad_out, axis=0) / C) * factor
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
        value = tl.where(inside, value, 0.0)
        grad_bias_before += value
        if QUANTIZE:
            one = tl.maximum(tl.max(tl.abs(value), axis=0), 1e-30) / 448.0
            tl.store(quantized + at, _to_float8(value / one), mask=inside)
            tl.store(scale + row, one)
            tl.store(row_norm + row, tl.sqrt(tl.sum(value * value, axis=0)))
    sums_row = sums + program * 3 * C + column
    tl.store(sums_row, tl.load(sums_row, mask=inside) + grad_weight, mask=inside)
    tl.store(sums_row + C, tl.load(sums_row + C, mask=inside) + grad_bias, mask=inside)
    tl.store(sums_row + 2 * C, tl.load(sums_row + 2 * C, mask=inside) + grad_bias_before, mask=inside)


def norm_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    """Buffer for the sums of `norm_backward`: of weight, bias, and of the bias of the matrix product before."""
    return torch.zeros(_num_programs(rows, MAX_PROGRAMS), 3, columns, device=device)


def norm_backward(
    grad: Tensor, extra: Tensor | None, total: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, sums: Tensor,
    fp8: bool,
) -> tuple[Tensor, Float8Matrix | None, Tensor | None]:  # fmt: skip
    """The gradient of the input, from that of the output: `grad`, plus `extra` if there is any.

    With `fp8` also in fp8, and the norm of each row.
    """
    rows, columns = grad.shape
    out = torch.empty_like(grad)
    quantized = Float8Matrix(torch.empty_like(grad, dtype=FLOAT8), _column(grad)) if fp8 else None
    row_norm = _column(grad) if fp8 else None
    block = triton.next_power_of_2(columns)
    _norm_backward[(min(rows, len(sums)),)](
        grad, extra, total, weight, mean, rstd, out, *(quantized or (None, None)), row_norm, sums, rows,
        EXTRA=extra is not None, QUANTIZE=fp8, C=columns, BLOCK=block, num_warps=max(1, block // 1024),
    )  # fmt: skip
    return out, quantized, row_norm


def _column(x: Tensor) -> Tensor:  # (T, 1)
    return torch.empty(len(x), 1, dtype=torch.float32, device=x.device)


def _num_programs(rows: int, most: int) -> int:
    return max(1, min(most, triton.cdiv(rows, MIN_ROWS_PER_PROGRAM)))


@triton.jit
def _gelu_gate(x, TANH: tl.constexpr):
    """The factor by which GELU multiplies x, and its derivative."""
    if TANH:
        gate = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        grad = gate * (1 - gate) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    else:
        gate = 0.5 * (1 + tl.erf(0.7071067811865476 * x))
        grad = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return gate, grad


@triton.jit
def _gelu(x, out, count, TANH: tl.constexpr, QUANTIZE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    gate, _ = _gelu_gate(value, TANH)
    value *= gate
    tl.store(out + at, _to_float8(value) if QUANTIZE else value.to(out.dtype.element_ty), mask=inside)


def gelu(x: Tensor, tanh: bool, fp8: bool = False) -> Tensor:
    """In fp8 if asked for."""
    out = torch.empty_like(x, dtype=FLOAT8 if fp8 else None)
    _gelu[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), TANH=tanh, QUANTIZE=fp8, BLOCK=4096, num_warps=8)
    return out


def product_gelu(bias: Tensor, left: Tensor, right: Tensor, tanh: bool) -> Tensor:
    """GELU of a matrix product and a bias; the approximation is what cuBLAS computes before it writes."""
    if tanh:
        return torch._addmm_activation(bias, left, right, use_gelu=True)
    return gelu(torch.addmm(bias, left, right), tanh)


@triton.jit
def _tile(row, column, rows, C: tl.constexpr):
    """The offsets of these rows and columns, and which of them exist."""
    inside = (row < rows)[:, None] & (column < C)[None, :]
    return row[:, None] * tl.cast(C, tl.int64) + column[None, :], inside


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(x, grad, sums, quantized, scale, row_norm, grad_bound, rows, C: tl.constexpr,
                   TANH: tl.constexpr, QUANTIZE: tl.constexpr,
                   TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr):  # fmt: skip
    column = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    summed = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    for first in range(tl.program_id(1) * TILE_ROWS, rows, tl.num_programs(1) * TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        at, inside = _tile(row, column, rows, C)
        value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
        grad_out = tl.load(grad + at, mask=inside, other=0).to(tl.float32)
        gate, gate_grad = _gelu_gate(value, TANH)
        grad_out *= gate + value * gate_grad
        tl.store(grad + at, grad_out.to(grad.dtype.element_ty), mask=inside)
        tl.store(x + at, (value * gate).to(x.dtype.element_ty), mask=inside)
        summed += grad_out
        if QUANTIZE:
            one = tl.maximum(tl.load(row_norm + row, mask=row < rows, other=0) * tl.load(grad_bound), 1e-30) / 448.0
            tl.store(quantized + at, _to_float8(grad_out / one[:, None]), mask=inside)
            if tl.program_id(0) == 0:
                tl.store(scale + row, one, mask=row < rows)
    _add_columns(sums, tl.program_id(1), column, summed, C)


@triton.jit
def _add_columns(sums, row, column, summed, C: tl.constexpr):
    sums_row = sums + row * C + column
    tl.store(sums_row, tl.load(sums_row, mask=column < C) + tl.sum(summed, axis=0), mask=column < C)


def column_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    """Buffer for sums over rows, column by column."""
    return torch.zeros(_num_programs(rows, MAX_PROGRAMS // triton.cdiv(columns, TILE_COLUMNS)), columns, device=device)


def gelu_backward(
    x: Tensor, grad: Tensor, tanh: bool, sums: Tensor, row_norm: Tensor | None = None, grad_bound: Tensor | None = None
) -> Float8Matrix | None:
    """In place: the output of GELU overwrites `x`, its input, and the gradient of the input overwrites `grad`.

    Also in fp8, if `row_norm` times `grad_bound` bounds the gradients of each row.
    """
    rows, columns = x.shape
    programs = min(len(sums), triton.cdiv(rows, TILE_ROWS))
    quantized = None if row_norm is None else Float8Matrix(torch.empty_like(x, dtype=FLOAT8), _column(x))
    _gelu_backward[(triton.cdiv(columns, TILE_COLUMNS), programs)](
        x, grad, sums, *(quantized or (None, None)), row_norm, grad_bound, rows,
        C=columns, TANH=tanh, QUANTIZE=quantized is not None, TILE_ROWS=TILE_ROWS, TILE_COLUMNS=TILE_COLUMNS,
        num_warps=8,
    )  # fmt: skip
    return quantized


@triton.jit(do_not_specialize=["rows"])
def _sum_rows(x, sums, rows, C: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr):
    column = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    summed = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    for first in range(tl.program_id(1) * TILE_ROWS, rows, tl.num_programs(1) * TILE_ROWS):
        at, inside = _tile(first + tl.arange(0, TILE_ROWS), column, rows, C)
        summed += tl.load(x + at, mask=inside, other=0).to(tl.float32)
    _add_columns(sums, tl.program_id(1), column, summed, C)


def sum_rows(x: Tensor, sums: Tensor) -> None:
    rows, columns = x.shape
    programs = min(len(sums), triton.cdiv(rows, TILE_ROWS))
    _sum_rows[(triton.cdiv(columns, TILE_COLUMNS), programs)](
        x, sums, rows, C=columns, TILE_ROWS=TILE_ROWS, TILE_COLUMNS=TILE_COLUMNS, num_warps=8
    )


@triton.jit
def _token_loss(scores, labels, losses, right, V: tl.constexpr, NEEDS_GRAD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    highest = tl.full((), -float("inf"), tl.float32)
    where = tl.full((), 0, tl.int32)
    total = tl.full((), 0.0, tl.float32)
    own = tl.full((), 0.0, tl.float32)
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(scores + row * V + column, mask=column < V, other=-float("inf")).to(tl.float32)
        peak = tl.max(value, axis=0)
        where = tl.where(peak > highest, first + tl.argmax(value, axis=0).to(tl.int32), where)
        rise = tl.maximum(highest, peak)
        total = total * tl.exp(highest - rise) + tl.sum(tl.exp(value - rise), axis=0)
        highest = rise
        own += tl.sum(tl.where(column == label, value, 0.0), axis=0)
    has_label = label >= 0
    tl.store(losses + row, tl.where(has_label, highest + tl.log(total) - own, 0.0))
    tl.store(right + row, (has_label & (where == label)).to(tl.float32))
    if NEEDS_GRAD:
        by = tl.where(has_label, 1.0 / total, 0.0)
        for first in range(0, V, BLOCK):
            column = first + tl.arange(0, BLOCK)
            value = tl.load(scores + row * V + column, mask=column < V, other=-float("inf")).to(tl.float32)
            grad = tl.exp(value - highest) * by - tl.where(has_label & (column == label), 1.0, 0.0)
            tl.store(scores + row * V + column, grad.to(scores.dtype.element_ty), mask=column < V)


def token_loss(scores: Tensor, labels: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor]:
    """(M,) the cross entropy of each row, and 1 where the highest score is the label's; 0 for labels below 0.

    With `needs_grad` the gradient of their sum overwrites the scores.
    """
    rows, size = scores.shape
    losses, right = (torch.empty(rows, dtype=torch.float32, device=scores.device) for _ in range(2))
    _token_loss[(rows,)](scores, labels, losses, right, V=size, NEEDS_GRAD=needs_grad, BLOCK=4096, num_warps=8)
    return losses, right
