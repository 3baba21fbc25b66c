"""Leaving bad steps out, and noticing a run that does not learn."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from litebert.errors import ConfigError
from litebert.train.averaging import Average
from litebert.train.guard import CollapseDetector, PlateauDetector, StepGuard


def guarded(**settings: int) -> tuple[nn.Linear, torch.optim.Optimizer, StepGuard]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, StepGuard({"model": model, "optimizer": optimizer}, **settings)


def step(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_going_back_restores_weights_and_the_optimizer_to_the_bit() -> None:
    model, optimizer, guard = guarded(snapshot_every=2)
    for number in range(5):
        guard.snapshot_if_due(number)
        if number == 4:
            expected = model.weight.clone(), optimizer.state[model.weight]["exp_avg"].clone()
        step(model, optimizer)
    step(model, optimizer)
    assert guard.roll_back(5, "loss nan") == 4
    assert torch.equal(model.weight, expected[0])
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], expected[1])
    step(model, optimizer)  # and the held copy is not changed by going on
    assert guard.roll_back(6, "loss nan") == 4
    assert torch.equal(model.weight, expected[0])
    assert guard.skipped == [5, 6]


def test_an_average_goes_back_with_the_weights_it_is_of() -> None:
    model, optimizer, _ = guarded()
    average = Average(model, 0.5)
    guard = StepGuard({"model": model, "optimizer": optimizer, "average": average})
    guard.snapshot_if_due(0)
    before = {name: value.clone() for name, value in average.weights.items()}
    step(model, optimizer)
    average.update(1)
    assert not torch.equal(average.weights["weight"], before["weight"])
    guard.roll_back(1, "loss nan")
    assert all(torch.equal(average.weights[name], before[name]) for name in before)
    assert guard.done == 0


@pytest.mark.parametrize(
    ("losses", "last", "bad"),
    [
        ([5.0] * 10, 6.9, False),
        ([5.0] * 10, 7.1, True),
        ([5.0] * 10, float("nan"), True),
        ([], 11.0, False),
        ([5.0] * 200 + [3.0] * 200, 5.1, True),
    ],
)
def test_a_spike_is_two_nats_over_what_was_usual(losses: list[float], last: float, bad: bool) -> None:
    guard = guarded()[2]
    assert not any(guard.problem_of(loss, 1.0) for loss in losses)
    assert bool(guard.problem_of(last, 1.0)) == bad


def test_a_gradient_that_is_not_finite_is_a_problem() -> None:
    assert guarded()[2].problem_of(1.0, float("inf")) == "gradient norm inf"


def test_after_an_expected_jump_a_higher_loss_is_no_spike() -> None:
    guard = guarded()[2]
    guard.problem_of(3.0, 1.0)
    guard.reset_mean()
    assert guard.problem_of(7.0, 1.0) is None


def test_its_state_travels_through_json() -> None:
    _, _, guard = guarded()
    guard.snapshot_if_due(0)
    guard.problem_of(1 / 3, 1.0)
    guard.roll_back(0, "loss nan")
    guard.problem_of(1 / 7, 1.0)
    other = guarded()[2]
    other.load_state(json.loads(json.dumps(guard.state())))
    assert other.state() == guard.state()
    assert other.skipped == [0]


def test_too_many_bad_steps_close_together_end_the_run() -> None:
    guard = guarded(max_skipped=2)[2]
    guard.snapshot_if_due(0)
    for number in (5, 300, 301):
        guard.roll_back(number, "loss nan")
    with pytest.raises(ConfigError, match="lower --learning-rate"):
        guard.roll_back(302, "loss nan")


def told(losses: list[float], steps: int = 200) -> list[str]:
    plateau = PlateauDetector(unigram_loss=7.0, steps=steps, remedy="try a higher --learning-rate")
    return [advice for loss in losses if (advice := plateau.update(loss))]


def test_a_loss_that_stays_near_the_unigram_loss_is_called_stuck_once_with_a_remedy() -> None:
    assert told([6.2] * 399) == []  # not yet
    advice = told([6.2] * 800)
    assert len(advice) == 1
    assert "stays at 6.20, where token frequencies alone give 7.00" in advice[0]
    assert "try a higher --learning-rate" in advice[0]


def test_a_loss_that_falls_or_has_fallen_is_not_called_stuck() -> None:
    assert told([9.0 - number * 0.002 for number in range(1500)]) == []
    assert told([3.0] * 800) == []


def test_a_model_that_has_just_changed_is_given_time() -> None:
    plateau = PlateauDetector(unigram_loss=7.0, steps=200, remedy="")
    for number in range(2000):
        if number % 300 == 0:
            plateau.reset()
        assert plateau.update(6.2) is None


def heard(collapse: CollapseDetector, losses: list[float], start: int = 0) -> list[str | None]:
    """The verdict after every step."""
    verdicts = []
    for done, loss in enumerate(losses, start=start + 1):
        collapse.update(done, loss)
        verdicts.append(collapse.verdict)
    return verdicts


def test_a_loss_at_the_prior_is_a_collapse_after_two_fifths_of_the_steps() -> None:
    verdicts = heard(CollapseDetector(0.69, 1000), [0.69] * 1000)
    assert verdicts[:399] == [None] * 399
    assert verdicts[399] == "the loss of the last 100 steps is 0.690, where the same answer for all gives 0.690"
    assert all(verdicts[399:])


def test_a_short_run_is_heard_for_a_hundred_steps_at_least() -> None:
    verdicts = heard(CollapseDetector(0.69, 120), [0.69] * 120)
    assert [verdict is not None for verdict in verdicts] == [False] * 99 + [True] * 21


@pytest.mark.parametrize("slope", [0.0005, 0.0001])
def test_a_falling_loss_is_no_collapse(slope: float) -> None:
    assert not any(heard(CollapseDetector(0.69, 1000), [0.69 - slope * number for number in range(1000)]))


def test_one_that_begins_to_learn_late_is_cleared() -> None:
    verdicts = heard(CollapseDetector(0.69, 1000), [0.7] * 450 + [0.4] * 550)
    assert verdicts[449] is not None
    assert verdicts[-1] is None


def test_noise_around_the_prior_does_not_hide_a_collapse() -> None:
    assert heard(CollapseDetector(0.69, 1000), [0.5, 0.9] * 500)[-1] is not None


@pytest.mark.parametrize("stop", [1, 99, 100, 430, 1005])
def test_a_resumed_run_comes_to_the_same_verdicts(stop: int) -> None:
    losses = [0.69 + 0.01 * (number % 3) for number in range(1009)]
    whole = heard(CollapseDetector(0.69, 1009), losses)
    first, second = CollapseDetector(0.69, 1009), CollapseDetector(0.69, 1009)
    heard(first, losses[:stop])
    second.load_state(json.loads(json.dumps(first.state())))
    assert heard(second, losses[stop:], start=stop) == whole[stop:]
