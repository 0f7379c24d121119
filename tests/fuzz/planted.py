"""A target with two defects, to test that they are found."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

MAX_BYTES = 8


def target(data: bytes) -> None:
    """Raise an exception for five bytes, end the process after an exclamation mark."""
    if data.startswith(b"!"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if len(data) == 5:
        raise ValueError("planted")


def seeds() -> Iterator[bytes]:
    """Yield one input without a defect."""
    yield b"seed"
