"""Folders that transformers, sentence-transformers and litebert all read, with equal outputs; prints the figures."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import litebert
from litebert.errors import CheckpointError
from litebert.inference import Model
from litebert.interop.formats import load_folder
from litebert.model import Albert, AlbertConfig, HeadKind, preset, pretraining_heads
from litebert.model.sentence_head import SentenceMap
from litebert.tasks import Classify, Mask, Multilabel, Regress
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE, peer

HIDDEN_TOLERANCE, LOGIT_TOLERANCE = 1e-5, 1e-4


def stir(module: torch.nn.Module) -> torch.nn.Module:
    """Move biases and LayerNorms off zero and one too, so that no tensor can be lost or swapped unseen."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return module.eval()


def random_model(config: AlbertConfig, tokenizer: Tokenizer) -> Model:
    albert = Albert(config, pretraining_heads(config))
    stir(albert)
    return Model(albert, tokenizer, Mask())


def compare(ours: Model, theirs: Any, ids: torch.Tensor, mask: torch.Tensor | None) -> tuple[float, float]:
    """Largest differences of hidden states and of masked-LM logits at real tokens."""
    segments = (torch.arange(ids.shape[1]) > ids.shape[1] // 2).long().expand_as(ids)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    with torch.inference_mode():
        hidden = ours.encoder(ids, mask, segments)
        logits = ours.albert.heads["mlm"](hidden, ours.encoder.word_embeddings.weight)
        answer = theirs(ids, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
    reference = answer.prediction_logits if hasattr(answer, "prediction_logits") else answer.logits
    differences = (hidden - answer.hidden_states[-1])[real].abs().max(), (logits - reference)[real].abs().max()
    return float(differences[0]), float(differences[1])


def assert_parity(name: str, ours: Model, theirs: Any, ids: torch.Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    mask = torch.ones_like(ids)
    mask[1, ids.shape[1] // 2 :] = 0
    for padding, given in (("unpadded", None), ("padded", mask)):
        hidden, logits = compare(ours, theirs, ids, given)
        with capsys.disabled():
            print(f"\nparity {name:<28} {padding:<9} hidden {hidden:.1e}  MLM logits {logits:.1e}", end="")
        assert hidden <= HIDDEN_TOLERANCE
        assert logits <= LOGIT_TOLERANCE


VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "small": {},
    "base": {},
    "large": {},
    "tiny, 2 groups": {"num_hidden_groups": 2},
    "tiny, 2 groups of 2 blocks": {"num_hidden_groups": 2, "inner_group_num": 2},
    "tiny, gelu": {"hidden_act": "gelu"},
    "tiny, relu": {"hidden_act": "relu"},
    "tiny, silu": {"hidden_act": "silu"},
    "tiny, E = H": {"embedding_size": 312},
    "tiny, sharing attention": {"sharing": "attention"},
    "tiny, sharing ffn": {"sharing": "ffn"},
    "tiny, sharing none": {"sharing": "none", "num_hidden_groups": 2},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_we_save_transformers_computes_alike(
    name: str, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = peer("transformers")
    config = preset(name.split(",")[0], **{"vocab_size": 1000} | VARIANTS[name])
    ours = random_model(config, tokenizer)
    ours.save(tmp_path)
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path).eval()
    assert_parity(f"{name} →", ours, theirs, torch.randint(5, 1000, (2, 48)), capsys)


@pytest.mark.parametrize("name", [name for name in VARIANTS if "sharing" not in name])
def test_what_transformers_saves_we_compute_alike(
    name: str, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = peer("transformers")
    config = preset(name.split(",")[0], **{"vocab_size": 1000} | VARIANTS[name])
    settings = {key: value for key, value in config.to_dict().items() if hasattr(transformers.AlbertConfig(), key)}
    theirs = stir(transformers.AlbertForPreTraining(transformers.AlbertConfig(**settings)))
    theirs.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    assert_parity(f"{name} ←", litebert.load(tmp_path), theirs, torch.randint(5, 1000, (2, 48)), capsys)


REACTIONS = [
    "CC(=O)O.OCC>>CC(=O)OCC.O",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1.Cl",
    "BrCc1ccccc1.N#C[Na]>>N#CCc1ccccc1",
    "O=C(O)c1ccccc1.CO>>COC(=O)c1ccccc1",
]
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")  # atoms, bonds, rings and brackets of a reaction


@pytest.fixture(scope="module")
def reactions(trained_albert: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Real reactions as the trained ALBERT reads them: ids and mask."""
    vocabulary = {token: i for i, token in enumerate((trained_albert / "vocab.txt").read_text().split("\n"))}
    rows = [[vocabulary[t] for t in ("[CLS]", *SMILES.findall(text), "[SEP]")] for text in REACTIONS]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return ids, ids != 0


def test_a_really_trained_albert_gives_transformers_numbers(
    trained_albert: Path, reactions: tuple[torch.Tensor, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = peer("transformers")
    ours = litebert.load(trained_albert)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(trained_albert).eval()
    ids, mask = reactions
    for name, rows, given in (("padded", ids, mask.long()), ("unpadded", ids[:1, : int(mask[0].sum())], None)):
        hidden, logits = compare(ours, theirs, rows, given)
        with capsys.disabled():
            print(
                f"\nparity {'trained (reactions)':<28} {name:<9} hidden {hidden:.1e}  MLM logits {logits:.1e}", end=""
            )
        assert hidden <= HIDDEN_TOLERANCE
        assert logits <= LOGIT_TOLERANCE


def test_a_really_trained_albert_fills_gaps_rightly(
    trained_albert: Path, reactions: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Hide one token at a time: random weights would get none right."""
    model = litebert.load(trained_albert)
    mask_id = model.tokenizer.mask_id
    ids, mask = reactions
    right = []
    for row, length in zip(ids, mask.sum(1).tolist(), strict=True):
        hidden_one = row[:length].repeat(length - 2, 1)
        positions = torch.arange(1, length - 1)
        hidden_one[torch.arange(length - 2), positions] = mask_id
        with torch.inference_mode():
            hidden = model.encoder(hidden_one)[torch.arange(length - 2), positions]
            answers = model.albert.heads["mlm"](hidden, model.encoder.word_embeddings.weight).argmax(-1)
        right += (answers == row[positions]).tolist()
    assert np.mean(right) > 0.8


def test_a_trained_albert_survives_our_save_bit_by_bit(trained_albert: Path, tmp_path: Path) -> None:
    before = torch.load(trained_albert / "pytorch_model.bin", weights_only=True, map_location="cpu")
    litebert.load(trained_albert).save(tmp_path)
    after = safetensors.torch.load_file(tmp_path / "model.safetensors")
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name
    assert {name for name in before if "decoder" not in name and "position_ids" not in name} == set(after)


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
def test_a_reload_is_equal_and_shared_as_before(model: Model, tmp_path: Path, sharing: str) -> None:
    config = replace(model.config, sharing=sharing, num_hidden_groups=3, num_hidden_layers=6)  # type: ignore[arg-type]
    first = random_model(config, model.tokenizer)
    first.save(tmp_path)
    again = litebert.load(tmp_path)
    assert again.config == config
    states = again.albert.state_dict()
    assert states.keys() == first.albert.state_dict().keys()
    for name, tensor in first.albert.state_dict().items():
        assert torch.equal(states[name], tensor), name


def test_a_shared_weight_stands_once_on_disk(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert sum(t.numel() for t in tensors.values()) == sum(p.numel() for p in model.albert.parameters())
    assert sum("attention.query.weight" in name for name in tensors) == 1


@pytest.mark.parametrize("changes", [{"relative_attention_distance": 4}, {"depth_embedding": True}, {"lora_rank": 2}])
def test_what_transformers_cannot_express_it_refuses(model: Model, tmp_path: Path, changes: dict[str, Any]) -> None:
    transformers = peer("transformers")
    special = random_model(replace(model.config, **changes), model.tokenizer)
    special.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "litebert"
    with pytest.raises(ValueError, match="litebert"):
        transformers.AutoModel.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(litebert.load(tmp_path).encoder(ids), special.encoder(ids))


def test_sentence_transformers_gives_our_embeddings(model: Model, tmp_path: Path) -> None:
    sentence_transformers = peer("sentence_transformers")
    model.save(tmp_path)
    texts = [PROSE[0], PROSE[1] + " " + PROSE[2], "short", PROSE[3] * 9]
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    ours = model.embed(texts)
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() <= HIDDEN_TOLERANCE


def test_a_map_after_the_mean_is_saved_and_sentence_transformers_applies_it(model: Model, tmp_path: Path) -> None:
    sentence_transformers = peer("sentence_transformers")
    random, hidden = np.random.default_rng(0), model.config.hidden_size
    after = SentenceMap(random.normal(size=(24, hidden)).astype(np.float32), np.arange(24, dtype=np.float32))
    Model(model.albert, model.tokenizer, model.task, model.max_length, after).save(tmp_path)
    ours = litebert.load(tmp_path).embed(PROSE[:3])
    assert ours.shape == (3, 24)
    assert np.abs(ours - (model.embed(PROSE[:3]) @ after.weight.T + after.bias)).max() < 1e-4
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").encode(PROSE[:3])
    assert np.abs(ours - theirs).max() < 1e-4
    model.save(tmp_path)  # without one, the old one counts no longer
    assert litebert.load(tmp_path).embed(PROSE[:1]).shape == (1, hidden)


def test_what_tokens_count_is_saved_and_sentence_transformers_applies_it(model: Model, tmp_path: Path) -> None:
    sentence_transformers = peer("sentence_transformers")
    random, hidden = np.random.default_rng(1), model.config.hidden_size
    tokens = random.uniform(size=model.tokenizer.vocab_size).astype(np.float32)
    after = SentenceMap(np.eye(4, hidden, dtype=np.float32), np.ones(4, dtype=np.float32), tokens)
    weighted = Model(model.albert, model.tokenizer, model.task, model.max_length, after)
    weighted.save(tmp_path)
    again = litebert.load(tmp_path)
    assert again.sentence_map is not None
    np.testing.assert_array_equal(again.sentence_map.tokens, tokens)
    ours = again.embed(PROSE[:3])
    ids = model.tokenizer.encode(PROSE[:1])[0].ids
    states = model.encoder(torch.tensor(np.array(ids)[None])).detach().numpy()[0]
    by_hand = np.average(states, axis=0, weights=tokens[ids])[:4] + 1
    assert np.abs(ours[0] - by_hand).max() < 1e-4
    assert np.abs(ours - Model(model.albert, model.tokenizer).embed(PROSE[:3])[:, :4] - 1).max() > 1e-3
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").encode(PROSE[:3])
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize(
    ("content", "complaint"),
    [({"vocab": ["a"], "word_weights": {}}, "does not weigh this tokenizer's"),
     ({"word_weights": []}, "does not weigh this tokenizer's"),
     ({"word_weights": {"[CLS]": "much"}}, "not a number"),
     ({"word_weights": {"[CLS]": -1}}, "not between 0"),
     ({"word_weights": {"[CLS]": 1e99}}, "not between 0")],
)  # fmt: skip
def test_damaged_counts_are_refused(model: Model, tmp_path: Path, content: dict[str, Any], complaint: str) -> None:
    size, tokens = model.config.hidden_size, np.ones(model.tokenizer.vocab_size, np.float32)
    after = SentenceMap(np.eye(size, dtype=np.float32), np.zeros(size, dtype=np.float32), tokens)
    Model(model.albert, model.tokenizer, sentence_map=after).save(tmp_path)
    path = tmp_path / "1_WordWeights" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    with pytest.raises(CheckpointError, match=complaint):
        litebert.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [("modules.json", "{}", "not a list of modules"), ("modules.json", "[1]", "not a list of modules"),
     ("2_Dense/model.safetensors", "no", "cannot be read"), ("2_Dense/config.json", "[]", "an object was expected")],
)  # fmt: skip
def test_a_damaged_map_is_refused(model: Model, tmp_path: Path, file: str, content: str, complaint: str) -> None:
    size = model.config.hidden_size
    after = SentenceMap(np.zeros((4, size), dtype=np.float32), np.zeros(4, dtype=np.float32))
    Model(model.albert, model.tokenizer, sentence_map=after).save(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=complaint):
        litebert.load(tmp_path)


def test_a_map_of_another_size_is_refused(model: Model, tmp_path: Path) -> None:
    Model(
        model.albert, model.tokenizer, sentence_map=SentenceMap(np.zeros((4, 5), np.float32), np.zeros(4, np.float32))
    ).save(tmp_path)
    with pytest.raises(CheckpointError, match="do not fit vectors of"):
        litebert.load(tmp_path)


def test_modules_that_we_do_not_compute_are_named(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_CNN", "type": "sentence_transformers.models.CNN"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.warns(UserWarning, match=r"embed leaves out the module .*CNN"):
        litebert.load(tmp_path)


def test_a_classifier_gives_the_same_scores_in_transformers_for_texts_and_pairs(model: Model, tmp_path: Path) -> None:
    transformers = peer("transformers")
    task = Classify(["no", "perhaps", "yes"])
    classifier = Model(Albert(model.config, {"classify": task.head(model.config)}).eval(), model.tokenizer, task)
    classifier.save(tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(PROSE[:3], PROSE[3:6], padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        reference = theirs(**inputs).logits.softmax(-1)
    again = litebert.load(tmp_path)
    answers = again.predict(list(zip(PROSE[:3], PROSE[3:6], strict=True)))
    ours = torch.tensor([[answer.probabilities[label] for label in ("no", "perhaps", "yes")] for answer in answers])
    assert (ours - reference).abs().max() <= HIDDEN_TOLERANCE
    assert theirs.config.id2label == {0: "no", 1: "perhaps", 2: "yes"}


@pytest.mark.parametrize("task_class", [Classify, Multilabel, Regress])
@pytest.mark.parametrize("kind", ["linear", "mlp", "cnn", "lstm"])
def test_every_head_reloads_with_equal_answers_and_transformers_knows_the_linear_one(
    model: Model, tmp_path: Path, kind: HeadKind, task_class: Any
) -> None:
    transformers = peer("transformers")
    task = task_class(kind) if task_class is Regress else task_class(["no", "yes"], kind)
    albert = Albert(model.config, {"classify": task.head(model.config)})
    first = Model(stir(albert), model.tokenizer, task)  # type: ignore[arg-type]
    first.save(tmp_path)
    again = litebert.load(tmp_path)
    assert type(again.task) is task_class
    assert again.predict(PROSE[:4]) == first.predict(PROSE[:4])
    if kind == "linear":
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        sequence = model.tokenizer.encode(PROSE[:1])[0]
        example = task.features([task.parse(PROSE[0], "text")], model.tokenizer, 64)
        with torch.inference_mode():
            reference = theirs(torch.tensor([sequence.ids])).logits
        assert (first.score_examples(task, example)[0]["scores"] - reference).abs().max() <= LOGIT_TOLERANCE
    else:
        with pytest.raises(ValueError, match="litebert"):
            transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_a_classifier_that_transformers_saved_answers_with_its_labels(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = peer("transformers")
    config = transformers.AlbertConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, num_attention_heads=4, intermediate_size=64, embedding_size=16,
        num_hidden_layers=2, id2label={0: "ham", 1: "spam"}, label2id={"ham": 0, "spam": 1},
    )  # fmt: skip
    transformers.AlbertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    answer = litebert.load(tmp_path).predict(["hello"])[0]
    assert set(answer.probabilities) == {"ham", "spam"}
    assert sum(answer.probabilities.values()) == pytest.approx(1)


def test_a_chinese_folder_with_a_vocab_txt_loads_here_and_ours_in_transformers(data: Path, tmp_path: Path) -> None:
    transformers = peer("transformers")
    chinese = data / "vocab" / "chinese"
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    shutil.copy(chinese / "vocab.txt", old)
    settings = json.loads((chinese / "albert_config_tiny_google.json").read_text())
    torch.manual_seed(0)
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(**settings)).eval()
    theirs.save_pretrained(old)
    model = litebert.load(old)
    model.save(new)
    text = "今天天气很好，我们去公园散步。"
    tokenizer = transformers.AutoTokenizer.from_pretrained(new)
    assert tokenizer(text)["input_ids"] == transformers.BertTokenizer.from_pretrained(old)(text)["input_ids"]
    assert tokenizer(text)["input_ids"] == model.tokenizer.encode([text])[0].ids
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    assert compare(model, theirs, ids, None)[0] <= HIDDEN_TOLERANCE


def test_a_bare_encoder_and_old_names_load(model: Model, tmp_path: Path) -> None:
    """transformers' AlbertModel saves names without `albert.`, and the first versions wrote gamma and beta."""
    model.save(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    old = {}
    for name, tensor in tensors.items():
        if name.startswith("albert."):
            renamed = name.removeprefix("albert.").replace("LayerNorm.weight", "LayerNorm.gamma")
            old[renamed.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    old["embeddings.position_ids"] = torch.arange(64)[None]
    (tmp_path / "model.safetensors").unlink()
    torch.save(old, tmp_path / "pytorch_model.bin")
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(litebert.load(tmp_path).encoder(ids), model.encoder(ids))


def test_half_precision_files_load_as_float32(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    safetensors.torch.save_file({k: v.bfloat16() for k, v in tensors.items()}, tmp_path / "model.safetensors")
    loaded = litebert.load(tmp_path)
    assert {p.dtype for p in loaded.albert.parameters()} == {torch.float32}


def test_sharded_weights_load(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    tensors = list(safetensors.torch.load_file(tmp_path / "model.safetensors").items())
    (tmp_path / "model.safetensors").unlink()
    files = {"model-1.safetensors": dict(tensors[::2]), "model-2.safetensors": dict(tensors[1::2])}
    for name, part in files.items():
        safetensors.torch.save_file(part, tmp_path / name)
    index = {"weight_map": {key: name for name, part in files.items() for key in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(litebert.load(tmp_path).encoder(ids), model.encoder(ids))


def edit_config(folder: Path, **changes: Any) -> None:
    settings = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(settings))


def edit_weights(folder: Path, change: Any) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def corrupt(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])


def mislabel(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"this is not a PyTorch file")


class Exploit:
    def __reduce__(self) -> Any:
        return (os.system, ("touch exploited",))


def put_exploit(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"albert.pooler.bias": Exploit()}))


def put_exploit_in_a_torch_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"albert.pooler.bias": Exploit()}, folder / "pytorch_model.bin")


def put_expanded(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["albert.pooler.bias"] = torch.zeros(1, dtype=torch.half).expand(10**12)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")


def put_zip_bomb(folder: Path) -> None:
    """A real archive of a few bytes whose directory promises 16 GB."""
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"x")
        archive.filelist[0].file_size = 16 << 30


def traverse(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"albert.pooler.bias": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def shrink_vocabulary(tensors: dict[str, torch.Tensor]) -> None:
    for name in ("albert.embeddings.word_embeddings.weight", "predictions.bias"):
        tensors[name] = tensors[name][:100].clone()


def untie(folder: Path) -> None:
    name = "albert.embeddings.word_embeddings.weight"
    edit_weights(folder, lambda tensors: tensors.update({"predictions.decoder.weight": tensors[name] + 1}))


DAMAGES: dict[str, tuple[Any, str]] = {
    "truncated weights": (truncate, "model.safetensors: not a safetensors file or damaged"),
    "corrupted header": (corrupt, "model.safetensors: not a safetensors file or damaged"),
    "mislabelled file": (mislabel, "pytorch_model.bin: "),
    "malicious pickle": (put_exploit, "could run code, so it is not opened"),
    "malicious torch file": (put_exploit_in_a_torch_file, "could run code, so it is not opened"),
    "path traversal": (traverse, "names '../outside.safetensors', which is not a .safetensors file of this folder"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors nor pytorch_model.bin"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json: not JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "holds a JSON list"),
    "absurd size": (lambda f: edit_config(f, hidden_size=2_000_000), "where config.json implies"),
    "absurd depth": (lambda f: edit_config(f, num_hidden_layers=10**7), "must be a whole number between 1 and 1,000"),
    "architectures not a list": (lambda f: edit_config(f, architectures=5), "architectures=5"),
    "special token not a string": (
        lambda f: (f / "tokenizer_config.json").write_text('{"cls_token": 5}'),
        "cls_token=5 in tokenizer_config.json must be a string",
    ),
    "length beyond the positions": (
        lambda f: edit_config(f, litebert={"max_length": 100_000}),
        "litebert.max_length=100000 must fit the model",
    ),
    "a huge tensor in few bytes": (put_expanded, "which takes 2,000,000,000,000 bytes, and the file has 2 of them"),
    "a zip bomb": (put_zip_bomb, "is over the limit of"),
    "a BERT": (lambda f: edit_config(f, model_type="bert"), "model_type='bert' is not an ALBERT"),
    "bad setting": (lambda f: edit_config(f, num_attention_heads=5), "num_attention_heads=5 must divide"),
    "string setting": (lambda f: edit_config(f, hidden_size="32"), "hidden_size='32' must be a whole number"),
    "wrong shape": (lambda f: edit_config(f, intermediate_size=128), "has shape (64, 32) where config.json implies"),
    "missing tensor": (
        lambda f: edit_weights(f, lambda t: t.pop("albert.embeddings.LayerNorm.bias")),
        "lacks 1 tensors, albert.embeddings.LayerNorm.bias among them",
    ),
    "missing layers": (lambda f: edit_config(f, num_hidden_groups=3), "lacks"),
    "left-over layers": (
        lambda f: edit_weights(f, lambda t: t.update({"albert.encoder.more": torch.zeros(1)})),
        "1 tensors have no place",
    ),
    "untied table": (untie, "predictions.decoder.weight is not tied"),
    "tokenizer too large": (
        lambda f: edit_weights(f, shrink_vocabulary) or edit_config(f, vocab_size=100),
        "the tokenizer has 200 tokens and the model only 100",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_folder_gives_one_clear_error(
    model: Model, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    model.save(folder)
    monkeypatch.chdir(tmp_path)
    harm, message = DAMAGES[damage]
    harm(folder)
    with pytest.raises(CheckpointError) as caught:
        litebert.load(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "exploited").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "same", "1": "same"}}, "2 or more different names"),
        ({"id2label": {"0": "a", "5": "b"}}, "2 or more different names"),
        ({"id2label": {"0": "only"}}, "2 or more different names"),
        ({"id2label": None, "num_labels": "x"}, "must map 0, 1, 2"),
    ],
)
def test_a_classifier_we_would_answer_wrongly_for_is_refused(
    model: Model, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    task = Classify(["no", "yes"])
    Model(Albert(model.config, {"classify": task.head(model.config)}), model.tokenizer, task).save(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        litebert.load(tmp_path)


def test_a_head_we_do_not_know_is_named_when_it_is_left_out(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    edit_config(tmp_path, architectures=["AlbertForQuestionAnswering"])
    edit_weights(tmp_path, lambda tensors: tensors.update({"qa_outputs.bias": torch.zeros(2)}))
    with pytest.warns(UserWarning, match="litebert has no head for qa_outputs.bias"):
        litebert.load(tmp_path)


def test_nothing_is_said_when_nothing_is_left_out(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        litebert.load(tmp_path)


def test_the_length_a_model_was_trained_on_is_kept_for_everyone(model: Model, tmp_path: Path) -> None:
    transformers, sentence_transformers = peer("transformers"), peer("sentence_transformers")
    model.max_length = 16
    model.save(tmp_path)
    assert litebert.load(tmp_path).max_length == 16
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).model_max_length == 16
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").encode([PROSE[0] * 3])
    assert np.abs(litebert.load(tmp_path).embed([PROSE[0] * 3]) - theirs).max() <= HIDDEN_TOLERANCE


def test_copies_that_should_be_shared_but_differ_are_refused(model: Model, tmp_path: Path) -> None:
    random_model(replace(model.config, sharing="attention"), model.tokenizer).save(tmp_path)
    name = "albert.encoder.albert_layer_groups.1.albert_layers.0.attention.dense.bias"
    edit_weights(tmp_path, lambda tensors: tensors.update({name: tensors[name] + 1}))
    with pytest.raises(CheckpointError, match=r"sharing='attention' but .* differs from its copies"):
        load_folder(tmp_path)


def test_an_interrupted_save_leaves_no_folder_that_loads_half(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full_disk)
    with pytest.raises(
        litebert.LitebertError, match=r"model.safetensors: cannot be written \(No space left on device\)"
    ):
        model.save(tmp_path / "new")
    assert not (tmp_path / "new" / "config.json").exists()
    assert not list((tmp_path / "new").glob(".*"))
