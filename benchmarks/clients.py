"""Clients of `polyvoc serve`: bare HTTP over connections that are kept, cheap enough to run on the machine that is measured."""

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
    """A request as it goes over the wire, and the status that is right for it."""

    message: bytes
    status: int = 200


@dataclass(frozen=True)
class Reply:
    """What came back, and in how many seconds."""

    status: int
    seconds: float
    retry_after: float  # seconds
    body: bytes


@dataclass(frozen=True)
class Load:
    """What several clients saw until enough of their requests were answered."""

    seconds: float  # from the first request to the last answer that counts
    answered: list[float]  # seconds of each request, of the attempt that was answered
    patient: list[float]  # the same from the first attempt on, waits included
    busy: int  # answers that said to come again
    failed: list[str]  # anything else
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

    def ask(self, request: Request) -> Reply:
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
    """Let so many clients ask, each again as soon as it has its answer, until there are enough answers."""
    ask = _Asking(port, requests, enough)
    threads = [threading.Thread(target=ask.client) for _ in range(clients)]
    processor = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends = sorted(ask.ends)[:enough]
    within = [number for number, end in enumerate(ask.ends) if end <= ends[-1]]
    answered, patient = [ask.answered[n] for n in within], [ask.patient[n] for n in within]
    return Load(ends[-1] - ask.begin, answered, patient, ask.busy, ask.failed, time.process_time() - processor)


class _Asking:
    """What the clients share."""

    def __init__(self, port: int, requests: Sequence[Request], enough: int) -> None:
        self._port, self._enough = port, enough
        self._requests = cycle(requests)
        self._lock = threading.Lock()
        self.begin = time.perf_counter()
        self.ends: list[float] = []  # moment of each answer, in the order of the next two
        self.answered: list[float] = []
        self.patient: list[float] = []
        self.busy = 0
        self.failed: list[str] = []

    def client(self) -> None:
        connection = Connection(self._port)
        while len(self.ends) + len(self.failed) < self._enough:
            with self._lock:
                request = next(self._requests)
            try:
                self._insist(connection, request)
            except (OSError, ValueError, IndexError, KeyError) as error:
                self.failed.append(repr(error))
                connection.close()
                connection = Connection(self._port)
        connection.close()

    def _insist(self, connection: Connection, request: Request) -> None:
        """Ask until there is an answer, or enough of them."""
        begin = time.perf_counter()
        reply = connection.ask(request)
        while reply.status == BUSY and request.status != BUSY:
            with self._lock:
                self.busy += 1
            time.sleep(reply.retry_after)
            if len(self.ends) >= self._enough:
                return
            reply = connection.ask(request)
        end = time.perf_counter()
        with self._lock:
            if reply.status != request.status:
                first = request.message.split(b" HTTP")[0].decode()
                self.failed.append(f"{first}: {reply.status} {reply.body[:200].decode(errors='replace')}")
            else:
                self.ends.append(end)
                self.answered.append(reply.seconds)
                self.patient.append(end - begin)
