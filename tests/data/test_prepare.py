"""Corpus to shards: the same bytes for any number of workers, parts and interruptions."""

from __future__ import annotations

import dataclasses
import os
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.data import executors as engines
from litebert.data import prepare
from litebert.data.corpus import ReadOptions
from litebert.data.encode import EncodingConfig, TextEncoder, is_chinese, read_dictionary, tokenizer_files
from litebert.data.prepare import CorpusConfig, SeenDocuments
from litebert.data.shard_merge import merge_shards
from litebert.data.shard_summary import describe_shards
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, WORD_START, ShardIndex, Shards, TokenStream
from litebert.errors import ConfigError, DataError, LitebertError
from litebert.tokenizer import Tokenizer, train_unigram, train_wordpiece
from tests.conftest import PROSE, peer

CHINESE = ["我爱北京天安门，天安门上太阳升。", "他们在图书馆学习中文。", "今天的天气很好，我们去公园。"]


def write_corpus(folder: Path, files: int = 3, documents: int = 40, seed: int = 0) -> tuple[Path, ...]:
    """Documents of two to five lines; some come twice."""
    rng = random.Random(seed)
    folder.mkdir(exist_ok=True)
    paths = []
    for number in range(files):
        texts = []
        for document in range(documents):
            lines = [" ".join(rng.sample(PROSE[:11], 2)) for _ in range(rng.randint(2, 5))]
            texts.append(f"Document {number} {document}.\n" + "\n".join(lines))
        texts += texts[:3]
        paths.append(folder / f"{number}.txt")
        paths[-1].write_text("\n\n".join(texts), encoding="utf-8")
    return tuple(paths)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    return write_corpus(tmp_path / "corpus")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "BATCH_CHARACTERS", 2_000)


def make(
    out: Path,
    tokenizer: Tokenizer,
    files: tuple[Path, ...],
    engine: Callable[[EncodingConfig], object] = engines.in_process,
    **settings: object,
) -> ShardIndex:
    corpus = CorpusConfig(files, **{"shard_tokens": 2_000, "held_out": 0.1} | settings)  # type: ignore[arg-type]
    return prepare.prepare(corpus, tokenizer, out, engine, ReadOptions())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def documents_in(shards: Shards, stream: TokenStream) -> list[str]:
    texts = []
    for ids, bits in zip(stream.ids, stream.bits, strict=True):
        starts = np.flatnonzero(bits & DOCUMENT_START)
        texts += [shards.tokenizer.decode(part.tolist()) for part in np.split(ids, starts[1:])]
    return texts


# --- what is in the shards --------------------------------------------------------------------------------------------


def test_every_document_is_there_once(tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...]) -> None:
    index = make(tmp_path / "out", tokenizer, files)
    shards = Shards(tmp_path / "out")
    shards.verify()
    found = documents_in(shards, shards.training) + documents_in(shards, shards.held_out)
    assert len(found) == len(set(found)) == index.documents == 120
    assert index.duplicates == 9
    assert index.held_out_documents == len(documents_in(shards, shards.held_out))
    assert 3 < index.held_out_documents < 30
    assert index.tokens == shards.training.tokens + shards.held_out.tokens
    texts = dict.fromkeys(text for path in files for text in path.read_text().split("\n\n"))
    assert index.text_bytes == sum(len(text.encode()) for text in texts)


