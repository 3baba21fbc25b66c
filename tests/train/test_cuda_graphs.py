"""Which steps are recorded and replayed, and that it makes no difference."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.train.graphing import ComputedGraphs


@dataclass
class Rows:
    values: Tensor
    name: str = ""

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values}

    def setting(self) -> Hashable:
        return self.name


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.idle = nn.Linear(3, 2), nn.Linear(1, 1)

    def loss(self, rows: Rows) -> Mapping[str, Tensor]:
        loss = self.layer(rows.values).square().mean()
        return {"loss": loss, "rows": torch.tensor(float(len(rows.values)))}

    def gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.parameters()]

    def forget(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None


def batch(rows: int, seed: int = 0, name: str = "") -> Rows:
    return Rows(torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)), name)


@pytest.fixture
def model() -> Sum:
    return Sum()


@pytest.fixture
def recorder(model: Sum) -> ComputedGraphs:
    return ComputedGraphs(list(model.parameters()))


def test_figures_and_gradients_are_those_of_the_loss(model: Sum, recorder: ComputedGraphs) -> None:
    for seed, rows in enumerate((4, 5, 4, 4, 5, 5, 4)):
        model.forget()
        expected = model.loss(batch(rows, seed))
        expected["loss"].backward()
        wanted = [None if slope is None else slope.clone() for slope in model.gradients()]
        model.forget()
        found = recorder(model.loss, batch(rows, seed))
        if found["loss"].requires_grad:
            found["loss"].backward()
        assert {name: value.item() for name, value in found.items()} == {
            name: pytest.approx(value.item()) for name, value in expected.items()
        }
        for slope, right in zip(model.gradients(), wanted, strict=True):
            assert (slope is None) == (right is None)
            assert slope is None or right is None or torch.allclose(slope, right)
    assert recorder.replays == 5  # all but the first of each shape


def test_a_shape_is_replayed_from_its_second_time_on(model: Sum, recorder: ComputedGraphs) -> None:
    counts = []
    for rows, name in ((4, ""), (5, ""), (4, "other"), (4, ""), (4, "other"), (5, "")):
        model.forget()
        recorder(model.loss, batch(rows, name=name))
        counts.append(recorder.replays)
    assert counts == [0, 0, 0, 1, 2, 3]


def test_beyond_the_limit_nothing_is_recorded(
    model: Sum, recorder: ComputedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder.cache, "limit", 2)
    for rows in (1, 2, 3, 1, 2, 3, 3):
        model.forget()
        recorder(model.loss, batch(rows))
    assert recorder.replays == 2


def test_what_is_added_to_other_gradients_is_not_replayed(model: Sum, recorder: ComputedGraphs) -> None:
    for _ in range(3):
        model.forget()
        recorder(model.loss, batch(4))
    before = [None if slope is None else slope.clone() for slope in model.gradients()]
    recorder(model.loss, batch(4))["loss"].backward()
    assert recorder.replays == 2
    for slope, half in zip(model.gradients(), before, strict=True):
        assert slope is None or half is None or torch.allclose(slope, 2 * half)


def test_when_memory_runs_out_while_recording_all_goes_on_without(
    model: Sum, recorder: ComputedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    for _ in range(2):
        model.forget()
        recorder(model.loss, batch(4))
    with monkeypatch.context() as patch:
        patch.setattr(ComputedGraphs, "_record", full)
        for _ in range(2):
            model.forget()
            assert recorder(model.loss, batch(5))["loss"].requires_grad
    for rows in (4, 5, 4):
        model.forget()
        assert recorder(model.loss, batch(rows))["loss"].requires_grad
    assert recorder.replays == 1
