"""Reading tables of examples: CSV, TSV, JSON and Parquet, plain or compressed, as rows with line numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litebert.data.corpus import SNIFFED_BYTES, detect_encoding, json_object
from litebert.data.fewrel import is_fewrel, labelled_sentences, mark_entities
from litebert.errors import ConfigError, DataError, require_extra
from litebert.files import COMPRESSED_SUFFIXES, DECOMPRESSION_ERRORS, decompressed, format_suffix

MAX_FIELD_CHARACTERS = 10_000_000
MAX_TABLE_BYTES = 1 << 30  # uncompressed
DELIMITERS: dict[str, str] = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
SUFFIXES = (*DELIMITERS, *JSON_SUFFIXES, ".parquet")
TABLE_SUFFIXES = tuple(kind for kind in SUFFIXES if kind != ".txt")
"""Formats that cannot be plain text."""
PLAIN_TEXT_SUFFIXES = (".txt", ".text", "")
"""Files read line by line where no labels are needed."""

PAIR_COLUMNS = (
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
"""Common names of the two columns of a text pair, as in the benchmarks; case is ignored."""
TEXT_COLUMNS = ("text", "text_a", "sentence", "content", "review", "sms", "utterance")
LABEL_COLUMNS = (
    "label",
    "labels",
    "gold_label",
    "quality",
    "is_duplicate",
    "score",
    "category",
    "class",
    "target",
    "intent",
)
COLA_COLUMNS = {"label": 2, "text": 4}
"""Column numbers of CoLA, whose files have no header: source, label, author's mark, sentence."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One example and its place in the file."""

    values: dict[str, Any]
    path: Path
    line: int

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


@dataclass
class TableOptions:
    """How to read files of examples, and the rows that were skipped."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Role (`text`, `text_b`, `label`, ...) to the name of a column, or to its number, from 1, without a header. Other
    roles are found by their common names."""
    skip_bad: bool = False
    """Skip invalid rows instead of raising."""
    keep_empty: bool = False
    """Keep rows of empty fields."""
    skipped: list[str] = field(default_factory=list)
    """Messages about skipped rows."""

    @classmethod
    def parse(cls, columns: Sequence[str], skip_bad: bool = False, keep_empty: bool = False) -> TableOptions:
        """Parse settings such as `text=1 label=2`."""
        pairs = [setting.partition("=") for setting in columns]
        for setting, (role, _, column) in zip(columns, pairs, strict=True):
            if not role or not column:
                raise ConfigError(f"columns={setting!r} must be ROLE=COLUMN, such as text=sentence or label=2")
        return cls({"text" if role == "text_a" else role: column for role, _, column in pairs}, skip_bad, keep_empty)

    @property
    def column_numbers(self) -> dict[str, int] | None:
        """Column number by role; None where columns are given by name."""
        if not self.columns or not all(column.isdigit() for column in self.columns.values()):
            return None
        numbers = {role: int(column) for role, column in self.columns.items()}
        if min(numbers.values()) < 1:
            raise ConfigError("columns are counted from 1: the first is 1, not 0")
        return numbers

    def skip_or_raise(self, error: DataError) -> None:
        """Raise the error, or with `skip_bad` record it and go on."""
        if not self.skip_bad:
            raise error
        self.skipped.append(str(error))


