"""The attention probabilities of a text, computed beside an encoder from its hidden states: whatever its backend, and
without a change to it.

Shapes: L tokens, H hidden, N heads, D channels per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from litebert.model.albert import Encoder, run_block
from litebert.model.layout import Dense
from litebert.model.pass_weights import apply_linear, pass_weights


def attention_maps(encoder: Encoder, input_ids: Tensor) -> list[Tensor]:  # (L,) -> (N, L, L) each
    """For every block of every pass. Row i: how much token i attends to each token. int8 weights count as the float32
    values that they stand for."""
    config, length, maps = encoder.config, len(input_ids), []
    layout, bias = Dense(1, length, None), encoder.attention_bias(length)
    depth = encoder.checked_depth(encoder.depth)
    for layer, states in enumerate(encoder.hidden_states_at(range(depth), input_ids[None])):
        hidden = states[0]  # (L, H)
        if encoder.depth_embeddings is not None:
            hidden = hidden + encoder.depth_embeddings.weight[layer]
        for inner in range(config.inner_group_num):
            numbers = config.block_at("attention", layer, inner), config.block_at("ffn", layer, inner)
            attention: Any = encoder.attention[numbers[0]]
            ffn: Any = encoder.ffn[numbers[1]]
            weights = pass_weights(
                attention, f"attention.{numbers[0]}", layer, depth, encoder.adapters, encoder.weight_at
            )
            with torch.autocast(hidden.device.type, enabled=False):
                qkv = apply_linear(attention.qkv, hidden.to(attention.qkv.weight.dtype), weights, "qkv").float()
            q, k, _ = qkv.unflatten(-1, (3, config.num_attention_heads, -1)).unbind(-3)  # (L, N, D) each
            scores = torch.einsum("inc,jnc->nij", q, k) / q.shape[-1] ** 0.5
            maps.append((scores if bias is None else scores + bias).softmax(-1))
            if inner + 1 < config.inner_group_num:  # states within a pass are not among the encoder's
                hidden = run_block(attention, ffn, hidden, layout, bias, "eager", weights)
    return maps
