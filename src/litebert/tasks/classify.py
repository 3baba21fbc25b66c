"""Which class is this text, or this pair of texts?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.data.labelled import read_rows
from litebert.errors import CheckpointError, DataError, require_extra
from litebert.model import Albert, AlbertConfig, PooledHead
from litebert.tasks.base import TrainableTask
from litebert.tokenizer import Encoding, Tokenizer

MAX_CLASSES = 10_000


@dataclass(frozen=True, slots=True)
class ClassifyInput:
    """A text to sort, its partner if it comes in pairs, and the right class where it is known."""

    text: str
    text_b: str | None = None
    label: str | None = None
    where: str = field(default="", compare=False, repr=False)
    """The file and line it came from, for errors."""


@dataclass(frozen=True, slots=True)
class ClassifyOutput:
    """The likeliest class and what every class got."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Classify(TrainableTask[ClassifyInput, ClassifyOutput]):
    """Pooled vector, dropout, one score per class."""

    name = "classify"
    architecture = "AlbertForSequenceClassification"
    head_name = "classify"

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        self._number = {label: number for number, label in enumerate(self.labels)}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Classify:
        problem = settings.get("problem_type") or "single_label_classification"
        if problem != "single_label_classification":
            raise CheckpointError(
                f"problem_type={problem!r} in config.json is not one class per text, which classify is"
            )
        names = settings.get("id2label")
        try:
            if not names:
                names = {i: f"LABEL_{i}" for i in range(int(settings.get("num_labels", 2)))}
            by_number = {int(key): str(name) for key, name in names.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(f"id2label={names!r} in config.json must map 0, 1, 2, … to class names") from error
        labels = [by_number[number] for number in sorted(by_number)]
        if sorted(by_number) != list(range(len(labels))) or len(set(labels)) != len(labels) or len(labels) < 2:
            raise CheckpointError(
                f"id2label={names!r} in config.json must map 0, 1, 2, … to two or more different names"
            )
        return cls(labels)

    @classmethod
    def learn_from(cls, inputs: Sequence[ClassifyInput]) -> Classify:
        labels = sorted({example.label for example in inputs if example.label is not None})
        if not 2 <= len(labels) <= MAX_CLASSES:
            raise DataError(
                f"{len(labels)} class(es) in column 'label' ({', '.join(labels[:5])}); "
                f"classification needs 2 to {MAX_CLASSES:,}: add examples of another, or check the column"
            )
        return cls(labels)

    @classmethod
    def read(cls, path: Path) -> list[ClassifyInput]:
        examples = []
        for row in read_rows(path):
            example = _parse(row.values, row.where)
            if example.label is None:
                names = ", ".join(row.values)
                if "label" not in row.values:
                    raise DataError(f"{row.where}: no column 'label' (columns: {names}); rename one to 'label'")
                raise DataError(f"{row.where}: no value in column 'label'; fill its class in, or leave the row out")
            examples.append(example)
        return examples

    def settings(self) -> dict[str, Any]:
        return {
            "id2label": {str(i): label for i, label in enumerate(self.labels)},
            "label2id": dict(self._number),
        }

    def head(self, config: AlbertConfig) -> nn.Module:
        return PooledHead(config, len(self.labels), config.classifier_dropout_prob)

    def parse(self, item: Any, where: str) -> ClassifyInput:
        return _parse(item, where)

    def encode(self, inputs: Sequence[ClassifyInput], tokenizer: Tokenizer, max_length: int) -> list[Encoding]:
        encodings: dict[int, Encoding] = {}
        for paired in (False, True):  # separately: a single text is not a pair with nothing
            chosen = [i for i, example in enumerate(inputs) if (example.text_b is not None) == paired]
            pairs = [inputs[i].text_b or "" for i in chosen] if paired else None
            found = tokenizer.encode([inputs[i].text for i in chosen], pairs, max_length=max_length) if chosen else []
            encodings |= dict(zip(chosen, found, strict=True))
        return [encodings[i] for i in range(len(inputs))]

    def targets(self, inputs: Sequence[ClassifyInput]) -> Tensor:
        for example in inputs:
            if example.label not in self._number:
                raise DataError(
                    f"{example.where or repr(example.text[:40])}: label {example.label!r} is not one of the trained "
                    f"classes {', '.join(self.labels[:20])}; correct it, or train with examples of it"
                )
        return torch.tensor([self._number[example.label or ""] for example in inputs])

    def scores(self, model: Albert, batch: Batch) -> Tensor:  # (B, C)
        hidden = model.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        scores: Tensor = model.heads[self.head_name](model.encoder.pool(hidden[:, 0]))
        return scores

    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores.float(), targets)

    def answer(
        self, model: Albert, batch: Batch, inputs: Sequence[ClassifyInput], tokenizer: Tokenizer
    ) -> list[ClassifyOutput]:
        outputs = []
        for row in self.scores(model, batch).float().softmax(-1).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            outputs.append(ClassifyOutput(self.labels[best], row[best], dict(zip(self.labels, row, strict=True))))
        return outputs

    def metrics(self, inputs: Sequence[ClassifyInput], outputs: Sequence[ClassifyOutput]) -> dict[str, float]:
        sklearn = require_extra("sklearn.metrics", "train")
        true = [example.label for example in inputs]
        predicted = [output.label for output in outputs]
        return {
            "accuracy": float(sklearn.accuracy_score(true, predicted)),
            "macro_f1": float(sklearn.f1_score(true, predicted, labels=self.labels, average="macro", zero_division=0)),
            "mcc": float(sklearn.matthews_corrcoef(true, predicted)),
        }


def _parse(item: Any, where: str) -> ClassifyInput:
    """`"text"`, `("text", "text_b")`, or a mapping with `text` or `text_a`, and perhaps `text_b` and `label`."""
    if isinstance(item, str):
        return ClassifyInput(item, where=where)
    if isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return ClassifyInput(item[0], item[1], where=where)
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: {str(item)[:40]!r} must be a string, a pair of strings, or an object with 'text'")
    text = item.get("text", item.get("text_a"))
    text_b, label = item.get("text_b"), item.get("label")
    if not isinstance(text, str):
        raise DataError(
            f"{where}: no text in column 'text' or 'text_a' (columns: {', '.join(map(str, item))}); "
            "rename a column to 'text'"
        )
    if text_b is not None and not isinstance(text_b, str):
        raise DataError(f"{where}: text_b={text_b!r} must be a string")
    if isinstance(label, (dict, list)):
        raise DataError(f"{where}: label={label!r} must be one class name; give a string or a number")
    return ClassifyInput(text, text_b, None if label is None else str(label).strip() or None, where)
