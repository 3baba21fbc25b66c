"""A tokenized corpus on disk: memory-mapped flat arrays of ids, and one byte of boundary bits per token.

    index.json          counts, settings, dtype, tokenizer fingerprint, SHA-256 of each file
    shard-00000.ids     uint16 or uint32, one per token
    shard-00000.bits    uint8, one per token: whether a document, sentence or word starts at it
    held-out-00000.*    the same for the documents held out for validation
    documents.hashes    8 bytes per document, to find duplicates

The index is written last: a folder without it is unfinished.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from litebert.errors import DataError, LitebertError
from litebert.files import file_sha256, read_json, write_json
from litebert.tokenizer import Tokenizer
from litebert.tokenizer.scripts import UNSPACED_CHARACTER

DOCUMENT_START, SENTENCE_START, WORD_START = 1, 2, 4
FORMAT = 2
SHARD_TOKENS = 1 << 24  # 32 MB of ids and 16 MB of bits; an interrupted run loses at most one shard
DOCUMENT_HASHES = "documents.hashes"
JOURNAL = "journal.json"


@dataclass
class ShardCounts:
    """Counts over training and held-out documents."""

    tokens: int = 0
    documents: int = 0
    sentences: int = 0
    words: int = 0
    unknown: int = 0
    """Number of unknown tokens."""
    held_out_documents: int = 0
    held_out_tokens: int = 0
    duplicates: int = 0
    """Duplicate documents, which were dropped."""
    text_bytes: int = 0
    """UTF-8 size of the documents kept."""
    excluded: int = 0
    """Lines removed by decontamination."""


@dataclass(frozen=True)
class ShardIndex:
    """Content of `index.json`."""

    format: int
    dtype: str
    vocab_size: int
    fingerprint: str
    tokens: int
    documents: int
    sentences: int
    words: int
    unknown: int
    held_out_documents: int
    held_out_tokens: int
    duplicates: int
    text_bytes: int
    settings: dict[str, Any]
    """How the text was read and encoded."""
    sha256: dict[str, str]
    excluded: int = 0

    @property
    def digest(self) -> str:
        """One hash over the content of all shards."""
        return hashlib.sha256(
            "".join(f"{name}{self.sha256[name]}" for name in sorted(self.sha256)).encode()
        ).hexdigest()


@dataclass(frozen=True)
class TokenStream:
    """Concatenated documents; none continues in the next array."""

    ids: list[np.ndarray]
    bits: list[np.ndarray]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))


def id_dtype(tokenizer: Tokenizer) -> np.dtype:
    """The smallest integer type that holds every id, little-endian on every machine."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


