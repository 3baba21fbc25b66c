"""uvicorn with a graceful shutdown: after SIGTERM /ready is false, then all accepted requests are answered."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType

import uvicorn

from litebert.serve.middleware import RequestMiddleware


class Server(uvicorn.Server):
    """Does not raise the signal again after the shutdown, so that the exit code is 0."""

    def __init__(self, config: uvicorn.Config, app: RequestMiddleware, drain_s: float) -> None:
        super().__init__(config)
        self._state, self._drain_s, self._stop_at = app.state, drain_s, math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._state.draining or sig == signal.SIGINT:
            super().handle_exit(sig, frame)
            self._captured_signals.clear()
            return
        self._state.draining = True
        self._stop_at = time.monotonic() + self._drain_s

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self.should_exit or time.monotonic() >= self._stop_at
        return await super().on_tick(counter)
