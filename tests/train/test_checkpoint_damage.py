"""Checkpoints on disks that fail, in processes that are killed: a good one is always left."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from litebert.errors import CheckpointError
from tests.train.running import FILES, Run, names, same


def flip_a_bit(path: Path, position: int | None = None, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1 << bit
    path.write_bytes(content)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_one_flipped_bit_anywhere_is_noticed_and_the_previous_checkpoint_used(tmp_path: Path, file: str) -> None:
    run = Run(tmp_path).to(1)
    good = run.weights()
    run.to(2)
    path = tmp_path / "step-00000002" / file
    content, rng = path.read_bytes(), random.Random(file)
    for _ in range(40):
        flip_a_bit(path, rng.randrange(len(content)), rng.randrange(8))
        fresh = Run(tmp_path)
        with pytest.warns(UserWarning, match=r"checkpoint step-00000002 is damaged \(.*going back to the one before"):
            assert fresh.load() == 1
        assert same(fresh.weights(), good)
        path.write_bytes(content)
    assert Run(tmp_path).load() == 2


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("left", [None, 0.0, 0.5, 0.99], ids=["missing", "empty", "half", "nearly all"])
def test_a_missing_or_half_written_file_is_noticed(tmp_path: Path, file: str, left: float | None) -> None:
    Run(tmp_path).to(1).to(2)
    path = tmp_path / "step-00000002" / file
    content = path.read_bytes()
    path.unlink() if left is None else path.write_bytes(content[: int(len(content) * left)])
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        assert Run(tmp_path).load() == 1


def test_after_damage_the_run_goes_on_and_the_damaged_one_goes(tmp_path: Path) -> None:
    Run(tmp_path).to(1).to(4)
    flip_a_bit(tmp_path / "step-00000004" / "model.safetensors")
    run = Run(tmp_path)
    with pytest.warns(UserWarning, match="damaged"):
        assert run.load() == 1
    run.save(2)
    assert names(tmp_path) == ["latest", "step-00000001", "step-00000002"]


def test_when_all_are_damaged_the_run_says_so(tmp_path: Path) -> None:
    Run(tmp_path).to(1)
    flip_a_bit(tmp_path / "step-00000001" / "model.safetensors")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(CheckpointError, match="every checkpoint there is damaged; start again without --resume"),
    ):
        Run(tmp_path).load()


def test_a_checkpoint_of_another_format_is_not_used(tmp_path: Path) -> None:
    Run(tmp_path).save(1, 2)
    state = tmp_path / "step-00000002" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"format": 1}))
    hashes = tmp_path / "step-00000002" / "sha256.json"
    digest = subprocess.run(["sha256sum", state], capture_output=True, text=True, check=True).stdout.split()[0]
    hashes.write_text(json.dumps(json.loads(hashes.read_text()) | {"state.json": digest}))
    with pytest.warns(UserWarning, match="has format 1, where 2 is read here"):
        assert Run(tmp_path).load() == 1


# --- disks that fail --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting a small disk takes rights that this user lacks")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_leaves_the_former_usable(small_disk: Path) -> None:
    run = Run(small_disk, width=1000).to(1)
    good = run.weights()
    (small_disk / "filler").write_bytes(b"x" * 120_000)
    with pytest.raises(CheckpointError, match=r"step-00000002: cannot be written \(.*No space left.*untouched"):
        run.to(2)
    assert names(small_disk) == ["filler", "latest", "step-00000001"]
    fresh = Run(small_disk, width=1000)
    assert fresh.load() == 1
    assert same(fresh.weights(), good)
    (small_disk / "filler").unlink()
    run.to(2)
    assert names(small_disk) == ["latest", "step-00000001", "step-00000002"]


def test_a_folder_that_may_not_be_written_is_reported(small_disk: Path) -> None:
    Run(small_disk).save(1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    run = Run(small_disk)
    assert run.load() == 1
    with pytest.raises(CheckpointError, match=r"step-00000002: cannot be written \(.*Read-only.*permissions"):
        run.save(2)
    assert names(small_disk) == ["latest", "step-00000001"]


def limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that the write fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("limit", [100, 60_000, 100_000], ids=["state", "model", "optimizer"])
def test_a_write_that_fails_half_way_leaves_the_former_usable(tmp_path: Path, limit: int) -> None:
    good = Run(tmp_path, width=5000).to(1).weights()

    def fail() -> None:
        run = Run(tmp_path, width=5000)
        run.load()
        limit_files(limit)
        with pytest.raises(CheckpointError, match="step-00000002: cannot be written"):
            run.to(2)

    assert in_a_child(fail) == 0
    assert names(tmp_path) == ["latest", "step-00000001"]
    fresh = Run(tmp_path, width=5000)
    assert fresh.load() == 1
    assert same(fresh.weights(), good)


# --- processes that are killed ----------------------------------------------------------------------------------------


def in_a_child(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Run it in another process; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  the child must end here, never in pytest
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(event: int) -> None:
    """Let this process be killed at the n-th time that it opens, renames, makes or removes something."""
    seen = itertools.count(1)

    def hook(name: str, _: Any) -> None:
        if name in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove") and next(seen) == event:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.mark.parametrize(
    "again", [pytest.param(2, id="a new step"), pytest.param(1, id="the same step", marks=pytest.mark.slow)]
)
def test_a_kill_at_every_moment_of_a_save_leaves_a_good_one(tmp_path: Path, again: int) -> None:
    killed = True
    for event in itertools.count(1):
        folder = tmp_path / str(event)
        Run(folder, keep=1).save(1, state={"time": "first"}, score=2.0)

        def save(folder: Path = folder, event: int = event) -> None:
            run = Run(folder, keep=1)
            kill_at(event)
            run.save(again, state={"time": "second"}, score=1.0)

        killed = in_a_child(save) == -signal.SIGKILL
        run = Run(folder, keep=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing may be damaged
            assert (run.load(), run.checkpoints.state["time"]) in {(1, "first"), (again, "second")}
        run.save(3, score=3.0)
        assert names(folder) in [
            ["best", "latest", best, "step-00000003"] for best in ("step-00000001", "step-00000002")
        ]
        if not killed:
            break
    assert event > 20


def test_a_kill_at_a_random_moment_leaves_the_last_finished_save_usable(tmp_path: Path) -> None:
    announced, folder = tmp_path / "announced", tmp_path / "checkpoints"

    def save_for_ever() -> None:
        run = Run(folder, width=20_000, keep=1)
        for step in itertools.count(run.load() + 1):
            run.save(step, step)
            with announced.open("a") as file:
                file.write(f"{step}\n")

    loaded = 0
    for number in range(6):
        assert in_a_child(save_for_ever, kill_after=0.1 + 0.07 * number) == -signal.SIGKILL
        finished = [int(line) for line in announced.read_text().split()] if announced.exists() else [0]
        known = max(loaded, finished[-1])  # a child may be killed between its save and the announcement
        loaded = Run(folder, width=20_000, keep=1).load()
        assert loaded in (known, known + 1)
    assert loaded > 0


@pytest.mark.parametrize(
    "left", [".step-00000002/model.safetensors", ".latest.x1", ".best.x1", ".replaced-step-00000001/state.json"]
)
def test_what_a_killed_save_left_is_cleared_away_by_the_next(tmp_path: Path, left: str) -> None:
    run = Run(tmp_path).save(1)
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_bytes(b"half of i")
    assert Run(tmp_path).load() == 1
    run.save(3)
    assert names(tmp_path) == ["latest", "step-00000001", "step-00000003"]


def test_a_checkpoint_set_aside_by_a_killed_save_is_still_used(tmp_path: Path) -> None:
    Run(tmp_path, keep=3).save(1, state={"time": "first"})
    (tmp_path / "step-00000001").rename(tmp_path / ".replaced-step-00000001")
    run = Run(tmp_path, keep=3)
    assert run.load() == 1
    assert run.checkpoints.state == {"time": "first"}
    run.save(2)
    assert names(tmp_path) == ["latest", "step-00000001", "step-00000002"]
