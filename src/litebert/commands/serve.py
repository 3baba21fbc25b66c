"""Answer over HTTP: every task, OpenAI's embeddings, and a page to play with.

Examples:
  litebert serve                                   # the built-in model; the page is at http://127.0.0.1:8000
  litebert serve litebert-base-en litebert-sentences-en   # the second for vectors of sentences
  litebert serve runs/tickets ner=runs/names       # folders; NAME=FOLDER gives one a name
  LITEBERT_API_KEYS=... litebert serve --host 0.0.0.0 --workers 4 --state-dir /var/lib/litebert
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError, require_extra

if TYPE_CHECKING:
    from litebert.serve.launch import ServerSettings
    from litebert.serve.limits import Limits

KEYS = "LITEBERT_API_KEYS"
SHORTEST_KEY = 16


@dataclass(frozen=True)
class Config:
    POSITIONAL: ClassVar[str] = "models"
    models: tuple[str, ...] = (DEFAULT,)
    """Model folders, or names; NAME=FOLDER gives one a name. Words before the first flag are models."""
    host: str = "127.0.0.1"
    """Where to listen; 127.0.0.1 is this machine alone."""
    port: int = 8000
    """Where to listen there; 0 is any that is free."""
    engine: Literal["auto", "torch", "int8"] = "auto"
    """auto: from eight bits where a folder holds them (litebert quantize) and the CPU can."""
    api_key_file: str = ""
    """File with a key on each line; requests must bring one of them (Authorization: Bearer KEY). Or give keys in the
    environment, LITEBERT_API_KEYS, with spaces between them."""
    open_metrics: bool = False
    """Let /metrics be read without a key."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the Host header may have; on this machine alone: its own."""
    workers: int = 1
    """Processes, each with the models in its memory."""
    state_dir: str = ""
    """Folder for classifiers that clients taught and lists to search in; without it they are kept in memory, which
    several processes do not share."""
    runs: str = "runs"
    """Folder of training runs that the page may show; an empty one shows none."""
    drain_s: float = 1.0
    """After SIGTERM, go on so long with /ready false, for a balancer to notice."""
    quiet: bool = False
    """Do not log every request."""
    max_body_mb: float = 4.0
    """Of a request."""
    max_texts: int = 256
    """In a request."""
    max_characters: int = 100_000
    """Of a text."""
    max_tokens: int = 16_384
    """That are read of a text, in as many windows as it takes."""
    max_requests: int = 256
    """That are answered or wait; more get 429 at once."""
    queue_tokens: int = 65_536
    """That wait to be computed; more get 429."""
    batch_tokens: int = 4096
    """That are computed together."""
    max_wait_ms: float = 2.0
    """For a fuller batch."""
    timeout_s: float = 60.0
    """For an answer; then it is 504."""
    max_jobs: int = 32
    """Classifiers that clients taught, and as many lists to search in."""
    max_examples: int = 500
    """To teach a classifier."""
    max_list: int = 10_000
    """Texts of a list to search in."""
    job_timeout_s: float = 600.0
    """For teaching a classifier, and for reading a list."""
    job_minutes: float = 60.0
    """After which a classifier or a list that nobody used is forgotten."""

    def __post_init__(self) -> None:
        check_counts_and_seed(
            self, "workers", "max_texts", "max_characters", "max_tokens", "max_requests", "queue_tokens",
            "batch_tokens", "max_jobs", "max_examples", "max_list",
        )  # fmt: skip
        for name in ("max_body_mb", "timeout_s", "job_timeout_s", "job_minutes"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0")
        for name in ("drain_s", "max_wait_ms"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)} must be 0 or more")
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port={self.port} must lie between 0, which is any that is free, and 65535")
        if not self.models:
            raise ConfigError("no model; give a folder, or leave the words out for the built-in one")


def run(config: Config) -> int:
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require_extra(package, "serve")
    from litebert.serve.launch import launch, listen

    settings = settings_of(config)
    if not settings.is_local:
        open_to_all = (
            "; anybody who can reach it may use it: give keys with --api-key-file" if not settings.keys else ""
        )
        warnings.warn(f"host={config.host}: other machines can reach this server{open_to_all}", stacklevel=1)
    listening = listen(config.host, config.port)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    console = make_console()

    def started() -> None:
        console.print(f"http://{shown}:{port}/ is the page, /docs the API, Ctrl-C ends it", highlight=False)

    with listening:
        return launch(settings, listening, started)


def settings_of(config: Config) -> ServerSettings:
    from litebert.serve.launch import ServerSettings

    return ServerSettings(
        tuple(config.models), config.host, config.port, config.engine, keys_of(config), tuple(config.allowed_hosts),
        config.open_metrics, config.workers, Path(config.state_dir) if config.state_dir else None,
        Path(config.runs) if config.runs else None, config.drain_s, config.quiet, limits_of(config),
    )  # fmt: skip


def limits_of(config: Config) -> Limits:
    from litebert.serve.limits import Limits

    found = Limits(
        body_bytes=int(config.max_body_mb * (1 << 20)), texts=config.max_texts, characters=config.max_characters,
        text_tokens=config.max_tokens, requests=config.max_requests, queue_tokens=config.queue_tokens,
        batch_tokens=config.batch_tokens, max_wait_s=config.max_wait_ms / 1000, timeout_s=config.timeout_s,
        jobs=config.max_jobs, job_examples=config.max_examples, job_texts=config.max_list,
        job_timeout_s=config.job_timeout_s, job_lifetime_s=60 * config.job_minutes,
    )  # fmt: skip
    assert len(fields(found)) == 14, "every limit has a flag"
    return found


def keys_of(config: Config) -> tuple[str, ...]:
    """From the file and the environment."""
    text = os.environ.get(KEYS, "")
    if config.api_key_file:
        try:
            text += "\n" + Path(config.api_key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"api_key_file={config.api_key_file}: cannot be read ({error}); give a text file"
            ) from error
    keys = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if config.api_key_file and not keys:
        raise ConfigError(f"api_key_file={config.api_key_file} holds no key; write one on each line")
    if short := [key for key in keys if len(key) < SHORTEST_KEY or not key.isascii()]:
        raise ConfigError(
            f"a key of {len(short[0])} characters is too easy to guess, or not ASCII; use {SHORTEST_KEY} or more, as "
            "openssl rand -hex 24 makes them"
        )
    return keys
