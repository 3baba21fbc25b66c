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

FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""Where a folder keeps its weights; the first that is there counts."""
GRAPHS = ("model.onnx", "model.pt2", "encoder.onnx")
WEIGHT_LIMIT_BYTES = 8 << 30
LARGE = 1 << 16
"""Numbers of a matrix that is not worth rounding to eight bits."""
SCALE = ".litebert_scale"
"""After the name of a matrix of whole numbers: what its rows are multiplied by."""
BUFFERS = ("embeddings.position_ids",)
"""Of old versions: 0, 1, 2, …"""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Of weights; those in eight bits are multiplied out when they are read."""
_OLD_PYTORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder under current names."""
    found: dict[str, Tensor] = {}
    for name, tensor in read_folder(folder).items():
        if not name.endswith(BUFFERS):
            put(found, current_name(name), tensor, name, folder)
    return found


def put(tensors: dict[str, Tensor], becomes: str, tensor: Tensor, name: str, path: Path) -> None:
    """Take a tensor under another name; of two that become one nobody can say which is meant."""
    if becomes in tensors:
        raise CheckpointError(
            f"{path}: holds {becomes} twice, once as {name}; it is not one model: leave only the right one in it"
        )
    tensors[becomes] = tensor


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder under the names that they have there."""
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        if graph := next((name for name in GRAPHS if (folder / name).is_file()), None):
            raise CheckpointError(
                f"{folder}: holds a graph for other runtimes ({graph}) and no weights; give the model that it was "
                "exported from"
            )
        raise CheckpointError(
            f"{folder}: has neither model.safetensors nor pytorch_model.bin; the weights are missing: download the "
            "folder again"
        )
    tensors: dict[str, Tensor] = {}
    for file in _shards(path) if path.suffix == ".json" else [path]:
        for name, tensor in read_file(file).items():
            put(tensors, name, tensor, name, file)
    return tensors


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file: safetensors or PyTorch's, by what it looks like inside."""
    _check_size(path)
    by_pytorch = not is_safetensors(path) and (is_pytorch(path) or path.suffix == ".bin")
    tensors = _read_bin(path) if by_pytorch else _read_safetensors(path)
    _check_memory(path, tensors)
    found = dict(_from_eight_bits(tensors, path.parent))
    for name, tensor in found.items():
        if tensor.dtype not in PRECISIONS and not name.endswith(BUFFERS):
            raise CheckpointError(
                f"{path}: {name} holds {_kind(tensor)}, where a weight is float32, float16, bfloat16 or float64; "
                "save the model with weights of one of these"
            )
    return found


def is_pytorch(path: Path) -> bool:
    """Is it what torch.save writes: a zip with a data.pkl in it, or in older files a certain number?"""
    with path.open("rb") as file:
        start = file.read(len(_OLD_PYTORCH))
    return start == _OLD_PYTORCH or any(entry.filename.endswith("/data.pkl") for entry in _zipped(path))


def is_safetensors(path: Path) -> bool:
    """Does it begin with the length of a JSON object, and that?"""
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size


def current_name(name: str) -> str:
    """Undo what older versions called things: gamma and beta, and no `albert.` before a bare encoder's tensors."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"albert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def in_eight_bits(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Large matrices as whole numbers with a scale for each row beside them; the others as they are."""
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or tensor.numel() <= LARGE:
            yield name, tensor
            continue
        whole, scale = quantize_per_row(tensor.float())
        yield name, whole
        yield name + SCALE, scale


def _from_eight_bits(tensors: Mapping[str, Tensor], folder: Path) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            scale = tensors.get(name + SCALE)
            if scale is None or tensor.dim() != 2 or scale.shape != tensor.shape[:1]:
                raise CheckpointError(f"{folder}: {name} has no scale for each of its rows; quantize the model again")
            yield name, tensor * scale.float()[:, None]
        elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in tensors):
            yield name, tensor


def _shards(index: Path) -> list[Path]:
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
    """Every number must stand in the file: a few bytes can else stand for any number of them."""
    for name, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.is_quantized or tensor.is_nested:
            raise CheckpointError(
                f"{path}: {name} is {_form(tensor)} and not a plain tensor; save the model with plain tensors"
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


def _form(tensor: Tensor) -> str:
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return "sparse" if tensor.layout != torch.strided else f"on the device {tensor.device.type!r}"


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_size(path: Path) -> None:
    # a .bin is a zip, which can unpack to far more than it weighs
    size = max(path.stat().st_size, sum(entry.file_size for entry in _zipped(path)))
    if size > WEIGHT_LIMIT_BYTES:
        raise CheckpointError(
            f"{path}: {size:,} bytes is over the limit of {WEIGHT_LIMIT_BYTES:,}; the largest ALBERT is under 1 GB"
        )


def _zipped(path: Path) -> list[zipfile.ZipInfo]:
    """What a zip says that it holds; nothing, if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        return []
