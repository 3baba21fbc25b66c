"""Presets of keras-hub, both ways: a folder with config.json, model.weights.h5 and what reads text.

keras-hub's ALBERT is Google's: tanh GELU, LayerNorms with 1e-12, sharing in even groups. Other sharing is written as
one group per layer, which computes the same, with our own settings in config.json under a key that Keras ignores; so
we read it shared again. Keras itself is not needed, only h5py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import Tensor

from litebert.errors import CheckpointError, ConfigError
from litebert.files import atomic_write, read_json, write_json
from litebert.interop.huggingface import Folder, config_dict, named_tensors, parse_config
from litebert.interop.keras_weights import (
    TensorLocation,
    classifier_locations,
    encoder_locations,
    keras_group_count,
    masked_lm_locations,
    read_weights,
    write_weights,
)
from litebert.model import AlbertConfig
from litebert.tasks.classify import MAX_CLASSES, Classify
from litebert.tasks.regress import Regress
from litebert.tokenizer import Tokenizer

WEIGHTS_FILE, TASK_WEIGHTS_FILE = "model.weights.h5", "task.weights.h5"
SPIECE_FILE = Path("assets") / "tokenizer" / "vocabulary.spm"
TOKENIZER_FOLDER = Path("assets") / "litebert"
"""The tokenizer as we save it, with what a SentencePiece model does not say."""
VERSIONS = {"keras_version": "3.15.1", "keras_hub_version": "0.32.0"}
"""Whose layout this is."""
LAYER_NORM_EPS = 1e-12
_SETTING_NAMES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_groups": "num_hidden_groups",
    "num_inner_repetitions": "inner_group_num",
    "embedding_dim": "embedding_size",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
"""Theirs to ours."""
_REQUIRED = ("vocabulary_size", "num_layers", "num_heads", "embedding_dim", "hidden_dim", "intermediate_dim")
_BACKBONE, _MASKED_LM, _CLASSIFIER = "AlbertBackbone", "AlbertMaskedLM", "AlbertTextClassifier"
_HEAD_CLASSES = {"mlm": _MASKED_LM, "classify": _CLASSIFIER}
"""Our heads that keras-hub has a class for."""
_OLD_CLASS_NAMES = {"AlbertClassifier": _CLASSIFIER}
_LINEAR_HEAD_TENSORS = {"linear.weight", "linear.bias"}
"""Of a head without a body: one matrix."""


def is_keras(path: Path) -> bool:
    """Is it a preset of keras-hub, or a file of weights as Keras 3 writes them?"""
    if path.is_dir():
        return (path / WEIGHTS_FILE).is_file() or (path / TASK_WEIGHTS_FILE).is_file()
    return path.name.endswith(".weights.h5")


def read_preset(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Its settings as a config.json of ours would say them, and its weights by Hugging Face's names."""
    folder, weights = (path, path / WEIGHTS_FILE) if path.is_dir() else (path.parent, path)
    settings = _read_settings(folder)
    config = parse_config(settings, folder)
    tensors = read_weights(weights, encoder_locations(config), beside_table=True)
    if path.is_dir():
        tensors |= _read_head(folder, settings, config)
    return settings, tensors


