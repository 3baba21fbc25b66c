"""Tokenize text into shards for pre-training.

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

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from litebert import builtin
from litebert.console import make_console, say
from litebert.errors import ConfigError
from litebert.run_folder import INTERRUPTED, refuse_overwrite, write_run

if TYPE_CHECKING:
    from rich.console import Console

    from litebert.data.shards import ShardIndex


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
    """Text encoding: auto detects UTF-8, UTF-16 and GB18030; or name one, such as big5."""
    sentences: Literal["split", "lines"] = "split"
    """Sentence splitting: split finds sentences in every line, lines takes each line as one sentence."""
    language: str = "en"
    """Language code of the sentence splitter."""
    words: Literal["auto", "pieces", "jieba"] = "auto"
    """Word boundaries: from the tokenizer's pieces, or by jieba for Chinese; auto detects Chinese text."""
    dictionary: tuple[Path, ...] = ()
    """Word lists for jieba, one word per line."""
    chinese_script: Literal["keep", "simplified", "traditional"] = "keep"
    """Convert Chinese characters; needs the extra `chinese`."""
    scrub: bool = False
    """Replace e-mail addresses, telephone, card and identity numbers by [email], [phone], [number]."""
    exclude: tuple[Path, ...] | None = None
    """Decontamination: texts, such as test sets, one per line. Corpus lines that share a 13-gram with one of them, or
    contain a shorter one (8 words or more), are removed. Case and punctuation are ignored."""
    held_out: float = 0.01
    """Fraction of the documents held out for validation; 0 for none."""
    workers: int | None = None
    """Encoding processes; by default one per core up to four, or one for a small input."""
    shard_tokens: int = 1 << 24
    """Tokens per shard; a stopped run continues after the last complete shard."""
    part: str = "1/1"
    """Part to prepare: i/n is the i-th of n, to be merged later."""
    engine: Literal["local", "ray"] = "local"
    """Where workers run: this machine, or a Ray cluster (needs the extra `ray`)."""
    merge: tuple[Path, ...] = ()
    """Merge these folders of parts into --out, instead of preparing text."""
    inspect: Path | None = None
    """Describe this folder of shards, instead of preparing text."""

    def __post_init__(self) -> None:
        modes = [self.inspect is not None, bool(self.merge), bool(self.input) or self.tokenizer is not None]
        if sum(modes) > 1:
            raise ConfigError("--inspect, --merge and --input with --tokenizer are three different jobs; give one")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers={self.workers} must be at least 1")
        if self.inspect is None and self.out is None:
            raise ConfigError("--out is missing; name the folder to write the shards to")


def run(config: Config) -> int:
    from litebert.data.preparation import summarize
    from litebert.data.shard_merge import merge_shards

    console = make_console()
    if config.inspect is not None:
        from litebert.data.shard_summary import describe_shards
        from litebert.data.shards import Shards

        for line in describe_shards(Shards(config.inspect)):
            print(line)
        return 0
    assert config.out is not None
    refuse_overwrite(config.out / "index.json", "finished shards")
    began = time.perf_counter()
    try:
        if config.merge:
            index, notes = merge_shards(config.merge, config.out)
            say(console, *notes)
        else:
            index = _prepare(config, console)
    except KeyboardInterrupt:
        say(console, "stopped; to continue, give the same command again")
        return INTERRUPTED
    write_run(config.out, "prepare", config)
    say(console, *summarize(index, config.out, time.perf_counter() - began), _next_command(config))
    return 0


def _prepare(config: Config, console: Console) -> ShardIndex:
    from litebert.data.corpus import find_files
    from litebert.data.encode import read_dictionary
    from litebert.data.preparation import parse_part, prepare_shards, read_excluded
    from litebert.data.prepare import CorpusConfig
    from litebert.tokenizer import Tokenizer

    assert config.out is not None
    if not config.input:
        raise ConfigError("--input names no files; give at least one text file")
    if config.tokenizer is None:
        raise ConfigError("--tokenizer is missing; make one with: litebert tokenizer --input FILES --out tok")
    corpus = CorpusConfig(
        files=tuple(find_files(config.input)),
        text_column=config.text_column,
        encoding=config.encoding,
        sentences=config.sentences,
        language=config.language,
        words=config.words,
        dictionary=read_dictionary(config.dictionary),
        chinese_script=config.chinese_script,
        scrub=config.scrub,
        excluded=read_excluded(config.exclude, config.text_column, config.encoding, console),
        held_out=config.held_out,
        part=parse_part(config.part),
        shard_tokens=config.shard_tokens,
    )
    tokenizer = Tokenizer.load(builtin.folder_of(config.tokenizer))
    return prepare_shards(corpus, tokenizer, config.out, console, config.workers, config.engine)


def _next_command(config: Config) -> str:
    has_model = config.tokenizer is not None and (builtin.folder_of(config.tokenizer) / "model.safetensors").is_file()
    model = f"--model {shlex.quote(str(config.tokenizer))} " if has_model else ""
    smaller = f"{'' if has_model else '--preset tiny '}--batch-size 32 --length 64 --steps 2000"
    run = f"litebert pretrain --data {shlex.quote(str(config.out))} {model}--out runs/pretrain"
    return f"next: {run} (without a GPU, add: {smaller})"
