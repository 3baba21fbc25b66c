"""Answer over HTTP: every task, OpenAI's embeddings, and a page to play with.

Examples:
  litebert serve                                   # the built-in model, at http://127.0.0.1:8000
  litebert serve runs/tickets ner=runs/names       # folders; NAME=FOLDER gives one a name
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from litebert.builtin import DEFAULT
from litebert.errors import require_extra


@dataclass(frozen=True)
class Config:
    POSITIONAL: ClassVar[str] = "models"
    models: tuple[str, ...] = (DEFAULT,)
    """Model folders, or names; NAME=FOLDER gives one a name. Words before the first flag are models."""
    host: str = "127.0.0.1"
    """Where to listen; 127.0.0.1 is this machine alone."""
    port: int = 8000
    runs: str = "runs"
    """Folder of training runs that the page may show; an empty one shows none."""


def run(config: Config) -> None:
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require_extra(package, "serve")
    import uvicorn

    from litebert.serve.app import build
    from litebert.serve.gate import Access, State
    from litebert.serve.limits import Limits
    from litebert.serve.registry import Registry
    from litebert.serve.server import Server
    from litebert.serve.service import Service

    registry, limits, state = Registry.load(config.models), Limits(), State()
    gate = build(lambda: Service(registry, limits, Path(config.runs) if config.runs else None), limits, Access(), state)
    Server(uvicorn.Config(gate, config.host, config.port, access_log=False), gate, 1.0).run()
