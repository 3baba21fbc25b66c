"""What classify, multilabel and regress share: a text or a pair of texts in, scores of the whole text out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from torch import nn

from litebert.data.batches import Batch, Example
from litebert.data.tables import TableOptions, TableRow, read_rows, rename_columns
from litebert.data.windows import split_into_windows
from litebert.errors import CheckpointError, DataError
from litebert.model import Albert, AlbertConfig, HeadKind, TextHead
from litebert.tasks.base import Scores, TrainableTask, hidden_states, pooled_states, saved_options
from litebert.tokenizer import Tokenizer

MAX_WINDOWS = 16  # of one text; of more, evenly spaced ones are used

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text, the second text of a pair, and the label if it is known."""

    text: str
    text_b: str | None = None
    label: Any = None
    """A class name, a tuple of them, or a number."""
    where: str = field(default="", compare=False, repr=False)
    """The file and line it came from, for errors."""

    @property
    def place(self) -> str:
        return self.where or repr(self.text[:40])

    @property
    def texts(self) -> list[str]:
        return [self.text] if self.text_b is None else [self.text, self.text_b]

    @property
    def shown(self) -> str:
        return self.text if self.text_b is None else f"{self.text} ‖ {self.text_b}"


class TextTask(TrainableTask[TextInput, Output]):
    """Reads texts and pairs; a long text is split into windows whose scores are averaged."""

    architecture = "AlbertForSequenceClassification"
    head_name = "classify"

    def __init__(self, num_outputs: int, head_kind: HeadKind = "linear", pairs: bool | None = None) -> None:
        self.num_outputs, self.head_kind = num_outputs, head_kind
        self.pairs = pairs
        """Whether the inputs are pairs; None = both, or unknown."""

    @staticmethod
    @abstractmethod
    def parse_label(value: Any, where: str) -> Any:
        """The label as the record holds it; None if the file has none."""

    @classmethod
    def read(cls, path: Path, options: TableOptions | None = None) -> list[TextInput]:
        options = options or TableOptions()
        records = []
        for row in read_rows(path, options):
            try:
                records.append(cls._labelled_record(row))
            except DataError as error:
                options.skip_or_raise(error)
        return records

    @classmethod
    def _labelled_record(cls, row: TableRow) -> TextInput:
        record = _record(row.values, row.where, cls.parse_label)
        if not f"{record.text}{record.text_b or ''}".strip():
            raise DataError(
                f"{row.where}: no text in column 'text'; fill it in, or leave such rows out with --skip-bad"
            )
        if record.label is None:
            names = ", ".join(row.values)
            if "label" not in row.values:
                raise DataError(
                    f"{row.where}: no column 'label' (columns: {names}); rename one to 'label', or name it with "
                    "--columns label=NAME"
                )
            raise DataError(
                f"{row.where}: no value in column 'label'; fill it in, or leave such rows out with --skip-bad"
            )
        return record

    def options(self) -> dict[str, Any]:
        pairs = {} if self.pairs is None else {"pairs": self.pairs}
        return pairs if self.head_kind == "linear" else pairs | {"head": self.head_kind}

    def head(self, config: AlbertConfig) -> nn.Module:
        return TextHead(config, self.num_outputs, self.head_kind, config.classifier_dropout_prob)

    def parse(self, item: Any, where: str) -> TextInput:
        return _parse(item, where, self.parse_label)

    def features(self, inputs: Sequence[TextInput], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        for record in inputs:
            if self.pairs not in (None, record.text_b is not None):
                raise DataError(
                    f"{record.place}: a single text, but this task is about pairs: give text_a and text_b, or "
                    '["first", "second"]'
                    if self.pairs
                    else f"{record.place}: a pair, but this task is about single texts: leave text_b out"
                )
        firsts = [encoding.ids[1:-1] for encoding in tokenizer.encode([record.text for record in inputs])]
        paired = [record.text_b for record in inputs if record.text_b is not None]
        seconds = iter([encoding.ids[1:-1] for encoding in tokenizer.encode(paired)] if paired else [])
        examples = []
        for record, first in zip(inputs, firsts, strict=True):
            second = None if record.text_b is None else next(seconds)
            examples.append(Example(split_into_windows(first, second, tokenizer, max_length, max_windows=MAX_WINDOWS)))
        return examples

    def scores(self, model: Albert, batch: Batch) -> Scores:
        head = model.heads[self.head_name]
        if self.head_kind in ("linear", "mlp"):
            return {"scores": head(pooled_states(model.encoder, batch))}  # (S, C)
        return {"scores": head(hidden_states(model.encoder, batch), batch.real)}


def pairs_among(inputs: Sequence[TextInput]) -> bool | None:
    """Whether these are pairs; None = both pairs and single texts."""
    kinds = {record.text_b is not None for record in inputs}
    return kinds.pop() if len(kinds) == 1 else None


def pairs_of(settings: Mapping[str, Any]) -> bool | None:
    """`TextTask.pairs` as saved in config.json."""
    pairs = saved_options(settings).get("pairs")
    if not (pairs is None or isinstance(pairs, bool)):
        raise CheckpointError(f"pairs={pairs!r} in config.json must be true or false")
    return pairs


def head_kind_of(settings: Mapping[str, Any]) -> HeadKind:
    kind = saved_options(settings).get("head", "linear")
    if kind not in get_args(HeadKind):
        raise CheckpointError(f"head={kind!r} in config.json must be one of {', '.join(get_args(HeadKind))}")
    return kind


def labels_of(settings: Mapping[str, Any], least: int) -> list[str]:
    """The class names of a config.json."""
    names = settings.get("id2label")
    try:
        if not names:
            names = {i: f"LABEL_{i}" for i in range(int(settings.get("num_labels", 2)))}
        by_number = {int(key): str(name) for key, name in names.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"id2label={names!r} in config.json must map 0, 1, 2, … to class names") from error
    labels = [by_number[number] for number in sorted(by_number)]
    if sorted(by_number) != list(range(len(labels))) or len(set(labels)) != len(labels) or len(labels) < least:
        raise CheckpointError(
            f"id2label={names!r} in config.json must map 0, 1, 2, … to {least} or more different names"
        )
    return labels


def label_settings(labels: Sequence[str]) -> dict[str, Any]:
    """The entries of config.json for class names."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def _parse(item: Any, where: str, parse_label: Any) -> TextInput:
    """`"text"`, `("text", "text_b")`, or a mapping with `text` or `text_a`, and perhaps `text_b` and `label`."""
    if isinstance(item, str):
        return TextInput(item, where=where)
    if isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return TextInput(item[0], item[1], where=where)
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: {str(item)[:40]!r} must be a string, a pair of strings, or an object with 'text'")
    return _record(rename_columns(item), where, parse_label)


def _record(values: Mapping[str, Any], where: str, parse_label: Any) -> TextInput:
    """A record from values by role: text, text_b, label."""
    text, text_b = values.get("text"), values.get("text_b")
    if not isinstance(text, str):
        raise DataError(
            f"{where}: no text in column 'text' or 'text_a' (columns: {', '.join(map(str, values))}); rename a column "
            f"to 'text', or name it with --columns text=NAME, or text=1 for the first of a file without a header"
        )
    if text_b is not None and not isinstance(text_b, str):
        raise DataError(f"{where}: text_b={text_b!r} must be a string")
    label = values.get("label")
    return TextInput(text, text_b, None if label is None else parse_label(label, where), where)
