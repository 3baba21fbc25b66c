"""What is wrong with a request that does not follow its schema, in words: the value, the rule, the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError, WrapValidator

MAX_QUOTED_CHARACTERS = 60
"""Characters of a value that are quoted."""
RULES = {
    "missing": "{where} is missing; add it",
    "extra_forbidden": "{where} is not known here; leave it out, or see /docs for the fields that are",
    "string_type": "{where}={value} must be a text; put it in quotes",
    "string_unicode": "{where} holds half a character (a lone surrogate); send whole ones in UTF-8",
    "string_too_short": "{where} is empty; write something",
    "string_too_long": "{where}={value} is longer than {max_length} characters; shorten it",
    "list_type": "{where}={value} must be a list; put it in square brackets",
    "too_short": "{where} is an empty list; give one at least",
    "int_type": "{where}={value} must be a whole number; write it without quotes and without a point",
    "bool_type": "{where}={value} must be true or false; write it without quotes",
    "greater_than_equal": "{where}={value} must be {ge} or more; raise it",
    "less_than_equal": "{where}={value} must be {le} or less; lower it",
    "literal_error": "{where}={value} must be {expected}; choose one",
    "model_type": "{where}={value} must be an object; put it in braces",
    "model_attributes_type": "{where}={value} must be an object; put it in braces",
    "json_invalid": "the body is not JSON ({error}); check its quotes, commas and brackets",
    "value_error": "{where}={value} {error}",
}
"""By what pydantic calls a mistake."""


def single_rule(rule: str) -> WrapValidator:
    """One sentence where each member of a union would say its own: `must be ...`."""

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(rule) from None

    return WrapValidator(check)


def describe_error(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """The message for one of pydantic's errors, and the field that it is about."""
    kind, place = error["type"], [part for part in error["loc"] if part != "body"]
    context = error.get("ctx", {})
    if kind == "json_invalid":
        return RULES[kind].format(error=_lower(str(context.get("error", "")))), None
    if kind == "value_error" and not place:  # of several fields together: it says all there is to say
        return str(context["error"]), None
    where = _replace_surrogates(".".join(map(str, place))[:200])
    rule = RULES.get(kind, f"{{where}}={{value}}: {_lower(error['msg'])}; see /docs")
    return rule.format(where=where or "the body", value=quote_value(error.get("input")), **context), where or None


def quote_value(value: Any) -> str:
    """As it stood in the request, or its beginning."""
    if isinstance(value, (list, dict)):  # however deep it is
        open_, close = "[]" if isinstance(value, list) else "{}"
        return f"{open_}…{close}" if value else f"{open_}{close}"
    text = json.dumps(
        value[:MAX_QUOTED_CHARACTERS] if isinstance(value, str) else value, ensure_ascii=False, default=str
    )
    is_cut = isinstance(value, str) and len(value) > MAX_QUOTED_CHARACTERS
    return _replace_surrogates(f'{text[:-1]}…"' if is_cut else text[:MAX_QUOTED_CHARACTERS])


def _replace_surrogates(text: str) -> str:
    """Without half characters, which cannot be sent."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
