"""The few-shot task: classify a text by support examples that were read, not trained on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from litebert.data.batches import Batch, Example
from litebert.fewshot.head import (
    OVERLAP_FEATURES,
    TOKEN_BUCKETS,
    FeatureView,
    mean_states,
    ngram_features,
    token_features,
)
from litebert.model import Albert
from litebert.tasks.base import Scores
from litebert.tasks.classify import Classify, ClassifyOutput
from litebert.tasks.text import TextInput

UNKNOWN_THRESHOLD = 0.95
"""From here on a text is out of domain; no text can be with fewer than nineteen examples."""
LEVEL_PRIOR_COUNT = 5
"""The weight of the mean over all classes in the level of one class, in examples."""


@dataclass(frozen=True, slots=True)
class FewShotOutput(ClassifyOutput):
    """The likeliest class, and whether the text is out of domain."""

    unknown: float
    """The share of examples that, left out, look more familiar than this text: near 1 for a text unlike all of them."""
    is_unknown: bool
    """True for one in twenty texts that are in domain."""


class FewShot(Classify):
    """Classification by support examples; the head comes from ridge regression (`ridge.py`)."""

    name = "few-shot"
    head_name = "few_shot"
    has_fixed_depths = True

    def __init__(
        self,
        labels: Sequence[str],
        levels: Sequence[float] = (),
        familiar: Sequence[float] = (),
        pairs: bool | None = False,
    ) -> None:
        super().__init__(labels, pairs=pairs)
        self.levels = list(levels)
        """The typical score of each class for its own texts."""
        self.familiar = sorted(familiar)
        """The familiarity of held-out examples: what `unknown` is compared with."""

    @classmethod
    def learn_labels(cls, records: Sequence[TextInput]) -> FewShot:
        """The task with the labels of these records, before calibration."""
        task = Classify.learn_from(records)
        return cls(task.labels, pairs=task.pairs)

    def scores(self, model: Albert, batch: Batch) -> Scores:
        head: Any = model.heads[self.head_name].to(batch.input_ids.device)  # the encoder may have moved without it
        return {"scores": head(*head.features(model.encoder, batch.input_ids, batch.real, batch.token_type_ids))}

    def graph_outputs(self, model: Albert, batch: Batch) -> Scores:
        """The scores, and what `answer` makes of them for texts of one window."""
        scores = self.scores(model, batch)["scores"]  # (S, C)
        outputs = {"scores": scores, "probabilities": scores.softmax(1), "unknown": torch.zeros(scores.shape[0])}
        if self.familiar:
            familiar = (scores / torch.tensor(self.levels)).amax(1, keepdim=True)
            rank = (torch.tensor(self.familiar) <= familiar).sum(1)
            outputs["unknown"] = 1 - (1 + rank) / (1 + len(self.familiar))
        return outputs

    def answer(self, record: TextInput, example: Example, scores: Scores) -> FewShotOutput:
        plain = super().answer(record, example, scores)
        known = 1.0
        if self.familiar:
            familiar = familiarity(scores["scores"].float().mean(0).numpy()[None], self.levels)[0]
            known = (1 + bisect_right(self.familiar, familiar)) / (1 + len(self.familiar))
        unknown = 1 - known
        is_unknown = unknown >= UNKNOWN_THRESHOLD - 1e-9
        return FewShotOutput(plain.label, plain.probability, plain.probabilities, unknown, is_unknown)


def familiarity(scores: np.ndarray, levels: Sequence[float]) -> np.ndarray:  # (N, C) -> (N,)
    """The score of a text relative to what is typical of a class, for the best class."""
    best: np.ndarray = (scores / np.asarray(levels)).max(1)
    return best


def class_levels(scores: np.ndarray, truth: np.ndarray, sizes: np.ndarray) -> list[float]:
    """The mean left-out score, (M, C), of each class for its own examples, shrunk towards the mean over all classes.
    Both are relative to the target of the regression, which is larger for smaller classes."""
    target = sizes.mean() / sizes
    own = scores[np.arange(len(truth)), truth] / target[truth]
    total, count = np.bincount(truth, own, len(sizes)), np.bincount(truth, minlength=len(sizes))
    overall = max(1e-6, own.mean())
    levels = (total + LEVEL_PRIOR_COUNT * overall) / (count + LEVEL_PRIOR_COUNT) * target
    return np.maximum(levels, 1e-6).tolist()


class FeatureTask(FewShot):
    """Computes all features of texts as the scores of a task, before some of them are chosen."""

    def __init__(
        self,
        depths: Sequence[int],
        pairs: bool,
        frequency: Tensor,
        token_ngrams: Tensor,
        ngram_idf: Tensor,
        means_only: bool,
    ) -> None:
        super().__init__(["no", "class"], pairs=pairs)
        self.depths, self.views, self.num_token_features = depths, views_for(pairs), token_features_for(pairs)
        self.frequency, self.token_ngrams, self.ngram_idf = frequency, token_ngrams, ngram_idf
        self.means_only = means_only

    def scores(self, model: Albert, batch: Batch) -> Scores:
        inputs = batch.input_ids, batch.real
        tables = self.frequency, self.token_ngrams, self.ngram_idf
        frequency, token_ngrams, ngram_idf = (table.to(batch.input_ids.device) for table in tables)
        types = batch.token_type_ids
        features = {"means": mean_states(model.encoder, self.depths, self.views, frequency, *inputs, types)}
        if not self.means_only:
            features["tokens"] = token_features(*inputs, types, frequency, self.num_token_features)
        if not self.means_only and not self.pairs:
            features["ngrams"] = ngram_features(*inputs, token_ngrams, ngram_idf)
        return features


def views_for(pairs: bool) -> tuple[FeatureView, ...]:
    return ("whole", "apart") if pairs else ("whole",)


def token_features_for(pairs: bool) -> int:
    return OVERLAP_FEATURES if pairs else TOKEN_BUCKETS
