"""Multi-label classification: any number of labels per text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.data.batches import Batch, Example
from litebert.errors import CheckpointError, DataError, require_extra
from litebert.model import HeadKind
from litebert.tasks.base import Judgement, Scores, f1_by_label, mean_by_owner, saved_options
from litebert.tasks.classify import MAX_CLASSES
from litebert.tasks.text import TextInput, TextTask, head_kind_of, label_settings, labels_of, pairs_among, pairs_of

SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class MultilabelOutput:
    """The labels above their thresholds, likeliest first, and the probability of every label."""

    labels: list[str]
    probabilities: dict[str, float]


class Multilabel(TextTask[MultilabelOutput]):
    """Pooled vector, dropout, one binary score per label."""

    name = "multilabel"
    problem_types = ("multi_label_classification",)
    metric = "micro_f1"

    def __init__(
        self,
        labels: Sequence[str],
        head: HeadKind = "linear",
        thresholds: Sequence[float] = (),
        pairs: bool | None = None,
    ) -> None:
        super().__init__(len(labels), head, pairs)
        self.labels = list(labels)
        self.thresholds = list(thresholds) or [0.5] * len(self.labels)
        self._number = {label: number for number, label in enumerate(self.labels)}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Multilabel:
        labels = labels_of(settings, 1)
        thresholds = saved_options(settings).get("thresholds", [])
        if thresholds and (
            len(thresholds) != len(labels) or not all(isinstance(t, float) and 0 <= t <= 1 for t in thresholds)
        ):
            raise CheckpointError(
                f"thresholds={thresholds!r} in config.json must be a share for each of {len(labels)} labels"
            )
        return cls(labels, head_kind_of(settings), thresholds, pairs_of(settings))

    @classmethod
    def learn_from(cls, inputs: Sequence[TextInput], head: HeadKind = "linear", **_: Any) -> Multilabel:
        labels = sorted({label for record in inputs for label in record.label})
        if not 1 <= len(labels) <= MAX_CLASSES:
            raise DataError(
                f"{len(labels)} labels in column 'label'; there must be 1 to {MAX_CLASSES:,}: give a list, or names "
                f"with {SEPARATOR!r} between them"
            )
        return cls(labels, head, pairs=pairs_among(inputs))

    @staticmethod
    def parse_label(value: Any, where: str) -> tuple[str, ...]:
        if isinstance(value, str):
            text = value.strip()
            if text.startswith("["):
                try:
                    value = json.loads(text)
                except ValueError as error:
                    raise DataError(f"{where}: label={text[:40]!r} is not a JSON list ({error})") from error
            else:
                value = text.split(SEPARATOR)
        if isinstance(value, (int, float)):
            value = [value]
        if not isinstance(value, (list, tuple)) or any(
            label is None or isinstance(label, (dict, list)) for label in value
        ):
            raise DataError(f"{where}: label={value!r} must be a list, or names with {SEPARATOR!r} between them")
        return tuple(sorted({str(label).strip() for label in value} - {""}))

    def settings(self) -> dict[str, Any]:
        return label_settings(self.labels) | {"problem_type": self.problem_types[0]}

    def options(self) -> dict[str, Any]:
        return super().options() | {"thresholds": self.thresholds}

    def training_examples(self, inputs: Sequence[TextInput], examples: Sequence[Example]) -> list[Example]:
        return [Example(example.sequences, row) for example, row in zip(examples, self._matrix(inputs), strict=True)]

    def check(self, inputs: Sequence[TextInput]) -> None:
        self._matrix(inputs)

    def _matrix(self, inputs: Sequence[TextInput]) -> np.ndarray:  # (records, labels)
        matrix = np.zeros((len(inputs), len(self.labels)), dtype=np.float32)
        for number, record in enumerate(inputs):
            for label in record.label:
                if label not in self._number:
                    raise DataError(
                        f"{record.place}: label {label!r} is not one of the trained {', '.join(self.labels[:20])}; "
                        "correct it, or train with examples of it"
                    )
                matrix[number, self._number[label]] = 1
        return matrix

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.targets is not None
        return F.binary_cross_entropy_with_logits(mean_by_owner(scores["scores"].float(), batch), batch.targets)

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        left, right = (mean_by_owner(outputs["scores"].float(), batch) for outputs in (scores, others))
        return ((left.sigmoid() - right.sigmoid()) * (left - right)).mean() / 2

    def answer(self, record: TextInput, example: Example, scores: Scores) -> MultilabelOutput:
        row = scores["scores"].float().mean(0).sigmoid().tolist()
        chosen = [number for number, threshold in enumerate(self.thresholds) if row[number] >= threshold]
        chosen.sort(key=lambda number: -row[number])
        return MultilabelOutput([self.labels[number] for number in chosen], dict(zip(self.labels, row, strict=True)))

    def tune(self, inputs: Sequence[TextInput], examples: Sequence[Example], scores: Sequence[Scores]) -> None:
        """Set the threshold of each label to the one with the best F1; 0.5 for a label without validation records."""
        truth = self._matrix(inputs)
        probability = torch.stack([outputs["scores"].float().mean(0).sigmoid() for outputs in scores]).numpy()
        for number in range(len(self.labels)):
            if truth[:, number].any():
                self.thresholds[number] = _best_threshold(truth[:, number], probability[:, number])

    def metrics(self, inputs: Sequence[TextInput], outputs: Sequence[MultilabelOutput]) -> dict[str, float]:
        sklearn = require_extra("sklearn.metrics", "train")
        true = self._matrix(inputs)
        answered = self._matrix([TextInput("", label=tuple(output.labels)) for output in outputs])
        probability = np.array([[output.probabilities[label] for label in self.labels] for output in outputs])
        occurring = true.any(axis=0)
        return {
            "micro_f1": float(sklearn.f1_score(true, answered, average="micro", zero_division=0)),
            "macro_f1": float(sklearn.f1_score(true, answered, average="macro", zero_division=0)),
            "mean_average_precision": float(
                sklearn.average_precision_score(true[:, occurring], probability[:, occurring], average="macro")
            )
            if occurring.any()
            else 0.0,
        }

    def by_label(self, inputs: Sequence[TextInput], outputs: Sequence[MultilabelOutput]) -> dict[str, dict[str, float]]:
        true = Counter(label for record in inputs for label in record.label)
        answered = Counter(label for output in outputs for label in output.labels)
        right = Counter(
            label
            for record, output in zip(inputs, outputs, strict=True)
            for label in {*record.label} & {*output.labels}
        )
        scores = f1_by_label(right, answered, true)
        return {
            label: figures | {"threshold": self.thresholds[self._number[label]]} for label, figures in scores.items()
        }

    def judge(self, record: TextInput, output: MultilabelOutput) -> Judgement:
        """Right is the Jaccard index of the true and the predicted labels."""
        true, predicted = set(record.label), set(output.labels)
        right = len(true & predicted) / len(true | predicted) if true | predicted else 1.0
        confidences = [max(p, 1 - p) for p in output.probabilities.values()]
        return Judgement(record.shown, ", ".join(record.label), ", ".join(output.labels), right, min(confidences))

    def baseline(self, inputs: Sequence[TextInput]) -> dict[str, float]:
        """The best constant set of labels."""
        counts = [n for _, n in Counter(label for record in inputs for label in record.label).most_common()]
        total, best, right = sum(counts), 0.0, 0
        for number, count in enumerate(counts, start=1):
            right += count
            best = max(best, 2 * right / (total + number * len(inputs)))
        return {"micro_f1": best}

    def constant_answer_loss(self, examples: Sequence[Example]) -> float | None:
        share = np.mean([example.target for example in examples], axis=0).clip(1e-7, 1 - 1e-7)
        return float(-(share * np.log(share) + (1 - share) * np.log(1 - share)).mean())

    def stratum(self, record: TextInput) -> str:
        return SEPARATOR.join(record.label)


def _best_threshold(truth: np.ndarray, probability: np.ndarray) -> float:
    """The threshold with the largest F1, halfway between two probabilities."""
    order = np.argsort(-probability, kind="stable")
    right = truth[order].cumsum()
    f1 = 2 * right / (np.arange(1, len(order) + 1) + truth.sum())
    ordered = probability[order].astype(np.float64)  # float64, so that there is a value between any two
    changes = np.append(ordered[:-1] > ordered[1:], True)  # equal values cannot be separated
    best = int(np.where(changes, f1, -1).argmax())
    below = ordered[best + 1] if best + 1 < len(ordered) else 0.0
    return float((ordered[best] + below) / 2)
