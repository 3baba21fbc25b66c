"""Reading texts from a file: its lines, or a column of a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from litebert.errors import DataError


def read_texts(source: str, columns: tuple[str, ...] = ()) -> Iterator[str]:
    """The text of every line or row that is not blank; `-` is standard input."""
    from litebert.data.corpus import decode_line, read_lines
    from litebert.data.tables import TABLE_SUFFIXES, TableOptions, read_rows
    from litebert.files import format_suffix

    path = Path(source)
    if source == "-":
        lines = (decode_line(line, "standard input", n) for n, line in enumerate(sys.stdin.buffer, start=1))
        yield from (line.strip() for line in lines if line.strip())
    elif format_suffix(path) in TABLE_SUFFIXES or columns:
        for row in read_rows(path, TableOptions.parse(columns)):
            text = row.values.get("text")
            if not isinstance(text, str):
                raise DataError(f"{row.where}: no column 'text'; name one with --columns text=NAME")
            if text.strip():
                yield text.strip()
    elif path.is_dir():
        raise DataError(f"{path}: is a folder; give one of its files")
    else:
        yield from (line.strip() for line in read_lines([path]) if line.strip())


def read_unlabelled(path: Path, columns: tuple[str, ...], skip_bad: bool) -> list[str]:
    """Texts of a plain file, or of a table whose columns are named as in the labelled one."""
    from litebert.data.corpus import read_lines
    from litebert.data.tables import PLAIN_TEXT_SUFFIXES, TableOptions, read_rows
    from litebert.files import format_suffix

    if format_suffix(path) in PLAIN_TEXT_SUFFIXES:
        return [line.strip() for line in read_lines([path]) if line.strip()]
    text_columns = [column for column in columns if column.startswith(("text=", "text_a="))]
    values = [row.values.get("text") for row in read_rows(path, TableOptions.parse(text_columns, skip_bad))]
    texts = [str(value).strip() for value in values if value is not None and str(value).strip()]
    if not texts:
        raise DataError(f"{path}: no text in column 'text'; name the column with --columns text=NAME")
    return texts
