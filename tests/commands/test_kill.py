"""kill -9 at any moment, then --resume: the same weights, to the bit, as a run that nobody touched."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from litebert.commands import pretrain
from tests.commands.conftest import Flow
from tests.commands.test_pretrain import same, settings

IN_A_SAVE = 3
STEPS = 30


def run(flow: Flow, out: Path, resume: bool) -> None:
    os.close(2)  # its reports are nobody's business here
    os.open(os.devnull, os.O_WRONLY)
    config = settings(
        flow, out, steps=STEPS, save_every="2", resume=resume, validate_every=10, average=0.9, dropout=0.1
    )
    os._exit(pretrain.run(config))


def start(flow: Flow, out: Path) -> multiprocessing.process.BaseProcess:
    """A process of its own; forked, so that it need not import torch again."""
    resume = (out / "checkpoints" / "latest").exists()
    process = multiprocessing.get_context("fork").Process(target=run, args=(flow, out, resume))
    process.start()
    return process


def saving(out: Path) -> bool:
    return any((out / "checkpoints").glob(".step-*"))


def finished(out: Path) -> bool:
    return (out / "config.json").exists()


@pytest.fixture(scope="module")
def untouched(flow: Flow, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A whole run, and how long it took."""
    out = tmp_path_factory.mktemp("untouched") / "run"
    began = time.monotonic()
    process = start(flow, out)
    process.join()
    assert process.exitcode == 0
    return out, time.monotonic() - began


def resume_until_done(flow: Flow, out: Path) -> None:
    process = start(flow, out)
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("least_kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_bits(
    flow: Flow, untouched: tuple[Path, float], tmp_path: Path, least_kills: int
) -> None:
    """Kills at moments drawn uniformly over the time that a whole run takes, several in a row per run."""
    whole, seconds = untouched
    rng, kills, number = random.Random(0), 0, 0
    while kills < least_kills:
        out = tmp_path / f"run-{number}"
        number += 1
        while not finished(out) and kills < least_kills:
            process = start(flow, out)
            process.join(timeout=rng.uniform(0, seconds))
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                kills += not finished(out)
        if not finished(out):
            resume_until_done(flow, out)
        assert same(out, whole)
    assert kills >= least_kills


@pytest.mark.slow
def test_a_run_killed_inside_a_save_resumes_to_the_same_bits(
    flow: Flow, untouched: tuple[Path, float], tmp_path: Path
) -> None:
    inside = 0
    for number in range(10 * IN_A_SAVE):
        out = tmp_path / f"run-{number}"
        process = start(flow, out)
        saves = random.Random(number).randrange(1, 5)
        while process.is_alive() and saves:
            if saving(out):
                saves -= 1
                while saves and saving(out):
                    pass
        assert process.pid is not None
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        inside += saving(out)
        if not finished(out):
            resume_until_done(flow, out)
        assert same(out, untouched[0])
        if inside == IN_A_SAVE:
            return
    pytest.fail(f"only {inside} of the kills fell inside a save")
