"""Cutting rows of running text into sequences of one or two segments, with labels for sentence order or next sentence.

Shapes: B rows of L columns, P sequences. A sequence is [CLS] first [SEP], or [CLS] first [SEP] second [SEP].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from litebert.data.hashing import derive_key, random_below, uniform
from litebert.data.shards import DOCUMENT_START, SENTENCE_START

IGNORE_INDEX = -100  # torch's mark for "no label here"
MIN_SEQUENCE_COLUMNS = 8  # a smaller remainder of a row stays empty
CLS, SEP, PAD = 0, 1, 2
SentenceObjective = Literal["order", "next", "none"]
"""Sentence order prediction, next sentence prediction, or neither."""


@dataclass(frozen=True)
class Sequences:
    """Sequences as arrays (P,): their place in the rows, and the tokens of the row's text that they hold."""

    row: np.ndarray
    column: np.ndarray
    first: np.ndarray
    first_length: np.ndarray
    second: np.ndarray
    second_length: np.ndarray
    """0 for sequences of one segment."""
    second_capacity: np.ndarray
    """Largest possible length of the second segment: larger than its length where the end of the row cut it short."""
    label: np.ndarray
    """1 where segments are swapped or the second is random, else 0; IGNORE_INDEX where there is no label."""

    @property
    def size(self) -> np.ndarray:
        return self.first_length + 2 + np.where(self.second_length, self.second_length + 1, 0)

    def columns(self, batch: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, L) each: index of the token in its row's text (-1 for none), the special token instead, the segment."""
        source = np.full(batch * length, -1)
        frame = np.full(batch * length, PAD)
        types = np.zeros(batch * length, dtype=np.int64)
        size = self.size
        piece = np.repeat(np.arange(len(size)), size)
        within = np.arange(len(piece)) - np.repeat(np.cumsum(size) - size, size)
        at = (self.row * length + self.column)[piece] + within
        first_length = self.first_length[piece]
        in_second = within > first_length + 1
        token = np.where(
            in_second, self.second[piece] + within - first_length - 2, self.first[piece] + within - 1
        )  # fmt: skip
        is_sep = (within == first_length + 1) | (within == size[piece] - 1)
        source[at] = np.where(is_sep | (within == 0), -1, token)
        frame[at] = np.where(within == 0, CLS, SEP)
        types[at] = in_second
        shape = (batch, length)
        return source.reshape(shape), frame.reshape(shape), types.reshape(shape)


@dataclass(frozen=True)
class RandomSegments:
    """For each row a random piece of text from elsewhere, appended to the row's own L tokens."""

    bits: np.ndarray
    """(B, L)"""
    available: np.ndarray
    """(B,) its tokens up to the end of the document; 0 where it does not start with a sentence."""
    document_distance: np.ndarray
    """(B,) number of documents from the row's first document to its own; negative if it comes before."""


def cut_rows(
    bits: np.ndarray, available: np.ndarray, rows: np.ndarray, key: Any, two_segments: bool, short_share: float
) -> Sequences:
    """Fill each row with sequences of whole sentences. A sequence ends with its document, where the row is full, or,
    for a fraction `short_share`, earlier.

    A sequence cut within a sentence would reveal the order: a cut-off end before the first [SEP] occurs only when the
    segments are swapped. So only a sentence longer than the row is cut, and it has no second segment. `bits` (B, L)
    mark the starts of documents, sentences and words in each row's text, of which `available` (B,) tokens exist.
    """
    batch, length = bits.shape
    columns = np.arange(length)
    # the end of the text counts as the end of a document
    bits = np.where(columns < available[:, None], bits, DOCUMENT_START | SENTENCE_START)
    sentence = bits & SENTENCE_START != 0
    boundaries = np.cumsum(sentence, axis=1)
    last_sentence = np.maximum.accumulate(np.where(sentence, columns, 0), axis=1)
    next_document = np.where(bits & DOCUMENT_START != 0, columns, length + 1)
    next_document = np.minimum.accumulate(next_document[:, ::-1], axis=1)[:, ::-1]
    next_document = np.concatenate([next_document, np.full((batch, 1), length + 1)], axis=1)
    num_special = 3 if two_segments else 2
    row, column, begin = np.arange(batch), np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    parts = [Sequences(*[np.zeros(0, np.int64)] * len(Sequences.__dataclass_fields__))]  # for an empty batch
    while len(row):
        counter = rows[row] * length + column
        limit = np.minimum(begin + length - column - num_special, available[row])
        document = next_document[row, begin + 1]
        sentence_end = last_sentence[row, np.minimum(limit, length - 1)]
        end = np.where(document <= limit, document, np.where(sentence_end > begin, sentence_end, limit))
        fits = (column == 0) | (document <= limit) | (sentence_end > begin)
        row, column, begin, end, counter = (x[fits] for x in (row, column, begin, end, counter))
        target = begin + 1 + random_below(key ^ derive_key(0, "short length"), counter, end - begin)
        early = last_sentence[row, np.minimum(target, length - 1)]
        short = (uniform(key ^ derive_key(0, "short"), counter) < short_share) & (early > begin) & (early < end)
        end = np.where(short, early, end)
        capacity_end = np.where(short | (document[fits] <= limit[fits]), end, limit[fits])
        cut = _segment_boundary(boundaries[row], begin, end, key, counter) if two_segments else end
        parts.append(
            Sequences(
                row, column, begin, cut - begin, cut, end - cut, capacity_end - cut, np.full(len(row), IGNORE_INDEX)
            )
        )
        column, begin = column + parts[-1].size, end
        unfinished = (length - column >= MIN_SEQUENCE_COLUMNS) & (begin < available[row])
        row, column, begin = row[unfinished], column[unfinished], begin[unfinished]
    return Sequences(*(np.concatenate([getattr(p, name) for p in parts]) for name in Sequences.__dataclass_fields__))


