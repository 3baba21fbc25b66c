"""Settings of `litebert demo`. No torch here: the command line builds its flags from this class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from litebert.checks import check_counts_and_seed
from litebert.errors import ConfigError

ENGLISH_SETTINGS = ("prose_bytes", "vocab_size", "steps")
"""Settings of the English demo, which pre-trains."""


@dataclass(frozen=True)
class DemoConfig:
    out: Path = Path("runs/demo")
    """Folder for everything the tour makes; a former tour there is replaced."""
    lang: Literal["en", "zh"] = "en"
    """In English from text to answers, or in Chinese with the built-in model."""
    prose_bytes: int = 3_000_000
    """For en: how much text to collect."""
    vocab_size: int = 4000
    """For en: tokens to learn."""
    steps: int = 400
    """For en: pre-training steps."""
    epochs: int = 25
    """Times to go through the labelled messages."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_counts_and_seed(self, *ENGLISH_SETTINGS, "epochs")
        for name in ENGLISH_SETTINGS:
            if self.lang != "en" and getattr(self, name) != getattr(DemoConfig, name):
                raise ConfigError(f"{name} is for --lang en, and this is {self.lang}; leave it out")
