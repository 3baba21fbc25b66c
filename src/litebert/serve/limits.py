"""What a server takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litebert.errors import LitebertError


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 4 << 20
    """Of a request."""
    texts: int = 256
    """In a request."""
    characters: int = 100_000
    """Of a text."""
    text_tokens: int = 16_384
    """That are read of a text, in as many windows as it takes."""
    requests: int = 256
    """That are answered or wait, all together."""
    queue_tokens: int = 1 << 16
    """That wait to be computed."""
    batch_tokens: int = 4096
    """That are computed together."""
    max_wait_s: float = 0.002
    """For a fuller batch."""
    timeout_s: float = 60.0
    """For an answer."""
    jobs: int = 32
    """Classifiers that were taught and lists to search in, of each."""
    job_examples: int = 500
    """To teach a classifier."""
    job_texts: int = 10_000
    """To search in."""
    job_timeout_s: float = 600.0
    """For teaching, and for reading a list."""
    job_lifetime_s: float = 3600.0
    """Since it was last used."""


class ApiError(LitebertError):
    """A request that cannot be answered: a status, and what is wrong in words."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.kind, self.param, self.retry_after_s = status, kind, param, retry_after_s

    def body(self) -> dict[str, dict[str, str | None]]:
        """As openai's clients read it."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": None}}


def check_texts(texts: Sequence[str], limits: Limits, param: str, most: int | None = None) -> None:
    """That there are some, not too many, none too long."""
    check_count(texts, limits, param, most)
    check_lengths(texts, limits, param)


def check_count(items: Sequence[Any], limits: Limits, param: str, most: int | None = None) -> None:
    most = limits.texts if most is None else most
    if not 1 <= len(items) <= most:
        raise ApiError(400, f"{param}: {len(items):,} texts; give 1 to {most:,} in a request", param=param)


def check_lengths(texts: Sequence[str], limits: Limits, param: str) -> None:
    longest = max(map(len, texts), default=0)
    if longest > limits.characters:
        raise ApiError(
            400, f"{param}: a text of {longest:,} characters; give {limits.characters:,} at most", param=param
        )
