"""Triton kernels for attention within sequences, forward and backward, from one (T, 3 * N * D) matrix and back to it.

The output for a sequence of padding alone is undefined.

Shapes: T rows, N heads, D channels per head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from litebert.model.layout import Dense, Layout, Packed

MIN_SHARED_MEMORY = 160_000
"""Bytes of shared memory that a program may need; A100 and H100 have them."""
LOG2_E = 1.4426950408889634
MAX_TILE_LENGTH = 128  # up to which the scores of a sequence are one tile
TILE_SHAPES = {"attend": (128, 64, 4, 3), "to_queries": (128, 64, 4, 3), "to_keys": (64, 128, 4, 2)}
"""For longer sequences: rows of a program, rows of each of its steps, warps, stages."""


@triton.jit
def _program(starts, length, PACKED: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr):
    """The sequence, the head and the tile of a program; the start of the sequence and its length."""
    number, head, tile = tl.program_id(0) // (N * TILES), tl.program_id(0) // TILES % N, tl.program_id(0) % TILES
    if PACKED:
        first = tl.load(starts + number)
        length = tl.load(starts + number + 1) - first
    else:
        first = number * length
    return number, head, tile, first, length


@triton.jit
def _offsets(first, row, head, N: tl.constexpr, D: tl.constexpr):
    """Of a head's channels: in (T, N * D), and in (T, 3 * N * D), where keys and values follow N * D later each."""
    own_offset = (first + row)[:, None] * tl.cast(N * D, tl.int64) + head * D + tl.arange(0, D)[None, :]
    return own_offset, own_offset + (first + row)[:, None] * tl.cast(2 * N * D, tl.int64)


@triton.jit
def _keys_values(qkv, offset, inside, N: tl.constexpr, D: tl.constexpr):
    return tl.load(qkv + offset + N * D, mask=inside, other=0), tl.load(qkv + offset + 2 * N * D, mask=inside, other=0)


@triton.jit
def _visible(mask, number, key, length, MASKED: tl.constexpr):
    inside = key < length
    if MASKED:
        return tl.load(mask + number * length + key, mask=inside, other=0) != 0
    return inside


@triton.jit(do_not_specialize=["length"])
def _attend_short(qkv, out, logsumexps, starts, mask, length, log2_scale, PACKED: tl.constexpr, MASKED: tl.constexpr,
                  N: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    number, head, _, first, length = _program(starts, length, PACKED, N, 1)
    row = tl.arange(0, TILE)
    real = row < length
    own_offset, offset = _offsets(first, row, head, N, D)
    q = tl.load(qkv + offset, mask=real[:, None], other=0)
    k, v = _keys_values(qkv, offset, real[:, None], N, D)
    visible = _visible(mask, number, row, length, MASKED)
    scores = tl.where(visible[None, :], tl.dot(q, tl.trans(k)) * log2_scale, -1e30)
    highest = tl.max(scores, axis=1)
    scores = tl.exp2(scores - highest[:, None])
    total = tl.sum(scores, axis=1)
    context = tl.dot(scores.to(v.dtype), v) / total[:, None]
    tl.store(out + own_offset, context.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(logsumexps + (first + row) * N + head, highest + tl.log2(total), mask=real)


@triton.jit(do_not_specialize=["length"])
def _attend_short_backward(qkv, context, grad, out, sums, logsumexps, starts, mask, length, log2_scale, scale,
                           PACKED: tl.constexpr, MASKED: tl.constexpr,
                           N: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    number, head, _, first, length = _program(starts, length, PACKED, N, 1)
    row = tl.arange(0, TILE)
    real = row < length
    own_offset, offset = _offsets(first, row, head, N, D)
    q = tl.load(qkv + offset, mask=real[:, None], other=0)
    k, v = _keys_values(qkv, offset, real[:, None], N, D)
    grad_out = tl.load(grad + own_offset, mask=real[:, None], other=0)
    output = tl.load(context + own_offset, mask=real[:, None], other=0)
    delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), axis=1)
    logsumexp = tl.load(logsumexps + (first + row) * N + head, mask=real, other=0)
    visible = _visible(mask, number, row, length, MASKED)
    # (keys, queries): only one product needs a transpose
    scores = tl.where(visible[:, None], tl.dot(k, tl.trans(q)) * log2_scale, -1e30)
    weights = tl.exp2(scores - logsumexp[None, :])
    grad_v = tl.dot(weights.to(v.dtype), grad_out)
    tl.store(out + offset + 2 * N * D, grad_v.to(out.dtype.element_ty), mask=real[:, None])
    grad_scores = weights * (tl.dot(v, tl.trans(grad_out)) - delta[None, :]) * scale
    grad_scores = grad_scores.to(q.dtype)
    grad_k = tl.dot(grad_scores, q)
    tl.store(out + offset + N * D, grad_k.to(out.dtype.element_ty), mask=real[:, None])
    grad_q = tl.dot(tl.trans(grad_scores), k)
    tl.store(out + offset, grad_q.to(out.dtype.element_ty), mask=real[:, None])
    sums_row = sums + tl.program_id(0) * D + tl.arange(0, D)
    tl.store(sums_row, tl.load(sums_row) + tl.sum(grad_q, axis=0))


@triton.jit(do_not_specialize=["length"])
def _attend_long(qkv, out, logsumexps, starts, mask, length, log2_scale,
                 PACKED: tl.constexpr, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
                 TILES: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    number, head, tile, first, length = _program(starts, length, PACKED, N, TILES)
    row = tile * ROWS + tl.arange(0, ROWS)
    real = row < length
    own_offset, offset = _offsets(first, row, head, N, D)
    q = tl.load(qkv + offset, mask=real[:, None], other=0)
    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, D], tl.float32)
    if tile * ROWS < length:
        for start in range(0, length, STEP):
            key = start + tl.arange(0, STEP)
            inside = (key < length)[:, None]
            _, key_offset = _offsets(first, key, head, N, D)
            k, v = _keys_values(qkv, key_offset, inside, N, D)
            visible = _visible(mask, number, key, length, MASKED)
            scores = tl.where(visible[None, :], tl.dot(q, tl.trans(k)) * log2_scale, -1e30)
            new_highest = tl.maximum(highest, tl.max(scores, axis=1))
            rescale = tl.exp2(highest - new_highest)
            scores = tl.exp2(scores - new_highest[:, None])
            total = total * rescale + tl.sum(scores, axis=1)
            summed = tl.dot(scores.to(v.dtype), v, summed * rescale[:, None])
            highest = new_highest
    tl.store(out + own_offset, (summed / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])
    tl.store(logsumexps + (first + row) * N + head, highest + tl.log2(total), mask=real)


