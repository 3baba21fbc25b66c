"""The loop: what it asks of its parts and what it tells them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.train.loop import Step, reseed, train


class Slope(nn.Module):
    """One number to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def loss(self, target: float) -> Mapping[str, Tensor]:
        loss = (self.value - target).square().sum()
        return {"loss": loss, "error": loss.sqrt()}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def test_the_loss_goes_down() -> None:
    model = Slope()
    assert train(model, model.loss, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=100)
    assert model.value.item() == pytest.approx(1.0, abs=1e-3)


def test_a_loss_that_nothing_can_change_is_refused() -> None:
    model = Slope()
    with pytest.raises(ConfigError, match='"loss" depends on no parameter that learns'):
        train(model, lambda batch: {"loss": torch.ones(())}, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=1)


def test_a_loss_may_leave_the_gradients_itself() -> None:
    model = Slope()

    def loss(target: float) -> Mapping[str, Tensor]:
        found = model.loss(target)
        found["loss"].backward()
        return {name: value.detach() for name, value in found.items()}

    train(model, loss, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=1, clip_norm=9)
    assert model.value.item() == pytest.approx(0.2)


def test_hooks_hear_of_every_step_in_their_order() -> None:
    model, heard, order = Slope(), list[Step](), list[str]()
    hooks = [heard.append, lambda step: order.append("first"), lambda step: order.append("second")]
    train(model, model.loss, lambda step: [2.0], sgd(model), lambda step: 0.1 / (step + 1), steps=3, hooks=hooks)
    assert [step.done for step in heard] == [1, 2, 3]
    assert [step.total for step in heard] == [3, 3, 3]
    assert [step.learning_rate for step in heard] == pytest.approx([0.1, 0.05, 0.1 / 3])
    assert [step.stopping for step in heard] == [False, False, True]
    assert heard[0].metrics == {"loss": 4.0, "error": 2.0, "gradient_norm": 4.0}
    assert order == ["first", "second"] * 3


def test_batches_are_asked_for_by_step_from_the_start_given() -> None:
    model, asked = Slope(), list[int]()

    def batch(step: int) -> list[float]:
        asked.append(step)
        return [1.0]

    train(model, model.loss, batch, sgd(model), lambda step: 0.1, steps=7, start=4)
    assert asked == [4, 5, 6]


@pytest.mark.parametrize("attenuate", [None, lambda norm: 1.0], ids=["plain", "attenuated"])
def test_what_can_be_done_meanwhile_is_done_once_a_step_before_the_hooks(attenuate: Any) -> None:
    model, heard = Slope(), list[object]()
    train(
        model, model.loss, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=2, attenuate=attenuate,
        prefetch=heard.append, hooks=[lambda step: heard.append(("done", step.done, model.value.item() != 0))],
    )  # fmt: skip
    assert heard == [1, ("done", 1, True), 2, ("done", 2, True)]


def test_random_draws_depend_on_seed_and_step_alone() -> None:
    def draws(seed: int, start: int) -> list[float]:
        model, drawn = Slope(), list[float]()

        def loss(batch: float) -> Mapping[str, Tensor]:
            drawn.append(torch.rand(1).item())
            return model.loss(batch)

        train(model, loss, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=4, start=start, seed=seed)
        return drawn

    assert draws(0, start=2) == draws(0, start=0)[2:]
    assert len({*draws(0, start=0), *draws(1, start=0)}) == 8


@pytest.mark.parametrize(("clip_norm", "moved"), [(1.0, 1.0), (0.25, 0.25), (100.0, 20.0)])
def test_a_long_gradient_is_clipped_to_the_norm(clip_norm: float, moved: float) -> None:
    model = Slope()
    train(model, model.loss, lambda step: [10.0], sgd(model), lambda step: 1.0, steps=1, clip_norm=clip_norm)
    assert model.value.item() == pytest.approx(moved, rel=1e-4)


def test_gradients_do_not_pile_up_over_steps() -> None:
    model = Slope()
    train(model, lambda batch: {"loss": model.value.sum()}, lambda step: [0], sgd(model), lambda step: 0.1, steps=3)
    assert model.value.item() == pytest.approx(-0.3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 50.0])
def test_a_bad_loss_costs_its_step_and_nothing_else(value: float) -> None:
    """Not a number, or far above what was usual: the run goes back, leaves the batch out and comes to the end."""
    model, said, heard = Slope(), list[str](), list[Step]()

    def loss(step: int) -> Mapping[str, Tensor]:
        return {"loss": model.value.sum() + (value if step == 2 else 0.0)}

    assert train(
        model,
        loss,
        lambda step: [step],
        sgd(model),
        lambda step: 0.1,
        steps=5,
        hooks=[heard.append],
        on_skipped_step=said.append,
    )
    assert model.value.item() == pytest.approx(-0.4)
    assert len(said) == 1
    assert said[0].startswith("step 3: loss 49.80, where" if value == 50.0 else f"step 3: loss {value}")
    assert [step.done for step in heard] == [1, 2, 1, 2, 3, 4, 5]
    assert heard[4].metrics == {}


def test_a_run_that_never_recovers_stops_with_a_remedy_and_good_weights() -> None:
    model = Slope()

    def loss(step: int) -> Mapping[str, Tensor]:
        return {"loss": model.value.sum() * (float("nan") if step > 1 else 1.0)}

    with pytest.raises(ConfigError, match=r"step 8: loss nan, and 5 of the last 200 steps .* lower --learning-rate"):
        train(model, loss, lambda step: [step], sgd(model), lambda step: 0.1, steps=50)
    assert model.value.item() == 0.0  # as before the first step, the last state that was held


