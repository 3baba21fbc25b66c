"""ALBERTs are told apart by what their files hold: names of files, lonePatient's names of tensors, single files."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch

import litebert
from litebert.errors import CheckpointError
from litebert.inference import Model
from litebert.interop.formats import read_any
from litebert.interop.google_names import tensorflow_spelling, to_google, to_huggingface
from litebert.interop.huggingface import named_tensors
from litebert.interop.tensor_bundle import TensorBundle
from tests.conftest import PROSE, REPOSITORY

FIXTURES = Path(__file__).parent / "fixtures"
TENSORFLOW = FIXTURES / "tensorflow"
MUTATIONS = 2000
STRANGE_TENSORS = 400


def bench() -> ModuleType:
    spec = spec_from_file_location("fuzz_checkpoints", REPOSITORY / "bench" / "fuzz_checkpoints.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fuzz_checkpoints"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = bench()
with_their_names = BENCH.by_lone_patients_names


def settings_in(folder: Path, model: Model, name: str = "config.json") -> None:
    settings = {key: value for key, value in model.config.to_dict().items() if key != "sharing"}
    (folder / name).write_text(json.dumps(settings))
    model.tokenizer.save(folder)


def assert_same_states(ours: Model, again: Model) -> None:
    states = again.albert.state_dict()
    assert states.keys() == ours.albert.state_dict().keys()
    for name, tensor in ours.albert.state_dict().items():
        assert torch.equal(states[name], tensor), name


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "albert.pt", "model.safetensors"])
def test_lone_patients_english_names_are_read(weights: str, model: Model, tmp_path: Path) -> None:
    tensors = with_their_names(dict(named_tensors(model.albert)))
    assert "bert.encoder.transformer.group.0.inner_group.0.attention.self.query.weight" in tensors
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    if weights.endswith("safetensors"):
        safetensors.torch.save_file(tensors, tmp_path / weights)
    else:
        torch.save(tensors, tmp_path / weights)
    settings_in(tmp_path, model)
    assert_same_states(model, litebert.load(tmp_path))
    why = {row.name: row.why for row in read_any(tmp_path).rows if not row.becomes}
    assert why == {"cls.predictions.decoder.weight": "a copy of what it is tied to"}


def chinese(folder: Path) -> dict[str, torch.Tensor]:
    """albert_zh's fixture as lonePatient's Chinese code saves it."""
    bundle = TensorBundle(TENSORFLOW / "albert_zh" / "albert_model.ckpt.index")
    found = {}
    for name in bundle.entries:
        tensor = bundle.read(name)
        stem, _, leaf = name.rpartition("/")
        turned = leaf in ("kernel", "word_embeddings_2")
        known = {
            "kernel": "weight",
            "gamma": "weight",
            "beta": "bias",
            "output_weights": "weight",
            "output_bias": "bias",
        }
        spelled = f"{name}/weight" if "_embeddings" in leaf else f"{stem}/{known.get(leaf, leaf)}"
        found[spelled.replace("/", ".")] = tensor.T.contiguous() if turned else tensor
    second = found["bert.embeddings.word_embeddings_2.weight"]
    found["cls.predictions.project_layer.weight"] = second.T.contiguous()
    settings = json.loads((TENSORFLOW / "albert_zh" / "albert_config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"hidden_act": "gelu_new"}))
    shutil.copy(TENSORFLOW / "albert_zh" / "vocab.txt", folder)
    return found


def test_lone_patients_chinese_names_are_albert_zhs(tmp_path: Path) -> None:
    torch.save(chinese(tmp_path), tmp_path / "pytorch_model.bin")
    assert_same_states(litebert.load(TENSORFLOW / "albert_zh"), litebert.load(tmp_path))


def test_a_head_that_is_not_tied_is_refused(tmp_path: Path) -> None:
    tensors = chinese(tmp_path)
    tensors["cls.predictions.project_layer.weight"] += 1
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"project_layer.weight is not tied to the embeddings"):
        litebert.load(tmp_path)


def test_lone_patients_settings_may_say_preln_too(tmp_path: Path) -> None:
    torch.save(chinese(tmp_path), tmp_path / "pytorch_model.bin")
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"ln_type": "preln"}))
    with pytest.raises(CheckpointError, match="normalise first"):
        litebert.load(tmp_path)


def test_names_of_files_say_nothing(model: Model, tmp_path: Path) -> None:
    """Weights, settings and vocabulary under names that nobody would guess."""
    model.save(tmp_path / "a")
    other = tmp_path / "b"
    other.mkdir()
    for before, after in (("model.safetensors", "weights.bin"), ("config.json", "my settings.json"),
                          ("spiece.model", "30k-clean.model")):  # fmt: skip
        shutil.copy(tmp_path / "a" / before, other / after)
    again = litebert.load(other)
    assert_same_states(model, again)
    assert again.tokenizer.encode(PROSE[:3])[0].ids == model.tokenizer.encode(PROSE[:3])[0].ids


def test_a_tensorflow_index_is_known_by_its_end(tmp_path: Path) -> None:
    copy = shutil.copytree(TENSORFLOW / "google", tmp_path / "c")
    (copy / "model.ckpt-best.index").rename(copy / "something")
    (copy / "model.ckpt-best.data-00000-of-00001").rename(copy / "something.data-00000-of-00001")
    assert_same_states(litebert.load(TENSORFLOW / "google"), litebert.load(copy))


def test_a_google_checkpoint_beside_a_config_of_transformers_is_read(tmp_path: Path) -> None:
    copy, google = shutil.copytree(TENSORFLOW / "google", tmp_path / "c"), litebert.load(TENSORFLOW / "google")
    google.save(tmp_path / "again")
    (copy / "albert_config.json").unlink()
    shutil.copy(tmp_path / "again" / "config.json", copy)
    assert_same_states(google, litebert.load(copy))


def test_weights_under_any_name_beside_a_config_of_transformers_are_read(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.bin")
    torch.save({"learning_rate": 1}, tmp_path / "training_args.bin")
    assert_same_states(model, litebert.load(tmp_path))


@pytest.mark.parametrize("other", ["another.txt", "a.model"])
def test_of_two_vocabularies_that_differ_none_is_taken(other: str, tmp_path: Path) -> None:
    copy = shutil.copytree(TENSORFLOW / "albert_zh", tmp_path / "c")
    lines = (copy / "vocab.txt").read_text().splitlines(keepends=True)
    if other == "another.txt":
        (copy / other).write_text("".join([*lines[:-2], lines[-1], lines[-2]]))
    else:
        shutil.copy(next((TENSORFLOW / "google").glob("*.model")), copy / other)
    with pytest.raises(CheckpointError, match=rf"two vocabularies that differ \({other} and vocab.txt\)"):
        litebert.load(copy)


def test_one_vocabulary_under_two_names_is_taken(tmp_path: Path) -> None:
    copy = shutil.copytree(TENSORFLOW / "albert_zh", tmp_path / "c")
    (copy / "again.txt").write_text((copy / "vocab.txt").read_text().rstrip("\n"))
    assert_same_states(litebert.load(TENSORFLOW / "albert_zh"), litebert.load(copy))


def test_safetensors_that_is_called_bin_is_read(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert_same_states(model, litebert.load(tmp_path))


@pytest.mark.parametrize("name", ["masked_lm", "classifier"])
def test_presets_of_keras_hub_are_read(name: str) -> None:
    pytest.importorskip("h5py")
    model, source = litebert.load(FIXTURES / "keras" / name), read_any(FIXTURES / "keras" / name)
    assert {row.becomes for row in source.rows} == set(source.tensors)
    assert source.kind == "keras-hub's AlbertBackbone"
    assert model.embed(["the cat"]).shape == (1, model.config.hidden_size)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"hello", "is neither a TensorFlow index, nor safetensors"), (b"", "is neither"),
     (b"\x89HDF\r\n\x1a\nbroken", "has no config.json"), (b"PK\x03\x04broken", "is neither")],
)  # fmt: skip
def test_a_file_that_is_something_else_is_refused(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=complaint):
        litebert.load(path)


def test_a_folder_without_weights_says_what_it_wants(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no weights .* give a folder or a file of a checkpoint"):
        litebert.load(tmp_path)


def test_heads_that_are_missing_are_named(model: Model, tmp_path: Path) -> None:
    tensors = {
        name: one for name, one in named_tensors(model.albert) if name.startswith("albert.") and "pooler" not in name
    }
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    settings_in(tmp_path, model)
    remarks = " ".join(read_any(tmp_path).remarks)
    for part in (
        "no pooler in it: one is started anew",
        "no masked-token head (predictions)",
        "no sentence-order head",
    ):
        assert part in remarks


def test_names_go_there_and_back(model: Model) -> None:
    for name, _ in named_tensors(model.albert):
        google = to_google(name)
        assert google is not None, name
        assert to_huggingface(google[0]) == (name, google[1])
    assert to_google("litebert_heads.tag.linear.weight") is None
    assert tensorflow_spelling("bert.encoder.layer.3.output.dense.weight") == "bert/encoder/layer_3/output/dense/weight"


def test_mutated_checkpoints_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    found = Counter[str]()
    for what, outcome in BENCH.outcomes(MUTATIONS, 7, tmp_path):
        assert not outcome.startswith("!"), (what, outcome)
        found[outcome] += 1
    assert found["refused"] > MUTATIONS / 3
    assert found["read"] > MUTATIONS / 10


def test_whole_files_of_strange_tensors_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    found = Counter[str]()
    for what, outcome in BENCH.outcomes(STRANGE_TENSORS, 7, tmp_path, BENCH.TENSOR_FILES):
        assert not outcome.startswith("!"), (what, outcome)
        found[outcome] += 1
    assert found["refused"] > STRANGE_TENSORS / 3
    assert found["read"] > STRANGE_TENSORS / 10
