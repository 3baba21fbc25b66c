"""From settings to running processes."""

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
"""A process that dies sooner after its start will not do better the next time."""
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
THREAD_SWITCH_S = 0.001
"""A thread that reads keeps the event loop waiting no longer than this, where Python's own 5 ms add up to delays."""
MEMORY_TRIM_INTERVAL_S = 10
KEEP_ALIVE_S = 30
"""After which a connection that asks nothing is closed."""


@dataclass(frozen=True)
class ServerSettings:
    models: tuple[str, ...]
    host: str
    port: int
    engine: Literal["auto", "torch", "int8"] = "auto"
    keys: tuple[str, ...] = field(default=(), repr=False)
    hosts: tuple[str, ...] = ()
    """That may be asked for; none: all, or on this machine alone its own names."""
    open_metrics: bool = False
    workers: int = 1
    state_dir: Path | None = None
    runs: Path | None = None
    drain_s: float = 1.0
    quiet: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def is_local(self) -> bool:
        """Can only this machine reach it?"""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        # a page of a stranger can make its name mean 127.0.0.1, and would be believed
        return self.hosts or (tuple(dict.fromkeys((*LOOPBACK, self.host))) if self.is_local else ())


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, before any model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends without delay where the protocol is named; else every answer would wait 40 ms for an acknowledgement
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({error.strerror}); choose another --port, or end what uses it"
        ) from error
    found.set_inheritable(True)
    return found


def launch(settings: ServerSettings, listening: socket.socket, started: Callable[[], None]) -> int:
    """Serve until a signal ends it; 0 if all went well."""
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
    """In this process."""
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

    gate = build_app(make_service, settings.limits, access)
    config = uvicorn.Config(
        gate, log_config=None, access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
        lifespan="on", ws="none", timeout_graceful_shutdown=math.ceil(settings.limits.timeout_s) + 5,
    )  # fmt: skip
    threading.Thread(target=_trim_memory, daemon=True).start()
    Server(config, gate, settings.drain_s).run([listening])


def _trim_memory() -> None:
    """glibc keeps what is freed, in pieces and by thread; unless it is asked, the process seems to grow for hours."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    while trim is not None:
        time.sleep(MEMORY_TRIM_INTERVAL_S)
        trim(0)


def _serve_in_worker(settings: ServerSettings, listening: socket.socket) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        serve(settings, listening)
    except ConfigError as error:
        print("litebert:", error, file=sys.stderr)
        sys.exit(2)


def _end_with_parent() -> None:
    """Nobody else would end what a killed parent leaves behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _WorkerSupervisor:
    """Several that listen at one socket; one that dies is replaced."""

    def __init__(self, settings: ServerSettings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._ending = False
        self._running: dict[BaseProcess, float] = {}
        """And when each was started."""

    def run(self, started: Callable[[], None]) -> int:
        previous = {number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGINT)}
        code, told = 0, False
        self._count_deaths()
        try:
            for _ in range(self._settings.workers):
                self._start()
            started()
            while self._running:
                time.sleep(0.1)
                if self._ending and not told:
                    told = True
                    for process in self._running:
                        process.terminate()
                for process in [one for one in self._running if not one.is_alive()]:
                    lived = time.monotonic() - self._running.pop(process)
                    self._forget_metrics(process)
                    if not self._ending:
                        self._report(process, lived)
                    if self._ending:
                        # one that was still loading knows no other way to end, and has accepted nothing
                        well = process.exitcode in (0, -signal.SIGTERM)
                        code = code or (0 if well else abs(process.exitcode or 0))
                    elif lived < MIN_LIFETIME_S or process.exitcode == 2:
                        code = process.exitcode or 1
                        self._ending = True
                    else:
                        self._start()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return code

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve_in_worker, args=(self._settings, self._listening))
        process.start()
        self._running[process] = time.monotonic()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ending = True

    def _count_deaths(self) -> None:
        from prometheus_client.values import MultiProcessValue  # a Counter would have had to know of the folder sooner

        name = "litebert_worker_deaths"
        self._deaths = MultiProcessValue()("counter", name, f"{name}_total", [], [], "Processes that died.")

    def _report(self, process: BaseProcess, lived_s: float) -> None:
        """It died, and nobody had asked it to."""
        self._deaths.inc(1)
        told = {"pid": process.pid, "exit_code": process.exitcode, "lived_s": round(lived_s, 1)}
        LOG.error("worker died", extra={"fields": told})

    def _forget_metrics(self, process: BaseProcess) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process.pid)
