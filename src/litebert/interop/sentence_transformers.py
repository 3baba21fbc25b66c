"""What sentence-transformers needs to know of a folder to compute what `model.embed` does, and what it may say."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from litebert.errors import CheckpointError
from litebert.files import atomic_write, read_json, read_limited, replacing, write_json
from litebert.model.sentences import SentenceMap
from litebert.tokenizer import Tokenizer

COUNTS = "1_WordWeights"
MAP = "2_Dense"
MOST = 1e6
"""Of what a token may count."""
_MODULE = "sentence_transformers.models."
_PLAIN = "torch.nn.modules.linear.Identity"  # an activation that does nothing


def write_modules(
    path: Path, hidden: int, max_length: int, tokenizer: Tokenizer, after: SentenceMap | None, half: bool = False
) -> None:
    """The mean over tokens, what each counts in it, and the map after it, if the model says so; `half`: in float16."""
    kinds = {"": "Transformer"}
    write_json(
        path / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}
    )
    if after is not None and after.tokens is not None:
        kinds[COUNTS] = "WordWeights"
        counts = [float(str(count)) for count in after.tokens.astype(np.float32)]  # as few digits as tell it apart
        vocabulary = tokenizer.vocabulary()
        weights = dict(zip(vocabulary, counts, strict=True))
        settings = {"vocab": vocabulary, "word_weights": weights}
        atomic_write(path / COUNTS / "config.json", json.dumps(settings, ensure_ascii=False, separators=(",", ":")))
    kinds["1_Pooling"] = "Pooling"
    if after is not None:
        kinds[MAP] = "Dense"
        size = len(after.bias)
        shape = {"in_features": hidden, "out_features": size, "bias": True, "activation_function": _PLAIN}
        write_json(path / MAP / "config.json", shape)
        with replacing(path / MAP / "model.safetensors") as temporary:
            tensors = {"linear.weight": after.weight, "linear.bias": after.bias}
            kind = np.float16 if half else np.float32
            safetensors.numpy.save_file({name: value.astype(kind) for name, value in tensors.items()}, temporary)
    write_json(path / "sentence_bert_config.json", {"max_seq_length": max_length})
    modules = [
        {"idx": number, "name": str(number), "path": place, "type": _MODULE + kind}
        for number, (place, kind) in enumerate(kinds.items())
    ]
    write_json(path / "modules.json", modules)


def read_map(path: Path, hidden: int, tokenizer: Tokenizer) -> SentenceMap | None:
    """The map of a folder, if it has one; of modules that we do not compute the user hears."""
    if not (path / "modules.json").is_file():
        return None
    try:
        modules: Any = json.loads(read_limited(path / "modules.json"))
        places = [(str(module["type"]), str(module["path"])) for module in modules[:]]  # of a list
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path / 'modules.json'}: not a list of modules; download the folder again") from error
    found, counts = None, None
    for kind, place in places:
        if kind.endswith(".Dense") and place == MAP and found is None:
            found = _read_dense(path / MAP, hidden)
        elif kind.endswith(".WordWeights") and place == COUNTS and counts is None:
            counts = _read_counts(path / COUNTS / "config.json", tokenizer.vocabulary())
        elif not kind.endswith((".Transformer", ".Pooling", ".Normalize")):
            message = f"{path}: embed leaves out the module {kind}, which sentence-transformers would apply"
            warnings.warn(message, stacklevel=4)
    if counts is None:
        return found
    if found is None:
        found = SentenceMap(np.eye(hidden, dtype=np.float32), np.zeros(hidden, dtype=np.float32))
    return SentenceMap(found.weight, found.bias, counts)


def _read_counts(path: Path, vocabulary: list[str]) -> np.ndarray:  # (V,)
    settings = read_json(path)
    weights, rest = settings.get("word_weights"), settings.get("unknown_word_weight", 1)
    if settings.get("vocab") != vocabulary or not isinstance(weights, dict):
        raise CheckpointError(f"{path}: does not weigh this tokenizer's vocabulary; download the folder again")
    try:
        found = np.array([weights.get(token, rest) for token in vocabulary], dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{path}: a weight is not a number; download the folder again") from error
    if not ((found >= 0) & (found < MOST)).all() or not found.any():
        raise CheckpointError(f"{path}: a weight is not between 0 and {MOST:.0e}; download the folder again")
    return found.astype(np.float32)


def _read_dense(path: Path, hidden: int) -> SentenceMap | None:
    activation = read_json(path / "config.json").get("activation_function")
    if activation != _PLAIN or not (path / "model.safetensors").is_file():
        message = f"{path}: embed leaves it out; we read linear ones (not {activation}) in model.safetensors"
        warnings.warn(message, stacklevel=5)
        return None
    try:
        tensors = safetensors.numpy.load_file(path / "model.safetensors")
        weight, bias = tensors["linear.weight"], tensors["linear.bias"]
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path / 'model.safetensors'}: cannot be read ({error}); download the folder again"
        ) from error
    if weight.ndim != 2 or weight.shape[1] != hidden or bias.shape != weight.shape[:1]:
        raise CheckpointError(f"{path}: {weight.shape} and {bias.shape} do not fit vectors of {hidden}")
    return SentenceMap(weight.astype("float32"), bias.astype("float32"))
