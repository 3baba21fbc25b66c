"""`litebert convert`: any checkpoint in, any format out, and what it says. The commands of its page are run here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import litebert
from litebert.cli import main
from litebert.inference import Model
from litebert.interop import verify
from litebert.interop.huggingface import Folder, named_tensors, save_folder
from litebert.model import Albert, pretraining_heads
from litebert.tasks import Mask, Tag
from tests.conftest import PROSE, REPOSITORY, peer
from tests.interop.test_formats import FIXTURES, TENSORFLOW, assert_same_states, settings_in, with_their_names
from tests.interop.test_huggingface import stir
from tests.interop.test_tensorflow import tensorflow
from tests.test_readme import blocks

PAGE = (REPOSITORY / "docs" / "convert.md").read_text(encoding="utf-8")


def converted(*arguments: object) -> None:
    assert main(["convert", *map(str, arguments)]) == 0


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["convert", *map(str, arguments)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("litebert: ")
    return line


@pytest.mark.parametrize("to", ["huggingface", "google", "keras", "sentence-transformers"])
def test_there_and_back_is_the_same_bit_by_bit(to: str, model: Model, tmp_path: Path) -> None:
    peer("h5py")
    model.save(tmp_path / "ours")
    converted(tmp_path / "ours", tmp_path / "theirs", "--to", to)
    converted(tmp_path / "theirs", tmp_path / "again")
    before, after = (dict(named_tensors(litebert.load(tmp_path / name).albert)) for name in ("ours", "again"))
    if to == "keras":  # which has no head for the order of sentences, and says so
        before = {name: one for name, one in before.items() if not name.startswith("sop_classifier")}
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    texts = litebert.load(tmp_path / "again").tokenizer.encode(PROSE[:4])
    assert [one.ids for one in texts] == [one.ids for one in model.tokenizer.encode(PROSE[:4])]


def test_transformers_reads_what_came_from_tensorflow(tmp_path: Path) -> None:
    transformers = peer("transformers")
    converted(TENSORFLOW / "google", tmp_path / "out")
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out").eval()
    truth = {name: torch.tensor(one) for name, one in np.load(TENSORFLOW / "google" / "expected.npz").items()}
    with torch.inference_mode():
        found = theirs(truth["input_ids"], attention_mask=truth["attention_mask"],
                       token_type_ids=truth["token_type_ids"])  # fmt: skip
    real = truth["attention_mask"].bool()
    assert float((found.prediction_logits - truth["mlm_logits"])[real].abs().max()) < 1e-4


def test_sentence_transformers_reads_what_came_from_tensorflow(tmp_path: Path) -> None:
    library = peer("sentence_transformers")
    converted(TENSORFLOW / "google", tmp_path / "out", "--to", "sentence-transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["the cat sat"])
    assert np.abs(theirs - litebert.load(TENSORFLOW / "google").embed(["the cat sat"])).max() < 1e-5


def test_the_table_names_every_tensor_and_why_it_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    converted(TENSORFLOW / "google", tmp_path / "out")
    said = capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "convert.json").read_text())["rows"]
    assert len(rows) == 97
    for row in rows:
        assert row["why"] in said
        assert not row["becomes"] or (row["name"] in said and row["becomes"] in said)
    assert "left out, a state of the optimizer: bert/embeddings/LayerNorm/beta/adam_m" in said
    assert "97 tensors found, 32 taken, 65 left out" in said


def test_the_table_is_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converted(TENSORFLOW / "albert_zh", tmp_path / "out", "--to", "google", "--json")
    told = json.loads(capsys.readouterr().out)
    becomes = {row["name"]: row["becomes"] for row in told["rows"]}
    assert told["kind"] == "a TensorFlow checkpoint of albert_zh's own kind"
    shared, group = "bert/encoder/layer_shared", "bert/encoder/transformer/group_0/inner_group_0"
    assert becomes[f"{shared}/attention/output/LayerNorm/gamma"] == f"{group}/LayerNorm/gamma"
    assert becomes["bert/embeddings/word_embeddings_2"] == "bert/embeddings/word_embeddings"


def test_a_head_that_the_target_does_not_have_is_named(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("h5py")
    model.save(tmp_path / "ours")
    converted(tmp_path / "ours", tmp_path / "out", "--to", "keras")
    said = capsys.readouterr().out
    assert "no place for it in what was written: sop_classifier.classifier.bias, sop_classifier" in said
    assert "left out: the head 'order'" in said


@pytest.mark.parametrize("with_vocabulary", [True, False])
def test_what_is_not_in_what_was_written_is_not_called_taken(
    with_vocabulary: bool, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "ours"
    model.save(source)
    size = model.config.hidden_size
    head = {"classifier.weight": torch.ones(3, size), "classifier.bias": torch.ones(3)}
    save_file(load_file(source / "model.safetensors") | head | {"strange.weight": torch.ones(2)},
              source / "model.safetensors")  # fmt: skip
    settings = json.loads((source / "config.json").read_text())
    settings |= {"architectures": ["AlbertForSequenceClassification"], "num_labels": 3, "litebert": {}}
    (source / "config.json").write_text(json.dumps(settings))
    if not with_vocabulary:
        (source / "tokenizer.json").unlink()
        (source / "spiece.model").unlink(missing_ok=True)
    converted(source, tmp_path / "out")
    said = capsys.readouterr().out
    told = json.loads((tmp_path / "out" / "convert.json").read_text())
    taken = {row["becomes"] for row in told["rows"] if row["becomes"]}
    assert taken == set(load_file(tmp_path / "out" / "model.safetensors"))
    why = {row["name"]: row["why"] for row in told["rows"] if not row["becomes"]}
    assert why["strange.weight"] == "litebert has no head for it"
    assert why["predictions.bias"] == "a head beside that of the model's task, which alone is kept"
    assert f"{len(told['rows'])} tensors found, {len(taken)} taken, 8 left out" in said
    assert any("litebert has no head for predictions.LayerNorm" in remark for remark in told["remarks"])


def test_what_litebert_warns_of_stands_among_the_remarks(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    albert = Albert(replace(model.config, hidden_act="gelu"), pretraining_heads(model.config))
    save_folder(tmp_path / "exact", Folder(albert, model.tokenizer, Mask(), 64))
    converted(tmp_path / "exact", tmp_path / "out", "--to", "google")
    said = "hidden_act='gelu' is the exact GELU"
    assert said in capsys.readouterr().out
    told = json.loads((tmp_path / "out" / "convert.json").read_text())["remarks"]
    assert sum(said in remark for remark in told) == 1


def test_a_head_that_google_would_halve_stands_among_the_remarks(model: Model, tmp_path: Path) -> None:
    task = Tag(["O", "B-A", "I-A"], crf=True)
    albert = Albert(model.config, {"tag": task.head(model.config)})
    save_folder(tmp_path / "crf", Folder(albert, model.tokenizer, task, 64))
    converted(tmp_path / "crf", tmp_path / "out", "--to", "google")
    told = json.loads((tmp_path / "out" / "convert.json").read_text())
    assert any("no whole place for the head 'tag'" in remark for remark in told["remarks"])
    assert not [row for row in told["rows"] if row["name"].startswith("classifier.") and row["becomes"]]


def test_a_head_of_keras_that_is_not_read_stands_among_the_remarks(tmp_path: Path) -> None:
    peer("h5py")
    preset = shutil.copytree(FIXTURES / "keras" / "classifier", tmp_path / "preset")
    settings = json.loads((preset / "task.json").read_text()) | {"class_name": "AlbertOther"}
    (preset / "task.json").write_text(json.dumps(settings))
    converted(preset, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "convert.json").read_text())["remarks"]
    assert any("litebert has no head for AlbertOther" in remark for remark in told)


def test_a_head_of_keras_of_unknown_kind_stands_among_the_remarks(tmp_path: Path) -> None:
    peer("h5py")
    preset = shutil.copytree(FIXTURES / "keras" / "classifier", tmp_path / "preset")
    (preset / "task.json").unlink()
    converted(preset, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "convert.json").read_text())["remarks"]
    assert any("task.weights.h5: task.json, which says what head this is" in remark for remark in told)


def test_without_a_vocabulary_the_weights_alone_are_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(TENSORFLOW / "google", tmp_path / "c")
    (copy / "30k-clean.model").unlink()
    assert "--to google needs one" in complaint(capsys, copy, tmp_path / "tf", "--to", "google")
    converted(copy, tmp_path / "out")
    assert "no vocabulary beside it, so there are weights only" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "convert.json", "model.safetensors", "run.json", "sha256.json"]  # fmt: skip
    transformers = peer("transformers")
    assert transformers.AutoModel.from_pretrained(tmp_path / "out").config.hidden_size == 16
    shutil.copy(TENSORFLOW / "google" / "30k-clean.model", tmp_path / "out" / "spiece.model")
    assert_same_states(litebert.load(TENSORFLOW / "google"), litebert.load(tmp_path / "out"))


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converted(TENSORFLOW / "google", tmp_path / "out")
    assert "already holds a model" in complaint(capsys, TENSORFLOW / "google", tmp_path / "out")
    assert "where the source lies" in complaint(capsys, TENSORFLOW / "google", TENSORFLOW / "google")
    module = shutil.copytree(TENSORFLOW / "hub" / "module", tmp_path / "module")
    assert "where the source lies" in complaint(capsys, module, module / "variables")
    assert "is a BERT's" in complaint(capsys, TENSORFLOW / "bert", tmp_path / "bert")
    assert not (tmp_path / "bert").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["a", "b", "c"], "'c' is one word too many; there are source and out"), (["a"], "--out"),
     (["nowhere/at/all", "b"], "no such folder"), (["a", "b", "--to", "pickle"], "pickle")],
)  # fmt: skip
def test_mistakes_on_the_command_line_are_told(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in complaint(capsys, *arguments)


def test_an_adapted_model_is_refused(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.save(tmp_path / "ours")
    litebert.adapt(litebert.load(tmp_path / "ours"), PROSE[:4], ["a", "b", "a", "b"]).save(tmp_path / "few")
    assert "is an adapted model" in complaint(capsys, tmp_path / "few", tmp_path / "out")


def test_onnx_is_what_export_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = peer("onnxruntime")
    converted(TENSORFLOW / "google", tmp_path / "out", "--to", "onnx", "--json")
    assert json.loads(capsys.readouterr().out)["to"] == "onnx"
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    truth = np.load(TENSORFLOW / "google" / "expected.npz")
    given = {name: truth[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    names = [one.name for one in session.get_outputs()]
    hidden = dict(zip(names, session.run(None, given), strict=True))["last_hidden_state"]
    assert np.abs(hidden - truth["hidden"])[truth["attention_mask"] == 1].max() < 1e-5


# --- verifying --------------------------------------------------------------------------------------------------------


def test_verify_holds_hidden_states_against_transformers(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("transformers")
    model.save(tmp_path / "ours")
    converted(tmp_path / "ours", tmp_path / "out", "--verify", "--json")
    off = json.loads(capsys.readouterr().out)["off"]
    assert 0 <= off < 1e-5


OWN: dict[str, tuple[dict[str, Any], Any]] = {
    "a relative bias": ({"relative_attention_distance": 4}, None),
    "an embedding of depth": ({"depth_embedding": True}, None),
    "adapters": ({"lora_rank": 2}, None),
    "weights in eight bits": ({}, {}),
}


@pytest.mark.parametrize("part", OWN)
def test_what_transformers_does_not_have_is_not_held_against_it(
    part: str, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("transformers")
    changes, int8 = OWN[part]
    config = replace(model.config, **changes)
    albert = Albert(config, pretraining_heads(config))
    stir(albert)
    save_folder(tmp_path / "own", Folder(albert, model.tokenizer, Mask(), 64, int8=int8))
    converted(tmp_path / "own", tmp_path / "out", "--verify")
    assert f"not verified: transformers has no ALBERT with {part}" in capsys.readouterr().out


def test_a_head_of_our_own_does_not_hinder_verifying(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("transformers")
    task = Tag(["O", "B-A", "I-A"], crf=True)
    albert = Albert(model.config, {"tag": task.head(model.config)}).eval()
    save_folder(tmp_path / "crf", Folder(albert, model.tokenizer, task, 64))
    converted(tmp_path / "crf", tmp_path / "out", "--verify", "--json")
    assert json.loads(capsys.readouterr().out)["off"] < 1e-5


@pytest.mark.parametrize("name", ["weights.bin", "weights.safetensors"])
def test_verify_holds_a_lone_file_of_transformers_against_it(
    name: str, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("transformers")
    tensors = dict(named_tensors(model.albert))
    (torch.save if name.endswith(".bin") else save_file)(tensors, tmp_path / name)
    settings_in(tmp_path, model)
    (tmp_path / "config.json").rename(tmp_path / "albert.json")
    converted(tmp_path / name, tmp_path / "out", "--verify", "--json")
    assert 0 <= json.loads(capsys.readouterr().out)["off"] < 1e-5


def test_what_differs_is_not_written(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer("transformers")
    model.save(tmp_path / "ours")
    theirs = verify._run_transformers
    monkeypatch.setattr(verify, "_run_transformers", lambda *given: theirs(*given) + 1e-3)
    assert "off by 1.0e-03" in complaint(capsys, tmp_path / "ours", tmp_path / "out", "--verify")
    assert not (tmp_path / "out").exists()


def test_verify_says_that_the_framework_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "find_spec", lambda name: None)
    converted(TENSORFLOW / "google", tmp_path / "out", "--verify")
    assert "not verified: tensorflow is not installed here" in capsys.readouterr().out


def off_by_tensorflow(source: Path, out: Path) -> float:
    command = [tensorflow(), "-m", "litebert", "convert", source, out, "--verify", "--json"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    run = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, env=environment)
    return json.loads(run.stdout)["off"]


@pytest.mark.parametrize("fixture", ["google", "google_shards", "hub/module", "objects", "albert_zh"])
def test_verify_holds_hidden_states_against_real_tensorflow(fixture: str, tmp_path: Path) -> None:
    assert off_by_tensorflow(TENSORFLOW / fixture, tmp_path / "out") < 1e-5


def test_the_exact_gelu_is_verified_by_the_exact_one(model: Model, tmp_path: Path) -> None:
    tensorflow()
    albert = Albert(replace(model.config, hidden_act="gelu"), pretraining_heads(model.config)).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in albert.parameters():  # so large that the two differ by more than rounding does
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    save_folder(tmp_path / "exact", Folder(albert, model.tokenizer, Mask(), 64))
    converted(tmp_path / "exact", tmp_path / "google", "--to", "google")
    assert off_by_tensorflow(tmp_path / "google", tmp_path / "out") < 1e-5


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_on_the_page(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the checkpoints that docs/convert.md speaks of."""
    for name, fixture in (("albert_base_v2", "google"), ("albert_small_zh", "google_shards"),
                          ("albert_hub", "hub/module"), ("albert_tiny_zh", "albert_zh")):  # fmt: skip
        shutil.copytree(TENSORFLOW / fixture, tmp_path / name)
    shutil.copytree(FIXTURES / "keras" / "masked_lm", tmp_path / "preset")
    tensors = dict(named_tensors(model.albert))
    for name, named in (("old_transformers", tensors), ("lone_patient", with_their_names(tensors))):
        (tmp_path / name).mkdir()
        torch.save(named, tmp_path / name / "pytorch_model.bin")
        settings_in(tmp_path / name, model)
    model.save(tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)


def commands_of(page: str) -> list[list[str]]:
    cells = [cell.strip(" `") for line in page.splitlines() if line.startswith("|") for cell in line.split("|")]
    lines = [line for block in blocks(page) for line in block.splitlines()] + cells
    return [shlex.split(line)[1:] for line in dict.fromkeys(lines) if line.startswith("litebert convert ")]


@pytest.mark.usefixtures("as_on_the_page")
def test_the_commands_of_the_page_do_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in ("h5py", "onnxruntime", "transformers"):
        peer(extra)
    found = commands_of(PAGE)
    assert len(found) >= 12
    for command in found:
        assert main(command) == 0, command
        out = Path(command[2])
        assert json.loads((out / "convert.json").read_text())["rows"], command
        if "onnx" not in command:
            assert litebert.load(out).encoder(torch.tensor([[2, 5, 3]])).shape[:2] == (1, 3)
    assert {"google", "keras", "sentence-transformers", "onnx"} <= {words[-1] for words in found}


@pytest.mark.usefixtures("as_on_the_page")
def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(PAGE, "python")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/convert.md", "exec"), names)
    assert "token=" in capsys.readouterr().out
    assert "tensorflow" not in sys.modules
