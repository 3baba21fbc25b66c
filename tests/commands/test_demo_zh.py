"""The tour in Chinese."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from litebert import builtin
from litebert.studies.demo.chinese import MASKED_TEXTS, QUERIES, SHOTS, worse_than_bag
from litebert.studies.demo.data import TICKETS, split_tickets
from tests.commands.conftest import litebert

needs_weights = pytest.mark.skipif(
    builtin.CHINESE not in builtin.FOLDERS, reason=f"the weights of {builtin.CHINESE} are not here"
)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_thirty_messages_of_each_of_six_queues_and_none_twice() -> None:
    rows = rows_of(TICKETS["zh"])
    assert list(rows[0]) == ["text", "label"]
    assert sorted(Counter(row["label"] for row in rows).values()) == [30] * 6
    texts = [re.sub(r"\W", "", row["text"]) for row in rows]
    assert len({*texts, *QUERIES}) == len(texts) + len(QUERIES)


def test_a_third_of_each_queue_is_not_seen(tmp_path: Path) -> None:
    train, test = map(rows_of, split_tickets(tmp_path, "zh", 0))
    assert set(Counter(row["label"] for row in train).values()) == {20}
    assert set(Counter(row["label"] for row in test).values()) == {10}
    assert not {row["text"] for row in train} & {row["text"] for row in test}


def test_a_model_is_held_against_the_bag_of_the_messages_that_it_has_seen() -> None:
    bags = {"majority baseline": 0.167, "bag of characters, 5 of each": 0.383, "bag of characters, all": 0.583}
    few, many = "litebert adapt, 5 of each", "litebert finetune, all"
    assert worse_than_bag(bags | {few: 0.5, many: 0.6}) == ""
    assert f"of the same messages is better than {many}:" in worse_than_bag(bags | {few: 0.5, many: 0.55})
    assert f"is better than {few} and {many}:" in worse_than_bag(bags | {few: 0.35, many: 0.55})


@needs_weights
def test_the_tour_says_and_shows_what_was_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert litebert("demo", "--lang", "zh", "--epochs", 1, "--out", tmp_path / "tour") == 0
    said = capsys.readouterr().err
    page = (tmp_path / "tour" / "report.html").read_text(encoding="utf-8")
    methods = [f"{method}, all 120" for method in ("bag of characters", "litebert adapt", "litebert finetune")]
    methods += [f"{method}, {SHOTS} of each class" for method in ("bag of characters", "litebert adapt")]
    for told in (*methods, "majority baseline", "OpenCC's t2s", *MASKED_TEXTS, *QUERIES):
        assert told in said
        assert told in page.replace("&#x27;", "'")
    assert len(re.findall(r'<svg role="img" aria-label="[^"]+"', page)) == 1
    assert "warning" not in said
    few = rows_of(tmp_path / "tour" / "few.csv")
    assert set(Counter(row["label"] for row in few).values()) == {SHOTS}
    assert (
        litebert("predict", "--model", tmp_path / "tour" / "finetuned", "--input", tmp_path / "tour" / "few.csv") == 0
    )
