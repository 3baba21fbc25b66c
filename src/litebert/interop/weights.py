"""Files of named tensors: safetensors, also in shards, and what PyTorch saved. Nothing is ever unpickled blindly."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from litebert.errors import CheckpointError
from litebert.files import read_json
from litebert.model.quantize import quantize_per_row

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""Files of weights in a folder; the first that exists is read."""
GRAPH_FILES = ("model.onnx", "model.pt2", "encoder.onnx")
WEIGHT_LIMIT_BYTES = 8 << 30
MIN_QUANTIZED_SIZE = 1 << 16
"""Matrices with at most so many weights are not quantized."""
SCALE_SUFFIX = ".litebert_scale"
"""Suffix of the row scales of an int8 matrix."""
BUFFER_NAMES = ("embeddings.position_ids",)
"""Buffers of old versions, with the values 0, 1, 2, …"""
WEIGHT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Types of weights; int8 weights are dequantized when read."""
_LEGACY_PYTORCH_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder by current names."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in read_raw_tensors(folder).items():
        if not name.endswith(BUFFER_NAMES):
            add_tensor(tensors, current_name(name), tensor, name, folder)
    return tensors


def add_tensor(tensors: dict[str, Tensor], becomes: str, tensor: Tensor, name: str, path: Path) -> None:
    """Add a tensor under another name; two tensors with one name are refused."""
    if becomes in tensors:
        raise CheckpointError(
            f"{path}: holds {becomes} twice, once as {name}; it is not one model: leave only the right one in it"
        )
    tensors[becomes] = tensor


def read_raw_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder by the names in its files."""
    path = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if path is None:
        if graph := next((name for name in GRAPH_FILES if (folder / name).is_file()), None):
            raise CheckpointError(
                f"{folder}: holds a graph for other runtimes ({graph}) and no weights; give the model that it was "
                "exported from"
            )
        raise CheckpointError(
            f"{folder}: has neither model.safetensors nor pytorch_model.bin; the weights are missing: download the "
            "folder again"
        )
    tensors: dict[str, Tensor] = {}
    for file in _shard_paths(path) if path.suffix == ".json" else [path]:
        for name, tensor in read_file(file).items():
            add_tensor(tensors, name, tensor, name, file)
    return tensors


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or PyTorch file, recognised by content."""
    _check_size(path)
    by_pytorch = not is_safetensors(path) and (is_pytorch(path) or path.suffix == ".bin")
    tensors = _read_bin(path) if by_pytorch else _read_safetensors(path)
    _check_memory(path, tensors)
    dequantized = dict(_dequantize_tensors(tensors, path.parent))
    for name, tensor in dequantized.items():
        if tensor.dtype not in WEIGHT_DTYPES and not name.endswith(BUFFER_NAMES):
            raise CheckpointError(
                f"{path}: {name} holds {_dtype_name(tensor)}, where a weight is float32, float16, bfloat16 or float64; "
                "save the model with weights of one of these"
            )
    return dequantized


def is_pytorch(path: Path) -> bool:
    """Was it written by torch.save: a zip with data.pkl, or the magic number of older files?"""
    with path.open("rb") as file:
        start = file.read(len(_LEGACY_PYTORCH_MAGIC))
    return start == _LEGACY_PYTORCH_MAGIC or any(entry.filename.endswith("/data.pkl") for entry in _zip_entries(path))


def is_safetensors(path: Path) -> bool:
    """Does it begin with the length of a JSON header and a brace?"""
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size


def current_name(name: str) -> str:
    """Rename tensors of older versions: gamma and beta, and bare encoders without the prefix `albert.`."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"albert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def quantize_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Quantize large matrices to int8 with a scale per row; other tensors are unchanged."""
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or tensor.numel() <= MIN_QUANTIZED_SIZE:
            yield name, tensor
            continue
        whole, scale = quantize_per_row(tensor.float())
        yield name, whole
        yield name + SCALE_SUFFIX, scale


def _dequantize_tensors(tensors: Mapping[str, Tensor], folder: Path) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            scale = tensors.get(name + SCALE_SUFFIX)
            if scale is None or tensor.dim() != 2 or scale.shape != tensor.shape[:1]:
                raise CheckpointError(f"{folder}: {name} has no scale for each of its rows; quantize the model again")
            yield name, tensor * scale.float()[:, None]
        elif not (name.endswith(SCALE_SUFFIX) and name.removesuffix(SCALE_SUFFIX) in tensors):
            yield name, tensor


def _shard_paths(index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index}: has no weight_map; download the folder again")
    files = sorted(set(map(str, names.values())))
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: names {name!r}, which is not a .safetensors file of this folder; "
                "the folder is not to be trusted"
            )
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index}: names {name!r}, which is not there; download the folder again")
    return [index.parent / name for name in files]


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a safetensors file or damaged ({error}); download it again") from error


def _read_bin(path: Path) -> dict[str, Tensor]:
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: holds Python objects beside tensors and could run code, so it is not opened; "
            "get the model.safetensors version"
        ) from error
    except Exception as error:  # the restricted unpickler fails in every way on what is not a pickle
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(f"{path}: not a PyTorch file or damaged ({reason}); download it again") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(x, Tensor) and isinstance(key, str) for key, x in tensors.items()
    ):
        raise CheckpointError(f"{path}: holds something other than named tensors; it is not a model's weights")
    return tensors


def _check_memory(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose storage is smaller than their size: a few bytes could expand without limit."""
    for name, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.is_quantized or tensor.is_nested:
            raise CheckpointError(
                f"{path}: {name} is {_storage_kind(tensor)} and not a plain tensor; save the model with plain tensors"
            )
        size, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
        if size > stored:
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, which takes {size:,} bytes, and the file has "
                f"{stored:,} of them; save the model with every number written out"
            )
    # many names may stand for the same numbers
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > WEIGHT_LIMIT_BYTES:
        raise CheckpointError(
            f"{path}: its tensors take {total:,} bytes, over the limit of {WEIGHT_LIMIT_BYTES:,}; the largest ALBERT "
            "is under 1 GB"
        )


def _storage_kind(tensor: Tensor) -> str:
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return "sparse" if tensor.layout != torch.strided else f"on the device {tensor.device.type!r}"


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_size(path: Path) -> None:
    # a .bin is a zip, which can unpack to far more than it weighs
    size = max(path.stat().st_size, sum(entry.file_size for entry in _zip_entries(path)))
    if size > WEIGHT_LIMIT_BYTES:
        raise CheckpointError(
            f"{path}: {size:,} bytes is over the limit of {WEIGHT_LIMIT_BYTES:,}; the largest ALBERT is under 1 GB"
        )


def _zip_entries(path: Path) -> list[zipfile.ZipInfo]:
    """The entries of a zip file; empty for other files."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        return []
