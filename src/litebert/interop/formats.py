"""Any ALBERT that people have, told apart by what its files hold and not by their names."""

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
from litebert.interop.checkpoint_source import NO_HEAD, Row, Source, no_vocabulary, only_one, tokenizer_beside
from litebert.interop.google_names import SECOND, WORDS, is_lone_patients, to_huggingface, with_slashes
from litebert.interop.huggingface import KINDS, Folder, assembled, config_from, read_settings
from litebert.interop.keras import is_keras, places_in, preset_tokenizer, read_preset
from litebert.interop.leveldb_table import is_table
from litebert.interop.tensor_bundle import INDEX
from litebert.interop.tensorflow import described, read_checkpoint
from litebert.interop.weights import (
    BUFFERS,
    FILES,
    current_name,
    is_pytorch,
    is_safetensors,
    put,
    read_file,
    read_folder,
)

_PROJECT_LAYER = "cls.predictions.project_layer.weight"
"""lonePatient's copy of albert_zh's second matrix, in the head."""
NO_WEIGHTS = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt")
"""What transformers' trainer leaves beside them."""
_DATA = re.compile(r"(.+)(\.data-\d{5}-of-\d{5}|\.meta)")


def is_here(path: Path) -> bool:
    """A folder, a file, or the name that the files of a TensorFlow checkpoint have in common."""
    return path.exists() or Path(f"{path}{INDEX}").is_file()


def load_any(path: Path) -> Folder:
    """A model of any kind, ready to be used."""
    with _readable(path):
        if is_folder_of_ours(path):
            return folder_of(_read_folder(path))
    source = read_source(path)
    if source.tokenizer is None:
        raise no_vocabulary(source.folder)
    if lost := [row.name for row in source.rows if row.why == NO_HEAD]:
        names = ", ".join(lost[:4])
        warnings.warn(f"{source.path}: litebert has no head for {names}; the model is loaded without it", stacklevel=4)
    return folder_of(source)


def folder_of(source: Source) -> Folder:
    """Put together what was read; what is missing, misshapen or contradictory is refused."""
    return assembled(source.folder, dict(source.settings), dict(source.tensors), source.tokenizer)


def read_source(path: Path) -> Source:
    """Read a checkpoint of any kind, with what became of each of its tensors."""
    with _readable(path):
        if is_folder_of_ours(path):
            source = _read_folder(path)
        else:
            found = _weights_at(path)
            source = _reader_of(found)(found)
        tokenizer = source.tokenizer or tokenizer_beside(source.folder)
    return replace(source, tokenizer=tokenizer, remarks=[*source.remarks, *_missing(source)])


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); check the files and their permissions") from error


def is_folder_of_ours(path: Path) -> bool:
    """Is it a folder as transformers and litebert save them? Then config.json says what it is."""
    if not path.is_dir() or not (path / "config.json").is_file():
        return False
    if any((path / name).is_file() for name in FILES):
        return True
    kind = read_json(path / "config.json").get("model_type")
    # a complaint about what is missing is the better one, unless there are weights under another name
    return kind is not None and (kind not in KINDS or not _checkpoints_in(path))


def _weights_at(path: Path) -> Path:
    """The file of the weights that a path means."""
    for candidate in (path, Path(f"{path}{INDEX}")):
        if candidate.is_file():
            part = _DATA.fullmatch(candidate.name)
            return candidate if part is None else candidate.with_name(part[1] + INDEX)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder; check the path")
    for place in (path, path / "variables"):
        if place.is_dir():
            if found := _checkpoints_in(place):
                return only_one(found, place)
            files = _files_in(place)
            if found := [one for one in files if _is_hdf5(one)]:
                return place if is_keras(place) else only_one(found, place)
            if stems := {part[1] for one in files if (part := _DATA.fullmatch(one.name))}:
                return only_one([place / f"{stem}{INDEX}" for stem in stems], place)  # whose absence is told
    unfinished = (
        "" if (path / "config.json").is_file() else "has no config.json, so it is not a finished model folder, and "
    )
    raise CheckpointError(
        f"{path}: {unfinished}holds no weights (no TensorFlow .index, safetensors, PyTorch or Keras file); give a "
        "folder or a file of a checkpoint"
    )


def _checkpoints_in(place: Path) -> list[Path]:
    """Files of weights by what they hold, all of the first kind that is there; Keras's come with others."""
    files = [one for one in _files_in(place) if one.name not in NO_WEIGHTS]
    for test in (is_table, is_safetensors, is_pytorch):
        if found := [one for one in files if test(one)]:
            return found
    return []


def _files_in(place: Path) -> list[Path]:
    return sorted(one for one in place.iterdir() if one.is_file())


