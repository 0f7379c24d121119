"""Which requests are served: checks of host, origin, token and size before any route is called."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvoc.web.settings import MEGA, Settings, ip_address, is_loopback

EXTRA_UPLOADS = 64  # requests with a body that may be in progress beside those that run and wait
UPLOAD_SHARE = 2  # one client may have this part of them: a half
READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Readable without a token: of the collection they show no more than the number of images.
OPEN = frozenset({"/", "/health", "/openapi.json", "/session"})
BATCH_PATHS = frozenset({"/search/batch", "/images"})  # these take several photographs
CHANGED = ("/images", "/groups", "/duplicates", "/job")  # other methods than reading need --write here
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::[0-9]*)?", re.ASCII)  # and the port
SETUP = "/setup"  # of a server without an index: these list folders of this machine, and index one
BATCH = 8  # times the bytes of one photograph
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Token:
    """The secret token of a server, if it has one."""

    def __init__(self, secret: str | None) -> None:
        """Set the token. Its session cookie is valid as long as this process runs."""
        self.required = secret is not None
        self._secret = (secret or "").encode()
        self.cookie = hmac.new(secrets.token_bytes(32), self._secret, hashlib.sha256).hexdigest()
        self.cookie_name = f"polyvoc-{secrets.token_hex(4)}"  # browsers send cookies to all ports of a host

    def in_authorization(self, header: str) -> bool:
        """Return whether an Authorization header holds the token."""
        scheme, _, value = header.partition(" ")
        return self.required and scheme.lower() == "bearer" and hmac.compare_digest(value.encode(), self._secret)

    def in_cookies(self, header: str) -> bool:
        """Return whether a Cookie header holds the session cookie, which is made in exchange for the token."""
        value = cookie_parser(header).get(self.cookie_name, "")
        return self.required and hmac.compare_digest(value.encode(), self.cookie.encode())


class SecurityMiddleware:
    """ASGI middleware that rejects requests, limits their bodies and adds security headers to every response."""

    def __init__(self, app: ASGIApp, settings: Settings, token: Token) -> None:
        """Wrap an application."""
        self._app = app
        self._settings = settings
        self._token = token
        self._uploads: Counter[str] = Counter()  # by client: requests with a body, until the last byte of the response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path, headers = scope["method"], scope["path"], Headers(scope=scope)
        host = scope["client"][0] if scope.get("client") else None
        client = self._settings.client(host, headers.get("x-forwarded-for", ""))
        scope.setdefault("state", {})["client"] = client

        async def secure_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "Cache-Control": "no-store"}.items():
                    response_headers.setdefault(name, value)
            await send(message)

        try:
            self._check_host(headers.get("host", ""))
            self._check_access(method, path, headers)
            limit = self._settings.max_upload * MEGA * (BATCH if path in BATCH_PATHS else 1)
            length = headers.get("content-length", "0")
            if length.isdecimal() and int(length) > limit:
                raise HTTPException(413, _too_large(limit))
            with self._count_upload(client, has_body=length != "0" or "transfer-encoding" in headers):
                await self._app(scope, _LimitedBody(receive, limit), secure_send)
        except HTTPException as rejected:
            origin, extra = headers.get("origin"), dict(rejected.headers or {})
            if origin in self._settings.cors:  # its page may read the reason
                extra |= {"access-control-allow-origin": origin, "vary": "Origin"}
            await JSONResponse({"error": rejected.detail}, rejected.status_code, extra)(scope, receive, secure_send)

    def _check_host(self, host: str) -> None:
        """Raise HTTPException if a Host header does not name this server.

        Off loopback any IP address is accepted: only a name can be made to resolve to this server by an attacker.
        """
        match = HOST.fullmatch(host)
        name = match[1].strip("[]").lower() if match else ""
        known = name in {own.lower() for own in (self._settings.host, *self._settings.allow_host)} or is_loopback(name)
        if not known and not is_loopback(self._settings.host):
            known = name == socket.gethostname().lower() or ip_address(name) is not None
        if not name or not known:
            raise HTTPException(421, f"unknown Host header {host!r}; add it with --allow-host {name or 'NAME'}")

    def _check_access(self, method: str, path: str, headers: Headers) -> None:
        reads = method in READING
        sets_up = path.startswith(SETUP)
        writes = not reads and (sets_up or path.startswith(CHANGED))
        if writes and not sets_up and not self._settings.write:
            start = "serve one index" if self._settings.others else "start it"
            raise HTTPException(
                403,
                f"this server is read-only; {start} with --write to add and remove photographs, and to decide on copies",
            )
        is_open = path in OPEN or path.startswith("/page/")
        if not (is_open and reads) and _is_cross_origin(headers):
            origin = headers.get("origin", "")
            if ((writes or sets_up) and not self._token.required) or origin not in self._settings.cors:
                name = origin if origin.startswith("http") else "ORIGIN"
                raise HTTPException(403, f"requests from pages of other origins are not allowed; allow them with --cors {name}")
        needs_token = (
            self._token.required and method != "OPTIONS" and (writes or sets_up or (self._settings.private and not is_open))
        )
        has_token = self._token.in_authorization(headers.get("authorization", ""))
        has_session = self._token.in_cookies(headers.get("cookie", ""))  # for reading only
        if needs_token and not has_token and (writes or not has_session):
            message = "token missing or wrong; send it in the header 'Authorization: Bearer TOKEN'"
            raise HTTPException(401, message, {"www-authenticate": "Bearer"})

    @contextmanager
    def _count_upload(self, client: str, has_body: bool) -> Iterator[None]:
        """Count a request with a body while it is in progress: its files take space on the disk."""
        most = self._settings.threads + self._settings.queue + EXTRA_UPLOADS
        full = self._uploads.total() >= most or self._uploads[client] >= max(1, most // UPLOAD_SHARE)
        if has_body and full:
            raise HTTPException(503, "too many requests in progress; try again in 1 s", {"retry-after": "1"})
        self._uploads[client] += has_body
        try:
            yield
        finally:
            self._uploads[client] -= has_body
            self._uploads += Counter()  # drops clients without uploads


class _LimitedBody:
    """Receives the body of a request up to a limit of bytes."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._received = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self._limit:
            raise HTTPException(413, _too_large(self._limit))
        return message


def _is_cross_origin(headers: Headers) -> bool:
    """Return whether a browser sends this request for a page of another origin."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()


def _too_large(limit: int) -> str:
    return f"request larger than {limit // MEGA} megabytes; reduce the photograph, or start the server with --max-upload"
