"""ALBERTs of TensorFlow's checkpoints: equal outputs, every tensor accounted for, and back again bit by bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import litebert
from litebert.errors import CheckpointError, ConfigError
from litebert.inference import Model
from litebert.interop.formats import build_folder, load_folder, read_any
from litebert.interop.google_names import SECOND_EMBEDDINGS, to_google, to_huggingface
from litebert.interop.huggingface import Folder, named_tensors
from litebert.interop.tensor_bundle import TensorBundle, write_bundle
from litebert.interop.tensorflow import fold_second_matrix, read_checkpoint, write_google
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.tasks import Answer, Classify, Mask, Regress, Tag
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE
from tests.interop.test_huggingface import HIDDEN_TOLERANCE, LOGIT_TOLERANCE, stir

FIXTURES = Path(__file__).parent / "fixtures" / "tensorflow"
CHECKPOINTS = {
    "google": "google", "google in shards, two groups": "google_shards", "TF-Hub": "hub/module",
    "a SavedModel of objects": "objects", "albert_zh's own": "albert_zh",
}  # fmt: skip
TENSORFLOW = "LITEBERT_TENSORFLOW"
"""The path of a Python with TensorFlow, in whose hands what we write is tried."""


def expected(folder: str) -> dict[str, torch.Tensor]:
    name = folder.split("/")[0].replace("objects", "google")
    return {key: torch.tensor(value) for key, value in np.load(FIXTURES / name / "expected.npz").items()}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_what_tensorflow_computes_we_compute(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, truth = litebert.load(FIXTURES / CHECKPOINTS[name]), expected(CHECKPOINTS[name])
    real = truth["attention_mask"].bool()
    with torch.inference_mode():
        hidden = model.encoder(truth["input_ids"], truth["attention_mask"], truth["token_type_ids"])
        words = model.albert.heads["mlm"](hidden, model.encoder.word_embeddings.weight)
        pooled = model.encoder.pool(hidden[:, 0])
        order = model.albert.heads["order"](pooled)
    off = float((hidden - truth["hidden"])[real].abs().max())
    with capsys.disabled():
        print(f"\nparity with TensorFlow, {name:<30} hidden {off:.1e}", end="")
    assert off <= HIDDEN_TOLERANCE
    assert float((words - truth["mlm_logits"])[real].abs().max()) <= LOGIT_TOLERANCE
    assert float((pooled - truth["pooled"]).abs().max()) <= HIDDEN_TOLERANCE
    assert float((order - truth["sop_logits"]).abs().max()) <= LOGIT_TOLERANCE


@pytest.mark.parametrize("ending", ["", ".index", ".data-00000-of-00001"])
def test_any_file_of_a_checkpoint_or_what_they_have_in_common_names_it(ending: str) -> None:
    whole = litebert.load(FIXTURES / "google")
    one = litebert.load(str(FIXTURES / "google" / "model.ckpt-best") + ending)
    assert torch.equal(one.encoder.word_embeddings.weight, whole.encoder.word_embeddings.weight)
    assert one.tokenizer.encode(PROSE[:1])[0].ids == whole.tokenizer.encode(PROSE[:1])[0].ids


def test_every_tensor_of_a_real_index_is_mapped(data: Path) -> None:
    """The names of Google's albert_tiny_zh; its values are not here."""
    folder = data / "checkpoints" / "albert_tiny_zh_index"
    names = list(TensorBundle(folder / "albert_model.ckpt.index").entries)
    slots = [name for name in names if name.endswith(("adam_m", "adam_v"))]
    known = {name: to_huggingface(name) for name in names if name not in slots}
    assert (len(names), len(slots)) == (97, 64)
    assert [name for name, found in known.items() if found is None] == ["global_step"]
    config = AlbertConfig(**_known(json.loads((folder / "albert_config_tiny_g.json").read_text())))
    with torch.device("meta"):
        model = Albert(config, pretraining_heads(config))
    ours = {name: tuple(tensor.shape) for name, tensor in named_tensors(model)}
    shapes = {name: entry.shape for name, entry in TensorBundle(folder / "albert_model.ckpt.index").entries.items()}
    assert {found[0]: shapes[name][:: -1 if found[1] else 1] for name, found in known.items() if found} == ours


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key in AlbertConfig.__dataclass_fields__}


