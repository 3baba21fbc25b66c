"""Low-rank changes of a shared weight, another one at every depth (LoRA)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DepthAdapters(nn.Module):
    """Pass d sees W + B_d A_d where the layer has W, for the queries and the values of its attention.

    A_d starts at random and B_d at zero, so the function is that of the layer until something is learned.
    """

    def __init__(self, passes: int, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(passes, 2, rank, hidden_size))
        self.up = nn.Parameter(torch.empty(passes, 2, hidden_size, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.down.shape[-1] ** -0.5)
        nn.init.zeros_(self.up)

    def forward(self, name: str, weight: Tensor, depth: int) -> Tensor:
        """The weight called `name` as pass `depth` sees it."""
        if not name.endswith("qkv.weight"):
            return weight
        query, value = (self.up[depth] @ self.down[depth]).unbind()  # (H, H) each
        return weight + torch.cat([query, torch.zeros_like(query), value])
