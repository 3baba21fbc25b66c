"""The `.weights.h5` of Keras 3, as keras-hub's ALBERT has them: where each tensor stands, and reading that has limits.

Keras names a layer by its class and counts (`dense`, `dense_1`), and its variables by number. Matrices map columns to
rows where torch's map rows to columns, and those of attention are split into heads.

Shapes: V vocabulary, P positions, S segments, E embedding, H hidden, N heads, D = H / N, W the wide part of a layer,
C classes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from litebert.errors import CheckpointError, require_extra
from litebert.files import atomic_path
from litebert.interop.weights import WEIGHT_LIMIT_BYTES
from litebert.model import AlbertConfig

MAX_GROUP_DEPTH = 12
"""Groups within groups; keras-hub's have eight."""
MAX_ENTRIES = 100_000
"""Groups and variables of one file; those of the largest ALBERT have a few hundred."""
BFLOAT16 = "bfloat16"
_TOKEN_TABLE = "reversible_embedding/vars/0"
"""Of tokens: beside it stand the others of the encoder."""
_OPTIMIZER_PREFIX = "optimizer/"
"""Below it stands what training had come to."""
_LAYER_NORM_NAMES = {
    "_self_attention_layer_norm": "attention.LayerNorm",
    "_feedforward_layer_norm": "full_layer_layer_norm",
}
_ATTENTION_INPUTS = ("query", "key", "value")


