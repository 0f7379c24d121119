"""Move files, with a journal to undo."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from polyvoc.duplicates.groups import Duplicates, GroupedImage
from polyvoc.errors import OptionError, WriteError
from polyvoc.storage.files import flush_path, require_local_path
from polyvoc.storage.folders import FileState, absolute_path, is_unchanged
from polyvoc.storage.stores import display_name, is_url
from polyvoc.types import Problem, Progress


def movable(found: Duplicates) -> tuple[list[str], list[Problem]]:
    """Give the copies that may be moved away, all but the best of each group, and why others stay."""
    paths, staying = [], []
    for group in found.groups:
        lost = _changed(group.best)
        for copy in group.copies:
            reason = _stays(copy.photograph, group.best, lost)
            if reason is None:
                paths.append(copy.photograph.path)
            else:
                staying.append(Problem(copy.photograph.path, f"{display_name(copy.photograph.path)}: {reason}; it stays"))
    return paths, staying


def _stays(copy: GroupedImage, best: GroupedImage, lost: bool) -> str | None:
    if is_url(copy.path):
        return "in a store, from which nothing is moved"
    if lost:
        return f"its best copy, {display_name(best.path)}, is gone or has changed since it was indexed"
    if _changed(copy):
        return "gone, or changed since it was indexed"
    if not is_url(best.path) and os.path.realpath(copy.path) == os.path.realpath(best.path):
        return "another way to the very file that is best"
    return None


def _changed(photograph: GroupedImage) -> bool:
    """Tell whether a file is not as it was when it was indexed."""
    return not is_unchanged(photograph.path, FileState(photograph.bytes, photograph.changed))


def common_folder(paths: Iterable[str]) -> str:
    """Give the folder that holds all photographs that lie on disks."""
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths if not is_url(path)}
    return os.path.commonpath(folders) if folders else os.sep


def check_target(folder: Path, index: Path, photographs: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
    """Refuse a folder in an index, which deletes what it does not know, or where an update would take the copies in again."""
    target = os.path.realpath(folder)
    if os.path.relpath(target, os.path.realpath(index)).split(os.sep)[0] != os.pardir:
        raise OptionError(f"{folder} lies in the index {index}, which is no place for photographs; choose a folder elsewhere")
    held = {os.path.dirname(path) for path in photographs if not is_url(path)}
    held |= {absolute_path(one) for one in folders if not is_url(one)}
    for one in {os.path.realpath(one) for one in held}:
        within = os.path.relpath(target, one).split(os.sep)
        if within[0] != os.pardir and not any(part.startswith(".") and part != os.curdir for part in within):
            raise OptionError(f"{folder} lies among the photographs of {one}, and 'polyvoc index' would take the copies "
                              "in again; choose a folder elsewhere, or one whose name begins with a dot")  # fmt: skip


JOURNAL = "polyvoc-moves.jsonl"


@dataclass
class Moves:
    """What was moved, and what could not be."""

    done: list[tuple[str, str]] = field(default_factory=list)  # from, to
    problems: list[Problem] = field(default_factory=list)


def move(paths: Sequence[str], root: str, folder: Path, progress: Progress | None = None) -> Moves:
    """Move files into a folder, each to where it lay relative to a root; a name that is taken gets a number."""
    require_local_path(folder)
    moves = Moves()
    plan: list[tuple[str, str]] = []
    taken: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            reason = reason_not_to_move(path, root, folder)
            if reason is None:
                plan.append((path, _free(os.path.join(os.path.abspath(folder), os.path.relpath(path, root)), taken)))
            else:
                moves.problems.append(Problem(path, reason))
        if plan:
            _write_journal(folder / JOURNAL, plan)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WriteError(f"{folder} cannot be written: {reason}; nothing was moved, choose another folder") from None
    for done, (path, target) in enumerate(plan, start=1):
        _attempt(path, target, moves)
        if progress is not None:
            progress("moving", done, len(plan))
    return moves


def undo(journal: Path, progress: Progress | None = None) -> Moves:
    """Put back what a journal, or the journal of a folder, says was moved; last things first. May be repeated."""
    require_local_path(journal)
    lines, problems = _read_journal(journal / JOURNAL if journal.is_dir() else journal)
    moves = Moves(problems=problems)
    origins: dict[str, str] = {}
    for origin, place in reversed(lines):
        origins.setdefault(place, origin)  # what was moved there last is what is there
    for done, (place, origin) in enumerate(origins.items(), start=1):
        if os.path.lexists(place):
            _attempt(place, origin, moves)
        if progress is not None:
            progress("moving back", done, len(origins))
    for place, origin in origins.items():
        if not os.path.lexists(place) and not os.path.lexists(origin):
            moves.problems.append(Problem(place, f"{_error_text(place)}: gone, so it cannot go back to {_error_text(origin)}"))
    return moves


def reason_not_to_move(path: str, root: str, folder: Path) -> str | None:
    """Say why a file below a root should not be moved to a folder, None if it may."""
    try:
        if os.path.islink(path):
            return f"{_error_text(path)}: a link to another file; it stays"
        if os.path.relpath(path, root).split(os.sep)[0] == os.pardir:
            return f"{_error_text(path)}: not below {_error_text(root)}, so it would not come to lie in {folder}; it stays"
        if os.stat(path).st_dev != os.stat(folder).st_dev:
            return f"{_error_text(path)}: on another disk than {folder}; it stays (choose a folder on its disk)"
    except OSError as error:
        return f"{_error_text(path)}: {error.strerror or error}; it stays"
    return None


def _error_text(path: str) -> str:
    """Give a path as it stands in a message, on one line whatever the file is called."""
    return path if path.isprintable() else ascii(path)


def _attempt(path: str, target: str, moves: Moves) -> None:
    try:
        _rename(path, target)
    except FileExistsError:
        reason = f"{_error_text(path)}: {_error_text(target)} is there already, and is not overwritten; it stays"
        moves.problems.append(Problem(path, reason))
    except OSError as error:
        reason = f"{_error_text(path)}: cannot be moved to {_error_text(target)} ({error.strerror or error}); it stays"
        moves.problems.append(Problem(path, reason))
    else:
        moves.done.append((path, target))


def _rename(path: str, target: str) -> None:
    """Give a file another name, unless that is taken (`os.rename` would replace what is there)."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(path, target)
    except FileExistsError:
        if not _are_two_names(path, target):
            raise
        os.unlink(path)  # a move that was killed half way, and goes on
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A disk where files have one name only. What comes to the target between these two lines would be lost.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(path, target)
    else:
        try:
            os.unlink(path)
        except OSError:  # a folder that is not to be written: the file must not stay with two names
            os.unlink(target)
            raise
    for folder in {os.path.dirname(path), os.path.dirname(target)}:
        with contextlib.suppress(OSError):
            flush_path(Path(folder))


