"""Groups around the best photograph."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, count
from pathlib import Path

import numpy as np

from polyvoc.duplicates.compare import Pairs, can_mirror, images_to_compare
from polyvoc.duplicates.overlap import (
    IDENTITY,
    LONG_SIDE,
    WHOLE,
    Size,
    compose,
    content,
    describe_change,
    inverse,
    scale,
    shares,
)
from polyvoc.duplicates.probability import shipped_duplicate_probability
from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_grey
from polyvoc.index.catalogue import ImageRow
from polyvoc.search.index import Index
from polyvoc.storage.files import checksum
from polyvoc.storage.stores import is_url
from polyvoc.types import Array, Floats64, Progress

SAME_PIXELS, SAME_BYTES = 0.95, 0.9  # of the largest: as good as it
COMMON = 0.25  # of one of two photographs: what the other shows at least, where others vouch for them
APART = 0.1  # of the smaller of two parts of a photograph: what they share at most if they are two pictures
FINER = 0.9  # by how much a picture is reduced in a collage, at least
LOSSLESS = (".tif", ".tiff", ".png", ".bmp", ".ppm", ".pgm", ".pnm", ".pbm")


@dataclass(frozen=True)
class GroupedImage:
    """A file that may be a copy, and what decides which copy is best."""

    path: str
    image: int | None = None  # its id in the index; None: it could not be indexed
    width: int = 0  # 0: not known
    height: int = 0
    bytes: int = 0
    changed: int | None = None  # modification time in nanoseconds
    content: float = 1.0  # share of its area that shows something: not a frame, nor corners left by a rotation

    @property
    def size(self) -> Size:
        """Give its width and height."""
        return self.width, self.height


@dataclass(frozen=True, eq=False)
class Link:
    """Two photographs that may be copies."""

    first: str
    second: str
    probability: float
    transform: Floats64  # [2, 3] places of the first to places of the second
    identical: bool = False  # byte for byte


@dataclass(frozen=True, eq=False)
class Copy:
    """A photograph of a group that is not its best."""

    photograph: GroupedImage
    probability: float  # that it is a copy of the best: of the pair, or of all links of the chain together
    via: str | None  # the member through which it is known; None: the best itself
    transform: Floats64  # [2, 3] its places to places of the best
    identical: bool  # byte for byte the best

    def in_words(self, best: GroupedImage) -> str:
        """Say what was done to the best to make it."""
        if self.identical:
            return "identical file"
        return describe_change(self.photograph.size, best.size, self.transform)


@dataclass(frozen=True, eq=False)
class Group:
    """Copies of one photograph."""

    best: GroupedImage
    reason: str  # why it is
    copies: tuple[Copy, ...]  # surest first


Edges = dict[str, list[Link]]  # by path, turned so that the photograph is the first
# Tells which share of a photograph shows something: given transforms of its places to those of its copies, and their sizes.
Content = Callable[[GroupedImage, Sequence[tuple[Floats64, Size]]], float]


def group_copies(photographs: Mapping[str, GroupedImage], links: Iterable[Link], sure: float,
           content: Content = lambda photograph, copies: 1.0) -> list[Group]:  # fmt: skip
    """Give the groups of photographs, by path, that links of at least some probability join; the largest first."""
    check_min_probability(sure)
    edges: Edges = {}
    for link in links:
        if link.probability >= sure:
            edges.setdefault(link.first, []).append(link)
            edges.setdefault(link.second, []).append(turned(link))
    known = {}
    for path, own in edges.items():
        copies = [(link.transform, photographs[link.second].size) for link in own if not link.identical]
        known[path] = replace(photographs[path], content=content(photographs[path], copies))
    groups: list[Group] = []
    for component in _components(edges):
        groups += _split({path: known[path] for path in component}, edges, sure)
    return sorted(groups, key=lambda group: (-len(group.copies), group.best.path))


def check_min_probability(sure: float) -> None:
    """Refuse what is no probability to be sure with."""
    if not 0 < sure <= 1:
        raise OptionError(f"sure={sure!r} should be a probability above 0, at most 1: 0.9 means nine out of ten")


def turned(link: Link) -> Link:
    """Give a link the other way round."""
    return replace(link, first=link.second, second=link.first, transform=inverse(link.transform))


def _components(edges: Edges) -> list[list[str]]:
    """Give the photographs that links join, directly or by others."""
    left, found = set(edges), []
    for start in sorted(edges):
        if start not in left:
            continue
        left.discard(start)
        component, waiting = [], [start]
        while waiting:
            path = waiting.pop()
            component.append(path)
            fresh = {link.second for link in edges[path]} & left
            left -= fresh
            waiting += fresh
        found.append(component)
    return found


def _split(members: dict[str, GroupedImage], edges: Edges, sure: float) -> list[Group]:
    """Cut what is joined into groups around their best ones; who is left alone is in none."""
    groups: list[Group] = []
    left = dict(members)
    while len(left) > 1:
        best, reason = choose(list(left.values()))
        copies = _copies_of(best, left, edges, sure)
        if is_collage(best, left, edges):
            whole = {copy.photograph.path for copy in copies if _shows_all(copy, best)}
            copies = _copies_of(best, {path: left[path] for path in (best.path, *whole)}, edges, sure)
        del left[best.path]
        for copy in copies:
            del left[copy.photograph.path]
        if copies:
            groups.append(Group(best, reason, tuple(copies)))
    return groups


def _copies_of(best: GroupedImage, left: Mapping[str, GroupedImage], edges: Edges, sure: float) -> list[Copy]:
    """Give the copies of a photograph, surest first: linked with it, else by their surest chains (Dijkstra 1959)."""
    found: dict[str, Copy] = {}
    direct = {link.second for link in edges[best.path]}
    start = Link(best.path, best.path, 1.0, IDENTITY, identical=True)
    order = count()  # of links that are equal in all else
    waiting: list[tuple[float, str, str, int, Link]] = [(-1.0, best.path, "", next(order), start)]
    done: set[str] = set()
    while waiting:
        chance, path, via, _, link = heapq.heappop(waiting)
        if path in done:
            continue
        done.add(path)
        if path != best.path:
            found[path] = Copy(left[path], -chance, None if path in direct else via, link.transform, link.identical)
        for edge in edges[path]:
            total = -chance * edge.probability
            known = edge.second in done or (edge.second in direct and path != best.path)
            if known or edge.second not in left or total < sure:
                continue
            there = compose(link.transform, inverse(edge.transform))
            if path == best.path or _in_common(left[edge.second], best, there):
                same = edge.identical and link.identical
                further = Link(edge.second, best.path, total, there, same)
                heapq.heappush(waiting, (-total, edge.second, path, next(order), further))
    return sorted(found.values(), key=lambda copy: (-copy.probability, copy.photograph.path))


def _in_common(one: GroupedImage, other: GroupedImage, transform: Floats64) -> bool:
    """Tell whether two photographs that others vouch for show the same part of the world."""
    if not (one.width and other.width):
        return True  # identical files that could not be indexed: chains of them do not move anything
    return max(shares(one.size, other.size, transform)) >= COMMON


def _shows_all(copy: Copy, best: GroupedImage) -> bool:
    """Tell whether a copy shows all of the best, and not a part of it."""
    return copy.identical or shares(copy.photograph.size, best.size, copy.transform)[1] >= WHOLE


def is_collage(best: GroupedImage, left: Mapping[str, GroupedImage], edges: Edges) -> bool:
    """Tell whether a photograph shows two others side by side, each reduced: it stands for neither, but for its own copies.

    Two crops of it lie side by side, too, but are not reduced in it: nothing is lost if it stands for them.
    """
    parts = [
        link for link in edges[best.path] if link.second in left and not link.identical and scale(link.transform) * FINER >= 1
    ]
    for one, other in combinations(parts, 2):
        # Where one lies in the other, by way of the photograph that shows both.
        there = compose(other.transform, inverse(one.transform))
        if max(shares(left[one.second].size, left[other.second].size, there)) < APART:
            return True
    return False


def choose(photographs: Sequence[GroupedImage]) -> tuple[GroupedImage, str]:
    """Give the photograph to keep, and why: most pixels, else largest file, else format, else oldest, else shortest path."""
    kept = list(photographs)
    for leading, why in CRITERIA:
        kept = leading(kept)
        if len(kept) == 1:
            return kept[0], why(kept[0])
    return min(kept, key=lambda one: one.path), "as good and as old as any, first by name"


def _most_pixels(photographs: Sequence[GroupedImage]) -> list[GroupedImage]:
    pixels = [one.width * one.height * one.content for one in photographs]
    return [one for one, held in zip(photographs, pixels, strict=True) if held >= SAME_PIXELS * max(pixels)]


def _largest(photographs: Sequence[GroupedImage]) -> list[GroupedImage]:
    most = max(one.bytes for one in photographs)
    return [one for one in photographs if one.bytes >= SAME_BYTES * most]


def _lossless(photographs: Sequence[GroupedImage]) -> list[GroupedImage]:
    return [one for one in photographs if one.path.lower().endswith(LOSSLESS)] or list(photographs)


def _oldest(photographs: Sequence[GroupedImage]) -> list[GroupedImage]:
    times = [math.inf if one.changed is None else one.changed for one in photographs]
    return [one for one, time in zip(photographs, times, strict=True) if time == min(times)]


def _shortest(photographs: Sequence[GroupedImage]) -> list[GroupedImage]:
    shortest = min(len(one.path) for one in photographs)
    return [one for one in photographs if len(one.path) == shortest]


Leading = Callable[[Sequence[GroupedImage]], list[GroupedImage]]  # gives those that none is better than
CRITERIA: tuple[tuple[Leading, Callable[[GroupedImage], str]], ...] = (
    (_most_pixels, lambda one: f"most pixels: {one.width} x {one.height}"),
    (_largest, lambda one: f"as many pixels as any, largest file: {in_bytes(one.bytes)}"),
    (_lossless, lambda one: f"as many pixels as any, without loss: {os.path.splitext(one.path)[1].lstrip('.').lower()}"),
    (_oldest, lambda one: f"as good as any, oldest: {day(one.changed)}"),
    (_shortest, lambda one: "as good and as old as any, shortest path"),
)


def in_bytes(size: int) -> str:
    """Say how many bytes a file has."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} KB" if size >= 1e3 else f"{size} bytes"


