"""Settings that grow over a run: depth, batch, length."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from litebert.errors import ConfigError


@dataclass(frozen=True)
class Ramp:
    """Stages (share of the full value, until this share of the steps); after the last one, all of it."""

    stages: tuple[tuple[float, float], ...] = ()

    @staticmethod
    def parse(text: str, name: str) -> Ramp:
        """From "1/4:0.6,1/2:0.8": a quarter until 60 % of the steps, half until 80 %, then all. "" is no ramp."""
        try:
            pairs = [part.split(":") for part in text.split(",")] if text.strip() else []
            stages = tuple((float(Fraction(share.strip())), float(until)) for share, until in pairs)
        except (ValueError, ZeroDivisionError) as error:
            raise ConfigError(
                f'{name}={text!r} cannot be read; write it as "1/4:0.6,1/2:0.8", or "" for none'
            ) from error
        ends = [until for _, until in stages]
        if (
            any(not 0 < share <= 1 for share, _ in stages)
            or ends != sorted({*ends})
            or not all(0 < e <= 1 for e in ends)
        ):
            raise ConfigError(
                f"{name}={text!r}: shares must lie between 0 and 1, and the ends must rise; "
                'for example "1/4:0.6,1/2:0.8"'
            )
        return Ramp(stages)

    def at(self, step: int, steps: int, full: int) -> int:
        """The value at a step; pure in the step."""
        return next((max(1, round(share * full)) for share, until in self.stages if step < round(until * steps)), full)

    def changes(self, steps: int) -> list[int]:
        """The steps at which a new stage begins."""
        return [round(until * steps) for _, until in self.stages if round(until * steps) < steps]
