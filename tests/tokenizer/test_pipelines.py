"""How text is cleaned and cut, and that every token knows the characters it came from."""

from __future__ import annotations

import unicodedata
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.tokenizer import Encoding, Tokenizer

KINDS = ["english", "chinese", "chinese_folding", "unigram", "unigram_keeping", "wordpiece", "wordpiece_keeping"]

PIECES = [
    *("the", "Lighthouse", "a", "B", "3", ".", "(", '"', "-", "'", " ", "  ", "\n", "\t", "\u3000", "\xa0", "\u2028"),
    *("👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤\ufe0f", "中文", "漢字", "、", "한국어", "\u1112\u1161\u11ab", "ガ", "か\u3099"),
    *("é", "e\u0301", "É", "o\u0308", "\u0301", "´", "¨", "İ", "ẞ", "Σ", "हिन्दी", "ที่", "שָׁלוֹם", "مرحبًا", "\u202e"),
    *("½", "ﬁ", "ﬂ", "Ｆｕ", "１", "㍿", "ﷺ", "℃", "ŉ", "ǅ", "…", "—", "“", "”", "’", "▁", "##a", "𝒳", "𠀀"),
    *("\x00", "\x07", "\x1c", "\x7f", "\x85", "\u200b", "\u200c", "\ufeff", "\u00ad", "\ufffd", "[MASK]", " [MASK] "),
]  # fmt: skip
TEXTS = st.lists(
    st.sampled_from(PIECES) | st.characters(exclude_categories=("Cs", "Cn")),
    max_size=9,
).map("".join)


@pytest.fixture(params=KINDS, scope="session")
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer


