"""A small run and its checkpoints, for the tests of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from litebert.train.checkpointing import Checkpoints, Stateful

SETTINGS = {"steps": "9", "seed": "0"}
FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "sha256.json")


class Run:
    """A small model under training, and its checkpoints."""

    def __init__(self, folder: Path, *, width: int = 4, parts: dict[str, Stateful] | None = None, **how: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, width), nn.LayerNorm(width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        everything: dict[str, Stateful] = {"model": self.model, "optimizer": self.optimizer, **(parts or {})}
        self.checkpoints = Checkpoints(folder, everything, **how)

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.optimizer.zero_grad()
        inputs = self.model(torch.rand(2, 3, generator=generator))
        (inputs * torch.rand(inputs.shape, generator=generator)).sum().backward()
        self.optimizer.step()

    def save(self, *steps: int, **more: Any) -> Run:
        for step in steps:
            self.checkpoints.save(step, SETTINGS, **more)
            self.checkpoints.wait()
        return self

    def to(self, step: int) -> Run:
        """Train to a step and save there."""
        for number in range(step):
            self.step(number)
        return self.save(step)

    def load(self) -> int:
        return self.checkpoints.load_latest(SETTINGS)

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
