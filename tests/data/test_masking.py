"""What is hidden: only what may be, by whole units, as much as was asked for, and each row for itself."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import chi2_contingency, chisquare  # type: ignore[import-untyped]

from litebert.data.hashing import derive_key
from litebert.data.masking import SPAN_LIMIT, SPAN_STOP, Masking, MaskUnit, corrupt_tokens, select_tokens
from litebert.errors import ConfigError

KINDS = get_args(MaskUnit)
KEY = derive_key(0, "test")
ALMOST_SURE = 1e-3  # keys are fixed, so a test that passes once passes always
Flags = tuple[np.ndarray, np.ndarray]
MASK, FIRST_USABLE, USABLE = 4, 5, 200


@st.composite
def rows_of_words(draw: st.DrawFn) -> Flags:
    """Which tokens may be hidden, and where words begin."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 40)))
    allowed = draw(npst.arrays(bool, shape, elements=st.integers(0, 9).map(lambda number: number > 0)))
    return allowed, draw(npst.arrays(bool, shape))


def plain(rows: int, columns: int) -> Flags:
    """Rows of one-token words, all allowed."""
    return np.ones((rows, columns), dtype=bool), np.ones((rows, columns), dtype=bool)


def words_of(allowed: np.ndarray, word_start: np.ndarray) -> np.ndarray:
    """The number of each token's word, where a token that is not allowed ends a word too."""
    after_wall = np.pad(~allowed, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
    return np.cumsum((word_start | after_wall | ~allowed).ravel()).reshape(allowed.shape)


@given(flags=rows_of_words(), kind=st.sampled_from(KINDS), rate=st.floats(0.01, 0.8))
def test_only_allowed_tokens_are_hidden_and_some_in_every_row(flags: Flags, kind: MaskUnit, rate: float) -> None:
    allowed, word_start = flags
    chosen = select_tokens(Masking(kind, rate), allowed, word_start, KEY, np.arange(len(allowed)))
    assert not (chosen & ~allowed).any()
    assert np.array_equal(chosen.any(axis=1), allowed.any(axis=1))


@given(flags=rows_of_words(), kind=st.sampled_from(["word", "ngram", "span"]), rate=st.floats(0.01, 0.8))
def test_a_word_is_hidden_entirely_or_not_at_all(flags: Flags, kind: MaskUnit, rate: float) -> None:
    allowed, word_start = flags
    chosen = select_tokens(Masking(kind, rate), allowed, word_start, KEY, np.arange(len(allowed)))
    word = words_of(allowed, word_start)
    assert not np.intersect1d(word[chosen], word[allowed & ~chosen]).size


def test_single_tokens_are_hidden_whatever_word_they_belong_to() -> None:
    allowed, word_start = plain(200, 64)
    word_start[:, 1::2] = False
    chosen = select_tokens(Masking("token"), allowed, word_start, KEY, np.arange(200))
    assert (chosen[:, ::2] != chosen[:, 1::2]).any()


@given(flags=rows_of_words(), kind=st.sampled_from(KINDS), rate=st.floats(0.01, 0.8), data=st.data())
def test_the_choice_for_a_row_depends_on_its_number_alone(
    flags: Flags, kind: MaskUnit, rate: float, data: st.DataObject
) -> None:
    allowed, word_start = flags
    numbers = 10**9 + 3 * np.arange(len(allowed))
    some = np.array(data.draw(st.permutations(range(len(allowed)))))[: data.draw(st.integers(1, len(allowed)))]
    masking, ids = Masking(kind, rate, mask_share=0.4, random_share=0.4), np.full(allowed.shape, 7)
    usable = np.arange(FIRST_USABLE, USABLE)
    whole = select_tokens(masking, allowed, word_start, KEY, numbers)
    part = select_tokens(masking, allowed[some], word_start[some], KEY, numbers[some])
    assert np.array_equal(whole[some], part)
    ids_part = ids[some]
    corrupt_tokens(masking, ids, whole, MASK, usable, KEY, numbers)
    corrupt_tokens(masking, ids_part, part, MASK, usable, KEY, numbers[some])
    assert np.array_equal(ids[some], ids_part)


def test_rows_and_keys_make_different_choices() -> None:
    allowed, word_start = plain(100, 64)
    rows = [
        select_tokens(Masking(), allowed, word_start, derive_key(seed, "mask"), np.arange(100)) for seed in range(3)
    ]
    assert len(np.unique(np.concatenate(rows), axis=0)) == 300


@pytest.mark.parametrize("kind", ["word", "ngram", "span"])
def test_a_unit_never_reaches_over_a_wall(kind: MaskUnit) -> None:
    """Left and right of [SEP] stand halves of what would be one word: they are hidden independently."""
    rows = 8000
    allowed, word_start = plain(rows, 41)
    allowed[:, 20] = False
    word_start[:, 21] = False
    chosen = select_tokens(Masking(kind, 0.5), allowed, word_start, KEY, np.arange(rows))
    table = np.array([[((chosen[:, 19] == a) & (chosen[:, 21] == b)).sum() for a in (0, 1)] for b in (0, 1)])
    # not quite independent: what is hidden on one side is missing from the budget of the other
    share = chosen[:, [19, 21]].mean(axis=0)
    correlation = (table[1, 1] / rows - share.prod()) / np.sqrt((share * (1 - share)).prod())
    assert -0.15 < correlation < 3 / rows**0.5


def hidden_units(kind: MaskUnit, rows: int, columns: int) -> np.ndarray:
    """How many words the one unit has that is hidden in each row, away from the ends of the row."""
    allowed, word_start = plain(rows, columns)
    chosen = select_tokens(Masking(kind, 1e-9), allowed, word_start, KEY, np.arange(rows))
    first = chosen.argmax(axis=1)
    return chosen.sum(axis=1)[(first > SPAN_LIMIT) & (first < columns - 2 * SPAN_LIMIT)]


def test_an_ngram_of_n_words_has_a_chance_of_one_nth() -> None:
    lengths = np.bincount(hidden_units("ngram", 8000, 200), minlength=4)
    weights = np.array([1, 1 / 2, 1 / 3])
    assert lengths[0] == 0
    assert chisquare(lengths[1:], lengths.sum() * weights / weights.sum()).pvalue > ALMOST_SURE


def test_the_lengths_of_spans_are_geometric() -> None:
    lengths = np.bincount(hidden_units("span", 8000, 200), minlength=SPAN_LIMIT + 1)
    weights = (1 - SPAN_STOP) ** np.arange(SPAN_LIMIT)
    assert lengths[0] == 0
    assert chisquare(lengths[1:], lengths.sum() * weights / weights.sum()).pvalue > ALMOST_SURE


@pytest.mark.parametrize("kind", ["token", "word"])
def test_tokens_and_words_are_hidden_one_by_one(kind: MaskUnit) -> None:
    assert set(hidden_units(kind, 500, 200)) == {1}


def test_the_longest_ngram_is_a_setting() -> None:
    allowed, word_start = plain(2000, 100)
    for longest in (1, 2, 5):
        chosen = select_tokens(Masking("ngram", 1e-9, max_ngram=longest), allowed, word_start, KEY, np.arange(2000))
        assert set(chosen.sum(axis=1)) == set(range(1, longest + 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5, 0.8])
def test_the_expected_share_of_hidden_tokens_is_the_rate(kind: MaskUnit, rate: float) -> None:
    rows = 3000
    rng = np.random.default_rng(0)
    allowed, word_start = np.ones((rows, 97), dtype=bool), rng.random((rows, 97)) < 0.7
    allowed[:, [0, 50, 96]] = False
    chosen = select_tokens(Masking(kind, rate), allowed, word_start, KEY, np.arange(rows))
    surplus = chosen.sum(axis=1) - rate * allowed.sum(axis=1)
    assert abs(surplus.mean()) < 3.3 * max(surplus.std(), 0.1) / rows**0.5  # 99.9 %
    assert kind != "token" or np.abs(surplus).max() < 1  # where a unit is one token, every row is exact


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_is_hidden_alike(kind: MaskUnit) -> None:
    rows = 20_000
    allowed, word_start = plain(rows, 32)
    hidden = select_tokens(Masking(kind, 0.3), allowed, word_start, KEY, np.arange(rows)).sum(axis=0)
    # At the ends of a row units are shorter, and the last bit of the budget takes a short one more often.
    assert (np.abs(hidden / rows - 0.3) < (0.02 if kind == "span" else 4 * (0.21 / rows) ** 0.5)).all()


def fates(masking: Masking, rows: int = 400, columns: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """(B, L) 0 where a hidden token became [MASK], 1 where another, 2 where it stayed; and the tokens."""
    ids = np.full((rows, columns), 1000)
    chosen = np.ones_like(ids, dtype=bool)
    corrupt_tokens(masking, ids, chosen, MASK, np.arange(FIRST_USABLE, USABLE), KEY, np.arange(rows))
    return np.where(ids == MASK, 0, np.where(ids == 1000, 2, 1)), ids


@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.5, 0.25), (0.1, 0.8)])
def test_hidden_tokens_are_masked_replaced_and_kept_by_their_shares(shares: tuple[float, float]) -> None:
    found, _ = fates(Masking(mask_share=shares[0], random_share=shares[1]))
    expected = found.size * np.array([*shares, 1 - sum(shares)])
    assert chisquare(np.bincount(found.ravel(), minlength=3), expected).pvalue > ALMOST_SURE


