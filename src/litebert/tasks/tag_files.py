"""Files of texts with labelled spans, and the words of a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from litebert.data.tables import JSON_SUFFIXES, TableOptions, json_rows, read_text, rename_columns
from litebert.errors import DataError
from litebert.files import format_suffix
from litebert.tasks.crf import is_prefixed, word_ranges

DOCUMENT = "-DOCSTART-"  # CoNLL-2003 writes it where a document begins
TABLES = (".csv", ".parquet")
MAX_SENTENCE_LINES = 200  # a longer "sentence" is a table of texts

CJK = "\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U000323af"
"""Ideographs, kana and their punctuation: written without spaces."""
_IS_CJK = re.compile(f"[{CJK}]")
_RUN = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
_ABBREVIATION = re.compile(r"(?:[^\W\d_]\.)+")  # its last full stop belongs to it


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled span of a text."""

    start: int
    end: int
    """Exclusive."""
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class TagInput:
    """A text, with its words and its spans if they are known."""

    text: str
    words: tuple[tuple[int, int], ...] | None = None
    """Start and end of each, in characters; None for raw text, which `split_words` splits."""
    spans: tuple[Span, ...] | None = None
    where: str = field(default="", compare=False, repr=False)
    """The file and line it came from, for errors."""

    @property
    def place(self) -> str:
        return self.where or repr(self.text[:40])


