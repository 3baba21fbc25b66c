"""Everything a run needs to go on, written so that a crash at any moment leaves a good checkpoint behind.

checkpoints/step-00000100/{model,optimizer}.safetensors, state.json, sha256.json (of these three)
checkpoints/latest       the newest one's name; moved last
"""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from litebert.errors import CheckpointError, DataError
from litebert.files import atomic_write, read_json, sha256_of, write_json

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


class Checkpoints:
    """The checkpoints of one run, newest last."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int = 2) -> None:
        self.folder, self.model, self.optimizer, self.keep = folder, model, optimizer, keep

    def save(self, step: int, settings: dict[str, Any]) -> None:
        """Write to a temporary folder, flush it, rename it, then move `latest`. `settings` must match at resume."""
        final = self.folder / f"step-{step:08d}"
        temporary = self.folder / f".{final.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            tensors, scalars = _flatten(self.optimizer.state_dict())
            safetensors.torch.save_file(
                {k: v.contiguous() for k, v in self.model.state_dict().items()},
                temporary / "model.safetensors",
            )
            safetensors.torch.save_file(tensors, temporary / "optimizer.safetensors")
            write_json(temporary / "state.json", {"step": step, "settings": settings, "optimizer": scalars})
            write_json(temporary / "sha256.json", {name: sha256_of(temporary / name) for name in FILES})
            for path in temporary.iterdir():
                _sync(path)
            shutil.rmtree(final, ignore_errors=True)
            temporary.replace(final)
            _sync(self.folder)
        except (OSError, SafetensorError, DataError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"{final}: cannot be written ({error}); free some space: the previous checkpoint is untouched"
            ) from error
        atomic_write(self.folder / "latest", final.name + "\n")
        for old in self._names()[: -self.keep]:
            shutil.rmtree(self.folder / old, ignore_errors=True)

    def load_latest(self, settings: dict[str, Any]) -> int:
        """Restore the newest undamaged checkpoint and return its step; 0 when there is none."""
        for name in reversed(self._names()):
            folder = self.folder / name
            try:
                sha256 = read_json(folder / "sha256.json")
                if sha256 != {file: sha256_of(folder / file) for file in FILES}:
                    raise CheckpointError(f"{folder}: does not match its sha256.json")
                state = read_json(folder / "state.json")
            except (CheckpointError, OSError) as error:
                warnings.warn(f"checkpoint {name} is damaged ({error}); going back to the one before it", stacklevel=2)
                continue
            changed = [
                f"{key} (was {value!r}, is {settings.get(key)!r})"
                for key, value in state["settings"].items()
                if settings.get(key) != value
            ]
            if changed:
                raise CheckpointError(
                    f"{folder}: made with other settings: {', '.join(changed)}; use the same, or another --out"
                )
            self.model.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
            self.optimizer.load_state_dict(
                _unflatten(safetensors.torch.load_file(folder / "optimizer.safetensors"), state["optimizer"])
            )
            return int(state["step"])
        if self._names():
            raise CheckpointError(
                f"{self.folder}: every checkpoint there is damaged; start again without --resume, in another --out"
            )
        return 0

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("step-*") if path.is_dir())


def _flatten(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors, and the rest as JSON."""
    tensors = {f"{number}.{name}": value for number, values in state["state"].items() for name, value in values.items()}
    return tensors, {"param_groups": state["param_groups"]}


def _unflatten(tensors: dict[str, torch.Tensor], scalars: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    return {"state": state, "param_groups": scalars["param_groups"]}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
