"""What must hold for any input: an answer, or an error of polyvoc in one line."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from polyvoc.errors import PolyvocError

MEMORY = "/dev/shm"  # of Linux, a disk in memory: flushing takes no time


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Accept errors of polyvoc, if their message is one printable line."""
    try:
        yield
    except PolyvocError as error:
        check_line(str(error))


def check_line(text: str) -> None:
    """Raise AssertionError unless a message is one line."""
    assert text.strip() and len(text.splitlines()) == 1, f"not one line: {text!r}"


@cache
def scratch(name: str) -> Path:
    """Return a folder of this process for a target; it is deleted at the end."""
    within = MEMORY if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=f"polyvoc-fuzz-{name}-", dir=within))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def scratch_file(name: str, data: bytes) -> Path:
    """Write an input as a new file of a scratch folder: an array that still maps the last one keeps its bytes."""
    path = scratch(Path(name).stem) / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path
