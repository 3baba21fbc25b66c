"""The hook through which a pass sees the weights of its layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from litebert.model import AlbertConfig, Encoder
from litebert.model.albert import run_block
from litebert.model.backends import EagerBackend
from litebert.model.config import Half, Sharing

IDS = torch.arange(5, 23).view(2, 9)


def encoder_of(config: AlbertConfig) -> Encoder:
    torch.manual_seed(0)
    return Encoder(config).double().eval()


def stretched(name: str, weight: Tensor, depth: int, passes: int) -> Tensor:
    return weight * (1 + 0.1 * depth)


def untied(encoder: Encoder) -> Encoder:
    """The same function with one copy of the layer for each pass, stretched by hand."""
    config = encoder.config
    copy = Encoder(replace(config, sharing="none")).double().eval()
    copy.load_state_dict(encoder.state_dict(), strict=False)
    halves: tuple[Half, ...] = ("attention", "ffn")
    for half in halves:
        for layer in range(config.num_hidden_layers):
            for inner in range(config.inner_group_num):
                source = getattr(encoder, half)[config.block_at(half, layer, inner)]
                block = getattr(copy, half)[layer * config.inner_group_num + inner]
                block.load_state_dict({k: v * (1 + 0.1 * layer) for k, v in source.state_dict().items()})
    return copy


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 1), (1, 2)])
def test_each_pass_sees_its_own_weights(tiny_config: AlbertConfig, sharing: Sharing, groups: int, inner: int) -> None:
    config = replace(tiny_config, sharing=sharing, num_hidden_groups=groups, inner_group_num=inner)
    encoder = encoder_of(config)
    plain = encoder(IDS)
    encoder.weight_at = stretched
    torch.testing.assert_close(encoder(IDS), untied(encoder)(IDS), rtol=0, atol=1e-12)
    assert not torch.allclose(encoder(IDS), plain)


def test_a_hook_that_changes_nothing_changes_no_bit(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(tiny_config).float()
    plain = encoder(IDS)
    encoder.weight_at = lambda name, weight, depth, passes: weight
    assert torch.equal(encoder(IDS), plain)


def test_the_hook_hears_every_parameter_of_every_pass(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(replace(tiny_config, num_hidden_groups=3))
    parameters = dict(encoder.named_parameters())
    heard: list[tuple[str, int, int]] = []

    def listen(name: str, weight: Tensor, depth: int, passes: int) -> Tensor:
        assert weight is parameters[name]
        heard.append((name, depth, passes))
        return weight

    encoder.weight_at = listen
    encoder(IDS, depth=2)
    users = {name: used for name, used in encoder.depths_of(2).items() if used != (-1,)}
    assert sorted(heard) == sorted((name, depth, 2) for name, used in users.items() for depth in used)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_hook_hears_how_many_passes_are_run(tiny_config: AlbertConfig, depth: int) -> None:
    encoder = encoder_of(tiny_config)
    heard = set()
    encoder.weight_at = lambda name, weight, at, passes: (heard.add((at, passes)), weight)[1]
    encoder.packed(IDS.flatten(), torch.tensor([9, 9]), depth=depth)
    assert heard == {(at, depth) for at in range(depth)}


def gradients(encoder: Encoder) -> dict[str, Tensor]:
    encoder.zero_grad()
    encoder(IDS).square().sum().backward()
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("change", ["checkpointing", "compiled"])
def test_recomputed_and_compiled_passes_see_the_same(tiny_config: AlbertConfig, change: str) -> None:
    encoder = encoder_of(tiny_config)
    encoder.weight_at = stretched
    expected = gradients(encoder)
    if change == "checkpointing":
        encoder.gradient_checkpointing = True
    else:
        encoder.backend = EagerBackend(torch.compile(run_block, backend="aot_eager"))
    for name, gradient in gradients(encoder).items():
        torch.testing.assert_close(gradient, expected[name])


def test_one_compiled_block_serves_every_pass_and_every_hook(tiny_config: AlbertConfig) -> None:
    counter = CompileCounter()
    torch._dynamo.reset()
    encoder = encoder_of(replace(tiny_config, num_hidden_layers=12))
    encoder.backend = EagerBackend(torch.compile(run_block, backend=counter))
    encoder.weight_at = stretched
    encoder(IDS)
    compiled = counter.frame_count
    encoder.weight_at = lambda name, weight, depth, passes: weight * (depth + 2)
    encoder(IDS)
    assert compiled > 0
    assert counter.frame_count == compiled


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"attention.0": (0, 1, 2, 3), "ffn.0": (0, 1, 2, 3)}),
        ({"sharing": "attention"}, {"attention.0": (0, 1, 2, 3), "ffn.0": (0,), "ffn.3": (3,)}),
        ({"num_hidden_groups": 2}, {"attention.0": (0, 1), "attention.1": (2, 3), "ffn.1": (2, 3)}),
        ({"inner_group_num": 2}, {"attention.0": (0, 1, 2, 3), "ffn.1": (0, 1, 2, 3)}),
    ],
    ids=["all", "attention", "groups", "inner"],
)
def test_depths_of_names_the_passes_that_use_a_parameter(
    tiny_config: AlbertConfig, changes: dict[str, object], expected: dict[str, tuple[int, ...]]
) -> None:
    encoder = encoder_of(replace(tiny_config, num_hidden_layers=4, **changes))  # type: ignore[arg-type]
    depths = encoder.depths_of()
    for block, users in expected.items():
        names = [name for name in depths if name.startswith(f"{block}.")]
        assert len(names) == 6
        assert {depths[name] for name in names} == {users}
    before = {name for name, users in depths.items() if users == (-1,)}
    assert before == {
        "word_embeddings.weight", "position_embeddings.weight", "segment_embeddings.weight",
        "embedding_norm.weight", "embedding_norm.bias", "project.weight", "project.bias",
    }  # fmt: skip


def test_what_belongs_to_no_layer_has_no_depth(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(replace(tiny_config, relative_attention_distance=2, depth_embedding=True))
    without = {name for name, _ in encoder.named_parameters()} - encoder.depths_of().keys()
    assert without == {"pooler.weight", "pooler.bias", "relative_bias", "depth_embeddings.weight"}
    assert encoder.depths_of(2)["ffn.0.norm.bias"] == (0, 1)
