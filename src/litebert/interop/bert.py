"""BERT folders of transformers, read as what they are to us: an ALBERT that shares nothing.

With E = H and an identity between embeddings and layers, ALBERT's formula is BERT's, so one encoder computes both, and
everything that reads an encoder reads a BERT. RoBERTa and DistilBERT differ from BERT in names and in what they leave
out.
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
from litebert.interop.huggingface import BERTS, Folder, assembled
from litebert.interop.weights import read_tensors
from litebert.tasks.regress import Regress
from litebert.tokenizer import Tokenizer

MAX_HIDDEN = 1 << 14
"""The identity between embeddings and layers is a square of it."""
SEGMENTS = 2
"""First and second text of a pair."""
_POSITIONS = "albert.embeddings.position_embeddings.weight"
_SEGMENTS = "albert.embeddings.token_type_embeddings.weight"
_PROJECT = "albert.encoder.embedding_hidden_mapping_in"
_NAMES = (
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
"""Theirs to ALBERT's, one after the other."""
_LEFT_OUT = r"^cls\.seq_relationship\.|position_ids$"  # which sentence comes next: nothing of ours asks that
_DISTILBERT = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
               "hidden_dim": "intermediate_size", "activation": "hidden_act"}  # fmt: skip
_USUAL = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
          "hidden_act": "gelu", "vocab_size": 30522, "max_position_embeddings": 512,
          "layer_norm_eps": 1e-12, "pad_token_id": 0}  # fmt: skip
"""What a config.json that does not say means."""


def load_bert(path: Path) -> Folder:
    """Read a BERT's folder; what is none, or computes otherwise, is refused."""
    theirs = read_foreign(path)
    kind = theirs.get("model_type")
    if kind not in BERTS:
        raise CheckpointError(f"{path / 'config.json'}: model_type={kind!r} is not one of {', '.join(BERTS)}")
    settings = _settings(theirs, path)
    found = {_name(name): one for name, one in read_tensors(path).items() if not re.search(_LEFT_OUT, name)}
    if any(name.startswith("pre_classifier.") for name in found):
        raise CheckpointError(
            f"{path}: DistilBERT's classifier bends with ReLU where an ALBERT's does with tanh; give it as --teacher, "
            "with a --student"
        )
    return assembled(path, settings, found | _additions(settings, found, kind), Tokenizer.load(path))


def read_foreign(path: Path) -> dict[str, Any]:
    """The config.json of another library's folder, as an ALBERT of its task would say it."""
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path}: has no config.json; give a folder that transformers saved")
    theirs = read_json(path / "config.json")
    names, labels = theirs.get("architectures"), theirs.get("id2label")
    if isinstance(names, list):
        theirs["architectures"] = [re.sub("^.*?(For[A-Z]|Model$)", r"Albert\1", str(name)) for name in names]
        one = isinstance(labels, dict) and len(labels) == 1
        if one and theirs["architectures"] == [Regress.architecture]:
            theirs["problem_type"] = theirs.get("problem_type") or "regression"
    _remark_on_pooling(path)
    return theirs


def longest_text(path: Path, positions: Any) -> Any:
    """What sentence-transformers cuts texts to, if it is one of its folders, or what positions allow."""
    name = path / "sentence_bert_config.json"
    said = read_json(name).get("max_seq_length") if name.is_file() else None
    return min(said, positions) if type(said) is int and type(positions) is int else positions


def _remark_on_pooling(path: Path) -> None:
    name = path / "1_Pooling" / "config.json"
    said = read_json(name) if name.is_file() else {}
    others = sorted(key for key, value in said.items() if key.startswith("pooling_mode_") and value is True)
    if others not in ([], ["pooling_mode_mean_tokens"]):
        message = (
            f"{path}: its vectors are not means over tokens ({', '.join(others)}); those that a student learns from are"
        )
        warnings.warn(message, stacklevel=4)


def _settings(theirs: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config.json of an ALBERT of that shape."""
    named = {_DISTILBERT.get(key, key): value for key, value in theirs.items()}
    settings = _USUAL | {key: value for key, value in named.items() if value is not None}
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
    ours = {"sharing": "none", "max_length": longest_text(path, positions)}
    shape = {"embedding_size": hidden, "max_position_embeddings": positions, "type_vocab_size": SEGMENTS}
    return settings | shape | {"model_type": "albert", "litebert": ours}


def _name(name: str) -> str:
    for theirs, ours in _NAMES:
        name = re.sub(theirs, ours, name)
    return name


def _additions(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """What an ALBERT has and they have not, such that nothing is computed otherwise."""
    hidden = settings["hidden_size"]
    found = {f"{_PROJECT}.weight": torch.eye(hidden), f"{_PROJECT}.bias": torch.zeros(hidden)}
    if kind == "distilbert":
        found[_SEGMENTS] = torch.zeros(SEGMENTS, hidden)
    elif _SEGMENTS in tensors and len(tensors[_SEGMENTS]) == 1:  # both texts of a pair are alike to it
        found[_SEGMENTS] = tensors[_SEGMENTS].expand(SEGMENTS, -1)
    if kind == "roberta" and _POSITIONS in tensors:
        found[_POSITIONS] = tensors[_POSITIONS][settings["pad_token_id"] + 1 :]
    return found
