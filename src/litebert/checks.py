"""Checks of settings that several commands share."""

from __future__ import annotations

from typing import Any

from litebert.errors import ConfigError

SEED_LIMIT = 1 << 32  # the training loop multiplies the seed to get one for every step, and torch takes 64 bits


def check_counts_and_seed(config: Any, *counts: str) -> None:
    """The named settings must be 1 or more. The seed, if there is one, must be one that every library accepts."""
    for name in counts:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)} must be at least 1")
    seed = getattr(config, "seed", 0)
    if not 0 <= seed < SEED_LIMIT:
        raise ConfigError(f"seed={seed} must lie between 0 and {SEED_LIMIT - 1}")
