"""Matrices in eight bits (fp8), for products that newer GPUs compute twice as fast.

A number in eight bits has three bits behind its first and reaches up to 448; what one is worth is said beside: `unit`,
for all of a matrix or row by row.

Shapes: M and N rows, K columns.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

EIGHT = torch.float8_e4m3fn
MOST = 448.0


class Eight(NamedTuple):
    values: Tensor
    """(M, K)"""
    unit: Tensor
    """() or (M, 1), float32."""


@cache
def supports_fp8(device: torch.device) -> bool:
    """Does it multiply them, with a unit for each row? Not every GPU that has them does."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    ones = Eight(torch.ones(16, 16, device=device).to(EIGHT), torch.ones(16, 1, device=device))
    try:
        return bool((product(ones, ones, torch.bfloat16) == 16).all())
    except RuntimeError:
        return False


def to_eight(matrix: Tensor) -> Eight:
    """With one unit, by which the largest becomes 448."""
    unit = matrix.abs().amax().float().clamp(min=1e-12) / MOST
    return Eight((matrix / unit).clamp(-MOST, MOST).to(EIGHT), unit)


def product(left: Eight, right: Eight, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:  # (M, N)
    """left @ right.T + bias; both have one unit, or both one for each row."""
    if not len(left.values):
        return left.unit.new_empty(0, len(right.values), dtype=dtype)
    return torch._scaled_mm(
        left.values, right.values.t(), left.unit, right.unit.t() if right.unit.dim() else right.unit,
        bias=bias, out_dtype=dtype, use_fast_accum=True,
    )  # fmt: skip
