"""Randomness that is looked up: uniform, independent, and the same on every call."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare  # type: ignore[import-untyped]

from litebert.data.hashing import derive_key, permute, random_below, splitmix64, uniform

KEYS = st.integers(0, 2**64 - 1).map(np.uint64)
ALMOST_SURE = 1e-3  # chance alone falls below it once in a thousand keys; the keys here are fixed


@given(size=st.integers(1, 3000), key=KEYS)
def test_a_shuffle_sends_every_index_to_a_place_of_its_own(size: int, key: np.uint64) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@given(size=st.integers(1, 3000), key=KEYS, data=st.data())
def test_a_part_of_a_shuffle_is_found_without_the_rest(size: int, key: np.uint64, data: st.DataObject) -> None:
    some = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), dtype=np.int64)
    assert np.array_equal(permute(some, size, key), permute(np.arange(size), size, key)[some])


def test_every_index_may_have_a_key_of_its_own() -> None:
    keys = splitmix64(derive_key(0, "epoch"), np.repeat(np.arange(3), 100))
    together = permute(np.tile(np.arange(100), 3), 100, keys).reshape(3, 100)
    assert all(np.array_equal(row, permute(np.arange(100), 100, keys[100 * at])) for at, row in enumerate(together))


def test_shuffles_of_different_keys_differ_and_leave_hardly_anything_in_place() -> None:
    keys = splitmix64(derive_key(0, "keys"), np.arange(200))
    shuffles = np.stack([permute(np.arange(500), 500, key) for key in keys])
    assert len(np.unique(shuffles, axis=0)) == 200
    assert abs((shuffles == np.arange(500)).sum() - 200) < 4 * 200**0.5  # one fixed point per shuffle is expected


def test_an_index_goes_everywhere_alike() -> None:
    keys = splitmix64(derive_key(1, "keys"), np.arange(20_000))
    for size, index in ((16, 15), (100, 42), (1000, 0)):
        places = np.bincount(permute(np.full(len(keys), index), size, keys), minlength=size)
        assert chisquare(places).pvalue > ALMOST_SURE


def test_numbers_are_uniform() -> None:
    for purpose in ("a", "b", "c"):
        numbers = uniform(derive_key(0, purpose), np.arange(200_000))
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert chisquare(np.bincount((numbers * 1000).astype(int), minlength=1000)).pvalue > ALMOST_SURE


def test_neighbouring_indices_know_nothing_of_each_other() -> None:
    for step in (1, 2, 128, 1 << 16):
        index = np.arange(100_000) * step
        here, there = ((uniform(derive_key(0, "pairs"), index + more) * 16).astype(int) for more in (0, step))
        table = np.zeros((16, 16))
        np.add.at(table, (here, there), 1)
        assert chi2_contingency(table).pvalue > ALMOST_SURE


def test_purposes_and_seeds_know_nothing_of_each_other() -> None:
    index = np.arange(100_000)
    base = (uniform(derive_key(0, "mask"), index) * 16).astype(int)
    for key in (
        derive_key(1, "mask"),
        derive_key(0, "order"),
        derive_key(0, "mask", 1),
        derive_key(0, "mask") ^ derive_key(0, "fate"),
    ):
        table = np.zeros((16, 16))
        np.add.at(table, (base, (uniform(key, index) * 16).astype(int)), 1)
        assert chi2_contingency(table).pvalue > ALMOST_SURE


def test_every_use_has_its_own_key() -> None:
    keys = [
        derive_key(seed, purpose, number) for seed in range(5) for purpose in ("mask", "cut") for number in range(200)
    ]
    assert len(set(keys)) == len(keys)


@given(key=KEYS, start=st.integers(0, 2**50), limit=st.integers(1, 10**6))
def test_whole_numbers_stay_below_their_limit(key: np.uint64, start: int, limit: int) -> None:
    numbers = random_below(key, start + np.arange(50), limit)
    assert ((numbers >= 0) & (numbers < limit)).all()


def test_the_numbers_are_the_same_on_every_call_and_every_machine() -> None:
    assert derive_key(7, "mask", 128) == 7146726001680742722
    assert splitmix64(derive_key(7, "mask", 128), np.arange(2)).tolist() == [8453665574315285633, 781443600856620357]
    assert permute(np.arange(10), 10, derive_key(7, "epoch")).tolist() == [1, 8, 0, 2, 7, 6, 4, 5, 9, 3]
