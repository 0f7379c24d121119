"""Servers for tests: in a thread of the test, which can be patched, and in a process, which can be killed."""

from __future__ import annotations

import io
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from polyvoc.web.server import address, bind, prepare
from polyvoc.web.service import Service
from polyvoc.web.settings import Settings

PATIENCE = 300  # seconds until something that hangs fails: a busy machine is slow, not wrong
TOKEN = "a-token-for-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Gate:
    """Lets calls of functions signal their start, and wait until they may go on."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.open = threading.Event()

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function behind the gate."""

        def wait(*arguments: Any, **options: Any) -> Any:
            self.started.release()
            assert self.open.wait(PATIENCE)
            return function(*arguments, **options)

        return wait

    def wait_for(self, count: int = 1) -> None:
        """Wait until so many more calls have started."""
        for _ in range(count):
            assert self.started.acquire(timeout=PATIENCE)


@dataclass(frozen=True)
class Served:
    """A server in a thread of this process."""

    client: httpx.Client
    address: tuple[str, int]
    app: Any

    @property
    def service(self) -> Service:
        return self.app.state.service

    def get(self, path: str, **extra: Any) -> httpx.Response:
        return self.client.get(path, **extra)

    def post(self, path: str, **extra: Any) -> httpx.Response:
        return self.client.post(path, **extra)

    def delete(self, image: int, **extra: Any) -> httpx.Response:
        return self.client.delete(f"/images/{image}", **extra)

    def search(self, photo: Path | bytes | None = None, **parameters: Any) -> httpx.Response:
        """Send POST /search, with a file or without."""
        files = None if photo is None else {"photo": upload(photo)}
        return self.client.post("/search", files=files, params=parameters)

    def store(self, photo: Path | bytes) -> str:
        """Store a photograph for further searches; return its name."""
        response = self.client.post("/queries", files={"photo": upload(photo)})
        assert response.status_code == 201, response.text
        return str(response.json()["query"])

    def add(self, photo: bytes, name: str = "x.jpg", **extra: Any) -> httpx.Response:
        """Send POST /images with one photograph."""
        return self.client.post("/images", files={"photos": (name, photo)}, **extra)

    def raw(self, content: bytes) -> tuple[int, str]:
        """Send bytes as they are; return the status (0: none) and the whole response."""
        return exchange(self.address, content)

    def raw_get(self, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
        """Send GET for a path as it is, which a client would normalise."""
        return self.raw(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


@contextmanager
def serving(index: Path, **settings: Any) -> Iterator[Served]:
    """Serve an index in a thread."""
    ready = threading.Event()
    with bind("127.0.0.1", 0) as listener:
        running = prepare(Settings(index, port=0, **{"workers": 2, "decode_seconds": 60, **settings}), ready.set)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            with httpx.Client(base_url=address(listener), timeout=PATIENCE) as client:
                yield Served(client, listener.getsockname(), running.config.app)
        finally:
            running.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive()


@dataclass(frozen=True)
class Process:
    """A server in a process of its own. Its log is read all the time, else it would block."""

    popen: subprocess.Popen[str]
    url: str
    log: list[str]  # lines since it was ready
    reader: threading.Thread

    def children(self) -> list[int]:
        """Return its decoding processes."""
        return children_of(self.popen.pid)

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; return the exit code and the log since it was ready."""
        self.popen.send_signal(number)
        code = self.popen.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code, "".join(self.log)


@contextmanager
def running(*arguments: object, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """Run `polyvoc serve` with arguments at any free port."""
    command = [sys.executable, "-m", "polyvoc", "serve", *map(str, arguments), "--port", "0"]
    known = {name: value for name, value in os.environ.items() if name != "POLYVOC_TOKEN"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**known, **(environment or {})}, **pipes) as popen:
        assert popen.stderr is not None
        first, log = popen.stderr.readline(), []
        reader = threading.Thread(target=log.extend, args=[popen.stderr])
        reader.start()
        try:
            url = re.search(r"http://\S+", first)
            assert url, first
            yield Process(popen, url[0], log, reader)
        finally:
            popen.terminate()
            popen.wait(PATIENCE)
            reader.join(PATIENCE)


def children_of(process: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(child) for task in Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()]


def has_ended(process: int) -> bool:
    """Wait for the end of a process; return whether it came."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread does."""
    for _ in range(PATIENCE * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the condition never became true")


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a search with the names of its stages instead of their seconds."""
    assert all(isinstance(value, (int, float)) and value >= 0 for value in result["seconds"].values())
    return {**result, "seconds": sorted(result["seconds"])}


def upload(photo: Path | bytes) -> tuple[str, bytes]:
    """Return name and bytes of a photograph for an upload: under its path, as the command line names it."""
    return ("photograph.jpg", photo) if isinstance(photo, bytes) else (str(photo), photo.read_bytes())


def exchange(address: tuple[str, int], content: bytes) -> tuple[int, str]:
    """Send bytes over a connection and read until the server closes it; return the status (0: none) and the response."""
    with socket.create_connection(address[:2], timeout=PATIENCE) as connection:
        received = b""
        try:
            connection.sendall(content)
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass  # the server may close the connection before it has read everything
    text = received.decode("latin-1")
    return int(text.split(" ", 2)[1]) if text.startswith("HTTP/") else 0, text


def refused(response: httpx.Response, status: int) -> str:
    """Return the one-line error of a response."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    line = response.json()["error"]
    assert line and "\n" not in line and "Traceback" not in line
    return line


def jpeg(image: Image.Image, **extra: Any) -> bytes:
    """Return an image as JPEG."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=92, **extra)
    return out.getvalue()
