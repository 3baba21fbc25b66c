"""Read any ALBERT checkpoint; formats are recognised by content, not by file names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from litebert.errors import CheckpointError
from litebert.files import read_json
from litebert.interop.checkpoint_source import (
    NO_HEAD,
    Checkpoint,
    TensorRecord,
    find_tokenizer,
    missing_vocabulary_error,
    require_single,
)
from litebert.interop.google_names import (
    SECOND_EMBEDDINGS,
    WORD_EMBEDDINGS,
    is_lonepatient_name,
    tensorflow_spelling,
    to_huggingface,
)
from litebert.interop.huggingface import ALBERT_TYPES, Folder, assemble_folder, parse_config, read_settings
from litebert.interop.keras import is_keras, preset_tokenizer, read_preset, tensor_locations
from litebert.interop.leveldb_table import is_table
from litebert.interop.tensor_bundle import INDEX_SUFFIX
from litebert.interop.tensorflow import describe_checkpoint, read_checkpoint
from litebert.interop.weights import (
    BUFFER_NAMES,
    WEIGHT_FILES,
    add_tensor,
    current_name,
    is_pytorch,
    is_safetensors,
    read_file,
    read_raw_tensors,
)

_PROJECT_LAYER = "cls.predictions.project_layer.weight"
"""lonePatient's copy of albert_zh's second embedding matrix, in the head."""
TRAINER_FILES = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt")
"""Files of transformers' Trainer that are not weights."""
_DATA_FILE_NAME = re.compile(r"(.+)(\.data-\d{5}-of-\d{5}|\.meta)")


def checkpoint_exists(path: Path) -> bool:
    """Is it a folder, a file, or the prefix of a TensorFlow checkpoint?"""
    return path.exists() or Path(f"{path}{INDEX_SUFFIX}").is_file()


def load_folder(path: Path) -> Folder:
    """Load a model of any format."""
    with _convert_os_errors(path):
        if is_model_folder(path):
            return build_folder(_read_folder(path))
    source = read_any(path)
    if source.tokenizer is None:
        raise missing_vocabulary_error(source.folder)
    if lost := [row.name for row in source.rows if row.why == NO_HEAD]:
        names = ", ".join(lost[:4])
        warnings.warn(f"{source.path}: litebert has no head for {names}; the model is loaded without it", stacklevel=4)
    return build_folder(source)


def build_folder(source: Checkpoint) -> Folder:
    """Build the model of a checkpoint; missing, misshapen or contradictory tensors are refused."""
    return assemble_folder(source.folder, dict(source.settings), dict(source.tensors), source.tokenizer)


def read_any(path: Path) -> Checkpoint:
    """Read a checkpoint of any format, with a record of each tensor."""
    with _convert_os_errors(path):
        if is_model_folder(path):
            source = _read_folder(path)
        else:
            weights = _find_weights(path)
            source = _choose_reader(weights)(weights)
        tokenizer = source.tokenizer or find_tokenizer(source.folder)
    return replace(source, tokenizer=tokenizer, remarks=[*source.remarks, *_missing_parts(source)])


@contextmanager
def _convert_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); check the files and their permissions") from error


def is_model_folder(path: Path) -> bool:
    """Is it a folder as transformers and litebert save them, with config.json?"""
    if not path.is_dir() or not (path / "config.json").is_file():
        return False
    if any((path / name).is_file() for name in WEIGHT_FILES):
        return True
    kind = read_json(path / "config.json").get("model_type")
    # a complaint about what is missing is the better one, unless there are weights under another name
    return kind is not None and (kind not in ALBERT_TYPES or not _find_checkpoints(path))


def _find_weights(path: Path) -> Path:
    """The file of weights for a path."""
    for candidate in (path, Path(f"{path}{INDEX_SUFFIX}")):
        if candidate.is_file():
            part = _DATA_FILE_NAME.fullmatch(candidate.name)
            return candidate if part is None else candidate.with_name(part[1] + INDEX_SUFFIX)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder; check the path")
    for place in (path, path / "variables"):
        if place.is_dir():
            if checkpoints := _find_checkpoints(place):
                return require_single(checkpoints, place)
            files = _list_files(place)
            if checkpoints := [file for file in files if _is_hdf5(file)]:
                return place if is_keras(place) else require_single(checkpoints, place)
            if stems := {part[1] for file in files if (part := _DATA_FILE_NAME.fullmatch(file.name))}:
                return require_single(
                    [place / f"{stem}{INDEX_SUFFIX}" for stem in stems], place
                )  # whose absence is told
    unfinished = (
        "" if (path / "config.json").is_file() else "has no config.json, so it is not a finished model folder, and "
    )
    raise CheckpointError(
        f"{path}: {unfinished}holds no weights (no TensorFlow .index, safetensors, PyTorch or Keras file); give a "
        "folder or a file of a checkpoint"
    )


def _find_checkpoints(place: Path) -> list[Path]:
    """All files of weights of the first format that is there."""
    files = [file for file in _list_files(place) if file.name not in TRAINER_FILES]
    for test in (is_table, is_safetensors, is_pytorch):
        if checkpoints := [file for file in files if test(file)]:
            return checkpoints
    return []


def _list_files(place: Path) -> list[Path]:
    return sorted(file for file in place.iterdir() if file.is_file())


