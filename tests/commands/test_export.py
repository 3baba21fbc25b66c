"""`litebert export` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tokenizers

from litebert.files import file_sha256
from litebert.loading import load
from tests.commands.conftest import Flow, litebert, make_examples, write_csv


def test_a_classifier_answers_the_same_elsewhere(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_csv(tmp_path / "some.csv", make_examples(24, seed=3))
    out = tmp_path / "onnx"
    assert litebert("export", "--model", flow.classifier, "--test", data, "--out", out, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures == json.loads((out / "export.json").read_text())
    assert figures["off"] < 1e-4
    assert figures["metric"] == "accuracy"
    assert figures["scores"][0] == figures["scores"][1] > 0.5

    # as somebody would use it who has never heard of litebert
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    encoded = tokenizer.encode("rain and thunder on the roof")
    given = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
    (scores,) = session.run(["scores"], {name: np.array([values]) for name, values in given.items()})
    names = json.loads((out / "config.json").read_text())["id2label"]
    truth = load(flow.classifier).predict(["rain and thunder on the roof"])[0]
    assert names[str(scores[0].argmax())] == truth.label

    assert litebert("export", "--model", flow.classifier, "--out", out) == 2
    assert "already holds an exported model" in capsys.readouterr().err
    assert litebert("predict", "--model", out, "--input", data) == 2
    assert "holds a graph for other runtimes" in capsys.readouterr().err


@pytest.mark.parametrize("give", ["auto", "answers"])
def test_a_pre_trained_model_gives_vectors_or_scores_of_the_vocabulary(
    flow: Flow, give: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--model", flow.pretrained, "--give", give, "--int8")
    assert litebert("export", *given, "--out", tmp_path / "out") == 0
    told, working = capsys.readouterr()
    assert "loading " in working  # a log is never silent for long
    assert "some ten seconds\nchecking it against torch\n" in working
    wanted = "logits" if give == "answers" else "last_hidden_state, sentence_embedding"
    assert f"MB, gives {wanted}" in told
    assert "largest relative error against torch" in told


def test_an_adapted_model_is_a_graph_too(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, data = (write_csv(tmp_path / f"{seed}.csv", make_examples(24, seed=seed)) for seed in (3, 4))
    adapted, out = tmp_path / "adapted", tmp_path / "onnx"
    assert litebert("adapt", "--model", flow.pretrained, "--examples", few, "--out", adapted, "--budget", "0") == 0
    capsys.readouterr()
    assert litebert("export", "--model", adapted, "--test", data, "--out", out, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["outputs"] == ["scores", "probabilities", "unknown"]
    assert figures["off"] < 1e-4
    assert figures["scores"][0] == figures["scores"][1] > 0.5
    encoded = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")).encode("rain and thunder on the roof")
    given = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}
    found = session.run(["probabilities"], {name: np.array([some]) for name, some in given.items() if name in wanted})
    names = json.loads((out / "config.json").read_text())["id2label"]
    truth = load(adapted).predict(["rain and thunder on the roof"])[0]
    told = {names[str(number)]: value for number, value in enumerate(found[0][0].tolist())}
    assert told == pytest.approx(truth.probabilities, abs=1e-4)
    assert litebert("predict", "--model", out, "--input", data) == 2
    assert "holds a graph for other runtimes" in capsys.readouterr().err
    assert litebert("export", "--model", adapted, "--format", "torch", "--out", tmp_path / "program") == 0


def test_torchs_own_form(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--model", flow.classifier, "--format", "torch", "--json")
    assert litebert("export", *given, "--out", tmp_path / "out") == 0
    assert json.loads(capsys.readouterr().out)["off"] < 1e-5
    assert (tmp_path / "out" / "model.pt2").is_file()


def test_mistakes_are_told_and_nothing_is_written(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_csv(tmp_path / "some.csv", make_examples(6, seed=3))
    for flags, said in (
        (("--model", tmp_path / "none"), "no such folder"),
        (("--model", flow.pretrained, "--test", data), "needs a model that was taught a task"),
        (("--model", flow.classifier, "--test", tmp_path / "none.csv"), "none.csv"),
        (("--model", flow.classifier, "--format", "torch", "--int8"), "--int8 is for ONNX"),
        (("--model", flow.classifier, "--give", "vectors", "--test", data), "--test scores the answers"),
    ):
        assert litebert("export", *flags, "--out", tmp_path / "out") == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    before = file_sha256(flow.classifier / "config.json")
    assert litebert("export", "--model", flow.classifier, "--out", flow.classifier) == 2
    assert "already holds a model (config.json)" in capsys.readouterr().err
    assert file_sha256(flow.classifier / "config.json") == before


def test_a_graph_that_is_wrong_is_not_kept(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("litebert.interop.export.MAX_ERROR", 0.0)
    assert litebert("export", "--model", flow.classifier, "--out", tmp_path / "out") == 2
    assert "so it was deleted" in capsys.readouterr().err
    assert not (tmp_path / "out" / "model.onnx").exists()
    assert litebert("export", "--model", flow.classifier, "--no-check", "--out", tmp_path / "out") == 0
