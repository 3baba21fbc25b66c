"""Errors that users can cause. Every message holds the value, the rule and the remedy."""

from __future__ import annotations

from typing import Any


class LitebertError(Exception):
    """Base class; the command line prints the message and exits with 2."""


class ConfigError(LitebertError):
    """A setting is out of range, unknown, or contradicts another."""


class DataError(LitebertError):
    """A data file is missing, unreadable or invalid."""


class CheckpointError(LitebertError):
    """A model folder is incomplete, damaged, unsafe, or not an ALBERT."""


def require_extra(module: str, extra: str) -> Any:
    """Import an optional dependency; the error names the extra that installs it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        package = module.split(".")[0]
        raise ConfigError(
            f"{package} is not installed and is needed here; run: pip install 'litebert[{extra}]'"
        ) from error
