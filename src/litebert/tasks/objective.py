"""What fine-tuning makes smaller: the task's loss, alone or with something that makes the answers steadier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from litebert.data.batches import Batch
from litebert.errors import ConfigError
from litebert.model import Albert
from litebert.tasks.base import TrainableTask

Adversarial = Literal["none", "freelb", "smart"]

ASCENTS = 2  # steps that the noise takes towards a larger loss
RADIUS = 0.05  # of the noise, relative to the length of the word embeddings of its sequence
SMOOTHNESS = 1.0  # the weight of SMART's distance


def objective(
    task: TrainableTask[Any, Any],
    model: Albert,
    batch: Batch,
    *,
    r_drop: float = 0.0,
    adversarial: Adversarial = "none",
) -> dict[str, Tensor]:
    """`loss` of a batch, with R-Drop's distance weighted by `r_drop` and with adversarial noise; and `task_loss`, the
    task's own alone (for FreeLB both are the one with noise)."""
    if adversarial == "freelb":
        if r_drop:
            raise ConfigError(
                "r_drop and freelb each read a batch several times; use one of them, or smart with r_drop"
            )
        loss = _freelb(task, model, batch)
        return {"loss": loss, "task_loss": loss.detach()}
    scores = task.scores(model, batch)
    plain = loss = task.loss(scores, batch)
    if r_drop:  # dropout makes the second reading another one
        again = task.scores(model, batch)
        loss = (loss + task.loss(again, batch)) / 2 + r_drop * task.divergence(scores, again, batch)
    if adversarial == "smart":
        noise = _radius(model, batch) * 1e-2 * torch.randn(_shape(model, batch), device=batch.input_ids.device)
        still = {name: values.detach() for name, values in scores.items()}
        noise = _ascend(noise, lambda n: task.divergence(still, _with(task, model, batch, n), batch), model, batch)[0]
        loss = loss + SMOOTHNESS * task.divergence(scores, _with(task, model, batch, noise), batch)
    return {"loss": loss, "task_loss": plain.detach()}


def _freelb(task: TrainableTask[Any, Any], model: Albert, batch: Batch) -> Tensor:
    """The mean loss over the noises that an ascent passes on its way."""
    noise = _clipped(torch.randn(_shape(model, batch), device=batch.input_ids.device), _radius(model, batch), batch)
    total = torch.zeros((), device=noise.device)
    for _ in range(ASCENTS):
        noise, loss = _ascend(noise, lambda n: task.loss(_with(task, model, batch, n), batch), model, batch)
        total = total + loss / (ASCENTS + 1)
    return total + task.loss(_with(task, model, batch, noise), batch) / (ASCENTS + 1)


def _ascend(noise: Tensor, measure: Any, model: Albert, batch: Batch) -> tuple[Tensor, Tensor]:
    """The noise after a step that makes the measure larger, and what it measured before."""
    noise = noise.detach().requires_grad_()
    value = measure(noise)
    (slope,) = torch.autograd.grad(value, noise, retain_graph=True)
    radius = _radius(model, batch)
    length = slope.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
    return _clipped(noise.detach() + radius * slope / length, radius, batch), value


def _clipped(noise: Tensor, radius: Tensor, batch: Batch) -> Tensor:
    noise = noise * batch.real[..., None]
    length = noise.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
    return noise * (radius / length).clamp(max=1)


def _radius(model: Albert, batch: Batch) -> Tensor:  # (S, 1, 1)
    with torch.no_grad():
        words = model.encoder.word_embeddings(batch.input_ids).float() * batch.real[..., None]
        return RADIUS * words.flatten(1).norm(dim=1)[:, None, None]


def _shape(model: Albert, batch: Batch) -> tuple[int, int, int]:
    return (*batch.input_ids.shape, model.config.embedding_size)


def _with(task: TrainableTask[Any, Any], model: Albert, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
    return task.scores(model, replace(batch, noise=noise))
