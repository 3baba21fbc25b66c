"""Texts and their translations: two files side by side, or a table."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from litebert.data.tables import TableOptions
from litebert.data.translation_pairs import find_target_file, read_pairs
from litebert.errors import DataError


def pairs(path: Path, *columns: str) -> list[tuple[str, str]]:
    return [(values["source"], values["target"]) for _, values in read_pairs(path, TableOptions.parse(columns))]


def test_lines_of_two_files_belong_together(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a dog\n\na cat\u2028here\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("ein Hund\r\n\r\neine Katze\r\n", encoding="utf-8")
    (tmp_path / "other.fr").write_text("un chien\n", encoding="utf-8")
    assert pairs(tmp_path / "train.en") == [("a dog", "ein Hund"), ("", ""), ("a cat\u2028here", "eine Katze")]
    assert [where for where, _ in read_pairs(tmp_path / "train.en", TableOptions())][2].endswith("train.en, line 3")


def test_packed_files_are_found_too(tmp_path: Path) -> None:
    (tmp_path / "test_2016_flickr.en.gz").write_bytes(gzip.compress(b"a dog\n"))
    (tmp_path / "test_2016_flickr.de").write_text("ein Hund\n", encoding="utf-8")
    assert pairs(tmp_path / "test_2016_flickr.en.gz") == [("a dog", "ein Hund")]


def test_of_several_languages_one_must_be_named(tmp_path: Path) -> None:
    for language in ("en", "de", "fr"):
        (tmp_path / f"train.{language}").write_text(f"{language}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"train.de, train.fr could be its translation; .*--columns target=de"):
        pairs(tmp_path / "train.en")
    assert pairs(tmp_path / "train.en", "target=fr") == [("en", "fr")]
    with pytest.raises(DataError, match="no file beside it"):
        pairs(tmp_path / "train.en", "target=cs")
    with pytest.raises(DataError, match="no language in its name"):
        find_target_file(tmp_path / "train", TableOptions())


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "train.en", tmp_path / "train.en"):
        with pytest.raises(DataError, match=r"train.en: cannot be read \(.*\); check the path"):
            pairs(path)


@pytest.mark.parametrize("wanted", ["a/b", "../de", "/de"])
def test_a_language_is_not_a_path(tmp_path: Path, wanted: str) -> None:
    (tmp_path / "train.en").write_text("one\n", encoding="utf-8")
    with pytest.raises(DataError, match="must be a language, such as de"):
        pairs(tmp_path / "train.en", f"target={wanted}")


def test_files_that_do_not_keep_step_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("eins\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"has 2 lines and .* has 1; they must be aligned line by line"):
        pairs(tmp_path / "train.en")


@pytest.mark.parametrize(
    ("header", "columns"),
    [("source,target", ()), ("text,label", ()), ("target,source", ()), ("en,de", ("source=en", "target=de"))],
)
def test_a_table_has_two_columns(header: str, columns: tuple[str, ...], tmp_path: Path) -> None:
    cells = ["a dog", "ein Hund"]
    if header.startswith("target"):
        cells.reverse()
    (tmp_path / "train.csv").write_text(f"{header}\n{','.join(cells)}\n", encoding="utf-8")
    assert pairs(tmp_path / "train.csv", *columns) == [("a dog", "ein Hund")]
