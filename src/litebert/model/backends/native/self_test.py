"""Does the compiled library compute what float32 does? One layer, on fixed data, in a few milliseconds.

Shapes: T tokens in rows, H hidden, N heads, D channels per head.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.model.backends.base import Passes
from litebert.model.backends.native.build import NativeLibrary
from litebert.model.backends.native.engine import NativeInt8Backend
from litebert.model.config import AlbertConfig
from litebert.model.layout import Dense

TOKENS = 24
MAX_ERROR = 0.05
"""Relative error of the hidden states. int8 rounding alone causes 0.01; a wrong instruction causes 0.2 and more."""


def self_test_error(library: NativeLibrary) -> float:
    config = AlbertConfig(
        vocab_size=1,
        embedding_size=8,
        hidden_size=40,
        num_attention_heads=2,
        intermediate_size=100,
        num_hidden_layers=1,
    )
    generator = torch.Generator("cpu").manual_seed(0)
    with torch.inference_mode(), torch.device("cpu"):
        hidden = torch.randn(TOKENS, config.hidden_size, generator=generator)
        encoder = _one_layer(config, generator)
        expected = _float32_layer(encoder, hidden, config.num_attention_heads)
        layout = Dense(1, TOKENS, None)
        states = NativeInt8Backend(library)(encoder, hidden, layout, Passes(0, 1, 1))
    return ((states - expected).norm() / expected.norm()).item()


def _one_layer(config: AlbertConfig, generator: torch.Generator) -> SimpleNamespace:
    """The parts of an encoder that a pass reads, with random weights."""

    def linear(inputs: int, outputs: int) -> nn.Linear:
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs, device="cpu")
        layer.weight.copy_(torch.randn(outputs, inputs, generator=generator) / inputs**0.5)
        layer.bias.copy_(torch.randn(outputs, generator=generator) / 10)
        return layer

    size, wide = config.hidden_size, config.intermediate_size
    attention, ffn = nn.Module(), nn.Module()
    attention.qkv, attention.out = linear(size, 3 * size), linear(size, size)
    ffn.widen, ffn.narrow = linear(size, wide), linear(wide, size)
    for block in (attention, ffn):
        block.norm = nn.LayerNorm(size, eps=config.layer_norm_eps, device="cpu")
    return SimpleNamespace(
        config=config, training=False, weight_at=None, depth_embeddings=None, attention=[attention], ffn=[ffn],
        project=linear(config.embedding_size, size),
    )  # fmt: skip


def _float32_layer(encoder: SimpleNamespace, hidden: Tensor, heads: int) -> Tensor:  # (T, H)
    (attention,), (ffn,) = encoder.attention, encoder.ffn
    q, k, v = attention.qkv(hidden).unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)  # (N, T, D) each
    context = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v  # (N, T, D)
    hidden = attention.norm(hidden + attention.out(context.transpose(0, 1).flatten(1)))
    return ffn.norm(hidden + ffn.narrow(F.gelu(ffn.widen(hidden), approximate="tanh")))
