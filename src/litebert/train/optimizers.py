"""Optimizers and learning-rate schedules.

Every optimizer is made by a function of the model. It finds out by itself what is a bias or LayerNorm (fewer than two
dimensions: never decayed), an embedding table, or several matrices in one (the fused q, k and v).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_update

from litebert.errors import ConfigError
from litebert.train.options import OptimizerName, ScheduleName

Schedule = Callable[[int], float]
Group = dict[str, Any]

FUSED = {"qkv.weight": 3}
"""Endings of the names of parameters that are several matrices, one below the other, and how many."""
REFERENCE_BATCH = 4096
"""The batch of the ALBERT paper, for which its rates are meant."""


@dataclass(frozen=True)
class ParameterOptions:
    """How one parameter differs from the others."""

    scale: float = 1.0
    """Of the learning rate: the loop gives its group schedule(step) * scale."""
    decay: float = 1.0
    """Multiplies the weight decay."""
    opens: tuple[float, float] | None = None
    """The steps between which its rate rises from nothing to all (`strategies.unfreeze`); None = all at once."""
    bound: float | None = None
    """No entry may leave ± this; `strategies.project` sees to it."""


def adamw(
    model: nn.Module,
    *,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    parameter_options: Mapping[str, ParameterOptions] | None = None,
) -> torch.optim.AdamW:
    """AdamW with bias correction; biases and LayerNorms are not decayed. A shared weight is one parameter here."""
    groups = _groups(model, weight_decay, parameter_options, lambda name, parameter: {})
    # the loop sets the rate at every step; fused is one kernel on a GPU, and four times as fast on a CPU
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=1e-6, fused=True)


def lamb(
    model: nn.Module,
    *,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    parameter_options: Mapping[str, ParameterOptions] | None = None,
) -> Lamb:
    """LAMB as the ALBERT paper uses it; biases and LayerNorms have neither decay nor trust ratio."""

    def kind(name: str, parameter: nn.Parameter) -> Group:
        return {"trust": parameter.dim() >= 2, "views": _views(name)}

    return Lamb(_groups(model, weight_decay, parameter_options, kind), betas=betas)


def muon(
    model: nn.Module,
    *,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    parameter_options: Mapping[str, ParameterOptions] | None = None,
) -> Muon:
    """Muon for the matrices between embeddings and heads, AdamW for all the rest, both at AdamW's rate."""
    hidden = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }  # an embedding table or a learned bias is not a map between hidden states, and a head's output is not hidden

    def kind(name: str, parameter: nn.Parameter) -> Group:
        orthogonal = name in hidden and not name.startswith("heads.")
        return {"orthogonal": orthogonal, "views": _views(name) if orthogonal else 1}

    return Muon(_groups(model, weight_decay, parameter_options, kind), betas=betas)


OPTIMIZERS: dict[OptimizerName, Callable[..., torch.optim.Optimizer]] = {"adamw": adamw, "lamb": lamb, "muon": muon}


def _views(name: str) -> int:
    return next((views for ending, views in FUSED.items() if name.endswith(ending)), 1)


def _groups(
    model: nn.Module,
    weight_decay: float,
    parameter_options: Mapping[str, ParameterOptions] | None,
    kind: Callable[[str, nn.Parameter], Group],
) -> list[Group]:
    """The trainable parameters in groups of equal treatment."""
    groups: dict[tuple[Any, ...], Group] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tuned = (parameter_options or {}).get(name, ParameterOptions())
            matrix = parameter.dim() >= 2
            options: Group = {"weight_decay": weight_decay * tuned.decay if matrix else 0.0}
            options |= {"scale": tuned.scale, "full_scale": tuned.scale, "opens": tuned.opens, "bound": tuned.bound}
            options |= kind(name, parameter)
            groups.setdefault((matrix, *options.values()), {"params": []} | options)["params"].append(parameter)
    return list(groups.values())