def test_the_ids_are_those_of_the_sentences(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One here. Two there.\nThree (now).", encoding="utf-8")
    make(tmp_path / "out", tokenizer, (path,), held_out=0.0)
    shards = Shards(tmp_path / "out")
    wanted = tokenizer.encode_ids(["One here.", "Two there.", "Three (now)."])
    assert shards.training.ids[0].tolist() == [number for ids in wanted for number in ids]
    starts = np.flatnonzero(shards.training.bits[0] & SENTENCE_START).tolist()
    assert starts == np.cumsum([0, *map(len, wanted)])[:-1].tolist()
    first = shards.training.bits[0][0]
    assert first == DOCUMENT_START | SENTENCE_START | WORD_START


@pytest.mark.parametrize(("how", "sentences"), [("split", 3), ("lines", 2)])
def test_lines_can_be_the_sentences(tmp_path: Path, tokenizer: Tokenizer, how: str, sentences: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One here. Two there.\nThree now.", encoding="utf-8")
    assert make(tmp_path / "out", tokenizer, (path,), sentences=how).sentences == sentences


def test_held_out_documents_depend_on_their_content_alone(
    tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...]
) -> None:
    held_out = []
    for name, order in (("a", files), ("b", files[::-1]), ("c", files[1:])):
        make(tmp_path / name, tokenizer, order)
        shards = Shards(tmp_path / name)
        held_out.append(set(documents_in(shards, shards.held_out)))
    assert held_out[0] == held_out[1]
    assert held_out[2] < held_out[0]


@pytest.mark.parametrize("share", [0.0, 0.999999])
def test_there_is_always_something_to_train_on(tmp_path: Path, tokenizer: Tokenizer, share: float) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One here.", encoding="utf-8")
    index = make(tmp_path / "out", tokenizer, (path,), held_out=share)
    assert Shards(tmp_path / "out").training.tokens == index.tokens > 0
    assert index.held_out_documents == 0


def test_scrubbing_and_other_settings_reach_the_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "Write to a.b@example.org now."}', encoding="utf-8")
    make(tmp_path / "out", tokenizer, (path,), text_column="body", scrub=True)
    shards = Shards(tmp_path / "out")
    wanted = tokenizer.decode(tokenizer.encode_ids(["Write to [email] now."])[0])
    assert documents_in(shards, shards.training) == [wanted]
    assert shards.index.settings["scrub"] is True


# --- words ------------------------------------------------------------------------------------------------------------


def words_in(encoder: TextEncoder, text: str) -> list[str]:
    encoded = encoder([text])
    ids = np.frombuffer(encoded.ids, np.uint16)
    starts = np.flatnonzero(np.frombuffer(encoded.bits, np.uint8) & WORD_START)
    tokens = [encoder.tokenizer.token(number).removeprefix("##").replace("▁", "") for number in ids.tolist()]
    return [word for part in np.split(np.array(tokens, object), starts[1:]) if (word := "".join(part))]


@pytest.mark.parametrize("train", [train_wordpiece, train_unigram])
def test_jieba_says_where_chinese_words_start(train: Callable[..., Tokenizer]) -> None:
    jieba = peer("rjieba")
    files = tokenizer_files(train(CHINESE * 20, 80))
    encoder = TextEncoder(EncodingConfig(files, words="jieba"))
    for text in CHINESE:
        wanted = jieba.cut(text)
        found = words_in(encoder, text)
        if train is train_wordpiece:  # every character is a piece, so words come out whole
            assert found == wanted
        assert len(found) < len(
            words_in(TextEncoder(EncodingConfig(tokenizer_files(train_wordpiece(CHINESE * 20, 80)))), text)
        )
        edges = set(np.cumsum(list(map(len, wanted))).tolist())
        assert set(np.cumsum(list(map(len, found))).tolist()) <= edges | {len(text)}


def test_a_dictionary_teaches_jieba_words() -> None:
    peer("rjieba")
    files = tokenizer_files(train_wordpiece(CHINESE * 20, 80))
    assert "北京天安门" not in words_in(TextEncoder(EncodingConfig(files, words="jieba")), CHINESE[0])
    taught = TextEncoder(EncodingConfig(files, words="jieba", dictionary=("北京天安门",)))
    assert "北京天安门" in words_in(taught, CHINESE[0])


def test_words_beside_an_added_one_start_where_jieba_says() -> None:
    jieba = peer("rjieba")
    added = train_wordpiece(CHINESE * 20, 80).extended(["图书馆"])
    encoder = TextEncoder(EncodingConfig(tokenizer_files(added), words="jieba"))
    assert added.vocab_size - 1 in np.frombuffer(encoder([CHINESE[1]]).ids, np.uint16)
    assert words_in(encoder, CHINESE[1]) == jieba.cut(CHINESE[1])


