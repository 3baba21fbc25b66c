"""What sentence-transformers needs to know of a folder to compute what `model.embed` does, and what it may say."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from litebert.errors import CheckpointError
from litebert.files import atomic_path, atomic_write, read_json, read_limited, write_json
from litebert.model.config import AlbertConfig
from litebert.model.sentence_head import Pooling, SentenceMap
from litebert.tokenizer import Tokenizer

WORD_WEIGHTS_FOLDER = "1_WordWeights"
LAYER_POOLING_FOLDER = "1_WeightedLayerPooling"
NORMALIZE_FOLDER = "3_Normalize"
DENSE_FOLDER = "2_Dense"
POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean"
}  # fmt: skip
MAX_WORD_WEIGHT = 1e6
"""Of what a token may count."""
_MODULE_PREFIX = "sentence_transformers.models."
_IDENTITY_ACTIVATION = "torch.nn.modules.linear.Identity"  # an activation that does nothing


def write_modules(
    path: Path, config: AlbertConfig, max_length: int, tokenizer: Tokenizer | None, after: SentenceMap | None,
    half: bool = False,
) -> None:  # fmt: skip
    """What is pooled, what each token counts in it, and the map after it, if the model says so; `half`: in float16."""
    kinds, hidden = {"": "Transformer"}, config.hidden_size
    write_json(path / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden, **_pooling_settings(after)})
    if after is not None and after.passes > 1:
        kinds[LAYER_POOLING_FOLDER] = "WeightedLayerPooling"
        layers = config.num_hidden_layers
        places = {"num_hidden_layers": layers, "layer_start": layers + 1 - after.passes}
        write_json(path / LAYER_POOLING_FOLDER / "config.json", {"word_embedding_dimension": hidden, **places})
        with atomic_path(path / LAYER_POOLING_FOLDER / "model.safetensors") as temporary:
            safetensors.numpy.save_file({"layer_weights": np.ones(after.passes, np.float32)}, temporary)
    if after is not None and after.tokens is not None:
        kinds[WORD_WEIGHTS_FOLDER] = "WordWeights"
        counts = [float(str(count)) for count in after.tokens.astype(np.float32)]  # as few digits as tell it apart
        assert tokenizer is not None, "token weights were read with the vocabulary"
        vocabulary = tokenizer.vocabulary()
        weights = dict(zip(vocabulary, counts, strict=True))
        settings = {"vocab": vocabulary, "word_weights": weights}
        atomic_write(
            path / WORD_WEIGHTS_FOLDER / "config.json", json.dumps(settings, ensure_ascii=False, separators=(",", ":"))
        )
    kinds["1_Pooling"] = "Pooling"
    if after is not None:
        kinds[DENSE_FOLDER] = "Dense"
        size = len(after.bias)
        shape = {"in_features": hidden, "out_features": size, "bias": True, "activation_function": _IDENTITY_ACTIVATION}
        write_json(path / DENSE_FOLDER / "config.json", shape)
        with atomic_path(path / DENSE_FOLDER / "model.safetensors") as temporary:
            tensors = {"linear.weight": after.weight, "linear.bias": after.bias}
            kind = np.float16 if half else np.float32
            safetensors.numpy.save_file({name: value.astype(kind) for name, value in tensors.items()}, temporary)
    if after is not None and after.of_length_one:
        kinds[NORMALIZE_FOLDER] = "Normalize"
        write_json(path / NORMALIZE_FOLDER / "config.json", {})
    write_json(path / "sentence_bert_config.json", {"max_seq_length": max_length})
    modules = [
        {"idx": number, "name": str(number), "path": place, "type": _MODULE_PREFIX + kind}
        for number, (place, kind) in enumerate(kinds.items())
    ]
    write_json(path / "modules.json", modules)


def _pooling_settings(after: SentenceMap | None) -> dict[str, bool]:
    """Versions before 5 take the mean beside what is asked for, unless they are told not to."""
    pooling = "mean" if after is None else after.pooling
    named = {key: True for key, kind in POOLINGS.items() if kind == pooling}
    return named if pooling == "mean" else named | {"pooling_mode_mean_tokens": False}


def read_sentence_map(path: Path, hidden: int, tokenizer: Tokenizer | None) -> SentenceMap | None:
    """How a folder says that vectors are made, if it does; of modules that we do not compute the user hears."""
    if not (path / "modules.json").is_file():
        return None
    try:
        modules: Any = json.loads(read_limited(path / "modules.json"))
        places = [(str(module["type"]), str(module["path"])) for module in modules[:]]  # of a list
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path / 'modules.json'}: not a list of modules; download the folder again") from error
    dense, changes = None, dict[str, Any]()
    for kind, place in places:
        if kind.endswith(".Dense") and _is_subfolder(path, place) and dense is None:
            dense = _read_dense(path / place, hidden)
        elif (
            kind.endswith(".WordWeights")
            and place == WORD_WEIGHTS_FOLDER
            and "tokens" not in changes
            and tokenizer is not None
        ):
            changes["tokens"] = _read_word_weights(path / WORD_WEIGHTS_FOLDER / "config.json", tokenizer.vocabulary())
        elif kind.endswith(".WeightedLayerPooling") and place == LAYER_POOLING_FOLDER:
            changes["passes"] = _read_layer_pooling(path / LAYER_POOLING_FOLDER)
        elif kind.endswith(".Normalize"):
            changes["of_length_one"] = True
        elif kind.endswith(".Pooling") and _is_subfolder(path, place):
            changes |= _read_pooling(path / place / "config.json")
        elif not kind.endswith((".Transformer", ".Pooling")):
            message = f"{path}: embed leaves out the module {kind}, which sentence-transformers would apply"
            warnings.warn(message, stacklevel=4)
    _warn_about_prompt(path)
    if not changes:
        return dense
    return replace(dense or SentenceMap.plain(hidden), **changes)


def _warn_about_prompt(path: Path) -> None:
    name = path / "config_sentence_transformers.json"
    settings = read_json(name) if name.is_file() else {}
    prompts, usual = settings.get("prompts"), settings.get("default_prompt_name")
    if isinstance(prompts, dict) and prompts.get(usual):
        message = f"{path}: sentence-transformers puts {str(prompts[usual])[:40]!r} before every text; embed does not"
        warnings.warn(message, stacklevel=5)


def _is_subfolder(path: Path, place: str) -> bool:
    """Is it one of the folder's own folders, and there?"""
    return Path(place).name == place and (path / place / "config.json").is_file()


