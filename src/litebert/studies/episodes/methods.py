"""Ways to learn an episode, ours and others', on the same encoder. Each gives the share of its questions told right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from litebert.builtin import folder_of
from litebert.commands.evaluate import Method
from litebert.data.batches import collate
from litebert.data.episodes import Episode
from litebert.errors import ConfigError, require_extra
from litebert.fewshot.adapt import adapt_frozen
from litebert.inference import Model
from litebert.measure.baselines import bag_of_words
from litebert.meta.algorithms import episode_accuracy
from litebert.meta.learner import EpisodeTexts, Learner
from litebert.model import Albert
from litebert.tasks import Classify
from litebert.tasks.text import TextInput
from litebert.train.loop import train
from litebert.train.optimizers import adamw, warmup_linear
from litebert.trainers.initial_model import default_learning_rate

FINETUNE_STEPS = 50
SETFIT_STEPS = 50
PENALTY = 100.0
"""The inverse of it, for logistic regression on vectors of length 1."""


@dataclass(frozen=True)
class Learned:
    """The table that episodes are drawn from, and a model with all it has read of that before."""

    texts: Sequence[str]
    labels: Sequence[str]
    model: Model
    ids: Sequence[Sequence[int]]
    """The tokens of the texts; of those that no episode asks for, none."""
    vectors: np.ndarray
    """Their vectors, of length 1."""
    learner: Learner | None = None
    """Where the model was meta-trained, as that left it."""

    def given(self, episode: Episode) -> tuple[list[str], list[str], list[str], list[str]]:
        """Texts and labels to learn from, and to answer."""
        support, asked = episode.rows()
        return (
            [self.texts[row] for row in support], [self.labels[row] for row in support],
            [self.texts[row] for row in asked], [self.labels[row] for row in asked],
        )  # fmt: skip

    def seen(self, episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Vectors and classes to learn from, and to answer."""
        (support, asked), (classes, truth) = episode.rows(), episode.class_indices()
        return self.vectors[support], classes, self.vectors[asked], truth


def majority(learned: Learned, episode: Episode) -> float:
    from litebert.measure.baselines import majority as share

    _, labels, _, truth = learned.given(episode)
    return share(labels, truth)


def words(learned: Learned, episode: Episode) -> float:
    """Logistic regression on tf-idf."""
    return bag_of_words(*learned.given(episode))


def probe(learned: Learned, episode: Episode) -> float:
    """Logistic regression on the vectors of the model as it is."""
    linear = require_extra("sklearn.linear_model", "train")
    vectors, classes, asked, truth = learned.seen(episode)
    return float(linear.LogisticRegression(C=PENALTY, max_iter=1000).fit(vectors, classes).score(asked, truth))


def prototypes(learned: Learned, episode: Episode) -> float:
    """The class whose mean vector points most in the same direction."""
    vectors, classes, asked, truth = learned.seen(episode)
    middles = np.stack([vectors[classes == number].mean(0) for number in range(episode.way)])
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    return float(((asked @ middles.T).argmax(1) == truth).mean())


def adapted(learned: Learned, episode: Episode) -> float:
    """`litebert adapt`, as anybody would use it: it may read the names of the classes."""
    texts, labels, asked, truth = learned.given(episode)
    answers = adapt_frozen(learned.model, texts, labels).predict(asked)
    return float(np.mean([answer.label == label for answer, label in zip(answers, truth, strict=True)]))


def as_meta_trained(learned: Learned, episode: Episode) -> float:
    """By the algorithm that the model was meta-trained with, its inner steps included."""
    assert learned.learner is not None
    return episode_accuracy(learned.learner, EpisodeTexts.of(episode, learned.ids, learned.model.device))


def finetuned(learned: Learned, episode: Episode) -> float:
    """Some steps on all weights and a new head, all examples at once."""
    texts, labels, asked, truth = learned.given(episode)
    start, device = learned.model, learned.model.device
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
    answers = model.predict(asked)
    return float(np.mean([answer.label == label for answer, label in zip(answers, truth, strict=True)]))


def setfit(learned: Learned, episode: Episode) -> float:
    """SetFit on the same encoder, its usual batch of 16, no more than so many steps."""
    try:
        from datasets import Dataset
        from sentence_transformers import SentenceTransformer
        from setfit import SetFitModel, Trainer, TrainingArguments
    except ImportError as error:
        raise ConfigError("setfit is not installed and is asked for by --methods; run: pip install setfit") from error
    from sklearn.linear_model import LogisticRegression

    (support, asked), (classes, truth) = episode.rows(), episode.class_indices()
    body = SentenceTransformer(str(folder_of(str(learned.model.source))), device=str(learned.model.device))
    model = SetFitModel(body, LogisticRegression(max_iter=1000))
    data = Dataset.from_dict({"text": [learned.texts[row] for row in support], "label": classes.tolist()})
    settings = TrainingArguments(batch_size=16, max_steps=SETFIT_STEPS, report_to="none", save_strategy="no")
    Trainer(model=model, args=settings, train_dataset=data).train()
    found = np.asarray(model.predict([learned.texts[row] for row in asked], as_numpy=True))
    return float((found == truth).mean())


METHODS: dict[Method, Callable[[Learned, Episode], float]] = {
    "majority": majority, "words": words, "probe": probe, "prototypes": prototypes, "adapt": adapted,
    "meta": as_meta_trained, "finetune": finetuned, "setfit": setfit,
}  # fmt: skip
WITHOUT_A_MODEL: tuple[Method, ...] = ("majority", "words")
FROM_VECTORS: tuple[Method, ...] = ("probe", "prototypes")
