"""Text that must not be learned from, such as that of test sets, found again in a corpus word for word.

Only letters and digits count, in lower case and Unicode's compatible form, so spacing and punctuation may differ. A
word is a run of them, or one Chinese character; "don't" are two words, as "do n't" is in tokenised sets. What is looked
for are all runs of 13 words, and of shorter texts the whole, from 8 words on: less than that, people say by chance.
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
_PREFIX_BITS = 26  # first bits of a hash: 8 MB of marks
_HASH_BASE = 0xD1342543DE82EF95  # odd, so that one can divide by it


@dataclass(frozen=True)
class ExcludedNgrams:
    """Runs of words, by their number of words and a hash of 64 bits."""

    runs: dict[int, np.ndarray]
    """Sorted."""
    too_short: int = 0
    """Lines of fewer words than are looked for."""

    @staticmethod
    def of(documents: Iterable[str]) -> ExcludedNgrams:
        """Each line is a text."""
        found: dict[int, list[np.ndarray]] = {}
        too_short = 0
        for document in documents:
            words, lines = _word_hashes(document)
            counts = np.bincount(lines)
            too_short += int(((counts > 0) & (counts < MIN_WORDS)).sum())
            firsts = np.cumsum(counts) - counts
            for size in range(MIN_WORDS, min(NGRAM_WORDS, len(words)) + 1):
                runs = _ngram_hashes(words, size)
                within = lines[: len(runs)] == lines[size - 1 :]
                found.setdefault(size, []).append(runs[within if size == NGRAM_WORDS else firsts[counts == size]])
        united = {size: np.unique(np.concatenate(parts)) for size, parts in found.items()}
        return ExcludedNgrams({size: runs for size, runs in united.items() if len(runs)}, too_short)

    @cached_property
    def _marks(self) -> np.ndarray:
        """A bit for every way in which a hash can begin: is there one that does? Most questions end here."""
        marks = np.zeros(1 << _PREFIX_BITS, dtype=bool)
        for known in self.runs.values():
            marks[known >> U64(64 - _PREFIX_BITS)] = True
        return np.packbits(marks, bitorder="little")

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"".join(self.runs[size].tobytes() for size in sorted(self.runs))).hexdigest()[:16]

    def without(self, document: str) -> tuple[str, int]:
        """The lines of a document that hold none of the runs, and how many do."""
        words, lines = _word_hashes(document)
        bad = np.zeros(document.count("\n") + 1, dtype=bool)
        for size, known in self.runs.items():
            if len(words) < size:
                continue
            runs = _ngram_hashes(words, size)
            begins = runs >> U64(64 - _PREFIX_BITS)
            maybe = np.flatnonzero(self._marks[begins >> U64(3)] >> (begins & U64(7)).astype(np.uint8) & 1)
            hit = maybe[known[np.minimum(np.searchsorted(known, runs[maybe]), len(known) - 1)] == runs[maybe]]
            bad[lines[hit[lines[hit] == lines[hit + size - 1]]]] = True
        if not bad.any():
            return document, 0
        kept = [line for line, out in zip(document.split("\n"), bad.tolist(), strict=True) if not out]
        return "\n".join(kept), int(bad.sum())


def _word_hashes(text: str) -> tuple[np.ndarray, np.ndarray]:
    """A hash of each word, and the line in which it stands."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'").replace("\xad", "").replace("n't", " n't")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _character_classes()[np.minimum(points, 0xFFFF)]
    inside = kinds > 0
    before = np.concatenate([[False], inside[:-1]])
    starts = np.flatnonzero(inside & (~before | (kinds == 2) | (np.concatenate([[0], kinds[:-1]]) == 2)))
    if not len(starts):
        return np.zeros(0, U64), np.zeros(0, np.int64)
    lengths = np.diff(starts, append=len(points))
    places = np.arange(starts[0], len(points)) - np.repeat(starts, lengths)  # in the word
    values = splitmix64(U64(0), points[starts[0] :] + (places << 32))
    values[~inside[starts[0] :]] = 0
    return np.add.reduceat(values, starts - starts[0]), np.cumsum(points == ord("\n"))[starts]


def _ngram_hashes(words: np.ndarray, size: int) -> np.ndarray:
    """A hash of every run of so many words: a number in base `_HASH_BASE`, modulo 2^64, wherever it stands."""
    with np.errstate(over="ignore"):
        sums = np.concatenate([np.zeros(1, U64), np.cumsum(words * _powers(_HASH_BASE, len(words)))])
        runs = sums[size:] - sums[:-size]
        return runs * _powers(pow(_HASH_BASE, -1, 1 << 64), len(runs))


def _powers(base: int, count: int) -> np.ndarray:
    return np.concatenate([np.ones(1, U64), np.cumprod(np.full(count - 1, base, U64))])


@cache
def _character_classes() -> np.ndarray:
    """Of each character: 0 between words, 1 in them, 2 a word by itself."""
    kinds = np.array([chr(point).isalnum() for point in range(1 << 16)], dtype=np.uint8)
    for first, last in HAN_RANGES[:-1]:
        kinds[first : last + 1] = 2
    return kinds
