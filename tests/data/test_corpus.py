"""Raw text as documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from litebert.data import corpus
from litebert.data.corpus import (
    MAX_LINE_BYTES,
    ReadOptions,
    detect_encoding,
    find_files,
    read_documents,
    read_lines,
    total_size,
)
from litebert.errors import ConfigError, DataError
from tests.conftest import PROSE, peer
from tests.data.test_tables import COMPRESSORS, write

TEXT = "one a\none b\n\ntwo a\n"
DOCUMENTS = ["one a\none b", "two a"]


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    assert list(read_documents([write(tmp_path / "a.txt", TEXT)])) == DOCUMENTS


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nope\.txt: no such file; check the path"):
        list(read_lines([tmp_path / "nope.txt"]))


def test_a_file_end_ends_a_document(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.txt", "one a\none b"), write(tmp_path / "b.txt", "two a")]
    assert list(read_documents(paths)) == DOCUMENTS


def test_several_blank_lines_and_lines_of_spaces_end_one_document(tmp_path: Path) -> None:
    assert list(read_documents([write(tmp_path / "a.txt", "\n\none a\n  one b  \n \t\n\n\ntwo a\n\n")])) == DOCUMENTS


@pytest.mark.parametrize("content", [TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT])
def test_windows_line_ends_and_a_byte_order_mark_are_not_text(tmp_path: Path, content: str) -> None:
    assert list(read_documents([write(tmp_path / "a.txt", content)])) == DOCUMENTS


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_text_is_read_as_it_is(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.txt{suffix}", COMPRESSORS[suffix](TEXT.encode()))
    assert list(read_documents([path])) == DOCUMENTS


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_several_compressed_pieces_laid_end_to_end_are_one_text(tmp_path: Path, suffix: str) -> None:
    pieces = [COMPRESSORS[suffix](part.encode()) for part in ("one a\none b\n", "\ntwo a\n")]
    assert list(read_documents([write(tmp_path / f"a.txt{suffix}", b"".join(pieces))])) == DOCUMENTS


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_text_cut_short_in_its_compression_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESSORS[suffix]("".join(f"line {number}\n" for number in range(60_000)).encode())
    path = write(tmp_path / f"a.txt{suffix}", whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.txt.*, after line \d+: cannot be read .*the file is damaged"):
        list(read_lines([path]))


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_advance_hears_of_every_byte_on_disk(tmp_path: Path, suffix: str) -> None:
    content = "\n\n".join(PROSE).encode()
    path = write(tmp_path / f"a.txt{suffix}", COMPRESSORS[suffix](content) if suffix else content)
    heard: list[int] = []
    list(read_documents([path, path], ReadOptions(advance=heard.append)))
    assert sum(heard) == total_size([path, path]) == 2 * path.stat().st_size


@given(documents=st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\x00"), min_size=1))))
def test_no_line_is_lost(tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_bytes("\n\n".join("\n".join(lines) for lines in documents).encode("utf-8") + b"\nend")
    wanted = [line.strip() for lines in documents for line in lines if line.strip()] + ["end"]
    assume(not wanted[0].startswith("\ufeff"))  # a mark at the start of a file is not text
    assert [line for document in read_documents([path]) for line in document.split("\n")] == wanted
    assert list(read_lines([path])) == wanted


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"fine\n" + b"x" * (MAX_LINE_BYTES + 1))
    with pytest.raises(DataError, match=r"a\.txt, line 2: longer than 16 MiB; put one sentence or paragraph on a line"):
        list(read_lines([path]))


def test_a_byte_that_is_not_utf8_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.txt, line 2: byte 0xe9 is not UTF-8; .*iconv"):
        list(read_lines([write(tmp_path / "a.txt", b"fine\ncaf\xe9\n")]))


@pytest.mark.parametrize("read", [read_lines, read_documents])
@pytest.mark.parametrize("content", ["", "\n \n\n"])
def test_files_without_text_are_refused_by_name(
    tmp_path: Path, read: Callable[..., Iterator[object]], content: str
) -> None:
    paths = [write(tmp_path / name, content) for name in ("a.txt", "b.txt")]
    with pytest.raises(DataError, match=r"a\.txt, .*b\.txt: no text; give files that hold text"):
        list(read(paths))


def test_an_empty_file_among_others_is_no_mistake(tmp_path: Path) -> None:
    assert list(read_documents([write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", TEXT)])) == DOCUMENTS


def test_a_missing_file_and_a_folder_are_found_before_reading(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nope\.txt: no such file; give text files"):
        total_size([tmp_path / "nope.txt"])
    with pytest.raises(DataError, match="is a folder; give text files"):
        total_size([tmp_path])


# --- tables, folders, globs -------------------------------------------------------------------------------------------

RECORDS = '{"text": "one a\\n\\n one b", "id": 1}\n\n{"text": "two a"}\n{"text": null}\n{"text": " \\n "}\n'


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_a_record_of_json_lines_is_a_document_whatever_lines_it_holds(tmp_path: Path, suffix: str) -> None:
    content = COMPRESSORS[suffix](RECORDS.encode()) if suffix else RECORDS
    assert list(read_documents([write(tmp_path / f"a.jsonl{suffix}", content)])) == DOCUMENTS


def test_a_record_of_parquet_is_a_document(tmp_path: Path) -> None:
    arrow, parquet = peer("pyarrow"), peer("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"body": ["one a\n\none b", None, "two a"]}), path)
    heard: list[int] = []
    assert list(read_documents([path], ReadOptions("body", advance=heard.append))) == DOCUMENTS
    assert sum(heard) == path.stat().st_size
    with pytest.raises(DataError, match=r"a\.parquet: has no column 'text' among body; name it with --text-column"):
        list(read_documents([path]))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"body": "a"}', "line 1: has no column 'text' among body; name it with --text-column"),
        ('{"text": 7}', "line 1: column 'text' holds '7', which is not text"),
        ("{}\n".replace("{}", '{"text": "a"}') + "{", "line 2: not JSON"),
        ('["a"]', "line 1: .* is not a JSON object"),
    ],
)
def test_a_record_without_text_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        list(read_documents([write(tmp_path / "a.jsonl", content)]))


def test_half_of_a_surrogate_pair_in_json_is_replaced(tmp_path: Path) -> None:
    assert list(read_documents([write(tmp_path / "a.jsonl", '{"text": "a\\ud800b"}')])) == ["a\ufffdb"]


def test_folders_are_searched_for_known_files_in_order(tmp_path: Path) -> None:
    names = ["b.txt", "a.jsonl.gz", "c/d.text.xz", "c/e.parquet", "c/notes.md", "c/f.csv", "g.txt.zip"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "")
    wanted = [tmp_path / name for name in ("a.jsonl.gz", "b.txt", "c/d.text.xz", "c/e.parquet")]
    assert find_files([tmp_path]) == wanted
    assert find_files([tmp_path / "b.txt", tmp_path]) == [wanted[1], wanted[0], *wanted[2:]]  # each once


def test_globs_stand_for_the_files_that_match(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "x[1].txt"):
        write(tmp_path / name, "text")
    assert find_files([tmp_path / "?.txt"]) == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_files([tmp_path / "x[1].txt"]) == [tmp_path / "x[1].txt"]  # a file of that name counts first
    with pytest.raises(DataError, match=r"\*\.jsonl: matches no file; check the pattern"):
        find_files([tmp_path / "*.jsonl"])


def test_a_folder_without_text_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder without text files; give text files"):
        find_files([tmp_path])


def test_text_that_never_ends_a_document_is_cut_at_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_CHARACTERS", 10)
    path = write(tmp_path / "a.txt", "12345\n" * 5)
    assert list(read_documents([path])) == ["12345\n12345", "12345\n12345", "12345"]


# --- encodings --------------------------------------------------------------------------------------------------------

CHINESE = "这是第一个文件，里面有一些中文的句子。\n他说的不是真的。\n\n第二篇在这里，我们都知道了。\n"
TRADITIONAL = "這是第一個檔案，裡面有一些中文的句子。\n他說的不是真的。\n\n第二篇在這裡，我們都知道了。\n"
ENGLISH = "The first line.\nThe second line.\n\nAnother document.\n"


@pytest.mark.parametrize("text", [CHINESE, TRADITIONAL, ENGLISH, CHINESE * 5000], ids=["zh", "zh-Hant", "en", "long"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "gb18030"])
def test_encodings_are_told_apart(tmp_path: Path, text: str, encoding: str) -> None:
    notices: list[str] = []
    path = write(tmp_path / "a.txt", text.encode(encoding))
    found = list(read_documents([path], ReadOptions(notify=notices.append)))
    assert "\n\n".join(found) == text.strip("\n")
    told = encoding.startswith(("utf-16", "utf-32")) or (encoding == "gb18030" and not text.isascii())
    assert bool(notices) == told
    assert all(str(path) in notice for notice in notices)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Le café est fermé à midi; où êtes-vous, Noël?\n", "latin-1"),
        ("Смотритель маяка каждое утро записывал погоду.\n", "cp1251"),
        ("Смотритель маяка каждое утро записывал погоду.\n", "koi8-r"),
        ("등대지기는 매일 아침 날씨를 적었다. 그는 마을에 살았다.\n", "euc-kr"),
        ("灯台守は毎朝天気を書き留めた。\n", "shift-jis"),
        ("燈塔守望者每天早晨記錄天氣。他住在村裡。\n", "big5"),
    ],
)
def test_other_encodings_are_not_taken_for_chinese(tmp_path: Path, text: str, encoding: str) -> None:
    content = (text * 20).encode(encoding)
    assert detect_encoding(content) == "utf-8"
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(DataError, match=r"a\.txt, line 1: byte 0x.. is not UTF-8; name the right one with --encoding"):
        list(read_documents([path]))
    assert next(read_documents([path], ReadOptions(encoding=encoding))).startswith(text.strip())


def test_a_wrong_byte_after_the_first_block_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", CHINESE.encode("gb18030") * 2000 + b"\xff\n")
    with pytest.raises(DataError, match=r"a\.txt, line 8001: byte 0xff is not GB18030"):
        list(read_documents([path]))
    path = write(tmp_path / "b.txt", CHINESE.encode("utf-16") + b"\x00\xd8\x00\x00")
    with pytest.raises(DataError, match=r"b\.txt, after line \d+: byte 0x.. is not UTF-16"):
        list(read_documents([path]))


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ConfigError, match="encoding='klingon' is unknown; use auto, utf-8"):
        ReadOptions(encoding="klingon")
