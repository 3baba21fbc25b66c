"""A real model in eight bits: what its folder holds, what it answers, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import litebert
from litebert.compress.quantize import measure_error, quantize_model
from litebert.data.batches import Example
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.inference import Model
from litebert.model.backends.int8 import has_int8

pytestmark = pytest.mark.skipif(not has_int8(), reason="this CPU has no instructions for eight bits")

TEXTS = [
    "他们结婚后生了两个孩子。",
    "我的包裹还没有到。",
    "请问怎么退款？",
    "会议改到星期二下午三点。",
    "这家酒店的房间很干净。",
]


@pytest.fixture(scope="module")
def model() -> Model:
    return litebert.load("litebert-small-zh")


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("int8")
    quantize_model(model, examples_of(model, TEXTS)).save(path)
    return path


def examples_of(model: Model, texts: list[str]) -> list[Example]:
    return [Example([one]) for one in model.tokenizer.encode(texts)]


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    found: np.ndarray = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    return found


def damaged(folder: Path, to: Path, **changes: object) -> Path:
    """A copy of the folder with another thing under `litebert` in its config.json."""
    for file in folder.iterdir():
        if file.is_file():
            (to / file.name).write_bytes(file.read_bytes())
    settings = json.loads((to / "config.json").read_text())
    settings["litebert"] |= changes
    (to / "config.json").write_text(json.dumps(settings))
    return to


def test_the_folder_is_small_and_answers_nearly_the_same(model: Model, folder: Path) -> None:
    size = (folder / "model.safetensors").stat().st_size
    assert size < 0.6 * sum(2 * weight.numel() for weight in model.albert.parameters())  # bfloat16 has two bytes each
    small = litebert.load(folder)
    assert small.answers_in_int8
    assert "int8" in repr(small)
    assert cosines(small.embed(TEXTS), model.embed(TEXTS)).min() > 0.99
    sure = "他们结婚后生了两个[MASK]。"
    assert small.fill_mask(sure)[0].token == model.fill_mask(sure)[0].token  # type: ignore[union-attr]


def test_torch_computes_from_the_same_weights(folder: Path, tmp_path: Path) -> None:
    plain = litebert.load(folder, engine="torch")
    assert not plain.answers_in_int8
    vectors = plain.embed(TEXTS)
    assert cosines(vectors, litebert.load(folder).embed(TEXTS)).min() > 0.99
    plain.save(tmp_path)  # what has been rounded stays as it is
    np.testing.assert_allclose(litebert.load(tmp_path, engine="torch").embed(TEXTS), vectors, rtol=1e-4, atol=1e-5)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "litebert"


def test_a_folder_of_another_kind_can_be_asked_in_eight_bits(model: Model) -> None:
    now = litebert.load("litebert-small-zh", engine="int8")
    assert now.int8 is None
    assert 0.99 < cosines(now.embed(TEXTS), model.embed(TEXTS)).min() < 0.999999
    with pytest.raises(ConfigError, match="engine='fast' must be one of auto, torch, bf16, int8"):
        litebert.load("litebert-small-zh", engine="fast")  # type: ignore[arg-type]


def test_a_cpu_without_eight_bits_uses_the_weights_in_float32(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr("litebert.model.backends.int8.verified_native_library", lambda: None)
    assert not litebert.load(folder).answers_in_int8
    with pytest.raises(ConfigError, match="no instructions"):
        litebert.load(folder, engine="int8")


def test_the_loss_is_measured_after_every_pass(model: Model) -> None:
    known, others = examples_of(model, TEXTS[:3]), examples_of(model, TEXTS[3:])
    loss = measure_error(model, quantize_model(model, known), others)
    assert len(loss.by_pass) == model.config.num_hidden_layers
    assert 0 < loss.by_pass[0] < loss.by_pass[-1] < 0.2
    assert measure_error(model, model, others).by_pass == [0.0] * len(loss.by_pass)
    with pytest.raises(DataError, match="no example to measure on"):
        measure_error(model, model, [])


def test_adapt_works_on_eight_bits_and_an_adapted_model_is_not_quantized(folder: Path) -> None:
    texts = [
        "包裹在哪里",
        "快递还没到",
        "包裹丢了",
        "什么时候送货",
        "我要退款",
        "请把钱退给我",
        "怎么退货退款",
        "退款多久到账",
    ]
    few = litebert.adapt(litebert.load(folder), texts, ["送货"] * 4 + ["退款"] * 4, budget_s=60)
    assert few.predict(["我的包裹在哪里"])[0].label == "送货"
    with pytest.raises(ConfigError, match="quantize that one"):
        quantize_model(few)


def test_a_damaged_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    bad = damaged(folder, tmp_path, int8={"attention.0.given": [1, 0]})
    with pytest.raises(CheckpointError, match=r"litebert.int8 must say .*; quantize the model again"):
        litebert.load(bad)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("scale"))
    safetensors.torch.save_file({k: v for k, v in tensors.items() if k != lost}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="has no scale for each of its rows"):
        litebert.load(tmp_path)
