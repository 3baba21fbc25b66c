"""Tokens to vectors."""

from litebert.model.albert import PRESETS, AlbertConfig, Encoder, preset
from litebert.model.attention import Dense, Packed, attend
from litebert.model.heads import Albert, MaskedTokenHead, PooledHead, pretraining_heads

__all__ = [
    "PRESETS",
    "Albert",
    "AlbertConfig",
    "Dense",
    "Encoder",
    "MaskedTokenHead",
    "Packed",
    "PooledHead",
    "attend",
    "preset",
    "pretraining_heads",
]
