"""Decontamination: remove the lines of a corpus that overlap with texts such as test sets.

Two texts overlap if they share an n-gram of 13 words; a shorter text, of at least 8 words, must occur as a whole. Only
letters and digits count, lower-cased and NFKC-normalised, so spacing and punctuation may differ. A word is a run of
them, or one Chinese character; "don't" is two words, like "do n't" in tokenised sets.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from litebert.data.hashing import U64, splitmix64
from litebert.data.word_cache import HAN_RANGES

NGRAM_WORDS = 13
MIN_WORDS = 8
_PREFIX_BITS = 26  # leading bits of a hash: a bitmap of 8 MB
_HASH_BASE = 0xD1342543DE82EF95  # odd, so it has an inverse modulo 2^64


@dataclass(frozen=True)
class ExcludedNgrams:
    """N-grams to exclude, as 64-bit hashes."""

    hashes: dict[int, np.ndarray]
    """Sorted hashes by n."""
    too_short: int = 0
    """Lines with fewer than `MIN_WORDS` words, which are ignored."""

    @staticmethod
    def from_documents(documents: Iterable[str]) -> ExcludedNgrams:
        """Take every line as a text."""
        collected: dict[int, list[np.ndarray]] = {}
        too_short = 0
        for document in documents:
            words, lines = _word_hashes(document)
            counts = np.bincount(lines)
            too_short += int(((counts > 0) & (counts < MIN_WORDS)).sum())
            firsts = np.cumsum(counts) - counts
            for size in range(MIN_WORDS, min(NGRAM_WORDS, len(words)) + 1):
                hashes = _ngram_hashes(words, size)
                in_one_line = lines[: len(hashes)] == lines[size - 1 :]
                selected = in_one_line if size == NGRAM_WORDS else firsts[counts == size]
                collected.setdefault(size, []).append(hashes[selected])
        merged = {size: np.unique(np.concatenate(parts)) for size, parts in collected.items()}
        return ExcludedNgrams({size: hashes for size, hashes in merged.items() if len(hashes)}, too_short)

    @cached_property
    def _prefix_bitmap(self) -> np.ndarray:
        """One bit per hash prefix: does any hash have it? Most lookups end here."""
        bitmap = np.zeros(1 << _PREFIX_BITS, dtype=bool)
        for known in self.hashes.values():
            bitmap[known >> U64(64 - _PREFIX_BITS)] = True
        return np.packbits(bitmap, bitorder="little")

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"".join(self.hashes[size].tobytes() for size in sorted(self.hashes))).hexdigest()[:16]

    def remove_from(self, document: str) -> tuple[str, int]:
        """A document without the lines that hold an excluded n-gram, and the number of those."""
        words, lines = _word_hashes(document)
        excluded = np.zeros(document.count("\n") + 1, dtype=bool)
        for size, known in self.hashes.items():
            if len(words) < size:
                continue
            hashes = _ngram_hashes(words, size)
            prefixes = hashes >> U64(64 - _PREFIX_BITS)
            candidates = np.flatnonzero(
                self._prefix_bitmap[prefixes >> U64(3)] >> (prefixes & U64(7)).astype(np.uint8) & 1
            )
            nearest = np.minimum(np.searchsorted(known, hashes[candidates]), len(known) - 1)
            hit = candidates[known[nearest] == hashes[candidates]]
            excluded[lines[hit[lines[hit] == lines[hit + size - 1]]]] = True
        if not excluded.any():
            return document, 0
        kept = [
            line for line, is_excluded in zip(document.split("\n"), excluded.tolist(), strict=True) if not is_excluded
        ]
        return "\n".join(kept), int(excluded.sum())


def _word_hashes(text: str) -> tuple[np.ndarray, np.ndarray]:
    """A hash of each word, and the number of its line."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'").replace("\xad", "").replace("n't", " n't")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    classes = _character_classes()[np.minimum(points, 0xFFFF)]
    inside = classes > 0
    before = np.concatenate([[False], inside[:-1]])
    starts = np.flatnonzero(inside & (~before | (classes == 2) | (np.concatenate([[0], classes[:-1]]) == 2)))
    if not len(starts):
        return np.zeros(0, U64), np.zeros(0, np.int64)
    lengths = np.diff(starts, append=len(points))
    positions = np.arange(starts[0], len(points)) - np.repeat(starts, lengths)  # within the word
    values = splitmix64(U64(0), points[starts[0] :] + (positions << 32))
    values[~inside[starts[0] :]] = 0
    return np.add.reduceat(values, starts - starts[0]), np.cumsum(points == ord("\n"))[starts]


def _ngram_hashes(words: np.ndarray, size: int) -> np.ndarray:
    """Rolling hash of every n-gram: its words as digits in base `_HASH_BASE`, modulo 2^64."""
    with np.errstate(over="ignore"):
        sums = np.concatenate([np.zeros(1, U64), np.cumsum(words * _powers(_HASH_BASE, len(words)))])
        hashes = sums[size:] - sums[:-size]
        return hashes * _powers(pow(_HASH_BASE, -1, 1 << 64), len(hashes))


def _powers(base: int, count: int) -> np.ndarray:
    return np.concatenate([np.ones(1, U64), np.cumprod(np.full(count - 1, base, U64))])


@cache
def _character_classes() -> np.ndarray:
    """Class of each character: 0 between words, 1 within words, 2 a word by itself."""
    classes = np.array([chr(point).isalnum() for point in range(1 << 16)], dtype=np.uint8)
    for first, last in HAN_RANGES[:-1]:
        classes[first : last + 1] = 2
    return classes
