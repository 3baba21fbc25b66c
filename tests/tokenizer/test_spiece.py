"""Reading SentencePiece files: right on good ones, one kind of error on all others."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.errors import CheckpointError
from litebert.tokenizer import Tokenizer
from litebert.tokenizer.pipelines import UNIGRAM_SPECIALS
from litebert.tokenizer.spiece import USER_DEFINED, parse_spiece
from tests.conftest import PROSE, peer

VARINT, EIGHT_BYTES, SIZED, FOUR_BYTES = 0, 1, 2, 5


def varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def field(number: int, wire: int, value: bytes) -> bytes:
    return varint(number << 3 | wire) + (varint(len(value)) if wire == SIZED else b"") + value


def piece(text: str, score: float = -1.0, kind: int = 1) -> bytes:
    parts = field(1, SIZED, text.encode()) + field(2, FOUR_BYTES, struct.pack("<f", score))
    return field(1, SIZED, parts + field(3, VARINT, varint(kind)))


def trained_with(algorithm: int) -> bytes:
    return field(2, SIZED, field(3, VARINT, varint(algorithm)))


def rules(charsmap: bytes = b"") -> bytes:
    return field(3, SIZED, field(2, SIZED, charsmap))


UNKNOWN, CONTROL = 2, 3  # other kinds of piece, as sentencepiece numbers them
SPECIALS = b"".join(piece(token, 0.0, CONTROL) for token in UNIGRAM_SPECIALS.values())
GOOD = SPECIALS + piece("▁a", -2.5) + piece("(", 0.0, USER_DEFINED) + trained_with(1) + rules()


def written(folder: Path, content: bytes) -> Path:
    path = folder / "spiece.model"
    path.write_bytes(content)
    return path


def test_pieces_scores_and_kinds_are_read() -> None:
    model = parse_spiece(GOOD, "here")
    assert model.pieces == [*UNIGRAM_SPECIALS.values(), "▁a", "("]
    assert model.scores == [0.0] * 5 + [-2.5, 0.0]
    assert model.pieces_of_type(USER_DEFINED) == ["("]
    assert model.charsmap == b""


def test_alberts_own_file_is_read_as_sentencepiece_reads_it(data: Path) -> None:
    path = data / "vocab/english/spiece.model"
    processor = peer("sentencepiece").SentencePieceProcessor(model_file=str(path))
    model = parse_spiece(path.read_bytes(), str(path))
    numbers = range(processor.get_piece_size())
    assert model.pieces == [processor.id_to_piece(number) for number in numbers]
    assert model.scores == [processor.get_score(number) for number in numbers]
    assert model.pieces_of_type(UNKNOWN) == [piece for n, piece in enumerate(model.pieces) if processor.is_unknown(n)]
    assert model.pieces_of_type(CONTROL) == [piece for n, piece in enumerate(model.pieces) if processor.is_control(n)]


def test_a_field_of_a_newer_format_is_skipped() -> None:
    newer = field(9, VARINT, varint(300)) + field(10, EIGHT_BYTES, bytes(8)) + field(11, SIZED, b"new")
    assert parse_spiece(GOOD + newer, "here") == parse_spiece(GOOD, "here")


def test_a_model_without_rules_reads_text_all_the_same(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_spiece(written(tmp_path, GOOD))
    assert tokenizer.encode(["A ("])[0].tokens == ["[CLS]", "▁a", "▁", "(", "[SEP]"]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"spiece.model: holds no pieces, so it is not a SentencePiece model;"):
        Tokenizer.from_spiece(written(tmp_path, b""))


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"spiece.model: not a SentencePiece model or damaged \(.*\); download or"
    ):
        Tokenizer.from_spiece(written(tmp_path, b"PK\x03\x04 this is a zip archive, not a vocabulary"))


@pytest.mark.parametrize("cut", [1, 3, len(SPECIALS) - 2, len(GOOD) - 1])
def test_a_file_cut_within_a_field_is_refused(tmp_path: Path, cut: int) -> None:
    with pytest.raises(CheckpointError, match=r"spiece.model: not a SentencePiece model or damaged"):
        Tokenizer.from_spiece(written(tmp_path, GOOD[:cut]))


def test_a_file_cut_between_pieces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="truncated after 5 pieces, without normalisation rules; download it again"
    ):
        Tokenizer.from_spiece(written(tmp_path, SPECIALS))


def test_another_models_vocabulary_is_refused(tmp_path: Path) -> None:
    foreign = piece("<unk>", 0.0, UNKNOWN) + piece("<s>", 0.0, CONTROL) + piece("▁a") + trained_with(1) + rules()
    message = r"lacks <pad>, \[CLS\], \[SEP\], \[MASK\], which ALBERT's vocabularies have; .* litebert tokenizer"
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_spiece(written(tmp_path, foreign))


def test_a_model_that_is_not_unigram_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"segmentation algorithm 2 is not unigram \(1\), ALBERT's; train a"):
        Tokenizer.from_spiece(written(tmp_path, SPECIALS + trained_with(2) + rules()))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_refused(tmp_path: Path, score: float) -> None:
    with pytest.raises(CheckpointError, match=f"damaged .piece 5 scores {score}"):
        Tokenizer.from_spiece(written(tmp_path, SPECIALS + piece("▁a", score) + rules()))


def test_a_piece_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    damaged = field(1, SIZED, field(1, SIZED, b"\xff\xfe"))
    with pytest.raises(CheckpointError, match=r"damaged .*utf-8.* codec can't decode"):
        Tokenizer.from_spiece(written(tmp_path, SPECIALS + damaged + rules()))


@pytest.mark.parametrize("charsmap", [b"x", b"garbage bytes", b"\xff\xff\xff\x7fabcd"])
def test_damaged_rules_are_refused(tmp_path: Path, charsmap: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"its normalisation rules are damaged .*; download or train it again"):
        Tokenizer.from_spiece(written(tmp_path, SPECIALS + piece("▁a") + rules(charsmap)))


def test_rules_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    wrong = field(3, SIZED, field(2, VARINT, varint(7)))
    with pytest.raises(CheckpointError, match="not a SentencePiece model or damaged"):
        Tokenizer.from_spiece(written(tmp_path, SPECIALS + wrong))


def parses_or_is_refused(content: bytes) -> None:
    with suppress(CheckpointError):  # anything else fails the test
        parse_spiece(content, "here")


@given(content=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_our_error(content: bytes) -> None:
    parses_or_is_refused(content)


@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_raises_nothing_but_our_error(at: int, byte: int) -> None:
    parses_or_is_refused(GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])


@given(fields=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 2, 3, 5]), st.binary(max_size=12))))
def test_fields_of_any_type_raise_nothing_but_our_error(fields: list[tuple[int, int, bytes]]) -> None:
    parses_or_is_refused(b"".join(field(*one) for one in fields))
    parses_or_is_refused(b"".join(field(1, SIZED, field(*one)) for one in fields))


@pytest.mark.parametrize("cut", range(0, len(GOOD)))
def test_no_truncated_file_is_taken_for_a_whole_one(cut: int) -> None:
    with pytest.raises(CheckpointError):
        parse_spiece(GOOD[:cut], "here")


@given(share=st.floats(0, 1, exclude_max=True))
def test_no_truncated_trained_file_is_taken_for_a_whole_one(tokenizer: Tokenizer, share: float) -> None:
    assert tokenizer.spiece is not None
    whole = parse_spiece(tokenizer.spiece, "here")
    try:
        cut = parse_spiece(tokenizer.spiece[: int(share * len(tokenizer.spiece))], "here")
    except CheckpointError:
        return
    assert cut == whole  # only what follows the rules, and is not needed, was cut


def test_a_trained_file_imports_with_the_same_pieces(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert tokenizer.spiece is not None
    imported = Tokenizer.from_spiece(written(tmp_path, tokenizer.spiece))
    assert imported.encode(PROSE) == tokenizer.encode(PROSE)
