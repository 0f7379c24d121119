"""Photograph -> upright pixels, decoded in separate processes: a hostile file cannot take this one down, nor its memory.

`read_grey`, `read_rgb` and `read_thumbnail` use processes that all of this process shares; they start when they are needed.
"""

from __future__ import annotations

import atexit
import io
import json
import math
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DecoderError, ImageError, OptionError, one_line
from polyvoc.features.sandbox import LENGTHS, MAX_HEADER, Request, command, send
from polyvoc.storage.stores import display_name, is_url, open_source
from polyvoc.threads import count_threads
from polyvoc.types import GreyImage, Source

MAX_PIXELS = 300_000_000  # by the header, before anything is decoded; phones take up to 200 million
MIN_SIDE = 32  # pixels of the short side after reduction: smaller images have hardly any features
SECONDS = 60.0  # of processor time for a photograph
# A machine may be busy, or a disk slow: that is no fault of a photograph. A process is ended after so many times the limit of
# processor time, and some seconds more.
PATIENCE, PATIENCE_SECONDS = 3.0, 20.0
START_SECONDS = 60.0  # for a process to be ready
RESTART_SECONDS = 0.25  # between two starts, beyond the first ones
SPARE_STARTS = 8  # beyond one per process, before starts are delayed
END_SECONDS = 1.0  # for the status of a process that has closed its connection
MAX_REASON = 500  # characters
KEPT_VARIABLES = ("LD_LIBRARY_PATH",)  # Python itself may not start without
OVERTIME = (-signal.SIGPROF, -signal.SIGXCPU)  # statuses of a process that was ended by its own limit
CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL))


def read_grey(source: Source, long_side: int, max_pixels: int = MAX_PIXELS, name: str | None = None) -> GreyImage:
    """Return the upright image in grey, reduced to a long side of at most `long_side`; `name` is shown in errors."""
    return shared_decoders().grey(source, long_side, max_pixels, name)


def read_rgb(source: Source, long_side: int, max_pixels: int = MAX_PIXELS, name: str | None = None) -> npt.NDArray[np.uint8]:
    """Return the upright image in colour [h, w, 3], reduced as by `read_grey`."""
    return shared_decoders().rgb(source, long_side, max_pixels, name)


def read_picture(source: Source, long_side: int) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """Return the upright image in colour [h, w, 3], reduced as by `read_grey`, and (width, height) of the full one."""
    return shared_decoders().picture(source, long_side)


