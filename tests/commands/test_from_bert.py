"""`litebert distill` from teachers that other libraries made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from litebert.compress.teachers import load_bert_teacher, load_other_teacher
from litebert.files import file_sha256, read_json
from litebert.loading import load
from tests.commands.conftest import Flow, litebert, write_csv
from tests.interop.berts import WORDS, make_bert

QUICK = ("--device", "cpu", "--batch-size", 8)
LABELS = {0: "bad", 1: "good"}


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, 6)) for _ in range(count)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text("\n".join(texts(160)) + "\n")
    return path


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that only gives vectors."""
    folder = tmp_path_factory.mktemp("sentences")
    make_bert(folder)
    return folder


@pytest.fixture(scope="module")
def albert(sentences: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("albert") / "out"
    given = ("--from-bert", sentences, "--data", data, "--out", out, "--epochs", 10, "--embedding-size", 16)
    assert litebert("distill", *given, *QUICK) == 0
    return out


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def test_a_bert_becomes_an_albert_whose_vectors_are_near_its_own(
    sentences: Path, albert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_json(albert / "finished.json")
    assert found["distance"][1] < 0.9 * found["distance"][0]
    assert found["passes"] == [3, 3]
    bert, made = load_bert_teacher(sentences), load(albert)
    own = sum(one.numel() for one in make_parameters(sentences))
    assert found["parameters"] == [own, sum(one.numel() for one in made.encoder.parameters())]
    assert found["parameters"][1] < found["parameters"][0] / 2
    new = [f"{text} now" for text in texts(20)]
    assert cosines(made.embed(new), bert.embed(new)).mean() > 0.8
    assert (
        cosines(made.embed(new)[::-1], bert.embed(new)).mean() < cosines(made.embed(new), bert.embed(new)).mean() - 0.1
    )


def make_parameters(folder: Path) -> list[torch.Tensor]:
    import transformers

    return list(transformers.AutoModel.from_pretrained(folder).parameters())


def test_what_comes_out_is_an_albert_for_everybody(albert: Path, data: Path, tmp_path: Path) -> None:
    import sentence_transformers
    import transformers

    made = load(albert)
    theirs = transformers.AutoModel.from_pretrained(albert).eval()
    assert type(theirs).__name__ == "AlbertModel"
    ids = torch.tensor([made.tokenizer.encode(["the order was late"])[0].ids])
    with torch.no_grad():
        torch.testing.assert_close(made.encoder(ids), theirs(ids).last_hidden_state, atol=1e-5, rtol=1e-5)
    vectors = sentence_transformers.SentenceTransformer(str(albert), device="cpu").encode(texts(4))
    np.testing.assert_allclose(made.embed(texts(4)), vectors, atol=1e-5)
    assert litebert("quantize", "--model", albert, "--data", data, "--out", tmp_path / "int8") == 0
    assert cosines(load(tmp_path / "int8").embed(texts(4)), vectors).min() > 0.9
    assert litebert("export", "--model", albert, "--out", tmp_path / "onnx") == 0


@pytest.mark.parametrize("flags", [("--passes", 2), ("--embedding-size", 8)], ids=str)
def test_every_setting_changes_what_is_made(
    flags: tuple[object, ...], sentences: Path, albert: Path, data: Path, tmp_path: Path
) -> None:
    given = ("--from-bert", sentences, "--data", data, "--out", tmp_path / "out", "--epochs", 1, *QUICK, *flags)
    assert litebert("distill", *given) == 0
    assert file_sha256(tmp_path / "out" / "model.safetensors") != file_sha256(albert / "model.safetensors")
    name = {"--passes": "num_hidden_layers", "--embedding-size": "embedding_size"}[str(flags[0])]
    assert getattr(load(tmp_path / "out").config, name) == flags[1]


def test_a_classifier_is_scored_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_bert(tmp_path / "bert", "BertForSequenceClassification", id2label=LABELS)
    teacher = load_bert_teacher(tmp_path / "bert")
    rows = [{"text": text, "label": one.label} for text, one in zip(texts(96), teacher.predict(texts(96)), strict=True)]
    assert len({row["label"] for row in rows}) == 2
    data = write_csv(tmp_path / "some.csv", rows)
    given = ("--from-bert", tmp_path / "bert", "--data", data, "--test", data, "--out", tmp_path / "out", *QUICK)
    assert litebert("distill", *given, "--epochs", 8, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["scores"][0] == 1
    assert found["distance"][1] < found["distance"][0]
    assert 0 < found["score_before"] <= found["scores"][1]
    assert litebert("predict", "--model", tmp_path / "out", "--input", data) == 0
    assert '"label"' in capsys.readouterr().out
    again = (*given[:-6], "--test", data, "--out", tmp_path / "again", *QUICK)
    assert litebert("distill", *again, "--epochs", 1) == 0
    told = capsys.readouterr().out
    assert "accuracy before the first step" in told
    assert "parameters" in told


def test_a_bert_with_a_head_for_hidden_words_passes_it_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bert(tmp_path / "bert", "BertForMaskedLM")
    given = ("--from-bert", tmp_path / "bert", "--data", data, "--out", tmp_path / "out", "--epochs", 6, *QUICK)
    assert litebert("distill", *given) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    answers = [line["validation_answers"] for line in lines if "validation_answers" in line]
    assert answers[-1] < 0.9 * answers[0]
    assert load(tmp_path / "out").fill_mask("the [MASK] was late")


@pytest.mark.parametrize("kind", ["ElectraModel", "BertModel"])
def test_a_student_of_another_vocabulary_learns_vectors(
    kind: str, flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bert(tmp_path / "teacher", kind)
    given = ("--teacher", tmp_path / "teacher", "--student", flow.pretrained, "--data", data, "--epochs", 4, *QUICK)
    assert litebert("distill", *given, "--learning-rate", 1e-5, "--out", tmp_path / "out") == 0
    assert "times as fast" in capsys.readouterr().out
    assert read_json(tmp_path / "out" / "finished.json")["distance"][1] < 0.2
    teacher, new = load_other_teacher(tmp_path / "teacher"), [f"{text} now" for text in texts(20)]
    assert teacher is not None
    assert cosines(load(tmp_path / "out").embed(new), teacher.embed(new)).mean() > 0.75


def test_a_student_of_another_vocabulary_learns_answers(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bert(tmp_path / "teacher", "ElectraForSequenceClassification", id2label=LABELS)
    data = write_csv(tmp_path / "some.csv", [{"text": t, "label": LABELS[i % 2]} for i, t in enumerate(texts(64))])
    given = ("--teacher", tmp_path / "teacher", "--student", flow.pretrained, "--data", data, "--test", data)
    assert litebert("distill", *given, "--out", tmp_path / "out", "--epochs", 3, *QUICK, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["distance"][1] < found["distance"][0]
    assert len(found["scores"]) == 2
    assert {one.label for one in load(tmp_path / "out").predict(["thanks", "bad"])} <= set(LABELS.values())


def test_a_student_of_the_same_vocabulary_learns_states(
    sentences: Path, albert: Path, data: Path, tmp_path: Path
) -> None:
    given = ("--teacher", sentences, "--student", albert, "--data", data, "--epochs", 1, *QUICK)
    assert litebert("distill", *given, "--out", tmp_path / "out") == 0
    lines = (tmp_path / "out" / "metrics.jsonl").read_text()
    assert '"validation_states"' in lines


def test_mistakes_are_told(
    sentences: Path, flow: Flow, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, said in (
        ((), "give one of --teacher"),
        (("--teacher", flow.classifier, "--from-bert", sentences), "give one of --teacher"),
        (("--from-bert", sentences, "--student", flow.pretrained), "makes its own student"),
        (("--teacher", flow.pretrained, "--embedding-size", 8), "is for --from-bert"),
        (("--from-bert", sentences, "--embedding-size", 64), "must lie between 2 and the 32"),
        (("--from-bert", flow.pretrained), "model_type='albert' is not one of"),
        (("--from-bert", tmp_path / "none"), "has no config.json"),
        (("--teacher", sentences), "give a --student, or if it is a BERT make an ALBERT of it with --from-bert"),
        (("--from-bert", sentences, "--test", data), "needs a model that was taught a task"),
    ):
        assert litebert("distill", *flags, "--data", data, "--out", tmp_path / "out") == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
