"""BERT folders of transformers, read as an ALBERT without parameter sharing.

With E = H and an identity projection, ALBERT computes the same as BERT, so one encoder serves both. RoBERTa and
DistilBERT differ from BERT in names and missing parts.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from litebert.errors import CheckpointError
from litebert.files import read_json
from litebert.interop.huggingface import BERT_TYPES, Folder, assemble_folder
from litebert.interop.weights import read_tensors
from litebert.tasks.regress import Regress
from litebert.tokenizer import Tokenizer

MAX_HIDDEN = 1 << 14
"""Largest hidden size; the identity projection has its square."""
SEGMENT_COUNT = 2
"""Token types: first and second text of a pair."""
_POSITION_TABLE = "albert.embeddings.position_embeddings.weight"
_SEGMENT_TABLE = "albert.embeddings.token_type_embeddings.weight"
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
_RENAMES = (
    (r"^(bert|roberta|distilbert)\.", "albert."),
    (r"^(albert\.)?(encoder|transformer)\.layer\.(\d+)\.", r"albert.encoder.albert_layer_groups.\3.albert_layers.0."),
    (r"\.attention\.self\.", ".attention."),
    (r"\.attention\.output\.", ".attention."),
    (r"\.intermediate\.dense\.", ".ffn."),
    (r"(albert_layers\.0)\.output\.dense\.", r"\1.ffn_output."),
    (r"(albert_layers\.0)\.output\.LayerNorm\.", r"\1.full_layer_layer_norm."),
    (r"^albert\.pooler\.dense\.", "albert.pooler."),
    (r"^cls\.predictions\.transform\.", "predictions."),
    (r"^cls\.predictions\.", "predictions."),
    # RoBERTa: what pools stands inside the classifier
    (r"^lm_head\.layer_norm\.", "predictions.LayerNorm."),
    (r"^lm_head\.", "predictions."),
    (r"^classifier\.dense\.", "albert.pooler."),
    (r"^classifier\.out_proj\.", "classifier."),
    # DistilBERT
    (r"\.attention\.q_lin\.", ".attention.query."),
    (r"\.attention\.k_lin\.", ".attention.key."),
    (r"\.attention\.v_lin\.", ".attention.value."),
    (r"\.attention\.out_lin\.", ".attention.dense."),
    (r"\.sa_layer_norm\.", ".attention.LayerNorm."),
    (r"\.ffn\.lin1\.", ".ffn."),
    (r"\.ffn\.lin2\.", ".ffn_output."),
    (r"\.output_layer_norm\.", ".full_layer_layer_norm."),
    (r"^vocab_transform\.", "predictions.dense."),
    (r"^vocab_layer_norm\.", "predictions.LayerNorm."),
    (r"^vocab_projector\.bias$", "predictions.bias"),
    (r"^vocab_projector\.weight$", "predictions.decoder.weight"),
)
"""Regular expressions from BERT's names to ALBERT's, applied in this order."""
_IGNORED = r"^cls\.seq_relationship\.|position_ids$"  # the next-sentence head, which litebert has no use for
_DISTILBERT_SETTINGS = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
               "hidden_dim": "intermediate_size", "activation": "hidden_act"}  # fmt: skip
_DEFAULTS = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
          "hidden_act": "gelu", "vocab_size": 30522, "max_position_embeddings": 512,
          "layer_norm_eps": 1e-12, "pad_token_id": 0}  # fmt: skip
"""transformers' defaults of settings that config.json leaves out."""


def load_bert(path: Path) -> Folder:
    """Read a BERT's folder; other models are refused."""
    theirs = read_other_config(path)
    kind = theirs.get("model_type")
    if kind not in BERT_TYPES:
        raise CheckpointError(f"{path / 'config.json'}: model_type={kind!r} is not one of {', '.join(BERT_TYPES)}")
    settings = _albert_settings(theirs, path)
    tensors = {
        _albert_name(name): tensor for name, tensor in read_tensors(path).items() if not re.search(_IGNORED, name)
    }
    if any(name.startswith("pre_classifier.") for name in tensors):
        raise CheckpointError(
            f"{path}: DistilBERT's classifier bends with ReLU where an ALBERT's does with tanh; give it as --teacher, "
            "with a --student"
        )
    return assemble_folder(path, settings, tensors | _missing_tensors(settings, tensors, kind), Tokenizer.load(path))