@triton.jit(do_not_specialize=["length"])
def _queries_backward(qkv, context, grad, out, sums, logsumexps, deltas, starts, mask, length, log2_scale, scale,
                PACKED: tl.constexpr, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
                TILES: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    number, head, tile, first, length = _program(starts, length, PACKED, N, TILES)
    row = tile * ROWS + tl.arange(0, ROWS)
    real = row < length
    if tile * ROWS < length:
        own_offset, offset = _offsets(first, row, head, N, D)
        q = tl.load(qkv + offset, mask=real[:, None], other=0)
        grad_out = tl.load(grad + own_offset, mask=real[:, None], other=0)
        output = tl.load(context + own_offset, mask=real[:, None], other=0)
        delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), axis=1)
        tl.store(deltas + (first + row) * N + head, delta, mask=real)
        logsumexp = tl.load(logsumexps + (first + row) * N + head, mask=real, other=0)
        summed = tl.zeros([ROWS, D], tl.float32)
        for start in range(0, length, STEP):
            key = start + tl.arange(0, STEP)
            inside = (key < length)[:, None]
            _, key_offset = _offsets(first, key, head, N, D)
            k, v = _keys_values(qkv, key_offset, inside, N, D)
            visible = _visible(mask, number, key, length, MASKED)
            scores = tl.where(visible[None, :], tl.dot(q, tl.trans(k)) * log2_scale, -1e30)
            grad_scores = tl.exp2(scores - logsumexp[:, None]) * (tl.dot(grad_out, tl.trans(v)) - delta[:, None])
            summed = tl.dot(grad_scores.to(k.dtype), k, summed)
        summed *= scale
        tl.store(out + offset, summed.to(out.dtype.element_ty), mask=real[:, None])
        sums_row = sums + (number * TILES + tile) * N * D + head * D + tl.arange(0, D)
        tl.store(sums_row, tl.load(sums_row) + tl.sum(summed, axis=0))


