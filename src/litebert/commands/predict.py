"""Answer for every line of a file or of standard input; JSON lines out.

Examples:
  echo 'my parcel never came' | litebert predict --model runs/finetune
  litebert predict --model runs/pretrain --input gaps.txt --output filled.jsonl

A line is a text, a pair ["first", "second"], or a JSON object with `text` (or `text_a` and `text_b`); a blank line gets
the answer null. With --input, CSV, TSV, JSONL and Parquet files work too; a row without text gets null.
"""

from __future__ import annotations

import io
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError, DataError
from litebert.files import atomic_path

if TYPE_CHECKING:
    from litebert.data.tables import TableOptions
    from litebert.inference import Model

LINE_LIMIT_BYTES = 16 << 20
GATHERED = {"cpu": 512, "cuda": 8192}  # lines that are read before they are answered, if they are there
BLANK = object()
"""A blank line."""


@dataclass(frozen=True)
class Config:
    model: str = DEFAULT
    """Model folder, or the name of one that is built in or on the hub."""
    input: str = "-"
    """File to read; - is standard input."""
    output: str = "-"
    """File to write; - is standard output."""
    columns: tuple[str, ...] = ()
    """What stands where in a table, if not under its usual name: text=sentence, or text=1 without a header."""
    skip_bad: bool = False
    """Do not stop at what cannot be read: a line gets null, a row of a table is left out; both are counted."""
    batch_size: int | None = None
    """Lines at a time; by default 32, and on a GPU as many as make 32,768 tokens."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """auto: bf16 on a GPU that has it, fp32 elsewhere. fp8 is bf16 with the larger matrix products from eight bits, on
    GPUs such as an H100: faster for large batches, less exact."""
    passes: int | None = None
    """Passes to run instead of all: faster, and right where the model has learned it (distill --elastic)."""
    speed: float = 1.0
    """Let texts whose class is clear stop early, so that they take 1 / speed of the passes on the average: 2 is usual.
    For classifiers that have learned it (distill --elastic)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_counts_and_seed(self, "batch_size")


def run(config: Config) -> None:
    from litebert.data.tables import TableOptions
    from litebert.device import pick_device
    from litebert.loading import load

    if "-" not in (config.input, config.output) and Path(config.input).resolve() == Path(config.output).resolve():
        raise ConfigError(f"output={config.output} is the input, which the answers would replace; name another file")
    model = load(config.model).to(pick_device(config.device))
    model.configure(config.precision, config.passes, config.speed)
    options = TableOptions.parse(config.columns, config.skip_bad, keep_empty=True)
    records = _records(config, options, model)
    console, count = make_console(), 0
    with ExitStack() as stack:
        if config.output == "-":
            out = sys.stdout
        else:
            status = stack.enter_context(console.status("answering"))
            out = stack.enter_context(stack.enter_context(atomic_path(Path(config.output))).open("w", encoding="utf-8"))
        for some in _chunks(records, max(GATHERED[model.device.type], config.batch_size or 0)):
            for answer in _answers(model, some, options, config.batch_size):
                out.write(json.dumps(answer, ensure_ascii=False) + "\n")
                count += 1
            out.flush()  # a pipe's reader sees every batch as it is done
            if config.output != "-":
                status.update(f"{count:,} answers")
    if options.skipped:
        left = f"{len(options.skipped):,} left out, the first: {options.skipped[0]}"
        console.print(left, highlight=False, markup=False)
    if config.output != "-":
        console.print(f"{count:,} answers in {config.output}", highlight=False, markup=False)


def _answers(
    model: Model, records: Sequence[Any], options: TableOptions, batch_size: int | None
) -> Iterator[dict[str, Any] | None]:
    """One for every record. What cannot be answered is found by halves: all before it gets its answer first."""
    from litebert.inference.records import as_record

    asked = [record for record in records if record is not BLANK]
    try:
        found = iter(model.answer_records(asked, batch_size) if asked else ())
    except DataError as error:
        if len(records) == 1:
            options.skip_or_raise(error)
            yield None
        else:
            for half in (records[: len(records) // 2], records[len(records) // 2 :]):
                yield from _answers(model, half, options, batch_size)
        return
    for record in records:
        yield None if record is BLANK else as_record(next(found))


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


def _records(config: Config, options: TableOptions, model: Model) -> Iterator[Any]:
    """The task's record for every line or row, or BLANK, so that answers keep step with lines."""
    from litebert.data.corpus import decode_line
    from litebert.data.tables import PLAIN_TEXT_SUFFIXES, read_text
    from litebert.files import format_suffix
    from litebert.inference.records import is_blank

    path, name = Path(config.input), "standard input" if config.input == "-" else config.input
    if config.input != "-" and (path.is_dir() or format_suffix(path) not in PLAIN_TEXT_SUFFIXES):
        for where, item in model.items_of(path, options):
            if is_blank(item):
                yield BLANK
                continue
            try:
                yield model.parse(item, where)
            except DataError as error:
                options.skip_or_raise(error)
        return
    lines: Iterable[str]
    if config.input == "-":
        lines = (decode_line(line, name, number) for number, line in enumerate(_standard_input(), start=1))
    else:
        lines = io.StringIO(read_text(path))
    for number, line in enumerate(lines, start=1):
        where = f"{name}, line {number}"
        record = BLANK
        if line.strip():
            try:
                record = model.parse(_parse_line(line.rstrip("\r\n"), where), where)
            except DataError as error:
                options.skip_or_raise(error)
        yield record


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
    if line.lstrip().startswith("["):  # a pair, or a text that begins like that: [MASK], say
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
