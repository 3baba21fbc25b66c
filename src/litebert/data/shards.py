"""A tokenized corpus on disk: flat arrays of ids, memory-mapped, with one byte of bits per token.

    index.json          counts, dtype, the tokenizer's fingerprint, a SHA-256 per file
    shard-00000.ids     uint16 or uint32, one per token
    shard-00000.bits    uint8, one per token: what starts at it

The index is written last: a folder without it is unfinished.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from litebert.errors import DataError
from litebert.files import read_json, replacing, sha256_of, write_json
from litebert.tokenizer import Tokenizer

DOCUMENT_START, SENTENCE_START, WORD_START = 1, 2, 4
FORMAT = 1


@dataclass(frozen=True)
class ShardIndex:
    """What a folder of shards holds."""

    format: int
    dtype: str
    vocab_size: int
    fingerprint: str
    tokens: int
    documents: int
    sha256: dict[str, str]

    @property
    def digest(self) -> str:
        """One hash that names the content of all shards."""
        return hashlib.sha256(
            "".join(f"{name}{self.sha256[name]}" for name in sorted(self.sha256)).encode()
        ).hexdigest()


class ShardWriter:
    """Collects token ids and writes shards; `finish` makes the folder valid, an error in its block empties it."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, shard_tokens: int = 1 << 26) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.shard_tokens = shard_tokens
        self.dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
        self.tokens = self.documents = 0
        self._ids: list[np.ndarray] = []
        self._bits: list[np.ndarray] = []
        self._pending = 0
        self._sha256: dict[str, str] = {}
        self._starts_word = starts_word(tokenizer)
        (folder / "index.json").unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            for name in self._sha256:
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else's files are there, or nothing is
                self.folder.rmdir()

    def add(self, documents: Iterable[list[list[int]]]) -> None:
        """Add documents, each a list of sentences, each a list of ids."""
        for sentences in documents:
            sentences = [sentence for sentence in sentences if sentence]
            if not sentences:
                continue
            ids = np.concatenate([np.asarray(sentence, dtype=self.dtype) for sentence in sentences])
            bits = np.where(self._starts_word[ids], WORD_START, 0).astype(np.uint8)
            starts = np.cumsum([0, *map(len, sentences[:-1])])
            bits[starts] |= SENTENCE_START | WORD_START
            bits[0] |= DOCUMENT_START
            self._ids.append(ids)
            self._bits.append(bits)
            self._pending += len(ids)
            self.tokens += len(ids)
            self.documents += 1
            if self._pending >= self.shard_tokens:
                self._flush()

    def finish(self) -> ShardIndex:
        if self.tokens == 0:
            raise DataError("the input files hold no text; give plain text with a blank line between documents")
        self._flush()
        index = ShardIndex(
            FORMAT,
            self.dtype.name,
            self.tokenizer.vocab_size,
            self.tokenizer.fingerprint,
            self.tokens,
            self.documents,
            self._sha256,
        )
        self.tokenizer.save(self.folder)
        write_json(self.folder / "index.json", asdict(index))
        return index

    def _flush(self) -> None:
        if not self._pending:
            return
        name = f"shard-{len(self._sha256) // 2:05d}"
        for suffix, arrays in (("ids", self._ids), ("bits", self._bits)):
            content = np.concatenate(arrays)
            with replacing(self.folder / f"{name}.{suffix}") as temporary:
                content.tofile(temporary)
            self._sha256[f"{name}.{suffix}"] = hashlib.sha256(content.tobytes()).hexdigest()
        self._ids, self._bits, self._pending = [], [], 0


class Shards:
    """A prepared corpus, read without loading it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "index.json").is_file():
            raise DataError(
                f"{folder}: has no index.json, so it is not a finished folder of shards; "
                "make one with: litebert prepare --input FILES --tokenizer tok --out shards"
            )
        try:
            self.index = ShardIndex(**read_json(folder / "index.json"))
            if self.index.format != FORMAT:
                raise TypeError(f"format {self.index.format}, this version reads {FORMAT}")
            dtype, names = np.dtype(self.index.dtype), sorted(self.index.sha256)
        except TypeError as error:
            raise DataError(
                f"{folder / 'index.json'}: not an index of shards ({error}); run litebert prepare again"
            ) from error
        self.ids = [self._map(name, dtype) for name in names if name.endswith(".ids")]
        self.bits = [self._map(name, np.dtype(np.uint8)) for name in names if name.endswith(".bits")]
        lengths = [len(ids) for ids in self.ids]
        if sum(lengths) != self.index.tokens or lengths != [len(bits) for bits in self.bits]:
            raise DataError(
                f"{folder}: holds {sum(lengths):,} tokens where index.json says {self.index.tokens:,}; "
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
        """Compare every file with its SHA-256: a flipped bit would train on garbage in silence."""
        for name, expected in self.index.sha256.items():
            if sha256_of(self.folder / name) != expected:
                raise DataError(f"{self.folder / name}: damaged (its SHA-256 differs); run litebert prepare again")

    def _map(self, name: str, dtype: np.dtype) -> np.ndarray:
        path = self.folder / name
        if Path(name).name != name or not path.is_file():
            raise DataError(f"{path}: named in index.json but not there; run litebert prepare again")
        try:
            return np.memmap(path, dtype=dtype, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); run litebert prepare again") from error


# Scripts written without spaces between words: Thai to Tibetan, Burmese, Khmer, kana, Chinese characters.
_NO_SPACES = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def starts_word(tokenizer: Tokenizer) -> np.ndarray:
    """For each id: does a new word begin with it? `▁` opens a word; `##`, or letters without `▁`, continue one."""
    tokens = [tokenizer.token(number) for number in range(tokenizer.vocab_size)]
    marks_starts = any(token.startswith("▁") for token in tokens)
    continues = [
        token.startswith("##")
        or (marks_starts and _has_letters(token) and "▁" not in token and not _NO_SPACES.search(token))
        for token in tokens
    ]
    return ~np.array(continues)


def _has_letters(token: str) -> bool:
    """Letters, digits, or the marks that stand on letters: in many scripts a vowel is one."""
    return any(unicodedata.category(character)[0] in "LNM" for character in token)
