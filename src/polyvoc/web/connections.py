"""Connections within limits: how many there are, how slowly a request may arrive, and how long it may take."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyvoc.web.framing import Framing, FramingError
from polyvoc.web.settings import Settings

logger = logging.getLogger("polyvoc.web")
BODY_GRACE = 10.0  # seconds before the rate of a body counts
STALL = 1.0  # seconds between two sweeps: after more, the loop has not read what clients have sent meanwhile
REASONS = ("connections", "address", "idle", "headers", "body", "deadline", "framing")  # why connections are closed


class Connections:
    """All connections of a server, and the limits that they share."""

    def __init__(
        self, settings: Settings, rejected: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Set the limits; `rejected` is called with the reason when a connection is closed by one of them."""
        self.settings = settings
        self.rejected = rejected
        self.clock = clock
        self._open: set[GuardedProtocol] = set()
        self._by_client: Counter[str] = Counter()
        self._swept = clock()

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def protocol(self, **arguments: Any) -> GuardedProtocol:
        """Return the protocol of a new connection, with the arguments of uvicorn."""
        return GuardedProtocol(self, **arguments)

    def add(self, connection: GuardedProtocol) -> str | None:
        """Count a new connection; return the limit that it exceeds, None if it may stay."""
        self._open.add(connection)
        self._by_client[connection.client_name] += 1
        if self._by_client[connection.client_name] > self.settings.max_per_address and not connection.of_proxy:
            return "address"
        if len(self._open) > self.settings.max_connections and not self._close_idle(connection):
            return "connections"
        return None

    def remove(self, connection: GuardedProtocol) -> None:
        """Forget a closed connection."""
        if connection in self._open:
            self._open.remove(connection)
            self._by_client[connection.client_name] -= 1
            self._by_client += Counter()  # drops clients without connections

    def sweep(self) -> None:
        """Close the connections that exceed a limit of time."""
        now, before = self.clock(), self._swept
        self._swept = now
        if now - before <= STALL:
            for connection in list(self._open):
                connection.check_time(now)

    def _close_idle(self, new: GuardedProtocol) -> bool:
        """Close the connection that has waited longest of the client with the most; return whether there was one."""
        idle = [other for other in self._open if other is not new and other.is_idle]
        if idle:
            oldest = min(idle, key=lambda other: (-self._by_client[other.client_name], other.started))
            self.rejected("idle")
            oldest.transport.abort()
            self.remove(oldest)  # now: further ones may be accepted before it is closed
        return bool(idle)


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 over one connection, closed if a request is not framed strictly or takes too long."""

    def __init__(self, shared: Connections, **arguments: Any) -> None:
        """Prepare for a connection; `arguments` are those of uvicorn."""
        super().__init__(**arguments)
        self._shared = shared
        self._framing = Framing()
        self._is_first = True  # no request was complete so far
        self._ignores = False  # what follows a request that is not framed strictly
        self.started = shared.clock()  # of the request, or of waiting for it
        self._body_since, self._body_bytes = self.started, 0
        self.client_name, self.of_proxy = "", False

    @property
    def is_idle(self) -> bool:
        """Return whether no request has arrived that is not responded to."""
        return not self._is_served and self.conn.their_state is h11.IDLE and not self._unsent

    @property
    def _is_served(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or reject it."""
        super().connection_made(transport)
        host = self.client[0] if self.client else None
        self.client_name, self.of_proxy = self._shared.settings.client(host), self._shared.settings.is_proxy(host)
        exceeded = self._shared.add(self)
        if exceeded is not None:
            self._reject(503, exceeded, "too many connections; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._shared.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read bytes; reject a request that is not framed strictly."""
        if self._ignores or self.transport.is_closing():
            return
        if self._framing.between_requests and not self._is_served:
            self.started = self._shared.clock()
        try:
            self._framing.read(data)
        except FramingError as error:
            self._reject_request(str(error))
            return
        self._body_bytes += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle what has arrived; note when the body of a request begins."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._is_first = False
            self._body_since, self._body_bytes = self._shared.clock(), 0

    def on_response_complete(self) -> None:
        """Wait for the next request, or handle it if it has arrived already."""
        self.started = self._shared.clock()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Reject what h11 cannot parse."""
        self._reject_request("malformed headers, or not exactly one Host header")

    def check_time(self, now: float) -> None:
        """Close the connection if it exceeds a limit of time."""
        settings, elapsed = self._shared.settings, now - self.started
        if elapsed > settings.request_seconds and not (self.is_idle and self._framing.between_requests):
            self._reject(503, "deadline", f"not done within {settings.request_seconds:g} s; what was changed may be there")
        elif self.conn.their_state is h11.SEND_BODY:
            self._check_body(now)
        elif self.is_idle and (self._is_first or not self._framing.between_requests) and elapsed > settings.header_seconds:
            self._reject(408, "headers", f"the headers of the request did not arrive within {settings.header_seconds:g} s")

    def _check_body(self, now: float) -> None:
        if self.flow.read_paused:  # by this server, not by the client
            self._body_since, self._body_bytes = now, 0
        rate = self._shared.settings.body_rate
        if self._body_bytes < 1000 * rate * (now - self._body_since - BODY_GRACE):
            self._reject(408, "body", f"the request arrived with less than {rate:g} kilobytes per second")

    def _reject_request(self, text: str) -> None:
        """Reject a request that is not framed strictly; a request before it that is being served gets its response."""
        self._ignores = True
        if self._is_served and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            self._shared.rejected("framing")
            self.cycle.keep_alive = False
        else:
            self._reject(400, "framing", f"invalid HTTP request: {text}")

    def _reject(self, status: int, reason: str, text: str) -> None:
        """Respond with an error, unless the request has a response already or a part of one, and close the connection."""
        self._shared.rejected(reason)
        logger.warning("connection closed: %s", reason)
        if self.transport.is_closing() or self._unsent or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        if self._is_served:  # the application sees that the client is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(_error(status, text))
        self.transport.close()


def _error(status: int, text: str) -> bytes:
    """Return a whole response."""
    body = json.dumps({"error": text})
    retry = "retry-after: 5\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{retry}"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
