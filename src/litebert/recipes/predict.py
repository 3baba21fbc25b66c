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
    from litebert.predict import Model

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
    batch_size: int = 32
    """Lines at a time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        check_numbers(self, "batch_size")


def run(config: Config) -> None:
    from litebert.predict import load
    from litebert.train.runtime import pick_device

    model = load(config.model).to(pick_device(config.device))
    items = _records(config.input, model)
    count = 0
    with ExitStack() as stack:
        if config.output == "-":
            out = sys.stdout
        else:
            out = stack.enter_context(stack.enter_context(replacing(Path(config.output))).open("w", encoding="utf-8"))
        for some in _chunks(items, config.batch_size * GATHERED):
            answers = iter(model.answer_records([record for record in some if record is not BLANK], config.batch_size))
            for record in some:
                answer = None if record is BLANK else asdict(next(answers))
                out.write(json.dumps(answer, ensure_ascii=False) + "\n")
            out.flush()  # a pipe's reader sees every batch as it is done
            count += len(some)
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


def _records(source: str, model: Model) -> Iterator[Any]:
    """The task's record for every line or row, or BLANK, so that answers keep step with lines."""
    from litebert.data.corpus import decode_line
    from litebert.data.labelled import TABLES, format_of, read_text

    name = "standard input" if source == "-" else source
    if source != "-" and format_of(Path(source)) in TABLES:
        yield from (model.parse(item, where) for where, item in model.items_of(Path(source)))
        return
    lines: Iterable[str]
    if source == "-":
        lines = (decode_line(line, name, number) for number, line in enumerate(sys.stdin.buffer, start=1))
    else:
        lines = io.StringIO(read_text(Path(source)))
    for number, line in enumerate(lines, start=1):
        where = f"{name}, line {number}"
        yield model.parse(_parse_line(line.strip(), where), where) if line.strip() else BLANK


def _parse_line(line: str, where: str) -> Any:
    if not line.startswith("{"):
        return line
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: starts like a JSON object but is not one ({error}); fix it, or write plain text"
        ) from error
