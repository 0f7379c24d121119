"""Which photographs of an index are copies, in groups, and which of each group is the best? Nothing is changed on the disk.

`IndexWriter.find_copies` lets photographs that have not asked yet ask, and keeps what they find; this reads what is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc import collection, images, storage, stores
from polyvoc.catalogue import FileState, ImageRow
from polyvoc.copies import certainty, groups, inquiry, likeness, overlap
from polyvoc.copies.groups import Group, Link, Photograph
from polyvoc.copies.resemblance import Pairs
from polyvoc.errors import ImageError, OptionError
from polyvoc.index import Index
from polyvoc.records import Problem, Progress

Array = npt.NDArray[Any]

SURE = 0.9  # nine of ten pairs are copies


@dataclass(frozen=True, eq=False)
class Duplicates:
    """The groups of copies in an index."""

    sure: float
    photographs: int  # that were compared
    links: tuple[Link, ...]  # pairs that are copies with at least that probability, surest first
    groups: tuple[Group, ...]
    waiting: int  # photographs that have not been asked yet


def take(index: Index, sure: float = SURE, mirror: bool = True, progress: Progress | None = None) -> Duplicates:
    """Give the groups of copies among the photographs of an index, by what was found so far."""
    groups.check_sure(sure)
    record = index.home.read_copies()
    asked, mirrored = (0, 0) if record is None else (record.asked, record.mirrored)
    rows = {row.image: row for row in index.images()}
    known = {row.path: _photograph(row) for row in rows.values()}
    same = list(_identical(index, rows.values(), known))
    whole = {frozenset((link.first, link.second)) for link in same}
    alike = [] if record is None else _alike(record.read(index.home.copies_file(record.serial)), rows, mirror)
    apart = (link for link in alike if frozenset((link.first, link.second)) not in whole)
    links = sorted((link for link in (*same, *apart) if link.probability >= sure), key=_order)
    linked = {path for link in links for path in (link.first, link.second)}
    seen = count(1)

    def content(photograph: Photograph, others: Sequence[tuple[Array, overlap.Size]]) -> float:
        if progress is not None:
            progress("grouping", next(seen), len(linked))
        return _content(photograph, others)

    waiting = inquiry.to_ask(index, asked, mirrored if mirror and inquiry.can_mirror(index) else None)
    return Duplicates(sure, len(known), tuple(links), tuple(groups.gather(known, links, sure, content)), len(waiting))


def _order(link: Link) -> tuple[float, str, str]:
    return -link.probability, link.first, link.second


def _alike(pairs: Pairs, rows: dict[int, ImageRow], mirror: bool) -> Iterator[Link]:
    """Give the pairs whose pictures are alike, with their probabilities."""
    live = np.isin(pairs["later"], list(rows)) & np.isin(pairs["earlier"], list(rows))
    straight = np.linalg.det(pairs["transform"][:, :, :2]) > 0
    pairs = pairs[live & (straight | mirror)]
    for pair, probability in zip(pairs, certainty.shipped().probabilities(pairs), strict=True):
        first, second = rows[int(pair["later"])].path, rows[int(pair["earlier"])].path
        yield Link(first, second, float(probability), np.array(pair["transform"]))


def _identical(index: Index, rows: Iterable[ImageRow], known: dict[str, Photograph]) -> Iterator[Link]:
    """Give the pairs of files with the same bytes, also of those that could not be indexed, which become known."""
    by_digest: dict[str, list[str]] = {}
    for row in rows:
        if row.digest is not None:
            by_digest.setdefault(row.digest, []).append(row.path)
    by_size: dict[int, list[str]] = {}
    broken = index.home.catalogue.problems()
    for path, (state, _) in broken.items():
        if state.size and not stores.is_url(path):
            by_size.setdefault(state.size, []).append(path)
    for size, paths in by_size.items():
        for path in paths if len(paths) > 1 else []:
            digest = _digest(path)
            if digest is not None:
                by_digest.setdefault(digest, []).append(path)
                known[path] = Photograph(path, bytes=size, changed=broken[path][0].changed)
    for paths in by_digest.values():
        for other in paths[1:]:
            yield Link(paths[0], other, 1.0, overlap.IDENTITY, identical=True)


def _digest(path: str) -> str | None:
    try:
        return storage.checksum(Path(path))
    except OSError:
        return None


def _photograph(row: ImageRow) -> Photograph:
    return Photograph(row.path, row.image, row.width, row.height, row.state.size or 0, row.state.changed)


def _content(photograph: Photograph, others: Sequence[tuple[Array, overlap.Size]]) -> float:
    """Give the share of a photograph that shows something; all of it if its file cannot be read."""
    try:
        return likeness.content(images.read_grey(photograph.path, likeness.LONG_SIDE), others) if others else 1.0
    except (ImageError, OptionError):
        return 1.0


# --- moving -------------------------------------------------------------------------------------------------------------------


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
                staying.append(Problem(copy.photograph.path, f"{images.describe(copy.photograph.path)}: {reason}; it stays"))
    return paths, staying


def _stays(copy: Photograph, best: Photograph, lost: bool) -> str | None:
    if stores.is_url(copy.path):
        return "in a store, from which nothing is moved"
    if lost:
        return f"its best copy, {images.describe(best.path)}, is gone or has changed since it was indexed"
    if _changed(copy):
        return "gone, or changed since it was indexed"
    if not stores.is_url(best.path) and os.path.realpath(copy.path) == os.path.realpath(best.path):
        return "another way to the very file that is best"
    return None


def _changed(photograph: Photograph) -> bool:
    """Tell whether a file is not as it was when it was indexed."""
    return not collection.is_as_found(photograph.path, FileState(photograph.bytes, photograph.changed))


def root(paths: Iterable[str]) -> str:
    """Give the folder that holds all photographs that lie on disks."""
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths if not stores.is_url(path)}
    return os.path.commonpath(folders) if folders else os.sep


def check_target(folder: Path, index: Path, photographs: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
    """Refuse a folder in an index, which deletes what it does not know, or where an update would take the copies in again."""
    target = os.path.realpath(folder)
    if os.path.relpath(target, os.path.realpath(index)).split(os.sep)[0] != os.pardir:
        raise OptionError(f"{folder} lies in the index {index}, which is no place for photographs; choose a folder elsewhere")
    held = {os.path.dirname(path) for path in photographs if not stores.is_url(path)}
    held |= {collection.location(one) for one in folders if not stores.is_url(one)}
    for one in {os.path.realpath(one) for one in held}:
        within = os.path.relpath(target, one).split(os.sep)
        if within[0] != os.pardir and not any(part.startswith(".") and part != os.curdir for part in within):
            raise OptionError(f"{folder} lies among the photographs of {one}, and 'polyvoc index' would take the copies "
                              "in again; choose a folder elsewhere, or one whose name begins with a dot")  # fmt: skip
