"""Answer for every line of a file or of standard input; JSON lines out.

Examples:
  echo 'my parcel never came' | litebert predict --model runs/finetune
  litebert predict --model runs/pretrain --input gaps.txt --output filled.jsonl

A line is a text, or a JSON object with `text` (or `text_a` and `text_b`); a blank line gets the answer null. With
--input, CSV, TSV, JSONL and Parquet files work too.
"""

from __future__ import annotations

import io
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert.errors import DataError
from litebert.files import replacing
from litebert.recipes._shared import check_numbers, make_console

if TYPE_CHECKING:
    from litebert.data.labelled import Source
    from litebert.predict import Model

LINE_LIMIT_BYTES = 16 << 20
GATHERED = 16  # batches that are read before they are answered, if they are there
BLANK = object()
"""A blank line."""


@dataclass(frozen=True)
class Config:
    model: str
    """Model folder, or a name on the hub."""
    input: str = "-"
    """File to read; - is standard input."""
    output: str = "-"
    """File to write; - is standard output."""
    columns: tuple[str, ...] = ()
    """What stands where in a table, if not under its usual name: text=sentence, or text=1 without a header."""
    skip_bad: bool = False
    """Leave out rows of a table that cannot be read, instead of stopping at the first; they are counted."""
    batch_size: int = 32
    """Lines at a time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        check_numbers(self, "batch_size")


def run(config: Config) -> None:
    from litebert.data.labelled import Source
    from litebert.predict import load
    from litebert.train.runtime import pick_device

    model = load(config.model).to(pick_device(config.device))
    source = Source.of(config.columns, config.skip_bad)
    records = _records(config, source, model)
    count = 0
    with ExitStack() as stack:
        if config.output == "-":
            out = sys.stdout
        else:
            out = stack.enter_context(stack.enter_context(replacing(Path(config.output))).open("w", encoding="utf-8"))
        for some in _chunks(records, config.batch_size * GATHERED):
            answers = iter(model.answer_records([record for record in some if record is not BLANK], config.batch_size))
            for record in some:
                answer = None if record is BLANK else asdict(next(answers))
                out.write(json.dumps(answer, ensure_ascii=False) + "\n")
            out.flush()  # a pipe's reader sees every batch as it is done
            count += len(some)
    if source.skipped:
        left = f"{len(source.skipped):,} left out, the first: {source.skipped[0]}"
        make_console().print(left, highlight=False, markup=False)
    if config.output != "-":
        make_console().print(f"{count:,} answers in {config.output}", highlight=False, markup=False)


def _chunks(records: Iterator[Any], most: int) -> Iterator[list[Any]]:
    """Whatever has come in, up to so many: in a slow pipe a line is answered when it comes, and a file is read in
    chunks large enough to find neighbours of similar length."""
    waiting: queue.Queue[Any] = queue.Queue(maxsize=most)

    def read() -> None:
        try:
            for record in records:
                waiting.put(record)
            waiting.put(None)
        except BaseException as error:  # noqa: BLE001  # it is raised again where somebody listens
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        chunk: list[Any] = []
        while not ended and len(chunk) < most and (not chunk or not waiting.empty()):
            record = waiting.get()
            if isinstance(record, BaseException):
                if chunk:
                    yield chunk  # what came before the mistake is answered
                raise record
            ended = record is None
            if not ended:
                chunk.append(record)
        if chunk:
            yield chunk


def _records(config: Config, source: Source, model: Model) -> Iterator[Any]:
    """The task's record for every line or row, or BLANK, so that answers keep step with lines."""
    from litebert.data.corpus import decode_line
    from litebert.data.labelled import PLAIN, format_of, read_text

    path, name = Path(config.input), "standard input" if config.input == "-" else config.input
    if config.input != "-" and (path.is_dir() or format_of(path) not in PLAIN):
        for where, item in model.items_of(path, source):
            try:
                yield model.parse(item, where)
            except DataError as error:
                source.refuse(error)
        return
    lines: Iterable[str]
    if config.input == "-":
        lines = (decode_line(line, name, number) for number, line in enumerate(_standard_input(), start=1))
    else:
        lines = io.StringIO(read_text(path))
    for number, line in enumerate(lines, start=1):
        where = f"{name}, line {number}"
        yield model.parse(_parse_line(line.rstrip("\r\n"), where), where) if line.strip() else BLANK


def _standard_input() -> Iterator[bytes]:
    """Its lines, read without Python's buffer: a thread that waits in it cannot be left behind at the end."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # somebody has put something else in its place
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
    if not line.lstrip().startswith("{"):
        return line
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: starts like a JSON object but is not one ({error}); fix it, or write plain text"
        ) from error
