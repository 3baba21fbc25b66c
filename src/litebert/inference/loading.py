"""Loading an encoder, or a fine-tuned model, from a folder, a built-in name or the Hugging Face hub."""

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
from litebert.inference.model import Model
from litebert.interop.formats import checkpoint_exists, load_folder
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


def load_model(path_or_name: str | Path, engine: Engine = "auto", share_with: Sequence[Model] = ()) -> Model:
    """A model that is a whole folder. If one of `share_with` has the same encoder, the two share it in memory."""
    check_engine(engine)
    path = locate(path_or_name)
    folder = load_folder(path)
    model = Model(folder.model, folder.tokenizer, folder.task, folder.max_length, folder.sentence_map)
    is_name = path == builtin.FOLDERS.get(str(path_or_name)) or not checkpoint_exists(Path(path_or_name))
    model.source = str(path_or_name) if is_name else path.resolve()
    model.int8, model.bf16 = folder.int8, engine == "bf16"
    if engine == "int8" or (engine == "auto" and folder.int8 is not None and has_int8()):
        enable_int8(model.encoder, folder.int8)
    twin = next((other for other in share_with if _have_same_encoder(model, other)), None)
    if twin is not None:
        model.albert.encoder = twin.encoder
    return model


def check_engine(engine: Engine) -> None:
    if engine not in get_args(Engine):
        raise ConfigError(f"engine={engine!r} must be one of {', '.join(get_args(Engine))}")


def locate(path_or_name: str | Path) -> Path:
    """Where the files of a model are; those of a hub name are downloaded."""
    path = builtin.folder_of(path_or_name)
    return path if checkpoint_exists(path) else _download(str(path_or_name))


def _have_same_encoder(model: Model, other: Model) -> bool:
    if (model.int8, model.answers_in_int8) != (other.int8, other.answers_in_int8):
        return False
    # dropout matters in training only
    dropout: dict[str, Any] = {field.name: 0.0 for field in fields(model.config) if field.name.endswith("dropout_prob")}
    if replace(model.config, **dropout) != replace(other.config, **dropout):
        return False
    ours, theirs = model.encoder.state_dict(), other.encoder.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


def _download(name: str) -> Path:
    """Download a model into the hub's own cache; weights that need unpickling only if there are no others."""
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
