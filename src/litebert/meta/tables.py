"""Files that episodes are drawn from, and what a model has practised on."""

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
"""What labels say, or which word is hidden where there are none. A class called like a word is another thing."""


@dataclass(frozen=True)
class Table:
    """The texts of a file and their classes."""

    path: Path
    texts: list[str]
    labels: list[str]

    @classmethod
    def read(cls, path: Path, options: TableOptions, mask: str) -> Table:
        """Of a plain text, sentences in which `mask` stands for a word, and that word."""
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
    """Is it text that nobody has labelled?"""
    return format_suffix(path) in PLAIN_TEXT_SUFFIXES


def meta_of(model: Model) -> dict[str, Any]:
    """What `litebert meta-train` wrote beside the model; nothing for others."""
    path = Path(model.source or "") / "meta.json"
    return read_json(path) if path.is_file() else {}


def practised_on(model: Model, kind: Kind) -> list[str]:
    """What it has learned from or was chosen by."""
    found = meta_of(model).get(kind, [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"{model.source}/meta.json: {kind} must be a list of names; meta-train again")
    return found