def _are_two_names(path: str, target: str) -> bool:
    """Tell whether a file has both names, so that it outlives the loss of one.

    Not if one is a link to the other, nor if both are ways to one name, by folders that are links: the file would be lost.
    """
    one, other = ((os.path.realpath(os.path.dirname(name)), os.path.basename(name)) for name in (path, target))
    status = os.lstat(path)
    return one != other and status.st_nlink > 1 and os.path.samestat(status, os.lstat(target))


def _free(target: str, taken: set[str]) -> str:
    """Give a name that nothing has, neither on the disk nor among those that are about to come."""
    stem, suffix = os.path.splitext(target)
    for number in count(2):
        if target.casefold() not in taken and not os.path.lexists(target):  # to some disks A and a are one name
            break
        target = f"{stem} ({number}){suffix}"
    taken.add(target.casefold())
    return target


def _write_journal(journal: Path, plan: Sequence[tuple[str, str]]) -> None:
    """Add lines to a journal, and make them survive; names that are no text pass as JSON's escapes."""
    torn = journal.exists() and not journal.read_bytes().endswith(b"\n")
    with journal.open("a", encoding="ascii") as file:
        file.write("\n" * torn + "".join(json.dumps({"from": path, "to": target}) + "\n" for path, target in plan))
        file.flush()
        os.fsync(file.fileno())
    flush_path(journal.parent)


def _read_journal(journal: Path) -> tuple[list[tuple[str, str]], list[Problem]]:
    """Give from where to where files went, and which lines do not say so: those cut off by a crash were never acted upon."""
    try:
        text = journal.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a journal of moves"
        raise OptionError(f"{journal}: cannot be read ({reason}); give the folder that files were moved to") from None
    found, problems = [], []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
            origin, place = entry["from"], entry["to"]
        except (ValueError, KeyError, TypeError):
            origin, place = None, None
        if isinstance(origin, str) and isinstance(place, str):
            found.append((origin, place))
        else:
            problems.append(Problem(str(journal), f"{journal}: line {number} is not a move; it was passed over"))
    if problems and not found:
        raise OptionError(f"{journal}: holds no moves; give the folder that files were moved to")
    return found, problems
