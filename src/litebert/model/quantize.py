"""Weights as whole numbers of eight bits."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_WEIGHT = 127


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) as int8, and a scale for each row, (rows,). What comes of their product is rounded to itself."""
    scale = weight.abs().amax(1) / MOST_WEIGHT
    scale = scale.where(scale > 0, 1.0)
    return (weight / scale[:, None]).round().clamp(-MOST_WEIGHT, MOST_WEIGHT).to(torch.int8), scale
