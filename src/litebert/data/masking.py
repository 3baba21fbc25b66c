"""Which tokens to hide. Rows of words are cut into units (a token, a word, a few words), and units are hidden until
the share is reached.

Shapes: B rows, L columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from litebert.data.hashing import derive_key, uniform
from litebert.errors import ConfigError

MaskUnit = Literal["token", "word", "ngram", "span"]
SPAN_STOP, SPAN_LIMIT = 0.2, 10  # SpanBERT's geometric lengths


@dataclass(frozen=True)
class Masking:
    """What to hide and how."""

    kind: MaskUnit = "ngram"
    """Hide single tokens, whole words, runs of n words with p(n) ∝ 1/n, or longer spans of words (geometric)."""
    rate: float = 0.15
    """Share of the tokens to hide; 0.15 to 0.80 are in use."""
    max_ngram: int = 3
    """The longest run of words, for n-grams."""
    mask_share: float = 0.8
    """Of the chosen tokens, the share that becomes [MASK]."""
    random_share: float = 0.1
    """The share that becomes another token; the rest stay as they are."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(MaskUnit):
            raise ConfigError(f"mask={self.kind!r} must be one of {', '.join(get_args(MaskUnit))}")
        if not 0 < self.rate <= 0.8:
            raise ConfigError(f"mask_rate={self.rate} must lie above 0 and not above 0.8; ALBERT masks 0.15")
        if not 1 <= self.max_ngram <= 10:
            raise ConfigError(f"max_ngram={self.max_ngram} must lie between 1 and 10; ALBERT takes 3")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ConfigError(
                f"mask_share={self.mask_share} and random_share={self.random_share} must be shares of one whole: "
                "not negative, and 1 together at most"
            )

    @property
    def lengths(self) -> np.ndarray:
        """p(n) for units of n = 1, 2, ... words (tokens, for token masking)."""
        if self.kind == "ngram":
            weights = 1.0 / np.arange(1, self.max_ngram + 1, dtype=np.float64)
        elif self.kind == "span":
            weights = (1 - SPAN_STOP) ** np.arange(SPAN_LIMIT, dtype=np.float64)
        else:
            weights = np.ones(1)
        return weights / weights.sum()


def select_tokens(
    masking: Masking, allowed: np.ndarray, word_start: np.ndarray, key: Any, rows: np.ndarray
) -> np.ndarray:
    """(B, L) bool: the tokens to hide. `rows` (B,) number the rows, so that a row's choice depends on it alone.

    A unit never holds a token that is not allowed, nor tokens on both sides of one: [SEP] stays a wall.
    """
    batch, length = allowed.shape
    starts = allowed & (word_start | ~_left_neighbours(allowed))
    if masking.kind == "token":
        starts = allowed.copy()
    unit = _unit_numbers(masking, starts, allowed, key, rows)  # (B, L)
    flat = (np.arange(batch)[:, None] * (length + 1) + unit).ravel()
    sizes = np.bincount(flat[allowed.ravel()], minlength=batch * (length + 1)).reshape(batch, length + 1)  # (B, U)
    order_key = uniform(key ^ derive_key(0, "order"), _column_counters(rows, length + 1))
    order_key[sizes == 0] = 2.0  # empty numbers go last
    order = np.argsort(order_key, axis=1, kind="stable")
    ordered = np.take_along_axis(sizes, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    budget = masking.rate * allowed.sum(axis=1, keepdims=True)
    # The unit that crosses the budget is taken with the chance that makes the expected share exact.
    chance = np.clip((budget - before) / np.maximum(ordered, 1), 0.0, 1.0)
    lucky = uniform(key ^ derive_key(0, "budget"), rows)[:, None]
    taken_in_order = (ordered > 0) & (lucky < chance)
    # a row without any hidden token would teach nothing
    taken_in_order[:, 0] |= ordered[:, 0] > 0
    taken = np.zeros_like(taken_in_order)
    np.put_along_axis(taken, order, taken_in_order, axis=1)
    return np.take_along_axis(taken, unit, axis=1) & allowed


def corrupt_tokens(
    masking: Masking, ids: np.ndarray, chosen: np.ndarray, mask_id: int, usable: np.ndarray, key: Any, rows: np.ndarray
) -> None:
    """Hide the chosen tokens in place: [MASK], a random token of `usable`, or itself, decided for each token."""
    row, column = np.nonzero(chosen)
    counter = rows[row] * ids.shape[1] + column
    fate = uniform(key ^ derive_key(0, "fate"), counter)
    masked = fate < masking.mask_share
    random = ~masked & (fate < masking.mask_share + masking.random_share)
    ids[row[masked], column[masked]] = mask_id
    picked = (uniform(key ^ derive_key(0, "replacement"), counter[random]) * len(usable)).astype(np.int64)
    ids[row[random], column[random]] = usable[picked]


def _unit_numbers(masking: Masking, starts: np.ndarray, allowed: np.ndarray, key: Any, rows: np.ndarray) -> np.ndarray:
    """(B, L): the number of the unit each column belongs to, from 1 on; 0 before the first."""
    share = masking.lengths
    if len(share) == 1:
        return np.cumsum(starts, axis=1)
    batch, length = starts.shape
    draws = uniform(key ^ derive_key(0, "length"), _column_counters(rows, length))
    words_in_unit = np.searchsorted(np.cumsum(share)[:-1], draws, side="right") + 1
    ends = np.cumsum(words_in_unit, axis=1)
    opens = np.zeros((batch, length + len(share) + 1), dtype=bool)  # by word number: does a unit open there?
    opens[:, 0] = True
    np.put_along_axis(opens, np.minimum(ends, opens.shape[1] - 1), True, axis=1)
    word = np.cumsum(starts, axis=1) - 1
    begins = starts & np.take_along_axis(opens, np.maximum(word, 0), axis=1)
    wall = allowed & ~_left_neighbours(allowed)  # a unit cannot go on behind [SEP]
    return np.cumsum(begins | wall, axis=1)


def _column_counters(rows: np.ndarray, width: int) -> np.ndarray:
    return rows[:, None] * width + np.arange(width)


def _left_neighbours(flags: np.ndarray) -> np.ndarray:
    """Each column's left neighbour; nothing stands left of the first."""
    left = np.zeros_like(flags)
    left[:, 1:] = flags[:, :-1]
    return left
