"""Reading raw text as documents, from plain text, JSON lines and Parquet in files, folders and globs.

A document is a string with one paragraph per line. In plain text it ends at a blank line or the end of the file; in
JSON lines and Parquet each record is one.
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
from litebert.files import COMPRESSED_SUFFIXES, DECOMPRESSION_ERRORS, decompressed, format_suffix

MAX_LINE_BYTES = 16 << 20
MAX_DOCUMENT_CHARACTERS = 1 << 22  # bounds memory: a longer document is cut
SNIFFED_BYTES = 1 << 16
JSON_LINES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", *JSON_LINES, ".parquet")
ADVANCE_EVERY = 64  # lines: file.tell() costs more than reading a line

Advance = Callable[[int], None]


@dataclass(frozen=True)
class ReadOptions:
    """How files are read, and callbacks."""

    text_column: str = "text"
    """Name of the text column of JSON lines and Parquet."""
    encoding: str = "auto"
    """A codec, or auto: detect UTF-8, UTF-16 or GB18030."""
    advance: Advance | None = None
    """Called with the number of bytes read from disk."""
    notify: Callable[[str], None] | None = None
    """Called with a message about a file that is not UTF-8."""

    def __post_init__(self) -> None:
        if self.encoding != "auto":
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ConfigError(
                    f"encoding={self.encoding!r} is unknown; use auto, utf-8, gb18030, utf-16 or another Python codec"
                ) from None


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files of paths, folders (searched recursively, by suffix) and globs, each once."""
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            names = sorted(name for name in path.rglob("*") if format_suffix(name) in TEXT_SUFFIXES and name.is_file())
            if not names:
                raise DataError(f"{path}: is a folder without text files; give text files ({' '.join(TEXT_SUFFIXES)})")
        elif not path.exists() and glob.has_magic(str(path)):
            matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
            names = sorted(name for name in map(Path, matches) if name.is_file())
            if not names:
                raise DataError(f"{path}: matches no file; check the pattern, or give text files")
        else:
            names = [path]
        files |= dict.fromkeys(names)
    return list(files)


def total_size(paths: Sequence[Path]) -> int:
    """Total size in bytes, the sum of all `advance` calls; raises if a file is missing."""
    for path in paths:
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "no such file"
            raise DataError(f"{path}: {problem}; give text files (.txt, or .txt + {' '.join(COMPRESSED_SUFFIXES)})")
    return sum(path.stat().st_size for path in paths)


def read_lines(paths: Sequence[Path], options: ReadOptions | None = None) -> Iterator[str]:
    """The paragraphs of all documents, without line breaks."""
    for document in read_documents(paths, options):
        yield from document.split("\n")


def read_documents(paths: Sequence[Path], options: ReadOptions | None = None) -> Iterator[str]:
    """The documents of all files."""
    empty = True
    for path in paths:
        for document in read_file(path, options or ReadOptions()):
            empty = False
            yield document
    if empty:
        raise no_text_error(paths)


def read_file(path: Path, options: ReadOptions) -> Iterator[str]:
    """The documents of one file; none if it holds only white space."""
    kind = format_suffix(path)
    if kind == ".parquet":
        texts = _parquet_texts(path, options)
    elif kind in JSON_LINES:
        texts = _json_texts(path, options)
    else:
        yield from _join_lines(_read_file_lines(path, options))
        return
    for text in texts:
        # a record is one document, whatever blank lines it holds, unless it is too long
        yield from _join_lines(line for line in text.split("\n") if line and not line.isspace())


def no_text_error(paths: Sequence[Path]) -> DataError:
    names = ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return DataError(f"{names}: no text; give files that hold text")


