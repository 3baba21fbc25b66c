"""Raw text as a stream of documents, from plain text, JSON lines and Parquet, in files, folders and globs.

A document is a string of paragraphs, one per line. In plain text a blank line or the end of the file ends it; in a
table every record is one.
"""

from __future__ import annotations

import codecs
import glob
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from litebert.errors import ConfigError, DataError, require_extra
from litebert.files import COMPRESSED_SUFFIXES, DECOMPRESSION_ERRORS, decompressed

MAX_LINE_BYTES = 16 << 20
MAX_DOCUMENT_CHARACTERS = 1 << 22  # characters: text that never ends a document is cut, so that memory has a limit
SNIFFED_BYTES = 1 << 16
JSON_LINES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", *JSON_LINES, ".parquet")
ADVANCE_EVERY = 64  # lines: asking a file where it stands costs more than reading a line

Advance = Callable[[int], None]


@dataclass(frozen=True)
class ReadOptions:
    """How files are read, and who hears of it."""

    text_column: str = "text"
    """The column of JSON lines and Parquet that holds the text."""
    encoding: str = "auto"
    """A codec's name, or auto: UTF-8, UTF-16 and GB18030 are told apart."""
    advance: Advance | None = None
    """Hears of the bytes read from disk."""
    notice: Callable[[str], None] | None = None
    """Hears of files that are read as something else than UTF-8."""

    def __post_init__(self) -> None:
        if self.encoding != "auto":
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ConfigError(
                    f"encoding={self.encoding!r} is not known; use auto, utf-8, gb18030, utf-16 or another Python knows"
                ) from None


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files that paths, folders (searched through, by suffix) and globs stand for, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            names = sorted(name for name in path.rglob("*") if _kind_of(name) in TEXT_SUFFIXES and name.is_file())
            if not names:
                raise DataError(f"{path}: is a folder without text files; give text files ({' '.join(TEXT_SUFFIXES)})")
        elif not path.exists() and glob.has_magic(str(path)):
            matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
            names = sorted(name for name in map(Path, matches) if name.is_file())
            if not names:
                raise DataError(f"{path}: matches no file; check the pattern, or give text files")
        else:
            names = [path]
        found |= dict.fromkeys(names)
    return list(found)


def total_size(paths: Sequence[Path]) -> int:
    """Bytes that `advance` will hear of in total; also checks that every file is there."""
    for path in paths:
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "no such file"
            raise DataError(f"{path}: {problem}; give text files (.txt, or .txt + {' '.join(COMPRESSED_SUFFIXES)})")
    return sum(path.stat().st_size for path in paths)


def read_lines(paths: Sequence[Path], reading: ReadOptions | None = None) -> Iterator[str]:
    """The paragraphs of all documents, without line ends."""
    for document in read_documents(paths, reading):
        yield from document.split("\n")


def read_documents(paths: Sequence[Path], reading: ReadOptions | None = None) -> Iterator[str]:
    """The documents of all files, one after the other."""
    empty = True
    for path in paths:
        for document in read_file(path, reading or ReadOptions()):
            empty = False
            yield document
    if empty:
        raise no_text_error(paths)


def read_file(path: Path, reading: ReadOptions) -> Iterator[str]:
    """The documents of one file; none when it holds only white space."""
    kind = _kind_of(path)
    if kind == ".parquet":
        texts = _parquet_texts(path, reading)
    elif kind in JSON_LINES:
        texts = _json_texts(path, reading)
    else:
        yield from _join_lines(_read_file_lines(path, reading))
        return
    for text in texts:
        # a record is one document however many blank lines it holds, unless it is too long for one
        yield from _join_lines(line for line in text.split("\n") if line and not line.isspace())


def no_text_error(paths: Sequence[Path]) -> DataError:
    names = ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return DataError(f"{names}: no text there; give plain text with something in it")


def decode_line(line: bytes, source: Path | str, number: int, encoding: str | None = None) -> str:
    """Line `number` of a source, without its end and without a byte-order mark; UTF-8 where there is no choice."""
    try:
        text = line.decode(encoding or "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}, line {number}: byte 0x{line[error.start]:02x} is not {(encoding or 'utf-8').upper()}; "
            + ("name the right one with --encoding, or " if encoding else "")
            + "convert it first, with: iconv -f ENCODING -t UTF-8"
        ) from error
    return text.removeprefix("\ufeff") if number == 1 else text


