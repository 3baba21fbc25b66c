"""Checkpoints: whole or absent, and damage is noticed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from litebert.errors import CheckpointError
from litebert.train.checkpointing import Checkpoints

SETTINGS = {"steps": "9", "seed": "0"}


class Run:
    """A small model under training, and its checkpoints."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.checkpoints = Checkpoints(folder, self.model, self.optimizer, keep)

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.optimizer.zero_grad()
        (self.model(torch.rand(2, 3, generator=generator)) * torch.rand(2, 4, generator=generator)).sum().backward()
        self.optimizer.step()

    def to(self, step: int) -> Run:
        """Train to a step and save there."""
        for number in range(step):
            self.step(number)
        self.checkpoints.save(step, SETTINGS)
        return self

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first = Run(tmp_path).to(3)
    second = Run(tmp_path)
    second.step(99)  # somewhere else entirely
    assert second.checkpoints.load_latest(SETTINGS) == 3
    for run in (first, second):
        run.step(3)
        run.step(4)
    assert same(first.weights(), second.weights())


def test_without_a_checkpoint_a_run_starts_at_zero(tmp_path: Path) -> None:
    assert Run(tmp_path / "none").checkpoints.load_latest(SETTINGS) == 0


@pytest.mark.parametrize("keep", [1, 2])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    run = Run(tmp_path, keep)
    for step in (1, 2, 10):
        run.checkpoints.save(step, SETTINGS)
    assert names(tmp_path) == ["latest", *["step-00000001", "step-00000002", "step-00000010"][-keep:]]
    assert (tmp_path / "latest").read_text() == "step-00000010\n"


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "sha256.json"])
def test_one_flipped_bit_is_noticed_and_the_previous_checkpoint_used(tmp_path: Path, file: str) -> None:
    run = Run(tmp_path).to(1)
    good = run.weights()
    run.to(2)
    flip_a_bit(tmp_path / "step-00000002" / file)
    fresh = Run(tmp_path)
    assert fresh.checkpoints.load_latest(SETTINGS) == 1
    assert same(fresh.weights(), good)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "sha256.json"])
def test_a_missing_file_is_noticed_and_the_previous_checkpoint_used(tmp_path: Path, file: str) -> None:
    Run(tmp_path).to(1).to(2)
    (tmp_path / "step-00000002" / file).unlink()
    assert Run(tmp_path).checkpoints.load_latest(SETTINGS) == 1


def test_when_all_are_damaged_the_run_says_so(tmp_path: Path) -> None:
    Run(tmp_path).to(1)
    flip_a_bit(tmp_path / "step-00000001" / "model.safetensors")
    with pytest.raises(CheckpointError, match="every checkpoint there is damaged; start again without --resume"):
        Run(tmp_path).checkpoints.load_latest(SETTINGS)


@pytest.mark.parametrize("call", [1, 2], ids=["model", "optimizer"])
def test_a_failure_in_the_middle_of_a_save_leaves_the_former_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    run = Run(tmp_path).to(1)
    good = run.weights()
    calls: list[int] = []
    save_file = safetensors.torch.save_file

    def fill_the_disk(tensors: dict[str, torch.Tensor], path: Path) -> None:
        calls.append(1)
        if len(calls) < call:
            save_file(tensors, path)
            return
        path.write_bytes(b"half of i")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", fill_the_disk)
    with pytest.raises(CheckpointError, match=r"step-00000002: cannot be written \(.*No space left.*untouched"):
        run.to(2)
    assert names(tmp_path) == ["latest", "step-00000001"]
    fresh = Run(tmp_path)
    assert fresh.checkpoints.load_latest(SETTINGS) == 1
    assert same(fresh.weights(), good)


def test_a_kill_in_the_middle_of_a_save_leaves_the_former_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path).to(1)

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", kill)
        with pytest.raises(KeyboardInterrupt):
            run.to(2)
    assert Run(tmp_path).checkpoints.load_latest(SETTINGS) == 1
    run.to(2)
    assert names(tmp_path) == ["latest", "step-00000001", "step-00000002"]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"step-00000001: cannot be written"):
        Run(tmp_path / "file").to(1)


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    Run(tmp_path).to(1)
    with pytest.raises(CheckpointError, match=r"made with other settings: steps \(was '9', is '10'\); use the same"):
        Run(tmp_path).checkpoints.load_latest(SETTINGS | {"steps": "10"})
