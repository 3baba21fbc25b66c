"""The OpenAPI document, as far as FastAPI does not know it: keys, and that a bad body gets 400."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litebert.serve.middleware import AccessControl

if TYPE_CHECKING:
    from fastapi import FastAPI

BEARER = {"type": "http", "scheme": "bearer", "description": "One of the server's keys."}
UNUSED_SCHEMAS = ("HTTPValidationError", "ValidationError")


def customize_openapi(app: FastAPI, access: AccessControl) -> None:
    """What /openapi.json says from now on."""
    usual = app.openapi

    def described() -> dict[str, Any]:
        document = usual()
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if access.keys and not access.needs_no_key(path):
                    operation["security"] = [{"key": []}]
        components = document["components"]
        for name in UNUSED_SCHEMAS:
            components["schemas"].pop(name, None)
        if access.keys:
            components["securitySchemes"] = {"key": BEARER}
        return document

    app.openapi = described  # type: ignore[method-assign]  # as FastAPI's own manual does it
