"""Where to run, and how to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import torch

from litebert.errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]


def pick_device(name: Device) -> torch.device:
    """The asked-for device; `auto` is the GPU if there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device=cuda, but torch sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


class StopRequest:
    """Has somebody asked this run to stop? Ctrl-C and SIGTERM set it; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """While the block runs, Ctrl-C and SIGTERM ask for a clean stop instead of killing."""
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
