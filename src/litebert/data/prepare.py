"""Preparing a corpus as shards: one process reads and writes, workers encode; their number does not change the output.

A journal is written after every shard, so that an interrupted run continues after the last one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from litebert.data.corpus import ReadOptions, no_text_error, read_documents, read_file
from litebert.data.decontamination import ExcludedNgrams
from litebert.data.encode import EncodingConfig, check_extras, is_chinese, tokenizer_files
from litebert.data.executors import PendingResult, Submit
from litebert.data.sentences import ChineseScript, SentenceSplitting
from litebert.data.shards import DOCUMENT_HASHES, JOURNAL, SHARD_TOKENS, ShardCounts, ShardIndex, ShardWriter
from litebert.errors import ConfigError, DataError
from litebert.files import read_json, write_json
from litebert.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 20
LANGUAGE_SAMPLE_DOCUMENTS = 100  # documents read to detect a Chinese corpus

WordSegmenterChoice = Literal["auto", "pieces", "jieba"]


@dataclass(frozen=True)
class CorpusConfig:
    """The corpus and every setting that determines the bytes of the shards."""

    files: tuple[Path, ...]
    text_column: str = "text"
    encoding: str = "auto"
    sentences: SentenceSplitting = "split"
    language: str = "en"
    words: WordSegmenterChoice = "auto"
    dictionary: tuple[str, ...] = ()
    """Additional words for jieba."""
    chinese_script: ChineseScript = "keep"
    scrub: bool = False
    excluded: ExcludedNgrams | None = None
    """Lines that hold one of these n-grams are removed."""
    held_out: float = 0.01
    """Fraction of the documents held out for validation."""
    part: tuple[int, int] = (1, 1)
    """Number of this part, and number of parts."""
    shard_tokens: int = SHARD_TOKENS

    def __post_init__(self) -> None:
        number, parts = self.part
        if not 1 <= number <= parts:
            raise ConfigError(f"part {number}/{parts}: the number must lie between 1 and {parts}")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out={self.held_out} must be at least 0 and below 1, such as 0.01")
        if self.shard_tokens < 1:
            raise ConfigError(f"shard_tokens={self.shard_tokens} must be at least 1")
        if self.dictionary and self.words == "pieces":
            raise ConfigError("--dictionary is for jieba; leave it out, or use --words jieba")

    @property
    def part_files(self) -> tuple[Path, ...]:
        """The files of this part; with fewer files than parts, all of them, as the parts then divide the documents."""
        number, parts = self.part
        return self.files[number - 1 :: parts] if self.splits_by_file else self.files

    @property
    def splits_by_file(self) -> bool:
        return len(self.files) >= self.part[1]

    @cached_property
    def inputs(self) -> list[list[Any]]:
        """Name, size and modification time of every file, to detect changes."""
        return [[str(path), *_file_state(path)] for path in self.part_files]

    @cached_property
    def _digest(self) -> str:
        """Hash of the names and sizes of all files, without folders, which differ between machines."""
        names = "\n".join(f"{path.name} {path.stat().st_size}" for path in self.files)
        return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings stored in the index."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        words = "\n".join(values.pop("dictionary"))
        excluded = values.pop("excluded")
        del values["files"], values["shard_tokens"]
        return values | {
            "part": "{}/{}".format(*self.part),
            "corpus": self._digest,  # prevents merging parts of different corpora
            "dictionary": hashlib.sha256(words.encode()).hexdigest() if words else None,
            "excluded": None if excluded is None else excluded.digest,
        }


def prepare(
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    out: Path,
    executor: Callable[[EncodingConfig], Any],
    options: ReadOptions,
) -> ShardIndex:
    """Write the shards of a corpus to a folder, continuing an interrupted run."""
    options = dataclasses.replace(options, text_column=corpus.text_column, encoding=corpus.encoding)
    corpus = dataclasses.replace(corpus, words=_choose_word_segmenter(corpus, options))
    config = EncodingConfig(
        tokenizer=tokenizer_files(tokenizer),
        sentences=corpus.sentences,
        language=corpus.language,
        words="jieba" if corpus.words == "jieba" else "pieces",
        dictionary=corpus.dictionary,
        script=corpus.chinese_script,
        scrub=corpus.scrub,
        excluded=corpus.excluded,
    )
    check_extras(config)
    with ShardWriter(out, tokenizer, corpus.shard_tokens, corpus.settings) as writer:
        journal = Journal(corpus, writer)
        seen = journal.resume()
        batches = _document_batches(corpus, options, journal, seen)
        with executor(config) as (submit, max_pending):
            for batch, encoded in _encode_in_order(batches, submit, max_pending):
                journal.write(batch, encoded)
        if writer.counts.tokens == 0:
            raise no_text_error(corpus.part_files)
        journal.save_hashes()
        index = writer.finish()
    (out / JOURNAL).unlink(missing_ok=True)
    return index


def _choose_word_segmenter(corpus: CorpusConfig, options: ReadOptions) -> WordSegmenterChoice:
    """Resolve `auto` by the first documents."""
    words = corpus.words
    if words == "auto":
        documents = read_documents(corpus.part_files, dataclasses.replace(options, advance=None, notify=None))
        first = [document[:1000] for document, _ in zip(documents, range(LANGUAGE_SAMPLE_DOCUMENTS), strict=False)]
        words = "jieba" if is_chinese(first) else "pieces"
        if words == "jieba" and find_spec("rjieba") is None:
            words = "pieces"
            if options.notify is not None:
                options.notify("the text is Chinese; for whole words, install rjieba: pip install 'litebert[train]'")
    return words


@dataclass(frozen=True)
class DocumentBatch:
    """Documents without duplicates, and what is known of them before encoding."""

    documents: list[str]
    held_out: np.ndarray
    hashes: np.ndarray
    duplicates: int
    text_bytes: int
    position: tuple[int, int]
    """File and document number up to which the corpus has been read."""


def _document_batches(
    corpus: CorpusConfig, options: ReadOptions, journal: Journal, seen: SeenDocuments
) -> Iterator[DocumentBatch]:
    """The corpus from the journal's position on, in batches that depend on the text alone."""
    documents: list[str] = []
    characters = 0
    position = journal.position
    for position, document in _documents_with_positions(corpus, options, journal.position):
        if document is not None:
            documents.append(document)
            characters += len(document)
        if characters >= BATCH_CHARACTERS:
            yield _deduplicated_batch(documents, position, seen, corpus.held_out)
            documents, characters = [], 0
    if documents:
        yield _deduplicated_batch(documents, position, seen, corpus.held_out)


