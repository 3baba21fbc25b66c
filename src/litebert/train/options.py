"""Settings of training that the command line needs before torch is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
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
    """Each is off by default. A hot start (a warm-up that begins above zero) is a setting of the schedule."""

    layer_decay_rate: float = 1.0
    """Layer-wise learning-rate decay λ: the rate of pass d is λ^(L−1−d) times that of the last pass, of the embeddings
    λ^L."""
    depth_factors: tuple[float, ...] = ()
    """Further learning-rate factors, one per pass, first to last."""
    scale_embedding: float = 1.0
    """Factor of the learning rate of the embedding tables."""
    layer_weight_decay: float = 1.0
    """Each pass has this factor times the weight decay of the next one; a shared weight has the mean of its passes."""
    unfreeze_steps: int = 0
    """Gradual unfreezing of the passes, from the last to the first, over this many steps; 0 = off."""
    bounds: Bounds = "none"
    """Clamp weights after every step: those of layer l to ± max / 2^(l+1)."""
    bound_max: float | None = None
    """That max; by default 2^L times the initial standard deviation, which is then the bound of the last layer."""
    squash: Squash = "none"
    """Attenuate large gradient entries before the optimizer step."""
    squash_temperature: float = 1.0
    """T in T · squash(g / T): tanh saturates entries at T, softplus subtracts T ln 2 from entries far above it."""
    cold_factor: float = 0.0
    """c: the step is scaled by 1 / (1 + c · ‖g‖), where ‖g‖ is the gradient norm before clipping."""

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay_rate <= 1:
            raise ConfigError(f"layer_decay_rate={self.layer_decay_rate} must be above 0 and at most 1; try 0.9")
        for name in ("layer_weight_decay", "squash_temperature", "bound_max"):
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


STRATEGY_NAMES = tuple(field.name for field in fields(Strategies))
