"""Several processes learn what one learns, and losing one of them loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from litebert.commands import pretrain
from tests.commands.conftest import Flow
from tests.commands.test_pretrain import lines_of, same, settings

FLAGS = ["--preset", "tiny", "--layers", "4", "--hidden-size", "64", "--length", "64", "--batch-size", "8",
         "--device", "cpu", "--precision", "fp32",
         "--validation-rows", "4", "--validate-every", "10", "--warmup", "0.5"]  # fmt: skip


@contextmanager
def torchrun(flow: Flow, out: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "litebert"]
    command += ["pretrain", "--data", str(flow.shards), "--out", str(out), *FLAGS, *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("parallel", "optimizer", "sharing"),
    [
        ("ddp", "muon", "all"),
        pytest.param("ddp", "muon", "none", marks=pytest.mark.slow),
        pytest.param("fsdp", "adamw", "all", marks=pytest.mark.slow),
    ],
)
def test_two_processes_have_the_losses_of_one(
    flow: Flow, tmp_path: Path, parallel: str, optimizer: str, sharing: str
) -> None:
    """With gradient accumulation and unequal numbers of hidden tokens, over twenty steps and a change of depth."""
    flags = ("--steps", "20", "--micro-batch", "2", "--optimizer", optimizer, "--parallel", parallel)
    flags += ("--sharing", sharing)
    with torchrun(flow, tmp_path / "two", *flags) as process:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    alone = settings(
        flow, tmp_path / "one", steps=20, batch_size=8, optimizer=optimizer, sharing=sharing, validate_every=10,
        precision="fp32",
    )  # fmt: skip
    assert pretrain.run(alone) == 0
    for name in ("loss", "mlm_loss", "mlm_accuracy", "gradient_norm", "tokens"):
        one, two = ([line[name] for line in lines_of(tmp_path / run) if "loss" in line] for run in ("one", "two"))
        assert two == pytest.approx(one, rel=1e-5), name
    validation = [
        [line["validation_loss"] for line in lines_of(tmp_path / run) if "validation_loss" in line]
        for run in ("one", "two")
    ]
    assert validation[1] == pytest.approx(validation[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_stopped_run_of_two_processes_goes_on(flow: Flow, tmp_path: Path, parallel: str) -> None:
    flags = ("--steps", "12", "--save-every", "3", "--optimizer", "adamw", "--parallel", parallel)
    with torchrun(flow, tmp_path / "whole", *flags) as process:
        assert process.wait(timeout=300) == 0
    with torchrun(flow, tmp_path / "stopped", *flags) as process:
        wait_for_checkpoint(tmp_path / "stopped", process)
        os.killpg(process.pid, signal.SIGKILL)
    with torchrun(flow, tmp_path / "stopped", *flags, "--resume") as process:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    losses = [[line["loss"] for line in lines_of(tmp_path / run) if "loss" in line] for run in ("whole", "stopped")]
    assert losses[1] == losses[0]


@pytest.mark.slow
def test_a_lost_process_ends_the_run_with_a_checkpoint_to_go_on_from(flow: Flow, tmp_path: Path) -> None:
    """Nothing was saved before; what is saved when rank 1 is gone goes on as if it had never been."""
    flags = ("--steps", "300", "--save-every", "100000", "--validate-every", "300", "--average", "0.9")
    with torchrun(flow, tmp_path / "run", *flags) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(worker(process.pid, rank=1), signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
        assert process.returncode != 0
    latest = (tmp_path / "run" / "checkpoints" / "latest").read_text().strip()
    assert f"the run can go on from {latest}: start it again with --resume" in said
    assert 0 < int(latest.removeprefix("step-")) < 300
    for run, more in (("run", ["--resume"]), ("whole", [])):
        with torchrun(flow, tmp_path / run, *flags, *more) as process:
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, said
    losses = [[line["loss"] for line in lines_of(tmp_path / run) if "loss" in line] for run in ("whole", "run")]
    assert losses[1] == losses[0]
    assert same(tmp_path / "run", tmp_path / "whole")


def test_more_processes_than_sequences_are_refused(flow: Flow, tmp_path: Path) -> None:
    with torchrun(flow, tmp_path / "run", "--steps", "2", "--batch-size", "1") as process:
        said, _ = process.communicate(timeout=120)
    assert "1 sequences cannot be distributed over 2 processes; raise --batch-size" in said


def wait_for_checkpoint(out: Path, process: subprocess.Popen[str]) -> None:
    while not (out / "checkpoints" / "latest").exists():
        assert process.poll() is None
        time.sleep(0.02)


def worker(parent: int, rank: int) -> int:
    """The process that torchrun gave this rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(status[1]) == parent and f"RANK={rank}".encode() in environment:
            return int(folder.name)
    raise AssertionError("no such worker")
