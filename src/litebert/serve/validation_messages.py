"""Messages for requests that violate their schema, with the value, the rule and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError, WrapValidator

MAX_QUOTED_CHARACTERS = 60
"""A longer value is cut when a message quotes it."""
RULES = {
    "missing": "{where} is missing; add it",
    "extra_forbidden": "{where} is an unknown field; leave it out, or see /docs for the known ones",
    "string_type": "{where}={value} must be a text; put it in quotes",
    "string_unicode": "{where} holds a lone surrogate, which is not a character; send valid UTF-8",
    "string_too_short": "{where} is empty; give a text",
    "string_too_long": "{where}={value} is longer than {max_length} characters; shorten it",
    "list_type": "{where}={value} must be a list; put it in square brackets",
    "too_short": "{where} is an empty list; give at least one item",
    "int_type": "{where}={value} must be an integer; write it without quotes and decimal point",
    "bool_type": "{where}={value} must be true or false; write it without quotes",
    "greater_than_equal": "{where}={value} must be {ge} or more; raise it",
    "less_than_equal": "{where}={value} must be {le} or less; lower it",
    "literal_error": "{where}={value} must be {expected}; choose one",
    "model_type": "{where}={value} must be an object; put it in braces",
    "model_attributes_type": "{where}={value} must be an object; put it in braces",
    "json_invalid": "the body is not JSON ({error}); check its quotes, commas and brackets",
    "value_error": "{where}={value} {error}",
}
"""Message templates by pydantic's error type."""


def single_rule(rule: str) -> WrapValidator:
    """Replace the errors of a union's members by one rule: `must be ...`."""

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(rule) from None

    return WrapValidator(check)


def describe_error(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """The message for a pydantic error, and the field concerned."""
    kind, place = error["type"], [part for part in error["loc"] if part != "body"]
    context = error.get("ctx", {})
    if kind == "json_invalid":
        return RULES[kind].format(error=_lower(str(context.get("error", "")))), None
    if kind == "value_error" and not place:  # about several fields: the message is complete
        return str(context["error"]), None
    where = _replace_surrogates(".".join(map(str, place))[:200])
    rule = RULES.get(kind, f"{{where}}={{value}}: {_lower(error['msg'])}; see /docs")
    return rule.format(where=where or "the body", value=quote_value(error.get("input")), **context), where or None


def quote_value(value: Any) -> str:
    """The value as JSON, cut if it is long."""
    if isinstance(value, (list, dict)):  # at any depth
        open_, close = "[]" if isinstance(value, list) else "{}"
        return f"{open_}…{close}" if value else f"{open_}{close}"
    text = json.dumps(
        value[:MAX_QUOTED_CHARACTERS] if isinstance(value, str) else value, ensure_ascii=False, default=str
    )
    is_cut = isinstance(value, str) and len(value) > MAX_QUOTED_CHARACTERS
    return _replace_surrogates(f'{text[:-1]}…"' if is_cut else text[:MAX_QUOTED_CHARACTERS])


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