@triton.jit(do_not_specialize=["length"])
def _keys_backward(qkv, grad, out, logsumexps, deltas, starts, mask, length, log2_scale, scale,
             PACKED: tl.constexpr, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
             TILES: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    number, head, tile, first, length = _program(starts, length, PACKED, N, TILES)
    key = tile * ROWS + tl.arange(0, ROWS)
    real = key < length
    if tile * ROWS < length:
        _, offset = _offsets(first, key, head, N, D)
        k, v = _keys_values(qkv, offset, real[:, None], N, D)
        visible = _visible(mask, number, key, length, MASKED)
        grad_k = tl.zeros([ROWS, D], tl.float32)
        grad_v = tl.zeros([ROWS, D], tl.float32)
        for start in range(0, length, STEP):
            row = start + tl.arange(0, STEP)
            inside = row < length
            own_offset, key_offset = _offsets(first, row, head, N, D)
            q = tl.load(qkv + key_offset, mask=inside[:, None], other=0)
            grad_out = tl.load(grad + own_offset, mask=inside[:, None], other=0)
            logsumexp = tl.load(logsumexps + (first + row) * N + head, mask=inside, other=0)
            delta = tl.load(deltas + (first + row) * N + head, mask=inside, other=0)
            scores = tl.where(visible[:, None], tl.dot(k, tl.trans(q)) * log2_scale, -1e30)
            weights = tl.exp2(scores - logsumexp[None, :])  # (keys, queries)
            grad_v = tl.dot(weights.to(grad_out.dtype), grad_out, grad_v)
            grad_scores = weights * (tl.dot(v, tl.trans(grad_out)) - delta[None, :])
            grad_k = tl.dot(grad_scores.to(q.dtype), q, grad_k)
        tl.store(out + offset + N * D, (grad_k * scale).to(out.dtype.element_ty), mask=real[:, None])
        tl.store(out + offset + 2 * N * D, grad_v.to(out.dtype.element_ty), mask=real[:, None])


def can_attend(channels: int, device: torch.device) -> bool:
    """Whether the tiles fit into the GPU's shared memory."""
    shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return channels in (16, 32, 64) and shared >= MIN_SHARED_MEMORY


def attend(qkv: Tensor, layout: Layout, heads: int) -> tuple[Tensor, Tensor]:
    """Attention within each sequence, (T, 3 * N * D) -> (T, N * D), and what its backward needs beside both."""
    out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    sequences, sizes = _sequences(layout), _sizes(qkv, layout, heads)
    log2_scale = (qkv.shape[1] // 3 // heads) ** -0.5 * LOG2_E
    logsumexps = torch.empty(len(qkv), heads, dtype=torch.float32, device=qkv.device)
    if layout.length <= MAX_TILE_LENGTH:
        tile = _tile(layout)  # a warp for every 16 of its rows: more would wait for each other
        _attend_short[(layout.batch * heads,)](
            qkv, out, logsumexps, *sequences, log2_scale, **sizes, TILE=tile, num_warps=tile // 16
        )
        return out, logsumexps
    programs, tiles = _tiles(layout, heads, "attend")
    _attend_long[programs](qkv, out, logsumexps, *sequences, log2_scale, **sizes, **tiles)
    return out, logsumexps


def query_sums(layout: Layout, columns: int, device: torch.device) -> Tensor:
    """Buffer for the sum of the gradients of queries, which is that of their bias.

    The sum over keys is 0, because raising all scores of a query alike changes no weight. The sum over values is that
    over contexts, because the weights of a query add up to 1.
    """
    return torch.zeros(layout.batch * triton.cdiv(layout.length, TILE_SHAPES["to_queries"][0]), columns, device=device)


def attend_backward(
    qkv: Tensor, context: Tensor, logsumexps: Tensor, layout: Layout, heads: int, grad: Tensor, sums: Tensor
) -> Tensor:
    """From the gradient of the output of `attend` to that of its input."""
    out = torch.empty_like(qkv)
    sequences, sizes = _sequences(layout), _sizes(qkv, layout, heads)
    scale = (qkv.shape[1] // 3 // heads) ** -0.5
    log2_scale = scale * LOG2_E
    if layout.length <= MAX_TILE_LENGTH:
        _attend_short_backward[(layout.batch * heads,)](
            qkv,
            context,
            grad,
            out,
            sums,
            logsumexps,
            *sequences,
            log2_scale,
            scale,
            **sizes,
            TILE=_tile(layout),
            num_warps=4,
        )
        return out
    deltas = torch.empty_like(logsumexps)
    programs, tiles = _tiles(layout, heads, "to_queries")
    _queries_backward[programs](
        qkv, context, grad, out, sums, logsumexps, deltas, *sequences, log2_scale, scale, **sizes, **tiles
    )
    programs, tiles = _tiles(layout, heads, "to_keys")
    _keys_backward[programs](qkv, grad, out, logsumexps, deltas, *sequences, log2_scale, scale, **sizes, **tiles)
    return out


def _sequences(layout: Layout) -> tuple[Tensor | None, Tensor | None, int]:
    if isinstance(layout, Packed):
        return layout.starts, None, layout.length
    return None, layout.mask, layout.length


def _sizes(qkv: Tensor, layout: Layout, heads: int) -> dict[str, Any]:
    masked = isinstance(layout, Dense) and layout.mask is not None
    return {
        "PACKED": isinstance(layout, Packed), "MASKED": masked, "N": heads, "D": qkv.shape[1] // 3 // heads,
    }  # fmt: skip


def _tile(layout: Layout) -> int:
    return max(16, triton.next_power_of_2(layout.length))


def _tiles(layout: Layout, heads: int, which: str) -> tuple[tuple[int], dict[str, int]]:
    rows, step, warps, stages = TILE_SHAPES[which]
    tiles = triton.cdiv(layout.length, rows)
    sizes = {"TILES": tiles, "ROWS": rows, "STEP": step, "num_warps": warps, "num_stages": stages}
    return (layout.batch * heads * tiles,), sizes
