"""Groups of copies around the best image, made from the stored pairs and from files with identical bytes."""

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

from polyvoc.duplicates import MIN_PROBABILITY
from polyvoc.duplicates.compare import Pairs, pending_tasks, read_pairs
from polyvoc.duplicates.overlap import (
    IDENTITY,
    LONG_SIDE,
    NEARLY_ALL,
    Size,
    compose,
    content_share,
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
from polyvoc.types import Floats64, Progress

SAME_PIXELS, SAME_BYTES = 0.95, 0.9  # shares of the largest that count as equal to it
MIN_CHAIN_SHARE = 0.25  # of one of two images: what the other shows at least, where only a chain links them
MAX_PART_SHARE = 0.1  # of the smaller of two parts of an image: what they share at most if they are two pictures
COLLAGE_SCALE = 0.9  # pictures are reduced to this or less in a collage
LOSSLESS = (".tif", ".tiff", ".png", ".bmp", ".ppm", ".pgm", ".pnm", ".pbm")


@dataclass(frozen=True)
class ImageFile:
    """A file that may be a copy, and what decides which copy is best."""

    path: str
    image: int | None = None  # its id in the index; None: it could not be indexed
    width: int = 0  # 0: not known
    height: int = 0
    bytes: int = 0
    changed: int | None = None  # modification time in nanoseconds
    content: float = 1.0  # share of its area that is not a plain frame, nor a corner left by a rotation

    @property
    def size(self) -> Size:
        """Return its width and height."""
        return self.width, self.height


@dataclass(frozen=True, eq=False)
class Link:
    """Two files that may be copies."""

    first: str
    second: str
    probability: float
    transform: Floats64  # [2, 3] points of the first to points of the second
    identical: bool = False  # byte for byte


@dataclass(frozen=True, eq=False)
class Copy:
    """A file of a group that is not its best."""

    file: ImageFile
    probability: float  # that it is a copy of the best: of the pair, or the product along the chain of links
    via: str | None  # the previous file of the chain; None: linked with the best itself
    transform: Floats64  # [2, 3] its points to points of the best
    identical: bool  # byte for byte the best

    def describe(self, best: ImageFile) -> str:
        """Describe what turned the best into this copy."""
        return "identical file" if self.identical else describe_change(self.file.size, best.size, self.transform)


@dataclass(frozen=True, eq=False)
class Group:
    """The best of some copies, and the others."""

    best: ImageFile
    reason: str  # why it is the best
    copies: tuple[Copy, ...]  # most probable first


@dataclass(frozen=True, eq=False)
class Duplicates:
    """The groups of copies in an index."""

    min_probability: float
    n_images: int  # files that were considered
    links: tuple[Link, ...]  # pairs of at least that probability, most probable first
    groups: tuple[Group, ...]
    not_compared: int  # images that were added since the last comparison


def find_duplicates(
    index: Index, min_probability: float = MIN_PROBABILITY, mirror: bool = True, progress: Progress | None = None
) -> Duplicates:
    """Return the groups of copies in an index, from the pairs that `compare` has stored."""
    rows = {row.image: row for row in index.images()}
    files = {
        row.path: ImageFile(row.path, row.image, row.width, row.height, row.state.size or 0, row.state.changed)
        for row in rows.values()
    }
    identical = list(_identical_links(index, rows.values(), files))
    known = {frozenset((link.first, link.second)) for link in identical}
    similar = _similar_links(read_pairs(index.folder).pairs, rows, mirror)
    links = [*identical, *(link for link in similar if frozenset((link.first, link.second)) not in known)]
    links = sorted(
        (link for link in links if link.probability >= min_probability),
        key=lambda link: (-link.probability, link.first, link.second),
    )
    n_linked = len({path for link in links for path in (link.first, link.second)})
    done = count(1)

    def content(file: ImageFile, copies: Sequence[tuple[Floats64, Size]]) -> float:
        if progress is not None:
            progress("grouping", next(done), n_linked)
        try:
            return content_share(read_grey(file.path, LONG_SIDE), copies) if copies else 1.0
        except (ImageError, OptionError):  # its file cannot be read
            return 1.0

    groups = group_copies(files, links, min_probability, content)
    return Duplicates(min_probability, len(files), tuple(links), tuple(groups), len(pending_tasks(index, mirror)))


def _similar_links(pairs: Pairs, rows: dict[int, ImageRow], mirror: bool) -> Iterator[Link]:
    """Yield the stored pairs of live images with their probabilities."""
    live = np.isin(pairs["later"], list(rows)) & np.isin(pairs["earlier"], list(rows))
    not_mirrored = np.linalg.det(pairs["transform"][:, :, :2]) > 0
    pairs = pairs[live & (not_mirrored | mirror)]
    for pair, probability in zip(pairs, shipped_duplicate_probability().probabilities(pairs), strict=True):
        first, second = rows[int(pair["later"])].path, rows[int(pair["earlier"])].path
        yield Link(first, second, float(probability), np.array(pair["transform"]))


def _identical_links(index: Index, rows: Iterable[ImageRow], files: dict[str, ImageFile]) -> Iterator[Link]:
    """Yield the pairs of files with the same bytes; those that could not be indexed are added to `files`."""
    by_digest: dict[str, list[str]] = {}
    for row in rows:
        if row.digest is not None:
            by_digest.setdefault(row.digest, []).append(row.path)
    by_size: dict[int, list[str]] = {}
    unusable = index.folder.catalogue.problems()
    for path, (state, _) in unusable.items():
        if state.size and not is_url(path):
            by_size.setdefault(state.size, []).append(path)
    for size, paths in by_size.items():
        for path in paths if len(paths) > 1 else []:
            try:
                digest = checksum(Path(path))
            except OSError:
                continue
            by_digest.setdefault(digest, []).append(path)
            files[path] = ImageFile(path, bytes=size, changed=unusable[path][0].changed)
    for paths in by_digest.values():
        for other in paths[1:]:
            yield Link(paths[0], other, 1.0, IDENTITY, identical=True)


# -- grouping

Edges = dict[str, list[Link]]  # by path, directed so that the file is the first
# Returns the share of a file that is content, given the transforms to its copies and their sizes.
Content = Callable[[ImageFile, Sequence[tuple[Floats64, Size]]], float]


def group_copies(
    files: Mapping[str, ImageFile], links: Iterable[Link], min_probability: float, content: Content = lambda file, copies: 1.0
) -> list[Group]:
    """Return the groups of files, by path, that links of at least some probability connect; the largest first."""
    check_min_probability(min_probability)
    edges: Edges = {}
    for link in links:
        if link.probability >= min_probability:
            back = replace(link, first=link.second, second=link.first, transform=inverse(link.transform))
            edges.setdefault(link.first, []).append(link)
            edges.setdefault(link.second, []).append(back)
    linked = {}
    for path, own in edges.items():
        copies = [(link.transform, files[link.second].size) for link in own if not link.identical]
        linked[path] = replace(files[path], content=content(files[path], copies))
    groups: list[Group] = []
    for component in _components(edges):
        groups += _split({path: linked[path] for path in component}, edges, min_probability)
    return sorted(groups, key=lambda group: (-len(group.copies), group.best.path))


def check_min_probability(value: float) -> None:
    """Raise OptionError if a value cannot be a minimum probability."""
    if not 0 < value <= 1:
        raise OptionError(f"min_probability={value!r} should be above 0 and at most 1, such as {MIN_PROBABILITY}")


def _components(edges: Edges) -> list[list[str]]:
    """Return the connected components."""
    left, components = set(edges), []
    for start in sorted(edges):
        if start not in left:
            continue
        left.discard(start)
        component, pending = [], [start]
        while pending:
            path = pending.pop()
            component.append(path)
            fresh = {link.second for link in edges[path]} & left
            left -= fresh
            pending += fresh
        components.append(component)
    return components


def _split(members: dict[str, ImageFile], edges: Edges, min_probability: float) -> list[Group]:
    """Split a component into groups around their best files; files that are left alone are in none."""
    groups: list[Group] = []
    left = dict(members)
    while len(left) > 1:
        best, reason = choose(list(left.values()))
        copies = _copies_of(best, left, edges, min_probability)
        if is_collage(best, left, edges):
            complete = {best.path: best}  # and copies that show all of it, and not a part
            for copy in copies:
                if copy.identical or shares(copy.file.size, best.size, copy.transform)[1] >= NEARLY_ALL:
                    complete[copy.file.path] = copy.file
            copies = _copies_of(best, complete, edges, min_probability)
        del left[best.path]
        for copy in copies:
            del left[copy.file.path]
        if copies:
            groups.append(Group(best, reason, tuple(copies)))
    return groups


def _copies_of(best: ImageFile, left: Mapping[str, ImageFile], edges: Edges, min_probability: float) -> list[Copy]:
    """Return the copies of a file, most probable first: by a link, else by their most probable chain (Dijkstra 1959)."""
    copies: dict[str, Copy] = {}
    direct = {link.second for link in edges[best.path]}
    start = Link(best.path, best.path, 1.0, IDENTITY, identical=True)
    order = count()  # of entries that are equal in all else
    queue: list[tuple[float, str, str, int, Link]] = [(-1.0, best.path, "", next(order), start)]
    done: set[str] = set()
    while queue:
        negative, path, via, _, link = heapq.heappop(queue)
        if path in done:
            continue
        done.add(path)
        if path != best.path:
            copies[path] = Copy(left[path], -negative, None if path in direct else via, link.transform, link.identical)
        for edge in edges[path]:
            probability = -negative * edge.probability
            known = edge.second in done or (edge.second in direct and path != best.path)
            if known or edge.second not in left or probability < min_probability:
                continue
            transform = compose(link.transform, inverse(edge.transform))
            if path == best.path or _overlap(left[edge.second], best, transform):
                further = Link(edge.second, best.path, probability, transform, edge.identical and link.identical)
                heapq.heappush(queue, (-probability, edge.second, path, next(order), further))
    return sorted(copies.values(), key=lambda copy: (-copy.probability, copy.file.path))


def _overlap(one: ImageFile, other: ImageFile, transform: Floats64) -> bool:
    """Return whether two files that a chain links show the same part of the scene."""
    if not (one.width and other.width):
        return True  # identical files that could not be indexed: chains of them do not move anything
    return max(shares(one.size, other.size, transform)) >= MIN_CHAIN_SHARE


def is_collage(best: ImageFile, left: Mapping[str, ImageFile], edges: Edges) -> bool:
    """Return whether an image shows two others side by side, each reduced: only copies of all of it are its copies.

    Two crops of it lie side by side, too, but are not reduced in it: nothing is lost if it represents them.
    """
    others = (link for link in edges[best.path] if link.second in left and not link.identical)
    parts = [link for link in others if scale(link.transform) * COLLAGE_SCALE >= 1]
    for one, other in combinations(parts, 2):
        between = compose(other.transform, inverse(one.transform))  # by way of the image that shows both
        if max(shares(left[one.second].size, left[other.second].size, between)) < MAX_PART_SHARE:
            return True
    return False


# -- the best of a group


# Score of a file, share of the largest score that is kept, and the reason that is given if one file is left.
CRITERIA: tuple[tuple[Callable[[ImageFile], float], float, Callable[[ImageFile], str]], ...] = (
    (lambda f: f.width * f.height * f.content, SAME_PIXELS, lambda f: f"most pixels: {f.width} x {f.height}"),
    (lambda f: f.bytes, SAME_BYTES, lambda f: f"as many pixels as any, largest file: {format_bytes(f.bytes)}"),
    (lambda f: _suffix(f) in LOSSLESS, 1, lambda f: f"as many pixels as any, lossless: {_suffix(f)[1:]}"),
    # A share of 1 is an integer, so that nanoseconds stay exact.
    (lambda f: -math.inf if f.changed is None else -f.changed, 1, lambda f: f"as good as any, oldest: {format_day(f.changed)}"),
    (lambda f: -len(f.path), 1, lambda f: "as good and as old as any, shortest path"),
)


def choose(files: Sequence[ImageFile]) -> tuple[ImageFile, str]:
    """Return the file to keep, and why: most pixels, else largest file, else lossless, else oldest, else shortest path."""
    kept = list(files)
    for score, share, reason in CRITERIA:
        limit = share * max(map(score, kept))
        kept = [file for file in kept if score(file) >= limit]
        if len(kept) == 1:
            return kept[0], reason(kept[0])
    return min(kept, key=lambda file: file.path), "as good and as old as any, first by name"


def _suffix(file: ImageFile) -> str:
    return os.path.splitext(file.path)[1].lower()


def format_bytes(size: int) -> str:
    """Format the size of a file."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} KB" if size >= 1e3 else f"{size} bytes"


def format_day(changed: int | None) -> str:
    """Format the day on which a file was last changed."""
    return "" if changed is None else datetime.fromtimestamp(changed / 1e9, UTC).strftime("%Y-%m-%d")
