"""Regression: a number for a text or a pair of texts."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from litebert.data.batches import Batch, Example
from litebert.errors import CheckpointError, DataError, require_extra
from litebert.model import HeadKind
from litebert.tasks.base import Judgement, Scores, mean_by_owner, saved_options
from litebert.tasks.text import TextInput, TextTask, head_kind_of, pairs_among, pairs_of


@dataclass(frozen=True, slots=True)
class RegressOutput:
    """The number."""

    value: float


class Regress(TextTask[RegressOutput]):
    """Pooled vector, dropout, one number."""

    name = "regress"
    problem_types = ("regression",)
    metric = "pearson"

    def __init__(
        self,
        head: HeadKind = "linear",
        mean: float = 0.0,
        deviation: float = 1.0,
        spread: float = 1.0,
        pairs: bool | None = None,
    ) -> None:
        """The head predicts standardized numbers: the distance from `mean` in units of `deviation`. The head of a saved
        model predicts the number itself; `spread` is the standard deviation of the training data."""
        super().__init__(1, head, pairs)
        self._mean, self._deviation, self.spread = mean, deviation, spread

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Regress:
        spread = saved_options(settings).get("spread", 1.0)
        if not isinstance(spread, (int, float)) or not 0 < spread < math.inf:
            raise CheckpointError(f"spread={spread!r} in config.json must be a number above 0")
        return cls(head_kind_of(settings), spread=float(spread), pairs=pairs_of(settings))

    @classmethod
    def learn_from(cls, inputs: Sequence[TextInput], head: HeadKind = "linear", **_: Any) -> Regress:
        values = np.array([record.label for record in inputs])
        if len(values) == 0 or values.min() == values.max():
            raise DataError(
                "column 'label' holds the same number everywhere; there is nothing to learn: check the column"
            )
        return cls(head, float(values.mean()), float(values.std()), float(values.std()), pairs_among(inputs))

    @staticmethod
    def parse_label(value: Any, where: str) -> float | None:
        if isinstance(value, str) and not value.strip():
            return None
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: label={value!r} must be a number") from error
        if not math.isfinite(number):
            raise DataError(f"{where}: label={value!r} must be a finite number")
        return number

    def settings(self) -> dict[str, Any]:
        return {"problem_type": self.problem_types[0], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}

    def options(self) -> dict[str, Any]:
        return super().options() | {"spread": self.spread}

    def for_saving(self, head: nn.Module) -> tuple[Regress, nn.Module]:
        """Fold mean and deviation into the last layer, so that transformers computes the number too."""
        finished: Any = copy.deepcopy(head)
        with torch.no_grad():
            finished.linear.weight.mul_(self._deviation)
            finished.linear.bias.mul_(self._deviation).add_(self._mean)
        return Regress(self.head_kind, spread=self.spread, pairs=self.pairs), finished

    def training_examples(self, inputs: Sequence[TextInput], examples: Sequence[Example]) -> list[Example]:
        targets = np.array([record.label for record in inputs], dtype=np.float32)
        return [Example(example.sequences, target) for example, target in zip(examples, targets, strict=True)]

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.targets is not None
        wanted = (batch.targets - self._mean) / self._deviation
        return (mean_by_owner(scores["scores"].float(), batch).squeeze(-1) - wanted).square().mean()

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        return mean_by_owner(scores["scores"].float() - others["scores"].float(), batch).square().mean()

    def answer(self, record: TextInput, example: Example, scores: Scores) -> RegressOutput:
        return RegressOutput(float(scores["scores"].double().mean()) * self._deviation + self._mean)

    def metrics(self, inputs: Sequence[TextInput], outputs: Sequence[RegressOutput]) -> dict[str, float]:
        scipy = require_extra("scipy.stats", "train")
        true = np.array([record.label for record in inputs])
        predicted = np.array([output.value for output in outputs])
        varied = len(true) > 1 and true.min() < true.max() and predicted.min() < predicted.max()
        return {
            "pearson": float(scipy.pearsonr(true, predicted)[0]) if varied else 0.0,
            "spearman": float(scipy.spearmanr(true, predicted)[0]) if varied else 0.0,
            "rmse": float(np.sqrt(((true - predicted) ** 2).mean())),
        }

    def judge(self, record: TextInput, output: RegressOutput) -> Judgement:
        """Right falls with the error, and is 0.5 for an error of one standard deviation of the training data."""
        right = 1 / (1 + abs(record.label - output.value) / self.spread)
        return Judgement(record.shown, f"{record.label:g}", f"{output.value:.3f}", right)

    def baseline(self, inputs: Sequence[TextInput]) -> dict[str, float]:
        """The mean."""
        return {"pearson": 0.0, "rmse": float(np.std([record.label for record in inputs]))}

    def constant_answer_loss(self, examples: Sequence[Example]) -> float | None:
        return float(np.var([example.target for example in examples])) / self._deviation**2
