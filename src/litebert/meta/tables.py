"""The tables that episodes are drawn from, and the classes that a model was meta-trained on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from litebert.data.cloze_classes import cloze_examples
from litebert.data.corpus import read_lines
from litebert.data.episodes import ClassRows, rows_by_class
from litebert.data.tables import PLAIN_TEXT_SUFFIXES, TableOptions
from litebert.errors import CheckpointError, DataError
from litebert.files import format_suffix, read_json
from litebert.inference import Model
from litebert.tasks import Classify

Kind = Literal["classes", "words"]
"""Labelled classes, or masked words of unlabelled text. A class and a word of the same name differ."""


@dataclass(frozen=True)
class Table:
    """The texts of a file and their classes."""

    path: Path
    texts: list[str]
    labels: list[str]

    @classmethod
    def read(cls, path: Path, options: TableOptions, mask: str) -> Table:
        """From a table; or from plain text, sentences with a word replaced by `mask`, labelled with that word."""
        if is_plain(path):
            pairs = cloze_examples(read_lines([path]), mask)
            return cls(path, [text for text, _ in pairs], [word for _, word in pairs])
        records = Classify.read(path, options)
        if pair := next((record for record in records if record.text_b is not None), None):
            raise DataError(
                f"{pair.place}: a pair of texts; episodes are of single ones: name one with --columns text="
            )
        return cls(path, [record.text for record in records], [str(record.label) for record in records])

    @property
    def kind(self) -> Kind:
        return "words" if is_plain(self.path) else "classes"

    @cached_property
    def pool(self) -> ClassRows:
        return rows_by_class(self.texts, self.labels)


def is_plain(path: Path) -> bool:
    """Whether it is unlabelled text."""
    return format_suffix(path) in PLAIN_TEXT_SUFFIXES


def read_meta_settings(model: Model) -> dict[str, Any]:
    """The meta.json of a meta-trained model; empty for others."""
    path = Path(model.source or "") / "meta.json"
    return read_json(path) if path.is_file() else {}


def seen_classes(model: Model, kind: Kind) -> list[str]:
    """The classes or words that it was trained or validated on."""
    names = read_meta_settings(model).get(kind, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{model.source}/meta.json: {kind} must be a list of names; meta-train again")
    return names
