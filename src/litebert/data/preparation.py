"""What `litebert prepare` does around `data.prepare`: workers, progress, excluded texts and a summary."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from litebert.console import say
from litebert.data import executors
from litebert.data.corpus import ReadOptions, find_files, read_documents, total_size
from litebert.data.decontamination import MIN_WORDS, ExcludedNgrams
from litebert.data.prepare import CorpusConfig, prepare
from litebert.data.shards import JOURNAL, ShardIndex
from litebert.errors import ConfigError
from litebert.tokenizer import Tokenizer

MAX_DEFAULT_WORKERS = 4
"""Each worker takes up to 190 MB, and by default all together must stay below a gigabyte."""
SINGLE_PROCESS_BYTES = 4 << 20
"""Input on disk below which starting workers takes longer than the work."""
MAX_UNKNOWN_SHARE = 0.05
"""Share of unknown tokens above which the text is in the wrong language for the vocabulary."""


def prepare_shards(
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    out: Path,
    console: Console,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
) -> ShardIndex:
    """Write shards with a progress bar, or continue a run that was stopped."""
    if (out / JOURNAL).exists():
        say(console, f"continuing the unfinished run in {out}")
    size = total_size(corpus.part_files)
    with _progress(console, size) as advance:
        reading = ReadOptions(advance=advance, notify=lambda line: say(console, line))
        return prepare(corpus, tokenizer, out, _executor(engine, workers, size), reading)


def _executor(engine: str, workers: int | None, size: int) -> Callable[[Any], Any]:
    if engine == "ray":
        return partial(executors.ray_cluster, workers=workers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = workers or (1 if size < SINGLE_PROCESS_BYTES else min(cores, MAX_DEFAULT_WORKERS))
    return executors.in_process if workers == 1 else partial(executors.process_pool, workers=workers)


def read_excluded(
    paths: Sequence[Path] | None, text_column: str, encoding: str, console: Console
) -> ExcludedNgrams | None:
    """Texts, such as test sets, whose n-grams are removed from the corpus."""
    if paths is None:
        return None
    if not paths:
        raise ConfigError("--exclude names no file; give some, or leave it out")
    reading = ReadOptions(text_column=text_column, encoding=encoding)
    with console.status("reading the texts to exclude"):
        excluded = ExcludedNgrams.from_documents(read_documents(find_files(paths), reading))
    if not excluded.hashes:
        raise ConfigError(f"exclude: no line of {paths[0]} has {MIN_WORDS} words, so nothing would be left out")
    short = f"; {excluded.too_short:,} lines have fewer than {MIN_WORDS} and are not looked for"
    ngrams = sum(map(len, excluded.hashes.values()))
    say(console, f"excluding lines with one of {ngrams:,} n-grams{short if excluded.too_short else ''}")
    return excluded


def parse_part(text: str) -> tuple[int, int]:
    """From i/n."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        raise ConfigError(f"part={text!r} must be written i/n, such as 1/8 for the first of eight")
    return int(match[1]), int(match[2])


def summarize(index: ShardIndex, out: Path, seconds: float) -> Iterator[str]:
    """Lines about what was written, and what may be wrong with it."""
    size = sum((out / name).stat().st_size for name in index.sha256)
    yield (
        f"{index.tokens:,} tokens of {index.documents:,} documents in {out} ({size / 1e6:,.1f} MB), "
        f"{index.duplicates:,} duplicates dropped; {index.text_bytes / 1e6:,.1f} MB of text "
        f"in {seconds:,.1f} s, {index.text_bytes / 1e6 / seconds:,.1f} MB/s"
    )
    if index.settings.get("excluded"):
        yield f"excluded: {index.excluded:,} lines"
    if index.held_out_documents:
        yield f"held out: {index.held_out_tokens:,} tokens of {index.held_out_documents:,} documents"
    elif index.settings.get("held_out"):
        yield "held out: none, the corpus is too small; give a larger --held-out to validate on some of it"
    if index.unknown > MAX_UNKNOWN_SHARE * index.tokens:
        yield (
            f"warning: {index.unknown / index.tokens:.0%} of the tokens are unknown to this vocabulary; "
            "train one on this text with: litebert tokenizer"
        )


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over the bytes on disk."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("preparing", total=total)
        yield lambda read: progress.advance(task, read)
