"""When to write a checkpoint."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from litebert.errors import ConfigError


@dataclass
class SaveSchedule:
    """When to write a checkpoint: after so many steps, or after so many seconds."""

    steps: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._last = time.monotonic()

    @staticmethod
    def parse(text: str, epoch_steps: int) -> SaveSchedule:
        """From "500", "10min" or "1epoch"."""
        units = {"": 1.0, "min": 60.0, "epoch": float(epoch_steps), "epochs": float(epoch_steps)}
        digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text.strip()[len(digits) :].strip()
        try:
            value = float(digits) * units[unit]
        except (ValueError, KeyError):
            value = 0.0
        if not 0 < value < math.inf:
            raise ConfigError(f'save_every={text!r} cannot be read; write steps ("500"), "10min" or "1epoch"')
        return SaveSchedule(seconds=value) if unit == "min" else SaveSchedule(steps=max(1, round(value)))

    def due(self, done: int) -> bool:
        if self.steps:
            return done % self.steps == 0
        now = time.monotonic()
        due = now - self._last >= self.seconds
        self._last = now if due else self._last
        return due
