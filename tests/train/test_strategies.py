"""Every strategy against a model in which each pass has a copy of the layer of its own, and against training without.

The untied copy gives the gradient g_d of each pass; what a shared weight must do follows from these by hand.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.model import Albert, AlbertConfig, Encoder, PooledHead
from litebert.model.config import Sharing
from litebert.train.averaging import MasterWeights
from litebert.train.optimizers import adamw, schedule
from litebert.train.strategies import (
    Strategies,
    attenuate,
    parameter_options,
    project,
    strategies_for_model,
    unfreeze,
    weight_hook,
)

IDS = torch.arange(5, 23).view(2, 9)
WATCHED = ("attention.qkv.weight", "attention.norm.weight", "ffn.widen.weight", "ffn.narrow.bias")


@pytest.fixture
def config(tiny_config: AlbertConfig) -> AlbertConfig:
    return replace(tiny_config, num_hidden_layers=4)


def encoder_of(config: AlbertConfig, sharing: Sharing = "all") -> Encoder:
    """Always the same weights: unshared, every layer holds a copy of the one that is shared."""
    torch.manual_seed(0)
    shared = Encoder(replace(config, sharing="all", num_hidden_groups=1)).double()
    encoder = Encoder(replace(config, sharing=sharing)).double()
    encoder.load_state_dict(shared.state_dict(), strict=False)
    for half in ("attention", "ffn"):
        for block in getattr(encoder, half):
            block.load_state_dict(getattr(shared, half)[0].state_dict())
    return encoder


def backward(encoder: Encoder, depth: int | None = None) -> None:
    encoder.zero_grad()
    hidden = encoder(IDS, depth=depth)
    (hidden * torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)).sum().backward()


def parameter(encoder: Encoder, watched: str, block: int = 0) -> nn.Parameter:
    half, name = watched.split(".", 1)
    return encoder.get_parameter(f"{half}.{block}.{name}")


def gradients_by_pass(encoder: Encoder, watched: str, depth: int | None = None) -> list[Tensor]:
    """g_d of every pass, from an untied copy."""
    copy = encoder_of(encoder.config, "none")
    backward(copy, depth)
    passes = depth or encoder.config.num_hidden_layers
    found = [parameter(copy, watched, layer).grad for layer in range(passes)]
    return [gradient for gradient in found if gradient is not None]


def check_gradient(encoder: Encoder, factors: list[float], depth: int | None = None, block: int = 0) -> None:
    """The gradient of the shared weight is Σ_d s_d g_d."""
    backward(encoder, depth)
    for watched in WATCHED:
        by_pass = gradients_by_pass(encoder, watched, depth)
        expected = sum(s * g for s, g in zip(factors, by_pass, strict=True))
        torch.testing.assert_close(parameter(encoder, watched, block).grad, expected, rtol=1e-9, atol=1e-10)


def prepare(strategies: Strategies, config: AlbertConfig, sharing: Sharing = "all", step: int = 0) -> Encoder:
    encoder = encoder_of(config, sharing)
    strategies = strategies_for_model(strategies, config.num_hidden_layers, config.initializer_range)
    encoder.weight_at = weight_hook(strategies, encoder.depths_of, step)
    return encoder


def train(
    strategies: Strategies, config: AlbertConfig, sharing: Sharing = "all", steps: int = 3, masters: bool = False
) -> dict[str, Tensor]:
    """A few AdamW steps of a whole model, wired as a recipe wires it; the weights afterwards."""
    torch.manual_seed(0)
    model = Albert(replace(config, sharing=sharing), {"order": PooledHead(config, 2)})
    model.encoder = encoder_of(config, sharing)
    model = model.bfloat16() if masters else model.double()
    strategies = strategies_for_model(strategies, config.num_hidden_layers, config.initializer_range)
    depths = {f"encoder.{name}": users for name, users in model.encoder.depths_of().items()}
    plain = adamw(model, weight_decay=0.1, parameter_options=parameter_options(strategies, model, depths))
    plain.register_step_post_hook(project)
    optimizer = MasterWeights(plain) if masters else plain
    rate = schedule("constant", 0.01, steps, warmup_share=0.0)
    for step in range(steps):
        model.encoder.weight_at = weight_hook(strategies, model.encoder.depths_of, step)
        unfreeze(optimizer, step)
        optimizer.zero_grad()
        scores = model.heads["order"](model.encoder.pool(model.encoder(IDS)[:, 0]))
        nn.functional.cross_entropy(scores, torch.tensor([0, 1])).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = attenuate(strategies, model.parameters(), float(norm))
        for group in optimizer.param_groups:
            group["lr"] = rate(step) * factor * group["scale"]
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def differ(one: dict[str, Tensor], two: dict[str, Tensor], part: str) -> bool:
    return any(not torch.equal(one[name], two[name]) for name in one if part in name)


def test_by_default_nothing_happens(config: AlbertConfig) -> None:
    encoder = encoder_of(config)
    assert weight_hook(Strategies(), encoder.depths_of) is None
    options = parameter_options(Strategies(), encoder, encoder.depths_of())
    assert {(t.scale, t.decay, t.opens, t.bound) for t in options.values()} == {(1.0, 1.0, None, None)}
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.full((2, 2), 7.0)
    optimizer = torch.optim.SGD([{"params": [weight], "scale": 0.3}])
    unfreeze(optimizer, 0)
    project(optimizer)
    assert attenuate(Strategies(), [weight], 7.0) == 1.0
    assert torch.equal(weight.grad, torch.full((2, 2), 7.0))
    assert torch.equal(weight.detach(), torch.ones(2, 2))
    assert optimizer.param_groups[0]["scale"] == 0.3


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"layer_decay_rate": 0.5}, "attention"),
    ({"depth_factors": (0.0, 0.0, 1.0, 2.0)}, "attention"),
    ({"scale_embedding": 0.1}, "word_embeddings"),
    ({"layer_weight_decay": 3.0}, "attention"),
    ({"unfreeze_steps": 10}, "attention"),
    ({"bounds": "view"}, "attention"),
    ({"bounds": "project", "bound_max": 0.02}, "attention"),
    ({"squash": "tanh", "squash_temperature": 1e-3}, "attention"),
    ({"squash": "softplus", "squash_temperature": 1e-3}, "attention"),
    ({"cold_factor": 2.0}, "attention"),
]


@pytest.mark.parametrize("sharing", ["all", "none"])
@pytest.mark.parametrize(("changes", "part"), CHANGES, ids=lambda value: "+".join(value) if value else "")
def test_each_strategy_changes_training(
    config: AlbertConfig, changes: dict[str, Any], part: str, sharing: Sharing
) -> None:
    plain, changed = train(Strategies(), config, sharing), train(Strategies(**changes), config, sharing)
    assert differ(plain, changed, part)


def test_each_field_is_among_them() -> None:
    assert {name for changes, _ in CHANGES for name in changes} == {field.name for field in fields(Strategies)}


@pytest.mark.parametrize(("one", "two"), [({"bound_max": 0.01}, {"bound_max": 1.0}), ({"bound_max": 0.64}, {})])
def test_bound_max_is_where_the_bounds_start(config: AlbertConfig, one: dict[str, Any], two: dict[str, Any]) -> None:
    assert differ(train(Strategies(bounds="view", **one), config), train(Strategies(bounds="view", **two), config), "")


@pytest.mark.parametrize("squash", ["tanh", "softplus"])
def test_the_squashing_temperature_matters(config: AlbertConfig, squash: Any) -> None:
    one, two = (train(Strategies(squash=squash, squash_temperature=t), config) for t in (1e-4, 1e-2))
    assert differ(one, two, "attention")


# layer-wise learning rate


def test_shared_the_passes_weigh_lambda_to_their_distance_from_the_last(config: AlbertConfig) -> None:
    powers = [0.5**3, 0.5**2, 0.5, 1.0]
    check_gradient(prepare(Strategies(layer_decay_rate=0.5), config), [4 * power / sum(powers) for power in powers])


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_the_weights_sum_up_to_the_passes_that_are_run(config: AlbertConfig, depth: int) -> None:
    powers = [0.5 ** (depth - 1 - d) for d in range(depth)]
    factors = [depth * power / sum(powers) for power in powers]
    encoder = prepare(Strategies(layer_decay_rate=0.5), config)
    backward(encoder, depth)
    untied = encoder_of(replace(config, num_hidden_layers=depth), "none")
    backward(untied)
    for watched in WATCHED:
        by_pass = [parameter(untied, watched, layer).grad for layer in range(depth)]
        expected = sum(s * g for s, g in zip(factors, by_pass, strict=True) if g is not None)
        torch.testing.assert_close(parameter(encoder, watched).grad, expected, rtol=1e-9, atol=1e-10)


def test_the_forward_is_the_very_same_and_so_are_recomputed_gradients(config: AlbertConfig) -> None:
    encoder, plain = prepare(Strategies(layer_decay_rate=0.5), config).float(), encoder_of(config).float()
    assert torch.equal(encoder(IDS), plain(IDS))
    backward(encoder)
    expected = parameter(encoder, WATCHED[0]).grad
    encoder.gradient_checkpointing = True
    backward(encoder)
    torch.testing.assert_close(parameter(encoder, WATCHED[0]).grad, expected)


def test_explicit_factors_multiply_the_powers(config: AlbertConfig) -> None:
    weights = [0.0, 2 * 0.5**2, 1 * 0.5, 3.0]
    strategies = Strategies(layer_decay_rate=0.5, depth_factors=(0.0, 2.0, 1.0, 3.0))
    check_gradient(prepare(strategies, config), [4 * weight / sum(weights) for weight in weights])


def test_unshared_each_layer_has_a_rate_and_its_gradient_is_left_alone(config: AlbertConfig) -> None:
    encoder = encoder_of(config, "none")
    strategies = Strategies(layer_decay_rate=0.5, depth_factors=(1.0, 1.0, 1.0, 3.0))
    assert weight_hook(strategies, encoder.depths_of) is None
    options = parameter_options(strategies, encoder, encoder.depths_of())
    assert [options[f"ffn.{layer}.widen.weight"].scale for layer in range(4)] == [0.125, 0.25, 0.5, 3.0]
    assert options["word_embeddings.weight"].scale == options["project.bias"].scale == 0.5**4
    assert options["pooler.weight"].scale == 1.0


def test_shared_and_unshared_are_one_under_plain_gradient_descent(config: AlbertConfig) -> None:
    """The sum of what the untied layers do is what the shared one does, up to the factor that Adam cancels."""
    strategies = Strategies(layer_decay_rate=0.5)
    shared, unshared = prepare(strategies, config), prepare(strategies, config, "none")
    backward(shared)
    backward(unshared)
    options = parameter_options(strategies, unshared, unshared.depths_of())
    for watched in WATCHED:
        half, name = watched.split(".", 1)
        names = [f"{half}.{layer}.{name}" for layer in range(4)]
        steps = sum(options[name].scale * unshared.get_parameter(name).grad for name in names)  # type: ignore[misc]
        factor = 4 / sum(options[name].scale for name in names)
        torch.testing.assert_close(parameter(shared, watched).grad, factor * steps, rtol=1e-9, atol=1e-10)


def test_groups_share_out_within_and_differ_between(config: AlbertConfig) -> None:
    config = replace(config, num_hidden_groups=2)
    encoder = prepare(Strategies(layer_decay_rate=0.5), config)
    options = parameter_options(Strategies(layer_decay_rate=0.5), encoder, encoder.depths_of())
    assert [options[f"attention.{group}.qkv.weight"].scale for group in (0, 1)] == [0.25, 1.0]
    for group, factors in ((0, [2 / 3, 4 / 3, 0, 0]), (1, [0, 0, 2 / 3, 4 / 3])):
        check_gradient(encoder, factors, block=group)


def test_a_name_that_the_model_lacks_is_refused(config: AlbertConfig) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.x: the model has no such parameter; give its names as"):
        parameter_options(Strategies(), encoder_of(config), {"encoder.x": (0,)})


# embedding rate and weight decay


def test_tables_and_nothing_else_have_the_embedding_rate(config: AlbertConfig) -> None:
    encoder = encoder_of(config)
    options = parameter_options(Strategies(scale_embedding=0.1, layer_decay_rate=0.5), encoder, encoder.depths_of())
    scaled = {name for name, tuned in options.items() if tuned.scale == 0.1 * 0.5**4}
    assert scaled == {f"{kind}_embeddings.weight" for kind in ("word", "position", "segment")}


def test_weight_decay_by_layer_collapses_to_the_mean_when_shared(config: AlbertConfig) -> None:
    """Without gradients, the shared weight ends where the untied copies end on average."""
    strategies = Strategies(layer_weight_decay=0.5)
    after: dict[str, list[Tensor]] = {}
    for sharing in ("all", "none"):
        encoder = encoder_of(config, sharing)  # type: ignore[arg-type]
        optimizer = adamw(
            encoder, weight_decay=0.4, parameter_options=parameter_options(strategies, encoder, encoder.depths_of())
        )
        for group in optimizer.param_groups:
            group["lr"] = 0.1
            for weight in group["params"]:
                weight.grad = torch.zeros_like(weight)
        optimizer.step()
        after[sharing] = [block.widen.weight.detach() for block in encoder.ffn]
    start = encoder_of(config).ffn[0].widen.weight.detach()
    for layer, weight in enumerate(after["none"]):
        torch.testing.assert_close(weight, start * (1 - 0.1 * 0.4 * 0.5 ** (3 - layer)))
    torch.testing.assert_close(after["all"][0], torch.stack(after["none"]).mean(0))


# unfreezing


@pytest.mark.parametrize(
    ("step", "factors"),
    [(0, [0, 0, 0, 1.0]), (5, [0, 0, 0.5, 1.0]), (15, [0, 0.5, 1.0, 1.0]), (30, [1.0] * 4), (40, [1.0] * 4)],
)
def test_shared_the_passes_open_one_after_the_other(config: AlbertConfig, step: int, factors: list[float]) -> None:
    check_gradient(prepare(Strategies(unfreeze_steps=40), config, step=step), factors)


def test_a_shallower_run_opens_from_its_own_last_pass(config: AlbertConfig) -> None:
    check_gradient(prepare(Strategies(unfreeze_steps=40), config), [0.0, 1.0], depth=2)


def test_unshared_a_closed_layer_stays_as_it_is_decay_included(config: AlbertConfig) -> None:
    strategies = Strategies(unfreeze_steps=4)
    start, one, five = (train(strategies, config, "none", steps) for steps in (0, 1, 5))
    for layer in range(4):
        assert differ(start, one, f"attention.{layer}.") is (layer == 3)
        assert differ(start, five, f"attention.{layer}.")
    assert not differ(start, one, "embeddings")
    assert differ(start, five, "embeddings")
    assert differ(start, one, "heads")


def test_unshared_the_rate_of_a_layer_rises_in_a_straight_line(config: AlbertConfig) -> None:
    encoder, strategies = encoder_of(config, "none"), Strategies(unfreeze_steps=40, layer_decay_rate=0.5)
    optimizer = adamw(
        encoder, weight_decay=0.1, parameter_options=parameter_options(strategies, encoder, encoder.depths_of())
    )
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for step, opened in (
        (0, [0, 0, 0, 1]),
        (5, [0, 0, 0.5, 1]),
        (15, [0, 0.5, 1, 1]),
        (40, [1] * 4),
        (5, [0, 0, 0.5, 1]),
    ):
        unfreeze(optimizer, step)
        scales = [groups[id(block.widen.weight)]["scale"] for block in encoder.ffn]
        assert scales == [share * 0.5 ** (3 - layer) for layer, share in enumerate(opened)]


def test_when_all_is_open_there_is_no_hook_left(config: AlbertConfig) -> None:
    depths_of = encoder_of(config).depths_of
    assert weight_hook(Strategies(unfreeze_steps=4), depths_of, 3) is not None
    assert weight_hook(Strategies(unfreeze_steps=4), depths_of, 4) is None


# bounds


def clamped(encoder: Encoder, bounds: list[float]) -> Encoder:
    """An untied copy in which the matrices of every layer are clamped for good."""
    copy = encoder_of(encoder.config, "none")
    with torch.no_grad():
        for layer, bound in enumerate(bounds):
            for block in (copy.attention[layer], copy.ffn[layer]):
                for weight in block.parameters():
                    if weight.dim() >= 2:
                        weight.clamp_(-bound, bound)
    return copy


def test_shared_each_pass_sees_the_weight_within_its_own_bound(config: AlbertConfig) -> None:
    bounds = [0.16, 0.08, 0.04, 0.02]  # 2^4 × 0.02 / 2^(l+1)
    encoder = prepare(Strategies(bounds="view"), config)
    untied = clamped(encoder, bounds)
    torch.testing.assert_close(encoder(IDS), untied(IDS), rtol=0, atol=1e-12)
    backward(encoder)
    backward(untied)
    for watched in WATCHED:
        weight = parameter(encoder, watched)
        by_pass = [parameter(untied, watched, layer).grad for layer in range(4)]
        inside = [(weight.abs() <= bound) | (weight.dim() < 2) for bound in bounds]
        expected = sum(g * mask for g, mask in zip(by_pass, inside, strict=True) if g is not None)
        torch.testing.assert_close(weight.grad, expected, rtol=1e-9, atol=1e-10)


def test_unshared_every_layer_is_put_back_within_its_bound_after_each_step(config: AlbertConfig) -> None:
    after = train(Strategies(bounds="view", bound_max=0.16), config, "none", steps=2)
    for layer, bound in enumerate((0.08, 0.04, 0.02, 0.01)):
        assert after[f"encoder.ffn.{layer}.widen.weight"].abs().max() <= bound
        assert after[f"encoder.attention.{layer}.norm.weight"].max() > bound, "LayerNorms are not bounded"
    assert after["encoder.ffn.3.widen.weight"].abs().max() == 0.01


@pytest.mark.parametrize("masters", [False, True])
def test_shared_the_projection_takes_the_bound_of_the_first_pass(config: AlbertConfig, masters: bool) -> None:
    after = train(Strategies(bounds="project", bound_max=0.0625), config, masters=masters)
    assert after["encoder.ffn.0.widen.weight"].abs().max() == 0.03125
    assert after["encoder.word_embeddings.weight"].abs().max() > 0.03125, "tables are not bounded"


def test_the_projected_weights_are_those_of_a_step_clamped_by_hand(config: AlbertConfig) -> None:
    free = train(Strategies(), config, steps=1)
    bound = train(Strategies(bounds="project", bound_max=0.04), config, steps=1)
    name = "encoder.ffn.0.widen.weight"
    torch.testing.assert_close(bound[name], free[name].clamp(-0.02, 0.02))
    assert differ(bound, free, name)


def test_the_default_bound_of_the_last_layer_is_one_standard_deviation() -> None:
    assert strategies_for_model(Strategies(bounds="view"), 12, 0.02).bound_max == 2**12 * 0.02
    with pytest.raises(ConfigError, match=r"bound_max=None is not a number yet; call strategies_for_model"):
        parameter_options(Strategies(bounds="project"), nn.Linear(2, 2), {"weight": (0,)})