def decode_line(line: bytes, source: Path | str, number: int, encoding: str | None = None) -> str:
    """Decode line `number` of a source, without line break and byte-order mark; by default as UTF-8."""
    try:
        text = line.decode(encoding or "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}, line {number}: byte 0x{line[error.start]:02x} is not {(encoding or 'utf-8').upper()}; "
            + ("name the right one with --encoding, or " if encoding else "")
            + "convert it first, with: iconv -f ENCODING -t UTF-8"
        ) from error
    return text.removeprefix("\ufeff") if number == 1 else text


def _join_lines(lines: Iterator[str]) -> Iterator[str]:
    """Join stripped lines to documents; a blank line or `MAX_DOCUMENT_CHARACTERS` ends one."""
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


def _read_file_lines(path: Path, options: ReadOptions) -> Iterator[str]:
    """The lines of one plain or compressed file."""
    number = reported = 0
    try:
        with path.open("rb") as raw, _buffered(decompressed(raw, path.suffix)) as file:
            for line in _decode_lines(file, path, options):
                number += 1
                yield line
                if options.advance is not None and number % ADVANCE_EVERY == 0 and raw.tell() > reported:
                    options.advance(raw.tell() - reported)
                    reported = raw.tell()
            if options.advance is not None:
                options.advance(raw.tell() - reported)
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
    """A file whose first block can be peeked at."""
    return io.BufferedReader(cast(io.RawIOBase, file), SNIFFED_BYTES)


def _decode_lines(file: io.BufferedReader, path: Path, options: ReadOptions) -> Iterator[str]:
    """Decoded lines of a binary file, with a limit on their length."""
    encoding = options.encoding
    if encoding == "auto":
        encoding = detect_encoding(file.peek(SNIFFED_BYTES))
        if encoding != "utf-8" and options.notify is not None:
            options.notify(f"{path}: read as {encoding.upper()}")
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32", "utf-7", "iso2022", "hz")):
        # in these encodings a byte 0x0a is not always a line break
        text = io.TextIOWrapper(file, encoding, newline="\n")
        yield from _multibyte_lines(text, path)
        text.detach()  # the caller closes the file
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


def _json_texts(path: Path, options: ReadOptions) -> Iterator[str]:
    for number, line in enumerate(_read_file_lines(path, options), start=1):
        if not line or line.isspace():
            continue
        where = f"{path}, line {number}"
        yield _text_field(json_object(line, where), where, options.text_column)


def json_object(line: str, where: str) -> dict[str, Any]:
    """Parse a line of JSON lines."""
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
        raise DataError(
            f"{where}: column {column!r} holds {str(text)[:40]!r}, which is not text; name another --text-column"
        )
    # JSON can hold a lone surrogate, which is not a character
    return _SURROGATES.sub("\ufffd", text)


def _parquet_texts(path: Path, options: ReadOptions) -> Iterator[str]:
    arrow, parquet = require_extra("pyarrow", "train"), require_extra("pyarrow.parquet", "train")
    column = options.text_column
    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise DataError(
                    f"{path}: has no column {column!r} among {', '.join(file.schema_arrow.names)}; "
                    "name it with --text-column"
                )
            number = reported = 0
            size, rows = path.stat().st_size, max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield _text_field({column: text}, f"{path}, record {number}", column)
                if options.advance is not None:
                    options.advance(size * number // rows - reported)
                    reported = size * number // rows
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
# About a fifth of Chinese text; in the encodings of other languages these byte pairs are rare.
_FREQUENT_CHINESE = re.compile("[的一是在了不有和人这這中大为為上个個国國我以要他，。、：]")
_MIN_FREQUENT_FRACTION = 0.06
_MIN_NUL_FRACTION = 0.1  # of the even or odd bytes: in UTF-16 every space and line break holds a NUL


def detect_encoding(block: bytes) -> str:
    """Detect UTF-8, UTF-16 or GB18030 by the byte-order mark or the content of a file's first block; else UTF-8.

    Encodings that cannot be told apart by content (Latin-1, Shift-JIS, ...) need --encoding.
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
    """Decode a block whose last character may be cut; None if it is invalid."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(block)
    except UnicodeDecodeError:
        return None