class PartialFile:
    """A file written in several steps under a temporary name, and renamed when it is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.partial")
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None

    def write(self, content: bytes) -> None:
        try:
            if self._file is None:
                self._file = self._temporary.open("wb")
            self._file.write(content)
        except OSError as error:
            raise self._write_error(error) from error
        self._digest.update(content)

    def finish(self) -> str:
        """Rename the file; returns its SHA-256."""
        assert self._file is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._write_error(error) from error
        return self._digest.hexdigest()

    def discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk: the buffered rest is not needed
                self._file.close()
            self._temporary.unlink(missing_ok=True)

    def _write_error(self, error: OSError) -> LitebertError:
        return LitebertError(
            f"{self.path}: cannot be written ({error.strerror}); check free space and permissions, "
            "then give the same command again"
        )


class ShardWriter:
    """Writes shards incrementally. `finish` writes the index; a `DataError` within the context deletes the files."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        shard_tokens: int = SHARD_TOKENS,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.tokenizer, self.shard_tokens = folder, tokenizer, shard_tokens
        self.settings = settings or {}
        self.dtype = id_dtype(tokenizer)
        self.counts = ShardCounts()
        self.sha256: dict[str, str] = {}
        self.finished_shards = 0
        self._word_bits = np.where(starts_word(tokenizer), WORD_START, 0).astype(np.uint8)
        self._pending = 0
        self._open: dict[str, PartialFile] = {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.json").unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for file in self._open.values():
            file.discard()
        if isinstance(error, DataError):  # invalid input: the shards are useless
            self.remove()

    def remove(self) -> None:
        """Delete the files that this writer wrote."""
        for name in (*self.sha256, DOCUMENT_HASHES, JOURNAL):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # other files are there, or the folder is gone
            self.folder.rmdir()

    @property
    def full(self) -> bool:
        return self._pending >= self.shard_tokens

    def add(self, documents: Iterable[list[list[int]]]) -> None:
        """Add training documents, each a list of sentences, each a list of ids."""
        for sentences in documents:
            sentences = [sentence for sentence in sentences if sentence]
            if not sentences:
                continue
            ids = np.concatenate([np.asarray(sentence, dtype=self.dtype) for sentence in sentences])
            bits = self._word_bits[ids]
            bits[np.cumsum([0, *map(len, sentences[:-1])])] |= SENTENCE_START | WORD_START
            bits[0] |= DOCUMENT_START
            self.append(ids.tobytes(), bits)
            if self.full:
                self.flush()

    def append(self, ids: bytes, bits: np.ndarray, *, held_out: bool = False) -> None:
        """Append concatenated whole documents."""
        name = "held-out" if held_out else "shard"
        for suffix, content in (("ids", ids), ("bits", bits.tobytes())):
            path = self.folder / f"{name}-{self.finished_shards:05d}.{suffix}"
            self._open.setdefault(path.name, PartialFile(path)).write(content)
        documents = int(np.count_nonzero(bits & DOCUMENT_START))
        self.counts.tokens += len(bits)
        self.counts.documents += documents
        self.counts.sentences += int(np.count_nonzero(bits & SENTENCE_START))
        self.counts.words += int(np.count_nonzero(bits & WORD_START))
        self.counts.unknown += int(np.count_nonzero(np.frombuffer(ids, self.dtype) == self.tokenizer.unk_id))
        if held_out:
            self.counts.held_out_documents += documents
            self.counts.held_out_tokens += len(bits)
        self._pending += len(bits)

    def flush(self) -> None:
        """Finish the current shard; the next documents start another."""
        for name, file in self._open.items():
            self.sha256[name] = file.finish()
        self.finished_shards += bool(self._open)
        self._open, self._pending = {}, 0

    def finish(self) -> ShardIndex:
        if self.counts.tokens == 0:
            raise DataError("the input files hold no text; give plain text with a blank line between documents")
        self.flush()
        if self.counts.held_out_tokens == self.counts.tokens:
            self._train_on_held_out()
        if (self.folder / DOCUMENT_HASHES).is_file():
            self.sha256[DOCUMENT_HASHES] = file_sha256(self.folder / DOCUMENT_HASHES)
        index = ShardIndex(
            format=FORMAT,
            dtype=self.dtype.name,
            vocab_size=self.tokenizer.vocab_size,
            fingerprint=self.tokenizer.fingerprint,
            settings=self.settings,
            sha256=dict(sorted(self.sha256.items())),
            **asdict(self.counts),
        )
        self.tokenizer.save(self.folder)
        write_json(self.folder / "index.json", asdict(index))
        return index

    def _train_on_held_out(self) -> None:
        """Use a corpus for training if it is so small that all of it was held out."""
        for name in list(self.sha256):
            training_name = name.replace("held-out-", "shard-")
            (self.folder / name).replace(self.folder / training_name)
            self.sha256[training_name] = self.sha256.pop(name)
        self.counts.held_out_documents = self.counts.held_out_tokens = 0


class Shards:
    """A prepared corpus, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "index.json").is_file():
            raise DataError(
                f"{folder}: has no index.json, so it is not a complete folder of shards; "
                "make one with: litebert prepare --input FILES --tokenizer tok --out shards"
            )
        try:
            content = read_json(folder / "index.json")
            if content.get("format") != FORMAT:
                raise TypeError(f"format {content.get('format')}, this version reads {FORMAT}")
            self.index = ShardIndex(**content)
            dtype, names = np.dtype(self.index.dtype), sorted(self.index.sha256)
        except TypeError as error:
            raise DataError(
                f"{folder / 'index.json'}: not an index of shards ({error}); run litebert prepare again"
            ) from error
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise DataError(f"{folder / outside[0]}: named in index.json but not there; run litebert prepare again")
        self.training = self._stream([name for name in names if name.startswith("shard-")], dtype)
        self.held_out = self._stream([name for name in names if name.startswith("held-out-")], dtype)
        tokens = self.training.tokens + self.held_out.tokens
        if tokens != self.index.tokens:
            raise DataError(
                f"{folder}: holds {tokens:,} tokens where index.json says {self.index.tokens:,}; "
                "run litebert prepare again"
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.load(self.folder)
        if tokenizer.fingerprint != self.index.fingerprint:
            raise DataError(
                f"{self.folder}: tokenizer.json is not the one the shards were made with; run litebert prepare again"
            )
        return tokenizer

    def verify(self) -> None:
        """Compare every file with its SHA-256; a flipped bit would go unnoticed in training."""
        for name, expected in self.index.sha256.items():
            if file_sha256(self.folder / name) != expected:
                raise DataError(f"{self.folder / name}: damaged (its SHA-256 differs); run litebert prepare again")

    def _stream(self, names: list[str], dtype: np.dtype) -> TokenStream:
        stream = TokenStream(
            [self._map(name, dtype) for name in names if name.endswith(".ids")],
            [self._map(name, np.dtype(np.uint8)) for name in names if name.endswith(".bits")],
        )
        if list(map(len, stream.ids)) != list(map(len, stream.bits)):
            raise DataError(f"{self.folder}: a shard has more ids than bits or fewer; run litebert prepare again")
        return stream

    def _map(self, name: str, dtype: np.dtype) -> np.ndarray:
        path = self.folder / name
        if not path.is_file():
            raise DataError(f"{path}: named in index.json but not there; run litebert prepare again")
        try:
            return np.memmap(path, dtype=dtype, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); run litebert prepare again") from error


def starts_word(tokenizer: Tokenizer) -> np.ndarray:
    """For each id: does a word start with it? `▁` starts a word; `##`, or letters without `▁`, continue one.

    Words added to the vocabulary always start one.
    """
    tokens = tokenizer.vocabulary()
    marks_starts = any(token.startswith("▁") for token in tokens)
    added = tokenizer.added
    continues = [
        number not in added
        and (
            token.startswith("##")
            or (marks_starts and _has_letters(token) and "▁" not in token and not UNSPACED_CHARACTER.search(token))
        )
        for number, token in enumerate(tokens)
    ]
    return ~np.array(continues)


def _has_letters(token: str) -> bool:
    """Does it hold letters, digits or combining marks, which in many scripts are vowels?"""
    return any(unicodedata.category(character)[0] in "LNM" for character in token)