def _read_pooling(path: Path) -> dict[str, Pooling]:
    """What is not the mean, which needs no word."""
    settings = read_json(path)
    modes = settings.get("pooling_mode", [kind for key, kind in POOLINGS.items() if settings.get(key)])
    modes = [modes] if isinstance(modes, str) else modes
    others = [
        key for key, value in settings.items() if key.startswith("pooling_mode_") and value and key not in POOLINGS
    ]
    if modes == ["mean"] and not others:
        return {}
    if others or not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLINGS.values():
        raise CheckpointError(f"{path}: we pool by {', '.join(POOLINGS.values())}, one of them, not {modes or others}")
    return {"pooling": modes[0]}


def _read_layer_pooling(path: Path) -> int:
    settings = read_json(path / "config.json")
    try:
        weights = safetensors.numpy.load_file(path / "model.safetensors")["layer_weights"]
        passes = int(settings["num_hidden_layers"]) + 1 - int(settings["layer_start"])
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); download the folder again") from error
    if passes > settings["num_hidden_layers"]:
        raise CheckpointError(
            f"{path}: begins with the embeddings (layer_start={settings['layer_start']}), and we take the mean of "
            "passes; give layer_start=1 or more"
        )
    if passes < 1 or weights.shape != (passes,) or not np.allclose(weights, weights[:1]):
        raise CheckpointError(f"{path}: we take the plain mean of the last passes, not {weights.tolist()[:8]}")
    return passes


def _read_word_weights(path: Path, vocabulary: list[str]) -> np.ndarray:  # (V,)
    settings = read_json(path)
    weights, rest = settings.get("word_weights"), settings.get("unknown_word_weight", 1)
    if settings.get("vocab") != vocabulary or not isinstance(weights, dict):
        raise CheckpointError(f"{path}: does not weigh this tokenizer's vocabulary; download the folder again")
    try:
        values = np.array([weights.get(token, rest) for token in vocabulary], dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{path}: a weight is not a number; download the folder again") from error
    if not ((values >= 0) & (values < MAX_WORD_WEIGHT)).all() or not values.any():
        raise CheckpointError(f"{path}: a weight is not between 0 and {MAX_WORD_WEIGHT:.0e}; download the folder again")
    return values.astype(np.float32)


def _read_dense(path: Path, hidden: int) -> SentenceMap | None:
    activation = read_json(path / "config.json").get("activation_function")
    if activation != _IDENTITY_ACTIVATION or not (path / "model.safetensors").is_file():
        message = f"{path}: embed leaves it out; we read linear ones (not {activation}) in model.safetensors"
        warnings.warn(message, stacklevel=5)
        return None
    try:
        tensors = safetensors.numpy.load_file(path / "model.safetensors")
        weight = tensors["linear.weight"]
        bias = tensors.get("linear.bias", np.zeros(len(weight), np.float32))
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path / 'model.safetensors'}: cannot be read ({error}); download the folder again"
        ) from error
    if weight.ndim != 2 or weight.shape[1] != hidden or bias.shape != weight.shape[:1]:
        raise CheckpointError(f"{path}: {weight.shape} and {bias.shape} do not fit vectors of {hidden}")
    return SentenceMap(weight.astype("float32"), bias.astype("float32"))
