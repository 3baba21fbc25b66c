"""Corrections to FastAPI's OpenAPI document: API keys, and status 400 instead of 422 for invalid bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litebert.serve.middleware import AccessControl

if TYPE_CHECKING:
    from fastapi import FastAPI

BEARER = {"type": "http", "scheme": "bearer", "description": "An API key of the server."}
UNUSED_SCHEMAS = ("HTTPValidationError", "ValidationError")


def customize_openapi(app: FastAPI, access: AccessControl) -> None:
    """Replace the generator of /openapi.json."""
    generate = app.openapi

    def generate_with_keys() -> dict[str, Any]:
        document = generate()
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if access.keys and not access.allows_without_key(path):
                    operation["security"] = [{"key": []}]
        components = document["components"]
        for name in UNUSED_SCHEMAS:
            components["schemas"].pop(name, None)
        if access.keys:
            components["securitySchemes"] = {"key": BEARER}
        return document

    app.openapi = generate_with_keys  # type: ignore[method-assign]  # as in FastAPI's documentation
