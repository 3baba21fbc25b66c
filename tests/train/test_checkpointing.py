"""Checkpoints: whole or absent, damage is noticed, and training does not wait for them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from litebert.errors import CheckpointError
from tests.train.running import FILES, SETTINGS, Run, names, same


class Holder:
    """A part whose state is whatever it is given."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.state}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.state = state_dict["held"]


def through(value: Any, folder: Path) -> Any:
    """A value after it was saved and loaded."""
    Run(folder, parts={"held": Holder(value)}).save(1)
    again = Holder()
    assert Run(folder, parts={"held": again}).load() == 1
    return again.state


# --- what comes back --------------------------------------------------------------------------------------------------


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first = Run(tmp_path).to(3)
    second = Run(tmp_path)
    second.step(99)  # somewhere else entirely
    assert second.load() == 3
    for run in (first, second):
        run.step(3)
        run.step(4)
    assert same(first.weights(), second.weights())


def test_what_was_restored_does_not_hold_on_to_the_files(tmp_path: Path) -> None:
    """safetensors maps a file into memory, and optimizers keep what they are given."""
    Run(tmp_path).to(3)
    run = Run(tmp_path)
    run.load()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert run.optimizer.state_dict()["state"]


def test_without_a_checkpoint_a_run_starts_at_zero(tmp_path: Path) -> None:
    assert Run(tmp_path / "none").load() == 0


def test_the_callers_state_comes_back(tmp_path: Path) -> None:
    state = {"skipped": [3, 7], "micro_batch": 16, "note": "Übung", "scale": 0.1, "none": None}
    Run(tmp_path).save(1, state=state)
    fresh = Run(tmp_path)
    assert fresh.checkpoints.state == {}
    fresh.load()
    assert fresh.checkpoints.state == state


def test_a_state_changed_after_saving_is_saved_as_it_was(tmp_path: Path) -> None:
    run, state = Run(tmp_path), {"skipped": [1]}
    run.checkpoints.save(1, SETTINGS, state=state)
    state["skipped"].append(2)
    run.load()
    assert run.checkpoints.state == {"skipped": [1]}


def test_another_part_is_saved_and_restored(tmp_path: Path) -> None:
    average = nn.Linear(2, 2)
    Run(tmp_path, parts={"average": average}).save(1)
    other = nn.Linear(2, 2)
    Run(tmp_path, parts={"average": other}).load()
    assert torch.equal(average.weight, other.weight)
    file = tmp_path / "step-00000001" / "average.safetensors"
    assert set(safetensors.torch.load_file(file)) == {"weight", "bias"}


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, 0.1, float("inf"), "text", [], {}, (), [1, (2.5, None)], {"a": {3: "x", "3": "y"}},
        {"betas": (0.9, 0.999), "lr": 1e-3}, {"muon": {"state": {0: {"step": 4}}}, "adamw": {"state": {}}},
    ],
    ids=str,
)  # fmt: skip
def test_values_that_are_no_tensors_come_back_as_they_were(value: Any, tmp_path: Path) -> None:
    again = through(value, tmp_path)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
def test_tensors_keep_their_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    value = torch.ones(shape, dtype=dtype)
    again = through([value], tmp_path)[0]
    assert (again.dtype, again.shape) == (dtype, shape)
    assert torch.equal(again, value)


