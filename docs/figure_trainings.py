"""Trainings of seconds for the figures of docs/ideas: an elastic student, and three optimizers.

Everything is seeded. Shapes: N texts, C classes.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import litebert
from litebert.cli import main as command
from litebert.data.batches import Batch, Example, collate
from litebert.data.hashing import derive_key
from litebert.data.masking import Masking, select_tokens
from litebert.inference import Model
from litebert.inference.early_exit import quarters
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.studies.demo.data import MESSAGES, NAMES
from litebert.tasks.pretraining import unigram_entropy
from litebert.tokenizer import Tokenizer, train_unigram
from litebert.train.loop import Step, train
from litebert.train.optimizers import OPTIMIZERS, warmup_linear
from litebert.train.options import OptimizerName

POSITIVE_WORDS = ["lovely", "great", "warm", "kind", "bright", "clever", "funny", "gentle", "honest", "perfect"]
NEGATIVE_WORDS = ["boring", "cold", "rude", "dull", "noisy", "slow", "ugly", "lazy", "bitter", "broken"]
NEUTRAL_WORDS = ["the", "film", "and", "it", "was", "a", "rather", "very", "with", "quite", "story"]


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """Synthetic reviews of nine judgements among neutral words, with the verdict: mostly, but not always, the majority.
    Nine to none is clear, five to four is nearly chance."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        liked = rng.randint(0, 9)
        words = [rng.choice(POSITIVE_WORDS) for _ in range(liked)] + [
            rng.choice(NEGATIVE_WORDS) for _ in range(9 - liked)
        ]
        words += [rng.choice(NEUTRAL_WORDS) for _ in range(6)]
        rng.shuffle(words)
        likes = rng.random() < 1 / (1 + math.exp(9 / 2 - liked))
        found.append((" ".join(words), "liked" if likes else "disliked"))
    return found


def elastic_scores(folder: Path) -> tuple[np.ndarray, list[int], list[int]]:
    """Scores of a tiny elastic student for 500 new reviews after each quarter of its passes, (depths, N, C); those
    depths; and the true classes."""
    rows, asked = reviews(2000, 0), reviews(500, 1)
    with (folder / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    tokenizer = train_unigram([text for text, _ in rows], 100)
    torch.manual_seed(0)
    config = AlbertConfig(tokenizer.vocab_size, 32, 64, 8, 4, 256, max_position_embeddings=64)
    Model(Albert(config, pretraining_heads(config)), tokenizer).save(folder / "untaught")
    data, rate = str(folder / "reviews.csv"), ["--learning-rate", "1e-3"]
    teacher, student_folder = str(folder / "teacher"), str(folder / "student")
    command(
        ["finetune", "--model", str(folder / "untaught"), "--train", data, "--epochs", "4", "--out", teacher, *rate]
    )
    command(
        ["distill", "--teacher", teacher, "--data", data, "--elastic", "--epochs", "1", "--out", student_folder, *rate]
    )
    student = litebert.load(student_folder)
    task: Any = student.task
    examples = task.features([task.parse(text, "review") for text, _ in asked], student.tokenizer, student.max_length)
    depths, said = quarters(student.passes), []
    for depth in depths:
        student.passes = depth
        said.append(np.stack([row["scores"].mean(0).numpy() for row in student.score_examples(task, examples)]))
    return np.stack(said), depths, [task.labels.index(label) for _, label in asked]


class TinyTraining:
    """MLM on synthetic orders with three passes of hidden size 64, from scratch."""

    STEPS, BATCH, TEXTS, HELD_OUT = 150, 32, 2000, 8  # every eighth text

    def __init__(self) -> None:
        rng = random.Random(0)
        texts = [
            rng.choice(MESSAGES).format(**{kind: rng.choice(names) for kind, names in NAMES.items()})
            for _ in range(self.TEXTS)
        ]
        self.tokenizer: Tokenizer = train_unigram(texts, 400)
        examples = [Example([encoding]) for encoding in self.tokenizer.encode(texts, max_length=48)]
        self.held_out = self._hidden(examples[:: self.HELD_OUT], 0)
        self.examples = [one for number, one in enumerate(examples) if number % self.HELD_OUT]

    @property
    def unigram_loss(self) -> float:
        """The loss of a model that knows only word frequencies."""
        return unigram_entropy([np.array([number for one in self.examples for number in one.sequences[0].ids[1:-1]])])

    def _hidden(self, examples: Sequence[Example], seed: int) -> tuple[Batch, Tensor]:
        batch = collate(examples, self.tokenizer.pad_id)
        special = [self.tokenizer.cls_id, self.tokenizer.sep_id, self.tokenizer.pad_id]
        allowed = ~np.isin(batch.input_ids.numpy(), special)
        chosen = select_tokens(
            Masking("token", 0.2), allowed, allowed, derive_key(seed, "tiny"), np.arange(len(allowed))
        )
        return batch, torch.from_numpy(chosen)

    def _loss(self, albert: Albert, batch: Batch, places: Tensor) -> Tensor:
        shown = batch.input_ids.masked_fill(places, self.tokenizer.mask_id)
        hidden = albert.encoder(shown, batch.attention_mask, batch.token_type_ids)[places]
        head: Any = albert.heads["mlm"]
        logits = head(hidden, albert.encoder.word_embeddings.weight)
        return torch.nn.functional.cross_entropy(logits, batch.input_ids[places])

    def __call__(self, optimizer: OptimizerName, rate: float, seed: int) -> tuple[float, dict[str, float]]:
        """The loss on held-out texts, and how far a step moves each matrix, as a share of its length, divided by the
        rate: the median over the steps. Of a run that diverges there is nothing to tell."""
        torch.manual_seed(seed)
        config = AlbertConfig(self.tokenizer.vocab_size, 32, 64, 3, 4, 256, max_position_embeddings=64)
        albert = Albert(config, pretraining_heads(config))
        matrices = {name: p for name, p in albert.encoder.named_parameters() if p.dim() == 2 and "pooler" not in name}
        before: dict[str, Tensor] = {}
        steps: dict[str, list[float]] = {name: [] for name in matrices}

        def batches(step: int) -> list[tuple[Batch, Tensor]]:
            chosen = np.random.default_rng([seed, step]).choice(len(self.examples), self.BATCH, replace=False)
            return [self._hidden([self.examples[i] for i in chosen], seed * self.STEPS + step + 1)]

        def watch(step: Step) -> None:
            for name, weight in matrices.items():
                now = weight.detach().clone()
                if name in before:
                    moved = float((now - before[name]).norm() / before[name].norm())
                    steps[name].append(moved / step.learning_rate)
                before[name] = now

        loop = partial(
            train, albert, lambda pair: {"loss": self._loss(albert, *pair)}, batches,
            OPTIMIZERS[optimizer](albert, weight_decay=0.01), warmup_linear(rate, self.STEPS), steps=self.STEPS,
            seed=seed, hooks=[watch],
        )  # fmt: skip
        try:
            loop()
        except litebert.ConfigError:  # which is how the loop says that a run does not recover
            return math.nan, {}
        albert.eval()
        with torch.no_grad():
            loss = float(self._loss(albert, *self.held_out))
        return loss, {name: float(np.median(found)) for name, found in steps.items()}
