"""Start the server: one process, or a supervisor of several workers."""

from __future__ import annotations

import ctypes
import ipaddress
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Literal

from litebert.errors import ConfigError
from litebert.serve.limits import Limits

LOG = logging.getLogger("litebert.serve")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
BACKLOG = 2048
MIN_LIFETIME_S = 10.0
"""A worker that dies sooner after its start is not replaced: the next would die too."""
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
THREAD_SWITCH_S = 0.001
"""Python's thread switch interval. Its default of 5 ms delays the event loop while other threads tokenize."""
MEMORY_TRIM_INTERVAL_S = 10
KEEP_ALIVE_S = 30
"""Idle connections are closed after this time."""


@dataclass(frozen=True)
class ServerSettings:
    models: tuple[str, ...]
    host: str
    port: int
    engine: Literal["auto", "torch", "int8"] = "auto"
    keys: tuple[str, ...] = field(default=(), repr=False)
    hosts: tuple[str, ...] = ()
    """Accepted Host headers; empty: any, or only loopback names when listening on loopback."""
    open_metrics: bool = False
    workers: int = 1
    state_dir: Path | None = None
    runs: Path | None = None
    drain_s: float = 1.0
    quiet: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def is_local(self) -> bool:
        """Does it listen on a loopback address?"""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        # against DNS rebinding: a web page could make its own host name resolve to 127.0.0.1
        return self.hosts or (tuple(dict.fromkeys((*LOOPBACK, self.host))) if self.is_local else ())


def listen(host: str, port: int) -> socket.socket:
    """Bind the socket before any model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; else answers wait 40 ms for an acknowledgement
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({error.strerror}); choose another --port, or stop what uses this one"
        ) from error
    listening.set_inheritable(True)
    return listening


def launch(settings: ServerSettings, listening: socket.socket, started: Callable[[], None]) -> int:
    """Serve until a signal arrives; returns the exit code."""
    if settings.workers == 1:
        serve(settings, listening, started)
        return 0
    from litebert.serve.json_logs import log_to_stderr

    log_to_stderr(_log_level(settings))
    with tempfile.TemporaryDirectory(prefix="litebert-") as metrics:
        os.environ[MULTIPROCESS_VARIABLE] = metrics
        try:
            return _WorkerSupervisor(settings, listening).run(started)
        finally:
            del os.environ[MULTIPROCESS_VARIABLE]


def _log_level(settings: ServerSettings) -> int:
    return logging.WARNING if settings.quiet else logging.INFO


def serve(settings: ServerSettings, listening: socket.socket, started: Callable[[], None] = lambda: None) -> None:
    """Serve in this process."""
    import torch
    import uvicorn

    from litebert.serve.app import build_app
    from litebert.serve.json_logs import log_to_stderr
    from litebert.serve.middleware import AccessControl
    from litebert.serve.registry import Registry
    from litebert.serve.server import Server
    from litebert.serve.service import Service

    if settings.workers > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.workers))
    sys.setswitchinterval(THREAD_SWITCH_S)
    log_to_stderr(_log_level(settings))
    registry = Registry.load(settings.models, settings.engine)
    access = AccessControl(settings.keys, settings.allowed_hosts, settings.open_metrics)

    def make_service() -> Service:
        started()
        return Service(registry, settings.limits, settings.runs, settings.state_dir, settings.workers)

    app = build_app(make_service, settings.limits, access)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
        lifespan="on", ws="none", timeout_graceful_shutdown=math.ceil(settings.limits.timeout_s) + 5,
    )  # fmt: skip
    threading.Thread(target=_trim_memory, daemon=True).start()
    Server(config, app, settings.drain_s).run([listening])


def _trim_memory() -> None:
    """Return freed memory to the system: glibc keeps it in per-thread arenas, and the process would grow for hours."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    while trim is not None:
        time.sleep(MEMORY_TRIM_INTERVAL_S)
        trim(0)


def _serve_in_worker(settings: ServerSettings, listening: socket.socket) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        serve(settings, listening)
    except ConfigError as error:
        print("litebert:", error, file=sys.stderr)
        sys.exit(2)


def _exit_with_parent() -> None:
    """Stop when the supervisor was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _WorkerSupervisor:
    """Runs several workers on one socket and replaces those that die."""

    def __init__(self, settings: ServerSettings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._stopping = False
        self._processes: dict[BaseProcess, float] = {}
        """Workers and their start times."""

    def run(self, started: Callable[[], None]) -> int:
        previous = {number: signal.signal(number, self._request_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        exit_code, signalled = 0, False
        self._create_death_counter()
        try:
            for _ in range(self._settings.workers):
                self._start()
            started()
            while self._processes:
                time.sleep(0.1)
                if self._stopping and not signalled:
                    signalled = True
                    for process in self._processes:
                        process.terminate()
                for process in [worker for worker in self._processes if not worker.is_alive()]:
                    lived = time.monotonic() - self._processes.pop(process)
                    self._forget_metrics(process)
                    if not self._stopping:
                        self._log_death(process, lived)
                    if self._stopping:
                        # SIGTERM kills a worker that is still loading, which has accepted no request
                        succeeded = process.exitcode in (0, -signal.SIGTERM)
                        exit_code = exit_code or (0 if succeeded else abs(process.exitcode or 0))
                    elif lived < MIN_LIFETIME_S or process.exitcode == 2:
                        exit_code = process.exitcode or 1
                        self._stopping = True
                    else:
                        self._start()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return exit_code

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve_in_worker, args=(self._settings, self._listening))
        process.start()
        self._processes[process] = time.monotonic()

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _create_death_counter(self) -> None:
        from prometheus_client.values import MultiProcessValue  # a Counter needs the folder at import time

        name = "litebert_worker_deaths"
        self._deaths = MultiProcessValue()("counter", name, f"{name}_total", [], [], "Processes that died.")

    def _log_death(self, process: BaseProcess, lived_s: float) -> None:
        """Log and count a worker that died by itself."""
        self._deaths.inc(1)
        fields = {"pid": process.pid, "exit_code": process.exitcode, "lived_s": round(lived_s, 1)}
        LOG.error("worker died", extra={"fields": fields})

    def _forget_metrics(self, process: BaseProcess) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process.pid)
