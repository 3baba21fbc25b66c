"""How untrained parts of the model begin."""

from __future__ import annotations

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
