"""The structures of structs.h, field by field the same, and the check that both sides agree on their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import POINTER, Structure, c_float, c_int32, c_void_p, sizeof
from typing import Any

from torch import Tensor

from litebert.errors import CheckpointError


def _pointers(*names: str) -> tuple[tuple[str, type[c_void_p]], ...]:
    return tuple((name, c_void_p) for name in names)


def _int32(*names: str) -> tuple[tuple[str, type[c_int32]], ...]:
    return tuple((name, c_int32) for name in names)


class QuantizedLinear(Structure):
    _fields_ = (*_pointers("weight", "scale", "bias", "column_sums"), *_int32("columns", "depth", "groups"))


class LayerNorm(Structure):
    _fields_ = _pointers("weight", "bias")


class AttentionBlock(Structure):
    _fields_ = (("qkv", QuantizedLinear), ("out", QuantizedLinear), ("norm", LayerNorm))


class FeedForwardBlock(Structure):
    _fields_ = (("up", QuantizedLinear), ("down", QuantizedLinear), ("norm", LayerNorm))


class Network(Structure):
    _fields_ = (
        ("attention", POINTER(AttentionBlock)),
        ("feed_forward", POINTER(FeedForwardBlock)),
        *_int32("hidden", "heads", "heads_per_bundle", "activation"),
        ("epsilon", c_float),
    )


class Embeddings(Structure):
    _fields_ = (
        *_pointers("token_ids", "token_type_ids", "word_table", "type_table", "position_table"),
        ("norm", LayerNorm),
        *_pointers("projection_weight", "projection_bias"),
        *_int32("embedding_size", "vocab_size", "type_vocab_size"),
    )


class EarlyExit(Structure):
    _fields_ = (
        *_pointers("pooler_weight", "pooler_bias", "head_weight", "head_bias", "exit_steps", "logits", "exit_of"),
        *_int32("classes", "exits"),
        ("threshold", c_float),
    )


class Pooling(Structure):
    _fields_ = (*_pointers("token_weights", "weight", "bias", "output"), *_int32("size"))


class Batch(Structure):
    _fields_ = (
        *_pointers(
            "input", "output", "sequence_starts", "step_blocks", "step_embeddings", "attention_bias", "wanted_rows",
            "workspace",
        ),
        ("early_exit", POINTER(EarlyExit)),
        ("embeddings", POINTER(Embeddings)),
        ("pooling", POINTER(Pooling)),
        *_int32("sequences", "steps", "max_length", "wanted_count"),
    )  # fmt: skip


STRUCTS = (
    QuantizedLinear, LayerNorm, AttentionBlock, FeedForwardBlock, Network, Embeddings, EarlyExit, Pooling, Batch
)  # fmt: skip


def check_sizes(library: Any) -> None:
    """Refuse a library that was compiled from other structures: it would read and write where it must not."""
    for struct in STRUCTS:
        theirs, ours = library.litebert_struct_size(struct.__name__.encode()), sizeof(struct)
        if theirs != ours:
            raise CheckpointError(
                f"struct {struct.__name__} has {theirs} bytes in the compiled library and {ours} in structs.py; "
                "structs.h and structs.py must be of one version: reinstall litebert"
            )


def addresses(*tensors: Tensor | None) -> Iterator[int]:
    """Of their data; null for None."""
    return (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