@dataclass(frozen=True)
class TensorLocation:
    """Where Keras keeps a tensor."""

    theirs: str
    ours: str
    """Its Hugging Face name."""
    shape: tuple[int, ...]
    """As Keras has it."""
    matrix: tuple[int, int] | None = None
    """(in, out) of one that is written the other way round; None = as it is, but for how it is split."""

    def to_keras(self, tensor: Tensor) -> np.ndarray:
        return (tensor if self.matrix is None else tensor.T).reshape(self.shape).contiguous().numpy()

    def from_keras(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.matrix is not None:
            return tensor.reshape(self.matrix).T.contiguous()
        return tensor if self.ours.endswith("embeddings.weight") else tensor.flatten()


def keras_group_count(config: AlbertConfig) -> int:
    """How many groups of layers keras-hub must have: one per layer where it cannot say what is shared."""
    even = config.num_hidden_layers % config.num_hidden_groups == 0
    return config.num_hidden_groups if config.sharing == "all" and even else config.num_hidden_layers


def encoder_locations(config: AlbertConfig) -> Iterator[TensorLocation]:
    """Every tensor of the encoder, the pooler among them. One that several groups share appears once for each."""
    small, hidden = config.embedding_size, config.hidden_size
    embeddings = {
        _TOKEN_TABLE: ("word", config.vocab_size),
        "position_embedding/vars/0": ("position", config.max_position_embeddings),
        "embedding/vars/0": ("token_type", config.type_vocab_size),
    }
    for theirs, (kind, rows) in embeddings.items():
        yield TensorLocation(theirs, f"albert.embeddings.{kind}_embeddings.weight", (rows, small))  # (V, P or S, E)
    yield from _norm_locations("layer_normalization", "albert.embeddings.LayerNorm", small)
    yield from _dense_locations("dense", "albert.encoder.embedding_hidden_mapping_in", (small,), (hidden,))
    groups = keras_group_count(config)
    for number in range(groups * config.inner_group_num):
        group, inner = divmod(number, config.inner_group_num)
        if config.sharing == "all" and groups != config.num_hidden_groups:
            group = config.group(group)
        theirs = f"transformer_encoder_{number}" if number else "transformer_encoder"
        yield from _layer_locations(config, theirs, f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}")
    yield from _dense_locations("dense_1", "albert.pooler", (hidden,), (hidden,))


def masked_lm_locations(config: AlbertConfig) -> Iterator[TensorLocation]:
    """Of keras-hub's head for hidden words."""
    small = config.embedding_size
    yield from _dense_locations(
        "masked_lm_head/_intermediate_dense", "predictions.dense", (config.hidden_size,), (small,)
    )
    yield from _norm_locations("masked_lm_head/_intermediate_layer_norm", "predictions.LayerNorm", small)
    yield TensorLocation("masked_lm_head/vars/0", "predictions.bias", (config.vocab_size,))


def classifier_locations(config: AlbertConfig, classes: int) -> Iterator[TensorLocation]:
    """Of keras-hub's classifier."""
    yield from _dense_locations("dense", "classifier", (config.hidden_size,), (classes,))


def _layer_locations(config: AlbertConfig, theirs: str, ours: str) -> Iterator[TensorLocation]:
    hidden, wide = (config.hidden_size,), (config.intermediate_size,)
    heads = config.num_attention_heads, config.hidden_size // config.num_attention_heads  # (N, D)
    attention = f"{theirs}/_self_attention_layer"
    for part in _ATTENTION_INPUTS:
        yield from _dense_locations(f"{attention}/{part}_dense", f"{ours}.attention.{part}", hidden, heads)
    yield from _dense_locations(f"{attention}/output_dense", f"{ours}.attention.dense", heads, hidden)
    yield from _dense_locations(f"{theirs}/_feedforward_intermediate_dense", f"{ours}.ffn", hidden, wide)
    yield from _dense_locations(f"{theirs}/_feedforward_output_dense", f"{ours}.ffn_output", wide, hidden)
    for name, norm in _LAYER_NORM_NAMES.items():
        yield from _norm_locations(f"{theirs}/{name}", f"{ours}.{norm}", config.hidden_size)


def _dense_locations(
    theirs: str, ours: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Iterator[TensorLocation]:
    matrix = math.prod(inputs), math.prod(outputs)
    yield TensorLocation(f"{theirs}/vars/0", f"{ours}.weight", (*inputs, *outputs), matrix)
    yield TensorLocation(f"{theirs}/vars/1", f"{ours}.bias", outputs)


def _norm_locations(theirs: str, ours: str, size: int) -> Iterator[TensorLocation]:
    yield TensorLocation(f"{theirs}/vars/0", f"{ours}.weight", (size,))
    yield TensorLocation(f"{theirs}/vars/1", f"{ours}.bias", (size,))


def write_weights(path: Path, places: Iterable[TensorLocation], tensors: Mapping[str, Tensor]) -> int:
    """Write a whole file or leave what was there; says how many numbers it holds."""
    h5py, count = require_extra("h5py", "keras"), 0
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        for location in places:
            array = location.to_keras(tensors[location.ours])
            file[f"layers/{location.theirs}"] = array
            count += array.size
    return count


def read_weights(path: Path, places: Iterable[TensorLocation], *, beside_table: bool = False) -> dict[str, Tensor]:
    """The tensors at these places under their Hugging Face names, in float32.

    Every size is held against what is expected before anything is read. Variables beside them are refused: they are
    another model's. `beside_table`: these places are where the embeddings of tokens are, however deep in the file that
    is; the heads of a whole model stand further up, and are named in a warning.
    """
    h5py = require_extra("h5py", "keras")
    _check_file(path)
    with _convert_hdf5_errors(path), h5py.File(path, "r") as file:
        everything = _variables(h5py, file, path)
        root = _encoder_root(everything, path) if beside_table else "layers/"
        unread = {name.removeprefix(root): item for name, item in everything.items() if name.startswith(root)}
        tensors: dict[str, Tensor] = {}
        for location in places:
            dataset = unread.pop(_public_name(location.theirs), None)
            if dataset is None:
                raise CheckpointError(
                    f"{path}: lacks {location.theirs}; the file is incomplete or of another model: save it again"
                )
            tensor = location.from_keras(_read_checked(dataset, location, path))
            if not torch.equal(tensors.setdefault(location.ours, tensor), tensor):
                raise CheckpointError(
                    f"{path}: {location.theirs} differs from another layer's, with which config.json says it is "
                    "shared; delete 'litebert' from config.json to read all layers as they are"
                )
    if unread:
        raise CheckpointError(
            f"{path}: {len(unread)} variables have no place in the model config.json describes, {min(unread)} among "
            "them; they do not belong together"
        )
    beyond = sorted(name for name in everything if not name.startswith((root, _OPTIMIZER_PREFIX)))
    if beyond:
        names = ", ".join(beyond[:4])
        warnings.warn(f"{path}: {names} belong to no encoder, which is read without them", stacklevel=4)
    return tensors


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path}: the weights are missing; save or download the folder again")
    size = path.stat().st_size
    if size > WEIGHT_LIMIT_BYTES:
        raise CheckpointError(
            f"{path}: {size:,} bytes is over the limit of {WEIGHT_LIMIT_BYTES:,}; the largest ALBERT is under 1 GB"
        )


@contextmanager
def _convert_hdf5_errors(path: Path) -> Iterator[None]:
    """Turn the library's complaints about a damaged file into ours."""
    try:
        yield
    except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(f"{path}: not an HDF5 file or damaged ({reason}); save or download it again") from error


def _variables(h5py: Any, file: Any, path: Path) -> dict[str, Any]:
    """Every variable by its path. A link could lead out of the file or in circles, and Keras writes none."""
    variables: dict[str, Any] = {}
    waiting, count = [("", file)], 0
    while waiting:
        prefix, group = waiting.pop()
        for name in group:
            count += 1
            name_in_file = f"{prefix}{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise CheckpointError(f"{path}: {name_in_file} is a link to elsewhere; the file is not to be trusted")
            if count > MAX_ENTRIES or name_in_file.count("/") >= MAX_GROUP_DEPTH:
                raise CheckpointError(
                    f"{path}: {name_in_file} lies deeper or among more than a model's; it is none of Keras's"
                )
            item = group[name]
            if isinstance(item, h5py.Group):
                waiting.append((f"{name_in_file}/", item))
            elif isinstance(item, h5py.Dataset):
                variables[_public_name(name_in_file)] = item
    return variables


def _public_name(path: str) -> str:
    """Versions differ in which names are private: `_query_dense`, `query_dense`."""
    return "/".join(name.lstrip("_") for name in path.split("/"))


def _encoder_root(variables: Mapping[str, Any], path: Path) -> str:
    roots = [name.removesuffix(_TOKEN_TABLE) for name in variables if name.endswith(f"/{_TOKEN_TABLE}")]
    if len(roots) != 1:
        raise CheckpointError(
            f"{path}: holds {len(roots)} tables of tokens ({_TOKEN_TABLE}) where keras-hub's ALBERT has one; give the "
            "weights of an AlbertBackbone"
        )
    return roots[0]


def _read_checked(dataset: Any, location: TensorLocation, path: Path) -> np.ndarray:
    """The numbers in float32, if they are in this file and as many as they should be."""
    if dataset.shape != location.shape:
        raise CheckpointError(
            f"{path}: {location.theirs} has shape {dataset.shape} where config.json implies {location.shape}; weights "
            "and config do not belong together"
        )
    # what is stored elsewhere or not at all takes no room in the file, and could be of any size
    if dataset.external or dataset.is_virtual or dataset.id.get_storage_size() != dataset.nbytes:
        raise CheckpointError(
            f"{path}: {location.theirs} is compressed, or its numbers are not in this file; save it again with Keras"
        )
    if dataset.dtype.itemsize == 2 and dataset.attrs.get("dtype") == BFLOAT16:
        upper = dataset[()].view(np.uint16).astype(np.uint32)
        return (upper << 16).view(np.float32)
    if dataset.dtype.kind != "f":
        raise CheckpointError(
            f"{path}: {location.theirs} holds {dataset.dtype}, not floating-point numbers; save the model before it is "
            "quantized"
        )
    return dataset[()].astype(np.float32)
