"""Extractive question answering data: files in the format of SQuAD and CMRC 2018, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litebert.data.tables import TableOptions, json_rows, read_rows
from litebert.errors import DataError
from litebert.files import format_suffix

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""Values of `is_impossible`, in any letter case."""


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """A reference answer."""

    text: str
    start: int | None
    """Its character offset in the context; None if the context does not contain it."""


@dataclass(frozen=True, slots=True)
class AnswerInput:
    """A question, its context, and the reference answers if known."""

    question: str
    context: str
    answers: tuple[GoldAnswer, ...] | None = None
    """None: not known; empty: the context has no answer."""
    id: str = ""
    where: str = field(default="", compare=False, repr=False)
    """Its file and line, for error messages."""

    @property
    def impossible(self) -> bool:
        """Is it known that the context has no answer?"""
        return self.answers == ()

    @property
    def place(self) -> str:
        return self.where or repr(self.question[:40])


def read_questions(path: Path, options: TableOptions | None = None) -> list[AnswerInput]:
    """The questions of a SQuAD file, or of a table with the columns `question`, `context` and `answer`."""
    options, records = options or TableOptions(), []
    for values, where in _items(path, options):
        try:
            record = parse_question(values, where)
            if record.answers is None:
                raise DataError(
                    f"{where}: no value for 'answer' or 'answers' (columns: {', '.join(map(str, values))}); name the "
                    "column with --columns answer=NAME, and write an empty one where the context has no answer"
                )
            records.append(record)
        except DataError as error:
            options.skip_or_raise(error)
    if not records:
        raise DataError(f"{path}: holds no questions; it needs at least one with its answers")
    return records


def question_items(path: Path, options: TableOptions) -> Iterator[tuple[str, Any]]:
    """File position and content of every question of such a file, with or without answers."""
    return ((where, values) for values, where in _items(path, options))


def parse_question(item: Any, where: str) -> AnswerInput:
    """`(question, context)`, or a mapping with `question` and `context`, and perhaps the answers and `id`.

    Answers are given as `answer`, a text, with `answer_start`, or as `answers` in the format of SQuAD or the datasets
    library. A wrong `answer_start` is corrected to the nearest occurrence; an empty answer means none.
    """
    if isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return AnswerInput(item[0], item[1], where=where)
    if not isinstance(item, Mapping):
        raise DataError(
            f"{where}: {str(item)[:40]!r} must be a pair of strings, the question and the context, or an object with "
            "'question' and 'context'"
        )
    for name in ("question", "context"):
        if not isinstance(item.get(name), str):
            raise DataError(
                f"{where}: no text in column {name!r} (columns: {', '.join(map(str, item))}); rename a column to "
                f"{name!r}, or name it with --columns {name}=NAME"
            )
    answers = _parse_answers(item, where)
    name = "" if item.get("id") is None else str(item["id"])
    return AnswerInput(item["question"], item["context"], answers, name, where)


def _parse_answers(item: Mapping[str, Any], where: str) -> tuple[GoldAnswer, ...] | None:
    value, starts = item.get("answers"), None
    if value is None:
        value, starts = item.get("answer"), item.get("answer_start")
    flag = item.get("is_impossible")
    impossible = BOOLEANS.get(str(flag).lower())
    if impossible is None and flag not in (None, ""):
        raise DataError(f"{where}: is_impossible={flag!r} must be true or false")
    if value is None:
        return () if impossible else None
    context = item["context"]
    answers = tuple(
        GoldAnswer(text, _locate_answer(context, text, start))
        for text, start in _texts_and_starts(value, starts, where)
        if text.strip()
    )
    if impossible is not None and impossible is bool(answers):
        raise DataError(
            f"{where}: is_impossible={flag!r} with {len(answers)} answers ({str(value)[:40]!r}); correct one of them"
        )
    return answers


def _texts_and_starts(value: Any, starts: Any, where: str) -> Iterator[tuple[str, int | None]]:
    """Texts of answers with their `answer_start`."""
    if isinstance(value, Mapping):  # the datasets library turns a list of objects into an object of lists
        value, starts = value.get("text"), value.get("answer_start")
    texts = value if isinstance(value, (list, tuple)) else [value]
    places: Sequence[Any] = starts if isinstance(starts, (list, tuple)) else [starts] * len(texts)
    if len(places) != len(texts):
        raise DataError(f"{where}: {len(texts)} answers and {len(places)} of 'answer_start'; give one for each")
    for answer, start in zip(texts, places, strict=True):
        text, place = (
            (answer.get("text"), answer.get("answer_start")) if isinstance(answer, Mapping) else (answer, start)
        )
        if not isinstance(text, str):
            raise DataError(f"{where}: the answer {str(text)[:40]!r} must be a string; quote it")
        if place is None or place == "":
            yield text, None
            continue
        try:
            yield text, int(place)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{where}: answer_start={place!r} must be an integer; leave it out to search for the answer"
            ) from error


def _locate_answer(context: str, text: str, start: int | None) -> int | None:
    """Offset of the answer: `start`, or else the occurrence nearest to it; None if there is none."""
    if start is not None and start >= 0 and context.startswith(text, start):
        return start
    places, at = [], context.find(text)
    while at >= 0:
        places.append(at)
        at = context.find(text, at + 1)
    return min(places, key=lambda place: abs(place - (start or 0)), default=None)


def _items(path: Path, options: TableOptions) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every question as a mapping, with its file position."""
    if format_suffix(path) == ".json":
        objects = [row.values for row in json_rows(path, TableOptions(skip_bad=True))]  # read_rows reports bad rows
        if objects and all(isinstance(values.get("data"), list) for values in objects):
            yield from _squad_items(path, [article for values in objects for article in values["data"]], options)
            return
    for row in read_rows(path, options, pairs=False):
        yield row.values, row.where


def _squad_items(path: Path, articles: list[Any], options: TableOptions) -> Iterator[tuple[Mapping[str, Any], str]]:
    for number, article in enumerate(articles, start=1):
        try:
            questions = [
                question | {"context": paragraph["context"]}
                for paragraph in article["paragraphs"]
                for question in paragraph["qas"]
            ]
        except (KeyError, TypeError) as error:
            options.skip_or_raise(
                DataError(
                    f"{path}, article {number}: not laid out as SQuAD ({error!r}); an article has 'paragraphs', each "
                    "with 'context' and 'qas'"
                )
            )
            continue
        for at, question in enumerate(questions, start=1):
            yield question, f"{path}, article {number}, question {question.get('id') or at}"
