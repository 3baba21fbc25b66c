"""Corpus to shards: one process reads and writes, the others encode, and the bytes are the same for any number of them.

A journal is written after every shard, so that a run which was killed continues where the last shard ended.
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
LANGUAGE_SAMPLE_DOCUMENTS = 100  # documents, to see whether a corpus is Chinese

WordSegmenterChoice = Literal["auto", "pieces", "jieba"]


@dataclass(frozen=True)
class CorpusConfig:
    """Which text is prepared, and how: all that decides the bytes of the shards."""

    files: tuple[Path, ...]
    text_column: str = "text"
    encoding: str = "auto"
    sentences: SentenceSplitting = "split"
    language: str = "en"
    words: WordSegmenterChoice = "auto"
    dictionary: tuple[str, ...] = ()
    """Words for jieba."""
    chinese_script: ChineseScript = "keep"
    scrub: bool = False
    excluded: ExcludedNgrams | None = None
    """Lines that hold some of this are left out."""
    held_out: float = 0.01
    """Share of the documents that is kept apart."""
    part: tuple[int, int] = (1, 1)
    """This one of so many parts."""
    shard_tokens: int = SHARD_TOKENS

    def __post_init__(self) -> None:
        number, parts = self.part
        if not 1 <= number <= parts:
            raise ConfigError(f"part {number}/{parts}: must lie between 1/{parts} and {parts}/{parts}")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out={self.held_out} must be 0 or a share below 1, such as 0.01")
        if self.shard_tokens < 1:
            raise ConfigError(f"shard_tokens={self.shard_tokens} must be at least 1")
        if self.dictionary and self.words == "pieces":
            raise ConfigError("--dictionary is for jieba; leave it out, or use --words jieba")

    @property
    def own_files(self) -> tuple[Path, ...]:
        """The files of this part; all of them when there are fewer than parts, which then share the documents."""
        number, parts = self.part
        return self.files[number - 1 :: parts] if self.by_files else self.files

    @property
    def by_files(self) -> bool:
        return len(self.files) >= self.part[1]

    @cached_property
    def inputs(self) -> list[list[Any]]:
        """Name, size and time of every file, by which a change is noticed."""
        return [[str(path), *_file_state(path)] for path in self.own_files]

    @cached_property
    def _digest(self) -> str:
        """Of the names and sizes of all files; folders may differ from machine to machine."""
        names = "\n".join(f"{path.name} {path.stat().st_size}" for path in self.files)
        return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def settings(self) -> dict[str, Any]:
        """What the index keeps."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        words = "\n".join(values.pop("dictionary"))
        excluded = values.pop("excluded")
        del values["files"], values["shard_tokens"]
        return values | {
            "part": "{}/{}".format(*self.part),
            "corpus": self._digest,  # of all files, so that parts of different corpora are not merged
            "dictionary": hashlib.sha256(words.encode()).hexdigest() if words else None,
            "excluded": None if excluded is None else excluded.digest,
        }


def prepare(
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    out: Path,
    engine: Callable[[EncodingConfig], Any],
    reading: ReadOptions,
) -> ShardIndex:
    """Write the shards of a corpus to a folder, or what is missing of them."""
    reading = dataclasses.replace(reading, text_column=corpus.text_column, encoding=corpus.encoding)
    corpus = dataclasses.replace(corpus, words=_choose_word_segmenter(corpus, reading))
    recipe = EncodingConfig(
        tokenizer=tokenizer_files(tokenizer),
        sentences=corpus.sentences,
        language=corpus.language,
        words="jieba" if corpus.words == "jieba" else "pieces",
        dictionary=corpus.dictionary,
        script=corpus.chinese_script,
        scrub=corpus.scrub,
        excluded=corpus.excluded,
    )
    check_extras(recipe)
    with ShardWriter(out, tokenizer, corpus.shard_tokens, corpus.settings) as writer:
        journal = Journal(corpus, writer)
        seen = journal.resume()
        batches = _document_batches(corpus, reading, journal, seen)
        with engine(recipe) as (submit, ahead):
            for batch, encoded in _encode_in_order(batches, submit, ahead):
                journal.write(batch, encoded)
        if writer.counts.tokens == 0:
            raise no_text_error(corpus.own_files)
        journal.save_hashes()
        index = writer.finish()
    (out / JOURNAL).unlink(missing_ok=True)
    return index


def _choose_word_segmenter(corpus: CorpusConfig, reading: ReadOptions) -> WordSegmenterChoice:
    """Look at the first documents, unless the rule is given."""
    rule = corpus.words
    if rule == "auto":
        documents = read_documents(corpus.own_files, dataclasses.replace(reading, advance=None, notice=None))
        first = [document[:1000] for document, _ in zip(documents, range(LANGUAGE_SAMPLE_DOCUMENTS), strict=False)]
        rule = "jieba" if is_chinese(first) else "pieces"
        if rule == "jieba" and find_spec("rjieba") is None:
            rule = "pieces"
            if reading.notice is not None:
                reading.notice("the text is Chinese; pip install 'litebert[train]' brings rjieba, to know its words")
    return rule


@dataclass(frozen=True)
class DocumentBatch:
    """Some documents that had not come before, and what is known of them without encoding them."""

    documents: list[str]
    held_out: np.ndarray
    hashes: np.ndarray
    duplicates: int
    text_bytes: int
    position: tuple[int, int]
    """File and document in it up to which the corpus is read after this batch."""


