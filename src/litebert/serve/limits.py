"""Limits of the server, and the error of a refused request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litebert.errors import LitebertError


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 4 << 20
    """Maximum size of a request body."""
    texts: int = 256
    """Maximum texts in a request."""
    characters: int = 100_000
    """Maximum length of a text."""
    text_tokens: int = 16_384
    """Maximum tokens of a text, over all its windows."""
    requests: int = 256
    """Maximum concurrent requests, waiting ones included."""
    queue_tokens: int = 1 << 16
    """Maximum tokens in the queue."""
    batch_tokens: int = 4096
    """Maximum tokens in a batch."""
    max_wait_s: float = 0.002
    """Maximum wait for a batch to fill."""
    timeout_s: float = 60.0
    """Timeout of a request."""
    jobs: int = 32
    """Maximum adapted classifiers, and maximum lists to search."""
    job_examples: int = 500
    """Maximum examples of a classifier."""
    job_texts: int = 10_000
    """Maximum texts of a list to search."""
    job_timeout_s: float = 600.0
    """Timeout of adapting a classifier and of uploading a list."""
    job_lifetime_s: float = 3600.0
    """Classifiers and lists expire when unused for this long."""


class ApiError(LitebertError):
    """A request is refused with an HTTP status and a message."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.kind, self.param, self.retry_after_s = status, kind, param, retry_after_s

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error in the OpenAI format."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": None}}


def check_texts(texts: Sequence[str], limits: Limits, param: str, limit: int | None = None) -> None:
    """Check the number and the lengths of texts."""
    check_count(texts, limits, param, limit)
    check_lengths(texts, limits, param)


def check_count(items: Sequence[Any], limits: Limits, param: str, limit: int | None = None) -> None:
    limit = limits.texts if limit is None else limit
    if not 1 <= len(items) <= limit:
        raise ApiError(400, f"{param}: {len(items):,} texts; give 1 to {limit:,} in a request", param=param)


def check_lengths(texts: Sequence[str], limits: Limits, param: str) -> None:
    longest = max(map(len, texts), default=0)
    if longest > limits.characters:
        raise ApiError(
            400, f"{param}: a text of {longest:,} characters; give {limits.characters:,} at most", param=param
        )