def test_a_checkpoint_of_the_real_size_without_values_is_filled_and_read(data: Path, tmp_path: Path) -> None:
    """albert_tiny_zh with values of our own under its real names, optimizer's states included."""
    folder = data / "checkpoints" / "albert_tiny_zh_index"
    entries = TensorBundle(folder / "albert_model.ckpt.index").entries
    chance = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(e.shape, generator=chance) * 0.02 for name, e in entries.items() if e.is_weight}
    write_bundle(tmp_path / "albert_model.ckpt", tensors)
    shutil.copy(folder / "albert_config_tiny_g.json", tmp_path)
    shutil.copy(data / "vocab" / "chinese" / "vocab.txt", tmp_path / "vocab_chinese.txt")
    model = litebert.load(tmp_path)
    assert (model.config.num_hidden_layers, model.tokenizer.vocab_size) == (4, 21128)
    assert torch.equal(model.encoder.word_embeddings.weight, tensors["bert/embeddings/word_embeddings"])
    assert model.embed(["今天天气很好"]).shape == (1, 312)


def test_what_is_left_out_is_named_with_the_reason() -> None:
    source = read_any(FIXTURES / "google")
    why = {row.name: row.why for row in source.rows if not row.becomes}
    assert len(source.rows) == 97
    assert len(why) == 65
    assert why["bert/pooler/dense/kernel/adam_m"] == "a state of the optimizer"
    assert why["global_step"] == "counts steps or names objects: no weight"
    assert {row.becomes for row in source.rows if row.becomes} == set(source.tensors)
    assert source.remarks == []


def test_a_head_that_we_do_not_have_is_told_when_it_is_lost(tmp_path: Path) -> None:
    copy = shutil.copytree(FIXTURES / "google", tmp_path / "c")
    having("start_logits/dense/kernel", 16, 1)(copy)
    with pytest.warns(UserWarning, match="litebert has no head for start_logits/dense/kernel"):
        litebert.load(copy)


def test_states_of_the_optimizer_are_not_read(tmp_path: Path) -> None:
    """Damage in them does no harm; damage in a weight does."""
    copy = shutil.copytree(FIXTURES / "google", tmp_path / "c")
    bundle = TensorBundle(copy / "model.ckpt-best.index")
    data = copy / "model.ckpt-best.data-00000-of-00001"
    for name, harmless in (("bert/pooler/dense/kernel/adam_v", True), ("bert/pooler/dense/kernel", False)):
        content = bytearray(data.read_bytes())
        content[bundle.entries[name].offset] ^= 1
        data.write_bytes(content)
        if harmless:
            litebert.load(copy)
        else:
            with pytest.raises(CheckpointError, match="the check sum of bert/pooler/dense/kernel is wrong"):
                litebert.load(copy)


@pytest.mark.parametrize(("slot", "shape"), [("vr", (16,)), ("vc", (16,)), ("v", (16, 16)), ("Adam_1", (16, 16))])
def test_states_of_other_optimizers_are_left_out_too(slot: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    copy, name = shutil.copytree(FIXTURES / "google", tmp_path / "c"), f"bert/pooler/dense/kernel/{slot}"
    having(name, *shape)(copy)
    assert {row.name: row.why for row in read_any(copy).rows}[name] == "a state of the optimizer"


# --- albert_zh's own kind ---------------------------------------------------------------------------------------------


def test_albert_zhs_two_tables_become_one_of_the_hidden_size() -> None:
    model, bundle = (
        litebert.load(FIXTURES / "albert_zh"),
        TensorBundle(FIXTURES / "albert_zh" / "albert_model.ckpt.index"),
    )
    words, second = (bundle.read(f"bert/embeddings/word_embeddings{end}").double() for end in ("", "_2"))
    assert model.config.embedding_size == model.config.hidden_size == 16
    assert torch.equal(model.encoder.word_embeddings.weight, (words @ second).float())
    assert torch.equal(model.encoder.project.weight, torch.eye(16))
    rows = {row.name: row.why for row in read_any(FIXTURES / "albert_zh").rows}
    assert rows["bert/embeddings/word_embeddings_2"] == "multiplied into one table of the hidden size"


def edited(folder: Path, **changes: Any) -> None:
    path = next(folder.glob("*bert_config.json"))
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    index = next(folder.glob("*.index"))
    bundle = TensorBundle(index)
    tensors = {name: bundle.read(name) for name, entry in bundle.entries.items() if entry.is_weight}
    change(tensors)
    write_bundle(index.with_suffix(""), tensors)


def alone(folder: Path, *suffixes: str) -> None:
    for path in folder.iterdir():
        if path.suffix in suffixes:
            path.unlink()


LAYER = "bert/encoder/transformer/group_0/inner_group_0/"


def settings_twice(folder: Path) -> None:
    settings = json.loads((folder / "albert_config.json").read_text())
    (folder / "b.json").write_text(json.dumps(settings | {"num_hidden_layers": 5}))


def without_activation(folder: Path) -> None:
    path = folder / "albert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": None}))


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: rewritten(folder, lambda tensors: tensors.pop(name))


