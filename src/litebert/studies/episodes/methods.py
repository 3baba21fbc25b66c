"""Ways to learn an episode, all on the same encoder. Each is a function that returns the accuracy on its queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from litebert.builtin import folder_of
from litebert.data.batches import collate
from litebert.data.episodes import Episode
from litebert.errors import ConfigError, require_extra
from litebert.fewshot.adapt import adapt_frozen
from litebert.inference import Model
from litebert.measure.baselines import bag_of_words
from litebert.meta.algorithms import episode_accuracy
from litebert.meta.learner import EpisodeTexts, Learner
from litebert.model import Albert
from litebert.studies.episodes import Method
from litebert.tasks import Classify
from litebert.tasks.text import TextInput
from litebert.train.loop import train
from litebert.train.optimizers import adamw, warmup_linear
from litebert.trainers.initial_model import default_learning_rate

FINETUNE_STEPS = 50
SETFIT_STEPS = 50
INVERSE_PENALTY = 100.0
"""scikit-learn's C, for logistic regression on unit vectors."""


@dataclass(frozen=True)
class EncodedTable:
    """The table that episodes are drawn from, as a model has encoded it before the first episode."""

    texts: Sequence[str]
    labels: Sequence[str]
    model: Model
    ids: Sequence[Sequence[int]]
    """Token ids of the texts; empty for texts that are in no episode."""
    vectors: np.ndarray
    """Their unit vectors."""
    learner: Learner | None = None
    """The meta-trained learner, for models that were meta-trained."""

    def texts_and_labels(self, episode: Episode) -> tuple[list[str], list[str], list[str], list[str]]:
        """Of the support set, then of the queries."""
        support, queries = episode.rows()
        return (
            [self.texts[row] for row in support], [self.labels[row] for row in support],
            [self.texts[row] for row in queries], [self.labels[row] for row in queries],
        )  # fmt: skip

    def vectors_and_classes(self, episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of the support set, then of the queries."""
        (support, queries), (classes, truth) = episode.rows(), episode.class_indices()
        return self.vectors[support], classes, self.vectors[queries], truth


def majority(table: EncodedTable, episode: Episode) -> float:
    from litebert.measure.baselines import majority as share

    _, labels, _, truth = table.texts_and_labels(episode)
    return share(labels, truth)


def words(table: EncodedTable, episode: Episode) -> float:
    """Logistic regression on tf-idf."""
    return bag_of_words(*table.texts_and_labels(episode))


def probe(table: EncodedTable, episode: Episode) -> float:
    """Logistic regression on the vectors of the frozen model."""
    linear = require_extra("sklearn.linear_model", "train")
    vectors, classes, queries, truth = table.vectors_and_classes(episode)
    return float(
        linear.LogisticRegression(C=INVERSE_PENALTY, max_iter=1000).fit(vectors, classes).score(queries, truth)
    )


def prototypes(table: EncodedTable, episode: Episode) -> float:
    """The class whose mean vector has the highest cosine with the query."""
    vectors, classes, queries, truth = table.vectors_and_classes(episode)
    means = np.stack([vectors[classes == number].mean(0) for number in range(episode.way)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return float(((queries @ means.T).argmax(1) == truth).mean())


def adapted(table: EncodedTable, episode: Episode) -> float:
    """`litebert adapt` as users call it: it may use the names of the classes."""
    texts, labels, queries, truth = table.texts_and_labels(episode)
    answers = adapt_frozen(table.model, texts, labels).predict(queries)
    return float(np.mean([answer.label == label for answer, label in zip(answers, truth, strict=True)]))


def as_meta_trained(table: EncodedTable, episode: Episode) -> float:
    """The algorithm that the model was meta-trained with, inner steps included."""
    assert table.learner is not None
    return episode_accuracy(table.learner, EpisodeTexts.of(episode, table.ids, table.model.device))


def finetuned(table: EncodedTable, episode: Episode) -> float:
    """A few full-batch steps on all weights and a new head."""
    texts, labels, queries, truth = table.texts_and_labels(episode)
    start, device = table.model, table.model.device
    records = [TextInput(text, label=label) for text, label in zip(texts, labels, strict=True)]
    task = Classify.learn_from(records)
    torch.manual_seed(0)
    albert = Albert(start.config, {task.head_name: task.head(start.config)})
    albert.encoder.load_state_dict(start.encoder.state_dict())
    model = Model(albert.to(device), start.tokenizer, task, start.max_length)
    model.bf16 = start.bf16
    examples = task.training_examples(records, task.features(records, model.tokenizer, model.max_length))
    batch = collate(examples, model.tokenizer.pad_id).to(device)

    def loss(batch: Any) -> dict[str, torch.Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=model.bf16):
            return {"loss": task.loss(task.scores(albert, batch), batch)}

    schedule = warmup_linear(default_learning_rate(start), FINETUNE_STEPS)
    optimizer = adamw(albert, weight_decay=0.01)
    if not train(albert, loss, lambda step: [batch], optimizer, schedule, steps=FINETUNE_STEPS):
        raise KeyboardInterrupt
    answers = model.predict(queries)
    return float(np.mean([answer.label == label for answer, label in zip(answers, truth, strict=True)]))


def setfit(table: EncodedTable, episode: Episode) -> float:
    """SetFit on the same encoder, with its default batch size of 16 and at most SETFIT_STEPS steps."""
    try:
        from datasets import Dataset
        from sentence_transformers import SentenceTransformer
        from setfit import SetFitModel, Trainer, TrainingArguments
    except ImportError as error:
        raise ConfigError("setfit is not installed and is asked for by --methods; run: pip install setfit") from error
    from sklearn.linear_model import LogisticRegression

    (support, queries), (classes, truth) = episode.rows(), episode.class_indices()
    body = SentenceTransformer(str(folder_of(str(table.model.source))), device=str(table.model.device))
    model = SetFitModel(body, LogisticRegression(max_iter=1000))
    data = Dataset.from_dict({"text": [table.texts[row] for row in support], "label": classes.tolist()})
    settings = TrainingArguments(batch_size=16, max_steps=SETFIT_STEPS, report_to="none", save_strategy="no")
    Trainer(model=model, args=settings, train_dataset=data).train()
    answers = np.asarray(model.predict([table.texts[row] for row in queries], as_numpy=True))
    return float((answers == truth).mean())


METHODS: dict[Method, Callable[[EncodedTable, Episode], float]] = {
    "majority": majority, "words": words, "probe": probe, "prototypes": prototypes, "adapt": adapted,
    "meta": as_meta_trained, "finetune": finetuned, "setfit": setfit,
}  # fmt: skip
MODEL_FREE_METHODS: tuple[Method, ...] = ("majority", "words")
VECTOR_METHODS: tuple[Method, ...] = ("probe", "prototypes")
