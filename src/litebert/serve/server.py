"""uvicorn with an orderly end: on SIGTERM /ready turns false first, then what was accepted is answered, then it ends."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType

import uvicorn

from litebert.serve.gate import Gate


class Server(uvicorn.Server):
    """Ends by itself; a signal that was obeyed is not raised again, so that the exit code is 0."""

    def __init__(self, config: uvicorn.Config, gate: Gate, drain_s: float) -> None:
        super().__init__(config)
        self._state, self._drain_s = gate.state, drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._state.draining or sig == signal.SIGINT:
            super().handle_exit(sig, frame)
            self._captured_signals.clear()
            return
        self._state.draining = True
        asyncio.get_event_loop().call_later(self._drain_s, self._stop)

    def _stop(self) -> None:
        self.should_exit = True
