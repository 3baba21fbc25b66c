"""Presets of keras-hub, both ways. fixtures/keras was written by keras-hub (make_keras.py), with what it computes;
check_keras.py beside it holds what we write against keras-hub itself, which is not installed here."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from litebert.errors import CheckpointError, ConfigError
from litebert.interop.formats import build_folder, load_folder, read_any
from litebert.interop.huggingface import Folder, save_folder
from litebert.interop.keras import is_keras, write_keras
from litebert.interop.keras_weights import encoder_locations
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.model.sentence_head import SentenceMap
from litebert.tasks import Classify, Mask, Multilabel, Regress, Tag
from litebert.tasks.base import Task
from litebert.tokenizer import Tokenizer
from tests.interop.test_huggingface import HIDDEN_TOLERANCE, stir

FIXTURES = Path(__file__).parent / "fixtures"
PRESETS = FIXTURES / "keras"
TOKENIZER = Tokenizer.from_spiece(FIXTURES / "tensorflow" / "google" / "30k-clean.model")
CONFIG = AlbertConfig(
    vocab_size=60,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=24,
)
SHARING: dict[str, dict[str, Any]] = {
    "all": {},
    "2 groups of 2 blocks": {"num_hidden_groups": 2, "inner_group_num": 2},
    "groups of unequal size": {"num_hidden_groups": 3},
    "attention": {"sharing": "attention"},
    "ffn, in groups": {"sharing": "ffn", "num_hidden_groups": 2},
    "none": {"sharing": "none"},
    "E = H": {"embedding_size": 16},
    "dropout": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
}


def pretrained(**changes: Any) -> Folder:
    config = replace(CONFIG, **changes)
    albert = Albert(config, pretraining_heads(config))
    stir(albert)
    return Folder(albert, TOKENIZER, Mask(), 20)


def taught(task: Task[Any, Any]) -> Folder:
    albert = Albert(CONFIG, {task.head_name: task.head(CONFIG)})
    stir(albert)
    return Folder(albert, TOKENIZER, task, 20)


def read_with(tokenizer: Tokenizer | None, path: Path) -> Folder:
    """What convert reads, with a tokenizer for those that have none of their own."""
    source = read_any(path)
    return build_folder(replace(source, tokenizer=tokenizer or source.tokenizer))


def expected(name: str) -> dict[str, torch.Tensor]:
    with np.load(PRESETS / name / "expected.npz") as arrays:
        return {key: torch.from_numpy(array) for key, array in arrays.items()}


def hidden_states(albert: Albert, given: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return albert.encoder(given["input_ids"], given["attention_mask"], given["token_type_ids"])


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).detach().abs().max())


@pytest.mark.parametrize("name", ["masked_lm", "classifier", "half"])
def test_a_preset_of_keras_hub_gives_its_numbers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = expected(name)
    albert = read_with(TOKENIZER if name == "half" else None, PRESETS / name).model
    hidden, real = hidden_states(albert, given), given["attention_mask"].bool()
    pooled = albert.encoder.pooler(hidden[:, 0]).tanh()
    found = difference(hidden[real], given["hidden"][real]), difference(pooled, given["pooled"])
    with capsys.disabled():
        print(f"\nparity keras-hub {name:<10} hidden {found[0]:.1e}  pooled {found[1]:.1e}", end="")
    assert max(found) <= HIDDEN_TOLERANCE


def test_the_head_for_hidden_words_comes_with_a_preset() -> None:
    given, folder = expected("masked_lm"), load_folder(PRESETS / "masked_lm")
    assert isinstance(folder.task, Mask)
    real, head = given["attention_mask"].bool(), folder.model.heads["mlm"]
    hidden, table = hidden_states(folder.model, given), folder.model.encoder.word_embeddings.weight
    assert difference(head(hidden, table)[real], given["logits"][real]) <= 1e-3
    head.norm.eps = 1e-5  # which theirs has
    assert difference(head(hidden, table)[real], given["logits"][real]) <= HIDDEN_TOLERANCE


def test_a_classifier_comes_with_a_preset() -> None:
    given, folder = expected("classifier"), load_folder(PRESETS / "classifier")
    assert isinstance(folder.task, Classify)
    assert folder.task.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    pooled = folder.model.encoder.pooler(hidden_states(folder.model, given)[:, 0]).tanh()
    assert difference(folder.model.heads["classify"](pooled), given["logits"]) <= HIDDEN_TOLERANCE
    assert folder.model.config.hidden_dropout_prob == folder.model.config.attention_probs_dropout_prob == 0.1


def test_the_tokenizer_of_a_preset_is_read() -> None:
    ours = load_folder(PRESETS / "masked_lm").tokenizer.encode(["the cat sat"])[0]
    assert list(ours.ids) == list(TOKENIZER.encode(["the cat sat"])[0].ids)


@pytest.mark.parametrize("name", SHARING)
def test_ours_to_keras_and_back_is_bit_equal(name: str, tmp_path: Path) -> None:
    before = pretrained(**SHARING[name])
    write_keras(tmp_path, before)
    after = load_folder(tmp_path)
    assert after.model.config == before.model.config
    assert after.max_length == before.max_length
    states = before.model.state_dict()
    kept = {key for key in states if not key.startswith("heads.order.")}
    assert set(after.model.state_dict()) == kept
    for key in kept:
        assert torch.equal(after.model.state_dict()[key], states[key]), key


@pytest.mark.parametrize("task", [Classify(["no", "yes", "perhaps"]), Multilabel(["a", "b"]), Regress()])
def test_a_taught_model_goes_to_keras_and_back(task: Task[Any, Any], tmp_path: Path) -> None:
    before = taught(task)
    assert write_keras(tmp_path, before) == []
    after = load_folder(tmp_path)
    assert type(after.task) is type(task)
    assert after.task.settings() == task.settings()
    for key, tensor in before.model.state_dict().items():
        assert torch.equal(after.model.state_dict()[key], tensor), key
    content = json.loads((tmp_path / "task.json").read_text())
    assert content["registered_name"] == "keras_hub>AlbertTextClassifier"
    assert content["config"]["num_classes"] == len(before.model.heads["classify"].state_dict()["linear.bias"])


def test_a_preset_becomes_a_hugging_face_folder_and_a_preset_again(tmp_path: Path) -> None:
    save_folder(tmp_path / "ours", load_folder(PRESETS / "masked_lm"))
    write_keras(tmp_path / "theirs", load_folder(tmp_path / "ours"))
    for name in ("model.weights.h5", "task.weights.h5"):
        first, again = (variables(folder / name) for folder in (PRESETS / "masked_lm", tmp_path / "theirs"))
        assert first.keys() == again.keys()
        for key, array in first.items():
            np.testing.assert_array_equal(array, again[key], key)
    assert (tmp_path / "theirs" / "assets/tokenizer/vocabulary.spm").read_bytes() == TOKENIZER.spiece


def variables(path: Path) -> dict[str, np.ndarray]:
    found = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("optimizer/"):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(note)
    return found


def test_what_keras_has_no_place_for_is_named(tmp_path: Path) -> None:
    folder = pretrained()
    after = SentenceMap(np.eye(4, 16, dtype=np.float32), np.zeros(4, np.float32))
    told = "; ".join(write_keras(tmp_path, replace(folder, sentence_map=after, int8={})))
    for part in ("the head 'order'", "LayerNorm of the head 'mlm'", "vectors of sentences", "eight bits"):
        assert part in told
    assert write_keras(tmp_path, taught(Tag(["O", "B-A", "I-A"]))) == ["the head 'tag'"]
    assert not (tmp_path / "task.json").exists()  # nor that of the model before
    assert load_folder(tmp_path).task is None
    assert write_keras(tmp_path, taught(Classify(["a", "b"], head="mlp"))) == ["the head 'classify'"]


def test_a_tokenizer_without_pieces_is_named_and_comes_back(tmp_path: Path) -> None:
    vocabulary = Tokenizer.from_vocab(FIXTURES / "tensorflow" / "albert_zh" / "vocab.txt")
    write_keras(tmp_path, pretrained())
    told = write_keras(tmp_path, replace(pretrained(), tokenizer=vocabulary))
    assert any("no SentencePiece model" in one for one in told)
    assert not (tmp_path / "tokenizer.json").exists()
    assert not (tmp_path / "preprocessor.json").exists()
    assert json.loads((tmp_path / "task.json").read_text())["config"]["preprocessor"] is None
    assert load_folder(tmp_path).tokenizer.fingerprint == vocabulary.fingerprint


@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": "gelu"}, {"layer_norm_eps": 1e-5}, {"relative_attention_distance": 2}, {"depth_embedding": True},
     {"lora_rank": 2}],
)  # fmt: skip
def test_what_keras_hub_would_compute_otherwise_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))}=.* keras-hub's ALBERT has"):
        write_keras(tmp_path / "new", pretrained(**changes))
    assert not (tmp_path / "new").exists()


def test_weights_alone_are_read_with_the_config_beside_them(tmp_path: Path) -> None:
    folder = pretrained()
    write_keras(tmp_path, folder)
    weights = (tmp_path / "model.weights.h5").rename(tmp_path / "mine.weights.h5")
    assert is_keras(weights)
    after = read_with(TOKENIZER, weights)
    for key, tensor in folder.model.encoder.state_dict().items():
        assert torch.equal(after.model.encoder.state_dict()[key], tensor)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="has no config"):
        read_with(TOKENIZER, weights)


def test_the_encoder_of_a_whole_model_is_found_and_its_head_named(tmp_path: Path) -> None:
    shutil.copy(PRESETS / "masked_lm" / "config.json", tmp_path)
    with (
        h5py.File(tmp_path / "whole.weights.h5", "w") as whole,
        h5py.File(PRESETS / "masked_lm" / "model.weights.h5") as encoder,
        h5py.File(PRESETS / "masked_lm" / "task.weights.h5") as head,
    ):
        encoder.copy("layers", whole.create_group("layers/albert_backbone"))
        head.copy("layers/masked_lm_head", whole["layers"])
        head.copy("optimizer", whole)
    with pytest.warns(UserWarning, match=r"masked_lm_head.* belong to no encoder") as told:
        folder = read_with(TOKENIZER, tmp_path / "whole.weights.h5")
    assert "optimizer" not in str(told[0].message)
    given = expected("masked_lm")
    real = given["attention_mask"].bool()
    assert difference(hidden_states(folder.model, given)[real], given["hidden"][real]) <= HIDDEN_TOLERANCE


def test_names_of_former_versions_are_known(tmp_path: Path) -> None:
    shutil.copytree(PRESETS / "masked_lm", tmp_path, dirs_exist_ok=True)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        file.move("layers", "_layer_checkpoint_dependencies")
        attention = file["_layer_checkpoint_dependencies/transformer_encoder/_self_attention_layer"]
        attention.move("query_dense", "_query_dense")
    assert load_folder(tmp_path).model.config.num_hidden_groups == 2


def test_a_head_of_another_kind_is_left_out_with_a_warning(tmp_path: Path) -> None:
    shutil.copytree(PRESETS / "classifier", tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "task.json").read_text())
    (tmp_path / "task.json").write_text(json.dumps(content | {"class_name": "AlbertPoet"}))
    with pytest.warns(UserWarning, match="no head for AlbertPoet"):
        assert load_folder(tmp_path).task is None


def test_a_preset_without_a_tokenizer_asks_for_one() -> None:
    with pytest.raises(CheckpointError, match="has no vocabulary"):
        load_folder(PRESETS / "half")


def test_what_is_keras_is_recognised(tmp_path: Path) -> None:
    assert is_keras(PRESETS / "half")
    assert not is_keras(tmp_path)
    assert not is_keras(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"class_name": "BertBackbone"}, "'BertBackbone' is not keras-hub's AlbertBackbone"),
     ({"config": []}, "is not keras-hub's AlbertBackbone"),
     ({"config": {"num_layers": 4}}, "does not say vocabulary_size, num_heads"),
     ({"litebert": 3}, "'litebert' must be an object"),
     ({"litebert": {"num_hidden_layers": 7}}, "'litebert' there means")],
)  # fmt: skip
def test_a_config_of_something_else_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    shutil.copytree(PRESETS / "masked_lm", tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | changes))
    with pytest.raises(CheckpointError, match=complaint):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"vocabulary_size": 61}, r"shape \(60, 8\) where config.json implies \(61, 8\)"),
     ({"num_heads": 2}, r"implies \(16, 2, 8\)"),
     ({"num_inner_repetitions": 3}, "lacks transformer_encoder_4/.*incomplete or of another"),
     ({"num_groups": 1}, "32 variables have no place"),
     ({"hidden_dim": 10**7, "num_heads": 1}, "where config.json implies"),
     ({"num_layers": 0}, "num_hidden_layers=0 must be")],
)  # fmt: skip
def test_weights_of_another_shape_are_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    shutil.copytree(PRESETS / "masked_lm", tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "config.json").read_text())
    content["config"] |= changes
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=complaint):
        load_folder(tmp_path)


def _soft(file: Any) -> None:
    del file["layers/dense_1"]
    file["layers/dense_1"] = h5py.SoftLink("/layers/dense")


def _out(file: Any) -> None:
    del file["layers/dense_1"]
    file["layers/dense_1"] = h5py.ExternalLink("other.h5", "/layers/dense")


def _circle(file: Any) -> None:
    file["layers/dense_1/again"] = file["layers"]


def _elsewhere(file: Any) -> None:
    del file["layers/dense_1/vars/0"]
    file.create_dataset("layers/dense_1/vars/0", (16, 16), "f4", external=[("secret", 0, h5py.h5f.UNLIMITED)])


def _virtual(file: Any) -> None:
    del file["layers/dense_1/vars/0"]
    layout = h5py.VirtualLayout((16, 16), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "data", (16, 16))
    file.create_virtual_dataset("layers/dense_1/vars/0", layout)


def _nowhere(file: Any) -> None:
    del file["layers/dense_1/vars/0"]
    file.create_dataset("layers/dense_1/vars/0", (16, 16), "f4", chunks=(8, 8))


def _packed(file: Any) -> None:
    del file["layers/dense_1/vars/0"]
    file.create_dataset("layers/dense_1/vars/0", data=np.zeros((16, 16), "f4"), compression="gzip")


def _whole(file: Any) -> None:
    del file["layers/dense_1/vars/0"]
    file["layers/dense_1/vars/0"] = np.zeros((16, 16), np.int8)


def _two(file: Any) -> None:
    file["more/reversible_embedding/vars/0"] = np.zeros((60, 8), "f4")


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [(_soft, "dense_1 is a link to elsewhere; the file is not to be trusted"),
     (_out, "dense_1 is a link to elsewhere; the file is not to be trusted"),
     (_circle, "deeper or among more"),
     (_elsewhere, "not in this file"),
     (_virtual, "not in this file"),
     (_nowhere, "not in this file"),
     (_packed, "is compressed"),
     (_whole, "holds int8, not floating-point"),
     (_two, "holds 2 tables of tokens")],
)  # fmt: skip
def test_a_hostile_file_is_refused(harm: Any, complaint: str, tmp_path: Path) -> None:
    shutil.copytree(PRESETS / "masked_lm", tmp_path, dirs_exist_ok=True)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        harm(file)
    with pytest.raises(CheckpointError, match=complaint):
        load_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no", b"\x89HDF\r\n\x1a\n" + bytes(2000), None])
def test_a_damaged_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    shutil.copytree(PRESETS / "masked_lm", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.weights.h5"
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    with pytest.raises(CheckpointError, match="not an HDF5 file or damaged"):
        load_folder(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match="weights are missing"):
        load_folder(tmp_path)


def test_layers_that_should_be_shared_and_are_not_are_refused(tmp_path: Path) -> None:
    write_keras(tmp_path, pretrained(sharing="attention"))
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        file["layers/transformer_encoder_2/_self_attention_layer/query_dense/vars/0"][0, 0, 0] += 1
    with pytest.raises(CheckpointError, match="differs from its copies"):
        load_folder(tmp_path)
    write_keras(tmp_path, pretrained(num_hidden_groups=3))
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        file["layers/transformer_encoder_1/_self_attention_layer/query_dense/vars/0"][0, 0, 0] += 1
    with pytest.raises(CheckpointError, match="differs from another layer's"):
        load_folder(tmp_path)


def test_every_tensor_of_the_encoder_has_one_place() -> None:
    places = list(encoder_locations(replace(CONFIG, num_hidden_groups=2, inner_group_num=2)))
    assert len({place.theirs for place in places}) == len({place.ours for place in places}) == len(places)
