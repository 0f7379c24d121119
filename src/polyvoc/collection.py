"""Here is a folder: which photographs are in it, and what has changed since the last time?"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyvoc import storage
from polyvoc.catalogue import FileState, ImageRow
from polyvoc.errors import OptionError
from polyvoc.images import IMAGE_SUFFIXES
from polyvoc.records import Problem

Complaint = Callable[[str, OSError], None]  # told of a folder that cannot be read


@dataclass
class Changes:
    """What differs between folders and the catalogue."""

    new: list[tuple[str, FileState]] = field(default_factory=list)
    changed: list[tuple[ImageRow, FileState]] = field(default_factory=list)
    missing: list[ImageRow] = field(default_factory=list)
    unchanged: int = 0
    still_broken: list[Problem] = field(default_factory=list)  # tried before, not changed since
    mended: list[str] = field(default_factory=list)  # problems of files that are gone or have changed
    unreadable: list[Problem] = field(default_factory=list)  # folders; what the catalogue holds from there is unchanged
    emptied: list[str] = field(default_factory=list)  # given folders where everything is missing: perhaps not mounted


def photographs(folders: Sequence[Path], complain: Complaint | None = None) -> Iterator[tuple[str, FileState]]:
    """Give the photographs below folders (or single files), by absolute path, in the order of their names.

    Hidden folders, and indexes of polyvoc, are passed over; links to folders are not followed.
    """
    for folder in folders:
        root = os.path.abspath(folder)
        if os.path.isfile(root):
            yield root, state_of(root)
        elif os.path.isdir(root):
            yield from _walk(root, complain or _refuse)
        else:
            raise OptionError(f"{folder} does not exist; give a folder of photographs")


def _walk(root: str, complain: Complaint) -> Iterator[tuple[str, FileState]]:
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        subfolders = []
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            complain(folder, error)
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and not entry.name.endswith(".polyvoc"):
                    subfolders.append(entry.path)
            elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
                try:
                    status = os.stat(entry.path)
                except OSError as error:
                    # Deleted this very moment, or a link to nothing; else the disk or the network does not answer.
                    if error.errno not in (errno.ENOENT, errno.ELOOP):
                        complain(entry.path, error)
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield entry.path, FileState(status.st_size, status.st_mtime_ns)
        waiting += reversed(subfolders)


def state_of(path: str) -> FileState:
    """Ask the file system for the state of a file."""
    status = os.stat(path)
    return FileState(status.st_size, status.st_mtime_ns)


def digest(path: str, state: FileState) -> str | None:
    """Give the digest of a file that still is as it was found; None if it was changed since, so that it is read again."""
    try:
        found = storage.checksum(Path(path))
        return found if state_of(path) == state else None
    except OSError:
        return None


def _refuse(folder: str, error: OSError) -> None:
    raise OptionError(f"{folder} cannot be read ({error.strerror or error}); allow it, or leave it out")


def compare(folders: Sequence[Path], rows: Iterable[ImageRow], problems: dict[str, tuple[FileState, Problem]]) -> Changes:
    """Compare folders with the catalogue, without opening a file."""
    roots = [os.path.abspath(folder) for folder in folders]
    known = {row.path: row for row in rows if is_below(row.path, roots)}
    broken = {path: entry for path, entry in problems.items() if is_below(path, roots)}
    changes = Changes()
    seen = set()

    def complain(path: str, error: OSError) -> None:
        reason = f"{path}: cannot be read ({error.strerror or error}); allow it, or leave it out"
        changes.unreadable.append(Problem(path, reason))

    for path, state in photographs(folders, complain):
        if path in seen:
            continue
        seen.add(path)
        row = known.pop(path, None)
        if row is not None and row.state == state:
            changes.unchanged += 1
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
    return any(path == root or path.startswith(root.rstrip(os.sep) + os.sep) for root in roots)
