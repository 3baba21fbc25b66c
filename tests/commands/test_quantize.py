"""`litebert quantize` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from litebert.loading import load
from litebert.model.backends.int8 import has_int8
from tests.commands.conftest import Flow, litebert, make_examples, write_csv

pytestmark = pytest.mark.skipif(not has_int8(), reason="this CPU has no instructions for eight bits")


def test_a_classifier_becomes_smaller_and_its_score_is_told(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path / "some.csv", make_examples(24, seed=3))
    out = tmp_path / "int8"
    given = ("--model", flow.classifier, "--data", tmp_path / "some.csv", "--test", tmp_path / "some.csv")
    assert litebert("quantize", *given, "--out", out, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures == json.loads((out / "quantize.json").read_text())
    before, after = figures["scores"]
    assert figures["metric"] == "accuracy"
    assert after >= 0.9 * before
    assert 0 < figures["off_by_pass"][-1] < 0.2
    assert json.loads((out / "run.json").read_text())["command"] == "quantize"
    assert "int8" in repr(load(out))
    assert "int8" not in repr(load(out, engine="torch"))
    assert litebert("evaluate", "--model", out, "--data", tmp_path / "some.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] == pytest.approx(after)
    assert litebert("quantize", *given, "--out", out) == 2
    assert "already holds a model" in capsys.readouterr().err
    assert litebert("quantize", "--model", out, "--out", tmp_path / "again") == 2
    assert "is int8 already" in capsys.readouterr().err
    assert litebert("export", "--model", out, "--out", tmp_path / "graph") == 2
    assert "export the model that it was quantized from" in capsys.readouterr().err
    taught = ("--model", out, "--train", tmp_path / "some.csv", "--out", tmp_path / "taught")
    assert litebert("finetune", *taught) == 2
    assert "is quantized to int8 and cannot be trained" in capsys.readouterr().err


def test_half_the_bits_are_read_by_everybody(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(tmp_path / "some.csv", make_examples(24, seed=3))
    some, out = tmp_path / "some.csv", tmp_path / "half"
    assert (
        litebert("quantize", "--to", "bf16", "--model", flow.classifier, "--data", some, "--test", some, "--out", out)
        == 0
    )
    told = capsys.readouterr()
    assert "bf16" in told.out
    assert f"next: litebert predict --model {out} --precision bf16" in told.err
    figures = json.loads((out / "quantize.json").read_text())
    before, after = figures["megabytes"]
    assert after < 0.55 * before
    assert 0 < figures["off_by_pass"][-1] < 0.02
    texts = [one["text"] for one in make_examples(24, seed=3)]
    half = load(out, engine="bf16")
    assert half.bf16
    assert [one.label for one in half.predict(texts)] == [one.label for one in load(flow.classifier).predict(texts)]


def test_a_table_says_what_is_gained(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert litebert("quantize", "--model", flow.classifier, "--out", tmp_path / "int8") == 0
    told = capsys.readouterr()
    assert "weights, MB" in told.out
    assert "times as fast" in told.out
    working = (f"loading {flow.classifier}", "making int8", "timing both on 64 tokens")
    assert tuple(told.err.splitlines()[:3]) == working  # a log is never silent for long
    assert f"next: litebert predict --model {tmp_path / 'int8'}" in told.err


def test_mistakes_are_told_and_nothing_is_written(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    write_csv(tmp_path / "some.csv", make_examples(3, seed=3))
    for model, data, said in (
        ("litebert-small-zh", "empty.txt", "empty.txt: no text"),
        ("litebert-small-zh", "some.csv", "was taught no task that reads tables"),
        (flow.classifier, "none.csv", "none.csv"),
    ):
        assert litebert("quantize", "--model", model, "--data", tmp_path / data, "--out", tmp_path / "out") == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    given = ("--model", flow.classifier, "--data", tmp_path / "some.csv", "--test", tmp_path / "none.csv")
    assert litebert("quantize", *given, "--out", tmp_path / "out") == 2
    assert "none.csv" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_stopped_leaves_nothing_behind(flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: object) -> None:
        assert (tmp_path / "out" / "model.safetensors").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr("litebert.compress.report.encoder_latency_ms", stopped)
    assert litebert("quantize", "--model", flow.classifier, "--out", tmp_path / "out") == 130
    assert not (tmp_path / "out").exists()


def test_plain_texts_are_enough_for_a_classifier(flow: Flow, tmp_path: Path) -> None:
    rows = make_examples(30, seed=3)
    (tmp_path / "texts.txt").write_text("".join(f"{row['text']}\n" for row in rows))
    write_csv(tmp_path / "texts.csv", rows)
    for name in ("texts.txt", "texts.csv"):
        given = ("--model", flow.classifier, "--data", tmp_path / name, "--out", tmp_path / name[6:])
        assert litebert("quantize", *given) == 0
    both = [json.loads((tmp_path / kind / "config.json").read_text())["litebert"]["int8"] for kind in ("txt", "csv")]
    assert both[0] == both[1] != {}


def test_data_needs_no_labels_where_the_test_names_them(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_examples(30, seed=3)
    texts = write_csv(tmp_path / "texts.csv", [{"sentence": row["text"]} for row in rows])
    test = write_csv(tmp_path / "test.csv", [{"sentence": row["text"], "class": row["label"]} for row in rows])
    columns = ("--columns", "text=sentence", "label=class")
    given = ("--model", flow.classifier, "--data", texts, "--test", test, *columns)
    assert litebert("quantize", *given, "--out", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["scores"][0] > 0.5
