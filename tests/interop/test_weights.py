"""Files of tensors that are well-formed and still not weights: each is refused in one line, and in little memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

import litebert
from litebert.errors import CheckpointError
from litebert.inference import Model
from litebert.interop.huggingface import named_tensors
from litebert.interop.weights import WEIGHT_LIMIT_BYTES, read_file, read_tensors

POOLER = "albert.pooler.weight"


def weights_in(folder: Path, model: Model, changes: dict[str, Tensor], name: str = "albert.pt") -> Path:
    """A file of weights with its settings beside it."""
    torch.save(dict(named_tensors(model.albert)) | changes, folder / name)
    settings = {key: value for key, value in model.config.to_dict().items() if key != "sharing"}
    (folder / "config.json").write_text(json.dumps(settings))
    model.tokenizer.save(folder)
    return folder / name


def complaint_of(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        litebert.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


STRANGE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "meta": (lambda t: t.to("meta"), "is on the device 'meta'"),
    "sparse": (lambda t: t.to_sparse(), "is sparse"),
    "quantized": (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "is quantized"),
    "expanded": (lambda t: torch.zeros(1).expand(10**6, 10**4), "which takes 40,000,000,000 bytes, and the file has 4"),
    "complex64": (lambda t: t.to(torch.complex64), "holds complex64"),
    "int64": (lambda t: t.to(torch.int64), "holds int64"),
    "uint8": (lambda t: t.to(torch.uint8), "holds uint8"),
    "int8 without its scale": (lambda t: t.to(torch.int8), "has no scale"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_tensors_that_are_no_weights_are_refused(kind: str, model: Model, tmp_path: Path) -> None:
    change, complaint = STRANGE[kind]
    changed = change(dict(named_tensors(model.albert))[POOLER])
    assert complaint in complaint_of(weights_in(tmp_path, model, {POOLER: changed}))


def test_whole_numbers_in_safetensors_are_no_weights_either(tmp_path: Path) -> None:
    safetensors.torch.save_file({POOLER: torch.ones(2, 2, dtype=torch.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model.safetensors: albert.pooler.weight holds int64, where a weight"):
        read_file(tmp_path / "model.safetensors")


def test_many_names_for_the_same_numbers_are_counted_together(tmp_path: Path) -> None:
    one = torch.zeros(1 << 20)
    torch.save({str(number): one for number in range(WEIGHT_LIMIT_BYTES // (4 << 20) + 1)}, tmp_path / "albert.pt")
    with pytest.raises(CheckpointError, match="its tensors take 8,594,128,896 bytes, over the limit"):
        read_file(tmp_path / "albert.pt")


@pytest.mark.parametrize("name", ["albert.embeddings.position_embeddings.weight", "classifier.weight",
                                  "albert.embeddings.token_type_embeddings.weight"])  # fmt: skip
def test_a_number_in_place_of_a_matrix_is_refused(name: str, model: Model, tmp_path: Path) -> None:
    complaint = complaint_of(weights_in(tmp_path, model, {name: torch.tensor(1.0)}))
    assert "albert.pt" in complaint
    assert "lacks a table" in complaint or "where a matrix was expected" in complaint


@pytest.mark.parametrize("name", ["albert.pt", "pytorch_model.bin"])
def test_two_names_for_one_weight_are_refused(name: str, model: Model, tmp_path: Path) -> None:
    path = weights_in(tmp_path, model, {"albert.embeddings.LayerNorm.gamma": torch.ones(1)}, name)
    complaint = complaint_of(path if name == "albert.pt" else tmp_path)
    assert "holds albert.embeddings.LayerNorm.weight twice, once as albert.embeddings.LayerNorm.gamma" in complaint


def test_two_of_lone_patients_names_for_one_weight_are_refused(tmp_path: Path) -> None:
    layer = "bert.encoder.transformer.group.0.inner_group.0.LayerNorm"
    torch.save({f"{layer}.weight": torch.ones(2), f"{layer}.gamma": torch.ones(2)}, tmp_path / "albert.pt")
    assert f"attention.LayerNorm.weight twice, once as {layer}.gamma" in complaint_of(tmp_path / "albert.pt")


def test_shards_that_hold_the_same_name_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        safetensors.torch.save_file({POOLER: torch.ones(2, 2)}, tmp_path / f"{number}.safetensors")
    names = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(names))
    with pytest.raises(CheckpointError, match=r"2.safetensors: holds albert.pooler.weight twice"):
        read_tensors(tmp_path)


def test_a_weight_that_is_no_number_is_said_to_be_none(model: Model, tmp_path: Path) -> None:
    weight = dict(named_tensors(model.albert))[POOLER].clone()
    weight[0, :2] = float("nan")
    complaint = complaint_of(weights_in(tmp_path, model, {POOLER: weight}))
    assert "albert.pooler.weight holds 2 values that are not a number (NaN)" in complaint
