"""Classes out of raw text."""

from __future__ import annotations

import pytest

from litebert.data import cloze_classes as words
from litebert.data.cloze_classes import cloze_examples

LINES = [f"filler{'abcdefghij'[n % 10]} is here, {'xyz'[n % 3]}" for n in range(200)]


def test_every_line_with_a_word_is_an_example_of_it_without_it() -> None:
    lines = [f"The parcel number {n} is late; PARCEL!" for n in range(6)]
    found = [text for text, word in cloze_examples([*LINES, *lines], "[MASK]") if word == "parcel"]
    assert found == [f"The [MASK] number {n} is late; [MASK]!" for n in range(6)]


def test_rare_and_common_words_are_no_classes() -> None:
    lines = ["a zebra"] * 4 + ["a parcel"] * 5
    assert {word for _, word in cloze_examples([*LINES, *lines], "[MASK]")} == {"parcel"}


def test_a_word_within_a_word_stays() -> None:
    lines = ["the cat and the catalogue"] * 5
    assert ("the [MASK] and the catalogue", "cat") in cloze_examples([*LINES, *lines], "[MASK]")


def test_long_lines_are_cut_around_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "CONTEXT_CHARACTERS", 4)
    lines = ["before the parcel after it"] * 5
    assert ("the [MASK] aft", "parcel") in cloze_examples([*LINES, *lines], "[MASK]")


def test_of_many_examples_evenly_spread_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_EXAMPLES_PER_WORD", 3)
    lines = [f"parcel {n}" for n in range(9)]
    found = [text for text, word in cloze_examples([*LINES, *lines], "[MASK]") if word == "parcel"]
    assert found == ["[MASK] 0", "[MASK] 3", "[MASK] 6"]


def test_chinese_words_are_found_without_spaces() -> None:
    pytest.importorskip("rjieba")
    found = cloze_examples([*LINES, *["我喜欢北京的秋天"] * 5], "[MASK]")
    assert ("我喜欢[MASK]的秋天", "北京") in found
