"""Files of similar texts: pairs with scores or labels, NLI, triplets, classes, plain sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from litebert.data.tables import PLAIN_TEXT_SUFFIXES, TableOptions, TableRow, read_rows, read_text, rename_columns
from litebert.errors import DataError
from litebert.files import format_suffix

Kind = Literal["scored", "labelled", "positives", "classes", "plain"]
"""What the labels are: scores of pairs, 0 or 1, only positive pairs, classes of single texts, or none."""
ENTAILMENT, NEUTRAL, CONTRADICTION = "entailment", "neutral", "contradiction"
NLI = (ENTAILMENT, NEUTRAL, CONTRADICTION)
NO_CONSENSUS = "-"
"""The label of NLI files without agreement of the annotators."""
MAX_NEGATIVES = 16


@dataclass(frozen=True, slots=True)
class SimilarInput:
    """A text, the text it is compared with, and the label."""

    text: str
    text_b: str | None = None
    label: float | str | None = None
    """The score of the pair, or 1 or 0; the class of a single text."""
    negatives: tuple[str, ...] = ()
    """Hard negatives."""
    where: str = field(default="", compare=False, repr=False)

    @property
    def texts(self) -> list[str]:
        return [self.text, *([] if self.text_b is None else [self.text_b]), *self.negatives]

    @property
    def shown(self) -> str:
        return self.text if self.text_b is None else f"{self.text} ‖ {self.text_b}"


def read_similar(path: Path, options: TableOptions) -> list[SimilarInput]:
    """The records of a file."""
    if not options.columns and not path.is_dir() and format_suffix(path) in PLAIN_TEXT_SUFFIXES:
        lines = read_text(path).split("\n")
        if "\t" not in lines[0]:
            return [
                SimilarInput(line.strip(), where=f"{path}, line {number}")
                for number, line in enumerate(lines, start=1)
                if line.strip()
            ]
    records = []
    for row in read_rows(path, options):
        try:
            records.append(_parse_row(row))
        except DataError as error:
            options.skip_or_raise(error)
    if any(_is_nli(record) for record in records):
        return _from_nli(records, options)
    for record in records:
        if record.text_b is not None and record.label == NO_CONSENSUS:
            options.skip_or_raise(
                DataError(f"{record.where}: label='-' is for NLI, and no row has one of {', '.join(NLI)}")
            )
    return [record for record in records if record.text_b is None or record.label != NO_CONSENSUS]


def parse_values(values: Mapping[str, Any], where: str) -> SimilarInput:
    """A record from values by role."""
    text, text_b = values.get("text"), values.get("text_b")
    for name, value in (("text", text), ("text_b", text_b)):
        if not (isinstance(value, str) and value.strip()) and not (name == "text_b" and value is None):
            raise DataError(
                f"{where}: no text in column {name!r} (columns: {', '.join(map(str, values))}); fill it in, or name "
                "the columns with --columns text=NAME text_b=NAME"
            )
    label = values.get("label")
    if isinstance(label, str) and not label.strip():
        label = None
    return SimilarInput(
        str(text), text_b, _label(label, text_b is not None, where), tuple(_negatives(values, where)), where
    )


def parse_similar(item: Any, where: str) -> SimilarInput:
    """The record of a user's input: a pair, or a mapping of column names to values."""
    if isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item):
        item = {"text": item[0], "text_b": item[1]}
    if not isinstance(item, Mapping) or (record := parse_values(rename_columns(item), where)).text_b is None:
        raise DataError(
            f'{where}: {str(item)[:40]!r} is no pair; give ["first", "second"] or {{"text_a": …, "text_b": …}}; the '
            "vector of a single text is what litebert embed gives"
        )
    return record


def kind_of(records: Sequence[SimilarInput]) -> Kind:
    """The kind of all records; different kinds are an error."""
    kinds = {_kind(record): record for record in records}
    if set(kinds) == {"scored", "labelled"}:
        return "scored"
    if len(kinds) > 1:
        (kind, record), (other_kind, other) = list(kinds.items())[:2]
        raise DataError(f"{record.where} is {kind}, but {other.where} is {other_kind}; give files of one kind")
    return next(iter(kinds), "plain")


def _kind(record: SimilarInput) -> Kind:
    if record.text_b is None:
        return "plain" if record.label is None else "classes"
    if record.label is None:
        return "positives"
    return "labelled" if record.label in (0.0, 1.0) else "scored"


def _parse_row(row: TableRow) -> SimilarInput:
    return parse_values(row.values, row.where)


def _label(value: Any, pair: bool, where: str) -> float | str | None:
    if value is None or not pair:
        return None if value is None else str(value)
    if isinstance(value, str) and value.strip().lower() in (*NLI, NO_CONSENSUS):
        return value.strip().lower()
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: label={value!r} of a pair must be a number, 0 or 1, or one of {', '.join(NLI)}"
        ) from error
    if not math.isfinite(number):
        raise DataError(f"{where}: label={value!r} must be a finite number")
    return number


def _negatives(values: Mapping[str, Any], where: str) -> Iterable[str]:
    negatives: list[Any] = []
    for name, value in values.items():
        if str(name).startswith("negative"):
            negatives += value if isinstance(value, (list, tuple)) else [value]
    negatives = [negative for negative in negatives if negative is not None and negative != ""]
    for negative in negatives:
        if not isinstance(negative, str):
            raise DataError(f"{where}: negative={negative!r} must be a string, or a list of them; put it in quotes")
    return negatives[:MAX_NEGATIVES]


def _is_nli(record: SimilarInput) -> bool:
    return record.text_b is not None and record.label in NLI


def _from_nli(records: Sequence[SimilarInput], options: TableOptions) -> list[SimilarInput]:
    """Entailments are positives, contradictions of the same premise their hard negatives."""
    unlike: dict[str, list[str]] = {}
    for record in records:
        if record.label == CONTRADICTION and record.text_b is not None:
            unlike.setdefault(record.text, []).append(record.text_b)
    positives = []
    for record in records:
        if record.label == ENTAILMENT:
            others = unlike.get(record.text, [])
            # several entailments of one premise get one contradiction each, in rotation
            unlike[record.text] = others = others[1:] + others[:1]
            positives.append(replace(record, label=None, negatives=tuple(others[-1:])))
        elif not _is_nli(record) and record.label != NO_CONSENSUS:
            problem = f"label={record.label!r} must be one of {', '.join(NLI)}, as those of other rows are"
            options.skip_or_raise(DataError(f"{record.where}: {problem}"))
    return positives
