"""Classification of texts and pairs of texts: one class each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.data.batches import Batch, Example
from litebert.errors import CheckpointError, ConfigError, DataError, require_extra
from litebert.model import HeadKind
from litebert.tasks.base import Judgement, Scores, f1_by_label, mean_by_owner, saved_options, symmetric_divergence
from litebert.tasks.text import TextInput, TextTask, head_kind_of, label_settings, labels_of, pairs_among, pairs_of

MAX_CLASSES = 10_000
IMBALANCE_RATIO = 5  # of the largest class to the smallest, from which on a remark is made
FALSE_ALARM_RATES = (0.001,)  # at which recall is reported


@dataclass(frozen=True, slots=True)
class ClassifyOutput:
    """The likeliest class, and the probability of every class."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Exit(NamedTuple):
    """An early-exit threshold, with its results on held-out texts."""

    sure: float
    passes: float
    """On average."""
    agreement: float
    """The fraction of texts with the same answer as after all passes."""


class Classify(TextTask[ClassifyOutput]):
    """Pooled vector, dropout, one score per class."""

    name = "classify"
    problem_types = (None, "single_label_classification")
    metric = "accuracy"

    def __init__(
        self,
        labels: Sequence[str],
        head: HeadKind = "linear",
        class_weights: Sequence[float] = (),
        label_smoothing: float = 0.0,
        pairs: bool | None = None,
    ) -> None:
        super().__init__(len(labels), head, pairs)
        self.labels = list(labels)
        self._number = {label: number for number, label in enumerate(self.labels)}
        self._weights = torch.tensor(list(class_weights)) if class_weights else None
        self._smoothing = label_smoothing
        self.exits: list[Exit] = []
        """Early-exit thresholds, the highest first; empty for a model that was not trained for early exit."""

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Classify:
        task = cls(labels_of(settings, 2), head_kind_of(settings), pairs=pairs_of(settings))
        task.exits = _exits_of(settings)
        return task

    def options(self) -> dict[str, Any]:
        return super().options() | ({"exits": [list(exit_point) for exit_point in self.exits]} if self.exits else {})

    @classmethod
    def learn_from(
        cls,
        inputs: Sequence[TextInput],
        head: HeadKind = "linear",
        *,
        class_weights: bool = False,
        label_smoothing: float = 0.0,
        **_: Any,
    ) -> Classify:
        counts = Counter(str(record.label) for record in inputs)
        labels = sorted(counts)
        if not 2 <= len(labels) <= MAX_CLASSES:
            raise DataError(
                f"{len(labels)} class(es) in column 'label' ({', '.join(labels[:5])}); "
                f"classification needs 2 to {MAX_CLASSES:,}: add examples of another, or check the column"
            )
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"label_smoothing={label_smoothing} must be at least 0 and below 1; 0.1 is usual")
        weights = [len(inputs) / len(labels) / counts[label] for label in labels] if class_weights else []
        return cls(labels, head, weights, label_smoothing, pairs_among(inputs))

    @staticmethod
    def parse_label(value: Any, where: str) -> str | None:
        if isinstance(value, (dict, list)):
            raise DataError(f"{where}: label={value!r} must be one class name; give a string or a number")
        if isinstance(value, float) and not math.isfinite(value):
            return None  # what tables write where there is nothing
        return str(value).strip() or None

    def settings(self) -> dict[str, Any]:
        return label_settings(self.labels)

    def training_examples(self, inputs: Sequence[TextInput], examples: Sequence[Example]) -> list[Example]:
        numbers = self.targets(inputs)
        return [Example(example.sequences, number) for example, number in zip(examples, numbers, strict=True)]

    def targets(self, inputs: Sequence[TextInput]) -> list[int]:
        for record in inputs:
            if record.label not in self._number:
                raise DataError(
                    f"{record.place}: label {record.label!r} is not one of the trained classes "
                    f"{', '.join(self.labels[:20])}; correct it, or train with examples of it"
                )
        return [self._number[record.label] for record in inputs]

    def check(self, inputs: Sequence[TextInput]) -> None:
        self.targets(inputs)

    def remarks(self, inputs: Sequence[TextInput]) -> list[str]:
        counts = Counter(record.label for record in inputs).most_common()
        (common, most), (rare, least) = counts[0], counts[-1]
        remarks = []
        if len(counts) > len(inputs) / 2:
            remarks.append(
                f"{len(counts):,} classes among {len(inputs):,} examples: is that the column of the labels? Name it "
                "with --columns label=NAME"
            )
        elif most >= IMBALANCE_RATIO * least:
            remarks.append(
                f"imbalance: {most:,} examples of {common!r} and {least:,} of {rare!r}; accuracy hides the rare "
                "classes: look at macro_f1, and try --class-weights"
            )
        by_lowercase = Counter(label.casefold() for label, _ in counts)
        twins = [label for label, _ in counts if by_lowercase[label.casefold()] > 1]
        if twins:
            remarks.append(
                f"{', '.join(map(repr, sorted(twins)[:6]))} are different classes; write them alike if they are one"
            )
        return remarks

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.targets is not None
        weights = None if self._weights is None else self._weights.to(batch.targets.device)
        means = mean_by_owner(scores["scores"].float(), batch)  # (B, C)
        return F.cross_entropy(means, batch.targets, weight=weights, label_smoothing=self._smoothing)

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        return symmetric_divergence(mean_by_owner(scores["scores"], batch), mean_by_owner(others["scores"], batch))

    def answer(self, record: TextInput, example: Example, scores: Scores) -> ClassifyOutput:
        row = scores["scores"].float().mean(0).softmax(-1).tolist()
        best = max(range(len(row)), key=row.__getitem__)
        return ClassifyOutput(self.labels[best], row[best], dict(zip(self.labels, row, strict=True)))

    def metrics(self, inputs: Sequence[TextInput], outputs: Sequence[ClassifyOutput]) -> dict[str, float]:
        sklearn = require_extra("sklearn.metrics", "train")
        true = [record.label for record in inputs]
        predicted = [output.label for output in outputs]
        metrics = {
            "accuracy": float(sklearn.accuracy_score(true, predicted)),
            "macro_f1": float(sklearn.f1_score(true, predicted, average="macro", zero_division=0)),
            # of a single class scikit-learn says the same, with a warning
            "mcc": float(sklearn.matthews_corrcoef(true, predicted)) if len({*true, *predicted}) > 1 else 0.0,
        }
        return metrics | self._two_class_metrics(true, outputs)

    def _two_class_metrics(self, true: Sequence[str], outputs: Sequence[ClassifyOutput]) -> dict[str, float]:
        """F1 of each of two classes, and the precision-recall curve of the rarer one, as for spam or fraud."""
        if len(self.labels) != 2 or len(set(true)) != 2:
            return {}
        sklearn = require_extra("sklearn.metrics", "train")
        rare = min(self.labels, key=true.count)
        is_rare = [label == rare for label in true]
        probability = [output.probabilities[rare] for output in outputs]
        answered = [output.label for output in outputs]
        metrics = {f"f1_of_{label}": float(sklearn.f1_score(true, answered, pos_label=label)) for label in self.labels}
        metrics[f"pr_auc_of_{rare}"] = float(sklearn.average_precision_score(is_rare, probability))
        false_alarms, recall, _ = sklearn.roc_curve(is_rare, probability, drop_intermediate=False)
        for share in FALSE_ALARM_RATES:
            metrics[f"recall_of_{rare}_at_{share:.1%}_false_alarms"] = float(recall[false_alarms <= share].max())
        return metrics

    def by_label(self, inputs: Sequence[TextInput], outputs: Sequence[ClassifyOutput]) -> dict[str, dict[str, float]]:
        pairs = [(str(record.label), output.label) for record, output in zip(inputs, outputs, strict=True)]
        right = Counter(truth for truth, answer in pairs if truth == answer)
        return f1_by_label(right, Counter(answer for _, answer in pairs), Counter(truth for truth, _ in pairs))

    def judge(self, record: TextInput, output: ClassifyOutput) -> Judgement:
        right = float(record.label == output.label)
        return Judgement(record.shown, str(record.label), output.label, right, output.probability)

    def baseline(self, inputs: Sequence[TextInput]) -> dict[str, float]:
        counts = Counter(record.label for record in inputs)
        return {"accuracy": counts.most_common(1)[0][1] / len(inputs), "mcc": 0.0}

    def constant_answer_loss(self, examples: Sequence[Example]) -> float | None:
        if self._weights is not None and self._smoothing:
            return None
        shares = np.bincount([example.target for example in examples], minlength=len(self.labels)) / len(examples)
        if self._weights is not None:
            shares = shares * self._weights.numpy() / (shares * self._weights.numpy()).sum()
        shares = (1 - self._smoothing) * shares + self._smoothing / len(self.labels)
        shares = shares[shares > 0]
        return float(-(shares * np.log(shares)).sum())

    def stratum(self, record: TextInput) -> str:
        return str(record.label)


def _exits_of(settings: Mapping[str, Any]) -> list[Exit]:
    rows = saved_options(settings).get("exits", [])
    numbers = isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 3 and all(isinstance(value, int | float) for value in row) for row in rows
    )
    if not numbers:
        raise CheckpointError("exits in config.json must be rows of three numbers; distill the model again")
    return [Exit(*map(float, row)) for row in rows]
