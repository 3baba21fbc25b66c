"""Matrices in fp8 (e4m3), for products that newer GPUs compute twice as fast.

A number has three bits of mantissa and is 448 at most. It stands for itself times a scale, of the matrix or of its row.

Shapes: M and N rows, K columns.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0


class Float8Matrix(NamedTuple):
    values: Tensor
    """(M, K)"""
    scale: Tensor
    """() or (M, 1), float32."""


@cache
def supports_fp8(device: torch.device) -> bool:
    """Whether the device multiplies fp8 matrices with a scale for each row. Not every GPU that has fp8 does."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    ones = Float8Matrix(torch.ones(16, 16, device=device).to(FLOAT8), torch.ones(16, 1, device=device))
    try:
        return bool((scaled_product(ones, ones, torch.bfloat16) == 16).all())
    except RuntimeError:
        return False


def quantize_fp8(matrix: Tensor) -> Float8Matrix:
    """With one scale, by which the largest number becomes 448."""
    scale = matrix.abs().amax().float().clamp(min=1e-12) / FLOAT8_MAX
    return Float8Matrix((matrix / scale).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8), scale)


def scaled_product(
    left: Float8Matrix, right: Float8Matrix, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:  # (M, N)
    """left @ right.T + bias; both have one scale, or both one for each row."""
    if not len(left.values):
        return left.scale.new_empty(0, len(right.values), dtype=dtype)
    return torch._scaled_mm(
        left.values, right.values.t(), left.scale, right.scale.t() if right.scale.dim() else right.scale,
        bias=bias, out_dtype=dtype, use_fast_accum=True,
    )  # fmt: skip