def tensor_locations(settings: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Iterator[TensorLocation]:
    """Where in the files each of these weights stands."""
    config = parse_config(settings, folder)
    yield from encoder_locations(config)
    if "predictions.bias" in tensors:
        yield from masked_lm_locations(config)
    if "classifier.bias" in tensors:
        yield from classifier_locations(config, len(tensors["classifier.bias"]))


def write_keras(path: Path, folder: Folder) -> list[str]:
    """Write a preset folder that keras-hub's AlbertBackbone, AlbertMaskedLM or AlbertTextClassifier loads.

    Returns what of the model it has no place for. config.json comes last: a folder without it is unfinished.
    """
    config, expressible = folder.model.config, _drop_unsupported_heads(folder)
    _check_expressible(config)
    tensors = dict(named_tensors(expressible.model))
    has_pieces = _write_tokenizer(path, folder)
    count = write_weights(path / WEIGHTS_FILE, encoder_locations(config), tensors)
    _write_task(path, expressible, tensors, has_pieces)
    saved = datetime.now(timezone.utc).strftime("%Y-%m-%d@%H:%M:%S")
    write_json(path / "metadata.json", VERSIONS | {"parameter_count": count, "date_saved": saved})
    write_json(path / "config.json", _backbone(config) | {"litebert": config_dict(expressible)})
    return list(_list_left_out(folder, expressible, has_pieces))


def keras_settings(config: AlbertConfig) -> dict[str, Any]:
    """What AlbertBackbone is made with."""
    return {theirs: getattr(config, ours) for theirs, ours in _SETTING_NAMES.items()} | {
        "num_groups": keras_group_count(config)
    }


def _check_expressible(config: AlbertConfig) -> None:
    """keras-hub would load these and compute something else."""
    plain = {"hidden_act": "gelu_new", "layer_norm_eps": LAYER_NORM_EPS, "relative_attention_distance": 0,
             "depth_embedding": False, "lora_rank": 0}  # fmt: skip
    for name, only in plain.items():
        value = getattr(config, name)
        if value != only:
            raise ConfigError(
                f"{name}={value!r}: keras-hub's ALBERT has {only!r} alone and would compute something else; "
                "examples/keras_albert.py shows how to write one in Keras"
            )


def _drop_unsupported_heads(folder: Folder) -> Folder:
    """The model with the one head that a preset can have: that for hidden words, or a matrix over the pooled vector."""
    heads = folder.model.heads
    head_names = [
        name
        for name in _HEAD_CLASSES
        if name in heads and (name == "mlm" or set(heads[name].state_dict()) == _LINEAR_HEAD_TENSORS)
    ]
    model = folder.model.with_heads({name: heads[name] for name in head_names[:1]})
    return replace(folder, model=model, task=folder.task if head_names else None, sentence_map=None, int8=None)


def _list_left_out(folder: Folder, expressible: Folder, has_pieces: bool) -> Iterator[str]:
    yield from (f"the head {name!r}" for name in folder.model.heads if name not in expressible.model.heads)
    if "mlm" in expressible.model.heads:
        yield "1e-12 in the LayerNorm of the head 'mlm': keras-hub has 1e-5 there, so its logits differ a little"
    if folder.sentence_map is not None:
        yield "how vectors of sentences are made from those of tokens"
    if folder.int8 is not None:
        yield "what products of eight bits need; weights are written in float32"
    if not has_pieces:
        yield "the tokenizer, which is no SentencePiece model: texts must be made into ids with litebert"


def _write_tokenizer(path: Path, folder: Folder) -> bool:
    """Ours, and keras-hub's if ours came from a SentencePiece model."""
    tokenizer = folder.required_tokenizer()
    tokenizer.save(path / TOKENIZER_FOLDER, folder.max_length)
    pieces = tokenizer.spiece
    if pieces is not None:
        atomic_write(path / SPIECE_FILE, pieces)
        write_json(path / "tokenizer.json", _TOKENIZER)
    else:
        (path / "tokenizer.json").unlink(missing_ok=True)
    return pieces is not None


def _write_task(path: Path, expressible: Folder, tensors: dict[str, Tensor], has_pieces: bool) -> None:
    for leftover in ("task.json", "preprocessor.json", TASK_WEIGHTS_FILE):  # of a model that was here before
        (path / leftover).unlink(missing_ok=True)
    for head in expressible.model.heads:
        name, config = _HEAD_CLASSES[head], expressible.model.config
        classes = {"num_classes": len(tensors["classifier.bias"])} if name == _CLASSIFIER else {}
        write_weights(path / TASK_WEIGHTS_FILE, _head_locations(config, name, *classes.values()), tensors)
        preprocessor = None
        if has_pieces:
            length = {"sequence_length": expressible.max_length}
            preprocessor = _keras_object(f"{name}Preprocessor", {"tokenizer": _TOKENIZER} | length)
            write_json(path / "preprocessor.json", preprocessor)
        chosen = {"backbone": _backbone(config), "preprocessor": preprocessor} | classes
        write_json(path / "task.json", _keras_object(name, chosen))


def _head_locations(config: AlbertConfig, name: str, classes: int = 0) -> Iterator[TensorLocation]:
    return masked_lm_locations(config) if name == _MASKED_LM else classifier_locations(config, classes)


def _keras_object(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """As Keras writes an object of a class of keras-hub."""
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # AlbertMaskedLM stands in albert_masked_lm
    return {
        "module": f"keras_hub.src.models.albert.{module}",
        "class_name": name,
        "config": config,
        "registered_name": f"keras_hub>{name}",
    }


_TOKENIZER = _keras_object("AlbertTokenizer", {"config_file": "tokenizer.json", "proto": None})


def _backbone(config: AlbertConfig) -> dict[str, Any]:
    return _keras_object(_BACKBONE, keras_settings(config))


def _read_settings(folder: Path) -> dict[str, Any]:
    """The config.json of an ALBERT of that shape."""
    where = folder / "config.json"
    if not where.is_file():
        raise CheckpointError(
            f"{folder}: has no config.json, which says the shape of the weights; put the preset's beside them"
        )
    content = read_json(where)
    chosen = content.get("config")
    if content.get("class_name") != _BACKBONE or not isinstance(chosen, dict):
        raise CheckpointError(
            f"{where}: class_name={content.get('class_name')!r} is not keras-hub's {_BACKBONE}; give an ALBERT's preset"
        )
    missing = [name for name in _REQUIRED if name not in chosen]
    if missing:
        raise CheckpointError(f"{where}: does not say {', '.join(missing)}; download or save the preset again")
    if "litebert" not in content:
        settings = {ours: chosen[theirs] for theirs, ours in _SETTING_NAMES.items() if theirs in chosen}
        return settings | {"model_type": "albert", "attention_probs_dropout_prob": chosen.get("dropout", 0.0)}
    return _litebert_settings(content["litebert"], chosen, folder)


def _litebert_settings(ours: Any, chosen: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What we wrote beside Keras's settings, if it still speaks of the same model."""
    where = folder / "config.json"
    if not isinstance(ours, dict):
        raise CheckpointError(f"{where}: 'litebert' must be an object; delete it, or convert the model again")
    for name, value in keras_settings(parse_config(ours, folder)).items():
        if chosen.get(name, value) != value:
            raise CheckpointError(
                f"{where}: {name}={chosen[name]!r}, but 'litebert' there means {value!r}; delete what is wrong"
            )
    return ours


def _read_head(folder: Path, settings: dict[str, Any], config: AlbertConfig) -> dict[str, Tensor]:
    """The head's tensors; settings learn which task it is for, unless they know."""
    path, weights = folder / "task.json", folder / TASK_WEIGHTS_FILE
    if not weights.is_file():
        return {}
    if not path.is_file():
        warnings.warn(
            f"{weights}: {path.name}, which says what head this is, does not lie beside it; the encoder is read "
            "without the head: put the file back to have both",
            stacklevel=3,
        )
        return {}
    content = read_json(path)
    name = _OLD_CLASS_NAMES.get(str(content.get("class_name")), content.get("class_name"))
    if name == _MASKED_LM:
        return read_weights(weights, masked_lm_locations(config))
    chosen = content.get("config")
    classes = chosen.get("num_classes") if isinstance(chosen, dict) else None
    if name != _CLASSIFIER or type(classes) is not int or not 1 <= classes <= MAX_CLASSES:
        warnings.warn(f"{path}: litebert has no head for {name}; the encoder is read without it", stacklevel=3)
        return {}
    if "architectures" not in settings:
        settings |= {"architectures": [Classify.architecture], "num_labels": classes}
        if classes == 1:
            settings["problem_type"] = Regress.problem_types[0]
    return read_weights(weights, classifier_locations(config, classes))


def preset_tokenizer(folder: Path) -> Tokenizer | None:
    """Ours, if the preset is ours; else its SentencePiece model; else none."""
    if (folder / TOKENIZER_FOLDER).is_dir():
        return Tokenizer.load(folder / TOKENIZER_FOLDER)
    return Tokenizer.from_spiece(folder / SPIECE_FILE) if (folder / SPIECE_FILE).is_file() else None
