"""What clients leave with the server for a while: classifiers that they taught, lists that they search in."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from litebert.errors import CheckpointError
from litebert.files import atomic_write
from litebert.serve.limits import ApiError, Limits

ID = re.compile(r"[0-9a-f]{32}")
CURRENT = "current"
OWNER_ONLY = 0o700
"""Rights of folders that hold what clients sent."""
T = TypeVar("T")


@dataclass(frozen=True)
class TextList:
    """A list to search in."""

    model: str
    """Whose vectors these are, as it is served."""
    texts: list[str]
    vectors: np.ndarray
    """(N, D), each of length 1."""


class Serializer(Protocol[T]):
    """Writes to a folder and reads from it."""

    def write(self, value: T, folder: Path) -> None: ...
    def read(self, folder: Path) -> T: ...


class Store(ABC, Generic[T]):
    """For as long as they are used, and not too many. May be asked from any thread."""

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind, self.limits = kind, limits
        self._lock = threading.RLock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._ages())

    def room(self) -> None:
        """Refuse one more than there may be."""
        with self._lock:
            ages = self._ages()
        if len(ages) >= self.limits.jobs:
            soonest = max(1.0, self.limits.job_lifetime_s - max(ages.values()))
            raise ApiError(
                429, f"there are {len(ages)} {self.kind} already, which is all this server keeps; delete one, or wait "
                "until one that nobody uses is forgotten", "too_many_jobs", retry_after_s=soonest,
            )  # fmt: skip

    def add(self, value: T) -> str:
        name = secrets.token_hex(16)
        with self._lock:
            self.room()
            self._put(name, value)
        return name

    def replace(self, name: str, value: T) -> None:
        with self._lock:
            self._check(name)
            self._put(name, value)

    def get(self, name: str) -> T:
        with self._lock:
            self._check(name)
            return self._take(name)

    def delete(self, name: str) -> None:
        with self._lock:
            self._check(name)
            self._drop(name)

    def _check(self, name: str) -> None:
        if not ID.fullmatch(name) or name not in self._ages():
            raise self.missing(name)

    def missing(self, name: str) -> ApiError:
        return ApiError(
            404, f"id={name[:64]!r}: there is none of the {self.kind} with this id; it was deleted, or nobody used it "
            f"for {self.limits.job_lifetime_s:.0f} s: make it again", "not_found", "id",
        )  # fmt: skip

    def _ages(self) -> dict[str, float]:
        """Seconds since each was used; those that nobody used for long are forgotten."""
        ages = self._all_ages()
        for name in [name for name, age in ages.items() if age > self.limits.job_lifetime_s]:
            self._drop(name)
            del ages[name]
        return ages

    @abstractmethod
    def _all_ages(self) -> dict[str, float]: ...
    @abstractmethod
    def _put(self, name: str, value: T) -> None: ...
    @abstractmethod
    def _take(self, name: str) -> T: ...
    @abstractmethod
    def _drop(self, name: str) -> None: ...


class MemoryStore(Store[T]):
    def __init__(self, kind: str, limits: Limits) -> None:
        super().__init__(kind, limits)
        self._kept: dict[str, tuple[T, float]] = {}

    def _all_ages(self) -> dict[str, float]:
        now = time.monotonic()
        return {name: now - used for name, (_, used) in self._kept.items()}

    def _put(self, name: str, value: T) -> None:
        self._kept[name] = value, time.monotonic()

    def _take(self, name: str) -> T:
        value = self._kept[name][0]
        self._put(name, value)
        return value

    def _drop(self, name: str) -> None:
        del self._kept[name]


class FolderStore(Store[T]):
    """Shared by all processes that have the folder: one of them writes `ID/VERSION/…`, then `ID/current` names it."""

    def __init__(self, kind: str, limits: Limits, folder: Path, keeper: Serializer[T]) -> None:
        super().__init__(kind, limits)
        self._folder, self._keeper = folder, keeper
        self._recent: OrderedDict[str, T] = OrderedDict()
        """By version; reading takes a while."""
        folder.parent.mkdir(OWNER_ONLY, parents=True, exist_ok=True)  # else parents get the usual rights
        folder.mkdir(OWNER_ONLY, exist_ok=True)

    def _all_ages(self) -> dict[str, float]:
        now, found = time.time(), {}
        for folder in self._folder.iterdir():
            try:
                found[folder.name] = now - (folder / CURRENT).stat().st_mtime
            except OSError:  # another process writes it, or deletes it
                continue
        return {name: age for name, age in found.items() if ID.fullmatch(name)}

    def _put(self, name: str, value: T) -> None:
        version, home = secrets.token_hex(16), self._folder / name
        before = self._version(name)
        self._keeper.write(value, home / version)
        atomic_write(home / CURRENT, version)
        if before is not None:
            shutil.rmtree(home / before, ignore_errors=True)
        self._remember(version, value)

    def _take(self, name: str) -> T:
        for _ in range(2):  # a version may be replaced while it is read
            version = self._version(name)
            if version is None:
                break
            try:
                value = self._recent[version] if version in self._recent else self._keeper.read(
                    self._folder / name / version)  # fmt: skip
                (self._folder / name / CURRENT).touch()
            except (CheckpointError, OSError):
                continue
            self._remember(version, value)
            return value
        raise self.missing(name)

    def _drop(self, name: str) -> None:
        (self._folder / name / CURRENT).unlink(missing_ok=True)
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _version(self, name: str) -> str | None:
        try:
            version = (self._folder / name / CURRENT).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return version if ID.fullmatch(version) else None

    def _remember(self, version: str, value: T) -> None:
        self._recent[version] = value
        self._recent.move_to_end(version)
        while len(self._recent) > self.limits.jobs:
            self._recent.popitem(last=False)


def classifier_record(name: str, adapted: Any, limits: Limits) -> dict[str, Any]:
    """What a client hears of a classifier that it taught."""
    evidence = adapted.evidence
    mistakes = [{"text": text, "label": label, "taken_for": other} for text, label, other in evidence.mistakes]
    return {
        "id": name, "model": f"adapted-{name}", "classes": adapted.labels,
        "examples": evidence.examples, "accuracy_left_out": evidence.accuracy, "margin": evidence.margin,
        "chance": evidence.majority_share, "with_twice": evidence.projected_accuracy,
        "label_names": evidence.label_names, "hints": list(evidence.remarks), "mistakes": mistakes,
        "seconds": evidence.seconds, "expires_in_s": limits.job_lifetime_s,
    }  # fmt: skip