class Lamb(torch.optim.Optimizer):
    """Adam without bias correction, each matrix's step as long as the rate's share of the matrix's own length.

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g²,  u = m / (√v + eps) + decay w,  w = w - rate (‖w‖ / ‖u‖) u
    """

    def __init__(self, groups: list[Group], *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6) -> None:
        super().__init__(
            groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0, "trust": True, "views": 1}
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: Group) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] = {"mean": torch.zeros_like(weight), "square": torch.zeros_like(weight)}
        means = [self.state[weight]["mean"] for weight in weights]
        squares = [self.state[weight]["square"] for weight in weights]
        gradients = _gradients(weights)
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if group["trust"]:
            parts = [part for update in updates for part in update.chunk(group["views"])]
            lengths = torch.stack(torch._foreach_norm([p for weight in weights for p in weight.chunk(group["views"])]))
            steps = torch.stack(torch._foreach_norm(parts))
            ratios = torch.where((lengths > 0) & (steps > 0), lengths / steps, 1.0)
            torch._foreach_mul_(parts, list(ratios.unbind()))  # parts are views: this changes the updates
        torch._foreach_add_(weights, updates, alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal, for groups with `orthogonal`; AdamW for the others.

    torch.optim.Muon with match_rms_adamw, except that q, k and v are three matrices to it, not one.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": 0.0, "betas": betas, "eps": eps, "momentum": momentum, "weight_decay": 0.0}
        super().__init__(groups, defaults | {"orthogonal": True, "views": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        matrices: list[tuple[Tensor, Group]] = []
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if group["orthogonal"]:
                matrices += [(weight, group) for weight in weights]
            elif weights:
                self._adamw(weights, group)
        # all at once: matrices of one shape go through the iteration together
        parts = [part for weight, group in matrices for part in self._direction(weight, group).chunk(group["views"])]
        orthogonal = iter(orthogonalize(parts))
        for weight, group in matrices:
            update = torch.cat([next(orthogonal) for _ in range(group["views"])])
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            # 0.2 is the usual root mean square of AdamW's step
            longest = max(len(weight) // group["views"], weight.shape[1])
            weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(longest))

    def _direction(self, weight: Tensor, group: Group) -> Tensor:
        """The momentum, one step ahead as Nesterov has it."""
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
        return weight.grad.lerp(state["momentum"], group["momentum"])

    def _adamw(self, weights: list[Tensor], group: Group) -> None:
        for weight in weights:
            if not self.state[weight]:
                start = {"step": torch.tensor(0.0)}
                self.state[weight] = start | {"mean": torch.zeros_like(weight), "square": torch.zeros_like(weight)}
        beta1, beta2 = group["betas"]
        adamw_update(
            weights,
            _gradients(weights),
            [self.state[weight]["mean"] for weight in weights],
            [self.state[weight]["square"] for weight in weights],
            [],
            [self.state[weight]["step"] for weight in weights],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _gradients(weights: list[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def orthogonalize(matrices: list[Tensor]) -> list[Tensor]:
    """U Vᵀ of each matrix's U S Vᵀ, nearly."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, matrix in enumerate(matrices):
        shapes.setdefault(tuple(sorted(matrix.shape)), []).append(number)
    done: dict[int, Tensor] = {}
    for numbers in shapes.values():
        # lying, not standing: the smaller side makes the smaller square
        tall = {number for number in numbers if matrices[number].shape[0] > matrices[number].shape[1]}
        lying = torch.stack([matrices[number].mT if number in tall else matrices[number] for number in numbers])
        for number, matrix in zip(numbers, _newton_schulz(lying).unbind(), strict=True):
            done[number] = matrix.mT if number in tall else matrix
    return [done[number] for number in range(len(matrices))]


def _newton_schulz(matrices: Tensor, steps: int = 5) -> Tensor:  # (n, rows, columns), no more rows than columns
    """Brings all singular values near 1, with the coefficients of the steepest slope at 0."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def warmup_linear(peak: float, steps: int, warmup_share: float = 0.1) -> Schedule:
    """Rise to `peak` over the first share of the steps, then fall to zero in a straight line."""
    return schedule("linear", peak, steps, warmup_share=warmup_share)


SCHEDULES: dict[ScheduleName, Callable[[float, float, float], float]] = {
    "linear": lambda left, power, decay: left,
    "cosine": lambda left, power, decay: (1 - math.cos(math.pi * left)) / 2,
    "poly": lambda left, power, decay: left**power,
    "wsd": lambda left, power, decay: min(1.0, left / decay),
    "constant": lambda left, power, decay: 1.0,
}
"""(share of the steps after the warm-up that is left, power, share of them that decays) -> share of the peak."""


def schedule(
    name: ScheduleName,
    peak: float,
    steps: int,
    *,
    warmup_share: float = 0.1,
    hot_start: float = 0.0,
    power: float = 2.0,
    decay_share: float = 0.2,
) -> Schedule:
    """Warm up to `peak`, then follow the named shape; a pure function of the step.

    `hot_start` is where the warm-up begins, as a share of the peak: 0 is the usual one, 1 is none at all. `power`
    bends "poly"; "wsd" stays at the peak until the last `decay_share` of all steps and falls from there.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"schedule={name!r} must be one of {', '.join(get_args(ScheduleName))}")
    if not 0 < peak < math.inf:
        raise ConfigError(f"learning_rate={peak} must be above 0; BERT-like models take 1e-5 to 1e-3")
    for label, share in {"warmup_share": warmup_share, "hot_start": hot_start, "decay_share": decay_share}.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{label}={share} must be a share between 0 and 1; a tenth is 0.1")
    if not 0 < power < math.inf:
        raise ConfigError(f"power={power} must be above 0; 1 is a straight line, 2 falls faster at first")
    warmup = max(1, round(steps * warmup_share))
    span = max(1, steps - warmup)
    decay = max(1, round(steps * decay_share)) / span

    def rate(step: int) -> float:
        rise = hot_start + (1 - hot_start) * (step + 1) / warmup
        return peak * min(rise, SCHEDULES[name](min(1.0, (steps - step) / span), power, decay))

    return rate


def scaled_rate(base: float, batch_size: int) -> float:
    """A rate meant for the paper's batch, for another batch: it goes with the square root."""
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1")
    return base * math.sqrt(batch_size / REFERENCE_BATCH)
