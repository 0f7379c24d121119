"""Clients of `polyvoc serve`: plain HTTP over kept connections, cheap enough to run on the measured machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

BOUNDARY = "a-photograph-of-polyvoc"
BUSY = 503


@dataclass(frozen=True)
class Request:
    """A request as bytes, and the expected status."""

    message: bytes
    status: int = 200


@dataclass(frozen=True)
class Reply:
    """A reply, and its seconds."""

    status: int
    seconds: float
    retry_after: float  # seconds
    body: bytes


@dataclass(frozen=True)
class Load:
    """Times and failures of several clients until enough requests were completed."""

    seconds: float  # from the first request to the last counted reply
    answered: list[float]  # seconds of each request, of its last attempt
    with_waits: list[float]  # the same from the first attempt on
    busy: int  # replies with status 503
    failed: list[str]  # other failures
    client_seconds: float  # processor time of the clients' process


def get(target: str, status: int = 200) -> Request:
    return Request(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), status)


def post(target: str, photo: bytes | None = None, status: int = 200) -> Request:
    """A POST request: without a body, or with a photograph in a form."""
    part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="photo"; filename="photo.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    body = b"" if photo is None else part.encode() + photo + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = "" if photo is None else f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
    return Request(head.encode() + body, status)


class Connection:
    """A connection that is kept: one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def send(self, request: Request) -> Reply:
        begin = time.perf_counter()
        self._socket.sendall(request.message)
        status = int(self._stream.readline().split()[1])
        headers = dict(self._headers())
        body = self._stream.read(int(headers["content-length"]))
        return Reply(status, time.perf_counter() - begin, float(headers.get("retry-after", 0)), body)

    def _headers(self) -> Iterator[tuple[str, str]]:
        while line := self._stream.readline().strip().decode():
            name, _, value = line.partition(": ")
            yield name.lower(), value

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def load(port: int, requests: Sequence[Request], clients: int, enough: int) -> Load:
    """Run clients, each sending its next request after the reply to the last, until there are enough replies."""
    shared = _Shared(port, requests, enough)
    threads = [threading.Thread(target=shared.client) for _ in range(clients)]
    processor = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends = sorted(shared.ends)[:enough]
    within = [number for number, end in enumerate(shared.ends) if end <= ends[-1]]
    answered, with_waits = [shared.answered[n] for n in within], [shared.with_waits[n] for n in within]
    return Load(ends[-1] - shared.begin, answered, with_waits, shared.busy, shared.failed, time.process_time() - processor)


class _Shared:
    """State shared by the clients."""

    def __init__(self, port: int, requests: Sequence[Request], enough: int) -> None:
        self._port, self._enough = port, enough
        self._requests = cycle(requests)
        self._lock = threading.Lock()
        self.begin = time.perf_counter()
        self.ends: list[float] = []  # time of each reply, in the order of the next two
        self.answered: list[float] = []
        self.with_waits: list[float] = []
        self.busy = 0
        self.failed: list[str] = []

    def client(self) -> None:
        connection = Connection(self._port)
        while len(self.ends) + len(self.failed) < self._enough:
            with self._lock:
                request = next(self._requests)
            try:
                self._retry(connection, request)
            except (OSError, ValueError, IndexError, KeyError) as error:
                self.failed.append(repr(error))
                connection.close()
                connection = Connection(self._port)
        connection.close()

    def _retry(self, connection: Connection, request: Request) -> None:
        """Send until the reply is not 503, or there are enough replies."""
        begin = time.perf_counter()
        reply = connection.send(request)
        while reply.status == BUSY and request.status != BUSY:
            with self._lock:
                self.busy += 1
            time.sleep(reply.retry_after)
            if len(self.ends) >= self._enough:
                return
            reply = connection.send(request)
        end = time.perf_counter()
        with self._lock:
            if reply.status != request.status:
                first = request.message.split(b" HTTP")[0].decode()
                self.failed.append(f"{first}: {reply.status} {reply.body[:200].decode(errors='replace')}")
            else:
                self.ends.append(end)
                self.answered.append(reply.seconds)
                self.with_waits.append(end - begin)
