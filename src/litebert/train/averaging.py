"""What is kept beside the weights: their moving average, and fp32 masters of a bf16 model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from litebert.errors import CheckpointError, ConfigError


class Average:
    """An exponential moving average of a model's parameters, in fp32. Often better than the last weights."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"decay={decay} must be at least 0 and below 1; 0.999 averages about a thousand steps")
        self.model, self.decay = model, decay
        self.weights = {name: p.detach().float().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step `step`. The first steps forget faster, or the random start would stay in the average for long."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [p.detach().float() for p in self.model.parameters()]
        get_ema_multi_avg_fn(decay)(list(self.weights.values()), current, step)

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the past: the model is another one now."""
        for name, parameter in self.model.named_parameters():
            self.weights[name].copy_(parameter)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While the block runs, the model has the averaged weights: to score it, or to save it."""
        kept = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._write(self.weights)
        try:
            yield
        finally:
            self._write(kept)

    @torch.no_grad()
    def _write(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state.keys() != self.weights.keys():
            odd = sorted(state.keys() ^ self.weights.keys())
            raise CheckpointError(f"the average is of another model: {odd[0]} is in one only; use the same settings")
        for name, weight in self.weights.items():
            weight.copy_(state[name])


class MasterWeights(torch.optim.Optimizer):
    """An optimizer for a bf16 model that keeps and changes fp32 copies, and rounds them into the model.

    bf16 has 8 bits: a step below 1/256 of a weight would be rounded away every time.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._pairs: list[tuple[Tensor, Tensor]] = []
        for group in optimizer.param_groups:
            masters = [nn.Parameter(p.detach().float().clone()) for p in group["params"]]
            self._pairs += zip(group["params"], masters, strict=True)
            group["params"] = masters
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def master_of(self, parameter: Tensor) -> Tensor:
        """The fp32 copy of a parameter of the model."""
        return next(master for mine, master in self._pairs if mine is parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter, master in self._pairs:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        for parameter, master in self._pairs:
            parameter.copy_(master)
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter, _ in self._pairs:
            parameter.grad = None

    def release(self) -> None:
        """At the end: the model's parameters become the masters, in fp32."""
        for parameter, master in self._pairs:
            parameter.data = master.detach()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, with the masters among the tensors of their parameters."""
        packed = self.optimizer.state_dict()
        states = {n: packed["state"].get(n, {}) | {"master": m.detach()} for n, (_, m) in enumerate(self._pairs)}
        return packed | {"state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        states: dict[int, dict[str, Any]] = {n: dict(state) for n, state in state_dict["state"].items()}
        if len(states) != len(self._pairs) or not all("master" in state for state in states.values()):
            raise CheckpointError("the optimizer's state has no fp32 master weights; resume with the same settings")
        with torch.no_grad():
            for number, (parameter, master) in enumerate(self._pairs):
                master.copy_(states[number].pop("master"))
                parameter.copy_(master)
        self.optimizer.load_state_dict(state_dict | {"state": {n: state for n, state in states.items() if state}})
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
