"""API keys, from a file and the environment."""

from __future__ import annotations

import os
from pathlib import Path

from litebert.errors import ConfigError

ENVIRONMENT_VARIABLE = "LITEBERT_API_KEYS"
MIN_KEY_LENGTH = 16


def read_api_keys(file: str) -> tuple[str, ...]:
    """Keys of the environment and, if `file` is not empty, of a file with a key on each line."""
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if file:
        try:
            text += "\n" + Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_key_file={file}: cannot be read ({error}); give a text file") from error
    keys = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if file and not keys:
        raise ConfigError(f"api_key_file={file} holds no key; write one on each line")
    if invalid := [key for key in keys if len(key) < MIN_KEY_LENGTH or not key.isascii()]:
        raise ConfigError(
            f"a key of {len(invalid[0])} characters is too easy to guess, or not ASCII; use {MIN_KEY_LENGTH} or more, "
            "as openssl rand -hex 24 makes them"
        )
    return keys
