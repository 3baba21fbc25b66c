"""Files of questions about texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from litebert.data.squad import AnswerInput, GoldAnswer, parse_question, read_questions
from litebert.data.tables import TableOptions
from litebert.errors import DataError

CONTEXT = "The baker opened at five, and by seven the shelves were nearly empty."


def squad(path: Path, questions: list[dict[str, Any]], context: str = CONTEXT) -> Path:
    paragraph = {"context": context, "qas": questions}
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}), "utf-8")
    return path


def test_squad_1_is_read_with_the_place_of_every_answer(tmp_path: Path) -> None:
    answers = [{"text": "five", "answer_start": 20}, {"text": "at five", "answer_start": 17}]
    path = squad(tmp_path / "train.json", [{"id": "q7", "question": "When?", "answers": answers}])
    (record,) = read_questions(path)
    assert record == AnswerInput("When?", CONTEXT, (GoldAnswer("five", 20), GoldAnswer("at five", 17)), "q7")
    assert record.where == f"{path}, article 1, question q7"


def test_squad_2_is_read_with_its_impossible_questions(tmp_path: Path) -> None:
    questions = [
        {"id": "1", "question": "When?", "answers": [{"text": "five", "answer_start": 20}], "is_impossible": False},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "five"}]},
    ]
    records = read_questions(squad(tmp_path / "dev.json", questions))
    assert [record.impossible for record in records] == [False, True]


def test_an_answer_at_the_wrong_place_is_found_at_the_nearest(tmp_path: Path) -> None:
    context = "one two one two one"
    starts = {-1: 0, 1: 0, 7: 8, 15: 16, 99: 16}
    questions = [{"question": "?", "answers": [{"text": "one", "answer_start": start}]} for start in starts]
    records = read_questions(squad(tmp_path / "cmrc.json", questions, context))
    assert [record.answers[0].start for record in records if record.answers] == list(starts.values())


CHOICE = "at five, or at six, at six"
FIRST, SECOND = {"question": "When?", "context": CHOICE}, {"question": "Why?", "context": "none"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", f'question,context,answer\nWhen?,"{CHOICE}",at six\nWhy?,none,\n'),
        ("t.tsv", f"question\tcontext\tanswer\tanswer_start\nWhen?\t{CHOICE}\tat six\t\nWhy?\tnone\t\t\n"),
        ("t.jsonl", [FIRST | {"answer": "at six"}, SECOND | {"answer": ""}]),
        ("t.jsonl", [FIRST | {"answers": ["at six"], "is_impossible": False}, SECOND | {"is_impossible": True}]),
        (
            "t.json",
            [
                FIRST | {"answers": {"text": ["at six"], "answer_start": [12]}},
                SECOND | {"answers": {"text": [], "answer_start": []}},
            ],
        ),
    ],
)
def test_tables_are_read_and_an_answer_without_a_place_is_searched(tmp_path: Path, name: str, content: Any) -> None:
    path = tmp_path / name
    if isinstance(content, list):
        content = json.dumps(content) if name == "t.json" else "\n".join(map(json.dumps, content))
    path.write_text(content, "utf-8")
    first, second = read_questions(path)
    assert first.answers == (GoldAnswer("at six", 12),)
    assert second.impossible


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("ask,passage,reply\nWhen?,at five,five\n", "utf-8")
    options = TableOptions({"question": "ask", "context": "passage", "answer": "reply"})
    assert read_questions(path, options)[0].answers == (GoldAnswer("five", 3),)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"question": "?"}, "no value for 'answer' or 'answers'"),
        ({"answers": []}, "no text in column 'question'"),
        ({"question": "?", "answers": [{"text": 5}]}, "'5' must be a string"),
        ({"question": "?", "answers": [{"text": "five", "answer_start": "x"}]}, "answer_start='x' must be an integer"),
        ({"question": "?", "answers": [], "is_impossible": False}, "is_impossible=False with 0 answers"),
        ({"question": "?", "answers": [{"text": "five"}], "is_impossible": True}, "is_impossible=True with 1 answers"),
        ({"question": "?", "answers": [], "is_impossible": "maybe"}, "is_impossible='maybe' must be true or false"),
        ({"question": "?", "answers": {"text": ["five"], "answer_start": []}}, "1 answers and 0 of 'answer_start'"),
    ],
)  # fmt: skip
def test_a_bad_question_is_refused_with_its_place_or_listed(
    tmp_path: Path, question: dict[str, Any], message: str
) -> None:
    good = {"question": "?", "answers": [{"text": "five", "answer_start": 20}]}
    path = squad(tmp_path / "t.json", [good, {"id": "q2", **question}])
    with pytest.raises(DataError, match="article 1, question q2: ") as caught:
        read_questions(path)
    assert message in str(caught.value)
    options = TableOptions(skip_bad=True)
    assert len(read_questions(path, options)) == 1
    assert len(options.skipped) == 1


def test_a_file_that_is_laid_out_otherwise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"data": [{"paragraphs": [{"text": "x", "qas": [{}]}]}]}', "utf-8")
    with pytest.raises(DataError, match="article 1: not laid out as SQuAD"):
        read_questions(path)
    path.write_text('{"data": []}', "utf-8")
    with pytest.raises(DataError, match="holds no questions"):
        read_questions(path)


@pytest.mark.parametrize("item", ["text", 3, ("one",), ("a", 3), {"question": "x"}, {"question": "x", "context": 3}])
def test_what_is_not_a_question_with_its_context_is_refused_with_its_place(item: object) -> None:
    with pytest.raises(DataError, match="input 7"):
        parse_question(item, "input 7")


def test_a_pair_is_a_question_and_its_context() -> None:
    assert parse_question(("Who?", "She."), "input 1") == AnswerInput("Who?", "She.")
    assert parse_question({"question": "Who?", "context": "She."}, "input 1") == AnswerInput("Who?", "She.")
