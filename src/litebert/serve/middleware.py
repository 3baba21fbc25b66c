"""What every request passes before an endpoint sees it: who may ask, how much, how many at once, and for how long.

A plain ASGI application around another.
"""

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
"""No key is asked for what a browser loads before anybody can type one."""
UNLIMITED_PATHS = ("/metrics", "/v1/models")
"""Answered at once, however many requests wait."""
JOB_PATH = re.compile(r"/search|/adapt(/[^/]+/examples)?")
"""What reads many texts before it answers."""
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
)  # Swagger's page sets styles of its own
INTERNAL_ERROR = ApiError(500, "the server made a mistake; its log says where", "server_error")
LOG = logging.getLogger("litebert.serve")


@dataclass
class AccessControl:
    """Who may ask."""

    keys: Sequence[str] = ()
    """Empty: everybody."""
    hosts: Sequence[str] = ()
    """What the Host header may name, without its port; empty: anything."""
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
            raise ApiError(403, "a page of another origin may not ask here (CORS is off)", "forbidden")
        if self.keys and not self.needs_no_key(path) and not self._knows(api_key_of(headers)):
            raise ApiError(
                401, "no API key, or one that is not known; send the header: Authorization: Bearer KEY",
                "authentication_error",
            )  # fmt: skip

    def needs_no_key(self, path: str) -> bool:
        return is_public(path) or (self.open_metrics and path == "/metrics")

    def _knows(self, key: bytes) -> bool:
        found = False
        for known in self.keys:  # all of them, so that time tells nothing
            found |= hmac.compare_digest(known.encode(), key)
        return found


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
    """What the gate and the endpoints share."""

    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    retry_after_s: Callable[[], float] = lambda: 1.0
    observers: list[Callable[[str, str, int, float], None]] = field(default_factory=list)
    """Hear method, route, status and seconds of every request."""


class RequestMiddleware:
    def __init__(self, app: App, limits: Limits, access: AccessControl, state: ServerState) -> None:
        self._app, self._limits, self._access, self.state = app, limits, access, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = _ResponseSender(send, scope, self.state)
        began = time.perf_counter()
        try:
            headers = dict(scope["headers"])
            self._access.check(scope["path"], headers)
            if is_public(scope["path"]) or scope["path"] in UNLIMITED_PATHS:
                await self._app(scope, receive, told)
            else:
                await self._guarded(scope, headers, receive, told)
        except ApiError as refused:
            await told.refuse(refused)
        except Exception as error:  # noqa: BLE001  # ours: the client hears that, and the log where, without the text
            _log_failure(told.id, error)
            if not told.status:
                await told.refuse(INTERNAL_ERROR)
        finally:
            self._report(scope, told, time.perf_counter() - began)

    async def _guarded(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, told: _ResponseSender
    ) -> None:
        """An endpoint that computes."""
        state, limits = self.state, self._limits
        if state.in_flight >= limits.requests:
            raise ApiError(
                429, f"{state.in_flight} requests are being answered, which is all this server takes; try again later",
                "overloaded", retry_after_s=state.retry_after_s(),
            )  # fmt: skip
        state.in_flight += 1
        try:
            late = ApiError(408, f"only part of the request was there after {limits.timeout_s:.0f} s", "timeout")
            body = await _with_timeout(self._body(headers, receive), limits.timeout_s, late)
            if body is not None:
                await self._answer(scope, body, receive, told)
        finally:
            state.in_flight -= 1

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """None: the client has left."""
        most = self._limits.body_bytes
        too_long = ApiError(413, f"a body of more than {most:,} bytes; send less in a request", "too_large")
        said = headers.get(b"content-length", b"")
        if said.isdigit() and (len(said) > 18 or int(said) > most):
            raise too_long
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise too_long
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, told: _ResponseSender) -> None:
        """Until it is answered, or nobody waits for it any more."""
        given = False

        async def again() -> MutableMapping[str, Any]:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await asyncio.get_running_loop().create_future()  # nothing comes after it

        async def left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self._app(scope, again, told))
        leaving = asyncio.ensure_future(left())
        try:
            limit = self._limits.job_timeout_s if JOB_PATH.fullmatch(scope["path"]) else self._limits.timeout_s
            for _ in range(2):  # who has begun to hear the answer gets as long again
                await asyncio.wait({work, leaving}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if work.done() or leaving.done() or not told.status:
                    break
            if told.is_whole:  # a client that has it all is said to have left, and the endpoint may still clean up
                await asyncio.wait({work}, timeout=limit)
            if work.done():
                await work
            elif told.is_whole:
                LOG.warning("unfinished", extra={"fields": {"id": told.id, "after_s": limit}})
            elif leaving.done() or told.status:
                told.left = True
            else:
                raise ApiError(504, f"no answer in {limit:.0f} s; try again later, or ask less at once", "timeout")
        finally:
            for task in (work, leaving):
                task.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)

    def _report(self, scope: Scope, told: _ResponseSender, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "(unknown)"
        status = 499 if told.left else told.status  # nginx's number for a client that has left
        method = scope["method"] if scope["method"] in METHODS else "(unknown)"  # else anybody could fill the metrics
        for observe in self.state.observers:
            observe(method, route, status, seconds)
        if LOG.isEnabledFor(logging.INFO):
            line = {"id": told.id, "method": method, "route": route, "status": status,
                    "ms": round(1000 * seconds, 2), "bytes": told.bytes}  # fmt: skip
            LOG.info("request", extra={"fields": line})


class _ResponseSender:
    """Sends an answer, with our headers, and remembers what it was."""

    def __init__(self, send: Send, scope: Scope, state: ServerState) -> None:
        self._send, self._scope, self._state = send, scope, state
        self.id = secrets.token_hex(8)
        self.status, self.bytes, self.left = 0, 0, False
        self.is_whole, self._length = False, math.inf

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.lower(): value for name, value in message.get("headers", [])}
            self._length = int(given.get(b"content-length", b"0")) or math.inf
            docs = self._scope["path"].startswith("/docs")
            ours = [
                *SECURITY_HEADERS[:-1],
                DOCS_POLICY if docs else SECURITY_HEADERS[-1],
                (b"x-request-id", self.id.encode()),
            ]
            if self._state.draining:
                ours.append((b"connection", b"close"))  # the next request goes to another server
            message["headers"] = [*message.get("headers", []), *(one for one in ours if one[0] not in given)]
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        await self._send(message)
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        self.is_whole = is_last or self.bytes >= self._length

    async def refuse(self, refused: ApiError) -> None:
        body = json.dumps(refused.body(), ensure_ascii=False).encode("utf-8", "replace")
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if refused.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, round(refused.retry_after_s))).encode()))
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


async def _with_timeout(work: Awaitable[Any], seconds: float, late: ApiError) -> Any:
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise late from None


def _log_failure(name: str, error: BaseException) -> None:
    """Its kind and where it happened; its message may hold a text."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
    LOG.error("failure", extra={"fields": {"id": name, "kind": type(error).__name__, "at": places}})