def having(name: str, *shape: int) -> Callable[[Path], None]:
    return lambda folder: rewritten(folder, lambda tensors: tensors.update({name: torch.ones(shape)}))


def cut_index(folder: Path) -> None:
    path = folder / "model.ckpt-best.index"
    path.write_bytes(path.read_bytes()[:1000])


REFUSED: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a BERT": ("bert", lambda f: None, "is a BERT's: each of its layers has weights of its own"),
    "preln": ("albert_zh", lambda f: edited(f, ln_type="preln"), "ln_type='preln': its layers normalise first"),
    "albert_zh's without settings": ("albert_zh", lambda f: alone(f, ".json"), "serve layers that normalise first"),
    "no settings": ("google", lambda f: alone(f, ".json"), "has no albert_config.json"),
    "damaged settings": ("google", lambda f: (f / "albert_config.json").write_text("{"), "config.json: not JSON"),
    "settings without a size": ("google", lambda f: edited(f, hidden_size=None), "json: does not say hidden_size"),
    "settings of another": ("google", lambda f: edited(f, hidden_size=32), "hidden_size=32, and .* has 16"),
    "settings that differ": ("google", settings_twice, "albert_config.json, b.json fit .* and differ"),
    "heads that do not divide": ("google", lambda f: edited(f, num_attention_heads=5),
                                 "c/albert_config.json: .*must divide hidden_size=16"),
    "an unknown activation": ("google", lambda f: edited(f, hidden_act="tanh"), "hidden_act='tanh' must be one of"),
    "no activation": ("google", without_activation, "hidden_act=null: Google's code then has no activation"),
    "layers as text": ("google", lambda f: edited(f, num_hidden_layers="3"), "num_hidden_layers='3'"),
    "no vocabulary": ("google", lambda f: alone(f, ".model"), "has no vocabulary"),
    "no data": ("google", lambda f: alone(f, ".data-00000-of-00001"), "is its .index and all of its .data files"),
    "no index": ("google", lambda f: alone(f, ".index"), "model.ckpt-best.index: is not there, and without its index"),
    "an index cut short": ("google", cut_index, "model.ckpt-best.index: .*copy or download it again"),
    "something else": ("google", lambda f: write_bundle(f / "model.ckpt-best", {"resnet/conv1": torch.ones(3)}),
                       "is not an ALBERT's checkpoint: .* it holds resnet/conv1"),
    "names that are paths": ("google", lambda f: write_bundle(f / "model.ckpt-best", {"../../x": torch.ones(3)}),
                             "is not an ALBERT's checkpoint"),
    "a missing tensor": ("google", without(LAYER + "LayerNorm/gamma"), "lacks 1 tensors, .*attention.LayerNorm.weight"),
    "no positions": ("google", without("bert/embeddings/position_embeddings"), "lacks a table of embeddings"),
    "a stranger in the encoder": ("google", having(LAYER + "gate/kernel", 2, 2), "no place for .*gate/kernel of shape"),
    "a stranger below a weight": ("google", having("bert/pooler/dense/kernel/lora_a", 4, 16), "no place for .*lora_a"),
    "a state of another shape": ("google", having("bert/pooler/dense/kernel/adam_m", 4, 16), "no place for .*adam_m"),
    "a vector as a matrix": ("google", having("bert/pooler/dense/kernel", 3), "where a matrix was expected"),
    "a number as positions": ("google_shards", having("bert/embeddings/position_embeddings"), "lacks a table"),
    "a number as segments": ("google_shards", having("bert/embeddings/token_type_embeddings"), "lacks a table"),
    "a number as classes": ("google", having("output_weights"), "classifier.weight has shape .., where a matrix was"),
    "another shape": ("google_shards", having("bert/pooler/dense/kernel", 3, 3),
                      "has shape .3, 3. where config.json implies"),
    "two checkpoints": ("google", lambda f: shutil.copy(f / "model.ckpt-best.index", f / "model.ckpt-1.index"),
                        "holds 2 checkpoints"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_whole_albert_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, harm, complaint = REFUSED[case]
    copy = shutil.copytree(FIXTURES / name, tmp_path / "c")
    harm(copy)
    with pytest.raises(CheckpointError, match=complaint) as caught:
        litebert.load(copy)
    assert "\n" not in str(caught.value)


def write_encoder(config: AlbertConfig, prefix: Path) -> None:
    found = [(to_google(name), tensor) for name, tensor in named_tensors(Albert(config, {}))]
    write_bundle(prefix, {google[0]: t.T if google[1] else t for google, t in found if google})


def test_albert_zhs_layers_need_not_be_shared(tmp_path: Path) -> None:
    copy, truth = shutil.copytree(FIXTURES / "albert_zh", tmp_path / "c"), expected("albert_zh")

    def each_its_own(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "layer_shared" in name]:
            tensor = tensors.pop(name)
            tensors.update({name.replace("layer_shared", f"layer_{number}"): tensor for number in range(3)})

    rewritten(copy, each_its_own)
    model = litebert.load(copy)
    assert model.config.num_hidden_groups == 3
    hidden = model.encoder(truth["input_ids"], truth["attention_mask"], truth["token_type_ids"])
    assert float((hidden - truth["hidden"])[truth["attention_mask"].bool()].abs().max().detach()) <= HIDDEN_TOLERANCE


@pytest.mark.parametrize("theirs", [True, False])
def test_small_files_that_would_fill_the_memory_are_refused(theirs: bool, tmp_path: Path) -> None:
    """Two vectors can multiply to any size, and an identity needs no numbers at all."""
    large = 1 << 20
    copy = shutil.copytree(FIXTURES / "albert_zh" if theirs else FIXTURES / "google", tmp_path / "c")

    def swell(tensors: dict[str, torch.Tensor]) -> None:
        first = "bert/encoder/layer_shared/" if theirs else LAYER
        for name in [name for name in tensors if name.endswith(("/adam_m", "/adam_v"))]:
            tensors.pop(name)
        names = [name for name in tensors if name.startswith(("bert/embeddings", first))]
        tensors.update({name: torch.ones(1, large) for name in names})
        tensors[first + ("intermediate/dense/kernel" if theirs else "ffn_1/intermediate/dense/kernel")] = torch.ones(
            large, 1
        )
        if theirs:
            tensors["bert/embeddings/word_embeddings"] = torch.ones(large, 1)
        tensors.pop("bert/encoder/embedding_hidden_mapping_in/kernel", None)

    rewritten(copy, swell)
    sizes = {"hidden_size": large, "intermediate_size": 1, "max_position_embeddings": 1, "type_vocab_size": 1}
    sizes |= {"vocab_size": large, "embedding_size": 1} if theirs else {"vocab_size": 1, "embedding_size": large}
    edited(copy, num_attention_heads=1, **sizes)
    with pytest.raises(CheckpointError, match="over the limit" if theirs else "has shape|lacks"):
        litebert.load(copy)


def test_groups_that_google_rounds_otherwise_are_refused(model: Model, tmp_path: Path) -> None:
    config = replace(model.config, num_hidden_layers=18, num_hidden_groups=14)
    write_encoder(config, tmp_path / "m")
    (tmp_path / "albert_config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(CheckpointError, match="18 layers in 14 groups Google's division puts some into other groups"):
        read_checkpoint(tmp_path / "m.index")


@pytest.mark.parametrize("preset", ["tiny", "base"])
def test_without_settings_a_known_shape_tells_the_rest(preset: str, tmp_path: Path) -> None:
    """TF-Hub's modules have no albert_config.json."""
    from litebert.model.config import PRESETS

    config = replace(PRESETS[preset], vocab_size=50, max_position_embeddings=8)
    write_encoder(config, tmp_path / "m")
    source = read_checkpoint(tmp_path / "m.index")
    assert folder_config(source.settings) == config
    assert f"those of ALBERT {preset}, which has this shape" in source.remarks[0]


def folder_config(settings: dict[str, Any]) -> AlbertConfig:
    from litebert.interop.huggingface import parse_config

    return parse_config(settings, Path())


# --- and back ---------------------------------------------------------------------------------------------------------


def saved(model: Model, path: Path) -> Model:
    """What comes back from Google's format."""
    folder = Folder(model.albert, model.tokenizer, model.task, model.max_length, model.sentence_map)
    write_google(folder, path)
    return litebert.load(path)


def assert_same(ours: Model, again: Model) -> None:
    assert again.config == ours.config
    states = again.albert.state_dict()
    assert states.keys() == ours.albert.state_dict().keys()
    for name, tensor in ours.albert.state_dict().items():
        assert torch.equal(states[name], tensor), name
    assert again.tokenizer.fingerprint == ours.tokenizer.fingerprint
    assert again.max_length == ours.max_length


SHAPES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "relu": {"hidden_act": "relu"},
    "erf": {"hidden_act": "gelu"},
    "groups of blocks": {"num_hidden_groups": 3, "inner_group_num": 2},
    "sharing attention": {"sharing": "attention"},
    "sharing ffn": {"sharing": "ffn", "num_hidden_groups": 3},
    "sharing nothing": {"sharing": "none"},
    "dropout": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_google_and_back_is_the_same_bit_by_bit(shape: str, model: Model, tmp_path: Path) -> None:
    config = replace(model.config, **SHAPES[shape])
    albert = Albert(config, pretraining_heads(config))
    stir(albert)
    ours = Model(albert, model.tokenizer, Mask(), 48)
    exact = pytest.warns(UserWarning, match="Google's code has the one by tanh") if shape == "erf" else nullcontext()
    with exact:
        again = saved(ours, tmp_path)
    assert_same(ours, again)


@pytest.mark.parametrize(
    "task", [Classify(["no", "perhaps", "yes"]), Regress(), Answer()], ids=["classify", "regress", "answer"]
)
def test_a_head_that_google_has_comes_back_with_its_task(task: Any, model: Model, tmp_path: Path) -> None:
    albert = Albert(model.config, {task.head_name: task.head(model.config)})
    stir(albert)
    ours = Model(albert, model.tokenizer, task)
    again = saved(ours, tmp_path)
    assert_same(ours, again)
    assert (again.task.name, again.task.settings()) == (task.name, task.settings())


def test_a_classifier_of_googles_code_is_read_with_numbered_classes(model: Model, tmp_path: Path) -> None:
    task = Classify(["no", "perhaps", "yes"])
    ours = Model(Albert(model.config, {"classify": task.head(model.config)}).eval(), model.tokenizer, task)
    write_google(Folder(ours.albert, ours.tokenizer, task, 64), tmp_path)
    edited(tmp_path, litebert=None, id2label=None, label2id=None, architectures=None)
    again = litebert.load(tmp_path)
    assert again.task.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    found, known = ([answer.probability for answer in one.predict(PROSE[:2])] for one in (again, ours))
    assert found == known


def test_albert_zhs_goes_to_googles_format_without_a_matrix_between(tmp_path: Path) -> None:
    ours = litebert.load(FIXTURES / "albert_zh")
    assert_same(ours, saved(ours, tmp_path))
    names = TensorBundle(tmp_path / "model.ckpt-best.index").entries
    assert not any("embedding_hidden_mapping_in" in name for name in names)
    assert (tmp_path / "vocab.txt").read_text().splitlines()[:2] == ["[PAD]", "[UNK]"]


def test_the_built_in_model_comes_back_with_its_vectors(tmp_path: Path) -> None:
    ours = litebert.load("litebert-small-zh")
    again = saved(ours, tmp_path)
    assert_same(ours, again)
    assert np.array_equal(ours.embed(["今天天气很好"]), again.embed(["今天天气很好"]))
    lines = (tmp_path / "spiece.vocab").read_text(encoding="utf-8").splitlines()
    assert len(lines) == ours.tokenizer.vocab_size
    assert lines[2].split("\t")[0] == "[CLS]"


def test_settings_are_those_that_googles_code_reads(model: Model, tmp_path: Path) -> None:
    saved(model, tmp_path)
    settings = json.loads((tmp_path / "albert_config.json").read_text())
    theirs = json.loads((FIXTURES / "google" / "albert_config.json").read_text())
    assert theirs.keys() <= settings.keys()
    assert settings["hidden_act"] == "gelu"
    assert settings["embedding_size"] == 16


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"relative_attention_distance": 4}, "relative_attention_distance has no form in Google's code"),
     ({"lora_rank": 2}, "lora_rank has no form"), ({"hidden_act": "silu"}, "hidden_act='silu' has no form"),
     ({"embedding_size": 32}, "is not an identity"),
     ({"num_hidden_layers": 18, "num_hidden_groups": 14}, "Google's division puts some layers into other groups")],
)  # fmt: skip
def test_what_google_would_compute_otherwise_is_not_written(
    changes: dict[str, Any], complaint: str, model: Model, tmp_path: Path
) -> None:
    config = replace(model.config, **changes)
    with pytest.raises(ConfigError, match=complaint):
        write_google(Folder(Albert(config, {}), model.tokenizer, None, 64), tmp_path)
    assert not list(tmp_path.glob("*.index"))


