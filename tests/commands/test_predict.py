"""Prediction through the command line: pipes, files of every task, the order of answers, mistakes on the way."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import litebert as package
from litebert.studies.demo.data import write_questions
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import Flow, litebert, make_examples
from tests.commands.finetuning import untrained, write_choices, write_jsonl

PATIENCE_SECONDS = 120  # of a reader, on a machine with much else to do


def answered(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[Any]:
    capsys.readouterr()
    assert litebert("predict", *arguments) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def ask(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode("utf-8"))))


def next_line(pipe: io.BufferedReader) -> bytes:
    """The next line of a pipe; a failure, and not a hang, where none comes."""
    ready, _, _ = select.select([pipe], [], [], PATIENCE_SECONDS)
    assert ready, "no answer came"
    return pipe.readline()


def test_in_a_slow_pipe_a_line_is_answered_before_the_next_one_comes(flow: Flow) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "litebert", "predict", "--model", str(flow.classifier), "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},  # as a user's shell has it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for text in (b"rain and thunder\n", b"eggs and butter\n"):
            process.stdin.write(text)
            assert "label" in json.loads(next_line(process.stdout))  # type: ignore[arg-type]
        process.stdin.close()
        assert next_line(process.stdout) == b""  # type: ignore[arg-type]
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def close(one: Any, other: Any) -> bool:
    """The same answer, whatever it was padded with."""
    same = one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)
    return bool(one["label"] == other["label"] and same)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_answers_keep_the_order_of_short_and_long_lines(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str], batch_size: int
) -> None:
    words = [example["text"] for example in make_examples(60)]
    lines = [" ".join(words[: 1 + 7 * (n % 3)]) if n % 2 else words[n].split()[0] for n in range(40)]
    lines.insert(5, "")
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    arguments = ("--model", flow.classifier, "--input", tmp_path / "in.txt", "--batch-size", batch_size)
    found = answered(capsys, *arguments)
    assert [answer is None for answer in found] == [not line for line in lines]
    model = package.load(flow.classifier)
    alone = {line: asdict(model.predict([line])[0]) for line in set(lines) - {""}}
    assert all(close(answer, alone[line]) for answer, line in zip(found, lines, strict=True) if line)


def test_answers_come_in_the_precision_that_is_asked_for(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(example["text"] for example in make_examples(8)))
    given = ("--model", flow.classifier, "--input", tmp_path / "in.txt", "--device", "cpu")
    plain, exact, rough = (answered(capsys, *given, "--precision", name) for name in ("auto", "fp32", "bf16"))
    assert plain == exact != rough
    for one, other in zip(exact, rough, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=0.03)


def test_only_passes_that_were_learned_are_taken(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("rain\n")
    given = ("--model", flow.classifier, "--input", tmp_path / "in.txt", "--device", "cpu")
    most = package.load(flow.classifier).config.num_hidden_layers
    assert litebert("predict", *given, "--passes", most) == 0
    capsys.readouterr()
    for wrong in (0, most + 1):
        assert litebert("predict", *given, "--passes", wrong) == 2
        told = capsys.readouterr()
        assert f"passes={wrong} must lie between 1 and the {most} that the model was trained with" in told.err
        assert not told.out


def test_eight_bits_are_refused_where_there_are_none(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("rain\n")
    given = ("--model", flow.classifier, "--input", tmp_path / "in.txt", "--device", "cpu", "--precision", "fp8")
    assert litebert("predict", *given) == 2
    assert "precision=fp8 needs an NVIDIA GPU that computes in fp8" in capsys.readouterr().err


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "not labelled"])
def test_the_questions_of_a_squad_file_are_answered(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str], labelled: bool
) -> None:
    path = write_questions(tmp_path / "q.json", 3, "0")
    model = untrained("answer", path, tokenizer, tmp_path / "model")
    content = json.loads(path.read_text(encoding="utf-8"))
    asked = [
        (question["question"], paragraph["context"])
        for paragraph in content["data"][0]["paragraphs"]
        for question in paragraph["qas"]
    ]
    if not labelled:
        for paragraph in content["data"][0]["paragraphs"]:
            paragraph["qas"] = [{"question": question["question"]} for question in paragraph["qas"]]
        path.write_text(json.dumps(content), encoding="utf-8")
    found = answered(capsys, "--model", model, "--input", path)
    assert len(found) == len(asked) == 12
    expected = [asdict(answer) for answer in package.load(model).predict(asked)]
    assert [answer["text"] for answer in found] == [answer["text"] for answer in expected]
    for answer, (_, context) in zip(found, asked, strict=True):
        assert context[answer["start"] : answer["end"]] == answer["text"]


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "not labelled"])
def test_the_questions_of_a_dream_file_are_answered(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str], labelled: bool
) -> None:
    model = untrained("choose", write_choices(tmp_path / "c", 0), tokenizer, tmp_path / "model")
    choice = ["rain", "eggs", "the train"]
    known: dict[str, Any] = {"choice": choice} | ({"answer": "eggs"} if labelled else {})
    questions = [known | {"question": question} for question in ("what fell", "what was it")]
    (tmp_path / "dream.json").write_text(json.dumps([[["m the rain", "w and eggs"], questions, "1-2"]] * 2))
    found = answered(capsys, "--model", model, "--input", tmp_path / "dream.json")
    assert len(found) == 4
    assert found[0] == found[2]
    assert found[0]["probabilities"] != found[1]["probabilities"]
    assert all(answer["option"] == choice[answer["choice"]] for answer in found)
    assert all(sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5) for answer in found)
    passage = {"text": "m the rain\nw and eggs", "question": "what fell", "options": choice}
    (expected,) = package.load(model).predict([passage])
    assert found[0]["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)


def test_choices_come_as_lines_too(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_choices(tmp_path / "c", 0)
    model = untrained("choose", path, tokenizer, tmp_path / "model")
    from_file = answered(capsys, "--model", model, "--input", path)
    ask(path.read_text(encoding="utf-8"), monkeypatch)
    assert answered(capsys, "--model", model) == from_file


MISTAKES = {"half an object": '{"text"', "no text": '{"txt": "rain"}', "a number": '{"text": 7}'}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("source", ["-", "in.txt"])
def test_what_came_before_a_mistake_is_answered(
    flow: Flow,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    mistake: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "the rain\n\n" + json.dumps({"text": "eggs"}) + "\n" + MISTAKES[mistake] + "\nthe train\n"
    Path("in.txt").write_text(lines)
    ask(lines, monkeypatch)
    capsys.readouterr()
    assert litebert("predict", "--model", flow.classifier, "--input", source) == 2
    said = capsys.readouterr()
    assert [json.loads(line) is None for line in said.out.splitlines()] == [False, True, False]
    assert f"{'standard input' if source == '-' else source}, line 4: " in said.err
    assert said.err.count("\n") == 1


def test_a_mistake_in_a_table_leaves_no_file(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_jsonl(tmp_path / "t.jsonl", [{"text": "the rain"}, {"txt": "eggs"}])
    out = tmp_path / "out.jsonl"
    capsys.readouterr()
    assert litebert("predict", "--model", flow.classifier, "--input", rows, "--output", out) == 2
    assert f"{rows}, line 2: no text" in capsys.readouterr().err
    assert not out.exists()


def test_a_mistake_in_a_pipe_that_stays_open_ends_the_command_cleanly(flow: Flow) -> None:
    """A thread that waits for more of a pipe must not bring the interpreter down when the command ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "litebert", "predict", "--model", str(flow.pretrained), "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        process.stdin.write(b"there is no gap here\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_SECONDS) == 2
        assert process.stderr.read().startswith(b"litebert: standard input, line 1:")
    finally:
        process.kill()
        process.stdin.close()


