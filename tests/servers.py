"""Servers to ask: one in a thread of the test, which can be patched, and one in a process, which can be killed."""

from __future__ import annotations

import io
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from polyvoc.web.server import address, bind, prepare
from polyvoc.web.service import IndexEdits, Service
from polyvoc.web.settings import Settings

PATIENCE = 60  # seconds until something that hangs fails
TOKEN = "a-token-for-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass(frozen=True)
class Served:
    """A server in a thread of this process."""

    client: httpx.Client
    address: tuple[str, int]
    app: Any

    @property
    def service(self) -> Service:
        return self.app.state.service

    @property
    def changes(self) -> IndexEdits:
        return self.app.state.changes

    def get(self, path: str, **extra: Any) -> httpx.Response:
        return self.client.get(path, **extra)

    def search(self, photo: Path | bytes | None = None, **parameters: Any) -> httpx.Response:
        """Ask POST /search, with a file or without."""
        files = None if photo is None else {"photo": upload(photo)}
        return self.client.post("/search", files=files, params=parameters)

    def raw(self, content: bytes) -> tuple[int, str]:
        """Send bytes as they are; gives the status and all that came."""
        return exchange(self.address, content)


@contextmanager
def serving(index: Path, **told: Any) -> Iterator[Served]:
    """Serve an index in a thread."""
    ready = threading.Event()
    settings = Settings(index, port=0, **{"workers": 2, **told})
    with bind("127.0.0.1", 0) as listening:
        running = prepare(settings, ready.set)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            with httpx.Client(base_url=address(listening), timeout=PATIENCE) as client:
                yield Served(client, listening.getsockname(), running.config.app)
        finally:
            running.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive()


@dataclass(frozen=True)
class Process:
    """A server in a process of its own. What it logs is read all the time, else it would wait for that."""

    popen: subprocess.Popen[str]
    url: str
    log: list[str]  # lines since it was ready
    reader: threading.Thread

    def children(self) -> list[int]:
        """Give the processes that decode for it."""
        return children_of(self.popen.pid)

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; gives the exit code, and what it had to say since it was ready."""
        self.popen.send_signal(number)
        code = self.popen.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code, "".join(self.log)


@contextmanager
def running(*arguments: object, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """Run `polyvoc serve` with arguments, at any port."""
    command = [sys.executable, "-m", "polyvoc", "serve", *map(str, arguments), "--port", "0"]
    known = {name: value for name, value in os.environ.items() if name != "POLYVOC_TOKEN"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**known, **(environment or {})}, **pipes) as popen:
        assert popen.stderr is not None
        first, log = popen.stderr.readline(), []
        reader = threading.Thread(target=log.extend, args=[popen.stderr])
        reader.start()
        try:
            found = re.search(r"http://\S+", first)
            assert found, first
            yield Process(popen, found[0], log, reader)
        finally:
            popen.terminate()
            popen.wait(PATIENCE)
            reader.join(PATIENCE)


def children_of(process: int) -> list[int]:
    """Give the children of a process, from the kernel's list."""
    return [int(child) for task in Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()]


def has_ended(process: int) -> bool:
    """Wait until a process has ended; False if it lives on and on."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


def upload(photo: Path | bytes) -> tuple[str, bytes]:
    """Give a photograph as it is sent: under its path, as the command line names it."""
    return ("photograph.jpg", photo) if isinstance(photo, bytes) else (str(photo), photo.read_bytes())


def exchange(address: tuple[str, int], content: bytes) -> tuple[int, str]:
    """Send bytes over a connection and read until the server closes it; gives the status (0: none) and what came."""
    with socket.create_connection(address[:2], timeout=PATIENCE) as connection:
        received = b""
        try:
            connection.sendall(content)
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass  # a server that has said enough may hang up on the rest
    text = received.decode("latin-1")
    return int(text.split(" ", 2)[1]) if text.startswith("HTTP/") else 0, text


def refused(response: httpx.Response, status: int) -> str:
    """Give the one line with which a request was refused."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    line = response.json()["error"]
    assert line and "\n" not in line and "Traceback" not in line
    return line


def jpeg(image: Image.Image, **extra: Any) -> bytes:
    """Give an image as the bytes of a JPEG."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=92, **extra)
    return out.getvalue()