HALVED: dict[str, Any] = {
    "tag with a CRF": Tag(["O", "B-A", "I-A"], crf=True),
    **{f"classify with {kind}": Classify(["a", "b", "c"], head=kind) for kind in ("mlp", "cnn", "lstm")},
}


@pytest.mark.parametrize("case", HALVED)
def test_a_head_that_google_cannot_take_whole_is_left_out_and_said(case: str, model: Model, tmp_path: Path) -> None:
    task = HALVED[case]
    albert = Albert(model.config, {task.head_name: task.head(model.config)})
    with pytest.warns(UserWarning, match=f"no whole place for the head '{task.head_name}'"):
        rows = write_google(Folder(albert, model.tokenizer, task, 64), tmp_path)
    names = {name for name, _ in named_tensors(albert)}
    assert names - {row.name for row in rows} == {name for name in names if not name.startswith("albert.")}
    again = litebert.load(tmp_path)
    assert not again.albert.heads
    assert torch.equal(again.encoder.pooler.weight, albert.encoder.pooler.weight)


READ_BACK = """
import sys, numpy as np, tensorflow as tf
reader = tf.train.load_checkpoint(sys.argv[1])
np.savez(sys.argv[2], **{n.replace("/", "|"): reader.get_tensor(n) for n in reader.get_variable_to_shape_map()})
"""


