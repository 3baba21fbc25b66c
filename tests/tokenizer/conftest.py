"""The tokenizers that these tests look at, each made once per process."""

from __future__ import annotations

from pathlib import Path

import pytest

from litebert.tokenizer import Tokenizer, train_unigram, train_wordpiece
from tests.conftest import PROSE

MANY_SCRIPTS = (
    PROSE
    + [
        "हिन्दी में लिखा हुआ एक छोटा वाक्य",
        "ภาษาไทยที่เขียนติดกันทั้งประโยค",
        "한국어로 쓴 짧은 문장입니다",
        "中文句子很短，没有空格",
        "日本語のテキスト、ガギグ",
        "שָׁלוֹם לְכֻלָּם",
        "مرحبًا بالعالم",
        "Žluťoučký kůň, une école naïve",
        "½ cup, ﬁne, Ｆｕｌｌ width…",
        "👩‍👩‍👧‍👦 👍🏽 🇩🇪 - “so” ‘it’ — is",
    ]
    * 12
)


@pytest.fixture(scope="session")
def english(data: Path) -> Tokenizer:
    """ALBERT's own SentencePiece vocabulary."""
    return Tokenizer.from_spiece(data / "vocab/english/spiece.model")


@pytest.fixture(scope="session")
def chinese(data: Path) -> Tokenizer:
    """The Chinese models' WordPiece vocabulary."""
    return Tokenizer.from_vocab(data / "vocab/chinese/vocab.txt")


@pytest.fixture(scope="session")
def chinese_folding(data: Path) -> Tokenizer:
    return Tokenizer.from_vocab(data / "vocab/chinese/vocab.txt", fold_punctuation=True)


@pytest.fixture(scope="session")
def unigram() -> Tokenizer:
    return train_unigram(MANY_SCRIPTS, 400)


@pytest.fixture(scope="session")
def unigram_keeping() -> Tokenizer:
    """One that keeps case and accents."""
    return train_unigram(MANY_SCRIPTS, 400, lowercase=False, strip_accents=False)


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    return train_wordpiece(MANY_SCRIPTS, 400)


@pytest.fixture(scope="session")
def wordpiece_keeping() -> Tokenizer:
    """One that keeps case and accents."""
    return train_wordpiece(MANY_SCRIPTS, 400, lowercase=False, strip_accents=False)