def read_rows(path: Path, options: TableOptions | None = None, *, pairs: bool = True) -> list[TableRow]:
    """All rows of a table, with columns renamed to their roles. The suffix selects the format.

    With `pairs`, columns such as `question` and `sentence` are recognised as the two texts of a pair.
    """
    options = options or TableOptions()
    kind = format_suffix(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give one of its files")
    if kind not in SUFFIXES:
        raise DataError(
            f"{path}: unknown format {kind!r}; "
            f"name the file {', '.join('*' + f for f in SUFFIXES)}, or one of them + {' '.join(COMPRESSED_SUFFIXES)}"
        )
    if kind in DELIMITERS:
        rows = list(_delimited_rows(path, read_text(path), DELIMITERS[kind], options, pairs))
    else:
        rows = list(
            _rename_rows(_parquet_rows(path) if kind == ".parquet" else json_rows(path, options), options, pairs)
        )
    if not rows:
        raise DataError(f"{path}: holds no examples; it needs a header line and at least one row")
    return rows


def _rename_rows(rows: Iterable[TableRow], options: TableOptions, pairs: bool) -> Iterator[TableRow]:
    for row in rows:
        try:
            yield TableRow(rename_columns(row.values, options, row.where, pairs=pairs), row.path, row.line)
        except DataError as error:
            options.skip_or_raise(error)


def rename_columns(
    values: Mapping[str, Any], options: TableOptions | None = None, where: str = "", *, pairs: bool = True
) -> dict[str, Any]:
    """The values with texts and label under `text`, `text_b` and `label`; other columns keep their names."""
    names = _role_names([str(name) for name in values], options or TableOptions(), where, pairs)
    return dict(zip(names, values.values(), strict=True))


def _role_names(names: Sequence[str], options: TableOptions, where: str, pairs: bool) -> list[str]:
    """The names of columns, replaced by their roles where they have one."""
    roles = _column_roles(names, options, where, pairs)
    # a column with the name of a role that another column has must not be taken for it
    taken = set(roles.values())
    return [roles.get(name, f"other {name}" if name in taken else name) for name in names]


def _column_roles(names: Sequence[str], options: TableOptions, where: str, pairs: bool) -> dict[str, str]:
    """Column name to role."""
    for role, column in options.columns.items():
        if column not in names:
            raise DataError(
                f"{where}: columns {role}={column}: no such column among {', '.join(names)}; name one of them"
            )
    roles = {column: role for role, column in options.columns.items()}
    known = {name.lower(): name for name in names if name not in roles}
    if not {"text", "text_b"} & set(options.columns):
        pair = next((pair for pair in PAIR_COLUMNS if pairs and pair[0] in known and pair[1] in known), None)
        single = next((name for name in TEXT_COLUMNS if name in known), None)
        if pair is not None:
            roles |= {known[pair[0]]: "text", known[pair[1]]: "text_b"}
        elif single is not None:
            roles[known[single]] = "text"
    label = next((name for name in LABEL_COLUMNS if name in known and known[name] not in roles), None)
    if "label" not in options.columns and label is not None:
        roles[known[label]] = "label"
    return roles


def read_text(path: Path) -> str:
    """A whole text file in UTF-8, UTF-16 or GB18030, which are detected, with or without byte-order mark."""
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
    """A file of one JSON value, such as SQuAD's or RACE's."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); save it again") from error


def json_rows(path: Path, options: TableOptions | None = None) -> Iterator[TableRow]:
    """Rows of JSON objects: one per line, concatenated over several lines, or in one array."""
    options, text = options or TableOptions(), read_text(path)
    if format_suffix(path) == ".json" and text.lstrip()[:1] == "[":
        values = read_json_file(path)
        for number, value in enumerate(values, start=1):
            if isinstance(value, dict):
                yield TableRow(value, path, number)
            else:
                options.skip_or_raise(
                    DataError(f"{path}, item {number}: {str(value)[:40]!r} is not a JSON object; write objects")
                )
        return
    if format_suffix(path) == ".json":
        yield from _concatenated_json_rows(path, text, options)
        return
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand in a JSON string
        if line.strip():
            try:
                yield TableRow(json_object(line, f"{path}, line {number}"), path, number)
            except DataError as error:
                options.skip_or_raise(error)


def _concatenated_json_rows(path: Path, text: str, options: TableOptions) -> Iterator[TableRow]:
    decoder, at, line = json.JSONDecoder(), 0, 1
    while at < len(text):
        if text[at].isspace():
            line += text[at] == "\n"
            at += 1
            continue
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            options.skip_or_raise(
                DataError(f"{path}, line {line}: not JSON from here on ({error}); write one object after the other")
            )
            at = text.find("\n", at) if "\n" in text[at:] else len(text)  # the next line may be valid
            continue
        if isinstance(value, dict) and is_fewrel(value):
            yield from _fewrel_rows(path, value, options)
        elif isinstance(value, dict):
            yield TableRow(value, path, line)
        else:
            options.skip_or_raise(
                DataError(f"{path}, line {line}: {str(value)[:40]!r} is not a JSON object; write objects")
            )
        line += text.count("\n", at, end)
        at = end


def _fewrel_rows(path: Path, value: Mapping[str, Any], options: TableOptions) -> Iterator[TableRow]:
    for number, (sentence, label) in enumerate(labelled_sentences(value, path), start=1):
        try:
            text = mark_entities(sentence)
        except (KeyError, IndexError, TypeError) as error:
            problem = f"not in the format of FewRel ({error!r}); give it tokens, h and t"
            options.skip_or_raise(DataError(f"{path}, sentence {number}: {problem}"))
            continue
        yield TableRow({"text": text, "label": label}, path, number)


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as raw, decompressed(raw, path.suffix) as file:
            content = file.read(MAX_TABLE_BYTES + 1)
    except DECOMPRESSION_ERRORS as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
        raise DataError(f"{path}: cannot be read ({error}); decompress it and compress it again") from error
    if len(content) > MAX_TABLE_BYTES:
        raise DataError(f"{path}: over {MAX_TABLE_BYTES >> 30} GiB uncompressed, too large for a table; split it")
    return content


def _delimited_rows(path: Path, text: str, delimiter: str, options: TableOptions, pairs: bool) -> Iterator[TableRow]:
    header: list[str] | None = None
    numbers = options.column_numbers
    for line, cells in _split_cells(path, text, delimiter):
        if not any(cell.strip() for cell in cells):
            if not options.keep_empty:
                options.skipped.append(f"{path}, line {line}: a row of empty fields")
            elif header is not None or numbers is not None:
                yield TableRow(dict.fromkeys(numbers or header or (), ""), path, line)
            continue
        if header is None and numbers is None and _is_cola(cells):
            numbers = COLA_COLUMNS
        if numbers is not None:
            _reject_header(path, line, cells, numbers)
            if max(numbers.values()) > len(cells):
                options.skip_or_raise(
                    DataError(
                        f"{path}, line {line}: {len(cells)} fields, and column {max(numbers.values())} is requested; "
                        "complete the row, or skip such rows with --skip-bad"
                    )
                )
                continue
            yield TableRow({role: cells[number - 1] for role, number in numbers.items()}, path, line)
        elif header is None:
            header = _checked_header(path, line, [cell.strip() for cell in cells], delimiter)
            header = _role_names(header, options, f"{path}, line {line}", pairs)
        elif len(cells) != len(header):
            options.skip_or_raise(
                DataError(
                    f"{path}, line {line}: {len(cells)} fields where the header has {len(header)} "
                    f"({', '.join(header)}); quote fields that contain {delimiter!r}, or skip such rows with "
                    "--skip-bad"
                )
            )
        else:
            yield TableRow(dict(zip(header, cells, strict=True)), path, line)


def _reject_header(path: Path, line: int, cells: Sequence[str], numbers: Mapping[str, int]) -> None:
    """Columns by number are for files without a header; raise if the first row looks like one."""
    place = numbers.get("label", 0)
    if line == 1 and 1 <= place <= len(cells) and cells[place - 1].strip().lower() in LABEL_COLUMNS:
        raise DataError(
            f"{path}, line 1: looks like a header ({', '.join(cells)}); name the columns instead of counting them"
        )


def _split_cells(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """First line and fields of every row that is not blank."""
    if delimiter == "\t":  # fields cannot hold tabs, so quotes are ordinary characters, often unpaired
        lines = ((number, row.removesuffix("\r")) for number, row in enumerate(text.split("\n"), start=1))
        yield from ((number, row.split("\t")) for number, row in lines if row.strip(" "))
        return
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 0  # a quoted field may span lines: report the first line of its row
    try:
        for cells in reader:
            first_line, line = line + 1, reader.line_num
            if len(cells) > 1 or any(cell.strip() for cell in cells):
                yield first_line, cells
    except csv.Error as error:
        # an unclosed quote is only noticed at the end of the file
        raise DataError(f"{path}, line {line + 1}: {error}; check the quotes, or save as .jsonl") from error


def _is_cola(cells: Sequence[str]) -> bool:
    return len(cells) == 4 and cells[1] in ("0", "1") and cells[2] in ("", "*")


def _checked_header(path: Path, line: int, header: list[str], delimiter: str) -> list[str]:
    names = {*TEXT_COLUMNS, *LABEL_COLUMNS, *(name for pair in PAIR_COLUMNS for name in pair)}
    other = next((mark for mark in ";\t," if mark in header[0] and names & set(header[0].lower().split(mark))), None)
    if len(header) == 1 and other is not None:
        raise DataError(
            f"{path}, line {line}: one column, {header[0]!r}; its fields seem to be separated by {other!r}, and those "
            f"of {format_suffix(path)} are by {delimiter!r}: save it so, or rename the file"
        )
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise DataError(
            f"{path}, line {line}: column {sorted(repeated)[0]!r} appears twice; give every column its own name"
        )
    return header


def _parquet_rows(path: Path) -> Iterator[TableRow]:
    parquet = require_extra("pyarrow.parquet", "train")
    arrow = require_extra("pyarrow", "train")
    try:
        table = parquet.read_table(io.BytesIO(_read_bytes(path)))
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet ({error}); write it again") from error
    for number, values in enumerate(table.to_pylist(), start=1):
        yield TableRow(values, path, number)
