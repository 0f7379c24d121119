"""The folder of a dataset: its images by name, and its other files."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from polyvoc.errors import DatasetError, OptionError
from polyvoc.storage.folders import IMAGE_SUFFIXES

Kind = Literal["photographs", "siftgeo", "hesaff"]


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """The images of one kind below a folder, sorted by name."""

    folder: Path
    kind: Kind
    names: tuple[str, ...]  # an image's number is its position here
    paths: tuple[Path, ...]
    others: tuple[Path, ...]  # files that are not images
    ignored: int  # images whose names do not belong to the dataset
    expected: str  # what the folder should hold, for messages

    @classmethod
    def find(cls, folder: Path, kind: Kind | None, pattern: str | None, expected: str) -> ImageFolder:
        """Find the images whose names without suffixes match; without a pattern a name is the path below the folder.

        Unless a kind is given, photographs are taken if there are any, else descriptors.
        """
        if kind is not None and kind not in get_args(Kind):
            raise OptionError(f"kind={kind!r} should be one of {', '.join(get_args(Kind))}")
        files = _walk(folder, expected)
        for own in get_args(Kind) if kind is None else (kind,):
            paths = [path for path in files if _kind_of(path) == own]
            if pattern is None:
                chosen = sorted((path.relative_to(folder).as_posix(), path) for path in paths)
            else:
                chosen = sorted((stem(path.name), path) for path in paths if re.fullmatch(pattern, stem(path.name)))
            if chosen:
                _check_names(chosen)
                names, chosen_paths = zip(*chosen, strict=True)
                others = tuple(path for path in files if _kind_of(path) is None)
                return cls(folder, own, names, chosen_paths, others, len(paths) - len(chosen), expected)
        raise DatasetError(f"{folder}: no {kind or 'images'} of this dataset; expected {expected}")

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Return the number of each name."""
        return {name: number for number, name in enumerate(self.names)}

    def groups(self, key: Callable[[str], str]) -> dict[str, frozenset[int]]:
        """Return the numbers of the images of each group; `key` returns the group of a name."""
        members: dict[str, list[int]] = {}
        for number, name in enumerate(self.names):
            members.setdefault(key(name), []).append(number)
        return {group: frozenset(numbers) for group, numbers in members.items()}

    def only(self, names: Collection[str]) -> ImageFolder:
        """Return the images of some names; missing ones are skipped."""
        kept = [self.numbers[name] for name in sorted(set(names)) if name in self.numbers]
        return replace(self, names=tuple(self.names[i] for i in kept), paths=tuple(self.paths[i] for i in kept))

    def ground_truth(self, pattern: str) -> list[Path]:
        """Return the files of ground truth whose names match, sorted by name."""
        files = sorted((path.name, path) for path in self.others if re.fullmatch(pattern, path.name))
        if not files:
            raise DatasetError(f"{self.folder}: no ground truth; expected {self.expected}")
        _check_names(files)
        return [path for _, path in files]


def stem(name: str) -> str:
    """Return the name of an image without its suffixes: a for a.jpg, a.siftgeo, a.hesaff.sift and a.jpg.hesaff.sift."""
    bare = re.sub(r"\.(siftgeo|hesaff\.sift)$", "", name, flags=re.IGNORECASE)
    front, suffix = os.path.splitext(bare)
    return front if suffix.lower() in IMAGE_SUFFIXES else bare


def _kind_of(path: Path) -> Kind | None:
    """Return the kind of a file by its name."""
    name = path.name.lower()
    if name.endswith(".siftgeo"):
        return "siftgeo"
    if name.endswith(".hesaff.sift"):
        return "hesaff"
    return "photographs" if path.suffix.lower() in IMAGE_SUFFIXES else None


def _walk(folder: Path, expected: str) -> list[Path]:
    """Return all files below a folder; links to folders are followed, hidden files are skipped."""

    def on_error(error: OSError) -> None:
        raise DatasetError(f"{error.filename}: cannot be read ({error.strerror}); allow it, or give another folder")

    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such folder; expected one with {expected}")
    files: list[Path] = []
    visited = set()
    for root, folders, names in os.walk(folder, onerror=on_error, followlinks=True):
        real = os.path.realpath(root)
        if real in visited:  # a link leads here a second time, perhaps in a circle
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(root, name) for name in names if not name.startswith(".")]
    return files


def _check_names(named: Iterable[tuple[str, Path]]) -> None:
    """Raise DatasetError if two files, next to each other in sorted order, have one name."""
    for (name, first), (following, second) in itertools.pairwise(named):
        if name == following:
            raise DatasetError(f"{first} and {second} have the same name; keep one of them")
