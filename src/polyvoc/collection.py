"""Here is a folder, or an address in a store: which photographs are in it, and what has changed since the last time?"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyvoc import storage, stores
from polyvoc.catalogue import FileState, ImageRow
from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.images import IMAGE_SUFFIXES
from polyvoc.records import Problem

Complaint = Callable[[Problem], None]  # told of a folder that cannot be read
Folder = str | os.PathLike[str]  # or a single file, or an address in a store: that is always a str


@dataclass
class Changes:
    """What differs between folders and the catalogue."""

    new: list[tuple[str, FileState]] = field(default_factory=list)
    changed: list[tuple[ImageRow, FileState]] = field(default_factory=list)
    missing: list[ImageRow] = field(default_factory=list)
    unchanged: int = 0
    known: ImageRow | None = None  # one that is there, unchanged
    still_broken: list[Problem] = field(default_factory=list)  # tried before, not changed since
    mended: list[str] = field(default_factory=list)  # problems of files that are gone or have changed
    unreadable: list[Problem] = field(default_factory=list)  # folders; what the catalogue holds from there is unchanged
    emptied: list[str] = field(default_factory=list)  # given folders where everything is missing: perhaps not mounted


def location(path: Folder) -> str:
    """Give a path as the catalogue has it: absolute; an address in a store stays as it is."""
    return stores.absolute(path) if isinstance(path, str) and stores.is_url(path) else os.path.abspath(path)


def check(folders: Iterable[Folder]) -> None:
    """Refuse folders that are not there, and stores that do not answer."""
    for folder in folders:
        root = location(folder)
        if not (stores.exists(root) if stores.is_url(root) else os.path.exists(root)):
            raise _absent(folder)


def photographs(folders: Sequence[Folder], complain: Complaint | None = None) -> Iterator[tuple[str, FileState]]:
    """Give the photographs below folders (or single files), by absolute path, in the order of their names.

    Hidden folders, and indexes of polyvoc, are passed over; links to folders are not followed.
    """
    for folder in folders:
        root = location(folder)
        if stores.is_url(root):
            yield from _stored(root, complain or _refuse)
        elif os.path.isfile(root):
            yield root, state_of(root)
        elif os.path.isdir(root):
            yield from _walk(root, complain or _refuse)
        else:
            raise _absent(folder)


def _stored(root: str, complain: Complaint) -> Iterator[tuple[str, FileState]]:
    try:
        for url, size, changed in stores.listed(root, _is_photograph, complain):
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


def state_of(path: str) -> FileState:
    """Ask the file system, or the store, for the state of a file; what is wrong with it is an `OSError` or an `ImageError`."""
    if stores.is_url(path):
        return FileState(*stores.state(path))
    status = os.stat(path)
    return FileState(status.st_size, status.st_mtime_ns)


def is_as_found(path: str, state: FileState) -> bool:
    """Tell whether a file still is in the state in which it was found; one that is gone, or out of reach, is not."""
    try:
        return state_of(path) == state
    except (OSError, ImageError):
        return False


def digest(path: str, state: FileState) -> str | None:
    """Give the digest of a file that still is as it was found; None if it was changed since, so that it is read again."""
    try:
        if stores.is_url(path):
            return stores.digest(path, (state.size, state.changed))
        found = storage.checksum(Path(path))
        return found if is_as_found(path, state) else None
    except (OSError, ImageError):
        return None


def _is_photograph(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _absent(folder: Folder) -> OptionError:
    return OptionError(f"{folder} does not exist; give a folder of photographs")


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(path, f"{path}: cannot be read ({error.strerror or error}); allow it, or leave it out")


def _refuse(problem: Problem) -> None:
    raise OptionError(problem.reason)


def compare(folders: Sequence[Folder], rows: Iterable[ImageRow], problems: dict[str, tuple[FileState, Problem]]) -> Changes:
    """Compare folders with the catalogue, without opening a file."""
    roots = [location(folder) for folder in folders]
    known = {row.path: row for row in rows if is_below(row.path, roots)}
    broken = {path: entry for path, entry in problems.items() if is_below(path, roots)}
    changes = Changes()
    seen = set()

    for path, state in photographs(folders, changes.unreadable.append):
        if path in seen:
            continue
        seen.add(path)
        row = known.pop(path, None)
        if row is not None and row.state == state:
            changes.unchanged += 1
            changes.known = row
        elif path in broken and broken[path][0] == state:
            changes.still_broken.append(broken.pop(path)[1])
        elif row is not None:
            changes.changed.append((row, state))
        else:
            changes.new.append((path, state))
    hidden = [problem.path for problem in changes.unreadable]
    changes.missing = [row for row in known.values() if not is_below(row.path, hidden)]
    changes.unchanged += len(known) - len(changes.missing)
    changes.mended = [path for path in broken if not is_below(path, hidden)]
    missing = [row.path for row in changes.missing]
    changes.emptied = [root for root in roots if _any_below(missing, root) and not _any_below(seen, root)]
    return changes


def _any_below(paths: Iterable[str], root: str) -> bool:
    return any(is_below(path, [root]) for path in paths)


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Tell whether a path is one of the roots or lies in one of them."""
    return any(
        stores.is_below(path, root) if stores.is_url(root) else path == root or path.startswith(root.rstrip(os.sep) + os.sep)
        for root in roots
    )