def day(changed: int | None) -> str:
    """Say on which day a file was last changed."""
    return "" if changed is None else datetime.fromtimestamp(changed / 1e9, UTC).strftime("%Y-%m-%d")


MIN_PROBABILITY = 0.9  # nine of ten pairs are copies


@dataclass(frozen=True, eq=False)
class Duplicates:
    """The groups of copies in an index."""

    sure: float
    photographs: int  # that were compared
    links: tuple[Link, ...]  # pairs that are copies with at least that probability, surest first
    groups: tuple[Group, ...]
    waiting: int  # photographs that have not been asked yet


def find_duplicates(
    index: Index, sure: float = MIN_PROBABILITY, mirror: bool = True, progress: Progress | None = None
) -> Duplicates:
    """Give the groups of copies among the photographs of an index, by what was found so far."""
    check_min_probability(sure)
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

    def content(photograph: GroupedImage, others: Sequence[tuple[Array, Size]]) -> float:
        if progress is not None:
            progress("grouping", next(seen), len(linked))
        return _content(photograph, others)

    waiting = images_to_compare(index, asked, mirrored if mirror and can_mirror(index) else None)
    return Duplicates(sure, len(known), tuple(links), tuple(group_copies(known, links, sure, content)), len(waiting))


def _order(link: Link) -> tuple[float, str, str]:
    return -link.probability, link.first, link.second


