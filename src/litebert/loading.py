"""From a folder or a name to a model that answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from litebert import builtin
from litebert.errors import CheckpointError, ConfigError
from litebert.fewshot.adapt import Adapted
from litebert.fewshot.persistence import Saved
from litebert.inference.model import Model
from litebert.interop.formats import is_here, load_any
from litebert.model.backends.int8 import enable_int8, has_int8

Engine = Literal["auto", "torch", "bf16", "int8"]

HUB_FILES = [
    "config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "modules.json",
    "*/config.json",
    "target/*.json",
    "target/spiece.model",
    "spiece.model",
    "vocab.txt",
]


def load(path_or_name: str | Path, engine: Engine = "auto") -> Model:
    """Load a model from a folder, one that comes with litebert, or one of the Hugging Face hub by its name.

    Checkpoints of TensorFlow and Keras, and other ALBERT files, load too: give their folder, or the file. What they
    hold is told by `litebert convert`.

    `engine`, on a CPU: "int8" computes from eight bits, several times as fast and a little less exact; "bf16" in
    bfloat16, between the two; "torch" in float32; "auto" from eight bits where the folder holds them (`litebert
    quantize`) and the CPU can, else in float32. int8 runs on the native engine, compiled for this CPU when it is first
    needed, where a C++ compiler is installed; else on oneDNN.
    """
    return load_beside((), path_or_name, engine)


def load_beside(others: Sequence[Model], path_or_name: str | Path, engine: Engine = "auto") -> Model:
    """`load`, with the encoder of one of the `others` where that is the same: it is in memory once."""
    if engine not in get_args(Engine):
        raise ConfigError(f"engine={engine!r} must be one of {', '.join(get_args(Engine))}")
    path = builtin.folder_of(path_or_name)
    if Saved.is_at(path):
        return _adapted(path, engine, others)
    return _whole(path_or_name, engine, others)


def _whole(path_or_name: str | Path, engine: Engine, others: Sequence[Model]) -> Model:
    path = located(path_or_name)
    folder = load_any(path)
    model = Model(folder.model, folder.tokenizer, folder.task, folder.max_length, folder.after)
    is_name = path == builtin.FOLDERS.get(str(path_or_name)) or not is_here(Path(path_or_name))
    model.source = str(path_or_name) if is_name else path.resolve()
    model.int8, model.bf16 = folder.int8, engine == "bf16"
    if engine == "int8" or (engine == "auto" and folder.int8 is not None and has_int8()):
        enable_int8(model.encoder, folder.int8)
    same = next((other for other in others if _computes_alike(model, other)), None)
    if same is not None:
        model.albert.encoder = same.encoder
    return model


def located(path_or_name: str | Path) -> Path:
    """Where the files of a model are; those of a hub's name are fetched."""
    path = builtin.folder_of(path_or_name)
    return path if is_here(path) else _download(str(path_or_name))


def _computes_alike(model: Model, other: Model) -> bool:
    """Are their encoders the same?"""
    if (model.int8, model.answers_in_int8) != (other.int8, other.answers_in_int8):
        return False
    # which counts when it learns
    dropout: dict[str, Any] = {field.name: 0.0 for field in fields(model.config) if field.name.endswith("dropout_prob")}
    if replace(model.config, **dropout) != replace(other.config, **dropout):
        return False
    ours, theirs = model.encoder.state_dict(), other.encoder.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


def _adapted(path: Path, engine: Engine, others: Sequence[Model]) -> Adapted:
    """What `litebert.adapt` made, on the model that it was made for."""
    saved = Saved.read(path)
    if saved.is_whole:
        return saved.on(_whole(path, engine, others))
    if (path / "config.json").is_file():
        raise CheckpointError(f"{path}: holds a whole model and an adapted one; delete config.json or few_shot.json")
    if isinstance(saved.base, Path) and not is_here(saved.base):
        raise CheckpointError(
            f"{path}: was made from the model in {saved.base}, which is not there; put it back, or adapt another model "
            "to the same examples"
        )
    return saved.on(load_beside(others, saved.base, engine))


def _download(name: str) -> Path:
    """Fetch a model's files into the hub's own cache; weights that need unpickling only if there are no others."""
    if not re.fullmatch(r"[\w][\w.-]*(/[\w][\w.-]*)?", name) or ".." in name:
        raise CheckpointError(f"{name}: no such folder, and not a hub name (owner/name) either; check the path")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
        if not any(folder.glob("*.safetensors")):
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*HUB_FILES, "pytorch_model.bin"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        similar = get_close_matches(name.lower(), builtin.FOLDERS, n=1)
        meant = f"did you mean {similar[0]}? Or" if similar else "check the name, or"
        raise CheckpointError(
            f"{name}: no such folder here, and the hub did not give it ({type(error).__name__}); "
            f"{meant} download it on a machine with network"
        ) from error
    return folder
