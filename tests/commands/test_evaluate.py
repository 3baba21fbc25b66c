"""Evaluation through the command line: figures, the page with drawings, several models on several files."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litebert as package
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import WORDS, Flow, litebert, make_examples, once, write_csv
from tests.commands.finetuning import FILES, untrained, write_examples, write_jsonl

WRONG = 9  # of the labels in the file are another class's


@pytest.fixture(scope="module")
def mislabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of which the first are not what their label says."""

    def build(folder: Path) -> None:
        following = dict(zip(WORDS, [*list(WORDS)[1:], next(iter(WORDS))], strict=True))
        examples = make_examples(24, seed=3)
        write_csv(folder / "t.csv", [x | {"label": following[x["label"]]} for x in examples[:WRONG]] + examples[WRONG:])

    return once(tmp_path_factory, "mislabelled", build) / "t.csv"


@pytest.fixture(scope="module")
def page(flow: Flow, mislabelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that an evaluation wrote."""

    def build(folder: Path) -> None:
        assert litebert("evaluate", "--model", flow.classifier, "--data", mislabelled, "--out", folder / "out") == 0

    return once(tmp_path_factory, "evaluation", build) / "out"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On which no path is broken in two."""
    monkeypatch.setenv("COLUMNS", "400")


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert litebert("evaluate", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def answers_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_shows_confusion_sureness_length_and_errors(page: Path) -> None:
    content = (page / "report.html").read_text(encoding="utf-8")
    drawn = [html.unescape(label) for label in re.findall(r'<svg role="img" aria-label="([^"]+)"', content)]
    assert len(drawn) == 3
    assert drawn[0] == "Rows are true labels, columns predicted labels."
    assert drawn[1].startswith("Accuracy over confidence; on the dashed line both are equal.")
    assert drawn[2] == "Each dot is the mean of about as many examples as every other."
    wrong = [answer for answer in answers_in(page) if not answer["right"]]
    assert len(wrong) >= WRONG
    for answer in wrong:
        assert f"<td>{answer['truth']}</td><td>{answer['answer']['label']}</td>" in content
        assert f"<td>{answer['text']}</td>" in content


def test_the_page_and_the_figures_tell_of_every_label(page: Path) -> None:
    content = (page / "report.html").read_text(encoding="utf-8")
    by_label = json.loads((page / "evaluation.json").read_text(encoding="utf-8"))["by_label"]
    assert sum(figures["examples"] for figures in by_label.values()) == 24
    for label, figures in by_label.items():
        assert f"<td>{label}</td><td>{figures['f1']:.4f}</td>" in content.replace(' class="number"', "")


def test_the_page_has_a_row_for_every_wrong_answer_and_for_no_other(page: Path) -> None:
    content = (page / "report.html").read_text(encoding="utf-8").partition("answers that are not right")[2]
    rows = re.findall(r"<tr><td>.*?<td>([^<]*)</td></tr>", content)
    assert sorted(rows) == sorted(answer["text"] for answer in answers_in(page) if not answer["right"])


def test_every_example_has_its_line_of_answers(flow: Flow, page: Path, mislabelled: Path) -> None:
    rows = mislabelled.read_text(encoding="utf-8").splitlines()[1:]
    found = answers_in(page)
    assert [f"{one['text']},{one['truth']}" for one in found] == rows
    answered = package.load(flow.classifier).predict([one["text"] for one in found])
    for one, answer in zip(found, answered, strict=True):
        assert one["answer"]["label"] == answer.label
        assert one["answer"]["probabilities"] == pytest.approx(answer.probabilities, abs=1e-5)
        assert one["right"] == (answer.label == one["truth"])


def test_the_figures_are_those_that_are_printed(
    flow: Flow, page: Path, mislabelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = figures(capsys, "--model", flow.classifier, "--data", mislabelled)
    assert json.loads((page / "evaluation.json").read_text(encoding="utf-8")) == printed
    assert printed["examples"] == 24
    right = sum(one["right"] for one in answers_in(page))
    assert printed["metrics"]["accuracy"] == pytest.approx(right / 24)


def test_the_calibration_error_is_what_the_answers_say(page: Path) -> None:
    found = answers_in(page)
    sure = np.array([one["answer"]["probability"] for one in found])
    right = np.array([one["right"] for one in found])
    by_hand = 0.0
    for low in np.arange(10) / 10:
        inside = (sure >= low) & (sure < low + 0.1)
        if inside.any():
            by_hand += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    written = json.loads((page / "evaluation.json").read_text(encoding="utf-8"))["calibration_error"]
    assert written == pytest.approx(by_hand)
    assert f"Expected calibration error: {by_hand:.3f}." in (page / "report.html").read_text(encoding="utf-8")


def test_an_evaluation_is_not_overwritten(
    flow: Flow, page: Path, mislabelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in page.iterdir()}
    assert set(before) == {"report.html", "answers.jsonl", "evaluation.json"}
    capsys.readouterr()
    assert litebert("evaluate", "--model", flow.classifier, "--data", flow.examples, "--out", page) == 2
    said = capsys.readouterr()
    assert "already holds an evaluation (evaluation.json); choose another --out" in said.err
    assert said.out == ""
    assert {path.name: path.read_bytes() for path in page.iterdir()} == before


@pytest.mark.parametrize("task", FILES)
def test_every_task_gets_a_page(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    data = FILES[task](tmp_path / "t", 0)
    model = untrained(task, data, tokenizer, tmp_path / "model")
    measured = figures(capsys, "--model", model, "--data", data, "--out", tmp_path / "out")
    assert measured["metric"] in measured["metrics"]
    assert set(measured["baseline"]) <= set(measured["metrics"])
    found = answers_in(tmp_path / "out")
    assert len(found) == measured["examples"] > 10
    assert all(0 <= one["right"] <= 1 for one in found)
    content = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("Confusion matrix" in content) == (task == "classify")
    says_how_sure = task not in ("regress", "similarity")
    assert (">Calibration<" in content) == says_how_sure == (measured["calibration_error"] is not None)
    assert "Accuracy by length" in content


def test_a_page_of_one_example_that_is_right_has_no_errors(flow: Flow, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "t.csv", make_examples(1))
    label = package.load(flow.classifier).predict([make_examples(1)[0]["text"]])[0].label
    data = write_csv(tmp_path / "t.csv", [make_examples(1)[0] | {"label": label}])
    assert litebert("evaluate", "--model", flow.classifier, "--data", data, "--out", tmp_path / "out") == 0
    assert "answers that are not right" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert len(answers_in(tmp_path / "out")) == 1


def test_bad_rows_are_left_out_and_listed(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "t.csv"
    data.write_text("text,label\nthe rain,weather\nno label,\neggs,food\n")
    out = tmp_path / "out"
    arguments = ("--model", flow.classifier, "--data", data, "--skip-bad")
    measured = figures(capsys, *arguments, "--out", out)
    assert measured["examples"] == 2
    assert [line.partition(":")[0] for line in measured["skipped"]] == [f"{data}, line 3"]
    assert f"<td>{data}, line 3: no value" in (out / "report.html").read_text(encoding="utf-8")
    assert litebert("evaluate", *arguments) == 0
    assert f"1 rows left out: {data}, line 3" in capsys.readouterr().out


# --- what is printed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("errors", [0, 3, 50])
def test_the_surest_wrong_answers_are_shown_first(
    flow: Flow,
    page: Path,
    mislabelled: Path,
    capsys: pytest.CaptureFixture[str],
    errors: int,
) -> None:
    capsys.readouterr()
    assert litebert("evaluate", "--model", flow.classifier, "--data", mislabelled, "--errors", errors) == 0
    said = capsys.readouterr().out
    wrong = [one for one in answers_in(page) if not one["right"]]
    surest = sorted(wrong, key=lambda one: -one["answer"]["probability"])[:errors]
    shown = [line for line in said.splitlines() if re.search(r"\d+% +│", line)]
    assert len(shown) == len(surest)
    for line, one in zip(shown, surest, strict=True):
        cells = [cell.strip() for cell in line.strip("│ ").split("│")]
        sure = f"{one['answer']['probability']:.0%}"
        assert cells == [one["truth"], one["answer"]["label"], sure, one["text"]]
    assert (f"{len(surest)} of {len(wrong)} answers that are not right" in said) == (errors > 0)


def test_several_models_and_files_are_shown_as_a_matrix(
    flow: Flow,
    tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    write_examples(tmp_path / "other.csv")
    other = untrained("classify", flow.examples, tokenizer, tmp_path / "model")
    models, files = (flow.classifier, other), (flow.examples, tmp_path / "other.csv")
    found = figures(capsys, "--model", *models, "--data", *files)
    assert [[(one["model"], one["data"]) for one in row] for row in found] == [
        [(str(model), str(data)) for data in files] for model in models
    ]
    alone = figures(capsys, "--model", other, "--data", files[1])
    assert found[1][1] == alone
    assert litebert("evaluate", "--model", *models, "--data", *files) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "accuracy"
    assert all(str(data) in "\n".join(lines) for data in files)
    for model, row in zip(models, found, strict=True):
        (line,) = (line for line in lines if str(model) in line)
        assert re.findall(r"\d\.\d{4}", line) == [f"{one['metrics']['accuracy']:.4f}" for one in row]


def test_a_page_of_several_models_is_refused(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = (flow.classifier, flow.classifier)
    assert litebert("evaluate", "--model", *models, "--data", flow.examples, "--out", tmp_path / "out") == 2
    assert "--out takes the page of one model on one file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- a pre-trained model ----------------------------------------------------------------------------------------------


def test_a_pretrained_model_is_measured_by_the_words_it_fills_in(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = figures(capsys, "--model", flow.pretrained, "--data", flow.corpus, "--out", tmp_path / "out")
    assert (measured["task"], measured["metric"]) == ("mask", "top1_accuracy")
    assert set(measured["baseline"]) == {"top1_accuracy", "top5_accuracy"}
    assert set(measured["metrics"]) == {"top1_accuracy", "top5_accuracy", "bits_per_character"}
    assert 0 <= measured["metrics"]["top1_accuracy"] <= measured["metrics"]["top5_accuracy"] <= 1
    asked = right = likely = 0
    for one in answers_in(tmp_path / "out"):
        for token, fills in zip(one["truth"].split(), one["answer"]["masks"], strict=True):
            asked += 1
            right += fills[0]["token"] == token
            likely += token in [fill["token"] for fill in fills]
    assert asked >= measured["examples"] > 0
    assert measured["metrics"]["top1_accuracy"] == pytest.approx(right / asked)
    assert measured["metrics"]["top5_accuracy"] == pytest.approx(likely / asked)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_pretrained_model_is_not_measured_on_a_table(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text('{"text": "the rain", "label": "weather"}\n')
    assert litebert("evaluate", "--model", flow.pretrained, "--data", tmp_path / name, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert f"was not fine-tuned for a task that {tmp_path / name} has examples of; run litebert finetune" in said
    assert not (tmp_path / "out").exists()


def test_a_page_is_not_written_into_the_folder_of_a_model(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    assert litebert("evaluate", "--model", flow.classifier, "--data", flow.examples, "--out", flow.classifier) == 2
    assert "already holds a model (config.json); choose another --out" in capsys.readouterr().err


def test_numbers_are_shown_by_how_far_off_they_are(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_jsonl(tmp_path / "t.jsonl", [{"text": f"rain {n}", "label": n * n} for n in range(6)])
    model = untrained("regress", data, tokenizer, tmp_path / "model")
    assert litebert("evaluate", "--model", model, "--data", data, "--errors", 2, "--out", tmp_path / "page") == 0
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    for shown, count in ((capsys.readouterr().out, 2), (page, 6)):
        said = " ".join(shown.split())  # a title may be wider than its table
        assert f"he {count} answers that are furthest off" in said
        assert "confiden" not in said.partition("furthest off")[2]
        assert said.index("rain 5") < said.index("rain 4")
