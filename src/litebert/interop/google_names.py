"""What Google's code calls the tensors of an ALBERT, and what transformers calls them.

albert_zh has names of its own for the parts of a layer, and lonePatient's PyTorch code has both, with dots. A name here
is a stem and, at its end, the part of a layer that it is. TensorFlow keeps matrices the other way round than PyTorch.
"""

from __future__ import annotations

import re

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
SECOND_EMBEDDINGS = "bert/embeddings/word_embeddings_2"
"""albert_zh's matrix from the small embeddings of tokens, and of these alone, to the hidden size."""
PROJECTION = "albert.encoder.embedding_hidden_mapping_in"

_NON_LAYER_NAMES = {
    WORD_EMBEDDINGS: "albert.embeddings.word_embeddings",
    "bert/embeddings/position_embeddings": "albert.embeddings.position_embeddings",
    "bert/embeddings/token_type_embeddings": "albert.embeddings.token_type_embeddings",
    "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
    "bert/encoder/embedding_hidden_mapping_in": PROJECTION,
    "bert/pooler/dense": "albert.pooler",
    "cls/predictions/transform/dense": "predictions.dense",
    "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
    "cls/predictions": "predictions",
    "cls/seq_relationship": "sop_classifier.classifier",
    "cls/squad": "qa_outputs",
    "": "classifier",
}
"""Outside of the layers, Google's stems and transformers'."""
_LAYER_NAMES = {
    "attention_1/self/query": "attention.query",
    "attention_1/self/key": "attention.key",
    "attention_1/self/value": "attention.value",
    "attention_1/output/dense": "attention.dense",
    "LayerNorm": "attention.LayerNorm",
    "ffn_1/intermediate/dense": "ffn",
    "ffn_1/intermediate/output/dense": "ffn_output",
    "LayerNorm_1": "full_layer_layer_norm",
}
"""Within a layer."""
_BERT_LAYER_NAMES = {
    "attention/self/query": "attention.query",
    "attention/self/key": "attention.key",
    "attention/self/value": "attention.value",
    "attention/output/dense": "attention.dense",
    "attention/output/LayerNorm": "attention.LayerNorm",
    "intermediate/dense": "ffn",
    "output/dense": "ffn_output",
    "output/LayerNorm": "full_layer_layer_norm",
}
"""The same as BERT and albert_zh say it."""
_READ_ONLY_NAMES = {
    "cls/predictions/decoder": "predictions.decoder",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}
_LEAF_NAMES = {
    "kernel": "weight", "gamma": "weight", "output_weights": "weight", "weight": "weight",
    "bias": "bias", "beta": "bias", "output_bias": "bias",
}  # fmt: skip
_OUTPUT_STEMS = ("cls/predictions", "cls/seq_relationship", "cls/squad", "")
"""Stems of variables that stand in no layer of TensorFlow's."""
_GROUP_PATTERN = re.compile(r"bert/encoder/transformer/group_(\d{1,4})/inner_group_(\d{1,4})/(.*)")
_LAYER_PATTERN = re.compile(r"bert/encoder/layer_(shared|\d{1,4})/(.*)")
_HUGGINGFACE_PATTERN = re.compile(r"albert\.encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.(.*)")


def to_huggingface(name: str) -> tuple[str, bool] | None:
    """transformers' name of a tensor, and whether it must be transposed; None: no such part of an ALBERT is known."""
    stem, _, leaf = name.rpartition("/")
    if leaf not in _LEAF_NAMES or (not stem and not leaf.startswith("output_")):
        stem, leaf = name, "weight"
    known = _huggingface_stem(stem)
    return None if known is None else (f"{known}.{_LEAF_NAMES[leaf]}", leaf == "kernel")


def to_google(name: str) -> tuple[str, bool] | None:
    """Google's name of a tensor, and whether it must be transposed; None: Google's code has no place for it."""
    stem, _, part = name.rpartition(".")
    inside = _HUGGINGFACE_PATTERN.fullmatch(stem)
    if inside is None:
        known = next((google for google, theirs in _NON_LAYER_NAMES.items() if theirs == stem), None)
    else:
        group, inner, rest = inside.groups()
        own = next((google for google, theirs in _LAYER_NAMES.items() if theirs == rest), None)
        known = own and f"bert/encoder/transformer/group_{group}/inner_group_{inner}/{own}"
    if known is None:
        return None
    if known.endswith("_embeddings"):
        return known, False
    is_weight = part == "weight"
    if known in _OUTPUT_STEMS:
        leaf = "output_weights" if is_weight else "output_bias"
    elif "LayerNorm" in known:
        leaf = "gamma" if is_weight else "beta"
    else:
        leaf = "kernel" if is_weight else "bias"
    return f"{known}/{leaf}".lstrip("/"), leaf == "kernel"


def tensorflow_spelling(name: str) -> str:
    """A name of lonePatient's PyTorch code as TensorFlow spells it."""
    name = re.sub(r"(group|layer)/(\d+)", r"\1_\2", name.replace(".", "/"))
    return re.sub(r"(/inner_group_\d+/)(attention|ffn)/", r"\1\2_1/", name)


def is_lonepatient_name(name: str) -> bool:
    return name.startswith(("bert.encoder.transformer.group.", "bert.encoder.layer_shared."))


def _huggingface_stem(stem: str) -> str | None:
    if inside := _GROUP_PATTERN.fullmatch(stem):
        group, inner, rest = inside.groups()
        known = _LAYER_NAMES.get(rest)
    elif inside := _LAYER_PATTERN.fullmatch(stem):
        number, rest = inside.groups()
        group, inner, known = ("0" if number == "shared" else number), "0", _BERT_LAYER_NAMES.get(rest)
    else:
        return _NON_LAYER_NAMES.get(stem) or _READ_ONLY_NAMES.get(stem)
    return known and f"albert.encoder.albert_layer_groups.{int(group)}.albert_layers.{int(inner)}.{known}"
