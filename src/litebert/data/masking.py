"""Selecting and replacing tokens for masked language modelling. Rows are divided into units (tokens, words, n-grams or
spans), and random units are selected until the masking rate is reached.

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
    """Masking strategy."""

    kind: MaskUnit = "ngram"
    """Unit: single tokens, whole words, n-grams of words with p(n) ∝ 1/n, or spans of words of geometric length."""
    rate: float = 0.15
    """Fraction of tokens to select; 0.15 to 0.80 are common."""
    max_ngram: int = 3
    """Largest n of n-grams."""
    mask_share: float = 0.8
    """Fraction of selected tokens replaced by [MASK]."""
    random_share: float = 0.1
    """Fraction of selected tokens replaced by a random token; the rest stay unchanged."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(MaskUnit):
            raise ConfigError(f"mask={self.kind!r} must be one of {', '.join(get_args(MaskUnit))}")
        if not 0 < self.rate <= 0.8:
            raise ConfigError(f"mask_rate={self.rate} must lie above 0 and not above 0.8; ALBERT masks 0.15")
        if not 1 <= self.max_ngram <= 10:
            raise ConfigError(f"max_ngram={self.max_ngram} must lie between 1 and 10; ALBERT takes 3")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ConfigError(
                f"mask_share={self.mask_share} and random_share={self.random_share} must not be negative, "
                "and their sum must not exceed 1"
            )

    @property
    def length_probabilities(self) -> np.ndarray:
        """p(n) of units of n = 1, 2, ... words (tokens, for token masking)."""
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
    """(B, L) bool: the selected tokens. `rows` (B,) number the rows: a selection depends on key and row number alone.

    A unit never holds a token that is not allowed, nor tokens on both sides of one, such as [SEP].
    """
    batch, length = allowed.shape
    starts = allowed & (word_start | ~_left_neighbours(allowed))
    if masking.kind == "token":
        starts = allowed.copy()
    unit = _unit_numbers(masking, starts, allowed, key, rows)  # (B, L)
    flat = (np.arange(batch)[:, None] * (length + 1) + unit).ravel()
    sizes = np.bincount(flat[allowed.ravel()], minlength=batch * (length + 1)).reshape(batch, length + 1)  # (B, U)
    order_key = uniform(key ^ derive_key(0, "order"), _column_counters(rows, length + 1))
    order_key[sizes == 0] = 2.0  # unused unit numbers go last
    order = np.argsort(order_key, axis=1, kind="stable")
    ordered = np.take_along_axis(sizes, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    budget = masking.rate * allowed.sum(axis=1, keepdims=True)
    # The unit that crosses the budget is selected with the probability that makes the expected rate exact.
    take_probability = np.clip((budget - before) / np.maximum(ordered, 1), 0.0, 1.0)
    draw = uniform(key ^ derive_key(0, "budget"), rows)[:, None]
    selected_in_order = (ordered > 0) & (draw < take_probability)
    # at least one unit: a row without masked tokens would have no loss
    selected_in_order[:, 0] |= ordered[:, 0] > 0
    selected = np.zeros_like(selected_in_order)
    np.put_along_axis(selected, order, selected_in_order, axis=1)
    return np.take_along_axis(selected, unit, axis=1) & allowed


def corrupt_tokens(
    masking: Masking,
    ids: np.ndarray,
    selected: np.ndarray,
    mask_id: int,
    replacement_ids: np.ndarray,
    key: Any,
    rows: np.ndarray,
) -> None:
    """Replace each selected token in place: by [MASK], by one of `replacement_ids`, or not at all."""
    row, column = np.nonzero(selected)
    counter = rows[row] * ids.shape[1] + column
    draw = uniform(key ^ derive_key(0, "fate"), counter)
    masked = draw < masking.mask_share
    random = ~masked & (draw < masking.mask_share + masking.random_share)
    ids[row[masked], column[masked]] = mask_id
    choice = (uniform(key ^ derive_key(0, "replacement"), counter[random]) * len(replacement_ids)).astype(np.int64)
    ids[row[random], column[random]] = replacement_ids[choice]


def _unit_numbers(masking: Masking, starts: np.ndarray, allowed: np.ndarray, key: Any, rows: np.ndarray) -> np.ndarray:
    """(B, L): number of the unit that each column belongs to, from 1; 0 before the first."""
    probabilities = masking.length_probabilities
    if len(probabilities) == 1:
        return np.cumsum(starts, axis=1)
    batch, length = starts.shape
    draws = uniform(key ^ derive_key(0, "length"), _column_counters(rows, length))
    words_in_unit = np.searchsorted(np.cumsum(probabilities)[:-1], draws, side="right") + 1
    ends = np.cumsum(words_in_unit, axis=1)
    unit_opens = np.zeros((batch, length + len(probabilities) + 1), dtype=bool)  # by word number
    unit_opens[:, 0] = True
    np.put_along_axis(unit_opens, np.minimum(ends, unit_opens.shape[1] - 1), True, axis=1)
    word = np.cumsum(starts, axis=1) - 1
    unit_begins = starts & np.take_along_axis(unit_opens, np.maximum(word, 0), axis=1)
    after_gap = allowed & ~_left_neighbours(allowed)  # a unit does not continue after [SEP]
    return np.cumsum(unit_begins | after_gap, axis=1)


def _column_counters(rows: np.ndarray, width: int) -> np.ndarray:
    return rows[:, None] * width + np.arange(width)


def _left_neighbours(flags: np.ndarray) -> np.ndarray:
    """Shift flags right by one column."""
    left = np.zeros_like(flags)
    left[:, 1:] = flags[:, :-1]
    return left
