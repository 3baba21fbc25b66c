"""Answer lines of a file or of a pipe while they arrive."""

from __future__ import annotations

import io
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from litebert.data.corpus import decode_line
from litebert.data.tables import PLAIN_TEXT_SUFFIXES, TableOptions, read_text
from litebert.errors import DataError
from litebert.files import format_suffix
from litebert.inference.model import Model
from litebert.inference.records import as_record, is_blank

LINE_LIMIT_BYTES = 16 << 20
CHUNK_RECORDS = {"cpu": 512, "cuda": 8192}
"""Records that are read before they are answered, if they are there, by type of device."""
BLANK = object()
"""A blank line."""


def answer_stream(
    model: Model, records: Sequence[Any], source: TableOptions, batch_size: int | None
) -> Iterator[dict[str, Any] | None]:
    """An answer for every record. A record that cannot be answered is located by bisection: all before it are answered
    first."""
    questions = [record for record in records if record is not BLANK]
    try:
        answers = iter(model.answer_records(questions, batch_size) if questions else ())
    except DataError as error:
        if len(records) == 1:
            source.skip_or_raise(error)
            yield None
        else:
            for half in (records[: len(records) // 2], records[len(records) // 2 :]):
                yield from answer_stream(model, half, source, batch_size)
        return
    for record in records:
        yield None if record is BLANK else as_record(next(answers))


def chunk_as_they_come(records: Iterator[Any], limit: int) -> Iterator[list[Any]]:
    """Everything that has arrived, at most `limit` records: a line from a slow pipe is answered at once, and a file is
    read in chunks large enough to sort by length."""
    waiting: queue.Queue[Any] = queue.Queue(maxsize=limit)

    def read() -> None:
        try:
            for record in records:
                waiting.put(record)
            waiting.put(None)
        except BaseException as error:  # noqa: BLE001  # raised again in the consumer's thread
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        chunk: list[Any] = []
        while not ended and len(chunk) < limit and (not chunk or not waiting.empty()):
            record = waiting.get()
            if isinstance(record, BaseException):
                if chunk:
                    yield chunk  # answer what came before the error
                raise record
            ended = record is None
            if not ended:
                chunk.append(record)
        if chunk:
            yield chunk


def read_records(name: str, source: TableOptions, model: Model) -> Iterator[Any]:
    """The record of every line or row, or BLANK, so that answers stay aligned with lines. - is standard input."""
    path, title = Path(name), "standard input" if name == "-" else name
    if name != "-" and (path.is_dir() or format_suffix(path) not in PLAIN_TEXT_SUFFIXES):
        for where, item in model.items_of(path, source):
            if is_blank(item):
                yield BLANK
                continue
            try:
                yield model.parse(item, where)
            except DataError as error:
                source.skip_or_raise(error)
        return
    lines: Iterable[str]
    if name == "-":
        lines = (decode_line(line, title, number) for number, line in enumerate(_standard_input(), start=1))
    else:
        lines = io.StringIO(read_text(path))
    for number, line in enumerate(lines, start=1):
        where = f"{title}, line {number}"
        record = BLANK
        if line.strip():
            try:
                record = model.parse(_parse_line(line.rstrip("\r\n"), where), where)
            except DataError as error:
                source.skip_or_raise(error)
        yield record


def _standard_input() -> Iterator[bytes]:
    """Lines of bytes, read without Python's buffer: at exit Python would wait for a thread that blocks in it."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # stdin was replaced by an object without a descriptor
        yield from sys.stdin.buffer
        return
    rest = b""
    while block := os.read(descriptor, 1 << 16):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LINE_LIMIT_BYTES:
            raise DataError(f"standard input: a line is longer than {LINE_LIMIT_BYTES >> 20} MiB; cut it")
        yield from lines
    if rest:
        yield rest


def _parse_line(line: str, where: str) -> Any:
    if line.lstrip().startswith("["):  # a pair, or a text that begins like one, such as [MASK]
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return line
        return value if len(value) == 2 and all(isinstance(text, str) for text in value) else line
    if not line.lstrip().startswith("{"):
        return line
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: starts like a JSON object but is not one ({error}); fix it, or write plain text"
        ) from error