def encode(tokenizer: Tokenizer, *texts: str) -> Encoding:
    """Encode one text or pair; the strange text of these tests is often unknown, which has a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tokenizer.encode([texts[0]], [texts[1]] if len(texts) == 2 else None)[0]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return encode(tokenizer, text).ids


def normalised(tokenizer: Tokenizer, text: str) -> str:
    return str(tokenizer._pipeline.normalizer.normalize_str(text))


def joins_previous(character: str) -> bool:
    """Marks, controls and the later letters of Korean syllables: what normalisation may move, join or delete."""
    return not character.isspace() and (
        unicodedata.category(character) in ("Mn", "Mc", "Me", "Cc", "Cf")
        or 0x1160 <= ord(character) <= 0x11FF
        or 0xD7B0 <= ord(character) <= 0xD7FF
    )


def clusters(text: str) -> list[tuple[int, int]]:
    """Spans of one character each, with the marks after it: normalisation reorders and joins only within them."""
    spans: list[tuple[int, int]] = []
    for at, character in enumerate(text):
        if spans and joins_previous(character):
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))
    return spans


def whole(text: str, start: int, end: int) -> str:
    """The text of a span; where it holds or meets marks, with all of their cluster."""
    for first, last in clusters(text):
        if first < end and start < last:
            start, end = min(start, first), max(end, last)
    return text[start:end]


def pieces_of(tokenizer: Tokenizer, text: str) -> list[tuple[int, str, int, int]]:
    """(id, token, start, end) of the tokens that come from the text."""
    encoding = encode(tokenizer, text)
    rows = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.sequence_ids, strict=True)
    return [(number, token, *span) for number, token, span, sequence in rows if sequence is not None]


@given(text=TEXTS)
def test_offsets_lie_within_the_text_and_never_start_earlier_than_the_token_before(
    any_tokenizer: Tokenizer, text: str
) -> None:
    before = 0
    for _, _, start, end in pieces_of(any_tokenizer, text):
        assert before <= start <= end <= len(text)
        before = start


@given(text=TEXTS)
def test_every_known_token_is_found_in_the_text_at_its_offsets(any_tokenizer: Tokenizer, text: str) -> None:
    for number, token, start, end in pieces_of(any_tokenizer, text):
        if number == any_tokenizer.mask_id:
            assert text[start:end].startswith("[MASK]")
        elif number != any_tokenizer.unk_id:
            surface = token.removeprefix("##").replace("▁", " ").strip()
            found = normalised(any_tokenizer, whole(text, start, end)).replace("▁", " ")
            assert surface in found, (token, text[start:end])


@given(text=TEXTS)
def test_every_character_that_normalisation_keeps_is_covered_by_a_token(any_tokenizer: Tokenizer, text: str) -> None:
    covered = {at for _, _, start, end in pieces_of(any_tokenizer, text) for at in range(start, end)}
    for start, end in clusters(text):
        if normalised(any_tokenizer, text[start:end]).replace("▁", " ").strip():
            assert covered & set(range(start, end)), (start, text[start:end])


@given(text=TEXTS)
def test_marks_stay_with_the_character_they_are_drawn_on(any_tokenizer: Tokenizer, text: str) -> None:
    covered = {at for _, _, start, end in pieces_of(any_tokenizer, text) for at in range(start, end)}
    for at in range(1, len(text)):
        if unicodedata.category(text[at]).startswith("M") and at - 1 in covered:
            assert at in covered


@given(text=TEXTS)
def test_offsets_begin_and_end_without_white_space(any_tokenizer: Tokenizer, text: str) -> None:
    for _, _, start, end in pieces_of(any_tokenizer, text):
        assert text[start:end] == text[start:end].strip()


@given(first=TEXTS, second=TEXTS)
def test_the_frame_of_a_pair_has_empty_offsets_and_each_text_keeps_its_own(
    any_tokenizer: Tokenizer, first: str, second: str
) -> None:
    pair = encode(any_tokenizer, first, second)
    spans: dict[int | None, list[tuple[int, int]]] = {None: [], 0: [], 1: []}
    for sequence, span in zip(pair.sequence_ids, pair.offsets, strict=True):
        spans[sequence].append(span)
    assert spans[None] == [(0, 0)] * 3
    assert spans[0] == [(start, end) for _, _, start, end in pieces_of(any_tokenizer, first)]
    assert spans[1] == [(start, end) for _, _, start, end in pieces_of(any_tokenizer, second)]


@given(text=TEXTS)
def test_encoding_with_and_without_offsets_gives_the_same_ids(any_tokenizer: Tokenizer, text: str) -> None:
    assert any_tokenizer.encode_ids([text])[0] == ids(any_tokenizer, text)[1:-1]


def test_every_token_of_an_expanded_character_has_its_offsets(unigram: Tokenizer) -> None:
    assert {(start, end) for _, _, start, end in pieces_of(unigram, "½")} == {(0, 1)}


def test_a_deleted_first_character_shifts_no_offsets(english: Tokenizer) -> None:
    assert [(start, end) for _, _, start, end in pieces_of(english, "\x07hello world")] == [(1, 6), (7, 12)]


def test_a_decomposed_accent_is_within_the_offsets_of_its_letter(any_tokenizer: Tokenizer) -> None:
    assert max(end for _, _, _, end in pieces_of(any_tokenizer, "cafe\u0301")) == 5


def test_a_syllable_of_single_korean_letters_is_covered_whole(unigram: Tokenizer) -> None:
    assert max(end for _, _, _, end in pieces_of(unigram, "\u1112\u1161\u11ab")) == 3


@pytest.mark.parametrize("kind", ["english", "unigram", "wordpiece", "chinese"])
def test_accents_and_case_are_folded(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    assert ids(tokenizer, "Une ÉCOLE naïve") == ids(tokenizer, "une ecole naive")


@pytest.mark.parametrize("space", ["  ", "\t", "\n", "\r\n", "\xa0", "\u3000", "\u2028", "\x0b", "\x1c", " \u2009 "])
@pytest.mark.parametrize("kind", ["english", "unigram"])
def test_every_kind_of_white_space_is_one_space(kind: str, space: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    assert ids(tokenizer, f"{space}the{space}bridge{space}") == ids(tokenizer, "the bridge")


@pytest.mark.parametrize("kind", ["english", "unigram"])
def test_a_free_standing_accent_leaves_no_empty_token(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    assert ids(tokenizer, "´the ´bridge ´ old´") == ids(tokenizer, "the bridge old")


@pytest.mark.parametrize("kind", ["english", "unigram"])
def test_compatibility_forms_are_read_as_plain_letters(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    assert ids(tokenizer, "ﬁve Ｆｕｌｌ") == ids(tokenizer, "five full")


def test_user_symbols_are_never_joined_with_their_neighbours(english: Tokenizer) -> None:
    tokens = encode(english, "(well-known) £5.").tokens
    assert tokens == ["[CLS]", "▁", "(", "well", "-", "known", ")", "▁", "£", "5", ".", "[SEP]"]


def test_chinese_characters_are_cut_one_by_one(chinese: Tokenizer) -> None:
    assert encode(chinese, "中文abc").tokens == ["[CLS]", "中", "文", "abc", "[SEP]"]


def test_folding_maps_what_the_vocabulary_lacks_to_what_it_has(chinese_folding: Tokenizer) -> None:
    assert ids(chinese_folding, "“中”‘文’ＡＢＣ１２") == ids(chinese_folding, "\"中\"'文'ABC12")


def test_without_folding_curly_quotes_are_unknown(chinese: Tokenizer) -> None:
    assert encode(chinese, "“中”").ids[1] == chinese.unk_id


def test_folded_characters_keep_the_offsets_of_the_original(wordpiece: Tokenizer) -> None:
    text = "a…“B”—Ｆ"
    spans = [text[start:end] for _, _, start, end in pieces_of(wordpiece, text)]
    assert spans == ["a", "…", "…", "…", "“", "B", "”", "—", "Ｆ"]


PLAIN = st.text(st.sampled_from("abc XYZ0129.,-'\"()!?中文国，。、！《》éßñ"), max_size=40)


@given(text=PLAIN)
def test_folding_changes_nothing_in_text_without_such_characters(
    chinese: Tokenizer, chinese_folding: Tokenizer, text: str
) -> None:
    folded, plain = encode(chinese_folding, text), encode(chinese, text)
    assert folded == plain
    assert folded.offsets == plain.offsets
