"""Decoding of photographs in separate processes with limits of time and memory."""

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
MEMORY = 4 << 30  # bytes of address space of a process
MAX_RESULT = 1 << 28  # bytes
GRACE = 1.0  # seconds for a process to end itself after its time limit


class Decoders:
    """Processes that decode one photograph each at a time."""

    def __init__(
        self, count: int, seconds: float, max_pixels: int, stores: StoreRequests | None = None, grace: float = GRACE
    ) -> None:
        """Start the processes. Files in stores are fetched by `stores`."""
        self._seconds = seconds
        self._grace = grace
        self._stores = stores or StoreRequests(count + ABANDONED, seconds)
        self._max_pixels = max_pixels  # of uploads; files of the index have the limit of indexing
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(_Process())

    def grey(self, source: Source, long_side: int) -> GreyImage:
        """Return `read_grey(source, long_side)`."""
        info, pixels = self._decode(source, "grey", long_side)
        return GreyImage(np.frombuffer(pixels, np.uint8).reshape(info["shape"]), info["width"], info["height"])

    def rgb(self, source: Source, long_side: int) -> npt.NDArray[np.uint8]:
        """Return `read_rgb(source, long_side)`."""
        info, pixels = self._decode(source, "rgb", long_side)
        return np.frombuffer(pixels, np.uint8).reshape(info["shape"])

    def thumbnail(self, source: Source, long_side: int) -> bytes:
        """Return `read_thumbnail(source, long_side)`."""
        return self._decode(source, "thumbnail", long_side)[1]

    def close(self) -> None:
        """End the idle processes; call it when nothing is being decoded."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()

    def _decode(self, source: Source, output: Output, long_side: int) -> tuple[dict[str, Any], bytes]:
        # Stores are read here: the decoding process needs no network.
        local = self._stores.read(source) if isinstance(source, str) and is_url(source) else source
        path, content = (None, local) if isinstance(local, bytes) else (os.fspath(local), b"")
        max_pixels = self._max_pixels if isinstance(source, bytes) else MAX_PIXELS
        request = {"output": output, "long_side": long_side, "max_pixels": max_pixels, "seconds": self._seconds, "path": path}
        with self._process() as process:
            info, result = process.run(request, content, self._seconds + self._grace)
        if "error" in info:
            message = info["error"].replace(display_name(local), display_name(source), 1)
            raise (UnreachableError if info["unreachable"] else ImageError)(message)
        return info, result

    @contextmanager
    def _process(self) -> Iterator[_Process]:
        """Lend an idle process; replace it if the body fails."""
        process = self._idle.get()
        try:
            yield process
        except BaseException as error:  # an unread result must not be taken for that of the next photograph
            process.end()
            process = _Process()
            if isinstance(error, (OSError, EOFError, ValueError)):
                logger.warning("a decoding process was ended: %s", type(error).__name__)
                raise ImageError("cannot be decoded within the limits of time and memory; reduce it first") from None
            raise
        finally:
            self._idle.put(process)


class _Process:
    """The server's end of one decoding process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno())]  # -P: nothing from the current folder
            environment = {name: value for name, value in os.environ.items() if name != "POLYVOC_TOKEN"}
            environment["OPENBLAS_NUM_THREADS"] = "1"
            self._popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        self._connection = Connection(ours.detach())

    def run(self, request: dict[str, Any], content: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the result; raise TimeoutError if it takes too long."""
        self._connection.send_bytes(json.dumps(request).encode())
        self._connection.send_bytes(content)
        return json.loads(self._receive(seconds)), self._receive(GRACE)

    def _receive(self, seconds: float) -> bytes:
        if not self._connection.poll(seconds):
            raise TimeoutError
        return self._connection.recv_bytes(MAX_RESULT)

    def end(self) -> None:
        """Kill the process."""
        self._connection.close()
        self._popen.kill()
        self._popen.wait()


def main() -> None:
    """Run a decoding process; the argument is the file descriptor of its connection."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the process group: the server ends and closes the connection
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # other systems do not enforce it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with suppress(EOFError, OSError):  # the server has ended
        connection = Connection(int(sys.argv[1]))
        while True:
            request, content = json.loads(connection.recv_bytes()), connection.recv_bytes()
            signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # its signal kills this process wherever it is
            info, result = _decode(request, content)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(json.dumps(info).encode())
            connection.send_bytes(result)


def _decode(request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    source = content if request["path"] is None else request["path"]
    limits = request["long_side"], request["max_pixels"]
    try:
        if request["output"] == "thumbnail":
            return {}, read_thumbnail(source, *limits)
        if request["output"] == "rgb":
            rgb = read_rgb(source, *limits)
            return {"shape": rgb.shape}, rgb.tobytes()
        grey = read_grey(source, *limits)
        return {"shape": grey.pixels.shape, "width": grey.width, "height": grey.height}, grey.pixels.tobytes()
    except ImageError as error:
        return {"error": str(error), "unreachable": isinstance(error, UnreachableError)}, b""


if __name__ == "__main__":
    main()
