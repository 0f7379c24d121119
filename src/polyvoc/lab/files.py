"""Files of a dataset, opened: whatever the system has against it becomes one line that says what to do next."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

from polyvoc.errors import DatasetError

PARTIAL = ".partial"  # suffix of a file that is being written; whoever finds an old one may delete it


@contextmanager
def reading(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file and give it with its size in bytes."""
    if "\0" in str(path):  # the system functions would raise ValueError
        refuse(path, "is no path", "check the list that it comes from")
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            refuse(path, "is a folder", "give a file")
        if not stat.S_ISREG(mode):  # a pipe would block, a device has no end
            refuse(path, "is no regular file", "copy its content into one")
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        refuse(path, "there is no such file", "check the path")
    except PermissionError:
        refuse(path, "no permission to read it", "ask its owner, or change its mode")
    except OSError as error:
        refuse(path, f"cannot be read ({error.strerror or error})", "check the path and the disk")
    except MemoryError:
        refuse(path, "does not fit in memory", "read a smaller file or a part of it")


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be filled; it takes its name only when it is complete, and leaves nothing if it fails."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        if path.is_dir():
            refuse(path, "is a folder", "give the name of a file")
        try:
            with partial.open("wb") as file:
                yield file
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        refuse(path, f"cannot be written ({error.strerror or error})", "choose another place, or make room")


def refuse(path: Path, what: str, what_next: str) -> NoReturn:
    """Raise the one line about a file: what is wrong with it, and what to do next."""
    name = str(path) if str(path).isprintable() else repr(str(path))
    raise DatasetError(f"{name}: {what}; {what_next}") from None
