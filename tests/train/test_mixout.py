"""Mixout: entries of a matrix that are now and then those it began with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from litebert.model import AlbertConfig, Encoder
from litebert.train.mixout import Mixout

ORIGIN = torch.arange(12.0).reshape(3, 4)
NOW = ORIGIN + torch.linspace(-2, 2, 12).reshape(3, 4)


def mixed(share: float, draws: int) -> Tensor:  # (draws, 3, 4)
    torch.manual_seed(0)
    mixout = Mixout({"w": ORIGIN}, share)
    found = []
    for _ in range(draws):
        mixout.forget()
        found.append(mixout("w", NOW))
    return torch.stack(found)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_mean_over_many_draws_is_the_weight(share: float) -> None:
    draws = mixed(share, 4000)
    error = draws.std(0) / 4000**0.5
    assert ((draws.mean(0) - NOW).abs() <= 5 * error + 1e-4).all()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_an_entry_is_the_origin_so_often_and_else_stretched_about_it(share: float) -> None:
    draws = mixed(share, 1000)
    stretched = ORIGIN + (NOW - ORIGIN) / (1 - share)
    is_origin, is_stretched = (torch.isclose(draws, value.expand_as(draws)) for value in (ORIGIN, stretched))
    assert (is_origin ^ is_stretched).all()
    assert is_origin.float().mean().item() == pytest.approx(share, abs=0.02)
    assert is_origin.float().std(0).min() > 0  # every entry has its turns


def test_all_passes_of_a_step_see_one_mixture_and_the_next_step_another() -> None:
    torch.manual_seed(0)
    mixout = Mixout({"w": ORIGIN, "v": ORIGIN}, 0.5)
    first = mixout("w", NOW)
    assert torch.equal(mixout("w", NOW), first)
    assert not torch.equal(mixout("v", NOW), first)
    mixout.forget()
    assert not torch.equal(mixout("w", NOW), first)


def test_without_gradients_the_weight_is_as_it_is() -> None:
    mixout = Mixout({"w": ORIGIN}, 0.5)
    with torch.no_grad():
        assert mixout("w", NOW) is NOW
    with torch.inference_mode():
        assert mixout("w", NOW) is NOW


def test_biases_and_what_is_new_are_as_they_are() -> None:
    mixout = Mixout({"b": torch.zeros(4)}, 0.5)
    bias, new = torch.ones(4), torch.ones(2, 2)
    assert mixout("b", bias) is bias
    assert mixout("new", new) is new


def test_the_origin_does_not_move_with_the_weight() -> None:
    weight = ORIGIN.clone()
    mixout = Mixout({"w": weight}, 0.5)
    weight += 100
    seen = mixout("w", weight)
    assert (torch.isclose(seen, ORIGIN) | torch.isclose(seen, ORIGIN + 200)).all()


def test_only_entries_that_are_seen_learn() -> None:
    torch.manual_seed(0)
    weight = NOW.clone().requires_grad_()
    seen = Mixout({"w": ORIGIN}, 0.5)("w", weight)
    seen.sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, (~torch.isclose(seen, ORIGIN)) * 2.0)


def test_an_encoder_that_has_learned_nothing_yet_is_unchanged(tiny_config: AlbertConfig) -> None:
    encoder, ids = Encoder(tiny_config), torch.tensor([[5, 6, 7, 8]])
    before = encoder(ids)
    mixout = Mixout(dict(encoder.named_parameters()), 0.5)
    encoder.weight_at = lambda name, weight, depth, passes: mixout(name, weight)
    assert torch.allclose(encoder(ids), before, atol=1e-6)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight += 0.1 * torch.randn_like(weight)
    seen = encoder(ids)
    with torch.no_grad():
        assert not torch.allclose(encoder(ids), seen, atol=1e-3)