def test_tensors_that_share_memory_all_come_back(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    again = through({"whole": base, "same": base, "column": base[:, 1], "turned": base.T, "same.0": base[0]}, tmp_path)
    assert torch.equal(again["same"], base)
    assert torch.equal(again["column"], base[:, 1])
    assert torch.equal(again["turned"], base.T)


def test_names_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    value = {"a.b": {"c": torch.tensor(1)}, "a": {"b.c": torch.tensor(2)}, 0: torch.tensor(3), "0": torch.tensor(4)}
    assert through(value, tmp_path) == value


class Both:
    """Two optimizers as one, as where matrices have another one than the rest."""

    def __init__(self, model: nn.Module) -> None:
        matrices, rest = ([p for p in model.parameters() if (p.dim() == 2) == flat] for flat in (True, False))
        self.each = {"matrices": torch.optim.SGD(matrices, 0.1, 0.9), "rest": torch.optim.AdamW(rest, 0.1)}

    def step(self) -> None:
        for optimizer in self.each.values():
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.each.values():
            optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {name: optimizer.state_dict() for name, optimizer in self.each.items()}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        for name, optimizer in self.each.items():
            optimizer.load_state_dict(state_dict[name])


def test_two_optimizers_in_one_part_go_on_bit_for_bit(tmp_path: Path) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    for run in (first, second):
        run.optimizer = run.checkpoints.parts["optimizer"] = Both(run.model)  # type: ignore[assignment]
    first.to(3)
    assert second.load() == 3
    for run in (first, second):
        run.step(3)
        run.step(4)
    assert same(first.weights(), second.weights())


def test_a_value_that_cannot_be_saved_is_refused_by_name(tmp_path: Path) -> None:
    run = Run(tmp_path, parts={"extra": Holder({"when": time.localtime, "x": 1})})
    with pytest.raises(CheckpointError, match=r"extra\.held\.when: a builtin_function_or_method cannot be saved; keep"):
        run.save(1)


def test_no_file_holds_a_pickle(tmp_path: Path) -> None:
    Run(tmp_path).to(1)
    assert names(tmp_path / "step-00000001") == sorted(FILES)
    for path in (tmp_path / "step-00000001").iterdir():
        start = path.read_bytes()[:9]
        assert start[:1] == b"{" or start[8:] == b"{"  # JSON, or safetensors: a length, then JSON


# --- in the background ------------------------------------------------------------------------------------------------


def test_what_is_saved_is_the_moment_of_the_call(tmp_path: Path) -> None:
    run = Run(tmp_path, width=20_000)  # large enough for the next steps to overtake the writing
    run.step(0)
    at_save = run.weights()
    run.checkpoints.save(1, SETTINGS)
    run.step(1)
    assert not same(run.weights(), at_save)
    assert run.load() == 1
    assert same(run.weights(), at_save)


@pytest.mark.parametrize("background", [True, False])
def test_training_is_the_same_whether_it_saves_or_not(tmp_path: Path, background: bool) -> None:
    saving, plain = Run(tmp_path, background=background), Run(tmp_path)
    for number in range(6):
        for run in (saving, plain):
            run.step(number)
        saving.checkpoints.save(number + 1, SETTINGS)
    saving.checkpoints.close()
    assert same(saving.weights(), plain.weights())


class Slow(Holder):
    """Says which thread reads it."""

    def state_dict(self) -> dict[str, Any]:
        return {"held": threading.current_thread() is threading.main_thread()}


def test_states_are_taken_by_the_thread_that_trains(tmp_path: Path) -> None:
    Run(tmp_path, parts={"slow": Slow()}).save(1)
    again = Holder()
    Run(tmp_path, parts={"slow": again}).load()
    assert again.state is True


def test_in_the_background_save_returns_before_the_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned, write, in_time = threading.Event(), safetensors.torch.save_file, []

    def write_later(*arguments: Any) -> None:
        in_time.append(returned.wait(timeout=20))
        write(*arguments)

    monkeypatch.setattr(safetensors.torch, "save_file", write_later)
    run = Run(tmp_path)
    run.checkpoints.save(1, SETTINGS)
    assert not (tmp_path / "latest").exists()
    returned.set()
    run.checkpoints.wait()
    assert in_time == [True, True]
    assert (tmp_path / "latest").exists()


def test_in_the_foreground_the_files_are_there_when_save_returns(tmp_path: Path) -> None:
    Run(tmp_path, background=False).checkpoints.save(1, SETTINGS)
    assert (tmp_path / "latest").exists()


def test_one_save_follows_another_without_loss(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=9)
    with run.checkpoints as checkpoints:
        for step in range(1, 6):
            checkpoints.save(step, SETTINGS)
    assert names(tmp_path) == ["latest", *(f"step-{step:08d}" for step in range(1, 6))]


def test_closing_leaves_no_thread(tmp_path: Path) -> None:
    with Run(tmp_path).checkpoints as checkpoints:
        checkpoints.save(1, SETTINGS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]
    assert (tmp_path / "latest").exists()


@pytest.mark.parametrize("then", ["save", "wait", "close", "load_latest", "leave"])
def test_a_failed_write_is_reported_by_the_next_call(tmp_path: Path, then: str) -> None:
    (tmp_path / "file").write_text("in the way")
    run = Run(tmp_path / "file" / "checkpoints")
    run.checkpoints.save(1, SETTINGS)
    calls = {
        "save": lambda: run.checkpoints.save(2, SETTINGS),
        "wait": run.checkpoints.wait,
        "close": run.checkpoints.close,
        "load_latest": run.load,
        "leave": lambda: run.checkpoints.__exit__(None, None, None),
    }
    with pytest.raises(CheckpointError, match=r"step-00000001: cannot be written \(.*Not a directory.*permissions"):
        calls[then]()
    run.checkpoints.close()  # once is enough


def test_a_failed_write_does_not_hide_what_ended_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def run() -> None:
        with Run(tmp_path / "file" / "checkpoints").checkpoints as checkpoints:
            checkpoints.save(1, SETTINGS)
            raise KeyError("mine")

    with pytest.warns(UserWarning, match="step-00000001: cannot be written"), pytest.raises(KeyError, match="mine"):
        run()


def test_a_rank_that_does_not_write_still_takes_part(tmp_path: Path) -> None:
    """Gathering a state that lies on several machines takes all of them."""

    class Counting(Holder):
        asked = 0

        def state_dict(self) -> dict[str, Any]:
            self.asked += 1
            return {}

    part = Counting()
    Run(tmp_path / "here", parts={"gathered": part}, writes=False).save(1)
    assert part.asked == 1
    assert not (tmp_path / "here").exists()


# --- which are kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    Run(tmp_path, keep=keep).save(1, 2, 10)
    assert names(tmp_path) == ["latest", *["step-00000001", "step-00000002", "step-00000010"][-keep:]]
    assert (tmp_path / "latest").read_text() == "step-00000010\n"


def test_the_best_is_kept_beside_the_newest(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=1)
    for step, score in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, float("nan"))):
        run.save(step, score=score)
    assert (tmp_path / "best").read_text() == "step-00000002\n"
    assert names(tmp_path) == ["best", "latest", "step-00000002", "step-00000005"]