def _documents_with_positions(
    corpus: CorpusConfig, options: ReadOptions, position: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], str | None]]:
    """Documents after a position, each with its position; None instead of documents of other parts."""
    first_file, documents_read = position
    number, parts = (1, 1) if corpus.splits_by_file else corpus.part
    for file, (path, (_, *state)) in enumerate(zip(corpus.part_files, corpus.inputs, strict=True)):
        if file < first_file:
            if options.advance is not None:
                options.advance(state[0])
            continue
        at = 0
        for at, document in enumerate(read_file(path, options), start=1):
            if file > first_file or at > documents_read:
                yield (file, at), document if (at + file) % parts == number % parts else None
        if _file_state(path) != state:
            raise DataError(f"{path}: changed while it was read; start again")


def _deduplicated_batch(
    documents: list[str], position: tuple[int, int], seen: SeenDocuments, held_out: float
) -> DocumentBatch:
    contents = [document.encode("utf-8") for document in documents]
    digests = b"".join(hashlib.blake2b(content, digest_size=16).digest() for content in contents)
    hashes, lots = (
        np.frombuffer(digests, "<u8").reshape(-1, 2).T
    )  # one half identifies a document, the other decides whether it is held out
    new = seen.add(hashes)
    kept = np.flatnonzero(new).tolist()
    return DocumentBatch(
        documents=[documents[at] for at in kept],
        held_out=lots[new] < np.uint64(held_out * 2.0**64),
        hashes=hashes[new],
        duplicates=len(documents) - len(kept),
        text_bytes=sum(len(contents[at]) for at in kept),
        position=position,
    )


def _encode_in_order(
    batches: Iterator[DocumentBatch], submit: Submit, max_pending: int
) -> Iterator[tuple[DocumentBatch, Any]]:
    """Batches with their results, in order; at most `max_pending` are in flight, to bound memory."""
    pending: deque[tuple[DocumentBatch, PendingResult]] = deque()
    for batch in batches:
        pending.append((batch, submit(batch.documents)))
        if len(pending) > max_pending:
            first, result = pending.popleft()
            yield first, result()
    for first, result in pending:
        yield first, result()


