"""Files that episodes are drawn from, and what a model has practised on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from litebert.data.corpus import read_lines
from litebert.data.episodes import Pool, pool_of
from litebert.data.labelled import PLAIN, Source, format_of
from litebert.data.words import hidden_words
from litebert.errors import DataError
from litebert.files import read_json
from litebert.predict import Model
from litebert.tasks import Classify


@dataclass(frozen=True)
class Table:
    """The texts of a file and their classes."""

    path: Path
    texts: list[str]
    labels: list[str]

    @classmethod
    def read(cls, path: Path, source: Source, mask: str) -> Table:
        """Of a plain text, sentences in which `mask` stands for a word, and that word."""
        if is_plain(path):
            pairs = hidden_words(read_lines([path]), mask)
            return cls(path, [text for text, _ in pairs], [word for _, word in pairs])
        records = Classify.read(path, source)
        if pair := next((record for record in records if record.text_b is not None), None):
            raise DataError(
                f"{pair.place}: a pair of texts; episodes are of single ones: name one with --columns text="
            )
        return cls(path, [record.text for record in records], [str(record.label) for record in records])

    @cached_property
    def pool(self) -> Pool:
        return pool_of(self.texts, self.labels)


def is_plain(path: Path) -> bool:
    """Is it text that nobody has labelled?"""
    return format_of(path) in PLAIN


def meta_of(model: Model) -> dict[str, Any]:
    """What `litebert meta-train` wrote beside the model; nothing for others."""
    path = Path(model.source or "") / "meta.json"
    return read_json(path) if path.is_file() else {}


def practised_on(model: Model) -> list[str]:
    """The classes that it has learned from, or was chosen by."""
    return list(meta_of(model).get("classes", []))
