"""Attention maps beside the queries and keys that an encoder computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from litebert.model import AlbertConfig, Encoder
from litebert.model.attention_maps import attention_maps

HEADS = 4
IDS = torch.tensor([2, 17, 30, 5, 3])


def make_encoder(**changes: Any) -> Encoder:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 50, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64,
        "num_attention_heads": HEADS, "initializer_range": 0.2,
    }  # fmt: skip
    encoder = Encoder(AlbertConfig(**settings | changes)).eval()
    for extra in (encoder.relative_bias, encoder.depth_embeddings and encoder.depth_embeddings.weight):
        if extra is not None:
            torch.nn.init.normal_(extra)
    return encoder


def maps_by_hooks(encoder: Encoder, bias: Tensor | float = 0.0) -> list[Tensor]:
    """From what the encoder's own layers compute."""
    maps: list[Tensor] = []

    def record(_: torch.nn.Module, inputs: Any, qkv: Tensor) -> None:
        q, k, _ = qkv.unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)
        maps.append((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias).softmax(-1))

    hooks = [block.qkv.register_forward_hook(record) for block in encoder.attention]  # type: ignore[union-attr]
    encoder(IDS[None])
    for hook in hooks:
        hook.remove()
    return maps


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_hidden_groups": 3}, {"inner_group_num": 2}, {"depth_embedding": True, "inner_group_num": 2},
     {"relative_attention_distance": 2}],
    ids=str,
)  # fmt: skip
def test_maps_are_those_of_every_block_of_every_pass(changes: dict[str, Any]) -> None:
    encoder = make_encoder(**changes)
    bias = encoder.attention_bias(len(IDS))
    with torch.inference_mode():
        maps = attention_maps(encoder, IDS)
        expected = maps_by_hooks(encoder, 0.0 if bias is None else bias)
    assert len(maps) == len(expected) == 3 * encoder.config.inner_group_num
    torch.testing.assert_close(maps, expected, atol=1e-5, rtol=1e-4)


def test_fewer_passes_give_fewer_maps() -> None:
    encoder = make_encoder()
    with torch.inference_mode():
        every = attention_maps(encoder, IDS)
        encoder.depth = 1
        torch.testing.assert_close(attention_maps(encoder, IDS), every[:1], atol=1e-6, rtol=1e-5)


def test_lora_adapters_count() -> None:
    encoder, merged = make_encoder(lora_rank=2), make_encoder()
    assert encoder.adapters is not None
    torch.nn.init.normal_(encoder.adapters.up, std=0.1)
    with torch.inference_mode():
        encoder.adapters.up[1:] = encoder.adapters.up[:1]
        encoder.adapters.down[1:] = encoder.adapters.down[:1]
        merged.load_state_dict({name: value for name, value in encoder.state_dict().items() if "adapters" not in name})
        plain = attention_maps(merged, IDS)
        qkv: Any = merged.attention[0].qkv
        qkv.weight.copy_(encoder.adapters("attention.0.qkv.weight", qkv.weight, 0))
        maps = attention_maps(encoder, IDS)
        torch.testing.assert_close(maps, attention_maps(merged, IDS), atol=1e-5, rtol=1e-4)
        assert not torch.allclose(maps[0], plain[0], atol=1e-3)
