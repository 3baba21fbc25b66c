"""What clients leave with the server for a while: classifiers that they taught, lists that they search in."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from litebert.serve.limits import Limits, Refused

T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """A list to search in."""

    model: str
    texts: list[str]
    vectors: np.ndarray
    """(N, D), each of length 1."""


@dataclass
class _Kept(Generic[T]):
    value: T
    used: float


class Store(Generic[T]):
    """In memory, for as long as they are used, and not too many."""

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind, self.limits = kind, limits
        self._kept: dict[str, _Kept[T]] = {}

    def __len__(self) -> int:
        self._forget()
        return len(self._kept)

    def room(self) -> None:
        """Refuse one more than there may be."""
        self._forget()
        if len(self._kept) >= self.limits.jobs:
            soonest = min(kept.used for kept in self._kept.values()) + self.limits.job_lifetime_s - time.monotonic()
            raise Refused(
                429, f"there are {len(self._kept)} {self.kind} already, which is all this server keeps; delete one, or "
                "wait until one that nobody uses is forgotten", "too_many_jobs", retry_after_s=max(1.0, soonest),
            )  # fmt: skip

    def add(self, value: T) -> str:
        self.room()
        name = secrets.token_hex(16)
        self._kept[name] = _Kept(value, time.monotonic())
        return name

    def replace(self, name: str, value: T) -> None:
        self.get(name)
        self._kept[name] = _Kept(value, time.monotonic())

    def get(self, name: str) -> T:
        self._forget()
        if name not in self._kept:
            raise Refused(
                404, f"id={name[:64]!r}: there is none of the {self.kind} with this id; it was deleted, or nobody used "
                f"it for {self.limits.job_lifetime_s:.0f} s: make it again", "not_found", "id",
            )  # fmt: skip
        kept = self._kept[name]
        kept.used = time.monotonic()
        return kept.value

    def delete(self, name: str) -> None:
        self.get(name)
        del self._kept[name]

    def _forget(self) -> None:
        now = time.monotonic()
        for name in [n for n, kept in self._kept.items() if now - kept.used > self.limits.job_lifetime_s]:
            del self._kept[name]


def taught(name: str, adapted: Any, limits: Limits) -> dict[str, Any]:
    """What a client hears of a classifier that it taught."""
    evidence = adapted.evidence
    mistakes = [{"text": text, "label": label, "taken_for": other} for text, label, other in evidence.mistakes]
    return {
        "id": name, "model": f"adapted-{name}", "classes": adapted.labels,
        "examples": evidence.examples, "accuracy_left_out": evidence.accuracy, "margin": evidence.margin,
        "chance": evidence.chance, "with_twice": evidence.with_twice, "label_names": evidence.label_names,
        "hints": list(evidence.remarks), "mistakes": mistakes, "seconds": evidence.seconds,
        "expires_in_s": limits.job_lifetime_s,
    }  # fmt: skip
