"""Weights in int8."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_WEIGHT = 127


def quantize_per_row(weight: Tensor) -> tuple[Tensor, Tensor]:  # (rows, columns) -> int8, (rows,)
    """Symmetric: int8 values and a scale for each row. Quantizing their product again gives the same values."""
    scale = weight.abs().amax(1) / MAX_WEIGHT
    scale = scale.where(scale > 0, 1.0)
    return (weight / scale[:, None]).round().clamp(-MAX_WEIGHT, MAX_WEIGHT).to(torch.int8), scale
