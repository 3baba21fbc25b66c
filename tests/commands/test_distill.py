"""`litebert distill` from the command line."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch

from litebert.files import file_sha256, read_json
from litebert.loading import load
from litebert.trainers.distill_config import SPEEDS
from tests.commands.conftest import UNUSUAL, Flow, litebert, make_examples, write_csv

QUICK = ("--epochs", 2, "--device", "cpu", "--passes", 1)


def weights(folder: Path) -> str:
    return file_sha256(folder / "model.safetensors")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "some.csv", make_examples(96, seed=3))


@pytest.fixture(scope="module")
def distilled(flow: Flow, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("distilled") / "out"
    assert litebert("distill", "--teacher", flow.classifier, "--data", data, "--out", out, *QUICK) == 0
    return out


def test_a_student_comes_nearer_and_both_are_scored(
    flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ("distill", "--teacher", flow.classifier, "--data", data, "--test", data, "--out", out, *QUICK)
    assert litebert(*given, "--epochs", 6, "--json") == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["distance"][1] < found["distance"][0]
    assert found["passes"] == [load(flow.classifier).config.num_hidden_layers, 1]
    assert found["metric"] == "accuracy"
    assert found["scores"][1] > 1 / 3
    assert read_json(out / "finished.json") == found
    assert f"next: litebert quantize --model {out}" in told.err
    assert load(out).config.num_hidden_layers == 1
    assert litebert("evaluate", "--model", out, "--data", data, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] == pytest.approx(found["scores"][1])
    assert litebert(*given) == 2
    assert "already holds a distilled model" in capsys.readouterr().err
    assert litebert(*given, "--resume") == 0
    assert "nothing to resume" in capsys.readouterr().err


def test_a_pre_trained_teacher_is_learned_from_plain_text(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--teacher", flow.pretrained, "--data", flow.corpus, "--out", tmp_path / "out", *QUICK)
    assert litebert("distill", *given) == 0
    told = capsys.readouterr().out
    assert "times as fast" in told
    assert load(tmp_path / "out").fill_mask("the [MASK] was late")


@pytest.mark.parametrize(
    "flags",
    [
        ("--passes", 2), ("--epochs", 1), ("--batch-size", 7), ("--learning-rate", 1e-3), ("--seed", 1),
        ("--precision", UNUSUAL), ("--student", "pretrained"), ("--elastic", "--passes", 2), ("--valid", "data"),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)  # fmt: skip
def test_every_setting_changes_what_is_learned(
    flags: tuple[object, ...], flow: Flow, data: Path, distilled: Path, tmp_path: Path
) -> None:
    if flags[0] == "--student":
        flags = ("--student", flow.pretrained)
    if flags[0] == "--valid":
        flags = ("--valid", data)
    given = ("--teacher", flow.classifier, "--data", data, "--out", tmp_path / "out", *QUICK)
    assert litebert("distill", *given, *flags) == 0
    assert weights(tmp_path / "out") != weights(distilled)


def test_texts_to_choose_by_are_those_that_were_given(
    flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valid, out = write_csv(tmp_path / "valid.csv", make_examples(7, seed=4)), tmp_path / "out"
    given = ("distill", "--teacher", flow.classifier, "--data", data, "--out", out, *QUICK, "--passes", 4, "--elastic")
    assert litebert(*given, "--valid", valid) == 0
    assert "96 training texts, 7 validation texts" in capsys.readouterr().err
    for _, passes, same in read_json(out / "finished.json")["exits"]:
        assert passes * 7 == pytest.approx(round(passes * 7))
        assert same * 7 == pytest.approx(round(same * 7))


def test_without_a_text_to_choose_by_nothing_begins(
    flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valid, out = tmp_path / "valid.csv", tmp_path / "out"
    valid.write_text("text,label\n")
    assert litebert("distill", "--teacher", flow.classifier, "--data", data, "--valid", valid, "--out", out) == 2
    assert str(valid) in capsys.readouterr().err
    assert not out.exists()


def test_an_elastic_student_answers_at_every_depth(
    flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = (
        "--teacher",
        flow.classifier,
        "--data",
        data,
        "--test",
        data,
        "--elastic",
        "--epochs",
        4,
        "--device",
        "cpu",
    )
    assert litebert("distill", *given, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    depths = found["passes"]
    assert depths == [4, 1, 2, 3, 4]
    assert len(found["scores"]) == len(found["milliseconds"]) == 5
    assert found["distance"][1] < found["distance"][0]
    for depth, score in zip(depths[1:], found["scores"][1:], strict=True):
        assert litebert("evaluate", "--model", out, "--data", data, "--passes", depth, "--json") == 0
        assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] == pytest.approx(score)
    exits = found["exits"]
    assert [row[1] for row in exits] == sorted((row[1] for row in exits), reverse=True)
    assert 1 <= exits[-1][1] < 1.5
    speed = 4 / exits[len(exits) // 2][1]
    assert litebert("evaluate", "--model", out, "--data", data, "--speed", speed, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["metrics"]["accuracy"] > 1 / 3
    assert 1 <= told["passes"] < 4
    assert litebert("evaluate", "--model", out, "--data", data, "--speed", speed) == 0
    assert "mean passes" in capsys.readouterr().out
    assert found["early"]
    for (passes, score), fast in zip(found["early"], SPEEDS, strict=False):
        assert litebert("evaluate", "--model", out, "--data", data, "--speed", fast, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["passes"], told["metrics"]["accuracy"]) == (pytest.approx(passes), pytest.approx(score))
    drawing = (out / "speed.svg").read_text()
    assert "easy texts stop early" in drawing
    assert "accuracy against speed" in drawing
    assert litebert("evaluate", "--model", flow.classifier, "--data", data, "--speed", 2) == 2
    assert "has not learned to answer early" in capsys.readouterr().err
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {f"validation_loss after {depth}" for depth in depths} <= set().union(*logged)


def test_a_student_that_learned_nothing_is_called_so(
    flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--teacher", flow.classifier, "--data", data, "--out", tmp_path / "out", *QUICK)
    assert litebert("distill", *given, "--learning-rate", 0.5) == 0
    assert "has come no nearer to its teacher" in capsys.readouterr().err


def test_labels_are_not_looked_at(flow: Flow, data: Path, distilled: Path, tmp_path: Path) -> None:
    rows = [{"text": row["text"]} for row in make_examples(96, seed=3)]
    given = ("--teacher", flow.classifier, "--data", write_csv(tmp_path / "texts.csv", rows))
    assert litebert("distill", *given, "--out", tmp_path / "out", *QUICK) == 0
    assert weights(tmp_path / "out") == weights(distilled)


def run_alone(*arguments: object) -> None:
    with Path(os.devnull).open("w") as quiet, contextlib.redirect_stderr(quiet):
        torch.set_num_threads(1)
        os._exit(litebert(*arguments))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow)],
)
def test_a_run_that_was_ended_resumes_to_the_same_bits(
    number: int, code: int, flow: Flow, data: Path, tmp_path: Path
) -> None:
    def command(out: Path) -> tuple[object, ...]:
        long = ("--epochs", 12, "--batch-size", 8, "--save-every", 3)
        return ("distill", "--teacher", flow.classifier, "--data", data, "--out", out, *QUICK, *long)

    out, whole = tmp_path / "out", tmp_path / "whole"
    assert litebert(*command(whole)) == 0
    process = multiprocessing.get_context("fork").Process(target=run_alone, args=command(out))
    process.start()
    latest = out / "checkpoints" / "latest"
    while not latest.exists() or latest.read_text() < "step-00000015":  # after the first validation
        assert process.is_alive()
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == code
    assert not (out / "finished.json").exists()
    assert litebert(*command(out), "--resume") == 0
    assert weights(out) == weights(whole)


def test_mistakes_are_told(flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_csv(tmp_path / "one.csv", make_examples(1))
    for flags, said in (
        (("--teacher", tmp_path / "none", "--data", data), "no such folder"),
        (("--teacher", flow.classifier, "--data", tmp_path / "none.csv"), "none.csv"),
        (("--teacher", flow.classifier, "--data", one), "1 text is too few"),
        (("--teacher", flow.classifier, "--data", data, "--test", tmp_path / "none.csv"), "none.csv"),
        (("--teacher", flow.pretrained, "--data", flow.corpus, "--test", data), "needs a model that was taught a task"),
        (("--teacher", flow.pretrained, "--data", data), "was taught no task that reads tables"),
        (("--teacher", flow.classifier, "--data", data, "--passes", 0), "passes=0 must be at least 1"),
        (("--teacher", flow.classifier, "--data", data, "--passes", 4), "must be fewer than the teacher's 4"),
        (("--teacher", flow.classifier, "--data", data, "--learning-rate", 2), "learning_rate=2.0 must lie between"),
    ):
        assert litebert("distill", *flags, "--out", tmp_path / "out") == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
