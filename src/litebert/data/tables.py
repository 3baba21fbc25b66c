"""Tables of examples: CSV, TSV, JSON and Parquet, plain or compressed, as rows that know their line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litebert.data.corpus import SNIFFED_BYTES, detect_encoding, json_object
from litebert.data.fewrel import is_relations, labelled_sentences, marked
from litebert.errors import ConfigError, DataError, require_extra
from litebert.files import COMPRESSED, DAMAGE, decompressed

FIELD_LIMIT_CHARACTERS = 10_000_000
TABLE_LIMIT_BYTES = 1 << 30  # unpacked
DELIMITED: dict[str, str] = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
JSON = (".jsonl", ".ndjson", ".json")
FORMATS = (*DELIMITED, *JSON, ".parquet")
TABLES = tuple(kind for kind in FORMATS if kind != ".txt")
"""Those that cannot be a plain text."""
PLAIN = (".txt", ".text", "")
"""What is read line by line where no labels are needed."""

PAIRS = (
    ("text", "text_b"),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("#1 string", "#2 string"),
    ("question", "sentence"),
    ("anchor", "positive"),
    ("query", "positive"),
)
"""Names under which the two texts of a pair are known, in the benchmarks and elsewhere; case does not count."""
SINGLES = ("text", "text_a", "sentence", "content", "review", "sms", "utterance")
LABELS = ("label", "labels", "gold_label", "quality", "is_duplicate", "score", "category", "class", "target", "intent")
COLA = {"label": 2, "text": 4}
"""CoLA's files have no header: source, label, the author's mark, sentence."""


@dataclass(frozen=True, slots=True)
class Row:
    """One example of a file, and where it stood."""

    values: dict[str, Any]
    path: Path
    line: int

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


@dataclass
class Source:
    """How to read files of examples, and what was left out of them."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """What to find where: a role such as `text`, `text_b` or `label` to a column's name, or to its number, from 1 on,
    in a file without a header. Roles that are not here are found by their usual names."""
    skip_bad: bool = False
    """Leave out what cannot be read instead of stopping."""
    keep_empty: bool = False
    """Rows of empty fields are rows too; else they are left out."""
    skipped: list[str] = field(default_factory=list)
    """What was left out, and why."""

    @classmethod
    def of(cls, columns: Sequence[str], skip_bad: bool = False, keep_empty: bool = False) -> Source:
        """From settings such as `text=1 label=2`."""
        pairs = [given.partition("=") for given in columns]
        wrong = next(
            (given for given, (role, _, column) in zip(columns, pairs, strict=True) if not role * len(column)), ""
        )
        if wrong:
            raise ConfigError(f"columns={wrong!r} must say what stands where, such as text=sentence or label=2")
        return cls({"text" if role == "text_a" else role: column for role, _, column in pairs}, skip_bad, keep_empty)

    @property
    def numbers(self) -> dict[str, int] | None:
        """Roles by the number of their column; None where names are given."""
        if not self.columns or not all(column.isdigit() for column in self.columns.values()):
            return None
        numbers = {role: int(column) for role, column in self.columns.items()}
        if min(numbers.values()) < 1:
            raise ConfigError("columns are counted from 1: the first is 1, not 0")
        return numbers

    def refuse(self, error: DataError) -> None:
        """Something cannot be read: stop, or remember it and go on."""
        if not self.skip_bad:
            raise error
        self.skipped.append(str(error))


def read_rows(path: Path, source: Source | None = None, *, pairs: bool = True) -> list[Row]:
    """All rows of a table, with the columns under the names of their roles. The suffix names the format.

    With `pairs`, names such as `question` and `sentence` are taken for the two texts of a pair.
    """
    source = source or Source()
    kind = format_of(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give one of its files")
    if kind not in FORMATS:
        raise DataError(
            f"{path}: unknown format {kind!r}; "
            f"name the file {', '.join('*' + f for f in FORMATS)}, or one of them + {' '.join(COMPRESSED)}"
        )
    if kind in DELIMITED:
        rows = list(_delimited(path, read_text(path), DELIMITED[kind], source, pairs))
    else:
        rows = list(_by_roles(_parquet(path) if kind == ".parquet" else json_rows(path, source), source, pairs))
    if not rows:
        raise DataError(f"{path}: holds no examples; it needs a header line and at least one row")
    return rows


def _by_roles(rows: Iterable[Row], source: Source, pairs: bool) -> Iterator[Row]:
    for row in rows:
        try:
            yield Row(by_role(row.values, source, row.where, pairs=pairs), row.path, row.line)
        except DataError as error:
            source.refuse(error)


def by_role(
    values: Mapping[str, Any], source: Source | None = None, where: str = "", *, pairs: bool = True
) -> dict[str, Any]:
    """The same values with texts and label under `text`, `text_b` and `label`; all others keep their names."""
    names = _renamed([str(name) for name in values], source or Source(), where, pairs)
    return dict(zip(names, values.values(), strict=True))


def _renamed(names: Sequence[str], source: Source, where: str, pairs: bool) -> list[str]:
    """The columns' names, with its role in place of the name of each that has one."""
    roles = _roles(names, source, where, pairs)
    # a column that has a role's name and not the role must not be taken for it
    taken = set(roles.values())
    return [roles.get(name, f"other {name}" if name in taken else name) for name in names]


