"""Host, origin, token, size and time of requests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvoc.web.settings import MEGA, Settings, is_loopback

BODY_SECONDS = 120.0  # for a whole request to arrive
UNDER_WAY = 64  # requests that may be on their way beside those that run and wait
READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Of the collection these tell no more than how many images it has.
OPEN = frozenset({"/", "/health", "/openapi.json", "/session"})
SEVERAL = frozenset({"/search/batch", "/images"})  # paths that take several photographs at a time
BATCH = 8  # times the bytes of one
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Rejected(Exception):
    """Why a request is not let in."""

    def __init__(self, status: int, line: str, **headers: str) -> None:
        """Remember the status of the answer, its line and further headers."""
        super().__init__(line)
        self.status = status
        self.headers = headers


class Token:
    """The secret of a server, if it has one."""

    def __init__(self, secret: str | None) -> None:
        """Hold a secret; cookies made of it end with the process."""
        self.wanted = secret is not None
        self._secret = (secret or "").encode()
        self.cookie = hmac.new(secrets.token_bytes(32), self._secret, hashlib.sha256).hexdigest()
        self.cookie_name = f"polyvoc-{secrets.token_hex(4)}"  # servers at other ports of this host share the jar

    def is_in(self, authorization: str) -> bool:
        """Tell whether an Authorization header carries the token."""
        scheme, _, given = authorization.partition(" ")
        return self.wanted and scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), self._secret)

    def was_known(self, cookies: str) -> bool:
        """Tell whether a Cookie header is that of somebody who knew the token."""
        given = cookie_parser(cookies).get(self.cookie_name, "")
        return self.wanted and hmac.compare_digest(given.encode(), self.cookie.encode())


class SecurityMiddleware:
    """The door of a server, as ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: Settings, token: Token) -> None:
        """Stand before an application."""
        self._app = app
        self._settings = settings
        self._token = token
        self._taken = 0  # requests that send something, from their first byte to the last of the answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _SecurityHeaders(send)
        headers = Headers(scope=scope)
        try:
            self._check(scope["method"], scope["path"], headers)
            limit = self._settings.max_upload * MEGA * (BATCH if scope["path"] in SEVERAL else 1)
            if _length(headers) > limit:
                raise Rejected(413, _too_much(limit))
            with self._place(scope["method"]):
                await self._app(scope, _LimitedBody(receive, limit), answer)
        except Rejected as refusal:
            origin = headers.get("origin")
            if origin in self._settings.cors:  # so that the page may read why
                refusal.headers |= {"access-control-allow-origin": origin, "vary": "Origin"}
            await _refuse(answer, refusal)

    @contextmanager
    def _place(self, method: str) -> Iterator[None]:
        """Hold a place for a request that sends something: what is on its way takes room on the disk."""
        sends = method not in READING
        if sends and self._taken >= self._settings.threads + self._settings.queue + UNDER_WAY:
            raise Rejected(503, "too many requests are under way already; try again in 1 s", **{"retry-after": "1"})
        self._taken += sends
        try:
            yield
        finally:
            self._taken -= sends

    def _check(self, method: str, path: str, headers: Headers) -> None:
        if not self._is_known(headers.get("host", "")):
            line = "this server is not called so; start it with --allow-host NAME if it is"
            raise Rejected(421, line)
        writes = method not in READING and path.startswith("/images")
        if writes and not self._settings.write:  # before anything is sent
            raise Rejected(403, "this server only reads; start it with --write to add and remove photographs")
        opened = path in OPEN or path.startswith("/page/")
        foreign = not (opened and method in READING) and self._is_foreign(headers)
        if foreign and ((writes and not self._token.wanted) or headers.get("origin") not in self._settings.cors):
            raise Rejected(403, "pages of other origins may not ask; start the server with --cors ORIGIN if they should")
        needed = writes or (self._settings.private and not opened)
        if self._token.wanted and needed and method != "OPTIONS":
            given = self._token.is_in(headers.get("authorization", ""))
            if not given and (writes or not self._token.was_known(headers.get("cookie", ""))):
                line = "this needs the server's token, in the header 'Authorization: Bearer TOKEN'"
                raise Rejected(401, line, **{"www-authenticate": "Bearer"})

    def _is_known(self, host: str) -> bool:
        """Tell whether a Host header names this server.

        Off loopback any address will do: only a name can be made to point here by somebody else.
        """
        name = _host_name(host)
        known = {name.lower() for name in (self._settings.host, *self._settings.allow_hosts)}
        if name in known or is_loopback(name):
            return bool(name)
        if is_loopback(self._settings.host):
            return False
        return name == socket.gethostname().lower() or _is_address(name)

    def _is_foreign(self, headers: Headers) -> bool:
        """Tell whether a browser sends this for a page of another origin."""
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        origin = headers.get("origin")
        return origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()


class _SecurityHeaders:
    """Sends an answer with headers that bind the browser."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


class _LimitedBody:
    """Receives a body, as long as it is short enough and comes in time."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._count = 0
        self._ended = False
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> Message:
        if self._ended:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"the request did not arrive within {BODY_SECONDS:.0f} s") from None
        self._count += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._count > self._limit:
            raise HTTPException(413, _too_much(self._limit))
        return message


async def _refuse(send: Send, refusal: Rejected) -> None:
    body = json.dumps({"error": str(refusal)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _too_much(limit: int) -> str:
    return f"more than {limit // MEGA} megabytes; reduce the photograph, or start the server with --max-upload"


def _length(headers: Headers) -> int:
    try:
        return int(headers.get("content-length", "0"))
    except ValueError:
        return 0


def _host_name(host: str) -> str:
    """Give the name or address in a Host header, without the port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
