"""State that clients keep on the server for a while: adapted classifiers and lists of texts to search."""

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
"""Permissions of folders with clients' data."""
T = TypeVar("T")


@dataclass(frozen=True)
class TextList:
    """A list of texts to search, with their vectors."""

    model: str
    """Name of the served model that computed the vectors."""
    texts: list[str]
    vectors: np.ndarray
    """(N, D), of unit length."""


class Serializer(Protocol[T]):
    """Writes values to folders and reads them."""

    def write(self, value: T, folder: Path) -> None: ...
    def read(self, folder: Path) -> T: ...


class Store(ABC, Generic[T]):
    """Holds a limited number of values; each expires when unused for long. Safe to use from any thread."""

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind, self.limits = kind, limits
        self._lock = threading.RLock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._ages())

    def check_capacity(self) -> None:
        """Raise if the store is full."""
        with self._lock:
            ages = self._ages()
        if len(ages) >= self.limits.jobs:
            retry_after_s = max(1.0, self.limits.job_lifetime_s - max(ages.values()))
            raise ApiError(
                429, f"there are {len(ages)} {self.kind} already, which is this server's limit; delete one, or wait "
                "until an unused one expires", "too_many_jobs", retry_after_s=retry_after_s,
            )  # fmt: skip

    def add(self, value: T) -> str:
        name = secrets.token_hex(16)
        with self._lock:
            self.check_capacity()
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
            raise self.not_found(name)

    def not_found(self, name: str) -> ApiError:
        return ApiError(
            404, f"id={name[:64]!r}: none of the {self.kind} has this id; it was deleted, or expired after "
            f"{self.limits.job_lifetime_s:.0f} s without use: create it again", "not_found", "id",
        )  # fmt: skip

    def _ages(self) -> dict[str, float]:
        """Seconds since each value was used, after deleting the expired ones."""
        ages = self._stored_ages()
        for name in [name for name, age in ages.items() if age > self.limits.job_lifetime_s]:
            self._drop(name)
            del ages[name]
        return ages

    @abstractmethod
    def _stored_ages(self) -> dict[str, float]: ...
    @abstractmethod
    def _put(self, name: str, value: T) -> None: ...
    @abstractmethod
    def _take(self, name: str) -> T: ...
    @abstractmethod
    def _drop(self, name: str) -> None: ...


class MemoryStore(Store[T]):
    def __init__(self, kind: str, limits: Limits) -> None:
        super().__init__(kind, limits)
        self._values: dict[str, tuple[T, float]] = {}

    def _stored_ages(self) -> dict[str, float]:
        now = time.monotonic()
        return {name: now - used for name, (_, used) in self._values.items()}

    def _put(self, name: str, value: T) -> None:
        self._values[name] = value, time.monotonic()

    def _take(self, name: str) -> T:
        value = self._values[name][0]
        self._put(name, value)
        return value

    def _drop(self, name: str) -> None:
        del self._values[name]


class FolderStore(Store[T]):
    """A folder shared by several processes. A writer creates `ID/VERSION/…`, then points `ID/current` to it."""

    def __init__(self, kind: str, limits: Limits, folder: Path, serializer: Serializer[T]) -> None:
        super().__init__(kind, limits)
        self._folder, self._serializer = folder, serializer
        self._cached_versions: OrderedDict[str, T] = OrderedDict()
        """Values by version, least recently used first; loading takes a while."""
        folder.parent.mkdir(OWNER_ONLY, parents=True, exist_ok=True)  # mkdir gives parents the default mode
        folder.mkdir(OWNER_ONLY, exist_ok=True)

    def _stored_ages(self) -> dict[str, float]:
        now, ages = time.time(), {}
        for folder in self._folder.iterdir():
            try:
                ages[folder.name] = now - (folder / CURRENT).stat().st_mtime
            except OSError:  # another process is creating or deleting it
                continue
        return {name: age for name, age in ages.items() if ID.fullmatch(name)}

    def _put(self, name: str, value: T) -> None:
        version, folder = secrets.token_hex(16), self._folder / name
        previous = self._version(name)
        self._serializer.write(value, folder / version)
        atomic_write(folder / CURRENT, version)
        if previous is not None:
            shutil.rmtree(folder / previous, ignore_errors=True)
        self._remember(version, value)

    def _take(self, name: str) -> T:
        for _ in range(2):  # another process may replace the version while it is read
            version = self._version(name)
            if version is None:
                break
            try:
                value = self._cached_versions[version] if version in self._cached_versions else self._serializer.read(
                    self._folder / name / version)  # fmt: skip
                (self._folder / name / CURRENT).touch()
            except (CheckpointError, OSError):
                continue
            self._remember(version, value)
            return value
        raise self.not_found(name)

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
        self._cached_versions[version] = value
        self._cached_versions.move_to_end(version)
        while len(self._cached_versions) > self.limits.jobs:
            self._cached_versions.popitem(last=False)


def classifier_record(name: str, adapted: Any, limits: Limits) -> dict[str, Any]:
    """What /adapt answers about a classifier."""
    evidence = adapted.evidence
    mistakes = [{"text": text, "label": label, "taken_for": other} for text, label, other in evidence.mistakes]
    return {
        "id": name, "model": f"adapted-{name}", "classes": adapted.labels,
        "examples": evidence.examples, "accuracy_left_out": evidence.accuracy, "margin": evidence.margin,
        "chance": evidence.majority_share, "with_twice": evidence.projected_accuracy,
        "label_names": evidence.label_names, "hints": list(evidence.remarks), "mistakes": mistakes,
        "seconds": evidence.seconds, "expires_in_s": limits.job_lifetime_s,
    }  # fmt: skip