def swap_segments(sequences: Sequences, rows: np.ndarray, key: Any) -> Sequences:
    """Sentence order prediction: swap half of the pairs. Both segments are of one document, so topic gives no clue."""
    two = sequences.second_length > 0
    swap = two & (uniform(key ^ derive_key(0, "swap"), _sequence_counters(sequences, rows)) < 0.5)
    return replace(
        sequences,
        first=np.where(swap, sequences.second, sequences.first),
        first_length=np.where(swap, sequences.second_length, sequences.first_length),
        second=np.where(swap, sequences.first, sequences.second),
        second_length=np.where(swap, sequences.first_length, sequences.second_length),
        label=np.where(two, swap.astype(np.int64), IGNORE_INDEX),
    )


def replace_second(
    sequences: Sequences, bits: np.ndarray, random_segments: RandomSegments, rows: np.ndarray, key: Any
) -> Sequences:
    """Next sentence prediction: replace half of the second segments by whole sentences of another document.

    As many sentences are taken as fit: a cut-off sentence or a row filled less well would reveal the replacement. Where
    none fits, or the text is of the same document, the pair has no label, whether or not it would have been replaced.
    """
    length = bits.shape[1]
    columns, available = np.arange(length), random_segments.available[:, None]
    ends = ((random_segments.bits & SENTENCE_START != 0) & (columns < available)) | (columns == available)
    fitting = np.maximum.accumulate(np.where(ends, columns, 0), axis=1)[sequences.row, sequences.second_capacity]
    documents = np.cumsum(bits & DOCUMENT_START, axis=1, dtype=np.int64) - (bits[:, :1] & DOCUMENT_START)
    same = documents[sequences.row, sequences.first] == random_segments.document_distance[sequences.row]
    eligible = (sequences.second_length > 0) & (fitting > 0) & ~same
    replaced = eligible & (uniform(key ^ derive_key(0, "next"), _sequence_counters(sequences, rows)) < 0.5)
    return replace(
        sequences,
        second=np.where(replaced, length, sequences.second),
        second_length=np.where(replaced, fitting, sequences.second_length),
        label=np.where(eligible, replaced.astype(np.int64), IGNORE_INDEX),
    )


def _segment_boundary(
    boundaries: np.ndarray, begin: np.ndarray, end: np.ndarray, key: Any, counter: np.ndarray
) -> np.ndarray:
    """A random sentence start strictly between begin and end; `end` where there is none."""
    row = np.arange(len(begin))
    before = boundaries[row, begin]
    inside = boundaries[row, end - 1] - before
    pick = before + 1 + random_below(key ^ derive_key(0, "cut"), counter, np.maximum(1, inside))
    return np.where(inside > 0, (boundaries >= pick[:, None]).argmax(axis=1), end)


def _sequence_counters(sequences: Sequences, rows: np.ndarray) -> np.ndarray:
    """A unique number per sequence."""
    return rows[sequences.row] * (1 << 16) + sequences.column
