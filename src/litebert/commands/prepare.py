"""Turn text into shards that pre-training reads.

Plain text holds one sentence or paragraph per line, and a blank line between documents; a record of JSON lines or
Parquet is a document. A run that was stopped continues when the same command is given again.

Examples:
  litebert prepare --input a.txt b.txt.xz --tokenizer tok/ --out shards/
  litebert prepare --input corpus/ 'more/*.jsonl.gz' --tokenizer tok/ --out shards/ --held-out 0.005
  litebert prepare --input corpus/ --tokenizer tok/ --out part-1/ --part 1/8
  litebert prepare --merge part-*/ --out shards/
  litebert prepare --inspect shards/
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert import builtin
from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.run_folder import INTERRUPTED, refuse_overwrite, write_run

if TYPE_CHECKING:
    from rich.console import Console

    from litebert.data.decontamination import ExcludedNgrams
    from litebert.data.shards import ShardIndex

MOST_WORKERS = 4  # by itself: each takes up to 190 MB, and all of it shall stay below a gigabyte
SMALL_BYTES = 4 << 20  # on disk: starting workers would take longer than the work

UNKNOWN_SHARE = 0.05  # of the tokens: beyond it a text is in the wrong language for its vocabulary


@dataclass(frozen=True)
class Config:
    out: Path | None = None
    """Folder to write the shards to."""
    input: tuple[Path, ...] = ()
    """Files (.txt .jsonl .parquet, plain or .gz .bz2 .xz .zst), folders that hold such files, or globs."""
    tokenizer: Path | None = None
    """Folder that `litebert tokenizer` wrote, or any model folder, or the name of a built-in model."""
    text_column: str = "text"
    """Column of JSON lines and Parquet that holds the text."""
    encoding: str = "auto"
    """How text is encoded: auto tells UTF-8, UTF-16 and GB18030 apart, or name one, such as big5."""
    sentences: Literal["split", "lines"] = "split"
    """How sentences are found: split looks for them in every line, lines takes each line as one."""
    language: str = "en"
    """Language code: whose abbreviations do not end a sentence."""
    words: Literal["auto", "pieces", "jieba"] = "auto"
    """Where words start: as the tokenizer's pieces say, or by jieba for Chinese; auto looks at the text."""
    dictionary: tuple[Path, ...] = ()
    """Files of words that jieba must know, one per line."""
    chinese_script: Literal["keep", "simplified", "traditional"] = "keep"
    """Convert Chinese characters; needs the extra `chinese`."""
    scrub: bool = False
    """Replace e-mail addresses, telephone, card and identity numbers by [email], [phone], [number]."""
    exclude: tuple[Path, ...] | None = None
    """Text that must not be learned from, say that of test sets, in files like those of --input, a text on each line:
    lines of the corpus that share 13 words in a row with it, or hold one of its shorter texts (8 words on), are left
    out. Case, spacing and punctuation do not count."""
    held_out: float = 0.01
    """Share of the documents to keep apart for validation; 0 for none."""
    workers: int | None = None
    """Processes that encode; when not given, as many as there are cores but four at most, or one for a small input."""
    shard_tokens: int = 1 << 24
    """Tokens per shard; a stopped run continues from the last whole shard."""
    part: str = "1/1"
    """Which part to prepare: i/n is the i-th of n, to be merged later."""
    engine: Literal["local", "ray"] = "local"
    """Where the workers run: this machine, or a Ray cluster (needs the extra `ray`)."""
    merge: tuple[Path, ...] = ()
    """Folders of parts to lay together in --out, instead of preparing text."""
    inspect: Path | None = None
    """Folder of shards to describe, instead of preparing text."""

    def __post_init__(self) -> None:
        modes = [self.inspect is not None, bool(self.merge), bool(self.input) or self.tokenizer is not None]
        if sum(modes) > 1:
            raise ConfigError("--inspect, --merge and --input with --tokenizer are three different jobs; give one")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers={self.workers} must be at least 1")
        if self.inspect is None and self.out is None:
            raise ConfigError("--out is missing; name the folder to write the shards to")


def run(config: Config) -> int:
    console = make_console()
    if config.inspect is not None:
        _inspect(config.inspect, console)
        return 0
    assert config.out is not None
    refuse_overwrite(config.out / "index.json", "finished shards")
    began = time.perf_counter()
    try:
        index = _merge(config, console) if config.merge else _prepare(config, console)
    except KeyboardInterrupt:
        _say(console, "stopped; to continue, give the same command again")
        return INTERRUPTED
    write_run(config.out, "prepare", config)
    _report(index, config.tokenizer, config.out, time.perf_counter() - began, console)
    return 0


