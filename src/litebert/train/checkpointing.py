"""Everything a run needs to go on, written so that a crash at any moment leaves a good checkpoint behind.

checkpoints/step-00000100/PART.safetensors   the tensors of a part: model, optimizer, ...
                          state.json         step, settings, the caller's state, and where each tensor belongs
                          sha256.json        of all these
checkpoints/best          the name of the one with the lowest score; never deleted
checkpoints/latest        the newest one's name; moved last
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from litebert.errors import CheckpointError, DataError
from litebert.files import atomic_write, file_sha256, read_json, write_json

FORMAT = 2
NAME = re.compile(r"step-(\d{8,})")
SET_ASIDE = ".replaced-"  # the former folder of a step that is being written again


class Stateful(Protocol):
    """A model, an optimizer, an average of weights: anything that gives its state and takes it back.

    A state is made of tensors, numbers, text and None, in dicts, lists and tuples of any depth.
    """

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Checkpoints:
    """The checkpoints of one run. Saving takes a copy and returns; a thread writes it. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        parts: Mapping[str, Stateful],
        *,
        keep: int = 2,
        writes: bool = True,
        background: bool = True,
    ) -> None:
        """With ranks, every one calls `save`, because gathering a state takes them all, and one of them `writes`."""
        self.folder, self.parts, self.keep, self.writes, self.background = folder, dict(parts), keep, writes, background
        self.state: dict[str, Any] = {}
        """What the caller gave to `save`, as it stands in the checkpoint loaded last."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except CheckpointError as error:
            if kind is None:
                raise
            warnings.warn(str(error), stacklevel=2)  # what ended the block must not be hidden by this

    def save(
        self,
        step: int,
        settings: Mapping[str, Any],
        *,
        state: Mapping[str, Any] | None = None,
        score: float | None = None,
    ) -> None:
        """Keep this moment. `settings` must match at resume; `state` is JSON; of scores, the lowest is the best."""
        self.wait()  # one at a time: a second copy would double the memory
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in self.parts}
        trees = {name: _flatten(part.state_dict(), name, tensors[name]) for name, part in self.parts.items()}
        if not self.writes:
            return
        content = {"format": FORMAT, "step": step, "score": score, "settings": dict(settings)}
        text = json.dumps(content | {"state": dict(state or {}), "parts": trees}, ensure_ascii=False)
        self._writing = self._writer.submit(self._write, step, _copies(tensors), text)
        if not self.background:
            self.wait()

    def wait(self) -> None:
        """Return when the last save is on disk; raise what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait, then end the thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def load_latest(self, settings: Mapping[str, Any]) -> int:
        """Restore the newest undamaged checkpoint and return its step; 0 when there is none."""
        self.wait()
        return self._load(self._newest_first(), settings)

    def load_best(self, settings: Mapping[str, Any]) -> int:
        """Restore the checkpoint with the lowest score, or the newest where none has a score; return its step."""
        self.wait()
        best = self._pointer("best")
        return self._load(sorted(self._newest_first(), key=lambda folder: _step_of(folder) != best), settings)

    def _write(self, step: int, tensors: Mapping[str, dict[str, Tensor]], state_json: str) -> None:
        """Write to a temporary folder, flush it, rename it, then move the pointers."""
        final = self.folder / f"step-{step:08d}"
        temporary = self.folder / f".{final.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
            temporary.mkdir()
            for part, values in tensors.items():
                safetensors.torch.save_file(values, temporary / f"{part}.safetensors")
            (temporary / "state.json").write_text(state_json, encoding="utf-8")
            write_json(temporary / "sha256.json", {path.name: file_sha256(path) for path in temporary.iterdir()})
            for path in (*temporary.iterdir(), temporary):
                _sync(path)
            if final.exists():
                final.replace(self.folder / f"{SET_ASIDE}{final.name}")
            temporary.replace(final)
            _sync(self.folder)
            best = self._best()
            if best is not None:
                atomic_write(self.folder / "best", f"step-{best:08d}\n")
            atomic_write(self.folder / "latest", final.name + "\n")
            _sync(self.folder)
        except (OSError, SafetensorError, DataError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"{final}: cannot be written ({error}); check free space and permissions: "
                "the previous checkpoint is untouched"
            ) from error
        self._forget(step, best)

    def _tidy(self) -> None:
        """Clear away what a killed save left; a folder that it had set aside and not yet replaced comes back."""
        for folder in self.folder.glob(f"{SET_ASIDE}step-*"):
            if not (self.folder / folder.name.removeprefix(SET_ASIDE)).exists():
                folder.replace(self.folder / folder.name.removeprefix(SET_ASIDE))
        for pattern in (f"{SET_ASIDE}*", ".step-*"):
            for folder in self.folder.glob(pattern):
                shutil.rmtree(folder)
        for pointer in (*self.folder.glob(".latest.*"), *self.folder.glob(".best.*")):
            pointer.unlink()

    def _forget(self, step: int, best: int | None) -> None:
        """Keep the newest and the best. What lies ahead of `step` belongs to a run that has since gone back."""
        steps = sorted(_step_of(folder) for folder in self._folders())
        kept = {*[old for old in steps if old <= step][-self.keep :], best}
        former = self.folder / f"{SET_ASIDE}step-{step:08d}"
        for folder in (former, *(folder for folder in self._folders() if _step_of(folder) not in kept)):
            shutil.rmtree(folder, ignore_errors=True)  # one that stays for now does no harm

    def _best(self) -> int | None:
        """The step with the lowest score of those on disk: the best is always among them."""
        scores = []
        for folder in self._folders():
            try:
                score = read_json(folder / "state.json").get("score")
            except CheckpointError:  # a damaged one is nobody's best
                continue
            if score is not None and math.isfinite(score):
                scores.append((score, _step_of(folder)))
        return min(scores)[1] if scores else None

    def _pointer(self, name: str) -> int | None:
        """The step that `latest` or `best` names, if it does."""
        try:
            match = NAME.fullmatch((self.folder / name).read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError):  # absent or damaged: the folders speak for themselves
            return None
        return int(match[1]) if match else None

    def _folders(self) -> list[Path]:
        """Every checkpoint; one set aside by a save that was killed before it put another in its place counts too."""
        found = {path.name: path for path in self.folder.glob("*step-*")}
        names = [name for name in found if NAME.fullmatch(name.removeprefix(SET_ASIDE))]
        return [found[name] for name in names if name.removeprefix(SET_ASIDE) not in found.keys() - {name}]

    def _newest_first(self) -> list[Path]:
        """By step; what lies ahead of `latest` comes last: the run had gone back behind it."""
        latest = self._pointer("latest")
        ahead = float("inf") if latest is None else latest
        return sorted(self._folders(), key=lambda folder: (_step_of(folder) > ahead, -_step_of(folder)))

    def _load(self, folders: Sequence[Path], settings: Mapping[str, Any]) -> int:
        for folder in folders:
            try:
                content, tensors = _read(folder)
            except (CheckpointError, OSError, SafetensorError) as error:
                warnings.warn(
                    f"checkpoint {folder.name} is damaged ({error}); going back to the one before it", stacklevel=3
                )
                continue
            self._check(folder, content, settings)
            for name, part in self.parts.items():
                try:
                    part.load_state_dict(_unflatten(content["parts"][name], tensors[name]))
                except (RuntimeError, ValueError, KeyError) as error:
                    raise CheckpointError(
                        f"{folder}: its {name} does not fit this run ({error}); use the same settings, or another --out"
                    ) from error
            self.state = content["state"]
            return int(content["step"])
        if folders:
            raise CheckpointError(
                f"{self.folder}: every checkpoint there is damaged; start again without --resume, in another --out"
            )
        return 0

    def _check(self, folder: Path, content: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        given = json.loads(json.dumps(dict(settings)))  # as they were written: a tuple is a list there
        changed = [
            f"{key} (was {value!r}, is {given.get(key)!r})"
            for key, value in content["settings"].items()
            if given.get(key) != value
        ]
        if set(content["parts"]) != set(self.parts):
            changed.append(f"parts (was {sorted(content['parts'])}, is {sorted(self.parts)})")
        if changed:
            raise CheckpointError(
                f"{folder}: made with other settings: {', '.join(changed)}; use the same, or another --out"
            )


def _step_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """All of a checkpoint, every byte of it compared with its hash."""
    for name, sha256 in read_json(folder / "sha256.json").items():
        if file_sha256(folder / name) != sha256:
            raise CheckpointError(f"{name} does not match its sha256.json")
    content = read_json(folder / "state.json")
    if content.get("format") != FORMAT:
        raise CheckpointError(f"state.json has format {content.get('format')}, where {FORMAT} is read here")
    return content, {name: safetensors.torch.load_file(folder / f"{name}.safetensors") for name in content["parts"]}


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A state as JSON, with its tensors by name in `tensors`. Number keys and tuples come back as what they were."""
    if isinstance(value, Tensor):
        name = path.partition(".")[2] or path  # the part's own name is that of its file
        name = f"{name}#{len(tensors)}" if name in tensors else name
        tensors[name] = value.detach()
        return {"tensor": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, (int, str)) for key in value):
        return {"dict": [[key, _flatten(item, f"{path}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_flatten(item, f"{path}.{number}", tensors) for number, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    raise CheckpointError(
        f"{path}: a {type(value).__name__} cannot be saved; "
        "keep tensors, numbers, text and None there, in lists, tuples and dicts with text or numbers as keys"
    )


def _unflatten(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content].clone()  # what was read is the file itself, mapped; the file will be deleted
    if kind == "dict":
        return {key: _unflatten(item, tensors) for key, item in content}
    items = [_unflatten(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def _copies(tensors: Mapping[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Copies in the computer's memory, each on its own: the next step may change the originals."""
    copies = {part: {name: _copy(tensor) for name, tensor in named.items()} for part, named in tensors.items()}
    for device in {tensor.device for named in tensors.values() for tensor in named.values() if tensor.is_cuda}:
        torch.cuda.synchronize(device)
    return copies


def _copy(tensor: Tensor) -> Tensor:
    if tensor.is_cuda:  # into pinned memory, so that all of them travel without waiting for each other
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    return tensor.to("cpu", copy=True).contiguous()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
