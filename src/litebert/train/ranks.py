"""The processes that train together, as the loop sees them; `distributed` starts them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; by default it is the only one."""

    rank: int = 0
    world_size: int = 1
    no_sync: Callable[[], AbstractContextManager[object]] = nullcontext
    """While a block runs, gradients are not exchanged."""

    def sum(self, figures: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.world_size > 1:
            figures = figures.clone()
            torch.distributed.all_reduce(figures)
        return figures

    def any(self, flag: bool) -> bool:
        """Is the flag set on any rank? All ranks must stop at the same step."""
        if self.world_size == 1:
            return flag
        return bool(self.sum(torch.tensor([float(flag)], device=self.device)).item())

    def agree(self, value: int) -> bool:
        """Do all ranks have the same number?"""
        if self.world_size == 1:
            return True
        own = torch.tensor([float(value)], dtype=torch.float64, device=self.device)
        return not self.any(bool((self.sum(own) != own * self.world_size).item()))

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if torch.distributed.get_backend() == "nccl" else CPU


SINGLE_PROCESS = Ranks()