def _document_batches(
    corpus: CorpusConfig, reading: ReadOptions, journal: Journal, seen: SeenDocuments
) -> Iterator[DocumentBatch]:
    """The corpus from where the journal stands, in batches that depend on the text alone."""
    documents: list[str] = []
    characters = 0
    position = journal.position
    for position, document in _documents_with_positions(corpus, reading, journal.position):
        if document is not None:
            documents.append(document)
            characters += len(document)
        if characters >= BATCH_CHARACTERS:
            yield _deduplicated_batch(documents, position, seen, corpus.held_out)
            documents, characters = [], 0
    if documents:
        yield _deduplicated_batch(documents, position, seen, corpus.held_out)


def _documents_with_positions(
    corpus: CorpusConfig, reading: ReadOptions, position: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], str | None]]:
    """Documents after a position, each with its own; None for those that belong to other parts."""
    first_file, documents_read = position
    number, parts = (1, 1) if corpus.by_files else corpus.part
    for file, (path, (_, *state)) in enumerate(zip(corpus.own_files, corpus.inputs, strict=True)):
        if file < first_file:
            if reading.advance is not None:
                reading.advance(state[0])
            continue
        at = 0
        for at, document in enumerate(read_file(path, reading), start=1):
            if file > first_file or at > documents_read:
                yield (file, at), document if (at + file) % parts == number % parts else None
        if _file_state(path) != state:
            raise DataError(f"{path}: changed while it was read; leave it alone and start again")


def _deduplicated_batch(
    documents: list[str], position: tuple[int, int], seen: SeenDocuments, held_out: float
) -> DocumentBatch:
    contents = [document.encode("utf-8") for document in documents]
    digests = b"".join(hashlib.blake2b(content, digest_size=16).digest() for content in contents)
    names, lots = np.frombuffer(digests, "<u8").reshape(-1, 2).T  # one half names a document, the other is its lot
    new = seen.add(names)
    kept = np.flatnonzero(new).tolist()
    return DocumentBatch(
        documents=[documents[at] for at in kept],
        held_out=lots[new] < np.uint64(held_out * 2.0**64),
        hashes=names[new],
        duplicates=len(documents) - len(kept),
        text_bytes=sum(len(contents[at]) for at in kept),
        position=position,
    )


def _encode_in_order(
    batches: Iterator[DocumentBatch], submit: Submit, ahead: int
) -> Iterator[tuple[DocumentBatch, Any]]:
    """Batches with their results, in order; at most `ahead` of them are under way, so that memory has a limit."""
    waiting: deque[tuple[DocumentBatch, PendingResult]] = deque()
    for batch in batches:
        waiting.append((batch, submit(batch.documents)))
        if len(waiting) > ahead:
            first, result = waiting.popleft()
            yield first, result()
    for first, result in waiting:
        yield first, result()


class SeenDocuments:
    """The documents so far, by hash: 8 bytes for each, and as much again while runs are merged.

    Sorted runs, each at least twice as long as the next, so that looking up and adding both stay cheap. Two documents
    out of a thousand million share a hash with a probability of one in forty; the second would be lost.
    """

    def __init__(self, hashes: np.ndarray | None = None) -> None:
        self._runs: list[np.ndarray] = [] if hashes is None or not len(hashes) else [np.sort(hashes)]

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Which of these are new, the first of equal ones; from now on all of them are known."""
        new = np.zeros(len(hashes), dtype=bool)
        new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._runs:
            new &= run[np.minimum(np.searchsorted(run, hashes), len(run) - 1)] != hashes
        if new.any():
            self._runs.append(np.sort(hashes[new]))
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]), kind="stable")]
        return new


class Journal:
    """Writes batches to shards, and remembers after every shard how far the corpus is done."""

    def __init__(self, corpus: CorpusConfig, writer: ShardWriter) -> None:
        self.corpus, self.writer = corpus, writer
        self.path = writer.folder / JOURNAL
        self.position = (0, 0)
        self._new_hashes: list[np.ndarray] = []
        self._decisive = corpus.settings | {
            "shard_tokens": corpus.shard_tokens,
            "inputs": corpus.inputs,
            "tokenizer": writer.tokenizer.fingerprint,
        }

    def resume(self) -> SeenDocuments:
        """Take over what an earlier run finished, if there was one; its documents count as seen."""
        hashes = self.writer.folder / DOCUMENT_HASHES
        if not self.path.is_file():
            hashes.unlink(missing_ok=True)
            return SeenDocuments()
        state = read_json(self.path)
        self._refuse_other(state["settings"])
        self.position = (state["file"], state["document"])
        self.writer.counts = ShardCounts(**state["counts"])
        self.writer.sha256 = state["sha256"]
        self.writer.finished_shards = state["shards"]
        missing = [name for name in self.writer.sha256 if not (self.writer.folder / name).is_file()]
        if missing:
            raise ConfigError(f"{self.path.parent}: {missing[0]} is gone; delete the folder and start again")
        size = 8 * state["hashes"]
        if not hashes.is_file() or hashes.stat().st_size < size:
            raise ConfigError(f"{hashes}: shorter than the journal says; delete the folder and start again")
        os.truncate(hashes, size)
        return SeenDocuments(np.fromfile(hashes, "<u8"))

    def _refuse_other(self, settings: dict[str, Any]) -> None:
        for name, value in self._decisive.items():
            if settings.get(name) != value:
                was, now = settings.get(name), value
                files = name in ("inputs", "corpus")
                change = "inputs" if files else f"{name} (was {was}, now {now})"
                raise ConfigError(
                    f"{self.path.parent} holds an unfinished run with other {change}; "
                    "repeat the earlier command to continue it, choose another --out, or delete the folder"
                )

    def write(self, batch: DocumentBatch, encoded: Any) -> None:
        """Documents to their files; runs of neighbours that go to the same one are written at once."""
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
                "settings": self._decisive,
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