class SeenDocuments:
    """A set of 64-bit document hashes: 8 bytes each, and as much again while runs are merged.

    A log-structured merge of sorted runs, each at least twice as long as the next. Among a billion documents the
    probability that any two share a hash is 1 in 40; the second would be dropped.
    """

    def __init__(self, hashes: np.ndarray | None = None) -> None:
        self._sorted_runs: list[np.ndarray] = [] if hashes is None or not len(hashes) else [np.sort(hashes)]

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Add hashes; returns which were new, counting the first of equal ones."""
        new = np.zeros(len(hashes), dtype=bool)
        new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._sorted_runs:
            new &= run[np.minimum(np.searchsorted(run, hashes), len(run) - 1)] != hashes
        if new.any():
            self._sorted_runs.append(np.sort(hashes[new]))
        while len(self._sorted_runs) > 1 and len(self._sorted_runs[-2]) < 2 * len(self._sorted_runs[-1]):
            self._sorted_runs[-2:] = [np.sort(np.concatenate(self._sorted_runs[-2:]), kind="stable")]
        return new


class Journal:
    """Writes batches to shards and records the position in the corpus after every shard."""

    def __init__(self, corpus: CorpusConfig, writer: ShardWriter) -> None:
        self.corpus, self.writer = corpus, writer
        self.path = writer.folder / JOURNAL
        self.position = (0, 0)
        self._new_hashes: list[np.ndarray] = []
        self._decisive_settings = corpus.settings | {
            "shard_tokens": corpus.shard_tokens,
            "inputs": corpus.inputs,
            "tokenizer": writer.tokenizer.fingerprint,
        }

    def resume(self) -> SeenDocuments:
        """Restore the state of an interrupted run, if there was one; returns its document hashes."""
        hashes = self.writer.folder / DOCUMENT_HASHES
        if not self.path.is_file():
            hashes.unlink(missing_ok=True)
            return SeenDocuments()
        state = read_json(self.path)
        self._check_settings(state["settings"])
        self.position = (state["file"], state["document"])
        self.writer.counts = ShardCounts(**state["counts"])
        self.writer.sha256 = state["sha256"]
        self.writer.finished_shards = state["shards"]
        missing = [name for name in self.writer.sha256 if not (self.writer.folder / name).is_file()]
        if missing:
            raise ConfigError(f"{self.path.parent}: {missing[0]} is missing; delete the folder and start again")
        size = 8 * state["hashes"]
        if not hashes.is_file() or hashes.stat().st_size < size:
            raise ConfigError(f"{hashes}: shorter than the journal records; delete the folder and start again")
        os.truncate(hashes, size)
        return SeenDocuments(np.fromfile(hashes, "<u8"))

    def _check_settings(self, settings: dict[str, Any]) -> None:
        for name, value in self._decisive_settings.items():
            if settings.get(name) != value:
                change = "inputs" if name in ("inputs", "corpus") else f"{name} (was {settings.get(name)}, now {value})"
                raise ConfigError(
                    f"{self.path.parent} holds an unfinished run with other {change}; "
                    "repeat the earlier command to continue it, choose another --out, or delete the folder"
                )

    def write(self, batch: DocumentBatch, encoded: Any) -> None:
        """Write documents to the training or held-out file; neighbours for the same file in one call."""
        counts, writer = self.writer.counts, self.writer
        counts.duplicates += batch.duplicates
        counts.text_bytes += batch.text_bytes
        counts.excluded += encoded.excluded
        self._new_hashes.append(batch.hashes)
        bits = np.frombuffer(encoded.bits, np.uint8)
        ends = np.cumsum(encoded.lengths)
        changes = np.flatnonzero(np.diff(batch.held_out.astype(np.int8))) + 1
        edges = [0, *changes.tolist(), len(ends)] if len(ends) else [0]
        size = writer.dtype.itemsize
        for first, last in pairwise(edges):
            begin, end = int(ends[first - 1]) if first else 0, int(ends[last - 1])
            if end > begin:
                held_out = bool(batch.held_out[first])
                writer.append(encoded.ids[begin * size : end * size], bits[begin:end], held_out=held_out)
        self.position = batch.position
        if writer.full:
            writer.flush()
            self._save()

    def save_hashes(self) -> None:
        with (self.writer.folder / DOCUMENT_HASHES).open("ab") as file:
            for hashes in self._new_hashes:
                file.write(hashes.astype("<u8").tobytes())
        self._new_hashes = []

    def _save(self) -> None:
        self.save_hashes()
        write_json(
            self.path,
            {
                "settings": self._decisive_settings,
                "file": self.position[0],
                "document": self.position[1],
                "counts": asdict(self.writer.counts),
                "sha256": self.writer.sha256,
                "shards": self.writer.finished_shards,
                "hashes": (self.writer.folder / DOCUMENT_HASHES).stat().st_size // 8,
            },
        )


def _file_state(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    return [status.st_size, status.st_mtime_ns]
