"""FewRel's files."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from litebert.data.tables import TableOptions, read_rows
from litebert.errors import DataError


def sentence(text: str, head: list[list[int]], tail: list[list[int]]) -> dict[str, Any]:
    return {"tokens": text.split(" "), "h": ["one", "Q1", head], "t": ["other", "Q2", tail]}


def write(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "val_wiki.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


BRIDGE = sentence("the old bridge over  Red River .", [[1, 2]], [[5, 6]])  # a word of it is empty
MOTHER = sentence("Ann had a son , Tom ; Ann was tall", [[5]], [[0], [7]])


def test_both_things_are_marked_wherever_they_stand(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, {"P177": [BRIDGE, BRIDGE], "P25": [MOTHER]}))
    assert [row.values["label"] for row in rows] == ["P177", "P177", "P25"]
    assert rows[0].values["text"] == "the @ old bridge @ over # Red River # ."
    assert rows[2].values["text"] == "# Ann # had a son , @ Tom @ ; # Ann # was tall"
    assert [row.line for row in rows] == [1, 2, 3]


def test_relations_have_the_names_that_stand_beside(tmp_path: Path) -> None:
    (tmp_path / "pid2name.json").write_text(json.dumps({"P25": ["mother", "of a person"]}), encoding="utf-8")
    rows = read_rows(write(tmp_path, {"P177": [BRIDGE], "P25": [MOTHER]}))
    assert [row.values["label"] for row in rows] == ["P177", "mother"]


@pytest.mark.parametrize(
    "names",
    [{"P177": "crosses", "P25": "capital"}, {"P177": ["None"], "P25": ["None"]}, {"P177": [], "P25": [1]}],
)
def test_relations_that_would_be_called_the_same_keep_their_ids(tmp_path: Path, names: dict[str, Any]) -> None:
    (tmp_path / "pid2name.json").write_text(json.dumps(names), encoding="utf-8")
    rows = read_rows(write(tmp_path, {"P177": [BRIDGE], "P25": [MOTHER]}))
    assert [row.values["label"] for row in rows] == ["P177", "P25"]


@pytest.mark.parametrize("wrong", [{"h": ["one", "Q1", [[99]]]}, {"t": None}, {"h": ["one"]}])
def test_a_sentence_that_does_not_fit_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = write(tmp_path, {"P177": [BRIDGE], "P25": [MOTHER, MOTHER | wrong]})
    with pytest.raises(DataError, match=r"val_wiki\.json, sentence 3: not in the format of FewRel"):
        read_rows(path)
    options = TableOptions(skip_bad=True)
    assert [row.line for row in read_rows(path, options)] == [1, 2]
    assert len(options.skipped) == 1


def test_a_table_with_lists_is_still_a_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(
        '{"text": "a", "label": "b", "tokens": ["a"]}\n{"text": "c", "label": "d", "h": []}', encoding="utf-8"
    )
    assert [row.values["text"] for row in read_rows(path)] == ["a", "c"]


def test_the_real_file(data: Path, tmp_path: Path) -> None:
    with tarfile.open(data / "tasks" / "relations.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    rows = read_rows(next(tmp_path.rglob("val_wiki.json")))
    labels = [str(row.values["label"]) for row in rows]
    assert {label: labels.count(label) for label in labels} == dict.fromkeys(labels, 700)
    assert len(set(labels)) == 16
    assert "mother" in labels
    assert all(row.values["text"].count("@ ") >= 1 and row.values["text"].count("# ") >= 1 for row in rows)
