"""Initial values of untrained parts of the model."""

from __future__ import annotations

import torch
from torch import nn


def initialize(module: nn.Module, std: float) -> None:
    """ALBERT's start: truncated normal matrices and tables, zero biases, unit LayerNorms."""
    if next(module.parameters()).is_meta:
        return  # a model without memory, about to be filled from a file
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()


def embedding_table(rows: int, size: int) -> nn.Embedding:
    """Without torch's own initial values, which we replace anyway and which are slow on the meta device."""
    return nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)
