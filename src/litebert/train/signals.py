"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set by Ctrl-C and SIGTERM. A second Ctrl-C stops at once.

    A second SIGTERM does not: launchers and schedulers both send one, and a checkpoint must be saved."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """While the block runs, Ctrl-C and SIGTERM request a clean stop instead of killing the process."""
    request = StopRequest()
    try:
        previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread may listen for signals; elsewhere the caller stops us
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