def test_a_dictionary_is_read_as_jieba_writes_it(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("云计算 5 n\n\n创新办 3\n凱特琳\n", encoding="utf-8")
    assert read_dictionary([tmp_path / "d.txt"]) == ("云计算", "创新办", "凱特琳")
    with pytest.raises(ConfigError, match=r"nope\.txt: cannot be read .*--dictionary takes text files"):
        read_dictionary([tmp_path / "nope.txt"])


@pytest.mark.parametrize(
    ("texts", "rule"), [(CHINESE, "jieba"), (PROSE[:3], "pieces"), (["これはにほんごです。"], "pieces")]
)
def test_auto_looks_at_the_text(tmp_path: Path, tokenizer: Tokenizer, texts: list[str], rule: str) -> None:
    peer("rjieba")
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    assert make(tmp_path / "out", tokenizer, (tmp_path / "a.txt",), words="auto").settings["words"] == rule
    assert is_chinese(texts) == (rule == "jieba")


# --- duplicates -------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), max_size=12))
def test_what_was_seen_is_not_new(batches: list[list[int]]) -> None:
    seen, known = SeenDocuments(), set()
    for batch in batches:
        new = seen.add(np.array(batch, np.uint64)).tolist()
        for number, is_new in zip(batch, new, strict=True):
            assert is_new == (number not in known)
            known.add(number)


# --- the same bytes ---------------------------------------------------------------------------------------------------


def test_workers_change_no_byte(tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...]) -> None:
    make(tmp_path / "one", tokenizer, files)
    make(tmp_path / "two", tokenizer, files, partial(engines.process_pool, workers=2))
    assert content(tmp_path / "one") == content(tmp_path / "two")


class Killed(BaseException):
    """Not an Exception: nobody may tidy up after it."""


@pytest.mark.parametrize("batches", [1, 4, 9, 14])
def test_a_killed_run_continues_with_the_same_bytes(
    tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...], batches: int
) -> None:
    make(tmp_path / "whole", tokenizer, files)
    read: list[int] = []

    @engines.contextmanager
    def dying(config: EncodingConfig) -> Iterator[tuple[engines.Submit, int]]:
        with engines.in_process(config) as (submit, ahead):

            def count(documents: list[str]) -> engines.PendingResult:
                if len(read) == batches:
                    raise Killed
                read.append(len(documents))
                return submit(documents)

            yield count, ahead

    with pytest.raises(Killed):
        make(tmp_path / "killed", tokenizer, files, dying)
    assert (tmp_path / "killed" / "journal.json").exists() == (batches > 1)
    before = sum(read)
    read[:] = [-1] * 1000  # from here on it only counts
    make(tmp_path / "killed", tokenizer, files, dying)
    again = sum(count for count in read[1000:])
    assert again < 120 if batches > 1 else again == 120
    assert before + again >= 120
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