def tensorflow() -> str:
    python = os.environ.get(TENSORFLOW)
    if python is None:
        pytest.skip(f"TensorFlow is for development alone; set {TENSORFLOW} to a Python that has it to run this")
    return python


def test_real_tensorflow_reads_what_we_write(tokenizer: Tokenizer, tmp_path: Path) -> None:
    python = tensorflow()
    config = AlbertConfig(
        vocab_size=300, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=64, num_hidden_groups=2, inner_group_num=2,
    )  # fmt: skip
    albert = Albert(config, pretraining_heads(config))
    write_google(Folder(albert, tokenizer, Mask(), 64), tmp_path / "tf")
    command = [python, "-c", READ_BACK, str(tmp_path / "tf" / "model.ckpt-best"), str(tmp_path / "back.npz")]
    subprocess.run(command, check=True, capture_output=True)
    back = {name.replace("|", "/"): value for name, value in np.load(tmp_path / "back.npz").items()}
    ours = dict(named_tensors(albert))
    assert len(back) == len(ours)
    for name, tensor in ours.items():
        google, transposed = to_google(name) or ("", False)
        assert np.array_equal(back[google], (tensor.T if transposed else tensor).numpy()), name


def test_a_folder_that_was_read_can_be_put_together_twice() -> None:
    source = read_any(FIXTURES / "google")
    first, second = build_folder(source), build_folder(source)
    assert torch.equal(first.model.encoder.pooler.weight, second.model.encoder.pooler.weight)
    assert load_folder(FIXTURES / "google").max_length == first.max_length == 24


def test_small_embeddings_wider_than_any_are_not_multiplied() -> None:
    """The product would be small, and what is multiplied in double precision is not."""
    words = "albert.embeddings.word_embeddings.weight"
    tensors = {
        words: torch.empty(1 << 10, 1 << 20, device="meta"),
        SECOND_EMBEDDINGS: torch.empty(1 << 20, 16, device="meta"),
    }
    with pytest.raises(CheckpointError, match=r"1,073,741,824 numbers, over the limit"):
        fold_second_matrix(tensors, [], Path("model.ckpt.index"))
