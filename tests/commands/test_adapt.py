"""`litebert adapt`: a few rows in, a classifier out."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.commands.conftest import litebert, write_csv
from tests.fewshot.test_adapt import FEW, NEW


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"text": text, "label": label} for label, some in FEW.items() for text in some]
    return write_csv(tmp_path_factory.mktemp("few") / "few.csv", rows)


def test_adapted_models_predict_and_are_evaluated(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "adapted"
    assert litebert("adapt", "--examples", few, "--out", out) == 0
    told = capsys.readouterr().err
    for part in ("12 examples of 3 classes", "leave-one-out accuracy ", "next: echo"):
        assert part in told
    (tmp_path / "new.txt").write_text("".join(f"{text}\n" for text in NEW), encoding="utf-8")
    assert litebert("predict", "--model", out, "--input", tmp_path / "new.txt") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["label"] for answer in answers] == list(NEW.values())
    assert {"probability", "probabilities", "unknown", "is_unknown"} < set(answers[0])
    asked = write_csv(tmp_path / "new.csv", [{"text": text, "label": label} for text, label in NEW.items()])
    assert litebert("evaluate", "--model", out, "--data", asked, "--json") == 0
    told_too = json.loads(capsys.readouterr().out)
    assert told_too["metrics"]["accuracy"] == 1
    assert told_too["confusion"] == [
        [list(NEW.values()).count(truth) * (truth == answer) for answer in told_too["labels"]]
        for truth in told_too["labels"]
    ]


def test_an_adapted_model_takes_more_examples(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = write_csv(
        tmp_path / "more.csv",
        [{"text": "when do you open", "label": "hours"}, {"text": "are you open on sunday", "label": "hours"}],
    )
    assert litebert("adapt", "--examples", few, "--out", tmp_path / "one") == 0
    assert litebert("adapt", "--model", tmp_path / "one", "--examples", more, "--out", tmp_path / "two", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["examples"], found["classes"]) == (14, 4)


def test_unlabelled_texts_may_be_lines_or_rows(few: Path, tmp_path: Path) -> None:
    (tmp_path / "around.txt").write_text("good morning\n\nthank you\n", encoding="utf-8")
    rows = write_csv(tmp_path / "around.csv", [{"said": "good morning"}, {"said": "thank you"}])
    written = []
    for number, around in enumerate([tmp_path / "around.txt", rows]):
        out = tmp_path / str(number)
        columns = ["--columns", "text=said"] if around == rows else []
        given = write_csv(
            tmp_path / "said.csv", [{"said": text, "label": label} for label, some in FEW.items() for text in some]
        )
        examples = given if columns else few
        assert litebert("adapt", "--examples", examples, *columns, "--unlabelled", around, "--out", out) == 0
        written.append((out / "few_shot.safetensors").read_bytes())
    assert written[0] == written[1]
    assert litebert("adapt", "--examples", few, "--out", tmp_path / "without") == 0
    assert (tmp_path / "without" / "few_shot.safetensors").read_bytes() != written[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("text,label\nthe rain,weather\neggs,food\nthe rain,food\n", "line 4: 'the rain' is 'food' here and 'weather'"),
        ("text,label\nthe rain,weather\nsnow,weather\n", "1 class(es) in column 'label'"),
        ("text,label\nthe rain,\n", "no value in column 'label'"),
        ("text_a,text_b,label\nthe rain,snow,1\nmilk,,2\n", "line 3: '' is no text"),
    ],
)
def test_mistakes_in_the_file_are_named(
    content: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few.csv").write_text(content, encoding="utf-8")
    assert litebert("adapt", "--examples", tmp_path / "few.csv", "--out", tmp_path / "out") == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pairs_are_adapted_to_predicted_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = ["where is my parcel", "refund me please", "I forgot my password", "when do you open"]
    rows = [{"text_a": text, "text_b": f"tell me, {text}", "label": "same"} for text in same]
    rows += [{"text_a": text, "text_b": other, "label": "other"} for text, other in itertools.pairwise(same * 2)][:4]
    few, out = write_csv(tmp_path / "few.csv", rows), tmp_path / "out"
    assert litebert("adapt", "--examples", few, "--out", out) == 0
    told = capsys.readouterr().err
    assert "8 examples of 2 classes" in told
    assert f"""next: echo '["one text", "another"]' | litebert predict --model {out}""" in told
    assert litebert("evaluate", "--model", out, "--data", few, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] == 1


def test_a_tagger_is_made_from_a_few_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["{} lives in {}", "yesterday {} went to {}", "{} was born in {}", "we met {} in {}"]
    people, places = ["Anna", "Peter", "Maria", "John"], ["Paris", "London", "Berlin", "Rome"]
    lines = []
    for number in range(12):
        who, where = people[number % 4], places[number // 3]
        for word in said[number % 3].format(who, where).split():
            lines.append(f"{word} {'B-PER' if word == who else 'B-LOC' if word == where else 'O'}")
        lines.append("")
    few, out = tmp_path / "few.conll", tmp_path / "out"
    few.write_text("\n".join(lines), encoding="utf-8")
    assert litebert("adapt", "--task", "tag", "--examples", few, "--out", out) == 0
    told = capsys.readouterr().err
    assert "12 sentences with 24 spans of 2 labels" in told
    assert "leave-one-out F1 of the spans " in told
    (tmp_path / "new.txt").write_text("we met Peter in London\n", encoding="utf-8")
    assert litebert("predict", "--model", out, "--input", tmp_path / "new.txt") == 0
    spans = json.loads(capsys.readouterr().out)["spans"]
    assert [(span["text"], span["label"]) for span in spans] == [("Peter", "PER"), ("London", "LOC")]
    assert litebert("evaluate", "--model", out, "--data", few, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["f1"] > 0.8
    assert litebert("adapt", "--task", "tag", "--examples", few, "--out", out) == 2
    assert "already holds a model" in capsys.readouterr().err
    given = ("--examples", few, "--out", tmp_path / "no", "--unlabelled", few)
    assert litebert("adapt", "--task", "tag", *given) == 2
    assert "--unlabelled says nothing of tags" in capsys.readouterr().err


def test_somebody_s_results_stay(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert litebert("adapt", "--examples", few, "--out", tmp_path / "out") == 0
    before = (tmp_path / "out" / "few_shot.json").read_bytes()
    assert litebert("adapt", "--examples", few, "--out", tmp_path / "out") == 2
    assert "already holds an adapted model" in capsys.readouterr().err
    assert (tmp_path / "out" / "few_shot.json").read_bytes() == before


def test_a_single_example_of_each_is_said_to_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.csv").write_text("text,label\nwhere is my parcel,1\nrefund me,2\n", encoding="utf-8")
    assert litebert("adapt", "--examples", tmp_path / "few.csv", "--out", tmp_path / "out") == 0
    assert "nothing can be left out to see how well this works" in capsys.readouterr().err


def test_rows_that_cannot_be_read_are_counted_in_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.csv").write_text("text,label\nthe rain,w\neggs,f\n,f\n", encoding="utf-8")
    given = ("--examples", tmp_path / "few.csv", "--skip-bad", "--json")
    assert litebert("adapt", *given, "--out", tmp_path / "out") == 0
    told = capsys.readouterr()
    assert "1 rows left out" in told.err
    assert json.loads(told.out)["examples"] == 2


def test_texts_with_two_labels_are_left_out_where_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.csv").write_text("text,label\nthe rain,w\neggs,f\nsnow,w\neggs,w\nmilk,f\n", encoding="utf-8")
    assert litebert("adapt", "--examples", tmp_path / "few.csv", "--out", tmp_path / "out", "--skip-bad") == 0
    assert "1 texts with two labels left out, the first: " in capsys.readouterr().err


def test_names_of_classes_and_time_are_settings(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": text, "label": label} for text, label in (("zzz", "a parcel"), ("qqq", "a password"))]
    short = write_csv(tmp_path / "short.csv", rows)
    for flag, used in (("--label-names", True), ("--no-label-names", False)):
        assert litebert("adapt", "--examples", short, "--out", tmp_path / flag, flag, "--json") == 0
        assert json.loads(capsys.readouterr().out)["label_names"] is used
    assert litebert("adapt", "--examples", few, "--out", tmp_path / "out", "--budget", "0") == 0
    assert "tier fast would take about " in capsys.readouterr().err
    assert litebert("adapt", "--examples", few, "--out", tmp_path / "none", "--budget", "-1") == 2
    assert "must be 0 or more seconds" in capsys.readouterr().err


def test_nothing_is_trained_into_an_adapted_folder(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("adapt", "--examples", few, "--out", tmp_path / "out") == 0
    assert litebert("finetune", "--train", few, "--out", tmp_path / "out") == 2
    assert "already holds an adapted model" in capsys.readouterr().err
