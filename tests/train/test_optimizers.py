"""Who is decayed, and how the rate rises and falls."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from litebert.errors import ConfigError
from litebert.predict import Model
from litebert.train.optimizers import adamw, warmup_linear


def test_biases_and_layer_norms_are_not_decayed(model: Model) -> None:
    optimizer = adamw(model.albert, weight_decay=0.1)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for module in model.albert.modules():
        for name, parameter in module.named_parameters(recurse=False):
            spared = isinstance(module, nn.LayerNorm) or name == "bias"
            assert decay[id(parameter)] == (0.0 if spared else 0.1), name


def test_every_trainable_parameter_is_there_once(model: Model) -> None:
    frozen = model.encoder.word_embeddings.weight.requires_grad_(False)
    given_ = [p for group in adamw(model.albert, weight_decay=0.1).param_groups for p in group["params"]]
    assert len({id(p) for p in given_}) == len(given_) == len(list(model.albert.parameters())) - 1
    assert all(p is not frozen for p in given_)


def test_decay_shrinks_matrices_and_leaves_biases_when_there_is_no_gradient() -> None:
    layer = nn.Linear(3, 3)
    nn.init.ones_(layer.weight)
    nn.init.ones_(layer.bias)
    optimizer = adamw(layer, weight_decay=0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    layer.weight.grad, layer.bias.grad = torch.zeros(3, 3), torch.zeros(3)
    optimizer.step()
    assert torch.allclose(layer.weight, torch.full((3, 3), 0.95))
    assert torch.equal(layer.bias.detach(), torch.ones(3))


def test_the_rate_rises_for_a_tenth_of_the_steps_then_falls_in_a_straight_line() -> None:
    rate = warmup_linear(1.0, 100)
    assert [rate(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert [rate(step) for step in (10, 55, 99)] == pytest.approx([1.0, 0.5, 1 / 90])


@given(peak=st.floats(1e-8, 10), steps=st.integers(1, 500), share=st.floats(0, 1))
def test_the_rate_stays_above_zero_and_reaches_its_peak_once(peak: float, steps: int, share: float) -> None:
    rates = [warmup_linear(peak, steps, share)(step) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(peak)
    assert min(rates) > 0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


@pytest.mark.parametrize("peak", [0.0, -1e-3, math.nan, math.inf])
def test_a_rate_that_cannot_train_is_refused(peak: float) -> None:
    with pytest.raises(ConfigError, match=f"learning_rate={peak} must be above 0"):
        warmup_linear(peak, 10)
