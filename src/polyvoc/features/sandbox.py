"""A process that decodes photographs for its owner: no environment, no network, limits of time, memory and files.

It gets bytes, or an open file, and returns pixels. The owner (`decode`) imports this module as well, for the messages of both.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal, NoReturn

from polyvoc.errors import ImageError

Output = Literal["grey", "rgb", "thumbnail"]
MEMORY = 4 << 30  # bytes of address space, on Linux
MAX_FILES = 16  # open at a time
MAX_HEADER = 1 << 16  # bytes
LENGTHS = struct.Struct("<IQ")  # of a message: bytes of its header and of its content
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # flags of unshare(2)


@dataclass(frozen=True)
class Request:
    """What to decode, and within which limits."""

    output: Output
    long_side: int
    min_side: int
    max_pixels: int
    seconds: float  # of processor time


# -- messages


def send(connection: socket.socket, header: dict[str, Any], content: bytes = b"", file: int | None = None) -> None:
    """Send a message: a header, and content or the descriptor of a file."""
    text = json.dumps(header).encode()
    start = LENGTHS.pack(len(text), len(content)) + text
    if file is None:
        connection.sendall(start)
    else:
        socket.send_fds(connection, [start], [file])  # at once: shorter than any buffer of a socket
    connection.sendall(content)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], IO[bytes]]:
    """Return the header of a request and the photograph. Raise EOFError if the owner has gone."""
    start, files, _, _ = socket.recv_fds(connection, LENGTHS.size, 1)
    n_header, n_content = LENGTHS.unpack(start + _read(connection, LENGTHS.size - len(start)))
    header = json.loads(_read(connection, n_header))
    content = _read(connection, n_content)
    if not files:
        return header, io.BytesIO(content)
    file = os.fdopen(files[0], "rb")
    file.seek(0)  # the position is shared with the owner, and with an earlier attempt
    return header, file


def _read(connection: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(content)


# -- the process


def command(descriptor: int) -> list[str]:
    """Return the command of a process whose end of the connection has this descriptor. Modules are found where ours are."""
    code = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import main; main(int(sys.argv[1]))"
    # -I: neither variables nor the current folder count; -B: nothing is written.
    return [sys.executable, "-I", "-B", "-c", code, str(descriptor), *filter(os.path.isabs, sys.path)]


def main(descriptor: int) -> None:
    """Decode until the owner closes the connection."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the process group: the owner ends and closes the connection
        signal.signal(number, signal.SIG_IGN)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads would take address space, should NumPy be needed
    from polyvoc.features.pixels import load_formats

    load_formats()
    connection = socket.socket(fileno=descriptor)
    _leave_network()
    _limit()
    threading.Thread(target=_end_with_owner, args=(descriptor,), daemon=True).start()
    with suppress(EOFError, OSError):  # the owner has gone
        send(connection, {"ready": True})
        while True:
            header, file = _receive(connection)
            with file:
                result = _result(Request(**header), file)
            send(connection, *result)


def _result(request: Request, file: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Return the header and the content of the message about a photograph."""
    signal.setitimer(signal.ITIMER_PROF, request.seconds)  # its signal kills this process wherever it is
    try:
        header, content = _decode(request, file)
    except ImageError as error:
        header, content = {"error": str(error)}, b""
    except MemoryError:
        header, content = {"error": f"takes more than {MEMORY >> 30} GB of memory to decode; reduce it first"}, b""
    signal.setitimer(signal.ITIMER_PROF, 0)
    return header, content


def _decode(request: Request, file: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    from polyvoc.features.pixels import PixelLimits, decode, decode_thumbnail

    limits = PixelLimits(request.long_side, request.min_side, request.max_pixels)
    if request.output == "thumbnail":
        return {}, decode_thumbnail(file, limits)
    image, (width, height) = decode(file, "RGB" if request.output == "rgb" else "L", limits)
    return {"size": image.size, "full": (width, height)}, image.tobytes()


def _limit() -> None:
    """Limit what this process may use."""
    import resource

    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: MAX_FILES}
    if sys.platform == "linux":  # other systems do not enforce it
        limits[resource.RLIMIT_AS] = MEMORY
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _leave_network() -> None:
    """Move to a network of this process alone, where the system permits it: a Linux that lets users make namespaces."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)


def _end_with_owner(descriptor: int) -> NoReturn:
    """Wait until the owner is gone, then end this process, even in the middle of a photograph."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only that the other end is closed
    while not any(event & select.POLLHUP for _, event in poll.poll()):
        pass
    os._exit(0)
