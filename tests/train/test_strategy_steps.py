"""What strategies do to gradients and steps whatever the layer, and which settings they refuse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from litebert.errors import ConfigError
from litebert.train.strategies import Strategies, attenuate, strategies_for_model
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("squash", "formula"),
    [
        ("tanh", lambda g, t: t * math.tanh(g / t)),
        ("softplus", lambda g, t: t * math.copysign(math.log1p(math.exp(abs(g) / t)) - math.log(2), g)),
    ],
)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_squashing_follows_its_formula(
    squash: Any, formula: Callable[[float, float], float], temperature: float
) -> None:
    entries = [-30.0, -1.0, -0.01, 0.0, 0.3, 2.0, 50.0]
    weight = nn.Parameter(torch.zeros(7, dtype=torch.double))
    weight.grad = torch.tensor(entries, dtype=torch.double)
    attenuate(Strategies(squash=squash, squash_temperature=temperature), [weight], 0.0)
    assert weight.grad.tolist() == pytest.approx([formula(entry, temperature) for entry in entries], abs=1e-8)


def test_softplus_keeps_the_digits_of_small_entries() -> None:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([1e-9])
    attenuate(Strategies(squash="softplus"), [weight], 0.0)
    assert weight.grad.item() == pytest.approx(0.5e-9, rel=1e-6)


def test_the_cold_factor_shortens_the_rate_and_leave_the_gradient() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert attenuate(Strategies(cold_factor=0.2), [weight], 5.0) == 0.5
    assert weight.grad.tolist() == [3.0, 4.0]


def test_adam_would_cancel_a_factor_of_the_gradient_but_not_the_cold_factor() -> None:
    moved = {}
    for label, factor, cold in (("plain", 1.0, 0.0), ("gradient", 0.25, 0.0), ("rate", 1.0, 3.0)):
        weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.double))
        optimizer = torch.optim.Adam([weight], lr=0.1, eps=1e-12)
        weight.grad = factor * torch.ones(2, 2, dtype=torch.double)
        optimizer.param_groups[0]["lr"] *= attenuate(Strategies(cold_factor=cold), [weight], 1.0)
        optimizer.step()
        moved[label] = weight[0, 0].item()
    assert moved["gradient"] == pytest.approx(moved["plain"])
    assert moved["rate"] == pytest.approx(moved["plain"] / 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_decay_rate": 0.0}, "layer_decay_rate=0.0 must be above 0 and at most 1; try 0.9"),
        ({"layer_decay_rate": 1.1}, "layer_decay_rate=1.1 must be above 0 and at most 1; try 0.9"),
        ({"layer_weight_decay": -1.0}, "layer_weight_decay=-1.0 must be above 0; leave it out"),
        ({"squash_temperature": 0.0}, "squash_temperature=0.0 must be above 0; leave it out"),
        ({"squash_temperature": math.inf}, "squash_temperature=inf must be above 0"),
        ({"bound_max": 0.0}, "bound_max=0.0 must be above 0; leave it out"),
        ({"scale_embedding": -0.1}, "scale_embedding=-0.1 must be 0 or more"),
        ({"cold_factor": math.nan}, "cold_factor=nan must be 0 or more"),
        ({"unfreeze_steps": -1}, "unfreeze_steps=-1 must be 0 or more"),
        ({"depth_factors": (0.0, 0.0)}, r"depth_factors=\(0.0, 0.0\) must be 0 or more and not all 0"),
        ({"depth_factors": (1.0, -1.0)}, r"depth_factors=\(1.0, -1.0\) must be 0 or more"),
        ({"bounds": "box"}, "bounds='box' must be one of none, view, project"),
        ({"squash": "relu"}, "squash='relu' must be one of none, tanh, softplus"),
    ],
)
def test_impossible_settings_are_refused_with_the_rule(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Strategies(**changes)


def test_as_many_factors_as_passes_are_wanted() -> None:
    with pytest.raises(ConfigError, match="depth_factors has 2 numbers for 4 passes; give 4"):
        strategies_for_model(Strategies(depth_factors=(1.0, 2.0)), 4, 0.02)


def test_the_example_in_the_docs_runs() -> None:
    text = (REPOSITORY / "docs" / "strategies.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["optimizer"].param_groups[0]["lr"] == 0.0, "the embeddings are still closed"
    assert names["albert"].encoder.weight_at is not None
