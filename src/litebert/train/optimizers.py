"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from litebert.errors import ConfigError

Schedule = Callable[[int], float]


def adamw(model: nn.Module, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.AdamW:
    """AdamW with bias correction; biases and LayerNorms are not decayed. A shared weight is one parameter here."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=1e-6)  # the loop sets the rate at every step


def warmup_linear(peak: float, steps: int, warmup_share: float = 0.1) -> Schedule:
    """Rise to `peak` over the first share of the steps, then fall to zero in a straight line."""
    if not 0 < peak < math.inf:
        raise ConfigError(f"learning_rate={peak} must be above 0; BERT-like models take 1e-5 to 1e-3")
    warmup = max(1, round(steps * warmup_share))

    def rate(step: int) -> float:
        return peak * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))

    return rate