def test_the_best_score_survives_a_resume(tmp_path: Path) -> None:
    Run(tmp_path, keep=1).save(1, score=1.0).save(2, score=2.0)
    again = Run(tmp_path, keep=1)
    assert again.load() == 2
    again.save(3, score=1.5)
    assert (tmp_path / "best").read_text() == "step-00000001\n"
    again.save(4, score=0.5)
    assert (tmp_path / "best").read_text() == "step-00000004\n"
    assert names(tmp_path) == ["best", "latest", "step-00000004"]


def test_the_best_can_be_restored(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=1)
    run.step(0)
    best = run.weights()
    run.save(1, score=1.0, state={"depth": 2})
    run.step(1)
    run.save(2, score=2.0, state={"depth": 4})
    fresh = Run(tmp_path)
    assert fresh.checkpoints.load_best(SETTINGS) == 1
    assert same(fresh.weights(), best)
    assert fresh.checkpoints.state == {"depth": 2}


def test_without_scores_the_best_is_the_newest(tmp_path: Path) -> None:
    Run(tmp_path).save(1, 2)
    assert Run(tmp_path).checkpoints.load_best(SETTINGS) == 2


def test_a_step_saved_again_after_going_back_takes_the_place_of_the_former(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=3)
    run.save(1, 2, state={"time": "first"})
    run.save(3, state={"time": "first"}, score=9.0)
    run.save(2, state={"time": "second"})
    assert names(tmp_path) == ["best", "latest", "step-00000001", "step-00000002", "step-00000003"]
    fresh = Run(tmp_path)
    assert fresh.load() == 2  # step 3 stays as the best so far, but the run went back behind it
    assert fresh.checkpoints.state == {"time": "second"}


def test_what_lay_ahead_of_a_run_that_went_back_is_deleted(tmp_path: Path) -> None:
    Run(tmp_path, keep=3).save(1, 2, 3, 2)
    assert names(tmp_path) == ["latest", "step-00000001", "step-00000002"]


@pytest.mark.parametrize("pointer", [b"", b"\xff\xfe", b"step-", b"step-00000000\n", b"../../elsewhere\n", None])
def test_a_damaged_pointer_loses_nothing(tmp_path: Path, pointer: bytes | None) -> None:
    Run(tmp_path).save(1, 2)
    (tmp_path / "latest").unlink() if pointer is None else (tmp_path / "latest").write_bytes(pointer)
    assert Run(tmp_path).load() == 2


# --- other runs' checkpoints ------------------------------------------------------------------------------------------


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    Run(tmp_path).to(1)
    with pytest.raises(CheckpointError, match=r"made with other settings: steps \(was '9', is '10'\); use the same"):
        Run(tmp_path).checkpoints.load_latest(SETTINGS | {"steps": "10"})


def test_settings_are_compared_as_they_are_written(tmp_path: Path) -> None:
    checkpoints = Run(tmp_path).checkpoints
    checkpoints.save(1, {"betas": (0.9, 0.98)})
    assert checkpoints.load_latest({"betas": (0.9, 0.98)}) == 1


def test_other_parts_are_refused(tmp_path: Path) -> None:
    Run(tmp_path).save(1)
    with pytest.raises(CheckpointError, match=r"parts \(was \['model', 'optimizer'\], is \['average', 'model', 'opt"):
        Run(tmp_path, parts={"average": Holder()}).load()


def test_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    Run(tmp_path).save(1)
    with pytest.raises(CheckpointError, match=r"(?s)its model does not fit this run \(.*size mismatch.*use the same"):
        Run(tmp_path, width=5).load()
