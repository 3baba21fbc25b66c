"""What the command line must know before torch is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from litebert.errors import ConfigError

OptimizerName = Literal["adamw", "lamb", "muon"]
ScheduleName = Literal["linear", "cosine", "poly", "wsd", "constant"]
Bounds = Literal["none", "view", "project"]
Squash = Literal["none", "tanh", "softplus"]
Parallel = Literal["ddp", "fsdp"]
Precision = Literal["auto", "fp32", "bf16", "bf16-pure", "fp8"]


@dataclass(frozen=True)
class Strategies:
    """Each is off by default. Hot start, a warm-up from above zero, is a setting of the schedule."""

    layer_decay_rate: float = 1.0
    """λ: pass d learns λ^(L−1−d) times as fast as the last one, the embeddings λ^L times."""
    depth_factors: tuple[float, ...] = ()
    """Further factors, one for each pass, first to last, for shapes that are no powers of one number."""
    scale_embedding: float = 1.0
    """Multiplies the learning rate of the embedding tables."""
    layer_weight_decay: float = 1.0
    """Each pass is decayed so many times as much as the one after it; a shared weight by the mean of its passes."""
    unfreeze_steps: int = 0
    """Passes begin to learn one after the other, from the last to the first, over this many steps; 0 = at once."""
    bounds: Bounds = "none"
    """Bound every matrix of layer l by half of max / 2^l, as each pass sees it or, with project, as it is stored."""
    bound_max: float | None = None
    """That max; by default 2^L times the standard deviation of the start, which bounds the last layer by one of it."""
    squash: Squash = "none"
    """Bend every entry of the gradient towards zero before the optimizer sees it."""
    squash_temperature: float = 1.0
    """T in T · squash(g / T): tanh stops entries at T, softplus takes T ln 2 from those far above it."""
    cold_factor: float = 0.0
    """c: a step is 1 / (1 + c · ‖g‖) as long, ‖g‖ being the norm of the gradient before clipping."""
    step_temperature: float = 1.0
    """Multiplies every step, last of all."""

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay_rate <= 1:
            raise ConfigError(f"layer_decay_rate={self.layer_decay_rate} must be above 0 and at most 1; try 0.9")
        for name in ("layer_weight_decay", "squash_temperature", "step_temperature", "bound_max"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}={value} must be above 0; leave it out for the default")
        for name in ("scale_embedding", "cold_factor", "unfreeze_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be 0 or more; leave it out for the default")
        factors = self.depth_factors
        if factors and (not any(factors) or not all(0 <= factor < math.inf for factor in factors)):
            raise ConfigError(f"depth_factors={factors} must be 0 or more and not all 0; 1 changes nothing")
        for name, kind in (("bounds", Bounds), ("squash", Squash)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be one of {', '.join(get_args(kind))}")
