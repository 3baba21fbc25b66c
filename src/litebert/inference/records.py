"""What JSON lines and HTTP bodies have in common: an input that asks nothing, and an answer as an object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any


def is_blank(item: Any) -> bool:
    """A line without anything, or a row that has columns for texts and nothing in them: its answer is null."""
    if isinstance(item, str):
        return not item.strip()
    if not isinstance(item, Mapping):
        return False
    texts = [item[name] for name in ("text", "text_b") if name in item]
    return bool(texts) and not any(str(text or "").strip() for text in texts)


def as_record(answer: Any) -> dict[str, Any]:
    """An answer as JSON has it, without what is not to be told."""
    hidden = {field.name for field in fields(answer) if not field.metadata.get("told", True)}
    return {name: value for name, value in asdict(answer).items() if name not in hidden}
