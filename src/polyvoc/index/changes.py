"""What differs between folders and the catalogue: new, changed, missing and moved photographs, folders that are not there.

A moved file is recognised by its digest: only new files whose size is that of a file that is gone are read for it.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from polyvoc.index.catalogue import Catalogue, ImageRow
from polyvoc.index.folder import FOLDERS, IndexFolder, named_roots
from polyvoc.storage.folders import (
    EXCLUDED,
    FileState,
    Folder,
    MissingFolderError,
    absolute_path,
    check_folders,
    file_digest,
    list_photographs,
    roots_above,
)
from polyvoc.storage.stores import base_name
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Problem, Progress


@dataclass(frozen=True)
class FollowedFolder:
    """A folder, a file or an address that an index follows, as of the last update of it."""

    path: str
    skipped: tuple[tuple[str, int], ...] = ()  # files that are no photographs by their names: kinds and numbers
    available: bool = True  # else its photographs are kept, until it is there again
    disks: tuple[str, ...] = ()  # folders below it where other disks are mounted, or were when they were there

    @classmethod
    def all_of(cls, setting: Any) -> list[FollowedFolder]:
        """Read the setting of an index; None: an index without one."""
        return [
            cls(
                str(path),
                tuple((str(kind), int(count)) for kind, count in value["skipped"].items()),
                bool(value["available"]),
                tuple(map(str, value.get("disks", ()))),
            )
            for path, value in (setting or {}).items()
        ]

    @staticmethod
    def setting(followed: Iterable[FollowedFolder]) -> dict[str, Any]:
        """Return the setting."""
        return {
            one.path: {"skipped": dict(one.skipped), "available": one.available} | ({"disks": one.disks} if one.disks else {})
            for one in followed
        }


def followed_paths(catalogue: Catalogue) -> list[str]:
    """Return the folders that an index follows; of one that was made before this was recorded, those with its photographs."""
    setting = catalogue.setting(FOLDERS, required=False)
    if setting is not None:
        return [one.path for one in FollowedFolder.all_of(setting)]
    _, roots = named_roots(catalogue.settings())
    return [root for root in roots if next(catalogue.images_below([root]), None) is not None]


def check_new_folders(folder: IndexFolder, folders: Sequence[Folder]) -> None:
    """Raise OptionError if a given folder does not exist, unless an index holds photographs from there."""
    if not folder.exists:
        check_folders(folders)
        return
    catalogue = Catalogue.open(folder.path)
    try:
        check_folders([one for one in folders if next(catalogue.images_below([absolute_path(one)]), None) is None])
    finally:
        catalogue.close()


@dataclass
class Changes:
    """What differs between folders and the catalogue."""

    new: list[tuple[str, FileState]] = field(default_factory=list)
    changed: list[tuple[ImageRow, FileState]] = field(default_factory=list)
    missing: list[ImageRow] = field(default_factory=list)
    unchanged: int = 0
    sample_row: ImageRow | None = None  # one that is unchanged
    known_unusable: list[Problem] = field(default_factory=list)  # tried before, not changed since
    resolved: list[str] = field(default_factory=list)  # problems of files that are gone or have changed
    unreadable: list[Problem] = field(default_factory=list)  # folders; what the catalogue holds from there is unchanged
    absent: dict[str, int] = field(default_factory=dict)  # folders that are not there, or empty now; what the catalogue holds
    skipped: dict[str, Counter[str]] = field(default_factory=dict)  # by folder: files that are no photographs, by kind
    disks: dict[str, set[str]] = field(default_factory=dict)  # by folder: those below it where other disks are mounted


def compare_folders(folders: Sequence[Folder], rows: Iterable[ImageRow], problems: dict[str, tuple[FileState, Problem]],
                    exclude: Sequence[str] = (), disks: Iterable[str] = ()) -> Changes:  # fmt: skip
    """Compare folders with the catalogue, without opening a file. Raise MissingFolderError for one that neither has.

    disks: folders where other disks were mounted; what the catalogue holds from there is unchanged while they are not.
    """
    roots = {absolute_path(folder): folder for folder in folders}
    known = {row.path: row for row in rows if _is_below_one(row.path, roots.keys())}
    unusable = {path: entry for path, entry in problems.items() if _is_below_one(path, roots.keys())}
    changes, seen, empty = Changes(), set[str](), dict[str, MissingFolderError | None]()
    for root, folder in roots.items():
        skipped, mounted = changes.skipped.setdefault(root, Counter()), changes.disks.setdefault(root, set())
        found, missing = False, None
        try:
            for path, state in list_photographs([folder], changes.unreadable.append, exclude, skipped, mounted):
                found = True
                if path not in seen:
                    seen.add(path)
                    _compare(changes, path, state, known.pop(path, None), unusable)
        except MissingFolderError as error:
            missing = error
        if not found and not skipped[EXCLUDED]:
            empty[root] = missing
    unreadable = {problem.path for problem in changes.unreadable}
    changes.absent = _absent(empty, known, unusable, unreadable)
    changes.absent |= _absent_disks([disk for disk in disks if not _is_below_one(disk, changes.absent.keys())], known)
    hidden = unreadable | changes.absent.keys()
    changes.missing = [row for row in known.values() if not _is_below_one(row.path, hidden)]
    changes.unchanged += sum(_is_below_one(path, unreadable) for path in known)
    changes.resolved = [path for path in unusable if not _is_below_one(path, hidden)]
    return changes


def _absent(empty: Mapping[str, MissingFolderError | None], known: Collection[str], unusable: Iterable[str],
            unreadable: Iterable[str]) -> dict[str, int]:  # fmt: skip
    """Return the folders that seem not to be there, and how many known images lie below each.

    empty: folders in which nothing was found, with the error if they do not exist: raised if nothing is known of them.
    """
    counts, problems, doubts = (_count_below(paths, empty.keys()) for paths in (known, unusable, unreadable))
    absent = {}
    for root, missing in empty.items():
        if counts[root] and not (root in known and _has_entries(os.path.dirname(root))):
            absent[root] = counts[root]
        elif missing is not None and not counts[root] and not problems[root]:
            raise missing
    return {root: count for root, count in absent.items() if not doubts[root]}


def _absent_disks(disks: Iterable[str], known: Collection[str]) -> dict[str, int]:
    """Return the folders that are empty, or gone, as no disk is mounted there, and how many known images lie below each."""
    return dict(_count_below(known, {disk for disk in disks if not os.path.ismount(disk) and not _has_entries(disk)}))


def _compare(changes: Changes, path: str, state: FileState, row: ImageRow | None,
             unusable: dict[str, tuple[FileState, Problem]]) -> None:  # fmt: skip
    """Compare one file with its row, or with the problem that it was."""
    if row is not None and row.state == state:
        changes.unchanged += 1
        changes.sample_row = row
    elif path in unusable and unusable[path][0] == state:
        changes.known_unusable.append(unusable.pop(path)[1])
    elif row is not None:
        changes.changed.append((row, state))
    else:
        changes.new.append((path, state))


def _has_entries(folder: str) -> bool:
    """Return whether there is anything in a folder: then what was there by its name, and is not, is gone."""
    try:
        with os.scandir(folder) as entries:
            return any(entries)
    except OSError:
        return False


def _is_below_one(path: str, roots: AbstractSet[str]) -> bool:
    return next(roots_above(path, roots), None) is not None


def _count_below(paths: Iterable[str], roots: AbstractSet[str]) -> Counter[str]:
    """Return how many of some paths lie below each root."""
    return Counter(root for path in paths for root in roots_above(path, roots))


# -- the same content elsewhere


@dataclass(frozen=True)
class Move:
    """A photograph of the index whose file has another path now."""

    row: ImageRow
    path: str
    state: FileState

    @property
    def moved(self) -> ImageRow:
        """Return its new row."""
        return replace(self.row, path=self.path, state=self.state)


def find_moves(changes: Changes, catalogue: Catalogue, progress: Progress) -> tuple[list[Move], list[ImageRow]]:
    """Return the moves among new and changed files, and take them out of the changes; and the rows that they replace.

    A file takes the row of a photograph that had the same content and is not at its path any more, wherever in the index it
    is; of several the one with the same name, else the first. A changed file whose content is that of its own row is no move:
    see `IndexWriter.update`, which comes first.
    """
    wanted = {state.size for _, state in changes.new} | {state.size for _, state in changes.changed}
    if not wanted:
        return [], []
    gone = defaultdict[tuple[int | None, str | None], list[ImageRow]](list)
    for row in _gone(changes, catalogue, wanted):
        gone[row.state.size, row.digest].append(row)
    sizes = {size for size, _ in gone}
    files = [(path, state) for path, state in changes.new if state.size in sizes]
    files += [(row.path, state) for row, state in changes.changed if state.size in sizes]
    found = ordered_map(lambda file: file_digest(*file), files, count_threads(), "polyvoc-digest")
    moves = []
    for done, ((path, state), digest) in enumerate(found, start=1):
        progress("looking for moved photographs", done, len(files))
        rows = gone.get((state.size, digest)) if digest is not None else None
        if rows:
            same = [row for row in rows if base_name(row.path) == base_name(path)]
            row = (same or rows)[0]
            rows.remove(row)
            moves.append(Move(row, path, state))
    return moves, _without(changes, moves)


def _without(changes: Changes, moves: list[Move]) -> list[ImageRow]:
    """Take moves out of the changes: new paths, and rows that are not at their old ones. Return the rows that are replaced."""
    paths, images = {move.path for move in moves}, {move.row.image for move in moves}
    changes.new = [(path, state) for path, state in changes.new if path not in paths]
    replaced = [row for row, _ in changes.changed if row.path in paths and row.image not in images]
    # What is at the old path of a move now is new.
    changes.new += [(row.path, state) for row, state in changes.changed if row.path not in paths and row.image in images]
    changes.missing = [row for row in changes.missing if row.image not in images]
    changes.changed = [(row, state) for row, state in changes.changed if row.path not in paths and row.image not in images]
    return replaced


def _gone(changes: Changes, catalogue: Catalogue, sizes: set[int | None]) -> Iterator[ImageRow]:
    """Yield the photographs of some sizes whose content is not at their paths any more, each once."""
    known = [*changes.missing, *(row for row, _ in changes.changed)]
    yield from (row for row in known if row.digest and row.state.size in sizes)
    seen = {row.image for row in known}
    for row in catalogue.images_of_sizes(sizes):
        # Files in stores are listed only below the given addresses: whether others are there would take a request each.
        if row.digest and row.image not in seen and os.path.isabs(row.path) and not os.path.lexists(row.path):
            yield row
