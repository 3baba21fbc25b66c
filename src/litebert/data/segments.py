"""Rows of running text cut into sequences, sequences into two segments, and the question asked about their order.

Shapes: B rows of L columns, P pieces. A piece is one sequence: [CLS] first [SEP], or [CLS] first [SEP] second [SEP].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from litebert.data.hashing import derive_key, random_below, uniform
from litebert.data.shards import DOCUMENT_START, SENTENCE_START

IGNORE_INDEX = -100  # torch's mark for "no label here"
MIN_SEQUENCE_COLUMNS = 8  # columns; a smaller rest of a row stays empty
CLS, SEP, PAD = 0, 1, 2
SentenceObjective = Literal["order", "next", "none"]
"""Were the two segments swapped? Does the second follow the first, or come from another document? No question."""


@dataclass(frozen=True)
class Sequences:
    """Sequences, (P,) each: where they stand, and which tokens of their row's text they hold."""

    row: np.ndarray
    column: np.ndarray
    first: np.ndarray
    first_length: np.ndarray
    second: np.ndarray
    second_length: np.ndarray
    """0 where there is one segment only."""
    room: np.ndarray
    """How long the second segment could be: more than it is where only the row's end made it stop."""
    label: np.ndarray
    """1 where the order is wrong, or the second segment a stranger; IGNORED where there is nothing to ask."""

    @property
    def size(self) -> np.ndarray:
        return self.first_length + 2 + np.where(self.second_length, self.second_length + 1, 0)

    def columns(self, batch: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, L) each: the token's place in its row's text (-1 for none), what stands there instead, its segment."""
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
    """For each row a stretch of text from elsewhere, which follows the row's own L tokens."""

    bits: np.ndarray
    """(B, L)"""
    available: np.ndarray
    """(B,) how many tokens of it are one document's, from the start of a sentence on; 0 where it opens within one."""
    documents_on: np.ndarray
    """(B,) how many documents after the one the row opens in; negative before it."""


def cut_rows(
    bits: np.ndarray, available: np.ndarray, rows: np.ndarray, key: Any, in_two: bool, short_share: float
) -> Sequences:
    """Fill each row with sequences of whole sentences that end with their document, where the row is full or, for
    `short_share` of them, early.

    A sequence cut off in the middle of a sentence would give the order away: its end would stand before [SEP] only
    when the segments are swapped. Only a sentence longer than the row is cut off, and it has no second segment.
    `bits` (B, L) mark what starts at the tokens of each row's text, of which `available` (B,) exist.
    """
    batch, length = bits.shape
    columns = np.arange(length)
    # the text ends like a document
    bits = np.where(columns < available[:, None], bits, DOCUMENT_START | SENTENCE_START)
    sentence = bits & SENTENCE_START != 0
    boundaries = np.cumsum(sentence, axis=1)
    last_sentence = np.maximum.accumulate(np.where(sentence, columns, 0), axis=1)
    next_document = np.where(bits & DOCUMENT_START != 0, columns, length + 1)
    next_document = np.minimum.accumulate(next_document[:, ::-1], axis=1)[:, ::-1]
    next_document = np.concatenate([next_document, np.full((batch, 1), length + 1)], axis=1)
    frame = 3 if in_two else 2
    row, column, begin = np.arange(batch), np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    found = [Sequences(*[np.zeros(0, np.int64)] * len(Sequences.__dataclass_fields__))]  # a part may have no rows
    while len(row):
        counter = rows[row] * length + column
        limit = np.minimum(begin + length - column - frame, available[row])
        document = next_document[row, begin + 1]
        whole = last_sentence[row, np.minimum(limit, length - 1)]
        end = np.where(document <= limit, document, np.where(whole > begin, whole, limit))
        fits = (column == 0) | (document <= limit) | (whole > begin)
        row, column, begin, end, counter = (x[fits] for x in (row, column, begin, end, counter))
        target = begin + 1 + random_below(key ^ derive_key(0, "short length"), counter, end - begin)
        early = last_sentence[row, np.minimum(target, length - 1)]
        short = (uniform(key ^ derive_key(0, "short"), counter) < short_share) & (early > begin) & (early < end)
        end = np.where(short, early, end)
        most = np.where(short | (document[fits] <= limit[fits]), end, limit[fits])
        cut = _segment_boundary(boundaries[row], begin, end, key, counter) if in_two else end
        found.append(
            Sequences(row, column, begin, cut - begin, cut, end - cut, most - cut, np.full(len(row), IGNORE_INDEX))
        )
        column, begin = column + found[-1].size, end
        going = (length - column >= MIN_SEQUENCE_COLUMNS) & (begin < available[row])
        row, column, begin = row[going], column[going], begin[going]
    return Sequences(*(np.concatenate([getattr(p, name) for p in found]) for name in Sequences.__dataclass_fields__))