def _roles(names: Sequence[str], source: Source, where: str, pairs: bool) -> dict[str, str]:
    """Column name -> role."""
    for role, column in source.columns.items():
        if column not in names:
            raise DataError(
                f"{where}: columns {role}={column}: no such column among {', '.join(names)}; name one of them"
            )
    found = {column: role for role, column in source.columns.items()}
    known = {name.lower(): name for name in names if name not in found}
    if not {"text", "text_b"} & set(source.columns):
        pair = next((pair for pair in PAIRS if pairs and pair[0] in known and pair[1] in known), None)
        single = next((name for name in SINGLES if name in known), None)
        if pair is not None:
            found |= {known[pair[0]]: "text", known[pair[1]]: "text_b"}
        elif single is not None:
            found[known[single]] = "text"
    label = next((name for name in LABELS if name in known and known[name] not in found), None)
    if "label" not in source.columns and label is not None:
        found[known[label]] = "label"
    return found


def format_of(path: Path) -> str:
    """The suffix that names the format: the one before any compression."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def read_text(path: Path) -> str:
    """A whole text file: UTF-8 with or without a byte-order mark, or UTF-16 or GB18030, which are recognised."""
    content = _read_bytes(path)
    encoding = detect_encoding(content[:SNIFFED_BYTES])
    try:
        return str(content.decode("utf-8-sig" if encoding == "utf-8" else encoding)).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise DataError(
            f"{path}, line {line}: byte 0x{byte:02x} is not {encoding.upper()}; "
            "convert it first, with: iconv -f ENCODING -t UTF-8"
        ) from error


def read_json_file(path: Path) -> Any:
    """One JSON value: SQuAD, RACE and their like."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); save it again") from error


def json_rows(path: Path, source: Source | None = None) -> Iterator[Row]:
    """Objects: one per line, one after the other over several lines, or in one array."""
    source, text = source or Source(), read_text(path)
    if format_of(path) == ".json" and text.lstrip()[:1] == "[":
        values = read_json_file(path)
        for number, value in enumerate(values, start=1):
            if isinstance(value, dict):
                yield Row(value, path, number)
            else:
                source.refuse(
                    DataError(f"{path}, item {number}: {str(value)[:40]!r} is not a JSON object; write objects")
                )
        return
    if format_of(path) == ".json":
        yield from _concatenated(path, text, source)
        return
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand in a JSON string
        if line.strip():
            try:
                yield Row(json_object(line, f"{path}, line {number}"), path, number)
            except DataError as error:
                source.refuse(error)


def _concatenated(path: Path, text: str, source: Source) -> Iterator[Row]:
    decoder, at, line = json.JSONDecoder(), 0, 1
    while at < len(text):
        if text[at].isspace():
            line += text[at] == "\n"
            at += 1
            continue
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            source.refuse(
                DataError(f"{path}, line {line}: not JSON from there on ({error}); write one object after the other")
            )
            at = text.find("\n", at) if "\n" in text[at:] else len(text)  # the next line may be whole again
            continue
        if isinstance(value, dict) and is_relations(value):
            yield from _relations(path, value, source)
        elif isinstance(value, dict):
            yield Row(value, path, line)
        else:
            source.refuse(DataError(f"{path}, line {line}: {str(value)[:40]!r} is not a JSON object; write objects"))
        line += text.count("\n", at, end)
        at = end


def _relations(path: Path, value: Mapping[str, Any], source: Source) -> Iterator[Row]:
    for number, (sentence, label) in enumerate(labelled_sentences(value, path), start=1):
        try:
            text = marked(sentence)
        except (KeyError, IndexError, TypeError) as error:
            problem = f"not as FewRel writes them ({error!r}); give it tokens, h and t"
            source.refuse(DataError(f"{path}, sentence {number}: {problem}"))
            continue
        yield Row({"text": text, "label": label}, path, number)


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as raw, decompressed(raw, path.suffix) as file:
            content = file.read(TABLE_LIMIT_BYTES + 1)
    except DAMAGE as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
        raise DataError(f"{path}: cannot be read ({error}); unpack it and pack it again") from error
    if len(content) > TABLE_LIMIT_BYTES:
        raise DataError(f"{path}: over {TABLE_LIMIT_BYTES >> 30} GiB unpacked, too large for a table; split it")
    return content