def _prepare(config: Config, console: Console) -> ShardIndex:
    from litebert.data.corpus import ReadOptions, find_files, total_size
    from litebert.data.encode import read_dictionary
    from litebert.data.prepare import CorpusConfig, prepare
    from litebert.data.shards import JOURNAL
    from litebert.tokenizer import Tokenizer

    assert config.out is not None
    if not config.input:
        raise ConfigError("--input names no files; give at least one text file")
    if config.tokenizer is None:
        raise ConfigError("--tokenizer is missing; make one with: litebert tokenizer --input FILES --out tok")
    files = find_files(config.input)
    corpus = CorpusConfig(
        files=tuple(files),
        text_column=config.text_column,
        encoding=config.encoding,
        sentences=config.sentences,
        language=config.language,
        words=config.words,
        dictionary=read_dictionary(config.dictionary),
        chinese_script=config.chinese_script,
        scrub=config.scrub,
        excluded=_excluded(config, console),
        held_out=config.held_out,
        part=_part(config.part),
        shard_tokens=config.shard_tokens,
    )
    if (config.out / JOURNAL).exists():
        _say(console, f"continuing the unfinished run in {config.out}")
    total = total_size(corpus.part_files)
    tokenizer = Tokenizer.load(builtin.folder_of(config.tokenizer))
    with _progress(console, total) as advance:
        options = ReadOptions(advance=advance, notify=lambda line: _say(console, line))
        return prepare(corpus, tokenizer, config.out, _engine(config, total), options)


def _excluded(config: Config, console: Console) -> ExcludedNgrams | None:
    from litebert.data.corpus import ReadOptions, find_files, read_documents
    from litebert.data.decontamination import MIN_WORDS, ExcludedNgrams

    if config.exclude is None:
        return None
    if not config.exclude:
        raise ConfigError("--exclude names no file; give some, or leave it out")
    options = ReadOptions(text_column=config.text_column, encoding=config.encoding)
    with console.status("reading what is to be left out"):
        excluded = ExcludedNgrams.from_documents(read_documents(find_files(config.exclude), options))
    if not excluded.hashes:
        raise ConfigError(
            f"exclude: no line of {config.exclude[0]} has {MIN_WORDS} words, so nothing would be left out"
        )
    short = f"; {excluded.too_short:,} lines have fewer than {MIN_WORDS} and are not looked for"
    runs = sum(map(len, excluded.hashes.values()))
    _say(console, f"leaving out what holds one of {runs:,} runs of words{short if excluded.too_short else ''}")
    return excluded


def _engine(config: Config, total: int) -> Callable[[Any], Any]:
    from litebert.data import executors as engines

    if config.engine == "ray":
        return partial(engines.ray_cluster, workers=config.workers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = config.workers or (1 if total < SMALL_BYTES else min(cores, MOST_WORKERS))
    return engines.in_process if workers == 1 else partial(engines.process_pool, workers=workers)


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None:
        raise ConfigError(f"part={text!r} must be written i/n, such as 1/8 for the first of eight")
    return int(found[1]), int(found[2])


def _merge(config: Config, console: Console) -> ShardIndex:
    from litebert.data.shard_merge import merge_shards

    assert config.out is not None
    index, notes = merge_shards(config.merge, config.out)
    for note in notes:
        _say(console, note)
    return index


def _inspect(folder: Path, console: Console) -> None:
    from litebert.data.shard_summary import describe_shards
    from litebert.data.shards import Shards

    for line in describe_shards(Shards(folder)):
        print(line)


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


def _report(index: ShardIndex, tokenizer: Path | None, out: Path, seconds: float, console: Console) -> None:
    size = sum((out / name).stat().st_size for name in index.sha256)
    _say(
        console,
        f"{index.tokens:,} tokens of {index.documents:,} documents in {out} ({size / 1e6:,.1f} MB), "
        f"{index.duplicates:,} duplicates dropped; {index.text_bytes / 1e6:,.1f} MB of text "
        f"in {seconds:,.1f} s, {index.text_bytes / 1e6 / seconds:,.1f} MB/s",
    )
    if index.settings.get("excluded"):
        _say(console, f"excluded: {index.excluded:,} lines")
    if index.held_out_documents:
        _say(console, f"held out: {index.held_out_tokens:,} tokens of {index.held_out_documents:,} documents")
    elif index.settings.get("held_out"):
        _say(console, "held out: none, the corpus is too small; give a larger --held-out to validate on some of it")
    if index.unknown > UNKNOWN_SHARE * index.tokens:
        _say(
            console,
            f"warning: {index.unknown / index.tokens:.0%} of the tokens are unknown to this vocabulary; "
            "train one on this text with: litebert tokenizer",
        )
    known = tokenizer is not None and (builtin.folder_of(tokenizer) / "model.safetensors").is_file()
    model = f"--model {shlex.quote(str(tokenizer))} " if known else ""
    smaller = f"{'' if known else '--preset tiny '}--batch-size 32 --length 64 --steps 2000"
    run = f"litebert pretrain --data {shlex.quote(str(out))} {model}--out runs/pretrain"
    _say(console, f"next: {run} (without a GPU, add: {smaller})")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False)