def split_words(text: str) -> list[tuple[int, int]]:
    """Split raw text at white space and around punctuation; each CJK character is a word."""
    words = []
    for run in _RUN.finditer(text):
        start, end = run.span()
        while start < end and _is_mark(text[start]):
            words.append((start, start + 1))
            start += 1
        stop = end
        while stop > start and _is_mark(text[stop - 1]):
            stop -= 1
        short = _ABBREVIATION.match(text, start, end)
        if short is not None and short.end() > stop:
            stop = short.end()
        if stop > start:
            words.append((start, stop))
        words += [(at, at + 1) for at in range(stop, end)]
    return words


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def join_words(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text of these words and the place of each; with spaces between them, except between CJK characters."""
    text, places = "", []
    for word in words:
        if text and not (_IS_CJK.match(text[-1]) and _IS_CJK.match(word)):
            text += " "
        places.append((len(text), len(text) + len(word)))
        text += word
    return text, tuple(places)


def read_tagged(path: Path, options: TableOptions) -> list[TagInput]:
    """JSON with `text` and `spans`, or CLUENER's `label`; other files are in CoNLL's column format."""
    kind = format_suffix(path)
    if kind in TABLES:
        raise DataError(
            f"{path}: spans do not fit into {kind}; write JSON lines with text and spans, or lines of word and tag"
        )
    records = _read_json(path, options) if kind in JSON_SUFFIXES else _read_columns(path, options)
    if not records and not options.skipped:
        raise DataError(f"{path}: holds no sentences; write a word and its tag per line, or JSON with text and spans")
    return records


def _read_json(path: Path, options: TableOptions) -> list[TagInput]:
    records = []
    for row in json_rows(path, options):
        try:
            record = parse_tagged(rename_columns(row.values, options, row.where, pairs=False), row.where)
            if record.spans is None:
                raise DataError(
                    f"{row.where}: no 'spans' (columns: {', '.join(row.values)}); give a list of objects with start, "
                    "end and label, an empty one where nothing is marked"
                )
            records.append(record)
        except DataError as error:
            options.skip_or_raise(error)
    return records


def _read_columns(path: Path, options: TableOptions) -> list[TagInput]:
    sentences = list(_sentences(read_text(path)))
    marked = any(is_prefixed(columns[-1]) for sentence in sentences for _, columns in sentence if len(columns) > 1)
    records = []
    for sentence in sentences:
        try:
            for line, columns in sentence:
                _check_columns(columns, marked, f"{path}, line {line}")
        except DataError as error:
            options.skip_or_raise(error)
            continue
        text, words = join_words([columns[0] for _, columns in sentence])
        spans = [
            Span(words[first][0], words[end - 1][1], label, text[words[first][0] : words[end - 1][1]])
            for first, end, label in word_ranges([columns[-1] for _, columns in sentence])
        ]
        records.append(TagInput(text, words, tuple(spans), f"{path}, line {sentence[0][0]}"))
    if not marked and len(sentences) == 1 and len(sentences[0]) > MAX_SENTENCE_LINES:
        raise DataError(
            f"{path}: all {len(sentences[0]):,} lines are one sentence, and no tag is like B-NAME; a file here "
            "has a word and its tag per line and an empty line between sentences, or is JSON with text and spans"
        )
    return records


def _sentences(text: str) -> Iterator[list[tuple[int, list[str]]]]:
    """The lines of each sentence, with their numbers, split into columns."""
    sentence: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        line = line.strip(" \t\r")  # other white space may be a word
        if not line or line.startswith(DOCUMENT):
            if sentence:
                yield sentence
            sentence = []
        else:
            columns = line.split("\t" if "\t" in line else " ")
            sentence.append((number, [column.strip(" ") for column in columns if column.strip(" ")]))


def _check_columns(columns: Sequence[str], marked: bool, where: str) -> None:
    if len(columns) < 2:
        raise DataError(
            f"{where}: {columns[0][:40]!r} is one column; write a word and its tag with a tab or a space between them"
        )
    tag = columns[-1]
    if marked and tag != "O" and not is_prefixed(tag):
        raise DataError(f"{where}: tag {tag[:40]!r} has no prefix where others have one; write O, B-{tag} or I-{tag}")


def parse_tagged(item: Any, where: str) -> TagInput:
    """`"text"`, or a mapping with `text` or `words` or both, and perhaps `spans`, or `label` as CLUENER has it."""
    if isinstance(item, str):
        return TagInput(item, where=where)
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: {str(item)[:40]!r} must be a string, or an object with 'text' or 'words'")
    text, tokens = item.get("text"), item.get("words")
    if tokens is not None and (
        not isinstance(tokens, (list, tuple)) or not all(isinstance(word, str) and word for word in tokens)
    ):
        raise DataError(f"{where}: words={str(tokens)[:40]!r} must be a list of strings that are not empty")
    words: tuple[tuple[int, int], ...] | None = None
    if text is None and tokens is not None:
        text, words = join_words(tokens)
    if not isinstance(text, str):
        raise DataError(
            f"{where}: no text in column 'text' (columns: {', '.join(map(str, item))}); rename a column to 'text', or "
            "name it with --columns text=NAME"
        )
    if words is None and tokens is not None:
        words = _places(text, tokens, where)
    spans = item.get("spans")
    if spans is None and isinstance(item.get("label"), Mapping):
        spans = _cluener_spans(item["label"], where)
    return TagInput(text, words, None if spans is None else _checked_spans(text, spans, where), where)


def _places(text: str, words: Sequence[str], where: str) -> tuple[tuple[int, int], ...]:
    places, at = [], 0
    for word in words:
        start = text.find(word, at)
        if start < 0:
            raise DataError(
                f"{where}: word {word[:40]!r} is not in the text after the words before it; leave out 'words'"
            )
        at = start + len(word)
        places.append((start, at))
    return tuple(places)


def _cluener_spans(label: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """`{type: {mention: [[start, last], …]}}` with the last character included."""
    try:
        return [
            {"start": start, "end": last + 1, "label": kind, "text": mention}
            for kind, mentions in label.items()
            for mention, places in mentions.items()
            for start, last in places
        ]
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: label={str(label)[:60]!r} must be an object of types, each of mentions with lists [start, last]"
        ) from error


def _checked_spans(text: str, items: Any, where: str) -> tuple[Span, ...]:
    if not isinstance(items, (list, tuple)):
        raise DataError(f"{where}: spans={str(items)[:40]!r} must be a list of objects with start, end and label")
    spans = sorted((_checked_span(text, item, where) for item in items), key=lambda span: (span.start, span.end))
    for left, right in pairwise(spans):
        if left.end > right.start:
            raise DataError(
                f"{where}: spans {left.text[:40]!r} ({left.start}-{left.end}) and {right.text[:40]!r} "
                f"({right.start}-{right.end}) overlap; a character can be in one span: keep one of them"
            )
    return tuple(spans)


def _checked_span(text: str, item: Any, where: str) -> Span:
    values: Mapping[str, Any] = item if isinstance(item, Mapping) else {}
    start, end, label = values.get("start"), values.get("end"), values.get("label")
    # True and False are whole numbers to Python
    if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label:
        raise DataError(
            f"{where}: span {str(item)[:60]!r} must be an object with start and end, whole numbers, and label, a name"
        )
    if not 0 <= start < end <= len(text):
        raise DataError(
            f"{where}: span {start}-{end} ({label}) does not fit a text of {len(text)} characters; "
            "start counts from 0 and end is the first character after the span"
        )
    mention = text[start:end]
    if values.get("text", mention) != mention:
        raise DataError(
            f"{where}: span {start}-{end} ({label}) is {mention[:40]!r} and not {str(values['text'])[:40]!r}; correct "
            "start and end"
        )
    return Span(start, end, label, mention)
