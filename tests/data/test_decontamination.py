"""Text that must not be learned from is found again word for word, and nothing else is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from litebert.data.decontamination import MIN_WORDS, NGRAM_WORDS, ExcludedNgrams

NAMES = [f"word{number}" for number in range(400)]


def words(count: int, seed: int) -> list[str]:
    return random.Random(seed).choices(NAMES, k=count)


def test_every_run_of_a_long_text_is_found_wherever_it_stands() -> None:
    text = words(40, 0)
    excluded = ExcludedNgrams.from_documents([" ".join(text)])
    assert len(excluded.hashes[NGRAM_WORDS]) == 40 - NGRAM_WORDS + 1
    for start in range(0, 40 - NGRAM_WORDS + 1, 9):
        for before in (0, 1, 30):
            line = " ".join([*words(before, 1), *text[start : start + NGRAM_WORDS], *words(5, 2)])
            assert excluded.remove_from(f"keep this\n{line}\nand this") == ("keep this\nand this", 1)
        line = " ".join([*words(9, 1), *text[start : start + NGRAM_WORDS - 1], *words(9, 2)])
        assert excluded.remove_from(line) == (line, 0)


@pytest.mark.parametrize("size", [MIN_WORDS, MIN_WORDS + 2, NGRAM_WORDS - 1])
def test_a_short_text_is_found_whole(size: int) -> None:
    text = words(size, 3)
    excluded = ExcludedNgrams.from_documents([" ".join(text)])
    assert excluded.remove_from(" ".join([*words(4, 4), *text, *words(4, 5)])) == ("", 1)
    part = " ".join([*words(4, 4), *text[1:], *words(4, 5)])
    assert excluded.remove_from(part) == (part, 0)


def test_what_is_shorter_is_no_evidence() -> None:
    found = ExcludedNgrams.from_documents([" ".join(words(MIN_WORDS - 1, 0)) + "\n\n" + "one two"])
    assert (found.hashes, found.too_short) == ({}, 2)


def test_case_spacing_and_punctuation_do_not_count_but_words_and_lines_do() -> None:
    excluded = ExcludedNgrams.from_documents(["The cat, it seems, did not see the dog's tail ."])
    assert excluded.remove_from("«The   CAT it seems: did not see the dog's tail»") == ("", 1)
    for other in ("the cat it seems did not see the dogs tail", "the cat it seems\ndid not see the dog s tail"):
        assert excluded.remove_from(other) == (other, 0)


@pytest.mark.parametrize(
    "other",
    ["We don't get paid enough to sit through crap like this",
     "we don’t get PAID enough to sit\xa0through crap like this",
     "ｗｅ do n't get pa\xadid enough to sit through crap like this"],
)  # fmt: skip
def test_tokenised_and_typeset_texts_are_the_same_texts(other: str) -> None:
    assert ExcludedNgrams.from_documents(["we do n't get paid enough to sit through crap like this"]).remove_from(
        other
    ) == ("", 1)


def test_a_chinese_character_is_a_word() -> None:
    excluded = ExcludedNgrams.from_documents(["今天天气很好我们去公园散步"])
    assert excluded.remove_from("他说今天天气很好，我们去公园散步！\n今天天气很好") == ("今天天气很好", 1)


def test_a_document_may_hold_nothing() -> None:
    excluded = ExcludedNgrams.from_documents([" ".join(words(20, 0))])
    for text in ("", "\n\n", "...", "one", "one\n"):
        assert excluded.remove_from(text) == (text, 0)


def test_equal_words_at_other_places_are_other_runs() -> None:
    excluded = ExcludedNgrams.from_documents(["a b c d e f g h"])
    assert excluded.remove_from("b a c d e f g h")[1] == 0
    assert excluded.remove_from("ab c d e f g h i")[1] == 0


def test_the_digest_names_the_content() -> None:
    one, same, other = (ExcludedNgrams.from_documents([" ".join(words(20, seed))]).digest for seed in (0, 0, 1))
    assert one == same != other
    assert np.all(
        np.diff(ExcludedNgrams.from_documents([" ".join(words(50, 0))]).hashes[NGRAM_WORDS].astype(object)) > 0
    )