@pytest.mark.parametrize(("shares", "fate"), [((1.0, 0.0), 0), ((0.0, 1.0), 1), ((0.0, 0.0), 2)])
def test_a_share_of_one_leaves_nothing_else(shares: tuple[float, float], fate: int) -> None:
    assert (fates(Masking(mask_share=shares[0], random_share=shares[1]))[0] == fate).all()


def test_neighbours_meet_their_fates_independently() -> None:
    found, _ = fates(Masking(mask_share=0.5, random_share=0.25))
    for here, there in ((found[:, :-1], found[:, 1:]), (found[:-1], found[1:])):
        table = np.zeros((3, 3))
        np.add.at(table, (here.ravel(), there.ravel()), 1)
        assert chi2_contingency(table).pvalue > ALMOST_SURE


def test_replacements_are_usable_tokens_all_alike() -> None:
    _, ids = fates(Masking(mask_share=0, random_share=1))
    assert chisquare(np.bincount(ids.ravel() - FIRST_USABLE, minlength=USABLE - FIRST_USABLE)).pvalue > ALMOST_SURE


def test_tokens_that_were_not_chosen_stay() -> None:
    ids = np.full((10, 20), 1000)
    chosen = np.random.default_rng(0).random(ids.shape) < 0.3
    corrupt_tokens(Masking(mask_share=1, random_share=0), ids, chosen, MASK, np.arange(9), KEY, np.arange(10))
    assert np.array_equal(ids == MASK, chosen)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "letters"}, "mask='letters' must be one of token, word, ngram, span"),
        ({"rate": 0.0}, r"mask_rate=0\.0 must lie above 0 and not above 0\.8"),
        ({"rate": 0.81}, r"mask_rate=0\.81 must lie above 0"),
        ({"max_ngram": 0}, "max_ngram=0 must lie between 1 and 10"),
        (
            {"mask_share": 0.95},
            r"mask_share=0\.95 and random_share=0\.1 must not be negative, and their sum must not exceed 1",
        ),
        ({"random_share": -0.1}, "must not be negative, and their sum must not exceed 1"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Masking(**change)  # type: ignore[arg-type]
