"""Mixout: while a model learns, each entry of its matrices is now and then the one that it started with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Mixout:
    """A hook for `weight_at`. Within a step all passes see the same mixture; call `forget` before the next one.

    With share p an entry w that began as o is seen as o with probability p, and all are stretched about o by
    1 / (1 - p), so that their mean is w: what dropout does about 0.
    """

    def __init__(self, weights: Mapping[str, Tensor], share: float) -> None:
        self.share = share
        self._origin = {name: weight.detach().clone() for name, weight in weights.items() if weight.dim() >= 2}
        self._kept: dict[str, Tensor] = {}

    def forget(self) -> None:
        self._kept.clear()

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        origin = self._origin.get(name)
        if origin is None or not torch.is_grad_enabled():  # it answers, and does not learn
            return weight
        if name not in self._kept:
            self._kept[name] = (torch.rand_like(origin) >= self.share).to(origin.dtype) / (1 - self.share)
        return origin + (weight - origin) * self._kept[name]
