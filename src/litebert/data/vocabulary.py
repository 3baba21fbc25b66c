"""Train a vocabulary on text files, with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress

from litebert.console import progress_bar, say
from litebert.data.corpus import ReadOptions, find_files, read_lines, total_size
from litebert.errors import DataError
from litebert.tokenizer import Tokenizer, train_unigram, train_wordpiece


def train_vocabulary(
    inputs: Sequence[Path],
    vocab_size: int,
    console: Console,
    *,
    kind: Literal["unigram", "wordpiece"] = "unigram",
    text_column: str = "text",
    encoding: str = "auto",
    lowercase: bool = True,
    strip_accents: bool = True,
    seed: int = 0,
) -> Tokenizer:
    """A tokenizer with up to `vocab_size` tokens, learned from files, folders or globs."""
    files = find_files(inputs)
    unreadable: list[DataError] = []

    def lines(progress: Progress) -> Iterator[str]:
        reading = ReadOptions(
            text_column,
            encoding,
            advance=lambda count: progress.advance(progress.task_ids[0], count),
            notify=lambda line: say(console, line),
        )
        try:
            yield from read_lines(files, reading)
            progress.update(progress.task_ids[0], description="learning pieces", total=None)
        except DataError as error:
            unreadable.append(error)
            raise

    train = train_wordpiece if kind == "wordpiece" else train_unigram
    with progress_bar(console, "reading", total_size(files)) as progress:
        try:
            return train(lines(progress), vocab_size, lowercase=lowercase, strip_accents=strip_accents, seed=seed)
        except DataError as error:  # sentencepiece wraps an error of its input into one of its own
            raise unreadable[0] if unreadable else error from None
