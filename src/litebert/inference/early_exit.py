"""Easy texts stop early: after some of the passes, those of which the model is sure have their answer, and only the
others go on.

Since all passes are one layer and texts lie end to end without padding, those that go on are simply a shorter batch.

Shapes: S sequences, T tokens, H hidden, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from litebert.data.batches import Batch
from litebert.errors import ConfigError
from litebert.model import Albert
from litebert.model.heads import TextHead
from litebert.model.hooks import is_untouched
from litebert.tasks import Classify, Task
from litebert.tasks.base import Scores
from litebert.tasks.classify import Exit

THRESHOLDS = 41
"""How many are tried, evenly spread over how sure the model is."""


@dataclass(frozen=True)
class Exits:
    """Where to look, and when to stop."""

    depths: Sequence[int]
    """After these passes; the last is where all stop."""
    sure: float
    """A text stops when its likeliest class is this likely."""


def can_exit(task: Task[Any, Any] | None) -> bool:
    """Does it tell one class of a text, from the state of [CLS]?"""
    return type(task) is Classify and task.head_kind in ("linear", "mlp")


def quarters(passes: int) -> list[int]:
    """Where an elastic model has learned to answer: after each quarter of its passes."""
    return sorted({-(-passes * quarter // 4) for quarter in (1, 2, 3, 4)})


def exits_for(task: Task[Any, Any] | None, passes: int, speed: float) -> Exits | None:
    """With which texts take 1 / speed of so many passes on the average, as those took that were held out."""
    if not 1 <= speed < float("inf"):
        raise ConfigError(f"speed={speed} must be 1, which is all passes for all texts, or more; 2 is usual")
    if speed == 1:
        return None
    known = task.exits if isinstance(task, Classify) and can_exit(task) else []
    if not known:
        raise ConfigError(
            f"speed={speed}: this model has not learned to answer early; only classifiers do, with litebert distill "
            "--elastic"
        )
    chosen = next((one for one in known if one.passes <= passes / speed), None)
    if chosen is None:
        raise ConfigError(
            f"speed={speed} is more than this model has; it can be {passes / known[-1].passes:.1f} at most"
        )
    return Exits(quarters(passes), chosen.sure)


def measured_exits(scores: np.ndarray, depths: Sequence[int]) -> list[Exit]:
    """From the scores of texts after each of these depths, (depths, N, C), what each threshold comes to."""
    likely = torch.from_numpy(scores).softmax(-1).numpy()
    best, sure = likely.argmax(-1), likely.max(-1)  # (depths, N)
    found = []
    for threshold in np.quantile(sure[:-1], np.linspace(1, 0, THRESHOLDS)).tolist() if len(depths) > 1 else ():
        stops = sure >= threshold
        stops[-1] = True
        at = stops.argmax(0)  # (N,) the first
        passes = float(np.asarray(depths)[at].mean())
        answers = np.take_along_axis(best, at[None], axis=0)[0]
        found.append(Exit(threshold, passes, float((answers == best[-1]).mean())))
    return found


def early_scores(albert: Albert, task: Task[Any, Any], batch: Batch, exits: Exits) -> tuple[Scores, Tensor]:
    """What the head says of each sequence where it stopped, and after how many passes, (S,)."""
    encoder, head, real = albert.encoder, albert.heads[task.head_name], batch.real
    lengths, given = real.sum(1), (batch.input_ids[real], batch.token_type_ids[real])
    if type(head) is TextHead and head.body is None and not head.training and is_untouched(head):
        found = encoder.until_sure(given[0], lengths, given[1], exits.depths, head.linear, exits.sure)
        if found is not None:
            return {"scores": found[0]}, found[1]
    passes = torch.zeros_like(lengths)
    scores: list[Tensor] = []

    def stops(first: Tensor, left: Tensor, depth: int) -> Tensor:
        said = head(encoder.pool(first)).float()  # (S, C)
        if not scores:
            scores.append(torch.empty_like(said))
        scores[0][left], passes[left] = said, depth  # of those that go on, until the next look
        if depth == exits.depths[-1]:
            return torch.ones_like(left, dtype=torch.bool)
        return said.softmax(-1).amax(-1) >= exits.sure

    encoder.until(given[0], lengths, given[1], exits.depths, stops)
    return {"scores": scores[0]}, passes
