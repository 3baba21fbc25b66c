"""Answer over HTTP: every task, OpenAI's embeddings, and a page to play with.

Examples:
  litebert serve                                   # the built-in model; the page is at http://127.0.0.1:8000
  litebert serve litebert-base-en litebert-sentences-en   # the second for vectors of sentences
  litebert serve runs/tickets ner=runs/names       # folders; NAME=FOLDER gives one a name
  LITEBERT_API_KEYS=... litebert serve --host 0.0.0.0 --workers 4 --state-dir /var/lib/litebert
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Config:
    POSITIONAL: ClassVar[str] = "models"
    models: tuple[str, ...] = (DEFAULT,)
    """Model folders, or names; NAME=FOLDER gives one a name. Words before the first flag are models."""
    host: str = "127.0.0.1"
    """Address to listen on; 127.0.0.1 is this machine only."""
    port: int = 8000
    """Port to listen on; 0 picks a free one."""
    engine: Literal["auto", "torch", "int8"] = "auto"
    """Compute engine. auto: int8 where a folder is quantized (litebert quantize) and the CPU supports it."""
    api_key_file: str = ""
    """File with a key on each line; requests must bring one of them (Authorization: Bearer KEY). Or give keys in the
    environment, LITEBERT_API_KEYS, with spaces between them."""
    open_metrics: bool = False
    """Serve /metrics without a key."""
    allowed_hosts: tuple[str, ...] = ()
    """Allowed values of the Host header; by default, on 127.0.0.1, the names of this machine."""
    workers: int = 1
    """Worker processes, each with its own copy of the models."""
    state_dir: str = ""
    """Folder for classifiers that clients taught and lists to search in; without it they are kept in memory, which
    several processes do not share."""
    runs: str = "runs"
    """Folder of training runs that the page may show; empty for none."""
    drain_s: float = 1.0
    """Seconds to keep serving after SIGTERM with /ready false, so that a load balancer notices."""
    quiet: bool = False
    """Do not log every request."""
    max_body_mb: float = 4.0
    """Maximum size of a request."""
    max_texts: int = 256
    """Maximum texts in a request."""
    max_characters: int = 100_000
    """Maximum characters of a text."""
    max_tokens: int = 16_384
    """Maximum tokens of a text, which is read in windows."""
    max_requests: int = 256
    """Maximum requests being processed or waiting; more get 429 at once."""
    queue_tokens: int = 65_536
    """Maximum tokens in the queue; more get 429."""
    batch_tokens: int = 4096
    """Maximum tokens in a batch."""
    max_wait_ms: float = 2.0
    """Maximum wait for a batch to fill, in ms."""
    timeout_s: float = 60.0
    """Timeout of a request, after which it gets 504."""
    max_jobs: int = 32
    """Maximum classifiers that clients trained, and as many lists to search in."""
    max_examples: int = 500
    """Maximum examples to train a classifier."""
    max_list: int = 10_000
    """Maximum texts of a list to search in."""
    job_timeout_s: float = 600.0
    """Timeout of training a classifier and of reading a list."""
    job_minutes: float = 60.0
    """Minutes after which an unused classifier or list is deleted."""

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
    from litebert.serve.api_keys import read_api_keys
    from litebert.serve.launch import ServerSettings

    return ServerSettings(
        tuple(config.models), config.host, config.port, config.engine, read_api_keys(config.api_key_file),
        tuple(config.allowed_hosts),
        config.open_metrics, config.workers, Path(config.state_dir) if config.state_dir else None,
        Path(config.runs) if config.runs else None, config.drain_s, config.quiet, limits_of(config),
    )  # fmt: skip


def limits_of(config: Config) -> Limits:
    from litebert.serve.limits import Limits

    limits = Limits(
        body_bytes=int(config.max_body_mb * (1 << 20)), texts=config.max_texts, characters=config.max_characters,
        text_tokens=config.max_tokens, requests=config.max_requests, queue_tokens=config.queue_tokens,
        batch_tokens=config.batch_tokens, max_wait_s=config.max_wait_ms / 1000, timeout_s=config.timeout_s,
        jobs=config.max_jobs, job_examples=config.max_examples, job_texts=config.max_list,
        job_timeout_s=config.job_timeout_s, job_lifetime_s=60 * config.job_minutes,
    )  # fmt: skip
    assert len(fields(limits)) == 14, "every limit has a flag"
    return limits