def _reader_of(path: Path) -> Callable[[Path], Source]:
    if path.is_dir():
        return _read_keras
    if not path.is_file():
        raise CheckpointError(f"{path}: is not there, and without its index a checkpoint cannot be read; put it back")
    if is_table(path) or path.suffix == INDEX:
        return read_checkpoint
    if _is_hdf5(path):
        return _read_keras
    if is_safetensors(path) or is_pytorch(path):
        return _read_single
    raise CheckpointError(
        f"{path}: is neither a TensorFlow index, nor safetensors, PyTorch's or Keras's weights; give one of these"
    )


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _read_folder(folder: Path) -> Source:
    """A folder with config.json; lonePatient's are such too."""
    settings = read_settings(folder)
    config_from(settings, folder)  # what it refuses need not be read
    raw = read_folder(folder)
    if any(map(is_lone_patients, raw)):
        return _read_lone_patients(folder / "config.json", raw)
    tensors, rows = _by_current_names(folder, raw)
    return Source("a folder of transformers or litebert", "transformers", folder, settings, tensors, rows)


def _read_single(path: Path) -> Source:
    """A file of PyTorch or safetensors by itself, with its settings beside it under whatever name."""
    raw = read_file(path)
    if any(map(is_lone_patients, raw)):
        return _read_lone_patients(path, raw)
    tensors, rows = _by_current_names(path, raw)
    return described(path, tensors, rows, "a file of transformers' weights", torch_names=True)


def _by_current_names(path: Path, raw: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[Row]]:
    tensors, rows = dict[str, Tensor](), []
    for name, tensor in raw.items():
        if name.endswith(BUFFERS):
            rows.append(Row(name, tuple(tensor.shape), why="positions 0, 1, 2, …: no weight"))
            continue
        tied = name.startswith("predictions.decoder.")
        put(tensors, current_name(name), tensor, name, path)
        why = "a copy of what it is tied to" if tied else ""
        rows.append(Row(name, tuple(tensor.shape), "" if tied else current_name(name), why))
    return tensors, rows


def _read_lone_patients(path: Path, raw: dict[str, Tensor]) -> Source:
    """lonePatient's names: Google's or albert_zh's with dots, and matrices as PyTorch has them."""
    tensors, rows = dict[str, Tensor](), []
    for name, tensor in raw.items():
        spelled, shape = with_slashes(name), tuple(tensor.shape)
        known = to_huggingface(spelled)
        if spelled.removesuffix("/weight") == SECOND:
            turned = tensor.T.contiguous() if tensor.dim() == 2 else tensor  # which is refused later
            put(tensors, SECOND, turned, name, path)
            rows.append(Row(name, shape, SECOND))
        elif name == _PROJECT_LAYER or spelled.startswith("cls/predictions/decoder/"):
            rows.append(Row(name, shape, why="a copy of what it is tied to"))
        elif known is not None:
            put(tensors, known[0], tensor, name, path)
            rows.append(Row(name, shape, known[0]))
        elif spelled.startswith("bert/"):
            raise CheckpointError(f"{path}: an ALBERT has no place for {name} of shape {shape}; it is another model's")
        else:
            rows.append(Row(name, shape, why=NO_HEAD))
    _check_ties(path, raw, tensors)
    return described(path, tensors, rows, "PyTorch weights by lonePatient's names", torch_names=True)


def _check_ties(path: Path, raw: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """What is left out as a copy must be one."""
    words = with_dots(WORDS)
    pairs = {"cls.predictions.decoder.weight": raw.get(words), _PROJECT_LAYER: tensors.get(SECOND)}
    for name, original in pairs.items():
        if name in raw and (original is None or not raw[name].equal(original)):
            raise CheckpointError(f"{path}: {name} is not tied to the embeddings, as an ALBERT's is; this model cannot "
                                  "be expressed")  # fmt: skip


def with_dots(name: str) -> str:
    return f"{name.replace('/', '.')}.weight"


def _read_keras(path: Path) -> Source:
    settings, tensors = read_preset(path)
    source = Source("keras-hub's AlbertBackbone", "keras_hub", path, settings, tensors, [])
    rows = [Row(place.theirs, place.shape, place.ours) for place in places_in(settings, tensors, source.folder)]
    return replace(source, rows=rows, tokenizer=preset_tokenizer(source.folder))


def _missing(source: Source) -> list[str]:
    """Parts of a pre-trained ALBERT that the source does not have; none is made up unsaid."""
    heads = {
        "albert.pooler.": "no pooler in it: one is started anew, always the same, and must be trained to be of use",
        "predictions.": "no masked-token head (predictions) in it: fill_mask will not work",
        "sop_classifier.": "no sentence-order head (sop_classifier) in it",
    }
    taught = any(name.startswith(("classifier.", "qa_outputs.", "litebert_heads.")) for name in source.tensors)
    wanted = ("albert.pooler.",) if taught else tuple(heads)
    return [heads[start] for start in wanted if not any(name.startswith(start) for name in source.tensors)]