def read_thumbnail(source: Source, long_side: int, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return a small upright JPEG in colour without metadata, which may reveal place and author."""
    return shared_decoders().thumbnail(source, long_side, max_pixels)


def shared_decoders() -> Decoders:
    """Return the decoders that this process shares, one per core; they end with it."""
    return _shared(os.getpid())


@cache
def _shared(process: int) -> Decoders:
    """Return those of one process: a forked one must not use the connections of its parent."""
    decoders = Decoders(count_threads())
    atexit.register(lambda: decoders.close() if os.getpid() == process else None)
    return decoders


class Decoders:
    """Processes that decode one photograph each at a time. They start when they are needed, and are replaced when they die.

    A photograph whose process dies is tried again in a new one, unless it exceeded its own limit of time. If that dies, too,
    ImageError is raised if both crashed, else DecoderError: the photograph may not be the reason.
    """

    def __init__(self, count: int, seconds: float = SECONDS, read: Callable[[str], bytes] | None = None) -> None:
        """Allow `count` processes, and `seconds` of processor time for a photograph. `read` fetches files in stores."""
        self.seconds = seconds
        self._read = read
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()  # None: a place for a process to be started
        for _ in range(count):
            self._idle.put(None)
        self._running: set[_Process] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._starts = _Rate(count + SPARE_STARTS, RESTART_SECONDS)

    def __enter__(self) -> Self:
        """Use them in a `with` statement."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the processes."""
        self.close()

    def grey(self, source: Source, long_side: int, max_pixels: int = MAX_PIXELS, name: str | None = None) -> GreyImage:
        """Return the upright image in grey, reduced to a long side of at most `long_side`; `name` is shown in errors."""
        found = self._decode(source, Request("grey", long_side, MIN_SIDE, max_pixels, self.seconds), name)
        return GreyImage(found.pixels(1)[:, :, 0], *found.full)

    def rgb(self, source: Source, long_side: int, max_pixels: int = MAX_PIXELS,
            name: str | None = None) -> npt.NDArray[np.uint8]:  # fmt: skip
        """Return the upright image in colour [h, w, 3], reduced as by `grey`."""
        return self._decode(source, Request("rgb", long_side, MIN_SIDE, max_pixels, self.seconds), name).pixels(3)

    def picture(self, source: Source, long_side: int) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
        """Return the upright image in colour [h, w, 3], reduced as by `grey`, and (width, height) of the full one."""
        found = self._decode(source, Request("rgb", long_side, MIN_SIDE, MAX_PIXELS, self.seconds))
        return found.pixels(3), found.full

    def thumbnail(self, source: Source, long_side: int, max_pixels: int = MAX_PIXELS) -> bytes:
        """Return a small upright JPEG in colour without metadata, which may reveal place and author."""
        return bytes(self._decode(source, Request("thumbnail", long_side, 1, max_pixels, self.seconds)).content)

    def start(self, count: int = 1) -> None:
        """Start processes until `count` are idle, without waiting until they are ready; if none can be, go on without."""
        lent: list[_Process | None] = []
        with suppress(queue.Empty):
            while len(lent) < count:
                lent.append(self._idle.get_nowait())
        for process in reversed(lent):
            started = process
            with suppress(DecoderError):
                started = process or self._new_process()
            self._idle.put(started)

    def close(self) -> None:
        """End all processes, at once; what is being decoded raises DecoderError."""
        self._closed.set()
        with self._lock:
            for running in self._running:
                running.kill()  # where it is lent, its borrower sees that the connection is closed
        idle: list[_Process | None] = []
        with suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for process in idle:
            if process is not None:
                self._end(process)
            self._idle.put(None)  # for threads that wait for a process, or come later: they see that there is none

    def _decode(self, source: Source, request: Request, name: str | None = None) -> _Result:
        if request.long_side < MIN_SIDE:
            raise OptionError(f"long_side={request.long_side!r} should be at least {MIN_SIDE}")
        label = display_name(name or source)
        # Stores are read here: a decoding process has neither network nor credentials.
        local = self._read(source) if self._read is not None and isinstance(source, str) and is_url(source) else source
        try:
            file = open_source(local)
        except ImageError as error:
            raise type(error)(str(error).replace(display_name(local), label, 1)) from error.__cause__
        with file:
            try:
                result = self._decode_twice(file, request)
            except ImageError as error:
                raise type(error)(f"{label}: {error}") from None
        if isinstance(result, str):
            raise ImageError(f"{label}: {result}")
        return result

    def _decode_twice(self, file: IO[bytes], request: Request) -> _Result | str:
        """Return the result, or why the photograph cannot be used; decode it again if the process dies."""
        first: _DeathError | None = None
        while True:
            try:
                with self._process() as process:
                    return process.run(request, file)
            except _DeathError as death:
                if death.status in OVERTIME:
                    raise ImageError(f"takes more than {self.seconds:g} s to decode; reduce it first") from None
                if first is not None and first.status in CRASHES and death.status in CRASHES:
                    raise ImageError(f"its decoder crashed twice ({death}); replace or remove it") from None
                if first is not None or self._closed.is_set():
                    raise DecoderError(f"could not be decoded now ({death}); try again") from None
                first = death

    @contextmanager
    def _process(self) -> Iterator[_Process]:
        """Lend a process; end it if the body fails: an unread result must not be taken for that of the next photograph."""
        process = self._idle.get()
        try:
            process = process or self._new_process()
            yield process
        except BaseException:
            if process is not None:
                self._end(process)
                process = None
            raise
        finally:
            if process is not None and self._closed.is_set():
                self._end(process)
                process = None
            self._idle.put(process)

    def _new_process(self) -> _Process:
        self._closed.wait(self._starts.delay())
        if self._closed.is_set():
            raise DecoderError("could not be decoded now (interrupted); try again")
        try:
            process = _Process()
        except OSError as error:
            raise DecoderError(f"no process to decode it can be started ({one_line(error)}); try again later") from error
        with self._lock:
            self._running.add(process)
            if self._closed.is_set():
                process.kill()
        return process

    def _end(self, process: _Process) -> None:
        with self._lock:
            self._running.discard(process)
        process.end()


@dataclass
class _Rate:
    """A bounded rate: some events at once, the others at intervals."""

    burst: int
    seconds: float

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._next = -math.inf

    def delay(self) -> float:
        """Return how many seconds to wait before the next event."""
        now = time.monotonic()
        with self._lock:
            self._next = max(self._next, now - self.burst * self.seconds) + self.seconds
            return max(0.0, self._next - now)


class _DeathError(Exception):
    """A process has ended, or does not respond; why, as text."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status  # minus the signal that ended the process; None: it was ended here


@dataclass(frozen=True, eq=False)
class _Result:
    """A decoded photograph."""

    content: bytearray
    size: tuple[int, int] = (0, 0)  # width and height of the pixels
    full: tuple[int, int] = (0, 0)  # those of the upright photograph at its full size

    @classmethod
    def of(cls, header: dict[str, Any], content: bytearray, request: Request) -> _Result:
        """Return the result in a message. Raise ValueError if it is impossible: the process may be under another's control."""
        if request.output == "thumbnail":
            return cls(content)
        width, height, full_width, full_height = map(int, (*header["size"], *header["full"]))
        channels = 3 if request.output == "rgb" else 1
        if not (0 < width <= request.long_side and 0 < height <= request.long_side):
            raise ValueError("an impossible size")
        if not (0 < full_width <= request.max_pixels and 0 < full_height <= request.max_pixels // full_width):
            raise ValueError("an impossible full size")
        if len(content) != width * height * channels:
            raise ValueError("pixels of another size")
        return cls(content, (width, height), (full_width, full_height))

    def pixels(self, channels: int) -> npt.NDArray[np.uint8]:
        """Return the pixels [h, w, channels]."""
        return np.frombuffer(self.content, np.uint8).reshape(self.size[1], self.size[0], channels)


class _Process:
    """The owner's end of one decoding process."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        null = subprocess.DEVNULL
        with theirs:
            try:
                self._popen = subprocess.Popen(command(theirs.fileno()), pass_fds=[theirs.fileno()], stdin=null, stdout=null,
                                               stderr=null, env=environment, cwd="/")  # fmt: skip
            except BaseException:
                self._connection.close()
                raise
        self._ready = False

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._popen.pid

    def run(self, request: Request, file: IO[bytes]) -> _Result | str:
        """Return the result for a photograph, or why it cannot be used. Raise _DeathError if the process dies."""
        seconds = START_SECONDS
        try:
            if not self._ready:
                self._receive(time.monotonic() + seconds, 0)
                self._ready = True
            seconds = PATIENCE * request.seconds + PATIENCE_SECONDS
            header, content = self._ask(request, file, time.monotonic() + seconds)
            if "error" in header:
                text = " ".join(str(header["error"]).split())[:MAX_REASON]
                return "".join(character if character.isprintable() else "?" for character in text)
            return _Result.of(header, content, request)
        except TimeoutError:
            raise _DeathError(f"no result within {seconds:g} s") from None
        except (OSError, EOFError):
            raise self._death() from None
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise _DeathError(f"no valid result: {type(error).__name__}") from None

    def kill(self) -> None:
        """Kill the process, whichever thread waits for it."""
        self._popen.kill()

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._popen.kill()
        self._popen.wait()
        self._connection.close()

    def _ask(self, request: Request, file: IO[bytes], deadline: float) -> tuple[dict[str, Any], bytearray]:
        self._connection.settimeout(max(0.001, deadline - time.monotonic()))
        if isinstance(file, io.BytesIO):
            send(self._connection, vars(request), file.getvalue())
        else:
            send(self._connection, vars(request), file=file.fileno())
        largest = request.long_side**2 * 3 + MAX_HEADER  # bytes: a thumbnail is smaller than its pixels, or tiny
        return self._receive(deadline, largest)

    def _receive(self, deadline: float, largest: int) -> tuple[dict[str, Any], bytearray]:
        n_header, n_content = LENGTHS.unpack(self._read(LENGTHS.size, deadline))
        if n_header > MAX_HEADER or n_content > largest:
            raise ValueError("a result of another size")
        header = json.loads(self._read(n_header, deadline))
        if not isinstance(header, dict):
            raise ValueError("no header")
        return header, self._read(n_content, deadline)

    def _read(self, size: int, deadline: float) -> bytearray:
        content = bytearray(size)
        view = memoryview(content)
        while view:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            count = self._connection.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return content

    def _death(self) -> _DeathError:
        """Return why the process has closed its connection."""
        try:
            status = self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return _DeathError("its process closed the connection")
        if status >= 0:
            return _DeathError(f"its process ended with exit code {status}", status)
        return _DeathError(signal.Signals(-status).name, status)