def test_columns_are_named_for_answers_as_they_are_for_learning(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("number,phrase\n1,rain and thunder\n2,eggs\n")
    plain = answered(capsys, "--model", flow.classifier, "--input", flow.examples)
    named = answered(capsys, "--model", flow.classifier, "--input", table, "--columns", "text=phrase")
    assert len(named) == 2
    assert named[0].keys() == plain[0].keys()
    assert named == [asdict(x) for x in package.load(flow.classifier).predict(["rain and thunder", "eggs"])]


def test_rows_that_cannot_be_read_are_left_out_and_counted(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_jsonl(tmp_path / "t.jsonl", [{"text": "rain"}, {"text": 7}, {"text": "eggs"}])
    assert litebert("predict", "--model", flow.classifier, "--input", rows, "--skip-bad") == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2
    assert f"1 left out, the first: {rows}, line 2" in told.err


def test_a_file_of_tagged_words_is_asked_about_its_texts(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.conll"
    path.write_text("Anna B-person\nrang O\n\nNobody O\n")
    model = untrained("tag", path, tokenizer, tmp_path / "tagger")
    texts = ["Anna rang", "Nobody"]
    assert answered(capsys, "--model", model, "--input", path) == [
        asdict(x) for x in package.load(model).predict(texts)
    ]


def test_spans_count_the_spaces_before_a_text(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.conll"
    path.write_text("Anna B-person\nrang O\n")
    model = untrained("tag", path, tokenizer, tmp_path / "tagger")
    ask("   Anna rang Anna\n", monkeypatch)
    spans = answered(capsys, "--model", model)[0]["spans"]
    assert all("   Anna rang Anna"[span["start"] : span["end"]] == span["text"] for span in spans)
    assert spans == asdict(package.load(model).predict(["   Anna rang Anna"])[0])["spans"]


@pytest.fixture
def paired(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A model that was taught numbers of pairs."""
    rows = [{"text_a": f"rain {n}", "text_b": f"snow {n}", "label": n} for n in range(9)]
    train = write_jsonl(tmp_path / "pairs.jsonl", rows)
    start = untrained("regress", train, tokenizer, tmp_path / "start")
    assert litebert("finetune", "--task", "regress", "--model", start, "--train", train, "--out", tmp_path / "paired",
                    "--epochs", 1, "--device", "cpu") == 0  # fmt: skip
    return tmp_path / "paired"


def test_a_line_may_be_a_pair(
    paired: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, named = ["rain 1", "snow 2"], {"text_a": "rain 1", "text_b": "snow 2"}
    ask(f"{json.dumps(pair)}\n{json.dumps(named)}\n", monkeypatch)
    first, second = answered(capsys, "--model", paired)
    assert first == second


@pytest.mark.filterwarnings("ignore:.*unknown to this vocabulary")
def test_a_text_that_begins_with_a_bracket_is_a_text(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["[news] rain", '["rain"]', "[1, 2]", '["rain", 3]']
    ask("".join(f"{text}\n" for text in texts), monkeypatch)
    found = answered(capsys, "--model", flow.classifier)
    assert found == [asdict(answer) for answer in package.load(flow.classifier).predict(texts)]


def test_a_model_taught_numbers_of_pairs_refuses_a_single_text(
    paired: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask("rain\n", monkeypatch)
    assert litebert("predict", "--model", paired) == 2
    assert "standard input, line 1: a single text, but this task is about pairs" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--skip-bad",)])
def test_lines_before_one_that_cannot_be_answered_are(
    paired: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    good, bad = '["rain 1", "snow 2"]', "rain alone"
    ask("\n".join([good] * 5 + [bad] + [good] * 2) + "\n", monkeypatch)
    capsys.readouterr()
    assert litebert("predict", "--model", paired, *flags) == (0 if flags else 2)
    shown = capsys.readouterr()
    found = [json.loads(line) for line in shown.out.splitlines()]
    assert [answer is not None for answer in found] == [True] * 5 + ([False, True, True] if flags else [])
    assert "line 6: a single text" in shown.err


def test_the_input_is_not_replaced_by_the_answers(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("rain\n", encoding="utf-8")
    assert (
        litebert("predict", "--model", flow.classifier, "--input", path, "--output", tmp_path / "." / "texts.txt") == 2
    )
    assert "is the input, which the answers would replace; name another file" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "rain\n"


def test_answers_keep_step_with_the_rows_of_a_table(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\nrain,weather\n,\nbutter,food\n,food\n", encoding="utf-8")
    found = answered(capsys, "--model", flow.classifier, "--input", path)
    assert [answer is None for answer in found] == [False, True, False, True]