def _kind_of(path: Path) -> str:
    """The suffix that names the format: the one before any compression."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix


def _join_lines(lines: Iterator[str]) -> Iterator[str]:
    """Stripped lines joined into documents: a blank one ends a document, and so does too great a length."""
    document: list[str] = []
    length = 0
    for line in lines:
        line = line.strip()
        if line:
            document.append(line)
            length += len(line)
        if document and (not line or length >= MAX_DOCUMENT_CHARACTERS):
            yield "\n".join(document)
            document, length = [], 0
    if document:
        yield "\n".join(document)


def _read_file_lines(path: Path, reading: ReadOptions) -> Iterator[str]:
    """The lines of one plain or compressed file."""
    number = told = 0
    try:
        with path.open("rb") as raw, _buffered(decompressed(raw, path.suffix)) as file:
            for line in _decode_lines(file, path, reading):
                number += 1
                yield line
                if reading.advance is not None and number % ADVANCE_EVERY == 0 and raw.tell() > told:
                    reading.advance(raw.tell() - told)
                    told = raw.tell()
            if reading.advance is not None:
                reading.advance(raw.tell() - told)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, after line {number}: byte 0x{error.object[error.start]:02x} is not {error.encoding.upper()}; "
            "convert it first, with: iconv -f ENCODING -t UTF-8, or where a command takes it name the right one with "
            "--encoding"
        ) from error
    except DECOMPRESSION_ERRORS as error:
        raise DataError(
            f"{path}, after line {number}: cannot be read ({error}); the file is damaged or not what its suffix says"
        ) from error


def _buffered(file: BinaryIO) -> io.BufferedReader:
    """A file whose first block can be looked at without reading on."""
    return io.BufferedReader(cast(io.RawIOBase, file), SNIFFED_BYTES)


def _decode_lines(file: io.BufferedReader, path: Path, reading: ReadOptions) -> Iterator[str]:
    """Lines of an open file of bytes, with a limit on their length."""
    encoding = reading.encoding
    if encoding == "auto":
        encoding = detect_encoding(file.peek(SNIFFED_BYTES))
        if encoding != "utf-8" and reading.notice is not None:
            reading.notice(f"{path}: read as {encoding.upper()}")
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32", "utf-7", "iso2022", "hz")):
        # a byte 0x0a is not always a line end there
        text = io.TextIOWrapper(file, encoding, newline="\n")
        yield from _multibyte_lines(text, path)
        text.detach()  # or else it would close the file, which its owner does
        return
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise _too_long(path, number)
        yield decode_line(line, path, number, encoding)


def _multibyte_lines(file: io.TextIOWrapper, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith("\n"):
            raise _too_long(path, number)
        line = line.rstrip("\r\n")
        yield line.removeprefix("\ufeff") if number == 1 else line


def _too_long(path: Path, number: int) -> DataError:
    return DataError(
        f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; put one sentence or paragraph on a line"
    )


def _json_texts(path: Path, reading: ReadOptions) -> Iterator[str]:
    for number, line in enumerate(_read_file_lines(path, reading), start=1):
        if not line or line.isspace():
            continue
        where = f"{path}, line {number}"
        yield _text_field(json_object(line, where), where, reading.text_column)


def json_object(line: str, where: str) -> dict[str, Any]:
    """A line of JSON lines."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); write one JSON object per line") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: {line[:40]!r} is not a JSON object; write one object per line")
    return record


def _text_field(record: dict[str, Any], where: str, column: str) -> str:
    if column not in record:
        raise DataError(
            f"{where}: has no column {column!r} among {', '.join(map(str, record))}; name it with --text-column"
        )
    text = record[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(f"{where}: column {column!r} holds {str(text)[:40]!r}, no text; name another --text-column")
    # JSON can write half of a surrogate pair, which is no character
    return _SURROGATES.sub("\ufffd", text)


def _parquet_texts(path: Path, reading: ReadOptions) -> Iterator[str]:
    arrow, parquet = require_extra("pyarrow", "train"), require_extra("pyarrow.parquet", "train")
    column = reading.text_column
    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise DataError(
                    f"{path}: has no column {column!r} among {', '.join(file.schema_arrow.names)}; "
                    "name it with --text-column"
                )
            number = told = 0
            size, rows = path.stat().st_size, max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield _text_field({column: text}, f"{path}, record {number}", column)
                if reading.advance is not None:
                    reading.advance(size * number // rows - told)
                    told = size * number // rows
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet ({error}); write it again") from error


# --- encodings --------------------------------------------------------------------------------------------------------

_SURROGATES = re.compile("[\ud800-\udfff]")
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it starts with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    b"\x84\x31\x95\x33": "gb18030",
}
# About a fifth of any Chinese text; in other languages' encodings these byte pairs are rare.
_FREQUENT_CHINESE = re.compile("[的一是在了不有和人这這中大为為上个個国國我以要他，。、：]")
_MIN_FREQUENT_FRACTION = 0.06
_MIN_NUL_FRACTION = 0.1  # of one half of the bytes: in scripts other than ours every space and line end holds a NUL


def detect_encoding(block: bytes) -> str:
    """UTF-8, UTF-16 or GB18030, by the mark or the look of a file's first block; UTF-8 when it is none of them.

    What cannot be told apart by looking (Latin-1, Shift-JIS, ...) is left to --encoding.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if block.startswith(mark):
            return encoding
    if _try_decode(block, "utf-8") is not None and b"\0" not in block:
        return "utf-8"
    wide = ("utf-16-le", "utf-16-be") if b"\0" in block else ()
    for encoding in (*wide, "gb18030"):
        if _looks_chinese(_try_decode(block, encoding)):
            return encoding
    even, odd = block[::2].count(0), block[1::2].count(0)
    if min(even, odd) * 8 < max(even, odd) > _MIN_NUL_FRACTION * len(block) / 2:
        return "utf-16-le" if odd > even else "utf-16-be"
    return "utf-8"


def _looks_chinese(text: str | None) -> bool:
    foreign = sum(not character.isascii() for character in text or "")
    return text is not None and len(_FREQUENT_CHINESE.findall(text)) > _MIN_FREQUENT_FRACTION * foreign


def _try_decode(block: bytes, encoding: str) -> str | None:
    """The text of a block, whose last character may be cut, or None."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(block)
    except UnicodeDecodeError:
        return None
