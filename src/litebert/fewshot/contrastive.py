"""Tuning an encoder to a few examples by supervised contrastive learning (Khosla et al. 2020).

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
from litebert.fewshot.adapt import share_encoder
from litebert.fewshot.feature_sets import token_frequency
from litebert.fewshot.head import sif_mean
from litebert.fewshot.task import FewShot
from litebert.inference.model import Model
from litebert.model.lora import DepthAdapters
from litebert.tasks.similarity_losses import supervised_contrastive
from litebert.tasks.text import TextInput
from litebert.train.guard import StepGuard
from litebert.train.loop import Hook, train
from litebert.train.optimizers import adamw, warmup_linear

TunedTier = Literal["fast", "full"]

BATCH_SIZE = 64
MIN_TEXTS_PER_CLASS = 4
"""Of a class in a batch, if it has so many."""
MIN_STEPS, EPOCHS = 40, 5
TEMPERATURE = 0.1
MAX_TOKENS = 128
"""Longer texts are truncated."""
TRAINED_FRACTION = 1 / 2
"""Of the passes below the depth, the share that tier fast trains; the states below are computed once."""
LORA_RANK = 8
LEARNING_RATES: dict[TunedTier, float] = {"fast": 3e-3, "full": 2e-4}


def num_steps(examples: int) -> int:
    return max(MIN_STEPS, EPOCHS * math.ceil(examples / BATCH_SIZE))


def num_trained_passes(tier: TunedTier, depth: int) -> int:
    """How many of the first `depth` passes are trained: the last ones of them."""
    return depth if tier == "full" else max(1, round(depth * TRAINED_FRACTION))


def tune_encoder(
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
    """Tune the means after `depth` passes to these texts of these classes. The given model stays as it is.

    Tier fast trains low-rank adapters of the last of these passes, and returns the given model with them. Tier full
    trains a copy of the model.
    """
    steps = steps or num_steps(len(records))
    devices = [base.device] if base.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        texts = _TrainingTexts(base, records, depth)
        adapters = _new_adapters(base) if tier == "fast" else None
        model, sentence_vectors = (base, texts.train_adapters(adapters)) if adapters is not None else texts.train_copy()
        trained: nn.Module = model.encoder if adapters is None else adapters

        def loss(rows: np.ndarray) -> dict[str, Tensor]:
            with torch.autocast(base.device.type, torch.bfloat16, enabled=bool(base.bf16)):
                vectors = sentence_vectors(rows)
            return {"loss": centred_contrastive_loss(vectors, torch.from_numpy(owners[rows]).to(vectors.device))}

        optimizer = adamw(trained, weight_decay=0.01)
        guard = StepGuard({"learner": trained, "optimizer": optimizer}, max_loss_jump=math.inf)
        schedule = warmup_linear(LEARNING_RATES[tier], steps)
        finished = train(
            trained, loss, lambda step: [sample_batch(owners, seed, step)], optimizer, schedule,
            steps=steps, seed=seed, hooks=hooks, guard=guard,
        )  # fmt: skip
    if not finished:
        raise KeyboardInterrupt
    trained.eval()
    return model, adapters


def sample_batch(owners: np.ndarray, seed: int, step: int) -> np.ndarray:
    """The texts of a step: some classes, and some texts of each, so that there are positives."""
    rng = np.random.Generator(np.random.Philox(key=[seed, step]))
    classes = rng.permutation(np.unique(owners))
    per_class = max(MIN_TEXTS_PER_CLASS, BATCH_SIZE // len(classes))
    by_class = [rng.permutation(np.flatnonzero(owners == number))[:per_class] for number in classes]
    ends = np.cumsum([len(rows) for rows in by_class])
    return np.concatenate(by_class[: int(np.searchsorted(ends, BATCH_SIZE)) + 1])


def centred_contrastive_loss(vectors: Tensor, owners: Tensor) -> Tensor:  # (B, H), (B,)
    """Supervised contrastive loss of the vectors without their mean."""
    return supervised_contrastive(F.normalize(vectors - vectors.mean(0), dim=1), owners, TEMPERATURE)


class _TrainingTexts:
    """The first window of each text."""

    def __init__(self, base: Model, records: Sequence[TextInput], depth: int) -> None:
        self.base, self.depth = base, depth
        task = FewShot(["no", "class"], pairs=None)
        windows = task.features(records, base.tokenizer, min(MAX_TOKENS, base.max_length))
        self.examples = [Example(example.sequences[:1]) for example in windows]
        texts = [text for record in records for text in record.texts]
        self.frequency = token_frequency(base, texts).to(base.device)

    def batch(self, rows: Sequence[int] | np.ndarray) -> Batch:
        examples = [self.examples[row] for row in rows]
        return collate(examples, self.base.tokenizer.pad_id).to(self.base.device)

    def mean(self, states: Tensor, batch: Batch) -> Tensor:  # (B, L, H) -> (B, H)
        return sif_mean(states, self.frequency[batch.input_ids], batch.real)

    def train_adapters(self, adapters: DepthAdapters) -> Callable[[np.ndarray], Tensor]:
        """Vectors, (B, H), from the stored states below the passes that are trained."""
        encoder = share_encoder(self.base, adapters).encoder
        adapters.requires_grad_(True)
        below = self.depth - num_trained_passes("fast", self.depth)
        stored = self._states_after(below)

        def vectors(rows: np.ndarray) -> Tensor:
            batch = self.batch(rows)
            states = pad_sequence([stored[row] for row in rows], batch_first=True)
            return self.mean(encoder.resume(states, batch.real, below, self.depth), batch)

        return vectors

    @torch.no_grad()
    def _states_after(self, depth: int) -> list[Tensor]:  # (length, H) each
        stored = []
        for start in range(0, len(self.examples), BATCH_SIZE):
            batch = self.batch(range(start, min(start + BATCH_SIZE, len(self.examples))))
            with torch.autocast(self.base.device.type, torch.bfloat16, enabled=bool(self.base.bf16)):
                inputs = batch.input_ids, batch.real, batch.token_type_ids
                states = self.base.encoder.hidden_states_at([depth], *inputs)[0]
            lengths = batch.lengths.tolist()
            stored += [state[:length].clone() for state, length in zip(states, lengths, strict=True)]
        return stored

    def train_copy(self) -> tuple[Model, Callable[[np.ndarray], Tensor]]:
        """A copy of the model, and its vectors, (B, H)."""
        base = self.base
        albert = share_encoder(base, None)
        albert.encoder = copy.deepcopy(base.encoder).requires_grad_(True)
        model = Model(albert, base.tokenizer, max_length=base.max_length)
        model.bf16 = base.bf16

        def vectors(rows: np.ndarray) -> Tensor:
            batch = self.batch(rows)
            inputs = batch.input_ids, batch.real, batch.token_type_ids
            return self.mean(albert.encoder.hidden_states_at([self.depth], *inputs)[0], batch)

        return model, vectors


def _new_adapters(base: Model) -> DepthAdapters:
    """A copy of the model's own adapters, or new ones."""
    own: Any = base.encoder.adapters
    shape = base.config
    adapters = (
        DepthAdapters(shape.num_hidden_layers, shape.hidden_size, LORA_RANK) if own is None else copy.deepcopy(own)
    )
    return adapters.to(base.device)
