"""Records of JSON lines and HTTP bodies: blank inputs, and answers as JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any


def is_blank(item: Any) -> bool:
    """Whether an input is an empty line, or a row with empty text columns: its answer is null."""
    if isinstance(item, str):
        return not item.strip()
    if not isinstance(item, Mapping):
        return False
    texts = [item[name] for name in ("text", "text_b") if name in item]
    return bool(texts) and not any(str(text or "").strip() for text in texts)


def as_record(answer: Any) -> dict[str, Any]:
    """An answer as a JSON object, without fields that are not serialized."""
    hidden = {field.name for field in fields(answer) if not field.metadata.get("serialized", True)}
    return {name: value for name, value in asdict(answer).items() if name not in hidden}
