"""Raw text as a stream of documents: a blank line ends one, a line is a sentence or a paragraph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from litebert.errors import DataError
from litebert.files import COMPRESSED, DAMAGE, decompressed

LINE_LIMIT_BYTES = 16 << 20
Advance = Callable[[int], None]


def read_lines(paths: Sequence[Path], advance: Advance | None = None) -> Iterator[str]:
    """The lines of plain or compressed UTF-8 files, without line ends; `advance` hears of the bytes read from disk."""
    empty = True
    for path in paths:
        for line in _read_lines_of(path, advance):
            empty = empty and not line.strip()
            yield line
    if empty:
        raise _no_text(paths)


def read_documents(paths: Sequence[Path], advance: Advance | None = None) -> Iterator[list[str]]:
    """Documents as lists of lines. A file's end also ends a document."""
    empty = True
    for path in paths:
        document: list[str] = []
        for line in _read_lines_of(path, advance):
            line = line.strip()
            if line:
                empty = False
                document.append(line)
            elif document:
                yield document
                document = []
        if document:
            yield document
    if empty:
        raise _no_text(paths)


def size_on_disk(paths: Sequence[Path]) -> int:
    """Bytes that `advance` will hear of in total; also checks that every file is there."""
    for path in paths:
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "no such file"
            raise DataError(f"{path}: {problem}; give text files (.txt, or .txt + {' '.join(COMPRESSED)})")
    return sum(path.stat().st_size for path in paths)


def decode_line(line: bytes, source: Path | str, number: int) -> str:
    """Line `number` of a UTF-8 source, without its end and without a byte-order mark."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}, line {number}: byte 0x{line[error.start]:02x} is not UTF-8; "
            "convert it first, with: iconv -f ENCODING -t UTF-8"
        ) from error


def _no_text(paths: Sequence[Path]) -> DataError:
    names = ", ".join(map(str, paths))
    return DataError(f"{names}: no text there; give plain text with a blank line between documents")


def _read_lines_of(path: Path, advance: Advance | None) -> Iterator[str]:
    told = 0
    number = 0
    try:
        with path.open("rb") as raw, decompressed(raw, path.suffix) as file:
            while line := file.readline(LINE_LIMIT_BYTES):
                number += 1
                if len(line) == LINE_LIMIT_BYTES and not line.endswith(b"\n"):
                    raise DataError(
                        f"{path}, line {number}: longer than {LINE_LIMIT_BYTES >> 20} MiB; "
                        "put one sentence or paragraph on a line"
                    )
                yield decode_line(line, path, number)
                if advance is not None and raw.tell() > told:
                    advance(raw.tell() - told)
                    told = raw.tell()
    except DAMAGE as error:
        raise DataError(
            f"{path}, after line {number}: cannot be read ({error}); the file is damaged or not what its suffix says"
        ) from error