def _alike(pairs: Pairs, rows: dict[int, ImageRow], mirror: bool) -> Iterator[Link]:
    """Give the pairs whose pictures are alike, with their probabilities."""
    live = np.isin(pairs["later"], list(rows)) & np.isin(pairs["earlier"], list(rows))
    straight = np.linalg.det(pairs["transform"][:, :, :2]) > 0
    pairs = pairs[live & (straight | mirror)]
    for pair, probability in zip(pairs, shipped_duplicate_probability().probabilities(pairs), strict=True):
        first, second = rows[int(pair["later"])].path, rows[int(pair["earlier"])].path
        yield Link(first, second, float(probability), np.array(pair["transform"]))


def _identical(index: Index, rows: Iterable[ImageRow], known: dict[str, GroupedImage]) -> Iterator[Link]:
    """Give the pairs of files with the same bytes, also of those that could not be indexed, which become known."""
    by_digest: dict[str, list[str]] = {}
    for row in rows:
        if row.digest is not None:
            by_digest.setdefault(row.digest, []).append(row.path)
    by_size: dict[int, list[str]] = {}
    broken = index.home.catalogue.problems()
    for path, (state, _) in broken.items():
        if state.size and not is_url(path):
            by_size.setdefault(state.size, []).append(path)
    for size, paths in by_size.items():
        for path in paths if len(paths) > 1 else []:
            digest = _digest(path)
            if digest is not None:
                by_digest.setdefault(digest, []).append(path)
                known[path] = GroupedImage(path, bytes=size, changed=broken[path][0].changed)
    for paths in by_digest.values():
        for other in paths[1:]:
            yield Link(paths[0], other, 1.0, IDENTITY, identical=True)


def _digest(path: str) -> str | None:
    try:
        return checksum(Path(path))
    except OSError:
        return None


def _photograph(row: ImageRow) -> GroupedImage:
    return GroupedImage(row.path, row.image, row.width, row.height, row.state.size or 0, row.state.changed)


def _content(photograph: GroupedImage, others: Sequence[tuple[Array, Size]]) -> float:
    """Give the share of a photograph that shows something; all of it if its file cannot be read."""
    try:
        return content(read_grey(photograph.path, LONG_SIDE), others) if others else 1.0
    except (ImageError, OptionError):
        return 1.0
