"""Tokens to vectors."""

from litebert.model.albert import Encoder
from litebert.model.attention import attend
from litebert.model.config import PRESETS, AlbertConfig, preset
from litebert.model.heads import Albert, HeadKind, MaskedTokenHead, PooledHead, TextHead, TokenHead, pretraining_heads
from litebert.model.layout import Dense, Packed

__all__ = [
    "PRESETS",
    "Albert",
    "AlbertConfig",
    "Dense",
    "Encoder",
    "HeadKind",
    "MaskedTokenHead",
    "Packed",
    "PooledHead",
    "TextHead",
    "TokenHead",
    "attend",
    "preset",
    "pretraining_heads",
]
