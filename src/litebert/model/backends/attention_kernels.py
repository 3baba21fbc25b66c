"""Triton kernels for attention within sequences, forward and backward, from one (T, 3 * N * D) matrix and back to it.

What a sequence without any real token gets is not defined.

Shapes: T rows, N heads, D channels per head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from litebert.model.layout import Dense, Layout, Packed

LEAST_SHARED = 160_000
"""Bytes of shared memory that a program may need: an A100 has them, and an H100."""
LOG2_E = 1.4426950408889634
LONGEST = 128  # sequence whose scores fit in one tile; those of longer ones come tile by tile
SHAPES = {"attend": (128, 64, 4, 3), "to_queries": (128, 64, 4, 3), "to_keys": (64, 128, 4, 2)}
"""Of attention tile by tile: rows of a program, rows that it goes through at once, warps, stages."""


@triton.jit
def _task(starts, length, PACKED: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr):
    """What a program is for: the sequence, the head, the tile; and where the sequence starts, and its length."""
    number, head, tile = tl.program_id(0) // (N * TILES), tl.program_id(0) // TILES % N, tl.program_id(0) % TILES
    if PACKED:
        first = tl.load(starts + number)
        length = tl.load(starts + number + 1) - first
    else:
        first = number * length
    return number, head, tile, first, length


@triton.jit
def _places(first, row, head, N: tl.constexpr, D: tl.constexpr):
    """Of one head's channels: in (T, N * D), and in (T, 3 * N * D), where its keys and values come N * D later each."""
    own = (first + row)[:, None] * tl.cast(N * D, tl.int64) + head * D + tl.arange(0, D)[None, :]
    return own, own + (first + row)[:, None] * tl.cast(2 * N * D, tl.int64)


@triton.jit
def _keys_values(qkv, at, inside, N: tl.constexpr, D: tl.constexpr):
    return tl.load(qkv + at + N * D, mask=inside, other=0), tl.load(qkv + at + 2 * N * D, mask=inside, other=0)


@triton.jit
def _seen(mask, number, key, length, MASKED: tl.constexpr):
    inside = key < length
    if MASKED:
        return tl.load(mask + number * length + key, mask=inside, other=0) != 0
    return inside