@pytest.fixture
def unfinished(tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose run was killed after a few shards."""
    with monkeypatch.context() as patch:
        save = prepare.Journal._save

        def stop(journal: prepare.Journal) -> None:
            save(journal)
            if journal.writer.finished_shards == 2:
                raise Killed

        patch.setattr(prepare.Journal, "_save", stop)
        with pytest.raises(Killed):
            make(tmp_path / "unfinished", tokenizer, files)
    return tmp_path / "unfinished"


@pytest.mark.parametrize(("change", "complaint"), [({"held_out": 0.2}, r"other held_out \(was 0.1, now 0.2\)"),
                                                   ({"sentences": "lines"}, "other sentences"),
                                                   ({"shard_tokens": 999}, "other shard_tokens")])  # fmt: skip
def test_other_settings_do_not_continue_a_run(
    unfinished: Path, tokenizer: Tokenizer, files: tuple[Path, ...], change: dict[str, object], complaint: str
) -> None:
    before = content(unfinished)
    with pytest.raises(ConfigError, match=complaint + ".*choose another --out, or delete the folder"):
        make(unfinished, tokenizer, files, **change)
    assert content(unfinished) == before


def test_changed_inputs_do_not_continue_a_run(unfinished: Path, tokenizer: Tokenizer, files: tuple[Path, ...]) -> None:
    files[0].write_text(files[0].read_text() + "More.")
    with pytest.raises(ConfigError, match="other inputs; repeat the earlier command"):
        make(unfinished, tokenizer, files)


def test_a_shard_that_is_gone_is_noticed(unfinished: Path, tokenizer: Tokenizer, files: tuple[Path, ...]) -> None:
    (unfinished / "shard-00001.bits").unlink()
    with pytest.raises(ConfigError, match=r"shard-00001\.bits is missing; delete the folder"):
        make(unfinished, tokenizer, files)


def test_a_file_that_changes_while_it_is_read_is_noticed(
    tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...]
) -> None:
    @engines.contextmanager
    def meddling(config: EncodingConfig) -> Iterator[tuple[engines.Submit, int]]:
        with files[0].open("a") as file:
            file.write("More.")
        with engines.in_process(config) as engine:
            yield engine

    with pytest.raises(DataError, match=r"0\.txt: changed while it was read; start again"):
        make(tmp_path / "out", tokenizer, files, meddling)
    assert not (tmp_path / "out").exists()


def test_a_worker_that_dies_gives_an_error_and_the_run_continues(
    tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engines, "_encode_in_worker", partial(os._exit))  # a worker that is asked to encode ends instead
        patch.setattr(engines, "_start_worker", _start_nothing)
        with pytest.raises(LitebertError, match="a worker process died, most likely for lack of memory"):
            make(tmp_path / "out", tokenizer, files, partial(engines.process_pool, workers=2))
    make(tmp_path / "out", tokenizer, files)
    assert Shards(tmp_path / "out").index.documents == 120


def _start_nothing(config: EncodingConfig) -> None:
    os._exit(1)


@pytest.mark.parametrize(
    ("module", "settings", "extra"),
    [
        ("sentencex", {}, "train"),
        ("rjieba", {"words": "jieba"}, "train"),
        ("opencc", {"chinese_script": "simplified"}, "chinese"),
    ],
)
def test_a_missing_library_is_named_before_any_work(
    tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, module: str,
    settings: dict[str, object], extra: str,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{module} is not installed .*pip install 'litebert\[{extra}\]'"):
        make(tmp_path / "out", tokenizer, files, partial(engines.process_pool, workers=2), **settings)
    assert not (tmp_path / "out").exists()


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_parts_together_hold_every_document(
    tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...], parts: int
) -> None:
    whole = make(tmp_path / "whole", tokenizer, files)
    folders = [tmp_path / f"part-{number}" for number in range(1, parts + 1)]
    for number, folder in enumerate(folders, start=1):
        make(folder, tokenizer, files, part=(number, parts))
    merged, notes = merge_shards(folders[::-1], tmp_path / "merged")
    shards = Shards(tmp_path / "merged")
    shards.verify()
    for kind in ("training", "held_out"):
        ours, theirs = (
            sorted(set(documents_in(made, getattr(made, kind)))) for made in (shards, Shards(tmp_path / "whole"))
        )
        assert ours == theirs
    across = merged.documents - whole.documents  # a duplicate may stand in another part than its first
    assert notes == ([f"{across:,} documents occur in more than one part; they were kept"] if across else [])
    assert merged.duplicates + across == whole.duplicates
    assert merged.settings["part"] == "1/1"
    again, _ = merge_shards(folders, tmp_path / "again")
    assert again == merged  # in whatever order they are given


def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...]
) -> None:
    make(tmp_path / "a", tokenizer, files, part=(1, 2))
    make(tmp_path / "b", tokenizer, files, part=(2, 2), scrub=True)
    make(tmp_path / "c", train_unigram(PROSE, 150), files, part=(2, 2))
    with pytest.raises(
        ConfigError, match=r"b was prepared with scrub=True, .*a with False; prepare all parts with the same settings"
    ):
        merge_shards([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"c has another tokenizer than .*a; prepare it again"):
        merge_shards([tmp_path / "a", tmp_path / "c"], tmp_path / "out")
    with pytest.raises(ConfigError, match="are both part 1; give every part once"):
        merge_shards([tmp_path / "a", tmp_path / "a"], tmp_path / "out")
    index, notes = merge_shards([tmp_path / "a"], tmp_path / "some")
    assert notes == ["parts 2 of 2 are missing"]
    assert index.settings["part"] == "all but [2] of 2"


# --- looking at them --------------------------------------------------------------------------------------------------


def test_shards_describe_themselves(tmp_path: Path, tokenizer: Tokenizer, files: tuple[Path, ...]) -> None:
    index = make(tmp_path / "out", tokenizer, files)
    lines = "\n".join(describe_shards(Shards(tmp_path / "out")))
    for figure in (index.documents, index.sentences, index.tokens, index.words, index.held_out_tokens):
        assert f"{figure:,}" in lines
    assert "9 duplicates dropped" in lines
    assert "‖ d" in lines  # a sentence that starts with a word
    assert "| the" in lines


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"part": (3, 2)}, "part 3/2: the number must lie between 1 and 2"),
        ({"held_out": 1.0}, "held_out=1.0 must be at least 0 and below 1"),
        ({"shard_tokens": 0}, "shard_tokens=0 must be at least 1"),
        ({"dictionary": ("a",), "words": "pieces"}, "--dictionary is for jieba"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        dataclasses.replace(CorpusConfig(()), **settings)  # type: ignore[arg-type]
