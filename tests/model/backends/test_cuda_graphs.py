"""Answers that are replayed: when they are recorded, what they depend on. The capture itself needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from litebert.model import Albert, AlbertConfig
from litebert.model.backends.cuda_graphs import CudaGraphs, Recording, is_launch_bound


class Again:
    """In the place of a CUDA graph."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class ComputedRecorder(CudaGraphs):
    """All of a recorder but the capture."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = self.replayed = 0

    def _record(self, work: Callable[..., Tensor], inputs: Any) -> Recording:
        self.recorded += 1
        output = work(**inputs).clone()

        def again() -> None:
            self.replayed += 1
            output.copy_(work(**inputs))

        graph: Any = Again(again)
        return Recording(graph, inputs, output)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> ComputedRecorder:
    class Stream:
        def wait_event(self, event: object) -> None: ...
        def record_event(self) -> str:
            return "event"

    monkeypatch.setattr("torch.cuda.current_stream", lambda: Stream())
    return ComputedRecorder()


def double(x: Tensor) -> Tensor:
    return 2 * x


def test_the_second_time_records_and_later_ones_replay_with_other_numbers(recorder: ComputedRecorder) -> None:
    for number in range(5):
        assert (
            recorder.replay(double, {"x": torch.full((3,), float(number))}, "setting", 0).tolist() == [2.0 * number] * 3
        )
        assert (recorder.recorded, recorder.replayed) == (min(1, number), number)


@pytest.mark.parametrize("other", [{"x": torch.ones(4)}, {"x": torch.ones(3, dtype=torch.double)}, {}], ids=str)
def test_another_shape_type_or_setting_is_another_recording(
    recorder: ComputedRecorder, other: dict[str, Tensor]
) -> None:
    for given, setting in (({"x": torch.ones(3)}, "a"), (other or {"x": torch.ones(3)}, "a" if other else "b")):
        for _ in range(3):
            recorder.replay(double, given, setting, 0)
    assert (recorder.recorded, recorder.replayed) == (2, 4)


def test_an_answer_is_not_changed_by_the_next_one(recorder: ComputedRecorder) -> None:
    first, second, third = (recorder.replay(double, {"x": torch.full((1,), float(n))}, "s", 0) for n in (1, 2, 3))
    assert [first.item(), second.item(), third.item()] == [2.0, 4.0, 6.0]


def test_weights_that_stand_elsewhere_are_recorded_anew(recorder: ComputedRecorder) -> None:
    for places in ((1, 2), (1, 3)):
        for _ in range(3):
            recorder.replay(double, {"x": torch.ones(1)}, "s", places)
    assert (recorder.recorded, recorder.replayed) == (2, 4)


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("then", [torch.inference_mode, torch.no_grad, nullcontext])
def test_what_was_recorded_without_gradients_serves_all_who_want_none(
    recorder: ComputedRecorder, first: Any, then: Any
) -> None:
    with first():
        for _ in range(2):
            recorder.replay(double, {"x": torch.ones(1)}, "s", 0)
    (recording,) = recorder._cache.recordings.values()
    assert not recording.inputs["x"].is_inference()
    with then():
        for name, tensor in recording.inputs.items():
            tensor.copy_(torch.full((1,), 3.0))
            assert recording.inputs[name].item() == 3.0


def test_when_memory_runs_out_nothing_more_is_recorded(
    recorder: ComputedRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(work: object, inputs: object) -> Recording:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(recorder, "_record", full)
    assert [recorder.replay(double, {"x": torch.ones(1)}, "s", 0).item() for _ in range(5)] == [2.0] * 5
    assert not recorder._cache.recordings


def test_large_and_small_work(tiny_config: AlbertConfig) -> None:
    base = AlbertConfig(vocab_size=100)
    assert is_launch_bound(
        base, 8192 * 12 * 768**2 // (base.num_hidden_layers * base.hidden_size**2), base.num_hidden_layers
    )
    assert not is_launch_bound(base, 1 << 20, base.num_hidden_layers)
    assert is_launch_bound(tiny_config, 1 << 14, 2)


def test_on_a_cpu_and_while_learning_nothing_is_recorded(tiny_config: AlbertConfig) -> None:
    encoder = Albert(tiny_config).eval().encoder
    with torch.no_grad():
        assert not CudaGraphs().supports(encoder, {"input_ids": torch.zeros(1, 4, dtype=torch.long)}, None)
