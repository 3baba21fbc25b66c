"""A tokenized corpus on disk: nothing is lost, and the bits stand where they belong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.shards import (
    DOCUMENT_START,
    SENTENCE_START,
    WORD_START,
    ShardIndex,
    Shards,
    ShardWriter,
    starts_word,
)
from litebert.errors import DataError
from litebert.tokenizer import Tokenizer, train_unigram, train_wordpiece
from tests.conftest import PROSE

Documents = list[list[list[int]]]
Train = Callable[..., Tokenizer]


def write(folder: Path, tokenizer: Tokenizer, documents: Documents, shard_tokens: int = 1 << 26) -> ShardIndex:
    with ShardWriter(folder, tokenizer, shard_tokens) as writer:
        writer.add(documents)
        return writer.finish()


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A small finished folder of three shards."""
    write(tmp_path / "shards", tokenizer, [[[5, 6, 7], [8, 9]], [[10, 11, 12, 13]], [[14], [15, 16]]], shard_tokens=4)
    return tmp_path / "shards"


@given(
    documents=st.lists(st.lists(st.lists(st.integers(5, 120), max_size=6), max_size=4), min_size=1),
    shard_tokens=st.integers(1, 40),
)
def test_no_token_is_lost_and_every_bit_stands_where_it_belongs(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, documents: Documents, shard_tokens: int
) -> None:
    documents.append([[5, 6]])  # there must be some text
    folder = tmp_path_factory.mktemp("shards")
    index = write(folder, tokenizer, documents, shard_tokens)
    shards = Shards(folder)

    whole = [[sentence for sentence in document if sentence] for document in documents]
    sentences = [sentence for document in whole for sentence in document]
    assert np.concatenate(shards.training.ids).tolist() == [number for sentence in sentences for number in sentence]
    assert index.tokens == sum(map(len, sentences))
    assert index.documents == sum(map(bool, whole))

    bits = np.concatenate(shards.training.bits)
    sentence_starts = np.cumsum([0, *map(len, sentences)])[:-1]
    lengths = [sum(map(len, document)) for document in whole if document]
    assert np.flatnonzero(bits & SENTENCE_START).tolist() == sentence_starts.tolist()
    assert np.flatnonzero(bits & DOCUMENT_START).tolist() == np.cumsum([0, *lengths])[:-1].tolist()


def test_text_comes_back_from_its_shards(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path, tokenizer, [tokenizer.encode_ids(PROSE[:3])])
    shards = Shards(tmp_path)
    assert shards.tokenizer.decode(shards.training.ids[0].tolist()) == tokenizer.decode(
        [number for ids in tokenizer.encode_ids(PROSE[:3]) for number in ids]
    )


def test_small_shards_hold_whole_documents(folder: Path) -> None:
    shards = Shards(folder)
    assert [ids.tolist() for ids in shards.training.ids] == [[5, 6, 7, 8, 9], [10, 11, 12, 13], [14, 15, 16]]
    assert all(bits[0] & DOCUMENT_START for bits in shards.training.bits)


@pytest.mark.parametrize(("extra", "dtype"), [(0, "uint16"), (1, "uint32")])
def test_a_vocabulary_beyond_sixteen_bits_gets_wider_ids(tmp_path: Path, extra: int, dtype: str) -> None:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    size = (1 << 16) + extra
    words = [f"w{number}" for number in range(size - len(specials))]
    (tmp_path / "vocab.txt").write_text("\n".join(specials + words), encoding="utf-8")
    tokenizer = Tokenizer.from_vocab(tmp_path / "vocab.txt")
    documents = [[[size - 1, 5, size - 2]]]
    assert write(tmp_path / "shards", tokenizer, documents).dtype == dtype
    assert Shards(tmp_path / "shards").training.ids[0].tolist() == documents[0][0]


def broken_off() -> Iterator[list[list[int]]]:
    yield [[5, 6]]
    yield [[7]]
    raise DataError("the third document cannot be read")


