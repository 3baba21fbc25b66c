"""Sentences, scripts and personal numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.sentences import script_converter, scrub_personal_data, sentence_splitter
from litebert.errors import ConfigError
from tests.conftest import peer


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Dr. Wren met J. R. Hale at 3.15 p.m.", "He said nothing."]),
        ("en", ["It cost $3.50, i.e. too much.", "Mr. and Mrs. Lind paid."]),
        ("en", ["“It is over.”", "She left."]),
        ("en", ['"Go away."', "Then he slept."]),
        ("en", ["Wait...", "Was it late?", "Yes!"]),
        ("en", ["The U.S. mail came.", "See fig. 3 there."]),
        ("de", ["Das ist z.B. ein Satz.", "Noch einer am 3. Mai."]),
        ("zh", ["他说：“你好。”", "然后走了。", "真的吗？", "是的！"]),
        ("zh", ["「他來了。」", "我知道。"]),
        ("ja", ["これは文です。", "次の文です！"]),
        ("hi", ["यह पहला वाक्य है।", "यह दूसरा है॥", "तीसरा।"]),
        ("ar", ["هل هذا سؤال؟", "نعم."]),
        ("am", ["የመጀመሪያ ዓረፍተ ነገር።", "ሁለተኛ።"]),
        ("th", ["ภาษาไทยไม่มีจุด"]),
    ],
)
def test_sentences_end_where_a_reader_ends_them(language: str, sentences: list[str]) -> None:
    space = "" if language in ("zh", "ja") else " "
    found = sentence_splitter("split", language)(space.join(sentences))
    assert [sentence.strip() for sentence in found] == sentences


def test_a_line_end_ends_a_sentence_and_lines_may_be_sentences() -> None:
    text = "One. Two\nthree. Four"
    assert [s.strip() for s in sentence_splitter("split", "en")(text)] == ["One.", "Two", "three.", "Four"]
    assert sentence_splitter("lines", "en")(text) == ["One. Two", "three. Four"]


@given(st.text())
def test_no_character_is_lost(text: str) -> None:
    assert "".join(sentence_splitter("split", "en")(text)) == text.replace("\n", "")


def test_a_language_that_is_no_code_is_refused() -> None:
    with pytest.raises(ConfigError, match="language='English' must be a language code such as en"):
        sentence_splitter("split", "English")


def test_scripts_are_converted() -> None:
    peer("opencc")
    to_simplified, to_traditional = script_converter("simplified"), script_converter("traditional")
    assert to_simplified is not None
    assert to_traditional is not None
    assert to_simplified("漢字轉換") == "汉字转换"
    assert to_traditional("汉字转换") == "漢字轉換"
    assert script_converter("keep") is None


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("Write to jane.doe+x@mail.example.org today.", "Write to [email] today."),
        ("Call +44 20 7946 0958, (020) 7946 0958 or 555-867-5309.", "Call [phone], [phone] or [phone]."),
        ("手机13800138000，座机010-62345678。", "手机[phone]，座机[phone]。"),
        ("Cards 4111 1111 1111 1111 and 5500000000000004.", "Cards [number] and [number]."),
        ("身份证11010519491231002X。", "身份证[number]。"),
        ("SSN 078-05-1120, IBAN GB82 WEST 1234 5698 7654 32.", "SSN [number], IBAN [number]."),
    ],
)
def test_personal_numbers_are_replaced(text: str, scrubbed: str) -> None:
    assert scrub_personal_data(text) == scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "In 1914-1918, on pages 123-456, 3.14159265358979 and £1,234,567.89.",
        "2015-08-31 12:30:45, doi 10.1000/182, @home, a @ b, v1.2.3-4",
        "4111 1111 1111 1112 is no card: its sum is wrong.",
        "人口1370536875，面积9600000平方公里。",
    ],
)
def test_other_numbers_stay(text: str) -> None:
    assert scrub_personal_data(text) == text
