"""Photographs below folders, and whether a file has changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.storage.files import checksum
from polyvoc.storage.stores import absolute_url, is_url, is_url_below, list_files, remote_digest, remote_version, url_exists
from polyvoc.types import Problem

IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".tif", ".tiff", ".gif", ".bmp",
    ".jp2", ".j2k", ".jpx", ".pbm", ".pgm", ".ppm", ".pnm", ".pfm", ".avif",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileState:
    """What the file system says of a file: enough to see that it has not changed."""

    size: int | None
    changed: int | None  # modification time in nanoseconds


Complaint = Callable[[Problem], None]  # told of a folder that cannot be read
Folder = str | os.PathLike[str]  # or a single file, or an address in a store: that is always a str


def absolute_path(path: Folder) -> str:
    """Give a path as the catalogue has it: absolute; an address in a store stays as it is."""
    return absolute_url(path) if isinstance(path, str) and is_url(path) else os.path.abspath(path)


def check_folders(folders: Iterable[Folder]) -> None:
    """Refuse folders that are not there, and stores that do not answer."""
    for folder in folders:
        root = absolute_path(folder)
        if not (url_exists(root) if is_url(root) else os.path.exists(root)):
            raise _absent(folder)


def list_photographs(folders: Sequence[Folder], complain: Complaint | None = None) -> Iterator[tuple[str, FileState]]:
    """Give the photographs below folders (or single files), by absolute path, in the order of their names.

    Hidden folders, and indexes of polyvoc, are passed over; links to folders are not followed.
    """
    for folder in folders:
        root = absolute_path(folder)
        if is_url(root):
            yield from _stored(root, complain or _refuse_folder)
        elif os.path.isfile(root):
            yield root, file_state(root)
        elif os.path.isdir(root):
            yield from _walk(root, complain or _refuse_folder)
        else:
            raise _absent(folder)


def _stored(root: str, complain: Complaint) -> Iterator[tuple[str, FileState]]:
    try:
        for url, size, changed in list_files(root, _is_photograph, complain):
            yield url, FileState(size, changed)
    except UnreachableError as error:
        complain(Problem(root, str(error)))
    except ImageError:
        raise _absent(root) from None


def _walk(root: str, complain: Complaint) -> Iterator[tuple[str, FileState]]:
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        subfolders = []
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            complain(_unreadable(folder, error))
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and not entry.name.endswith(".polyvoc"):
                    subfolders.append(entry.path)
            elif _is_photograph(entry.name):
                try:
                    status = os.stat(entry.path)
                except OSError as error:
                    # Deleted this very moment, or a link to nothing; else the disk or the network does not answer.
                    if error.errno not in (errno.ENOENT, errno.ELOOP):
                        complain(_unreadable(entry.path, error))
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield entry.path, FileState(status.st_size, status.st_mtime_ns)
        waiting += reversed(subfolders)


def file_state(path: str) -> FileState:
    """Ask the file system, or the store, for the state of a file; what is wrong with it is an `OSError` or an `ImageError`."""
    if is_url(path):
        return FileState(*remote_version(path))
    status = os.stat(path)
    return FileState(status.st_size, status.st_mtime_ns)


def is_unchanged(path: str, state: FileState) -> bool:
    """Tell whether a file still is in the state in which it was found; one that is gone, or out of reach, is not."""
    try:
        return file_state(path) == state
    except (OSError, ImageError):
        return False


def file_digest(path: str, state: FileState) -> str | None:
    """Give the digest of a file that still is as it was found; None if it was changed since, so that it is read again."""
    try:
        if is_url(path):
            return remote_digest(path, (state.size, state.changed))
        found = checksum(Path(path))
        return found if is_unchanged(path, state) else None
    except (OSError, ImageError):
        return None


def _is_photograph(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _absent(folder: Folder) -> OptionError:
    return OptionError(f"{folder} does not exist; give a folder of photographs")


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(path, f"{path}: cannot be read ({error.strerror or error}); allow it, or leave it out")


def _refuse_folder(problem: Problem) -> None:
    raise OptionError(problem.reason)


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Tell whether a path is one of the roots or lies in one of them."""
    return any(
        is_url_below(path, root) if is_url(root) else path == root or path.startswith(root.rstrip(os.sep) + os.sep)
        for root in roots
    )