def _delimited(path: Path, text: str, delimiter: str, source: Source, pairs: bool) -> Iterator[Row]:
    header: list[str] | None = None
    numbers = source.numbers
    for began, cells in _cells(path, text, delimiter):
        if not any(cell.strip() for cell in cells):
            if not source.keep_empty:
                source.skipped.append(f"{path}, line {began}: a row of empty fields")
            elif header is not None or numbers is not None:
                yield Row(dict.fromkeys(numbers or header or (), ""), path, began)
            continue
        if header is None and numbers is None and _is_cola(cells):
            numbers = COLA
        if numbers is not None:
            _refuse_header(path, began, cells, numbers)
            if max(numbers.values()) > len(cells):
                source.refuse(
                    DataError(
                        f"{path}, line {began}: {len(cells)} fields, and column {max(numbers.values())} is asked for; "
                        "add what is missing, or leave such rows out with --skip-bad"
                    )
                )
                continue
            yield Row({role: cells[number - 1] for role, number in numbers.items()}, path, began)
        elif header is None:
            header = _checked_header(path, began, [cell.strip() for cell in cells], delimiter)
            header = _renamed(header, source, f"{path}, line {began}", pairs)
        elif len(cells) != len(header):
            source.refuse(
                DataError(
                    f"{path}, line {began}: {len(cells)} fields where the header has {len(header)} "
                    f"({', '.join(header)}); quote fields that contain {delimiter!r}, or leave such rows out with "
                    "--skip-bad"
                )
            )
        else:
            yield Row(dict(zip(header, cells, strict=True)), path, began)


def _refuse_header(path: Path, line: int, cells: Sequence[str], numbers: Mapping[str, int]) -> None:
    """Columns by number are for files without a header: one that looks like that would become an example."""
    place = numbers.get("label", 0)
    if line == 1 and 1 <= place <= len(cells) and cells[place - 1].strip().lower() in LABELS:
        raise DataError(
            f"{path}, line 1: looks like a header ({', '.join(cells)}); name the columns instead of counting them"
        )


def _cells(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The line on which a row began and its fields, for every line that is not blank."""
    if delimiter == "\t":  # which cannot stand inside a field, so quotes are ordinary characters, often unpaired ones
        lines = ((number, row.removesuffix("\r")) for number, row in enumerate(text.split("\n"), start=1))
        yield from ((number, row.split("\t")) for number, row in lines if row.strip(" "))
        return
    csv.field_size_limit(FIELD_LIMIT_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 0  # a quoted field may span lines: report where its row began
    try:
        for cells in reader:
            began, line = line + 1, reader.line_num
            if len(cells) > 1 or any(cell.strip() for cell in cells):
                yield began, cells
    except csv.Error as error:
        # the row's first line: a quote that nobody closes is noticed only at the end of the file
        raise DataError(f"{path}, line {line + 1}: {error}; check the quotes, or save as .jsonl") from error


def _is_cola(cells: Sequence[str]) -> bool:
    return len(cells) == 4 and cells[1] in ("0", "1") and cells[2] in ("", "*")


def _checked_header(path: Path, line: int, header: list[str], delimiter: str) -> list[str]:
    names = {*SINGLES, *LABELS, *(name for pair in PAIRS for name in pair)}
    other = next((mark for mark in ";\t," if mark in header[0] and names & set(header[0].lower().split(mark))), None)
    if len(header) == 1 and other is not None:
        raise DataError(
            f"{path}, line {line}: one column, {header[0]!r}; its fields seem to be separated by {other!r}, and those "
            f"of {format_of(path)} are by {delimiter!r}: save it so, or rename the file"
        )
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise DataError(
            f"{path}, line {line}: column {sorted(repeated)[0]!r} appears twice; give every column its own name"
        )
    return header


def _parquet(path: Path) -> Iterator[Row]:
    parquet = require_extra("pyarrow.parquet", "train")
    arrow = require_extra("pyarrow", "train")
    try:
        table = parquet.read_table(io.BytesIO(_read_bytes(path)))
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet ({error}); write it again") from error
    for number, values in enumerate(table.to_pylist(), start=1):
        yield Row(values, path, number)