@triton.jit(do_not_specialize=["length"])
def _attend_short(qkv, out, peaks, starts, mask, length, by, PACKED: tl.constexpr, MASKED: tl.constexpr,
                  N: tl.constexpr, D: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    number, head, _, first, length = _task(starts, length, PACKED, N, 1)
    row = tl.arange(0, LONG)
    real = row < length
    own, at = _places(first, row, head, N, D)
    q = tl.load(qkv + at, mask=real[:, None], other=0)
    k, v = _keys_values(qkv, at, real[:, None], N, D)
    seen = _seen(mask, number, row, length, MASKED)
    scores = tl.where(seen[None, :], tl.dot(q, tl.trans(k)) * by, -1e30)
    highest = tl.max(scores, axis=1)
    scores = tl.exp2(scores - highest[:, None])
    total = tl.sum(scores, axis=1)
    context = tl.dot(scores.to(v.dtype), v) / total[:, None]
    tl.store(out + own, context.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(peaks + (first + row) * N + head, highest + tl.log2(total), mask=real)


@triton.jit(do_not_specialize=["length"])
def _attend_short_backward(qkv, context, slope, out, sums, peaks, starts, mask, length, by, scale,
                           PACKED: tl.constexpr, MASKED: tl.constexpr,
                           N: tl.constexpr, D: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    number, head, _, first, length = _task(starts, length, PACKED, N, 1)
    row = tl.arange(0, LONG)
    real = row < length
    own, at = _places(first, row, head, N, D)
    q = tl.load(qkv + at, mask=real[:, None], other=0)
    k, v = _keys_values(qkv, at, real[:, None], N, D)
    above = tl.load(slope + own, mask=real[:, None], other=0)
    was = tl.load(context + own, mask=real[:, None], other=0)
    delta = tl.sum(above.to(tl.float32) * was.to(tl.float32), axis=1)
    peak = tl.load(peaks + (first + row) * N + head, mask=real, other=0)
    seen = _seen(mask, number, row, length, MASKED)
    # keys from top to bottom, queries from left to right: so only one product wants it the other way round
    scores = tl.where(seen[:, None], tl.dot(k, tl.trans(q)) * by, -1e30)
    weights = tl.exp2(scores - peak[None, :])
    to_v = tl.dot(weights.to(v.dtype), above)
    tl.store(out + at + 2 * N * D, to_v.to(out.dtype.element_ty), mask=real[:, None])
    through = weights * (tl.dot(v, tl.trans(above)) - delta[None, :]) * scale
    through = through.to(q.dtype)
    to_k = tl.dot(through, q)
    tl.store(out + at + N * D, to_k.to(out.dtype.element_ty), mask=real[:, None])
    to_q = tl.dot(tl.trans(through), k)
    tl.store(out + at, to_q.to(out.dtype.element_ty), mask=real[:, None])
    place = sums + tl.program_id(0) * D + tl.arange(0, D)
    tl.store(place, tl.load(place) + tl.sum(to_q, axis=0))


@triton.jit(do_not_specialize=["length"])
def _attend_long(qkv, out, peaks, starts, mask, length, by,
                 PACKED: tl.constexpr, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
                 TILES: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    number, head, tile, first, length = _task(starts, length, PACKED, N, TILES)
    row = tile * ROWS + tl.arange(0, ROWS)
    real = row < length
    own, at = _places(first, row, head, N, D)
    q = tl.load(qkv + at, mask=real[:, None], other=0)
    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, D], tl.float32)
    if tile * ROWS < length:
        for start in range(0, length, STEP):
            key = start + tl.arange(0, STEP)
            inside = (key < length)[:, None]
            _, there = _places(first, key, head, N, D)
            k, v = _keys_values(qkv, there, inside, N, D)
            seen = _seen(mask, number, key, length, MASKED)
            scores = tl.where(seen[None, :], tl.dot(q, tl.trans(k)) * by, -1e30)
            rise = tl.maximum(highest, tl.max(scores, axis=1))
            fade = tl.exp2(highest - rise)
            scores = tl.exp2(scores - rise[:, None])
            total = total * fade + tl.sum(scores, axis=1)
            summed = tl.dot(scores.to(v.dtype), v, summed * fade[:, None])
            highest = rise
    tl.store(out + own, (summed / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])
    tl.store(peaks + (first + row) * N + head, highest + tl.log2(total), mask=real)


@triton.jit(do_not_specialize=["length"])
def _to_queries(qkv, context, slope, out, sums, peaks, deltas, starts, mask, length, by, scale,
                PACKED: tl.constexpr, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
                TILES: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    number, head, tile, first, length = _task(starts, length, PACKED, N, TILES)
    row = tile * ROWS + tl.arange(0, ROWS)
    real = row < length
    if tile * ROWS < length:
        own, at = _places(first, row, head, N, D)
        q = tl.load(qkv + at, mask=real[:, None], other=0)
        above = tl.load(slope + own, mask=real[:, None], other=0)
        was = tl.load(context + own, mask=real[:, None], other=0)
        delta = tl.sum(above.to(tl.float32) * was.to(tl.float32), axis=1)
        tl.store(deltas + (first + row) * N + head, delta, mask=real)
        peak = tl.load(peaks + (first + row) * N + head, mask=real, other=0)
        summed = tl.zeros([ROWS, D], tl.float32)
        for start in range(0, length, STEP):
            key = start + tl.arange(0, STEP)
            inside = (key < length)[:, None]
            _, there = _places(first, key, head, N, D)
            k, v = _keys_values(qkv, there, inside, N, D)
            seen = _seen(mask, number, key, length, MASKED)
            scores = tl.where(seen[None, :], tl.dot(q, tl.trans(k)) * by, -1e30)
            through = tl.exp2(scores - peak[:, None]) * (tl.dot(above, tl.trans(v)) - delta[:, None])
            summed = tl.dot(through.to(k.dtype), k, summed)
        summed *= scale
        tl.store(out + at, summed.to(out.dtype.element_ty), mask=real[:, None])
        place = sums + (number * TILES + tile) * N * D + head * D + tl.arange(0, D)
        tl.store(place, tl.load(place) + tl.sum(summed, axis=0))


@triton.jit(do_not_specialize=["length"])
def _to_keys(qkv, slope, out, peaks, deltas, starts, mask, length, by, scale,
             PACKED: tl.constexpr, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
             TILES: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    number, head, tile, first, length = _task(starts, length, PACKED, N, TILES)
    key = tile * ROWS + tl.arange(0, ROWS)
    real = key < length
    if tile * ROWS < length:
        _, at = _places(first, key, head, N, D)
        k, v = _keys_values(qkv, at, real[:, None], N, D)
        seen = _seen(mask, number, key, length, MASKED)
        to_k = tl.zeros([ROWS, D], tl.float32)
        to_v = tl.zeros([ROWS, D], tl.float32)
        for start in range(0, length, STEP):
            row = start + tl.arange(0, STEP)
            inside = row < length
            own, there = _places(first, row, head, N, D)
            q = tl.load(qkv + there, mask=inside[:, None], other=0)
            above = tl.load(slope + own, mask=inside[:, None], other=0)
            peak = tl.load(peaks + (first + row) * N + head, mask=inside, other=0)
            delta = tl.load(deltas + (first + row) * N + head, mask=inside, other=0)
            scores = tl.where(seen[:, None], tl.dot(k, tl.trans(q)) * by, -1e30)
            weights = tl.exp2(scores - peak[None, :])  # (keys, queries)
            to_v = tl.dot(weights.to(above.dtype), above, to_v)
            through = weights * (tl.dot(v, tl.trans(above)) - delta[None, :])
            to_k = tl.dot(through.to(q.dtype), q, to_k)
        tl.store(out + at + N * D, (to_k * scale).to(out.dtype.element_ty), mask=real[:, None])
        tl.store(out + at + 2 * N * D, to_v.to(out.dtype.element_ty), mask=real[:, None])


def can_attend(channels: int, device: torch.device) -> bool:
    """Do the tiles fit?"""
    shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return channels in (16, 32, 64) and shared >= LEAST_SHARED


def attend(qkv: Tensor, layout: Layout, heads: int) -> tuple[Tensor, Tensor]:
    """Attention within each sequence, (T, 3 * N * D) -> (T, N * D), and what its backward needs beside both."""
    out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    given, sizes = _sequences(layout), _sizes(qkv, layout, heads)
    by = (qkv.shape[1] // 3 // heads) ** -0.5 * LOG2_E
    peaks = torch.empty(len(qkv), heads, dtype=torch.float32, device=qkv.device)
    if layout.length <= LONGEST:
        tile = _tile(layout)  # a warp for every 16 of its rows: more would wait for each other
        _attend_short[(layout.batch * heads,)](qkv, out, peaks, *given, by, **sizes, LONG=tile, num_warps=tile // 16)
        return out, peaks
    programs, tiles = _tiles(layout, heads, "attend")
    _attend_long[programs](qkv, out, peaks, *given, by, **sizes, **tiles)
    return out, peaks


def query_sums(layout: Layout, columns: int, device: torch.device) -> Tensor:
    """A place for the sum of the slopes of queries.

    Those of keys add up to nothing, because raising all scores of a query alike changes no weight, and those of values
    to what those of the contexts add up to, because the weights of a query add up to 1.
    """
    return torch.zeros(layout.batch * triton.cdiv(layout.length, SHAPES["to_queries"][0]), columns, device=device)


def attend_backward(
    qkv: Tensor, context: Tensor, peaks: Tensor, layout: Layout, heads: int, slope: Tensor, sums: Tensor
) -> Tensor:
    """From the slope of what `attend` gave to that of what it got."""
    out = torch.empty_like(qkv)
    given, sizes = _sequences(layout), _sizes(qkv, layout, heads)
    scale = (qkv.shape[1] // 3 // heads) ** -0.5
    by = scale * LOG2_E
    if layout.length <= LONGEST:
        _attend_short_backward[(layout.batch * heads,)](
            qkv, context, slope, out, sums, peaks, *given, by, scale, **sizes, LONG=_tile(layout), num_warps=4
        )
        return out
    deltas = torch.empty_like(peaks)
    programs, tiles = _tiles(layout, heads, "to_queries")
    _to_queries[programs](qkv, context, slope, out, sums, peaks, deltas, *given, by, scale, **sizes, **tiles)
    programs, tiles = _tiles(layout, heads, "to_keys")
    _to_keys[programs](qkv, slope, out, peaks, deltas, *given, by, scale, **sizes, **tiles)
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
    rows, step, warps, stages = SHAPES[which]
    tiles = triton.cdiv(layout.length, rows)
    sizes = {"TILES": tiles, "ROWS": rows, "STEP": step, "num_warps": warps, "num_stages": stages}
    return (layout.batch * heads * tiles,), sizes
