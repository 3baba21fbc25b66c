"""Vocabularies trained here."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from litebert.errors import ConfigError, DataError
from litebert.tokenizer import Tokenizer, train_unigram, train_wordpiece, training
from litebert.tokenizer.training import MAX_LINE_CHARACTERS
from tests.conftest import PROSE

TRAINERS = [train_unigram, train_wordpiece]
HINDI = ["हिन्दी में लिखा हुआ वाक्य", "दिल्ली में बारिश हुई"] * 20
THAI = ["ภาษาไทยที่เขียน", "ที่นี่มีผู้คน"] * 20
KOREAN = ["한국어 문장입니다", "오늘 한국어 공부"] * 20

Train = Callable[..., Tokenizer]


@pytest.fixture(params=TRAINERS, ids=["unigram", "wordpiece"])
def train(request: pytest.FixtureRequest) -> Train:
    chosen: Train = request.param
    return chosen


def read_back(tokenizer: Tokenizer, text: str) -> str:
    """What is left of a text after encoding and decoding, without the spaces that some cuts add."""
    return tokenizer.decode(tokenizer.encode([text])[0].ids).replace(" ", "")


def test_training_reaches_the_size_asked_for(train: Train) -> None:
    assert train(PROSE, 150).vocab_size == 150


def test_little_text_gives_a_smaller_vocabulary_than_asked(train: Train) -> None:
    tokenizer = train(PROSE[:10], 30_000)
    assert 64 <= tokenizer.vocab_size < 1_000
    assert tokenizer.unk_id not in tokenizer.encode(PROSE[:1])[0].ids


@pytest.mark.parametrize("size", [-1, 0, 63, 1_000_001])
def test_a_wrong_size_is_refused_with_its_rule_and_a_remedy(train: Train, size: int) -> None:
    message = f"vocab_size={size} must lie between 64 and 1,000,000; ALBERT uses 30000"
    with pytest.raises(ConfigError, match=message):
        train(PROSE, size)


@pytest.mark.parametrize("lines", [[], ["", "  ", "\n"]])
def test_no_text_is_refused_with_a_remedy(train: Train, lines: list[str]) -> None:
    with pytest.raises(DataError, match=r"give (more text|--input files with text)"):
        train(lines, 100)


def test_a_missing_sentencepiece_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ConfigError, match=r"sentencepiece is not installed .* pip install 'litebert\[train\]'"):
        train_unigram(PROSE, 100)


def test_the_same_text_gives_the_same_vocabulary(train: Train) -> None:
    assert train(PROSE, 150).fingerprint == train(PROSE, 150).fingerprint


def test_the_seed_decides_which_lines_are_sampled(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_SAMPLED_CHARACTERS", 2_000)
    names = [f"{first}{middle}{last}" for first in "bdfgk" for middle in "aeiou" for last in "lmnrstvz"]
    lines = [f"{name} met {name}s of {name}land" for name in names]
    first, again, other = (train(lines, 120, seed=seed).fingerprint for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_lines_may_come_from_a_generator(train: Train) -> None:
    assert train((line for line in PROSE), 150).fingerprint == train(PROSE, 150).fingerprint


def test_lines_longer_than_the_limit_are_learned_from(train: Train) -> None:
    line = "zebra " * MAX_LINE_CHARACTERS
    assert len(line) > MAX_LINE_CHARACTERS
    tokenizer = train([*PROSE, line], 150)
    assert tokenizer.unk_id not in tokenizer.encode(["zebra"])[0].ids


def test_a_long_line_without_spaces_is_learned_from(train: Train) -> None:
    tokenizer = train([*PROSE, "語" * (MAX_LINE_CHARACTERS * 5)], 150)
    assert tokenizer.token(tokenizer.encode(["語"])[0].ids[-2]).endswith("語")


def test_cutting_long_lines_loses_no_character() -> None:
    lines = [
        "a b " * MAX_LINE_CHARACTERS,
        "x" * (2 * MAX_LINE_CHARACTERS + 7),
        "short",
        "y" * MAX_LINE_CHARACTERS,
        " " + "z" * MAX_LINE_CHARACTERS,
    ]
    cut = list(training._split_long_lines(lines))
    assert "".join(cut) == "".join(lines)
    assert max(map(len, cut)) <= MAX_LINE_CHARACTERS


@pytest.mark.parametrize("lines", [HINDI, THAI], ids=["hindi", "thai"])
def test_vowel_signs_are_kept(train: Train, lines: list[str]) -> None:
    tokenizer = train(lines, 80)
    for line in lines[:2]:
        assert read_back(tokenizer, line) == line.replace(" ", "")


def test_hangul_stays_one_character_per_syllable(train: Train) -> None:
    tokenizer = train(KOREAN, 80)
    assert read_back(tokenizer, KOREAN[0]) == KOREAN[0].replace(" ", "")
    assert {span[1] - span[0] for span in tokenizer.encode(["한"])[0].offsets[1:-1]} == {1}


def test_decomposed_hangul_is_read_as_syllables(train: Train) -> None:
    tokenizer = train(KOREAN, 80)
    assert tokenizer.encode(["\u1112\u1161\u11ab국어"])[0].ids == tokenizer.encode(["한국어"])[0].ids


ACCENTED = ["Une école à Noël", "École et Café fermés", "The Old Bridge"] * 20


def test_accents_and_case_are_dropped_unless_asked(train: Train) -> None:
    assert read_back(train(ACCENTED, 80), "École Café") == "ecolecafe"


def test_keeping_accents_changes_the_result(train: Train) -> None:
    assert read_back(train(ACCENTED, 80, strip_accents=False), "école Café") == "écolecafé"


def test_keeping_case_changes_the_result(train: Train) -> None:
    assert read_back(train(ACCENTED, 80, lowercase=False), "The Old École") == "TheOldEcole"


def test_kept_accents_are_the_same_composed_and_decomposed(train: Train) -> None:
    tokenizer = train(ACCENTED, 80, strip_accents=False)
    assert tokenizer.encode(["cafe\u0301"])[0].ids == tokenizer.encode(["café"])[0].ids


def test_user_symbols_are_in_every_unigram_vocabulary() -> None:
    tokenizer = train_unigram(["only letters here"] * 20, 64)
    assert tokenizer.encode(["(€)"])[0].tokens[1:-1] == ["▁", "(", "€", ")"]


def test_wordpiece_training_folds_curly_quotes_and_wide_letters() -> None:
    tokenizer = train_wordpiece(['she said "yes" - a...'] * 20, 64)
    assert tokenizer.encode(["“ｙｅｓ” — ａ…"])[0].ids == tokenizer.encode(['"yes" - a...'])[0].ids
