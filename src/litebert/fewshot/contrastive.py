"""Some steps that bring texts of one class together and others apart (supervised contrast, Khosla et al. 2020).

Shapes: N texts, B of them in a batch, L columns, H hidden.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from litebert.data.batches import Batch, Example, collate
from litebert.fewshot.adapt import shell
from litebert.fewshot.feature_sets import frequency_of
from litebert.fewshot.head import mean_of
from litebert.fewshot.task import FewShot
from litebert.inference import Model
from litebert.model.lora import DepthAdapters
from litebert.tasks.similarity_losses import contrast as supervised
from litebert.tasks.text import TextInput
from litebert.train.guard import Guard
from litebert.train.loop import Hook, train
from litebert.train.optimizers import adamw, warmup_linear

TunedTier = Literal["fast", "full"]

BATCH = 64
TOGETHER = 4
"""Texts of a class in a batch, at least, where there are so many."""
LEAST_STEPS, EPOCHS = 40, 5
TEMPERATURE = 0.1
LENGTH = 128
"""Tokens that are learned from; longer texts are cut."""
UPPER = 1 / 2
"""Of the passes that are read learn in tier fast; what the others say is kept."""
RANK = 8
RATES: dict[TunedTier, float] = {"fast": 3e-3, "full": 2e-4}


def steps_for(examples: int) -> int:
    return max(LEAST_STEPS, EPOCHS * math.ceil(examples / BATCH))


def learning_passes(tier: TunedTier, depth: int) -> int:
    """Of the first `depth`, how many learn: the last ones of them."""
    return depth if tier == "full" else max(1, round(depth * UPPER))


def tune(
    base: Model,
    records: Sequence[TextInput],
    owners: np.ndarray,
    tier: TunedTier,
    depth: int,
    *,
    steps: int | None = None,
    hooks: Sequence[Hook] = (),
    seed: int = 0,
) -> tuple[Model, DepthAdapters | None]:
    """The model for these texts of these classes, and what changes it; the given one stays as it is.

    What is brought together are the means after `depth` passes. Tier fast learns low-rank changes of the last of these;
    the model is the given one. Tier full learns a copy.
    """
    steps = steps or steps_for(len(records))
    devices = [base.device] if base.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        lesson = _Lesson(base, records, depth)
        adapters = _adapters(base) if tier == "fast" else None
        model, vectors = (base, lesson.from_kept(adapters)) if adapters is not None else lesson.from_copy()
        learner: nn.Module = model.encoder if adapters is None else adapters

        def loss(chosen: np.ndarray) -> dict[str, Tensor]:
            with torch.autocast(base.device.type, torch.bfloat16, enabled=bool(base.bf16)):
                found = vectors(chosen)
            return {"loss": contrast(found, torch.from_numpy(owners[chosen]).to(found.device))}

        optimizer = adamw(learner, weight_decay=0.01)
        guard = Guard({"learner": learner, "optimizer": optimizer}, spike=math.inf)
        finished = train(
            learner, loss, lambda step: [batch_at(owners, seed, step)], optimizer, warmup_linear(RATES[tier], steps),
            steps=steps, seed=seed, hooks=hooks, guard=guard,
        )  # fmt: skip
    if not finished:
        raise KeyboardInterrupt
    learner.eval()
    return model, adapters


def batch_at(owners: np.ndarray, seed: int, step: int) -> np.ndarray:
    """Which texts a step sees: some classes, and some texts of each, so that there is something to bring together."""
    chance = np.random.Generator(np.random.Philox(key=[seed, step]))
    classes = chance.permutation(np.unique(owners))
    each = max(TOGETHER, BATCH // len(classes))
    some = [chance.permutation(np.flatnonzero(owners == one))[:each] for one in classes]
    ends = np.cumsum([len(texts) for texts in some])
    return np.concatenate(some[: int(np.searchsorted(ends, BATCH)) + 1])


def contrast(vectors: Tensor, owners: Tensor) -> Tensor:  # (B, H), (B,)
    """Supervised contrast, in which what all have in common does not count."""
    return supervised(F.normalize(vectors - vectors.mean(0), dim=1), owners, TEMPERATURE)


class _Lesson:
    """Texts as they are learned from: the beginning of each."""

    def __init__(self, base: Model, records: Sequence[TextInput], depth: int) -> None:
        self.base, self.depth = base, depth
        task = FewShot(["no", "class"], pairs=None)
        windows = task.features(records, base.tokenizer, min(LENGTH, base.max_length))
        self.examples = [Example(example.sequences[:1]) for example in windows]
        self.frequency = frequency_of(base, [text for record in records for text in record.texts]).to(base.device)

    def batch(self, chosen: Sequence[int] | np.ndarray) -> Batch:
        examples = [self.examples[number] for number in chosen]
        return collate(examples, self.base.tokenizer.pad_id).to(self.base.device)

    def from_kept(self, adapters: DepthAdapters) -> Callable[[np.ndarray], Tensor]:
        """Vectors, (B, H), from what is kept of the lower passes, which do not learn."""
        encoder = shell(self.base, adapters).encoder
        adapters.requires_grad_(True)
        below = self.depth - learning_passes("fast", self.depth)
        kept = self._after(below)

        def vectors(chosen: np.ndarray) -> Tensor:
            batch = self.batch(chosen)
            states = pad_sequence([kept[number] for number in chosen], batch_first=True)
            last = encoder.onwards(states, batch.real, below, self.depth)
            return mean_of(last, self.frequency[batch.input_ids], batch.real)

        return vectors

    @torch.no_grad()
    def _after(self, depth: int) -> list[Tensor]:  # (length, H) each
        found = []
        for start in range(0, len(self.examples), BATCH):
            batch = self.batch(range(start, min(start + BATCH, len(self.examples))))
            with torch.autocast(self.base.device.type, torch.bfloat16, enabled=bool(self.base.bf16)):
                given = batch.input_ids, batch.real, batch.token_type_ids
                states = self.base.encoder.after_passes([depth], *given)[0]
            found += [state[:length].clone() for state, length in zip(states, batch.lengths.tolist(), strict=True)]
        return found

    def from_copy(self) -> tuple[Model, Callable[[np.ndarray], Tensor]]:
        """A model of its own, and its vectors, (B, H)."""
        base = self.base
        albert = shell(base, None)
        albert.encoder = copy.deepcopy(base.encoder).requires_grad_(True)
        model = Model(albert, base.tokenizer, max_length=base.max_length)
        model.bf16 = base.bf16

        def vectors(chosen: np.ndarray) -> Tensor:
            batch = self.batch(chosen)
            given = batch.input_ids, batch.real, batch.token_type_ids
            states = albert.encoder.after_passes([self.depth], *given)[0]
            return mean_of(states, self.frequency[batch.input_ids], batch.real)

        return model, vectors


def _adapters(base: Model) -> DepthAdapters:
    """Those that the model has, to go on from, or new ones."""
    own: Any = base.encoder.adapters
    shape = base.config
    found = DepthAdapters(shape.num_hidden_layers, shape.hidden_size, RANK) if own is None else copy.deepcopy(own)
    return found.to(base.device)