def read_other_config(path: Path) -> dict[str, Any]:
    """The config.json of another library's folder, with the architecture names of ALBERT."""
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path}: has no config.json; give a folder that transformers saved")
    theirs = read_json(path / "config.json")
    names, labels = theirs.get("architectures"), theirs.get("id2label")
    if isinstance(names, list):
        theirs["architectures"] = [re.sub("^.*?(For[A-Z]|Model$)", r"Albert\1", str(name)) for name in names]
        single_label = isinstance(labels, dict) and len(labels) == 1
        if single_label and theirs["architectures"] == [Regress.architecture]:
            theirs["problem_type"] = theirs.get("problem_type") or "regression"
    _warn_about_pooling(path)
    return theirs


def max_text_length(path: Path, positions: Any) -> Any:
    """Maximum length of sentence-transformers, if it is one of its folders, or the number of positions."""
    name = path / "sentence_bert_config.json"
    max_length = read_json(name).get("max_seq_length") if name.is_file() else None
    return min(max_length, positions) if type(max_length) is int and type(positions) is int else positions


def _warn_about_pooling(path: Path) -> None:
    name = path / "1_Pooling" / "config.json"
    settings = read_json(name) if name.is_file() else {}
    others = sorted(key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True)
    if others not in ([], ["pooling_mode_mean_tokens"]):
        message = (
            f"{path}: its vectors are not means over tokens ({', '.join(others)}); those that a student learns from are"
        )
        warnings.warn(message, stacklevel=4)


def _albert_settings(theirs: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config.json of an equivalent ALBERT."""
    named = {_DISTILBERT_SETTINGS.get(key, key): value for key, value in theirs.items()}
    settings = _DEFAULTS | {key: value for key, value in named.items() if value is not None}
    where, hidden, positions = path / "config.json", settings["hidden_size"], settings["max_position_embeddings"]
    kind = settings.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise CheckpointError(f"{where}: position_embedding_type={kind!r}; an ALBERT has absolute ones alone")
    if settings.get("is_decoder") or settings.get("add_cross_attention"):
        raise CheckpointError(f"{where}: is a decoder, which reads only what stands before; give an encoder")
    if type(hidden) is not int or not 1 <= hidden <= MAX_HIDDEN:
        raise CheckpointError(f"{where}: hidden_size={hidden!r} must be a whole number up to {MAX_HIDDEN:,}")
    if theirs["model_type"] == "roberta":
        if type(positions) is not int or type(settings["pad_token_id"]) is not int:
            raise CheckpointError(f"{where}: max_position_embeddings and pad_token_id must be whole numbers")
        positions -= settings["pad_token_id"] + 1  # it counts from the one after padding's
    ours = {"sharing": "none", "max_length": max_text_length(path, positions)}
    shape = {"embedding_size": hidden, "max_position_embeddings": positions, "type_vocab_size": SEGMENT_COUNT}
    return settings | shape | {"model_type": "albert", "litebert": ours}


def _albert_name(name: str) -> str:
    for theirs, ours in _RENAMES:
        name = re.sub(theirs, ours, name)
    return name


def _missing_tensors(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Tensors that only ALBERT has, with values that do not change the output."""
    hidden = settings["hidden_size"]
    missing = {f"{_PROJECTION}.weight": torch.eye(hidden), f"{_PROJECTION}.bias": torch.zeros(hidden)}
    if kind == "distilbert":
        missing[_SEGMENT_TABLE] = torch.zeros(SEGMENT_COUNT, hidden)
    elif _SEGMENT_TABLE in tensors and len(tensors[_SEGMENT_TABLE]) == 1:  # both texts of a pair are alike to it
        missing[_SEGMENT_TABLE] = tensors[_SEGMENT_TABLE].expand(SEGMENT_COUNT, -1)
    if kind == "roberta" and _POSITION_TABLE in tensors:
        missing[_POSITION_TABLE] = tensors[_POSITION_TABLE][settings["pad_token_id"] + 1 :]
    return missing
