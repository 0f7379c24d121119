"""Files go to another folder, and come back: nothing is overwritten, nothing is deleted, and a journal knows where all went.

The journal is written and flushed before the first file moves. A file moves by a second name and then losing the first, both on
one disk: killed at any moment, it has one of its names, or both.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from polyvoc import storage
from polyvoc.errors import OptionError
from polyvoc.records import Problem, Progress

JOURNAL = "polyvoc-moves.jsonl"


@dataclass
class Moves:
    """What was moved, and what could not be."""

    done: list[tuple[str, str]] = field(default_factory=list)  # from, to
    problems: list[Problem] = field(default_factory=list)


def move(paths: Sequence[str], root: str, folder: Path, progress: Progress | None = None) -> Moves:
    """Move files into a folder, each to where it lay relative to a root; a name that is taken gets a number."""
    storage.refuse_address(folder)
    moves = Moves()
    plan: list[tuple[str, str]] = []
    taken: set[str] = set()
    with storage.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            reason = obstacle(path, folder)
            if reason is None:
                plan.append((path, _free(os.path.join(os.path.abspath(folder), os.path.relpath(path, root)), taken)))
            else:
                moves.problems.append(Problem(path, reason))
        if plan:
            _write(folder / JOURNAL, plan)
    for done, (path, target) in enumerate(plan, start=1):
        _attempt(path, target, moves)
        if progress is not None:
            progress("moving", done, len(plan))
    return moves


def undo(journal: Path, progress: Progress | None = None) -> Moves:
    """Put back what a journal, or the journal of a folder, says was moved; last things first. May be repeated."""
    storage.refuse_address(journal)
    lines = list(_read(journal / JOURNAL if journal.is_dir() else journal))
    moves = Moves()
    for done, (origin, place) in enumerate(reversed(lines), start=1):
        if os.path.lexists(place):
            if os.path.lexists(origin) and os.path.samefile(origin, place):
                os.unlink(place)  # a move that was killed half way: the file keeps its first name
            else:
                _attempt(place, origin, moves)
        elif not os.path.lexists(origin):
            moves.problems.append(Problem(place, f"{place}: gone, so it cannot go back to {origin}"))
        if progress is not None:
            progress("moving back", done, len(lines))
    return moves


def obstacle(path: str, folder: Path) -> str | None:
    """Say why a file should not be moved to a folder, None if it may."""
    try:
        if os.path.islink(path):
            return f"{path}: a link to another file; it stays"
        if os.stat(path).st_dev != os.stat(folder).st_dev:
            return f"{path}: on another disk than {folder}; it stays (choose a folder on its disk)"
    except OSError as error:
        return f"{path}: {error.strerror or error}; it stays"
    return None


def _attempt(path: str, target: str, moves: Moves) -> None:
    try:
        _rename(path, target)
    except FileExistsError:
        moves.problems.append(Problem(path, f"{path}: {target} is there already, and is not overwritten; it stays"))
    except OSError as error:
        moves.problems.append(Problem(path, f"{path}: cannot be moved to {target} ({error.strerror or error}); it stays"))
    else:
        moves.done.append((path, target))


def _rename(path: str, target: str) -> None:
    """Give a file another name, unless that is taken (`os.rename` would replace what is there)."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A disk where files have one name only: what is looked for here is not there a moment ago.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(path, target)
    else:
        os.unlink(path)
    for folder in {os.path.dirname(path), os.path.dirname(target)}:
        with contextlib.suppress(OSError):
            storage.flush_path(Path(folder))


def _free(target: str, taken: set[str]) -> str:
    """Give a name that nothing has, neither on the disk nor among those that are about to come."""
    stem, suffix = os.path.splitext(target)
    for number in count(2):
        if target not in taken and not os.path.lexists(target):
            break
        target = f"{stem} ({number}){suffix}"
    taken.add(target)
    return target


# --- the journal --------------------------------------------------------------------------------------------------------------


def _write(journal: Path, plan: Sequence[tuple[str, str]]) -> None:
    """Add lines to a journal, and make them survive; names that are no text pass as JSON's escapes."""
    torn = journal.exists() and not journal.read_bytes().endswith(b"\n")
    with journal.open("a", encoding="ascii") as file:
        file.write("\n" * torn + "".join(json.dumps({"from": path, "to": target}) + "\n" for path, target in plan))
        file.flush()
        os.fsync(file.fileno())
    storage.flush_path(journal.parent)


def _read(journal: Path) -> Iterator[tuple[str, str]]:
    """Give from where to where files went; a line cut off by a crash was never acted upon."""
    try:
        text = journal.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a journal of moves"
        raise OptionError(f"{journal}: cannot be read ({reason}); give the folder that files were moved to") from None
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
            origin, place = entry["from"], entry["to"]
        except (ValueError, KeyError, TypeError):
            origin, place = None, None
        if not (isinstance(origin, str) and isinstance(place, str)):
            raise OptionError(f"{journal}: line {number} is not a move; nothing was put back")
        yield origin, place
