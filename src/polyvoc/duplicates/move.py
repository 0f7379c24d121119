"""Moves copies to another folder, with a journal to undo it; nothing is overwritten."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from polyvoc.duplicates.groups import Duplicates, ImageFile
from polyvoc.errors import OptionError, WriteError
from polyvoc.storage.files import flush_path, require_local_path
from polyvoc.storage.folders import FileState, absolute_path, is_unchanged
from polyvoc.storage.stores import display_name, is_url
from polyvoc.types import Problem, Progress

JOURNAL = "polyvoc-moves.jsonl"


@dataclass
class Moves:
    """Files that were moved, and those that could not be."""

    done: list[tuple[str, str]] = field(default_factory=list)  # from, to
    problems: list[Problem] = field(default_factory=list)


# -- which files, and where to


def movable(duplicates: Duplicates) -> tuple[list[str], list[Problem]]:
    """Return the copies that may be moved, all but the best of each group, and why others may not."""
    paths, problems = [], []
    for group in duplicates.groups:
        best_changed = _is_changed(group.best)
        for copy in group.copies:
            reason = _reason_to_keep(copy.file, group.best, best_changed)
            if reason is None:
                paths.append(copy.file.path)
            else:
                problems.append(_not_moved(copy.file.path, reason))
    return paths, problems


def _reason_to_keep(copy: ImageFile, best: ImageFile, best_changed: bool) -> str | None:
    if is_url(copy.path):
        return "in a store; only local files are moved"
    if best_changed:
        return f"the best file, {display_name(best.path)}, is missing or has changed since it was indexed"
    if _is_changed(copy):
        return "missing, or changed since it was indexed"
    same = not is_url(best.path) and os.path.realpath(copy.path) == os.path.realpath(best.path)
    return "another path to the best file itself" if same else None


def _is_changed(file: ImageFile) -> bool:
    return not is_unchanged(file.path, FileState(file.bytes, file.changed))


def common_folder(paths: Iterable[str]) -> str:
    """Return the folder that holds all local files."""
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths if not is_url(path)}
    return os.path.commonpath(folders) if folders else os.sep


def check_target(folder: Path, index: Path, images: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
    """Raise OptionError for a folder in the index, which deletes unknown files, or where an update would index the copies."""
    target = os.path.realpath(folder)
    if os.path.relpath(target, os.path.realpath(index)).split(os.sep)[0] != os.pardir:
        raise OptionError(f"{folder} is inside the index {index}; choose a folder elsewhere")
    indexed = {os.path.dirname(path) for path in images if not is_url(path)}
    indexed |= {absolute_path(one) for one in folders if not is_url(one)}
    for one in {os.path.realpath(one) for one in indexed}:
        within = os.path.relpath(target, one).split(os.sep)
        if within[0] != os.pardir and not any(part.startswith(".") and part != os.curdir for part in within):
            again = "so 'polyvoc index' would index the copies again"
            advice = "choose a folder elsewhere, or one whose name begins with a dot"
            raise OptionError(f"{folder} is inside the indexed folder {one}, {again}; {advice}")


# -- move and undo


def move(paths: Sequence[str], root: str, folder: Path, progress: Progress | None = None) -> Moves:
    """Move files into a folder, keeping their paths relative to a root; a name that is taken gets a number."""
    require_local_path(folder)
    moves = Moves()
    plan: list[tuple[str, str]] = []
    taken: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            reason = _reason_not_to_move(path, root, folder)
            if reason is None:
                plan.append((path, _free_name(os.path.join(os.path.abspath(folder), os.path.relpath(path, root)), taken)))
            else:
                moves.problems.append(_not_moved(path, reason))
        if plan:
            _write_journal(folder / JOURNAL, plan)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WriteError(f"{folder} cannot be written: {reason}; nothing was moved, choose another folder") from None
    for done, (path, target) in enumerate(plan, start=1):
        _move_file(path, target, moves)
        if progress is not None:
            progress("moving", done, len(plan))
    return moves


def undo(journal: Path, progress: Progress | None = None) -> Moves:
    """Move files back, last ones first, by a journal or the journal of a folder. May be repeated."""
    require_local_path(journal)
    entries, problems = _read_journal(journal / JOURNAL if journal.is_dir() else journal)
    moves = Moves(problems=problems)
    origins: dict[str, str] = {}
    for origin, target in reversed(entries):
        origins.setdefault(target, origin)  # the last file moved there is the one that is there
    for done, (target, origin) in enumerate(origins.items(), start=1):
        if os.path.lexists(target):
            _move_file(target, origin, moves)
        if progress is not None:
            progress("moving back", done, len(origins))
    for target, origin in origins.items():
        if not os.path.lexists(target) and not os.path.lexists(origin):
            moves.problems.append(_not_moved(target, f"missing, cannot be moved back to {display_name(origin)}"))
    return moves


def _not_moved(path: str, reason: str) -> Problem:
    return Problem(path, f"{display_name(path)}: {reason}; it was not moved")


def _reason_not_to_move(path: str, root: str, folder: Path) -> str | None:
    try:
        if os.path.islink(path):
            return "a symbolic link"
        if os.path.relpath(path, root).split(os.sep)[0] == os.pardir:
            return f"not below {display_name(root)}, so its target would be outside {folder}"
        if os.stat(path).st_dev != os.stat(folder).st_dev:
            return f"on another disk than {folder} (choose a folder on its disk)"
    except OSError as error:
        return error.strerror or str(error)
    return None


def _move_file(path: str, target: str, moves: Moves) -> None:
    try:
        _rename(path, target)
    except FileExistsError:
        moves.problems.append(_not_moved(path, f"{display_name(target)} exists and is not overwritten"))
    except OSError as error:
        moves.problems.append(_not_moved(path, f"cannot be moved to {display_name(target)} ({error.strerror or error})"))
    else:
        moves.done.append((path, target))


def _rename(path: str, target: str) -> None:
    """Rename a file, unless the new name is taken (`os.rename` would replace what is there)."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(path, target)
    except FileExistsError:
        if not _are_two_names(path, target):
            raise
        os.unlink(path)  # continues a move that was killed half way
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A disk without hard links. What appears at the target between these two lines would be lost.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(path, target)
    else:
        try:
            os.unlink(path)
        except OSError:  # a folder without write permission: the file must not keep two names
            os.unlink(target)
            raise
    for folder in {os.path.dirname(path), os.path.dirname(target)}:
        with contextlib.suppress(OSError):
            flush_path(Path(folder))


