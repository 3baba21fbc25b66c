"""Tables of examples: CSV, TSV, JSONL and Parquet, plain or compressed, as rows that know their line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from litebert.data.corpus import json_object
from litebert.errors import DataError, require_extra
from litebert.files import COMPRESSED, DAMAGE, decompressed

FIELD_LIMIT_CHARACTERS = 10_000_000
TABLE_LIMIT_BYTES = 1 << 30  # unpacked
FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    """One example of a file, and where it stood."""

    values: dict[str, Any]
    path: Path
    line: int

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


def read_rows(path: Path) -> list[Row]:
    """All rows of a table. The suffix before any compression names the format."""
    kind = format_of(path)
    if kind not in FORMATS:
        raise DataError(
            f"{path}: unknown format {kind!r}; "
            f"name the file {', '.join('*' + f for f in FORMATS)}, or one of them + {' '.join(COMPRESSED)}"
        )
    if kind == ".parquet":
        rows = list(_parquet(path))
    else:
        text = read_text(path)
        rows = list(_jsonl(path, text) if kind == ".jsonl" else _delimited(path, text, "\t" if kind == ".tsv" else ","))
    if not rows:
        raise DataError(f"{path}: holds no examples; it needs a header line and at least one row")
    return rows


def format_of(path: Path) -> str:
    """The suffix that names the format: the one before any compression."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def read_text(path: Path) -> str:
    """A whole text file; UTF-8, with or without a byte-order mark."""
    content = _read_bytes(path)
    try:
        return str(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise DataError(
            f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; convert it first, with: iconv -f ENCODING -t UTF-8"
        ) from error


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


def _delimited(path: Path, text: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(FIELD_LIMIT_CHARACTERS)
    # a tab cannot stand inside a TSV field, so quotes there are ordinary characters, often unpaired ones
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] | None = None
    line = 0  # a quoted field may span lines: report where its row began
    try:
        for cells in reader:
            began, line = line + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _checked_header(path, began, [cell.strip() for cell in cells])
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {began}: {len(cells)} fields where the header has {len(header)} "
                    f"({', '.join(header)}); quote fields that contain {delimiter!r}"
                )
            yield Row(dict(zip(header, cells, strict=True)), path, began)
    except csv.Error as error:
        # the row's first line: a quote that nobody closes is noticed only at the end of the file
        raise DataError(f"{path}, line {line + 1}: {error}; check the quotes, or save as .jsonl") from error


def _checked_header(path: Path, line: int, header: list[str]) -> list[str]:
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise DataError(
            f"{path}, line {line}: column {sorted(repeated)[0]!r} appears twice; give every column its own name"
        )
    return header


def _jsonl(path: Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand in a JSON string
        if not line.strip():
            continue
        yield Row(json_object(line, f"{path}, line {number}"), path, number)


def _parquet(path: Path) -> Iterator[Row]:
    parquet = require_extra("pyarrow.parquet", "train")
    arrow = require_extra("pyarrow", "train")
    try:
        table = parquet.read_table(io.BytesIO(_read_bytes(path)))
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet ({error}); write it again") from error
    for number, values in enumerate(table.to_pylist(), start=1):
        yield Row(values, path, number)
