"""The moving average of the weights, and fp32 masters of a bf16 model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from litebert.errors import CheckpointError, ConfigError
from litebert.train.averaging import Average, MasterWeights
from litebert.train.optimizers import OPTIMIZERS, OptimizerName, adamw
from tests.train.test_optimizers import Fused, learn, rates


def test_the_average_follows_the_formula_and_forgets_the_start_sooner_at_first() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = Average(layer, decay=0.5)
    expected = 0.0
    for step in range(12):
        nn.init.constant_(layer.weight, float(step))
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    assert average.weights["weight"].item() == pytest.approx(expected)
    assert Average(layer, decay=0.9).decay == 0.9


def test_the_average_is_in_the_model_only_while_it_is_applied() -> None:
    model = Fused()
    average = Average(model, decay=0.9)
    learn(model, adamw(model, weight_decay=0.0), range(3))
    average.update(50)
    last = model.out.weight.detach().clone()
    with average.applied():
        assert torch.equal(model.out.weight, average.weights["out.weight"])
    assert torch.equal(model.out.weight, last)
    assert not torch.equal(last, average.weights["out.weight"])


def test_the_average_goes_on_exactly_after_loading() -> None:
    model = Fused()
    average, resumed = Average(model), Average(copy.deepcopy(model))
    learn(model, adamw(model, weight_decay=0.0), range(2))
    average.update(0)
    resumed.load_state_dict({name: value.clone() for name, value in average.state_dict().items()})
    for name, value in average.weights.items():
        assert torch.equal(resumed.weights[name], value)


def test_the_average_refuses_what_it_cannot_use() -> None:
    with pytest.raises(ConfigError, match=r"decay=1.0 must be at least 0 and below 1"):
        Average(nn.Linear(1, 1), decay=1.0)
    with pytest.raises(CheckpointError, match="the average is of another model: bias is in one only"):
        Average(nn.Linear(1, 1)).load_state_dict({"weight": torch.zeros(1, 1)})


def test_tiny_steps_vanish_in_bf16_and_not_with_masters() -> None:
    moved = {}
    for masters in (False, True):
        layer = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
        nn.init.ones_(layer.weight)
        plain = adamw(layer, weight_decay=0.0)
        optimizer = MasterWeights(plain) if masters else plain
        for _ in range(100):
            rates(optimizer, 1e-4)
            layer.weight.grad = torch.ones(4, 4, dtype=torch.bfloat16)
            optimizer.step()
        moved[masters] = 1 - layer.weight[0, 0].item()
    assert moved[False] == 0.0
    assert moved[True] == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masters_equal_training_in_fp32_on_the_same_gradients(name: OptimizerName) -> None:
    half, full = Fused().bfloat16(), Fused()
    with torch.no_grad():
        for one, two in zip(half.parameters(), full.parameters(), strict=True):
            two.copy_(one)
    wrapped, plain = MasterWeights(OPTIMIZERS[name](half, weight_decay=0.1)), OPTIMIZERS[name](full, weight_decay=0.1)
    for _ in range(3):
        for one, two in zip(half.parameters(), full.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.float()
        for optimizer in (wrapped, plain):
            rates(optimizer, 0.01)
            optimizer.step()
    for one, two in zip(half.parameters(), full.parameters(), strict=True):
        assert torch.equal(one, two.bfloat16())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_masters_go_on_exactly_after_loading(name: OptimizerName, steps_before: int) -> None:
    model = Fused().bfloat16()
    optimizer = MasterWeights(OPTIMIZERS[name](model, weight_decay=0.01))
    learn(model, optimizer, range(steps_before), rate=1e-3)
    other = Fused().bfloat16()
    resumed = MasterWeights(OPTIMIZERS[name](other, weight_decay=0.01))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    learn(model, optimizer, range(3, 6), rate=1e-3)
    learn(other, resumed, range(3, 6), rate=1e-3)
    masters = [[p for group in o.param_groups for p in group["params"]] for o in (optimizer, resumed)]
    for one, two in zip(*masters, strict=True):
        assert torch.equal(one, two)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_masters_forget_gradients_when_told() -> None:
    model = Fused().bfloat16()
    optimizer = MasterWeights(adamw(model, weight_decay=0.0))
    model(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_state_without_masters_is_refused() -> None:
    model = Fused()
    plain = adamw(model, weight_decay=0.0)
    learn(model, plain, range(1))
    wrapped = MasterWeights(adamw(Fused().bfloat16(), weight_decay=0.0))
    with pytest.raises(CheckpointError, match="has no fp32 master weights; resume with the same settings"):
        wrapped.load_state_dict(plain.state_dict())


def test_an_average_can_start_again() -> None:
    model = nn.Linear(2, 2)
    average = Average(model, 0.9)
    with torch.no_grad():
        model.weight.fill_(3.0)
    average.restart()
    assert torch.equal(average.weights["weight"], torch.full((2, 2), 3.0))