def test_micro_batches_add_up_to_their_step() -> None:
    whole, split, heard = Slope(), Slope(), list[Step]()
    shares = lambda model: lambda share: {"loss": (model.value - 1.0).square().sum() * share}  # noqa: E731
    train(whole, shares(whole), lambda step: [1.0], sgd(whole), lambda step: 0.1, steps=3)
    train(
        split,
        shares(split),
        lambda step: [0.5, 0.25, 0.25],
        sgd(split),
        lambda step: 0.1,
        steps=3,
        hooks=[heard.append],
    )
    assert split.value.item() == pytest.approx(whole.value.item())
    assert heard[0].metrics["loss"] == pytest.approx(1.0)


def test_a_step_that_ran_out_of_memory_is_tried_again_in_smaller_pieces() -> None:
    model, pieces = Slope(), [4.0]

    def loss(size: float) -> Mapping[str, Tensor]:
        if size > 1:
            raise torch.OutOfMemoryError
        return {"loss": model.value.sum() * size}

    def halve() -> bool:
        pieces[:] = [pieces[0] / 2] * (2 * len(pieces))
        return True

    train(
        model, loss, lambda step: pieces, sgd(model), lambda step: 0.1, steps=2, clip_norm=99.0, on_out_of_memory=halve
    )
    assert pieces == [1.0] * 4
    assert model.value.item() == pytest.approx(-0.8)


def test_memory_that_cannot_be_saved_is_an_error() -> None:
    def loss(batch: float) -> Mapping[str, Tensor]:
        raise torch.OutOfMemoryError

    model = Slope()
    with pytest.raises(torch.OutOfMemoryError):
        train(model, loss, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=1)


def test_the_rate_of_a_group_has_its_scale_and_the_attenuation_of_the_step() -> None:
    model = Slope()
    optimizer = torch.optim.SGD([{"params": [model.value], "scale": 0.5}], lr=0.0)
    norms = list[float]()

    def attenuate(norm: float) -> float:
        norms.append(norm)
        return 0.1

    loss = lambda batch: {"loss": 3 * model.value.sum()}  # noqa: E731
    train(model, loss, lambda step: [0], optimizer, lambda step: 2.0, steps=1, clip_norm=1.0, attenuate=attenuate)
    assert norms == [3.0]
    assert model.value.item() == pytest.approx(-2.0 * 0.5 * 0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step_it_falls_in(number: signal.Signals) -> None:
    model, heard = Slope(), list[Step]()

    def batch(step: int) -> list[float]:
        if step == 1:
            signal.raise_signal(number)
        return [1.0]

    finished = train(model, model.loss, batch, sgd(model), lambda step: 0.1, steps=9, hooks=[heard.append])
    assert not finished
    assert [step.stopping for step in heard] == [False, True]


def test_a_run_never_stops_without_telling_its_hooks_to_save() -> None:
    """A signal may fall between two hooks; the one that saves must still hear of the stop."""
    model, heard = Slope(), list[Step]()

    def slow_hook(step: Step) -> None:
        if step.done == 2:
            signal.raise_signal(signal.SIGINT)

    finished = train(
        model,
        model.loss,
        lambda step: [1.0],
        sgd(model),
        lambda step: 0.1,
        steps=9,
        hooks=[heard.append, slow_hook],
    )
    assert not finished
    assert [step.stopping for step in heard] == [False, False, True]


def test_a_signal_in_the_last_step_changes_nothing() -> None:
    model = Slope()

    def batch(step: int) -> list[float]:
        signal.raise_signal(signal.SIGINT)
        return [1.0]

    assert train(model, model.loss, batch, sgd(model), lambda step: 0.1, steps=1)


def test_a_second_sigterm_changes_nothing() -> None:
    """A scheduler and a launcher each send one; what was learned must still be saved."""
    model, heard = Slope(), list[Step]()

    def batch(step: int) -> list[float]:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        return [1.0]

    assert not train(model, model.loss, batch, sgd(model), lambda step: 0.1, steps=9, hooks=[heard.append])
    assert [step.stopping for step in heard] == [True]


def test_a_second_ctrl_c_stops_at_once() -> None:
    model, heard = Slope(), list[Step]()

    def batch(step: int) -> list[float]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return [1.0]

    with pytest.raises(KeyboardInterrupt):
        train(model, model.loss, batch, sgd(model), lambda step: 0.1, steps=9, hooks=[heard.append])
    assert heard == []


def test_signals_are_as_before_when_the_loop_is_done() -> None:
    model, before = Slope(), signal.getsignal(signal.SIGINT)
    train(model, model.loss, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=1)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_model_learns_in_training_mode() -> None:
    model = Slope().eval()
    train(model, model.loss, lambda step: [1.0], sgd(model), lambda step: 0.1, steps=1)
    assert model.training


def test_frozen_parameters_stay() -> None:
    model = nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    before = model.bias.item()
    loss = lambda batch: {"loss": model(batch).sum()}  # noqa: E731
    train(model, loss, lambda step: [torch.ones(1, 1)], sgd(model), lambda step: 0.1, steps=2)
    assert model.bias.item() == before


@pytest.mark.parametrize("seed", [0, 7, 2**62])
def test_reseeding_gives_the_draws_that_torch_gives(seed: int) -> None:
    torch.manual_seed(seed)
    expected = torch.rand(5)
    torch.rand(3)
    reseed(seed)
    assert torch.equal(torch.rand(5), expected)
