"""Raw text as documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from litebert.data.corpus import LINE_LIMIT_BYTES, read_documents, read_lines, size_on_disk
from litebert.errors import DataError
from tests.conftest import PROSE
from tests.data.test_labelled import COMPRESSORS, write

TEXT = "one a\none b\n\ntwo a\n"
DOCUMENTS = [["one a", "one b"], ["two a"]]


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    assert list(read_documents([write(tmp_path / "a.txt", TEXT)])) == DOCUMENTS


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
    list(read_documents([path, path], heard.append))
    assert sum(heard) == size_on_disk([path, path]) == 2 * path.stat().st_size


@given(documents=st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1))))
def test_no_line_is_lost(tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_bytes("\n\n".join("\n".join(lines) for lines in documents).encode("utf-8") + b"\nend")
    wanted = [line.strip() for lines in documents for line in lines if line.strip()] + ["end"]
    assume(not wanted[0].startswith("\ufeff"))  # a mark at the start of a file is not text
    assert [line for document in read_documents([path]) for line in document] == wanted


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"fine\n" + b"x" * (LINE_LIMIT_BYTES + 1))
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
    with pytest.raises(DataError, match=r"a\.txt, .*b\.txt: no text there; give plain text"):
        list(read(paths))


def test_an_empty_file_among_others_is_no_mistake(tmp_path: Path) -> None:
    assert list(read_documents([write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", TEXT)])) == DOCUMENTS


def test_a_missing_file_and_a_folder_are_found_before_reading(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nope\.txt: no such file; give text files"):
        size_on_disk([tmp_path / "nope.txt"])
    with pytest.raises(DataError, match=r"is a folder; give text files"):
        size_on_disk([tmp_path])