def test_an_error_while_writing_leaves_nothing_behind(tmp_path: Path, tokenizer: Tokenizer) -> None:
    writer = ShardWriter(tmp_path / "shards", tokenizer, shard_tokens=1)
    with pytest.raises(DataError, match="third document"), writer:
        writer.add(broken_off())
    assert writer.counts.tokens == 3  # both were written before
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_writing_leaves_other_files_alone(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    writer = ShardWriter(tmp_path, tokenizer, shard_tokens=1)
    with pytest.raises(DataError, match="third document"), writer:
        writer.add(broken_off())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_corpus_without_tokens_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="hold no text"):
        write(tmp_path / "shards", tokenizer, [[[]], []])


def test_a_folder_without_its_index_is_unfinished(folder: Path) -> None:
    (folder / "index.json").unlink()
    with pytest.raises(DataError, match=r"has no index\.json.*make one with: litebert prepare"):
        Shards(folder)


@pytest.mark.parametrize("name", ["shard-00001.ids", "shard-00001.bits"])
def test_a_missing_shard_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: named in index\.json but not there; run litebert prepare again"):
        Shards(folder)


@pytest.mark.parametrize("size", [0, 3, 4])
def test_a_shard_cut_short_is_refused(folder: Path, size: int) -> None:
    os.truncate(folder / "shard-00001.ids", size)
    with pytest.raises(DataError, match=r"run litebert prepare again"):
        Shards(folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 1}, "format 1, this version reads 2"),
        ({"dtype": "int7"}, "int7"),
        ({"sha256": None}, "not an index of shards"),
        ({"colour": "red"}, "colour"),
        ({"sha256": {"../shard-00000.ids": ""}}, "not there"),
    ],
)
def test_an_index_that_is_not_ours_is_refused(folder: Path, change: dict[str, object], complaint: str) -> None:
    index = json.loads((folder / "index.json").read_text()) | change
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=complaint):
        Shards(folder)


def test_another_tokenizer_than_the_shards_own_is_refused(folder: Path) -> None:
    train_unigram(PROSE, 150).save(folder)
    with pytest.raises(DataError, match=r"tokenizer\.json is not the one the shards were made with"):
        _ = Shards(folder).tokenizer


SPACED = {
    "english": "the lighthouse keeper wrote down the weather every morning",
    "cyrillic": "смотритель маяка каждое утро записывал погоду",
    "greek": "ο φαροφύλακας έγραφε τον καιρό κάθε πρωί πριν από το πρωινό του",
    "hindi": "हिन्दी में लिखा हुआ वाक्य दिल्ली में बारिश हुई",
}


@pytest.mark.parametrize("train", [train_unigram, train_wordpiece], ids=["unigram", "wordpiece"])
@pytest.mark.parametrize("language", SPACED)
def test_in_scripts_with_spaces_as_many_words_start_as_there_are(language: str, train: Train) -> None:
    text = SPACED[language]
    tokenizer = train([text] * 20, 64)
    ids = tokenizer.encode_ids([text])[0]
    assert tokenizer.unk_id not in ids
    assert len(ids) > len(text.split())  # or else there was nothing to tell apart
    assert starts_word(tokenizer)[ids].sum() == len(text.split())


@pytest.mark.parametrize("train", [train_unigram, train_wordpiece], ids=["unigram", "wordpiece"])
def test_in_chinese_every_piece_starts_a_word(train: Train) -> None:
    text = "我爱北京天安门上太阳升"
    tokenizer = train([text] * 20, 64)
    ids = tokenizer.encode_ids([text])[0]
    assert len(ids) > 1
    assert starts_word(tokenizer)[ids].all()


def test_punctuation_starts_a_word_and_ends_the_one_before(tokenizer: Tokenizer) -> None:
    starts = starts_word(tokenizer)
    ids = tokenizer.encode_ids(["feet (once)."])[0]
    for number in ids:
        if tokenizer.token(number) in ("(", ")", "."):
            assert starts[number]
    assert {"(", ")", "."} <= {tokenizer.token(number) for number in ids}


def test_the_first_token_of_a_sentence_starts_a_word_whatever_it_is(tmp_path: Path, tokenizer: Tokenizer) -> None:
    continuing = int(np.flatnonzero(~starts_word(tokenizer))[0])
    write(tmp_path, tokenizer, [[[continuing, continuing], [continuing]]])
    assert (Shards(tmp_path).training.bits[0] & WORD_START).astype(bool).tolist() == [True, False, True]