def swap_segments(pieces: Sequences, rows: np.ndarray, key: Any) -> Sequences:
    """Sentence order: half of the pairs are swapped. Both segments are one document's, so topic gives no clue."""
    two = pieces.second_length > 0
    swap = two & (uniform(key ^ derive_key(0, "swap"), _sequence_counters(pieces, rows)) < 0.5)
    return replace(
        pieces,
        first=np.where(swap, pieces.second, pieces.first),
        first_length=np.where(swap, pieces.second_length, pieces.first_length),
        second=np.where(swap, pieces.first, pieces.second),
        second_length=np.where(swap, pieces.first_length, pieces.second_length),
        label=np.where(two, swap.astype(np.int64), IGNORE_INDEX),
    )


def replace_second(
    pieces: Sequences, bits: np.ndarray, strangers: RandomSegments, rows: np.ndarray, key: Any
) -> Sequences:
    """Next sentence: half of the second segments become as many whole sentences of another document as fit.

    An end in the middle of a sentence would give strangers away, and so would a row that they fill less well. Where
    not one sentence fits, or the stretch is from the very document, the question is not asked, whichever way it would
    have been answered.
    """
    length = bits.shape[1]
    columns, there = np.arange(length), strangers.available[:, None]
    ends = ((strangers.bits & SENTENCE_START != 0) & (columns < there)) | (columns == there)
    fitting = np.maximum.accumulate(np.where(ends, columns, 0), axis=1)[pieces.row, pieces.room]
    documents = np.cumsum(bits & DOCUMENT_START, axis=1, dtype=np.int64) - (bits[:, :1] & DOCUMENT_START)
    same = documents[pieces.row, pieces.first] == strangers.documents_on[pieces.row]
    able = (pieces.second_length > 0) & (fitting > 0) & ~same
    swap = able & (uniform(key ^ derive_key(0, "next"), _sequence_counters(pieces, rows)) < 0.5)
    return replace(
        pieces,
        second=np.where(swap, length, pieces.second),
        second_length=np.where(swap, fitting, pieces.second_length),
        label=np.where(able, swap.astype(np.int64), IGNORE_INDEX),
    )


def _segment_boundary(
    boundaries: np.ndarray, begin: np.ndarray, end: np.ndarray, key: Any, counter: np.ndarray
) -> np.ndarray:
    """One of the sentence starts strictly between begin and end; `end` where there is none."""
    row = np.arange(len(begin))
    before = boundaries[row, begin]
    inside = boundaries[row, end - 1] - before
    pick = before + 1 + random_below(key ^ derive_key(0, "cut"), counter, np.maximum(1, inside))
    return np.where(inside > 0, (boundaries >= pick[:, None]).argmax(axis=1), end)


def _sequence_counters(pieces: Sequences, rows: np.ndarray) -> np.ndarray:
    """A number for each piece that no other has."""
    return rows[pieces.row] * (1 << 16) + pieces.column
