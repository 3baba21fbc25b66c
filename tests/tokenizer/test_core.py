"""Encoding, framing, saving and loading, and the errors on the way."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.tokenizer import Tokenizer, Truncation, train_unigram, train_wordpiece
from tests.conftest import PROSE

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "bridge", "##s", "Old", "old", "é", "e"]


@pytest.fixture(params=["unigram", "wordpiece"])
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer


def write_vocab(folder: Path, tokens: list[str] = VOCAB) -> Path:
    path = folder / "vocab.txt"
    path.write_bytes("".join(f"{token}\n" for token in tokens).encode())
    return path


def test_a_text_is_framed_by_cls_and_sep(trained: Tokenizer) -> None:
    encoding = trained.encode(["the old bridge"])[0]
    assert encoding.ids == [trained.cls_id, *trained.encode_ids(["the old bridge"])[0], trained.sep_id]
    assert set(encoding.type_ids) == {0}


def test_the_second_text_of_a_pair_and_its_sep_have_type_one(trained: Tokenizer) -> None:
    first, second = trained.encode_ids(["the old bridge", "a map"])
    encoding = trained.encode(["the old bridge"], ["a map"])[0]
    assert encoding.ids == [trained.cls_id, *first, trained.sep_id, *second, trained.sep_id]
    assert encoding.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert encoding.sequence_ids == [None, *[0] * len(first), None, *[1] * len(second), None]


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000"])
def test_a_text_without_words_is_only_its_frame(trained: Tokenizer, text: str) -> None:
    assert trained.encode([text])[0].ids == [trained.cls_id, trained.sep_id]
    assert trained.encode([text])[0].offsets == [(0, 0), (0, 0)]


def test_an_empty_pair_is_only_its_frame(trained: Tokenizer) -> None:
    encoding = trained.encode([""], [""])[0]
    assert encoding.ids == [trained.cls_id, trained.sep_id, trained.sep_id]
    assert encoding.type_ids == [0, 0, 1]


def test_an_empty_second_text_leaves_the_first_as_it_is(trained: Tokenizer) -> None:
    assert trained.encode(["a map"], [""])[0].ids == [*trained.encode(["a map"])[0].ids, trained.sep_id]


def test_no_texts_give_no_encodings(trained: Tokenizer) -> None:
    assert trained.encode([]) == []
    assert trained.encode([], []) == []


def test_mask_in_text_is_one_token_and_takes_the_space_before_it(trained: Tokenizer) -> None:
    encoding = trained.encode(["the [MASK] bridge"])[0]
    the, bridge = trained.encode_ids(["the", "bridge"])
    assert encoding.ids == [trained.cls_id, *the, trained.mask_id, *bridge, trained.sep_id]
    start, end = encoding.offsets[encoding.ids.index(trained.mask_id)]
    assert "the [MASK] bridge"[start:end] == "[MASK]"


def test_mask_without_a_space_before_it_gives_the_same_ids(trained: Tokenizer) -> None:
    assert trained.encode(["the[MASK] bridge"])[0].ids == trained.encode(["the [MASK] bridge"])[0].ids


def test_specials_of_a_trained_vocabulary_have_ids_zero_to_four(trained: Tokenizer) -> None:
    assert [trained.token(number) for number in range(5)] == list(trained.specials.values())
    numbers = [trained.pad_id, trained.unk_id, trained.cls_id, trained.sep_id, trained.mask_id]
    assert numbers == [0, 1, 2, 3, 4]


def test_specials_of_the_english_vocabulary_are_alberts(english: Tokenizer) -> None:
    assert [english.token(number) for number in range(5)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert english.vocab_size == 30_000


def test_the_chinese_vocabulary_keeps_the_line_numbers_of_its_file(chinese: Tokenizer, data: Path) -> None:
    lines = (data / "vocab/chinese/vocab.txt").read_bytes().decode().split("\n")
    assert chinese.vocab_size == 21_128
    assert [chinese.token(number) for number in range(chinese.vocab_size)] == lines[: chinese.vocab_size]


def test_a_vocabulary_entry_may_be_a_unicode_line_separator(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab(write_vocab(tmp_path, [*VOCAB, "\u2028", "\x85", "last"]))
    assert tokenizer.token(len(VOCAB) + 2) == "last"


def test_a_vocabulary_with_windows_line_ends_is_read_the_same(tmp_path: Path) -> None:
    path = write_vocab(tmp_path)
    plain = Tokenizer.from_vocab(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert Tokenizer.from_vocab(path).fingerprint == plain.fingerprint


def test_decode_gives_lower_case_text_back(trained: Tokenizer) -> None:
    text = "the library was closed on mondays"
    assert trained.decode(trained.encode([text])[0].ids) == text


def test_decode_can_show_the_frame(trained: Tokenizer) -> None:
    shown = trained.decode(trained.encode(["the map"])[0].ids, skip_special=False)
    assert shown.startswith("[CLS]")
    assert shown.endswith("[SEP]")


def test_an_id_outside_the_vocabulary_has_no_token(trained: Tokenizer) -> None:
    with pytest.raises(DataError, match=f"id 999999 is not in the vocabulary of {trained.vocab_size} tokens"):
        trained.token(999_999)


@pytest.mark.parametrize("truncation", ["longest_first", "only_first", "only_second"])
def test_truncation_cuts_the_text_it_names(trained: Tokenizer, truncation: Truncation) -> None:
    first, second = " ".join(PROSE[:4]), " ".join(PROSE[4:7])
    full = trained.encode([first], [second])[0]
    cut = trained.encode([first], [second], max_length=len(full) - 10, truncation=truncation)[0]
    lost = [full.sequence_ids.count(sequence) - cut.sequence_ids.count(sequence) for sequence in (0, 1)]
    assert len(cut) == len(full) - 10
    assert lost == ([0, 10] if truncation == "only_second" else [10, 0])  # the first is the longer one


def test_truncation_leaves_short_texts_alone(trained: Tokenizer) -> None:
    assert trained.encode(["the map"], max_length=64) == trained.encode(["the map"])


def test_truncated_encodings_keep_their_offsets(trained: Tokenizer) -> None:
    full, cut = trained.encode(PROSE[:1])[0], trained.encode(PROSE[:1], max_length=9)[0]
    assert cut.offsets[:8] == full.offsets[:8]
    assert cut.offsets[8] == (0, 0)


def test_too_small_a_max_length_is_refused(trained: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="max_length=7 leaves no room for text; it must be at least 8"):
        trained.encode(["the map"], max_length=7)


def test_truncation_that_cannot_reach_the_length_is_explained(trained: Tokenizer) -> None:
    message = "truncation='only_first' cannot bring every text to max_length=8 .*; use longest_first or a larger"
    with pytest.raises(DataError, match=message):
        trained.encode(["a map"], [PROSE[0]], max_length=8, truncation="only_first")


def test_threads_with_different_lengths_do_not_disturb_each_other(trained: Tokenizer) -> None:
    texts = [" ".join(PROSE[:6])] * 3
    full = trained.encode(texts)[0].ids
    lengths = [8 + number % 24 for number in range(240)]  # more lengths than the cache of truncating copies holds

    def encode(length: int) -> list[list[int]]:
        return [encoding.ids for encoding in trained.encode(texts, max_length=length)]

    with ThreadPoolExecutor(8) as pool:
        for length, encoded in zip(lengths, pool.map(encode, lengths), strict=True):
            assert encoded == [[*full[: length - 1], trained.sep_id]] * 3


def test_a_single_string_is_refused_with_the_remedy(trained: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"takes a list of texts; wrap a single one: encode\(\[text\]\)"):
        trained.encode("the map")


def test_a_single_string_as_second_texts_is_refused(trained: Tokenizer) -> None:
    with pytest.raises(DataError, match="takes a list of texts"):
        trained.encode(["the", "map"], "ab")


def test_texts_without_partners_are_refused(trained: Tokenizer) -> None:
    with pytest.raises(DataError, match="2 texts and 1 second texts; every text needs exactly one"):
        trained.encode(["the", "map"], ["a"])


def test_a_value_that_is_no_text_is_named(trained: Tokenizer) -> None:
    with pytest.raises(DataError, match="text 1 is None, a NoneType; every text must be a string"):
        trained.encode(["the map", None])  # type: ignore[list-item]


def test_half_a_surrogate_pair_is_refused_with_the_remedy(trained: Tokenizer) -> None:
    with pytest.raises(DataError, match="a lone surrogate, which is not a character; clean it with"):
        trained.encode(["the \ud800 map"])


def test_unknown_language_warns_once_and_names_the_remedy(data: Path) -> None:
    tokenizer = Tokenizer.from_spiece(data / "vocab/english/spiece.model")
    text = "这是一个中文句子"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer.encode([text])
        tokenizer.encode([text, text])
    assert len(caught) == 1
    message = str(caught[0].message)
    assert f"8 of 8 characters of {text!r} are unknown to this vocabulary of 30000" in message
    assert "use a model of the text's language, or train a vocabulary with: litebert tokenizer" in message
    assert caught[0].filename == __file__  # the caller's line, not ours


def test_clean_text_does_not_warn(data: Path) -> None:
    tokenizer = Tokenizer.from_spiece(data / "vocab/english/spiece.model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.encode(PROSE)


def test_curly_quotes_alone_get_the_remedy_that_fits_them(data: Path) -> None:
    chinese = Tokenizer.from_vocab(data / "vocab" / "chinese" / "vocab.txt")
    with pytest.warns(UserWarning, match="import the vocabulary with fold_punctuation"):
        chinese.encode(["他说：“好的。”"])


@pytest.mark.parametrize(("text", "said"), [("這個軸承壞了", True), ("этот мост", False)])
def test_where_chinese_characters_are_unknown_traditional_ones_may_be_the_cause(text: str, said: bool) -> None:
    simplified = train_unigram([*PROSE, *"这个轴承坏了"], 190)
    with pytest.warns(UserWarning, match="use a model of the text's language") as caught:
        simplified.encode([text])
    told = "if they are traditional characters, convert them to simplified (OpenCC's t2s); else use a model"
    assert (told in str(caught[0].message)) == said


def test_a_few_unknown_characters_in_a_long_text_do_not_warn(data: Path) -> None:
    tokenizer = Tokenizer.from_spiece(data / "vocab/english/spiece.model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoding = tokenizer.encode([" ".join(PROSE[:10]) + " 中"])[0]
    assert tokenizer.unk_id in encoding.ids


@pytest.mark.parametrize("kind", ["english", "chinese", "unigram", "wordpiece_keeping"])
def test_ids_and_fingerprint_survive_saving_and_loading(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.specials == tokenizer.specials
    assert loaded.spiece == tokenizer.spiece
    assert loaded.encode(PROSE) == tokenizer.encode(PROSE)


def test_different_vocabularies_have_different_fingerprints() -> None:
    made = [train_unigram(PROSE, size) for size in (150, 170)] + [train_wordpiece(PROSE, size) for size in (150, 170)]
    assert len({tokenizer.fingerprint for tokenizer in made}) == 4


def test_the_clean_up_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = write_vocab(tmp_path)
    assert Tokenizer.from_vocab(path).fingerprint != Tokenizer.from_vocab(path, lowercase=False).fingerprint


def test_padding_and_truncation_saved_by_others_are_ignored(tmp_path: Path, trained: Tokenizer) -> None:
    trained.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        **{"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer.load(tmp_path).encode(PROSE) == trained.encode(PROSE)


def test_a_single_file_can_be_loaded(tmp_path: Path, trained: Tokenizer) -> None:
    trained.save(tmp_path)
    assert Tokenizer.load(tmp_path / "tokenizer.json").fingerprint == trained.fingerprint


def test_saved_settings_carry_the_maximum_length(tmp_path: Path, trained: Tokenizer) -> None:
    trained.save(tmp_path, max_length=128)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 128


def test_case_and_accent_settings_beside_a_vocab_file_are_followed(tmp_path: Path) -> None:
    write_vocab(tmp_path)
    assert Tokenizer.load(tmp_path).encode(["Old é"])[0].tokens[1:-1] == ["old", "e"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "strip_accents": false}')
    assert Tokenizer.load(tmp_path).encode(["Old é"])[0].tokens[1:-1] == ["Old", "é"]


def test_special_tokens_wrapped_in_their_flags_are_read(tmp_path: Path, trained: Tokenizer) -> None:
    trained.save(tmp_path)
    wrapped = {f"{role}_token": {"content": token, "lstrip": False} for role, token in trained.specials.items()}
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(wrapped))
    assert Tokenizer.load(tmp_path).specials == trained.specials


def test_special_tokens_are_recognised_without_settings(tmp_path: Path, trained: Tokenizer) -> None:
    trained.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).specials == trained.specials


def test_a_special_token_that_the_vocabulary_lacks_is_named(tmp_path: Path, trained: Tokenizer) -> None:
    trained.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<blank>"}')
    with pytest.raises(
        CheckpointError, match=r"lacks '<blank>', its mask token; .* name them in tokenizer_config.json"
    ):
        Tokenizer.load(tmp_path)


def test_a_vocab_file_without_specials_is_refused(tmp_path: Path) -> None:
    write_vocab(tmp_path, ["[PAD]", "[UNK]", "the", "bridge"])
    with pytest.raises(
        CheckpointError, match=r"vocab.txt: lacks \[CLS\], \[SEP\], \[MASK\]; a vocab.txt has one token"
    ):
        Tokenizer.load(tmp_path)


def test_a_vocab_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\n\xd6\xd0\n")
    with pytest.raises(CheckpointError, match=r"vocab.txt: byte 12 is not UTF-8; a vocab.txt is UTF-8, one token per"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b"not json", b"\xff\xfe", b'{"model": {"type": "None"}}'])
def test_a_tokenizer_json_that_is_not_one_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: not a tokenizer.json \(.*\); save the tokenizer again"):
        Tokenizer.load(tmp_path)


def test_damaged_settings_are_refused(tmp_path: Path, trained: Tokenizer) -> None:
    trained.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: not JSON .* download or save it again"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_a_folder_without_a_tokenizer_is_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    message = f"{name}: holds none of tokenizer.json, spiece.model, vocab.txt; train one with: litebert tokenizer --out"
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(tmp_path / name)


def test_an_absent_vocabulary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent.txt: cannot be read .* check the path and its permissions"):
        Tokenizer.from_vocab(tmp_path / "absent.txt")


def test_a_spiece_folder_that_keeps_case_and_accents_is_read_so(data: Path, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes((data / "vocab" / "english" / "spiece.model").read_bytes())
    folded = Tokenizer.load(tmp_path).encode(["Café"])[0]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
    kept = Tokenizer.load(tmp_path).encode(["Café"])[0]
    assert "".join(folded.tokens[1:-1]) == "▁cafe"
    assert "".join(kept.tokens[1:-1]) not in ("▁cafe", "▁Cafe", "▁café")  # upper case is unknown to this vocabulary


def test_a_vocabulary_that_repeats_a_token_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="line 8: repeats line 6"):
        Tokenizer.from_vocab(path)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_a_vocabulary_grows_at_its_end(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    old = tokenizer if kind == "unigram" else train_wordpiece(PROSE, 200)
    new = old.extended(["albertine", "quokka", "quokka"])
    assert new.vocab_size == old.vocab_size + 2
    assert [new.token(number) for number in range(old.vocab_size)] == [old.token(n) for n in range(old.vocab_size)]
    plain, grown = old.encode_ids(["the rain came"])[0], new.encode_ids(["the rain came", "the Quokka came"])
    assert grown[0] == plain
    assert old.vocab_size + 1 in grown[1]
    assert len(grown[1]) < len(old.encode_ids(["the Quokka came"])[0])
    assert "quokka" in new.decode(grown[1]).lower()
    assert old.vocab_size not in new.encode_ids(["albertines"])[0]  # whole words only
    new.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == new.fingerprint != old.fingerprint
    assert again.added == {old.vocab_size, old.vocab_size + 1}


@pytest.mark.filterwarnings("ignore:.*unknown to this vocabulary")
@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("轴承", "他发现轴承磨损得厉害"),
        ("ベアリング", "このベアリングは古い"),
        ("กขค", "มากขคใหม"),
        ("T恤", "我买了T恤衫"),
    ],
)
def test_added_words_of_scripts_without_spaces_are_found_inside_text(kind: str, word: str, text: str) -> None:
    prose = [*PROSE, *text]
    old = train_unigram(prose, 190) if kind == "unigram" else train_wordpiece(prose, 190)
    new = old.extended([word, "quokka"])
    encoding = new.encode([text])[0]
    (place,) = (place for place, number in enumerate(encoding.ids) if number == old.vocab_size)
    start, end = encoding.offsets[place]
    assert text[start:end] == word
    assert not encoding.tokens[place + 1].startswith("▁")  # no space where the text has none
    assert old.vocab_size + 1 not in new.encode_ids([f"the quokkas {text}"])[0]  # whole words only, as before


@pytest.mark.filterwarnings("ignore:.*unknown to this vocabulary")
@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_added_words_leave_other_text_as_it_was(kind: str) -> None:
    old = train_unigram(PROSE, 190) if kind == "unigram" else train_wordpiece(PROSE, 190)
    new = old.extended(["轴承"])
    for text in ("the [MASK] cat", "[MASK] the cat", " the cat", "\n the cat", "\ufeffthe cat", "the  cat ", " ", ""):
        assert new.encode([text])[0].tokens == old.encode([text])[0].tokens, repr(text)
    assert new.encode(["the cat"], [" the cat"])[0].tokens == old.encode(["the cat"], [" the cat"])[0].tokens
    (around,) = new.encode(["the 轴承 cat"])
    assert around.tokens[-2:-1] == old.encode(["the cat"])[0].tokens[-2:-1]
