"""LoRA: low-rank additions to a shared weight, different at every depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DepthAdapters(nn.Module):
    """Pass d uses W + B_d A_d in place of W, for queries and values of attention.

    A_d starts random and B_d zero, so an untrained adapter changes nothing.
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
