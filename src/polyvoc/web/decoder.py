"""Decoding in separate processes."""

from __future__ import annotations

import json
import logging
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, UnreachableError
from polyvoc.features.decode import MAX_PIXELS, read_grey, read_rgb, read_thumbnail
from polyvoc.storage.stores import display_name, is_url
from polyvoc.types import GreyImage, Source
from polyvoc.web.pool import ABANDONED, StoreRequests

logger = logging.getLogger("polyvoc.web")
Output = Literal["grey", "rgb", "thumbnail"]
MEMORY = 4 << 30  # bytes of address space of the process
MOST = 1 << 28  # bytes of an answer
GRACE = 1.0  # seconds for the process to end itself when its time is up


class Decoders:
    """Processes that decode: each has one photograph at a time."""

    def __init__(self, count: int, seconds: float, max_pixels: int, errands: StoreRequests | None = None) -> None:
        """Start them: they are ready when the first photograph comes. What lies in stores is fetched by `errands`."""
        self._seconds = seconds
        self._errands = errands or StoreRequests(count + ABANDONED, seconds)
        self._max_pixels = max_pixels  # of bytes; files of the collection may have as many as when they were indexed
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(_Process())

    def grey(self, source: Source, long_side: int) -> GreyImage:
        """Give what `images.read_grey` gives."""
        told, pixels = self._decode(source, "grey", long_side)
        shape = told["rows"], told["columns"]
        return GreyImage(np.frombuffer(pixels, np.uint8).reshape(shape), told["width"], told["height"])

    def rgb(self, source: Source, long_side: int) -> npt.NDArray[np.uint8]:
        """Give what `images.read_rgb` gives."""
        told, pixels = self._decode(source, "rgb", long_side)
        return np.frombuffer(pixels, np.uint8).reshape(told["rows"], told["columns"], 3)

    def thumbnail(self, source: Source, long_side: int) -> bytes:
        """Give what `images.read_thumbnail` gives."""
        return self._decode(source, "thumbnail", long_side)[1]

    def close(self) -> None:
        """End the processes that are idle; use it when no photograph is being decoded."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()

    def _decode(self, source: Source, wanted: Output, long_side: int) -> tuple[dict[str, Any], bytes]:
        # Stores are asked here: what decodes needs no network.
        sent = self._errands.read(source) if isinstance(source, str) and is_url(source) else source
        path = None if isinstance(sent, bytes) else os.fspath(sent)
        most = self._max_pixels if isinstance(source, bytes) else MAX_PIXELS
        order = {"wanted": wanted, "long_side": long_side, "max_pixels": most, "seconds": self._seconds, "path": path}
        with self._process() as process:
            told, content = process.ask(order, sent if isinstance(sent, bytes) else b"", self._seconds + GRACE)
        if "error" in told:
            line = told["error"].replace(display_name(sent), display_name(source), 1)
            raise (UnreachableError if told["unreachable"] else ImageError)(line)
        return told, content

    @contextmanager
    def _process(self) -> Iterator[_Process]:
        """Lend a process; one that failed is ended, and another takes its place."""
        process = self._idle.get()
        try:
            yield process
        except BaseException as error:  # what it would say next belongs to this photograph: nobody else may hear it
            process.end()
            process = _Process()
            if isinstance(error, (OSError, EOFError, ValueError)):
                logger.warning("a process that decodes was ended: %s", type(error).__name__)
                raise ImageError("cannot be decoded within the limits of time and memory; reduce it first") from None
            raise
        finally:
            self._idle.put(process)


class _Process:
    """One process, seen from outside."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno())]  # -P: nothing from the current folder
            environment = {name: value for name, value in os.environ.items() if name != "POLYVOC_TOKEN"}
            environment["OPENBLAS_NUM_THREADS"] = "1"
            self._popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        self._connection = Connection(ours.detach())

    def ask(self, order: dict[str, Any], content: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send an order and give the answer, which must come in time."""
        self._connection.send_bytes(json.dumps(order).encode())
        self._connection.send_bytes(content)
        return json.loads(self._hear(seconds)), self._hear(GRACE)

    def _hear(self, seconds: float) -> bytes:
        if not self._connection.poll(seconds):
            raise TimeoutError
        return self._connection.recv_bytes(MOST)

    def end(self) -> None:
        """Kill the process."""
        self._connection.close()
        self._popen.kill()
        self._popen.wait()


def serve_requests(connection: Connection) -> None:
    """Decode what is sent, for ever."""
    while True:
        order, content = json.loads(connection.recv_bytes()), connection.recv_bytes()
        signal.setitimer(signal.ITIMER_REAL, order["seconds"])  # its signal ends the process, wherever it is
        told, decoded = _attempt(order, content)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(told).encode())
        connection.send_bytes(decoded)


def _attempt(order: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    source = content if order["path"] is None else order["path"]
    try:
        if order["wanted"] == "thumbnail":
            return {}, read_thumbnail(source, order["long_side"], order["max_pixels"])
        if order["wanted"] == "rgb":
            pixels = read_rgb(source, order["long_side"], order["max_pixels"])
            return {"rows": pixels.shape[0], "columns": pixels.shape[1]}, pixels.tobytes()
        grey = read_grey(source, order["long_side"], order["max_pixels"])
    except ImageError as error:
        return {"error": str(error), "unreachable": isinstance(error, UnreachableError)}, b""
    rows, columns = grey.pixels.shape
    return {"rows": rows, "columns": columns, "width": grey.width, "height": grey.height}, grey.pixels.tobytes()


def main() -> None:
    """Be the process: the number of the connection is the argument."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, they are for the server, which then hangs up
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere address space is not limited in earnest
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with suppress(EOFError, OSError):  # the server has gone
        serve_requests(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
