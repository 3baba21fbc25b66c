"""Early exit for classifiers: texts whose class is clear after some of the passes are answered then.

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
"""The number of thresholds tried: quantiles of the confidence."""


@dataclass(frozen=True)
class EarlyExitPolicy:
    """At which depths to score a text, and when to stop."""

    depths: Sequence[int]
    """Numbers of passes; all texts stop at the last."""
    threshold: float
    """A text stops when the probability of its predicted class reaches this."""


def can_exit(task: Task[Any, Any] | None) -> bool:
    """Whether the task predicts one class of a text from the state of [CLS]."""
    return type(task) is Classify and task.head_kind in ("linear", "mlp")


def quarters(passes: int) -> list[int]:
    """The depths at which an elastic model is trained to answer: each quarter of its passes."""
    return sorted({-(-passes * quarter // 4) for quarter in (1, 2, 3, 4)})


def early_exit_policy(task: Task[Any, Any] | None, passes: int, speed: float) -> EarlyExitPolicy | None:
    """The policy with which held-out texts took 1 / speed of these passes on average; None for speed 1."""
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
    return EarlyExitPolicy(quarters(passes), chosen.sure)


def measured_exits(scores: np.ndarray, depths: Sequence[int]) -> list[Exit]:
    """Mean passes and agreement with the last depth for each threshold, from scores at all depths, (depths, N, C)."""
    probabilities = torch.from_numpy(scores).softmax(-1).numpy()
    predicted, confidence = probabilities.argmax(-1), probabilities.max(-1)  # (depths, N)
    table = []
    for threshold in np.quantile(confidence[:-1], np.linspace(1, 0, THRESHOLDS)).tolist() if len(depths) > 1 else ():
        exits = confidence >= threshold
        exits[-1] = True
        exit_index = exits.argmax(0)  # (N,) the first
        passes = float(np.asarray(depths)[exit_index].mean())
        predictions = np.take_along_axis(predicted, exit_index[None], axis=0)[0]
        table.append(Exit(threshold, passes, float((predictions == predicted[-1]).mean())))
    return table


def early_scores(albert: Albert, task: Task[Any, Any], batch: Batch, exits: EarlyExitPolicy) -> tuple[Scores, Tensor]:
    """The scores of each sequence at the depth where it stopped, and these depths, (S,)."""
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
