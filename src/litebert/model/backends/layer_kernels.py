"""Triton kernels for what lies between the matrix products of a layer, each with the bias gradient it has at hand.

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

from litebert.model.backends.fp8 import EIGHT, Eight

PROGRAMS = 2048  # that share the rows where sums are made, at most
ROWS_EACH = 8  # that a program has at least
TALL, WIDE = 8, 256  # a tile of what is summed column by column


@triton.jit
def _to_eight(values):
    """Of which one is worth one."""
    return tl.minimum(tl.maximum(values, -448.0), 448.0).to(tl.float8e4nv)


@triton.jit
def _add_norm(x, residual, weight, bias, out, small, mean, scale, eps,
              KEEPS: tl.constexpr, SMALL: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    at = row * C + column
    here = tl.load(x + at, mask=inside, other=0).to(tl.float32) + tl.load(residual + at, mask=inside, other=0)
    if KEEPS:
        tl.store(x + at, here.to(x.dtype.element_ty), mask=inside)
    middle = tl.sum(here, axis=0) / C
    here = tl.where(inside, here - middle, 0.0)
    factor = tl.rsqrt(tl.sum(here * here, axis=0) / C + eps)
    normed = here * factor * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)
    if SMALL:
        tl.store(small + at, _to_eight(normed), mask=inside)
    if KEEPS:
        tl.store(mean + row, middle)
        tl.store(scale + row, factor)


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, keeps: bool, eight: bool
) -> tuple[Tensor, ...]:
    """LayerNorm of the sum; the same for matrix products, in eight bits if they want it so; and what its backward
    needs: the sum, in the place of `x`, its mean and 1/deviation."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    small = torch.empty_like(x, dtype=EIGHT) if eight else out
    mean, scale = (torch.empty(rows if keeps else 0, dtype=torch.float32, device=x.device) for _ in range(2))
    block = triton.next_power_of_2(columns)
    _add_norm[(rows,)](
        x, residual, weight, bias, out, small, mean, scale, eps, KEEPS=keeps, SMALL=eight, C=columns, BLOCK=block,
        num_warps=max(1, block // 1024),
    )  # fmt: skip
    return out, small, x, mean, scale


@triton.jit(do_not_specialize=["rows"])
def _norm_backward(slope, more, total, weight, mean, scale, out, small, unit, length, sums, rows,
                   MORE: tl.constexpr, SMALL: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < C
    by = tl.load(weight + column, mask=inside, other=0)
    to_weight = tl.zeros([BLOCK], tl.float32)
    to_bias = tl.zeros([BLOCK], tl.float32)
    to_before = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = row * tl.cast(C, tl.int64) + column
        above = tl.load(slope + at, mask=inside, other=0).to(tl.float32)
        if MORE:
            above += tl.load(more + at, mask=inside, other=0)
        factor = tl.load(scale + row)
        normed = (tl.load(total + at, mask=inside, other=0).to(tl.float32) - tl.load(mean + row)) * factor
        normed = tl.where(inside, normed, 0.0)
        to_weight += above * normed
        to_bias += above
        above *= by
        here = (above - normed * (tl.sum(above * normed, axis=0) / C) - tl.sum(above, axis=0) / C) * factor
        tl.store(out + at, here.to(out.dtype.element_ty), mask=inside)
        here = tl.where(inside, here, 0.0)
        to_before += here
        if SMALL:
            one = tl.maximum(tl.max(tl.abs(here), axis=0), 1e-30) / 448.0
            tl.store(small + at, _to_eight(here / one), mask=inside)
            tl.store(unit + row, one)
            tl.store(length + row, tl.sqrt(tl.sum(here * here, axis=0)))
    place = sums + program * 3 * C + column
    tl.store(place, tl.load(place, mask=inside) + to_weight, mask=inside)
    tl.store(place + C, tl.load(place + C, mask=inside) + to_bias, mask=inside)
    tl.store(place + 2 * C, tl.load(place + 2 * C, mask=inside) + to_before, mask=inside)


def norm_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    """A place for the sums of `norm_backward`: of weight, bias, and of the bias of the matrix product before."""
    return torch.zeros(_programs(rows, PROGRAMS), 3, columns, device=device)


def norm_backward(
    slope: Tensor, more: Tensor | None, total: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, sums: Tensor,
    eight: bool,
) -> tuple[Tensor, Eight | None, Tensor | None]:  # fmt: skip
    """The slope of what went in, from `slope`, and `more` if there is some, of what came out.

    Where `eight` asks for it, also in eight bits, with the length of each row.
    """
    rows, columns = slope.shape
    out = torch.empty_like(slope)
    small = Eight(torch.empty_like(slope, dtype=EIGHT), _column(slope)) if eight else None
    length = _column(slope) if eight else None
    block = triton.next_power_of_2(columns)
    _norm_backward[(min(rows, len(sums)),)](
        slope, more, total, weight, mean, scale, out, *(small or (None, None)), length, sums, rows,
        MORE=more is not None, SMALL=eight, C=columns, BLOCK=block, num_warps=max(1, block // 1024),
    )  # fmt: skip
    return out, small, length


def _column(x: Tensor) -> Tensor:  # (T, 1)
    return torch.empty(len(x), 1, dtype=torch.float32, device=x.device)


def _programs(rows: int, most: int) -> int:
    return max(1, min(most, triton.cdiv(rows, ROWS_EACH)))


@triton.jit
def _bend(x, TANH: tl.constexpr):
    """How much of x is let through, and the slope of that."""
    if TANH:
        through = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        slope = through * (1 - through) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    else:
        through = 0.5 * (1 + tl.erf(0.7071067811865476 * x))
        slope = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return through, slope


@triton.jit
def _gelu(x, out, count, TANH: tl.constexpr, SMALL: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    here = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    through, _ = _bend(here, TANH)
    here *= through
    tl.store(out + at, _to_eight(here) if SMALL else here.to(out.dtype.element_ty), mask=inside)


def gelu(x: Tensor, tanh: bool, eight: bool = False) -> Tensor:
    """In eight bits if that is wanted."""
    out = torch.empty_like(x, dtype=EIGHT if eight else None)
    _gelu[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), TANH=tanh, SMALL=eight, BLOCK=4096, num_warps=8)
    return out


def product_gelu(bias: Tensor, left: Tensor, right: Tensor, tanh: bool) -> Tensor:
    """GELU of a matrix product and a bias; the approximation is what cuBLAS computes before it writes."""
    if tanh:
        return torch._addmm_activation(bias, left, right, use_gelu=True)
    return gelu(torch.addmm(bias, left, right), tanh)


@triton.jit
def _tile(row, column, rows, C: tl.constexpr):
    """Where these rows and columns stand, and which of them there are."""
    inside = (row < rows)[:, None] & (column < C)[None, :]
    return row[:, None] * tl.cast(C, tl.int64) + column[None, :], inside


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(x, slope, sums, small, unit, length, reach, rows, C: tl.constexpr,
                   TANH: tl.constexpr, SMALL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    summed = tl.zeros([TALL, WIDE], tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + tl.arange(0, TALL)
        at, inside = _tile(row, column, rows, C)
        here = tl.load(x + at, mask=inside, other=0).to(tl.float32)
        above = tl.load(slope + at, mask=inside, other=0).to(tl.float32)
        through, steep = _bend(here, TANH)
        above *= through + here * steep
        tl.store(slope + at, above.to(slope.dtype.element_ty), mask=inside)
        tl.store(x + at, (here * through).to(x.dtype.element_ty), mask=inside)
        summed += above
        if SMALL:
            one = tl.maximum(tl.load(length + row, mask=row < rows, other=0) * tl.load(reach), 1e-30) / 448.0
            tl.store(small + at, _to_eight(above / one[:, None]), mask=inside)
            if tl.program_id(0) == 0:
                tl.store(unit + row, one, mask=row < rows)
    _add_columns(sums, tl.program_id(1), column, summed, C)


@triton.jit
def _add_columns(sums, row, column, summed, C: tl.constexpr):
    place = sums + row * C + column
    tl.store(place, tl.load(place, mask=column < C) + tl.sum(summed, axis=0), mask=column < C)


def column_sums(rows: int, columns: int, device: torch.device) -> Tensor:
    """A place for sums over rows, column by column."""
    return torch.zeros(_programs(rows, PROGRAMS // triton.cdiv(columns, WIDE)), columns, device=device)


def gelu_backward(
    x: Tensor, slope: Tensor, tanh: bool, sums: Tensor, length: Tensor | None = None, reach: Tensor | None = None
) -> Eight | None:
    """In place: what came out of GELU takes the place of `x`, which went in, and its slope that of `slope`.

    Also in eight bits, where `length` times `reach` says for each row what no slope in it exceeds.
    """
    rows, columns = x.shape
    programs = min(len(sums), triton.cdiv(rows, TALL))
    small = None if length is None else Eight(torch.empty_like(x, dtype=EIGHT), _column(x))
    _gelu_backward[(triton.cdiv(columns, WIDE), programs)](
        x, slope, sums, *(small or (None, None)), length, reach, rows,
        C=columns, TANH=tanh, SMALL=small is not None, TALL=TALL, WIDE=WIDE, num_warps=8,
    )  # fmt: skip
    return small


@triton.jit(do_not_specialize=["rows"])
def _sum_rows(x, sums, rows, C: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    summed = tl.zeros([TALL, WIDE], tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        at, inside = _tile(first + tl.arange(0, TALL), column, rows, C)
        summed += tl.load(x + at, mask=inside, other=0).to(tl.float32)
    _add_columns(sums, tl.program_id(1), column, summed, C)


def sum_rows(x: Tensor, sums: Tensor) -> None:
    rows, columns = x.shape
    programs = min(len(sums), triton.cdiv(rows, TALL))
    _sum_rows[(triton.cdiv(columns, WIDE), programs)](x, sums, rows, C=columns, TALL=TALL, WIDE=WIDE, num_warps=8)


@triton.jit
def _token_loss(scores, labels, losses, right, V: tl.constexpr, LEARNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    highest = tl.full((), -float("inf"), tl.float32)
    where = tl.full((), 0, tl.int32)
    total = tl.full((), 0.0, tl.float32)
    own = tl.full((), 0.0, tl.float32)
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        here = tl.load(scores + row * V + column, mask=column < V, other=-float("inf")).to(tl.float32)
        peak = tl.max(here, axis=0)
        where = tl.where(peak > highest, first + tl.argmax(here, axis=0).to(tl.int32), where)
        rise = tl.maximum(highest, peak)
        total = total * tl.exp(highest - rise) + tl.sum(tl.exp(here - rise), axis=0)
        highest = rise
        own += tl.sum(tl.where(column == label, here, 0.0), axis=0)
    asked = label >= 0
    tl.store(losses + row, tl.where(asked, highest + tl.log(total) - own, 0.0))
    tl.store(right + row, (asked & (where == label)).to(tl.float32))
    if LEARNS:
        by = tl.where(asked, 1.0 / total, 0.0)
        for first in range(0, V, BLOCK):
            column = first + tl.arange(0, BLOCK)
            here = tl.load(scores + row * V + column, mask=column < V, other=-float("inf")).to(tl.float32)
            slope = tl.exp(here - highest) * by - tl.where(asked & (column == label), 1.0, 0.0)
            tl.store(scores + row * V + column, slope.to(scores.dtype.element_ty), mask=column < V)


def token_loss(scores: Tensor, labels: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
    """(M,) the cross entropy of each row, and 1 where the highest score is the label's; 0 for labels below 0.

    Where something is to be learned, the slope of the sum of them takes the place of the scores.
    """
    rows, size = scores.shape
    losses, right = (torch.empty(rows, dtype=torch.float32, device=scores.device) for _ in range(2))
    _token_loss[(rows,)](scores, labels, losses, right, V=size, LEARNS=learns, BLOCK=4096, num_warps=8)
    return losses, right
