"""The fine-tuning objective: the task's loss, with R-Drop and adversarial training (FreeLB, SMART)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from litebert.data.batches import Batch
from litebert.errors import ConfigError
from litebert.model import Albert
from litebert.tasks.base import TrainableTask

Adversarial = Literal["none", "freelb", "smart"]

ASCENT_STEPS = 2  # of the noise
NOISE_RADIUS = 0.05  # relative to the norm of the word embeddings of the sequence
SMART_WEIGHT = 1.0  # of SMART's divergence


def objective(
    task: TrainableTask[Any, Any],
    model: Albert,
    batch: Batch,
    *,
    r_drop: float = 0.0,
    adversarial: Adversarial = "none",
) -> dict[str, Tensor]:
    """`loss` of a batch, with R-Drop's divergence weighted by `r_drop` and with adversarial noise; and `task_loss`, the
    task's loss alone (with FreeLB it includes the noise)."""
    if adversarial == "freelb":
        if r_drop:
            raise ConfigError(
                "r_drop and freelb each read a batch several times; use one of them, or smart with r_drop"
            )
        loss = _freelb(task, model, batch)
        return {"loss": loss, "task_loss": loss.detach()}
    scores = task.scores(model, batch)
    plain = loss = task.loss(scores, batch)
    if r_drop:  # with other dropout masks
        again = task.scores(model, batch)
        loss = (loss + task.loss(again, batch)) / 2 + r_drop * task.divergence(scores, again, batch)
    if adversarial == "smart":
        constant = {name: values.detach() for name, values in scores.items()}

        def divergence(noise: Tensor) -> Tensor:
            return task.divergence(constant, _scores_with_noise(task, model, batch, noise), batch)

        noise = _noise_radius(model, batch) * 1e-2 * _random_noise(model, batch)
        noise = _ascend(noise, divergence, model, batch)[0]
        loss = loss + SMART_WEIGHT * task.divergence(scores, _scores_with_noise(task, model, batch, noise), batch)
    return {"loss": loss, "task_loss": plain.detach()}


def _freelb(task: TrainableTask[Any, Any], model: Albert, batch: Batch) -> Tensor:
    """The mean loss over the steps of the ascent."""

    def loss_of(noise: Tensor) -> Tensor:
        return task.loss(_scores_with_noise(task, model, batch, noise), batch)

    noise = _clipped(_random_noise(model, batch), _noise_radius(model, batch), batch)
    total = torch.zeros((), device=noise.device)
    for _ in range(ASCENT_STEPS):
        noise, loss = _ascend(noise, loss_of, model, batch)
        total = total + loss / (ASCENT_STEPS + 1)
    return total + loss_of(noise) / (ASCENT_STEPS + 1)


def _ascend(
    noise: Tensor, objective_of: Callable[[Tensor], Tensor], model: Albert, batch: Batch
) -> tuple[Tensor, Tensor]:
    """The noise after a step of gradient ascent on an objective, and the objective before it."""
    noise = noise.detach().requires_grad_()
    value = objective_of(noise)
    (gradient,) = torch.autograd.grad(value, noise, retain_graph=True)
    radius = _noise_radius(model, batch)
    length = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
    return _clipped(noise.detach() + radius * gradient / length, radius, batch), value


def _clipped(noise: Tensor, radius: Tensor, batch: Batch) -> Tensor:
    noise = noise * batch.real[..., None]
    length = noise.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
    return noise * (radius / length).clamp(max=1)


def _noise_radius(model: Albert, batch: Batch) -> Tensor:  # (S, 1, 1)
    with torch.no_grad():
        words = model.encoder.word_embeddings(batch.input_ids).float() * batch.real[..., None]
        return NOISE_RADIUS * words.flatten(1).norm(dim=1)[:, None, None]


def _random_noise(model: Albert, batch: Batch) -> Tensor:  # (S, L, E)
    return torch.randn((*batch.input_ids.shape, model.config.embedding_size), device=batch.input_ids.device)


def _scores_with_noise(task: TrainableTask[Any, Any], model: Albert, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
    return task.scores(model, replace(batch, noise=noise))
