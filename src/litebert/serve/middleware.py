"""ASGI middleware around the application: access control, limits on size, concurrency and time, headers and the log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from litebert.serve.limits import ApiError, Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PUBLIC_PATHS = ("/health", "/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
PUBLIC_PREFIXES = ("/page/", "/docs/")
"""Paths that need no API key: the browser loads them before a key can be entered."""
UNLIMITED_PATHS = ("/metrics", "/v1/models")
"""Paths exempt from the limits: cheap to answer, however many requests wait."""
JOB_PATH = re.compile(r"/search|/adapt(/[^/]+/examples)?")
"""Paths with the longer timeout `job_timeout_s`."""
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH")
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'",
    ),
]
DOCS_POLICY = (
    b"content-security-policy",
    b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
)  # Swagger UI uses inline styles
INTERNAL_ERROR = ApiError(500, "internal error; see the server's log", "server_error")
LOG = logging.getLogger("litebert.serve")


@dataclass
class AccessControl:
    """Checks the Host and Origin headers and the API key."""

    keys: Sequence[str] = ()
    """Accepted API keys; empty: none needed."""
    hosts: Sequence[str] = ()
    """Accepted host names, without port; empty: any."""
    open_metrics: bool = False

    def check(self, path: str, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts and host_name(host) not in self.hosts:
            raise ApiError(
                403, f"Host {host[:100]!r} is not this server; use one of {', '.join(self.hosts)}, or start it with "
                "--allowed-hosts", "forbidden",
            )  # fmt: skip
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
            raise ApiError(403, "requests from pages of another origin are refused (CORS is off)", "forbidden")
        if self.keys and not self.allows_without_key(path) and not self._is_known_key(api_key_of(headers)):
            raise ApiError(
                401, "missing or unknown API key; send the header: Authorization: Bearer KEY",
                "authentication_error",
            )  # fmt: skip

    def allows_without_key(self, path: str) -> bool:
        return is_public(path) or (self.open_metrics and path == "/metrics")

    def _is_known_key(self, key: bytes) -> bool:
        is_known = False
        for known in self.keys:  # all of them: the time taken must not depend on which one matches
            is_known |= hmac.compare_digest(known.encode(), key)
        return is_known


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES)


def host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def api_key_of(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


@dataclass
class ServerState:
    """State that the middleware, the endpoints and the server share."""

    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    retry_after_s: Callable[[], float] = lambda: 1.0
    observers: list[Callable[[str, str, int, float], None]] = field(default_factory=list)
    """Called after every request with method, route, status and seconds."""


class RequestMiddleware:
    """The outermost ASGI application."""

    def __init__(self, app: App, limits: Limits, access: AccessControl, state: ServerState) -> None:
        self._app, self._limits, self._access, self.state = app, limits, access, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _ResponseSender(send, scope, self.state)
        started = time.perf_counter()
        try:
            headers = dict(scope["headers"])
            self._access.check(scope["path"], headers)
            if is_public(scope["path"]) or scope["path"] in UNLIMITED_PATHS:
                await self._app(scope, receive, response)
            else:
                await self._limit_and_answer(scope, headers, receive, response)
        except ApiError as error:
            await response.send_error(error)
        except Exception as error:  # noqa: BLE001  # the client gets status 500, the log the place
            _log_failure(response.id, error)
            if not response.status:
                await response.send_error(INTERNAL_ERROR)
        finally:
            self._report(scope, response, time.perf_counter() - started)

    async def _limit_and_answer(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, response: _ResponseSender
    ) -> None:
        """Answer a request that counts towards the limits."""
        state, limits = self.state, self._limits
        if state.in_flight >= limits.requests:
            raise ApiError(
                429, f"{state.in_flight} requests are being answered, the limit of this server; try again later",
                "overloaded", retry_after_s=state.retry_after_s(),
            )  # fmt: skip
        state.in_flight += 1
        try:
            timeout = ApiError(408, f"the request was incomplete after {limits.timeout_s:.0f} s", "timeout")
            body = await _with_timeout(self._read_body(headers, receive), limits.timeout_s, timeout)
            if body is not None:
                await self._answer_within_limits(scope, body, receive, response)
        finally:
            state.in_flight -= 1

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The request body; None if the client disconnected."""
        limit = self._limits.body_bytes
        too_large = ApiError(413, f"the body exceeds {limit:,} bytes; send less per request", "too_large")
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
            raise too_large
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise too_large
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _answer_within_limits(
        self, scope: Scope, body: bytes, receive: Receive, response: _ResponseSender
    ) -> None:
        """Run the endpoint until it has answered, the client disconnects or the time is up."""
        received = False

        async def receive_body() -> MutableMapping[str, Any]:
            nonlocal received
            if not received:
                received = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await asyncio.get_running_loop().create_future()  # never completes: there is nothing more to receive

        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self._app(scope, receive_body, response))
        disconnect = asyncio.ensure_future(wait_for_disconnect())
        try:
            limit = self._limits.job_timeout_s if JOB_PATH.fullmatch(scope["path"]) else self._limits.timeout_s
            for _ in range(2):  # once the answer has started, sending it may take as long again
                await asyncio.wait({work, disconnect}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if work.done() or disconnect.done() or not response.status:
                    break
            if response.is_complete:  # a disconnect is normal now, and the endpoint may still clean up
                await asyncio.wait({work}, timeout=limit)
            if work.done():
                await work
            elif response.is_complete:
                LOG.warning("unfinished", extra={"fields": {"id": response.id, "after_s": limit}})
            elif disconnect.done() or response.status:
                response.client_left = True
            else:
                raise ApiError(504, f"no answer in {limit:.0f} s; try again later, or send less per request", "timeout")
        finally:
            for task in (work, disconnect):
                task.cancel()
            await asyncio.gather(work, disconnect, return_exceptions=True)

    def _report(self, scope: Scope, response: _ResponseSender, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "(unknown)"
        status = 499 if response.client_left else response.status  # nginx's status for a client that disconnected
        method = (
            scope["method"] if scope["method"] in METHODS else "(unknown)"
        )  # else clients could add any number of labels to the metrics
        for observe in self.state.observers:
            observe(method, route, status, seconds)
        if LOG.isEnabledFor(logging.INFO):
            line = {"id": response.id, "method": method, "route": route, "status": status,
                    "ms": round(1000 * seconds, 2), "bytes": response.bytes}  # fmt: skip
            LOG.info("request", extra={"fields": line})


class _ResponseSender:
    """Sends a response with the security headers and records its status and size."""

    def __init__(self, send: Send, scope: Scope, state: ServerState) -> None:
        self._send, self._scope, self._state = send, scope, state
        self.id = secrets.token_hex(8)
        self.status, self.bytes, self.client_left = 0, 0, False
        self.is_complete, self._length = False, math.inf

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            existing = {name.lower(): value for name, value in message.get("headers", [])}
            self._length = int(existing.get(b"content-length", b"0")) or math.inf
            docs = self._scope["path"].startswith("/docs")
            added = [
                *SECURITY_HEADERS[:-1],
                DOCS_POLICY if docs else SECURITY_HEADERS[-1],
                (b"x-request-id", self.id.encode()),
            ]
            if self._state.draining:
                added.append((b"connection", b"close"))  # the load balancer sends the next request elsewhere
            message["headers"] = [
                *message.get("headers", []),
                *(header for header in added if header[0] not in existing),
            ]
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        await self._send(message)
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        self.is_complete = is_last or self.bytes >= self._length

    async def send_error(self, error: ApiError) -> None:
        body = json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "replace")
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, round(error.retry_after_s))).encode()))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self({"type": "http.response.start", "status": error.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


async def _with_timeout(work: Awaitable[Any], seconds: float, timeout: ApiError) -> Any:
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise timeout from None


def _log_failure(name: str, error: BaseException) -> None:
    """Log the type and the place of an exception, not its message, which may quote a request."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    locations = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
    LOG.error("failure", extra={"fields": {"id": name, "kind": type(error).__name__, "at": locations}})