def _choose_reader(path: Path) -> Callable[[Path], Checkpoint]:
    if path.is_dir():
        return _read_keras
    if not path.is_file():
        raise CheckpointError(f"{path}: is not there, and without its index a checkpoint cannot be read; put it back")
    if is_table(path) or path.suffix == INDEX_SUFFIX:
        return read_checkpoint
    if _is_hdf5(path):
        return _read_keras
    if is_safetensors(path) or is_pytorch(path):
        return _read_weights_file
    raise CheckpointError(
        f"{path}: is neither a TensorFlow index, nor safetensors, PyTorch's or Keras's weights; give one of these"
    )


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _read_folder(folder: Path) -> Checkpoint:
    """A folder with config.json, also with lonePatient's names."""
    settings = read_settings(folder)
    parse_config(settings, folder)  # what it refuses need not be read
    raw = read_raw_tensors(folder)
    if any(map(is_lonepatient_name, raw)):
        return _read_lonepatient(folder / "config.json", raw)
    tensors, rows = _rename_old_tensors(folder, raw)
    return Checkpoint("a folder of transformers or litebert", "transformers", folder, settings, tensors, rows)


def _read_weights_file(path: Path) -> Checkpoint:
    """A PyTorch or safetensors file, with settings under any name in its folder."""
    raw = read_file(path)
    if any(map(is_lonepatient_name, raw)):
        return _read_lonepatient(path, raw)
    tensors, rows = _rename_old_tensors(path, raw)
    return describe_checkpoint(path, tensors, rows, "a file of transformers' weights", torch_names=True)


def _rename_old_tensors(path: Path, raw: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[TensorRecord]]:
    tensors, rows = dict[str, Tensor](), []
    for name, tensor in raw.items():
        if name.endswith(BUFFER_NAMES):
            rows.append(TensorRecord(name, tuple(tensor.shape), why="positions 0, 1, 2, …: no weight"))
            continue
        tied = name.startswith("predictions.decoder.")
        add_tensor(tensors, current_name(name), tensor, name, path)
        why = "a copy of what it is tied to" if tied else ""
        rows.append(TensorRecord(name, tuple(tensor.shape), "" if tied else current_name(name), why))
    return tensors, rows


def _read_lonepatient(path: Path, raw: dict[str, Tensor]) -> Checkpoint:
    """lonePatient's names: those of Google or albert_zh with dots, and matrices in PyTorch's layout."""
    tensors, rows = dict[str, Tensor](), []
    for name, tensor in raw.items():
        spelled, shape = tensorflow_spelling(name), tuple(tensor.shape)
        known = to_huggingface(spelled)
        if spelled.removesuffix("/weight") == SECOND_EMBEDDINGS:
            turned = tensor.T.contiguous() if tensor.dim() == 2 else tensor  # which is refused later
            add_tensor(tensors, SECOND_EMBEDDINGS, turned, name, path)
            rows.append(TensorRecord(name, shape, SECOND_EMBEDDINGS))
        elif name == _PROJECT_LAYER or spelled.startswith("cls/predictions/decoder/"):
            rows.append(TensorRecord(name, shape, why="a copy of what it is tied to"))
        elif known is not None:
            add_tensor(tensors, known[0], tensor, name, path)
            rows.append(TensorRecord(name, shape, known[0]))
        elif spelled.startswith("bert/"):
            raise CheckpointError(f"{path}: an ALBERT has no place for {name} of shape {shape}; it is another model's")
        else:
            rows.append(TensorRecord(name, shape, why=NO_HEAD))
    _check_ties(path, raw, tensors)
    return describe_checkpoint(path, tensors, rows, "PyTorch weights by lonePatient's names", torch_names=True)


def _check_ties(path: Path, raw: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Tensors that are left out as tied copies must be equal to the original."""
    words = dotted_name(WORD_EMBEDDINGS)
    pairs = {"cls.predictions.decoder.weight": raw.get(words), _PROJECT_LAYER: tensors.get(SECOND_EMBEDDINGS)}
    for name, original in pairs.items():
        if name in raw and (original is None or not raw[name].equal(original)):
            raise CheckpointError(f"{path}: {name} is not tied to the embeddings, as an ALBERT's is; this model cannot "
                                  "be expressed")  # fmt: skip


def dotted_name(name: str) -> str:
    return f"{name.replace('/', '.')}.weight"


def _read_keras(path: Path) -> Checkpoint:
    settings, tensors = read_preset(path)
    source = Checkpoint("keras-hub's AlbertBackbone", "keras_hub", path, settings, tensors, [])
    rows = [
        TensorRecord(place.theirs, place.shape, place.ours)
        for place in tensor_locations(settings, tensors, source.folder)
    ]
    return replace(source, rows=rows, tokenizer=preset_tokenizer(source.folder))


def _missing_parts(source: Checkpoint) -> list[str]:
    """Remarks about parts of a pre-trained ALBERT that the checkpoint lacks."""
    heads = {
        "albert.pooler.": "no pooler in it: one is started anew, always the same, and must be trained to be of use",
        "predictions.": "no masked-token head (predictions) in it: fill_mask will not work",
        "sop_classifier.": "no sentence-order head (sop_classifier) in it",
    }
    taught = any(name.startswith(("classifier.", "qa_outputs.", "litebert_heads.")) for name in source.tensors)
    wanted = ("albert.pooler.",) if taught else tuple(heads)
    return [heads[start] for start in wanted if not any(name.startswith(start) for name in source.tensors)]