def _are_two_names(path: str, target: str) -> bool:
    """Return whether a file has both names (hard links), so that it survives the removal of one.

    Not if one is a symbolic link to the other, nor if both lead to one name by folders that are links: it would be lost.
    """
    one, other = ((os.path.realpath(os.path.dirname(name)), os.path.basename(name)) for name in (path, target))
    status = os.lstat(path)
    return one != other and status.st_nlink > 1 and os.path.samestat(status, os.lstat(target))


def _free_name(target: str, taken: set[str]) -> str:
    """Return a name that is neither on the disk nor among those already planned."""
    stem, suffix = os.path.splitext(target)
    for number in count(2):
        if target.casefold() not in taken and not os.path.lexists(target):  # some disks ignore case
            break
        target = f"{stem} ({number}){suffix}"
    taken.add(target.casefold())
    return target


# -- journal


def _write_journal(journal: Path, plan: Sequence[tuple[str, str]]) -> None:
    """Append lines to a journal and flush it; names that are not text become JSON escapes."""
    torn = journal.exists() and not journal.read_bytes().endswith(b"\n")
    with journal.open("a", encoding="ascii") as file:
        file.write("\n" * torn + "".join(json.dumps({"from": path, "to": target}) + "\n" for path, target in plan))
        file.flush()
        os.fsync(file.fileno())
    flush_path(journal.parent)


def _read_journal(journal: Path) -> tuple[list[tuple[str, str]], list[Problem]]:
    """Return the planned moves (from, to), and the lines that are none; a line cut off by a crash was never acted upon."""
    try:
        text = journal.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a journal of moves"
        raise OptionError(f"{journal}: cannot be read ({reason}); give the folder that files were moved to") from None
    entries, problems = [], []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            entry = json.loads(line)
            origin, target = entry["from"], entry["to"]
        except (ValueError, KeyError, TypeError):
            origin, target = None, None
        if isinstance(origin, str) and isinstance(target, str):
            entries.append((origin, target))
        else:
            problems.append(Problem(str(journal), f"{journal}: line {number} is not a move; it was skipped"))
    if problems and not entries:
        raise OptionError(f"{journal}: holds no moves; give the folder that files were moved to")
    return entries, problems
