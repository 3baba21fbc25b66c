"""The only training loop: pre-training, fine-tuning and everything else is a loss, batches and hooks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.train.optimizers import Schedule
from litebert.train.runtime import stop_on_signal

AnyBatch = TypeVar("AnyBatch")


@dataclass(frozen=True)
class Step:
    """What hooks hear after every step."""

    done: int
    """Steps finished so far, this one included."""
    total: int
    metrics: dict[str, float]
    learning_rate: float
    seconds: float
    """How long this step took."""
    stopping: bool
    """True at the last step and when a stop was asked for: save now."""


Hook = Callable[[Step], None]


def train(
    model: nn.Module,
    loss: Callable[[AnyBatch], Mapping[str, Tensor]],
    batches: Callable[[int], AnyBatch],
    optimizer: torch.optim.Optimizer,
    rate: Schedule,
    *,
    steps: int,
    start: int = 0,
    seed: int = 0,
    clip_norm: float = 1.0,
    hooks: Sequence[Hook] = (),
) -> bool:
    """Run steps `start` to `steps`; True when all were run, False when a stop was asked for on the way.

    `batches(step)` must depend on nothing but the step. `loss(batch)` returns "loss", which is minimised, and anything
    else worth reporting.
    """
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    with stop_on_signal() as stop:
        for step in range(start, steps):
            began = time.perf_counter()
            # dropout too depends on (seed, step) alone, so a resumed run repeats it
            torch.manual_seed(seed * 1_000_003 + step)
            learning_rate = rate(step)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            measured = loss(batches(step))
            metrics = {name: float(value.detach()) for name, value in measured.items()}
            if not math.isfinite(metrics["loss"]):
                raise ConfigError(
                    f"loss={metrics['loss']} at step {step + 1}; "
                    "run it again with a lower --learning-rate, in another --out"
                )
            optimizer.zero_grad(set_to_none=True)
            measured["loss"].backward()
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
            optimizer.step()
            done = step + 1
            stopping = stop.asked  # read once: a request that comes while the hooks run waits for the next step to save
            report = Step(done, steps, metrics, learning_rate, time.perf_counter() - began, done == steps or stopping)
            for hook in hooks:
                hook(report)
            if stopping and done < steps:
                return False
    return True
