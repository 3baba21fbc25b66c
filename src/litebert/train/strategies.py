"""Training strategies by depth: how fast, how bounded and how early each layer learns, shared or not.

They know parameters, their names and the passes that use them, nothing of the model. Let L be the number of passes,
d = 0 … L − 1 one of them, d = −1 what comes before the first (the embeddings). docs/strategies.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.train.optimizers import ParameterOptions
from litebert.train.options import Strategies

Depths = Mapping[str, tuple[int, ...]]
"""The passes that use a parameter, by its name. One that is not in here belongs to no layer (a head)."""


def strategies_for_model(strategies: Strategies, layers: int, std: float) -> Strategies:
    """The strategies for a model of this many passes whose weights start with this standard deviation."""
    given = len(strategies.depth_factors)
    if given not in (0, layers):
        raise ConfigError(f"depth_factors has {given} numbers for {layers} passes; give {layers}")
    return replace(strategies, bound_max=2.0**layers * std) if strategies.bound_max is None else strategies


def parameter_options(strategies: Strategies, model: nn.Module, depths: Depths) -> dict[str, ParameterOptions]:
    """What the optimizer must know of each parameter: its rate, its decay, when it opens, and its bound.

    A weight that several passes use has the rate of the fastest of them; between them `weight_hook` shares it out.
    """
    parameters = dict(model.named_parameters())
    unknown = sorted(depths.keys() - parameters.keys())
    if unknown:
        raise ConfigError(f"{unknown[0]}: the model has no such parameter; give its names as named_parameters() does")
    layers = 1 + max((depth for users in depths.values() for depth in users), default=0)
    options = {name: ParameterOptions() for name in parameters}
    for name, users in depths.items():
        if users:
            decays = [strategies.layer_weight_decay ** (layers - 1 - depth) for depth in users]
            opens = _opens(strategies, users[-1], layers) if strategies.unfreeze_steps else None
            projected = strategies.bounds == "project" or (strategies.bounds == "view" and len(users) == 1)
            bounded = projected and users[0] >= 0 and parameters[name].dim() >= 2
            options[name] = ParameterOptions(
                scale=max(_factor(strategies, depth, layers) for depth in users),
                decay=sum(decays) / len(decays),
                opens=opens if users[-1] < layers - 1 else None,
                bound=_bound(strategies, users[0]) if bounded else None,
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            tuned = options[f"{name}.weight"]
            options[f"{name}.weight"] = replace(tuned, scale=tuned.scale * strategies.scale_embedding)
    return options


def weight_hook(
    strategies: Strategies, depths_of: Callable[[int | None], Depths], step: int = 0
) -> Callable[[str, Tensor, int, int], Tensor] | None:
    """The hook through which a pass sees a weight that it shares with others; None where there is nothing to see.

    `depths_of(passes)` names the users of each weight in a run of so many passes, or of all for None. Only unfreezing
    makes the hook depend on the step: then set a new one before every step.
    """
    weighted = strategies.layer_decay_rate != 1 or strategies.depth_factors or strategies.unfreeze_steps > step
    shared = {name for name, users in depths_of(None).items() if len(users) > 1}
    if not shared or not (weighted or strategies.bounds == "view"):
        return None

    @cache
    def factors(passes: int) -> dict[str, dict[int, float]]:
        users = {name: used for name, used in depths_of(passes).items() if name in shared}
        return {name: _gradient_factors(strategies, used, passes, step) for name, used in users.items()}

    def hook(name: str, weight: Tensor, depth: int, passes: int) -> Tensor:
        if name not in shared:
            return weight  # one pass only: the rate of its group and its own bound do all of this
        if strategies.bounds == "view" and weight.dim() >= 2:
            bound = _bound(strategies, depth)
            weight = weight.clamp(-bound, bound)
        factor = factors(passes)[name][depth]
        return weight if factor == 1 else _ScaleGradient.apply(weight, factor)

    return hook


def attenuate(strategies: Strategies, parameters: Iterable[nn.Parameter], norm: float) -> float:
    """After clipping: bend the gradients, and return the factor of the rate. `norm` is that before clipping.

    Adam, LAMB and Muon cancel whatever multiplies a whole gradient, so the cold factor multiplies the rate; squashing
    changes the proportions within a gradient and is done there.
    """
    if strategies.squash != "none":
        for parameter in parameters:
            if parameter.grad is not None:
                _squash(parameter.grad, strategies)
    return 1 / (1 + strategies.cold_factor * norm)


def gradient_attenuator(strategies: Strategies, parameters: Iterable[nn.Parameter]) -> Callable[[float], float] | None:
    """`attenuate` as a function of the norm, for the loop; None where it would change nothing."""
    idle = strategies.squash == "none" and strategies.cold_factor == 0
    return None if idle else partial(attenuate, strategies, list(parameters))


def unfreeze(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Give the groups of layers that are still opening their rate at this step; call it before every step."""
    for group in optimizer.param_groups:
        if group.get("opens") is not None:
            group["scale"] = group["full_scale"] * _ramp(group["opens"], step)


