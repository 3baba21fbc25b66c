"""The only training loop: pre-training, fine-tuning and everything else is a loss, batches and hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.train.guard import StepGuard
from litebert.train.optimizers import Schedule
from litebert.train.ranks import SINGLE_PROCESS, Ranks
from litebert.train.signals import stop_on_signal

AnyBatch = TypeVar("AnyBatch")
Loss = Callable[[AnyBatch], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Step:
    """What hooks hear after every step."""

    done: int
    """Steps finished so far, this one included."""
    total: int
    metrics: dict[str, float]
    """Empty when the step was left out."""
    learning_rate: float
    seconds: float
    """How long this step took."""
    stopping: bool
    """True at the last step and when a stop was asked for: save now."""


Hook = Callable[[Step], None]


def train(
    model: nn.Module,
    loss: Loss[AnyBatch],
    batches: Callable[[int], Sequence[AnyBatch]],
    optimizer: torch.optim.Optimizer,
    rate: Schedule,
    *,
    steps: int,
    start: int = 0,
    seed: int = 0,
    clip_norm: float = 1.0,
    hooks: Sequence[Hook] = (),
    guard: StepGuard | None = None,
    on_skipped_step: Callable[[str], None] = lambda message: None,
    on_out_of_memory: Callable[[], bool] = lambda: False,
    attenuate: Callable[[float], float] | None = None,
    prefetch: Callable[[int], None] = lambda step: None,
    ranks: Ranks = SINGLE_PROCESS,
) -> bool:
    """Run steps `start` to `steps`; True when all were run, False when a stop was asked for on the way.

    `batches(step)` must depend on nothing but the step: the micro-batches whose gradients add up to the step's.
    `loss(batch)` returns "loss", which is minimised, and anything else worth reporting; figures of micro-batches and
    ranks are added. It may leave the gradients in the parameters itself and return a loss that needs none.
    `attenuate` hears the norm of the gradients, may change them, and returns a factor for the rate.
    `prefetch` hears of the step to come when the host has handed over all of this one and waits for the device.
    When memory runs out `on_out_of_memory` may make the micro-batches smaller (and say True): the step is tried again.
    """
    model.train()
    guard = guard or StepGuard({"model": model, "optimizer": optimizer})
    parameters = [p for p in model.parameters() if p.requires_grad]
    with stop_on_signal() as stop:
        step = start
        while step < steps:
            began = time.perf_counter()
            learning_rate = rate(step)
            metrics: dict[str, float] = {}
            if step not in guard.skipped:
                guard.snapshot_if_due(step)
                reseed(seed_of(seed, step, ranks.rank))
                optimizer.zero_grad(set_to_none=True)
                try:
                    measured = _accumulate(loss, batches(step), parameters, ranks)
                except torch.OutOfMemoryError:
                    if not on_out_of_memory():
                        raise
                    continue
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
                figures = _ask(measured, norm, stop.requested, ranks)
                # Here the host would wait for the device; it looks after the update, unless that needs the norm or
                # a rank may be lost, which is heard of here.
                if ranks.world_size > 1:
                    figures()
                factor = 1.0 if attenuate is None else attenuate(figures()[0]["gradient_norm"])
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * factor * group.get("scale", 1.0)
                guard.done = None
                optimizer.step()
                prefetch(step + 1)
                metrics, asked = figures()
                # A request to stop that comes later waits for the next step, so that all ranks stop at the same one
                # and the hooks hear of it and can save.
                if problem := guard.problem_of(metrics["loss"], metrics["gradient_norm"]):
                    back = guard.roll_back(step, problem)
                    on_skipped_step(f"step {step + 1}: {problem}; going back to step {back} and leaving this batch out")
                    step = back
                    continue
            else:
                asked = ranks.any(stop.requested)
            step += 1
            guard.done = step
            report = Step(step, steps, metrics, learning_rate, time.perf_counter() - began, step == steps or asked)
            for hook in hooks:
                hook(report)
            if asked and step < steps:
                return False
    return True


def reseed(seed: int) -> None:
    """`torch.manual_seed` of the devices in use; seeding all devices takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def seed_of(seed: int, step: int, rank: int = 0) -> int:
    """Dropout too depends on (seed, step, rank) alone, so a resumed run repeats it."""
    return (seed * 1_000_003 + step + rank * 1_000_000_007) % (1 << 63)


def _accumulate(
    loss: Loss[AnyBatch], pieces: Sequence[AnyBatch], parameters: Sequence[nn.Parameter], ranks: Ranks
) -> dict[str, Tensor]:
    """Add up the gradients and the figures of the micro-batches; ranks exchange gradients at the last one."""
    total: dict[str, Tensor] = {}
    for number, piece in enumerate(pieces, start=1):
        waiting: AbstractContextManager[object] = nullcontext() if number == len(pieces) else ranks.no_sync()
        with waiting:
            measured = loss(piece)
            if "loss" not in measured:
                raise ConfigError('the loss function must return a figure called "loss"')
            if measured["loss"].requires_grad:
                (measured["loss"] * ranks.world_size).backward()  # which takes the mean over ranks; ours is a sum
            elif all(parameter.grad is None for parameter in parameters):
                raise ConfigError('"loss" depends on no parameter that learns, and its function left no gradients')
        for name, value in measured.items():
            total[name] = total[name] + value.detach() if name in total else value.detach()
    return total


def _ask(
    measured: Mapping[str, Tensor], norm: Tensor, asked: bool, ranks: Ranks
) -> Callable[[], tuple[dict[str, float], bool]]:
    """The step's figures as numbers and whether any rank was asked to stop, in one exchange and one transfer.

    Whoever calls what this returns waits for what the device has been given so far, and for nothing that came later.
    """
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    flag = torch.full_like(norm, float(asked), dtype=torch.float32)
    figures = ranks.sum(torch.stack([*(value.float() for value in measured.values()), flag]))
    on_host = torch.cat([figures, norm.float().reshape(1)]).to("cpu", non_blocking=True)
    there = torch.cuda.Event() if norm.is_cuda else None
    if there is not None:
        there.record(torch.cuda.current_stream(norm.device))

    def read() -> tuple[dict[str, float], bool]:
        if there is not None:
            there.synchronize()
        *values, flagged, length = on_host.tolist()
        return dict(zip(measured, values, strict=True)) | {"gradient_norm": length}, bool(flagged)

    return read
