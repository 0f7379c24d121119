"""Moves copies to another folder, with a journal to undo it; nothing is overwritten."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

from polyvoc.duplicates.groups import Duplicates, ImageFile
from polyvoc.errors import OptionError, WriteError
from polyvoc.storage.files import flush_path, make_folder, require_local_path
from polyvoc.storage.folders import FileState, absolute_path, is_below, is_unchanged
from polyvoc.storage.stores import display_name, is_url
from polyvoc.storage.trust import Trust, is_identity, new_identity, note_roots, noted_roots
from polyvoc.types import Problem, Progress

JOURNAL = "polyvoc-moves.jsonl"


class JournalEntry(NamedTuple):
    """A line of a journal: a file that was to be moved, and by which call."""

    origin: str
    target: str
    identity: str | None  # under which the user has noted where files were moved from


@dataclass
class Moves:
    """Files that were moved, and those that could not be."""

    done: list[tuple[str, str]] = field(default_factory=list)  # from, to
    problems: list[Problem] = field(default_factory=list)


# -- which files, and where to


def movable(duplicates: Duplicates, trust: Trust) -> tuple[list[str], list[Problem]]:
    """Return the copies that may be moved, all but the best of each group, and why others may not.

    Files of reference folders are never moved, and not reported.
    """
    paths, problems = [], []
    for group in duplicates.groups:
        best_changed = not trust.allows(group.best.path) or _is_changed(group.best)
        for copy in group.copies:
            if copy.file.reference:
                continue
            outside = not trust.allows(copy.file.path)
            reason = "not below a folder that is allowed" if outside else _reason_to_keep(copy.file, group.best, best_changed)
            if reason is None:
                paths.append(copy.file.path)
            else:
                problems.append(_not_moved(copy.file.path, reason))
    return paths, problems


def expected_wrong(duplicates: Duplicates, paths: Iterable[str]) -> float:
    """Return how many of the copies with some paths are none, by their probabilities: the sum of 1 - p."""
    wanted = set(paths)
    return sum(1 - copy.probability for group in duplicates.groups for copy in group.copies if copy.file.path in wanted)


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
        make_folder(folder)
        for path in paths:
            reason = _reason_not_to_move(path, root, folder)
            if reason is None:
                plan.append((path, _free_name(os.path.join(os.path.abspath(folder), os.path.relpath(path, root)), taken)))
            else:
                moves.problems.append(_not_moved(path, reason))
        if plan:
            identity = new_identity()
            with contextlib.suppress(WriteError):  # then `undo` needs the folders
                note_roots(identity, folder / JOURNAL, (os.path.dirname(path) for path, _ in plan))
            _write_journal(folder / JOURNAL, plan, identity)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WriteError(f"{folder} cannot be written: {reason}; nothing was moved, choose another folder") from None
    for done, (path, target) in enumerate(plan, start=1):
        _move_file(path, target, moves)
        if progress is not None:
            progress("moving", done, len(plan))
    return moves


def finish(folder: Path) -> list[str]:
    """Complete the moves into a folder that were interrupted half way; return the old paths of all files that are there.

    An interrupted run has removed none of them from its index. Lines that `undo` would not follow are left alone.
    """
    if not (folder / JOURNAL).is_file():
        return []
    found, _ = _read_journal(folder / JOURNAL)
    entries = list(dict.fromkeys((one.origin, one.target) for one in found if _is_own(folder / JOURNAL, one)))
    for origin, target in entries:
        if os.path.lexists(origin) and os.path.lexists(target) and _are_two_names(origin, target):
            _rename(origin, target)
    return [origin for origin, target in entries if os.path.lexists(target) and not os.path.lexists(origin)]


def undo(journal: Path, roots: Sequence[str] = (), progress: Progress | None = None) -> Moves:
    """Move files back, last ones first, by a journal or the journal of a folder. May be repeated.

    Only from the folder of the journal, and only to where this user moved them from, or below the given roots: raise
    OptionError if any line leads elsewhere, before anything is moved.
    """
    require_local_path(journal)
    journal = journal / JOURNAL if journal.is_dir() else journal
    entries, problems = _read_journal(journal)
    _check_entries(journal, entries, list(map(absolute_path, roots)))
    moves = Moves(problems=problems)
    origins: dict[str, str] = {}
    for origin, target, _ in reversed(entries):
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


def _check_entries(journal: Path, entries: Iterable[JournalEntry], roots: Sequence[str]) -> None:
    """Raise OptionError if a line leads out of the folder of the journal, or to a place that is not below a root.

    Without roots, a file goes back only to where this user moved it from.
    """
    noted = cache(noted_roots)
    for origin, target, identity in entries:
        _check_place(journal, target, [str(journal.parent)], "the folder of the journal")
        _check_place(journal, origin, roots or noted(identity), "the folders that you moved files from, or give")
        if os.path.islink(target):
            raise OptionError(
                f"{journal}: {display_name(target)} is a link, which is never moved; nothing was moved, remove it"
            )


def _is_own(journal: Path, entry: JournalEntry) -> bool:
    """Return whether this user wrote a line of a journal."""
    try:
        _check_entries(journal, [entry], ())
    except OptionError:
        return False
    return True


def _check_place(journal: Path, path: str, roots: Iterable[str], place: str) -> None:
    valid = os.path.isabs(path) and "\0" not in path
    if not valid or not is_below(os.path.realpath(os.path.dirname(path)), map(os.path.realpath, roots)):
        advice = f"if you trust it: polyvoc duplicates FOLDER --undo {shlex.quote(str(journal))}"
        raise OptionError(f"{journal}: {display_name(path)} is not below {place}; nothing was moved, {advice}")


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
    """Rename a file, unless the new name is taken (`os.rename` would replace what is there). It never loses both names."""
    make_folder(Path(target).parent)
    try:
        os.link(path, target)
    except FileExistsError:
        if not _are_two_names(path, target):
            raise
        _remove_old_name(path, target)  # continues a move that was killed half way
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A disk without hard links. What appears at the target between these two lines would be lost.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(path, target)
        flush_path(Path(target).parent)
    else:
        try:
            _remove_old_name(path, target)
        except OSError:  # a folder without write permission: the file must not keep two names
            os.unlink(target)
            raise
    with contextlib.suppress(OSError):  # else the file may have both names after a power cut
        flush_path(Path(path).parent)


def _remove_old_name(path: str, target: str) -> None:
    """Remove a name of a file when its other name is on the disk: a power cut between the two may lose either."""
    flush_path(Path(target).parent)
    os.unlink(path)


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


def _write_journal(journal: Path, plan: Sequence[tuple[str, str]], identity: str) -> None:
    """Append lines to a journal and flush it; names that are not text become JSON escapes."""
    torn = journal.exists() and not journal.read_bytes().endswith(b"\n")
    lines = (json.dumps({"from": path, "to": target, "move": identity}) + "\n" for path, target in plan)
    with journal.open("a", encoding="ascii") as file:
        file.write("\n" * torn + "".join(lines))
        file.flush()
        os.fsync(file.fileno())
    flush_path(journal.parent)


def _read_journal(journal: Path) -> tuple[list[JournalEntry], list[Problem]]:
    """Return the planned moves, and the lines that are none; a line cut off by a crash was never acted upon."""
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
            entries.append(JournalEntry(origin, target, identity if is_identity(identity := entry.get("move")) else None))
        else:
            problems.append(Problem(str(journal), f"{journal}: line {number} is not a move; it was skipped"))
    if problems and not entries:
        raise OptionError(f"{journal}: holds no moves; give the folder that files were moved to")
    return entries, problems