@torch.no_grad()
def project(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Clamp what is bounded. Fits `optimizer.register_step_post_hook(project)`, which does it after every step."""
    for group in optimizer.param_groups:
        if group.get("bound") is not None:
            for parameter in group["params"]:
                parameter.clamp_(-group["bound"], group["bound"])


def _factor(strategies: Strategies, depth: int, layers: int) -> float:
    """How fast a pass learns, compared with a last pass without a factor of its own."""
    factors = strategies.depth_factors
    own = factors[min(depth, len(factors) - 1)] if factors and depth >= 0 else 1.0
    return own * strategies.layer_decay_rate ** (layers - 1 - depth)


def _gradient_factors(strategies: Strategies, users: tuple[int, ...], passes: int, step: int) -> dict[int, float]:
    """s_d for the passes that use one weight; without unfreezing they sum up to the number of passes."""
    factors = {depth: _factor(strategies, depth, passes) for depth in users}
    total = sum(factors.values())
    if total == 0:
        return factors
    opened = dict.fromkeys(users, 1.0)
    if strategies.unfreeze_steps:  # the last user opens with the rate of the weight, see `parameter_options`
        opened |= {depth: _ramp(_opens(strategies, depth, passes), step) for depth in users[:-1]}
    return {depth: opened[depth] * len(users) * factor / total for depth, factor in factors.items()}


def _opens(strategies: Strategies, depth: int, layers: int) -> tuple[float, float]:
    """The steps between which a pass goes from frozen to free. The last one is free at step 0."""
    one = strategies.unfreeze_steps / layers
    return one * (layers - 2 - depth), one * (layers - 1 - depth)


def _ramp(opens: Sequence[float], step: int) -> float:
    return min(1.0, max(0.0, (step - opens[0]) / (opens[1] - opens[0])))


def _bound(strategies: Strategies, layer: int) -> float:
    if strategies.bound_max is None:
        raise ConfigError("bound_max=None is not a number yet; call strategies_for_model(strategies, layers, std)")
    return strategies.bound_max / 2.0 ** (layer + 1)


def _squash(gradient: Tensor, strategies: Strategies) -> None:
    temperature = strategies.squash_temperature
    if strategies.squash == "tanh":
        gradient.div_(temperature).tanh_().mul_(temperature)
    else:
        size = gradient.abs() / temperature
        # softplus(x) - ln 2 = log1p((eˣ - 1) / 2), which keeps its digits near 0; far out it is x - ln 2
        bent = torch.where(size > 20, size - math.log(2), torch.log1p(torch.expm1(size.clamp(max=20)) / 2))
        gradient.copy_(gradient.sign() * bent * temperature)


class _ScaleGradient(torch.autograd.Function):
    """The tensor itself, whose gradient is multiplied. p·s + (p·(1−s)).detach() would change p in its last bit."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, factor: float) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
