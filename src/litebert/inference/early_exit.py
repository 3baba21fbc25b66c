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
from litebert.model.early_exit import iterate
from litebert.model.heads import TextHead
from litebert.model.hooks import is_unmodified
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
    threshold: float
    """A text stops when the probability of its best class reaches this."""


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
    lengths = real.sum(1)
    packed = batch.input_ids[real], lengths, batch.token_type_ids[real]
    backend = encoder.backend
    if (
        backend.has_fast_paths
        and type(head) is TextHead
        and head.body is None
        and not head.training
        and is_unmodified(head)
    ):
        native = backend.classify_early(encoder, *packed, exits.depths, head.linear, exits.threshold)
        if native is not None:
            return {"scores": native[0]}, native[1]
    scores, passes = torch.empty(0), torch.zeros_like(lengths)
    running = torch.arange(len(lengths), device=lengths.device)  # the sequences that are still in the batch
    by_depth = iterate(encoder, *packed, exits.depths)
    first = next(by_depth)
    for depth in exits.depths:
        current = head(encoder.pool(first)).float()  # (S, C)
        scores = current if depth == exits.depths[0] else scores.index_copy(0, running, current)
        passes[running] = depth  # overwritten for those that go on
        goes_on = ~(current.softmax(-1).amax(-1) >= exits.threshold)
        running = running[goes_on]
        if depth == exits.depths[-1] or not len(running):
            break
        first = by_depth.send(goes_on)
    by_depth.close()
    return {"scores": scores}, passes
