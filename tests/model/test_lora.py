"""Low-rank changes, another one at every depth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import litebert
from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig, Encoder, pretraining_heads
from litebert.model.lora import DepthAdapters
from litebert.tasks import Mask
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE, peer

IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])


def adapted(config: AlbertConfig, changed: tuple[int, ...] = ()) -> Encoder:
    """An encoder with adapters of rank 2 that have learned something at these depths."""
    torch.manual_seed(0)
    encoder = Encoder(replace(config, lora_rank=2)).eval()
    adapters = encoder.adapters
    assert adapters is not None
    with torch.no_grad():
        for depth in changed:
            adapters.up[depth].normal_(std=0.5)
    return encoder


def untied(encoder: Encoder) -> Encoder:
    """The same function by hand: a layer of its own for every pass, with the change added to its matrices."""
    size = encoder.config.hidden_size
    other = Encoder(replace(encoder.config, lora_rank=0, sharing="none")).eval()
    state, untied_state = encoder.state_dict(), {}
    for name in other.state_dict():
        half, _, rest = name.partition(".")
        if half not in ("attention", "ffn"):
            untied_state[name] = state[name]
            continue
        number, _, rest = rest.partition(".")
        depth, weight = int(number), state[f"{half}.0.{rest}"].clone()
        if rest == "qkv.weight":
            weight[:size] += state["adapters.up"][depth, 0] @ state["adapters.down"][depth, 0]
            weight[2 * size :] += state["adapters.up"][depth, 1] @ state["adapters.down"][depth, 1]
        untied_state[name] = weight
    other.load_state_dict(untied_state)
    return other


def test_a_fresh_adapter_changes_nothing(tiny_config: AlbertConfig) -> None:
    encoder = adapted(tiny_config)
    plain = Encoder(tiny_config).eval()
    plain.load_state_dict({name: encoder.state_dict()[name] for name in plain.state_dict()})
    assert torch.equal(encoder(IDS), plain(IDS))


@pytest.mark.parametrize("changed", [(0,), (1,), (2,), (0, 1, 2)])
def test_what_is_learned_at_one_depth_changes_that_pass_alone(
    tiny_config: AlbertConfig, changed: tuple[int, ...]
) -> None:
    encoder = adapted(tiny_config, changed)
    assert torch.allclose(encoder(IDS), untied(encoder)(IDS), atol=1e-5)
    assert not torch.allclose(encoder(IDS), adapted(tiny_config)(IDS), atol=1e-3)
    before, first = adapted(tiny_config)(IDS, depth=1), encoder(IDS, depth=1)
    assert torch.equal(first, before) == (0 not in changed)


def test_a_model_with_adapters_has_so_many_parameters_more(tiny_config: AlbertConfig) -> None:
    sizes = [sum(p.numel() for p in Encoder(replace(tiny_config, lora_rank=rank)).parameters()) for rank in (0, 1, 3)]
    assert [size - sizes[0] for size in sizes[1:]] == [4 * 3 * 32, 4 * 3 * 32 * 3]


def test_gradients_reach_the_adapters_of_every_pass(tiny_config: AlbertConfig) -> None:
    encoder = adapted(tiny_config, (0, 1, 2))
    encoder(IDS)[:, 0].square().sum().backward()
    adapters = encoder.adapters
    assert isinstance(adapters, DepthAdapters)
    for parameter in (adapters.up, adapters.down):
        assert parameter.grad is not None
        assert (parameter.grad.flatten(2).abs().sum(2) > 0).all()


def test_a_model_with_adapters_cannot_run_deeper_than_it_is(tiny_config: AlbertConfig) -> None:
    with pytest.raises(ConfigError, match="depth=4 must lie between 1 and 3"):
        adapted(tiny_config)(IDS, depth=4)


def test_adapters_are_saved_and_loaded_and_transformers_refuses_the_folder(
    tiny_config: AlbertConfig, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    transformers = peer("transformers")
    config = replace(tiny_config, lora_rank=2)
    albert = Albert(config, pretraining_heads(config)).eval()
    albert.encoder.load_state_dict(adapted(tiny_config, (0, 2)).state_dict())
    model = Model(albert, tokenizer, Mask())
    model.save(tmp_path)
    again = litebert.load(tmp_path)
    assert again.config == config
    assert again.embed(PROSE[:3]).tolist() == model.embed(PROSE[:3]).tolist()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "litebert"
    with pytest.raises(ValueError, match="litebert"):
        transformers.AutoModel.from_pretrained(tmp_path)
