"""Pairs of copies become groups, each around the best of its photographs.

Every member of a group is a copy of the best, or of a member that is: by a chain whose probabilities multiply to at least what
was asked for, and at whose end both still show the same part of the world. So a collage does not join the photographs that it
is made of, nor does a row of crops lead from one end of a photograph to something that the other end never showed.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, count

import numpy as np
import numpy.typing as npt

from polyvoc.copies import overlap
from polyvoc.errors import OptionError

Floats = npt.NDArray[np.float64]

SAME_PIXELS, SAME_BYTES = 0.95, 0.9  # of the largest: as good as it
COMMON = 0.25  # of one of two photographs: what the other shows at least, where others vouch for them
APART = 0.1  # of the smaller of two parts of a photograph: what they share at most if they are two pictures
FINER = 0.9  # by how much a picture is reduced in a collage, at least
LOSSLESS = (".tif", ".tiff", ".png", ".bmp", ".ppm", ".pgm", ".pnm", ".pbm")


@dataclass(frozen=True)
class Photograph:
    """A file that may be a copy, and what decides which copy is best."""

    path: str
    image: int | None = None  # its id in the index; None: it could not be indexed
    width: int = 0  # 0: not known
    height: int = 0
    bytes: int = 0
    changed: int | None = None  # modification time in nanoseconds
    content: float = 1.0  # share of its area that shows something: not a frame, nor corners left by a rotation

    @property
    def size(self) -> overlap.Size:
        """Give its width and height."""
        return self.width, self.height


@dataclass(frozen=True, eq=False)
class Link:
    """Two photographs that may be copies."""

    first: str
    second: str
    probability: float
    transform: Floats  # [2, 3] places of the first to places of the second
    identical: bool = False  # byte for byte


@dataclass(frozen=True, eq=False)
class Copy:
    """A photograph of a group that is not its best."""

    photograph: Photograph
    probability: float  # that it is a copy of the best: of the pair, or of all links of the chain together
    via: str | None  # the member through which it is known; None: the best itself
    transform: Floats  # [2, 3] its places to places of the best
    identical: bool  # byte for byte the best

    def in_words(self, best: Photograph) -> str:
        """Say what was done to the best to make it."""
        if self.identical:
            return "identical file"
        return overlap.in_words(self.photograph.size, best.size, self.transform)


@dataclass(frozen=True, eq=False)
class Group:
    """Copies of one photograph."""

    best: Photograph
    reason: str  # why it is
    copies: tuple[Copy, ...]  # surest first


Edges = dict[str, list[Link]]  # by path, turned so that the photograph is the first


# Tells which share of a photograph shows something: given transforms of its places to those of its copies, and their sizes.
Content = Callable[[Photograph, Sequence[tuple[Floats, overlap.Size]]], float]


def gather(photographs: Mapping[str, Photograph], links: Iterable[Link], sure: float,
           content: Content = lambda photograph, copies: 1.0) -> list[Group]:  # fmt: skip
    """Give the groups of photographs, by path, that links of at least some probability join; the largest first."""
    check_sure(sure)
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


def check_sure(sure: float) -> None:
    """Refuse what is no probability to be sure with."""
    if not 0 < sure <= 1:
        raise OptionError(f"sure={sure!r} should be a probability above 0, at most 1: 0.9 means nine out of ten")


def turned(link: Link) -> Link:
    """Give a link the other way round."""
    return replace(link, first=link.second, second=link.first, transform=overlap.inverse(link.transform))


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


def _split(members: dict[str, Photograph], edges: Edges, sure: float) -> list[Group]:
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


def _copies_of(best: Photograph, left: Mapping[str, Photograph], edges: Edges, sure: float) -> list[Copy]:
    """Give the copies of a photograph, surest first: linked with it, else by their surest chains (Dijkstra 1959)."""
    found: dict[str, Copy] = {}
    direct = {link.second for link in edges[best.path]}
    start = Link(best.path, best.path, 1.0, overlap.IDENTITY, identical=True)
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
            there = overlap.compose(link.transform, overlap.inverse(edge.transform))
            if path == best.path or _in_common(left[edge.second], best, there):
                same = edge.identical and link.identical
                further = Link(edge.second, best.path, total, there, same)
                heapq.heappush(waiting, (-total, edge.second, path, next(order), further))
    return sorted(found.values(), key=lambda copy: (-copy.probability, copy.photograph.path))


def _in_common(one: Photograph, other: Photograph, transform: Floats) -> bool:
    """Tell whether two photographs that others vouch for show the same part of the world."""
    if not (one.width and other.width):
        return True  # identical files that could not be indexed: chains of them do not move anything
    return max(overlap.shares(one.size, other.size, transform)) >= COMMON


def _shows_all(copy: Copy, best: Photograph) -> bool:
    """Tell whether a copy shows all of the best, and not a part of it."""
    return copy.identical or overlap.shares(copy.photograph.size, best.size, copy.transform)[1] >= overlap.WHOLE


def is_collage(best: Photograph, left: Mapping[str, Photograph], edges: Edges) -> bool:
    """Tell whether a photograph shows two others side by side, each reduced: it stands for neither, but for its own copies.

    Two crops of it lie side by side, too, but are not reduced in it: nothing is lost if it stands for them.
    """
    parts = [
        link
        for link in edges[best.path]
        if link.second in left and not link.identical and overlap.scale(link.transform) * FINER >= 1
    ]
    for one, other in combinations(parts, 2):
        # Where one lies in the other, by way of the photograph that shows both.
        there = overlap.compose(other.transform, overlap.inverse(one.transform))
        if max(overlap.shares(left[one.second].size, left[other.second].size, there)) < APART:
            return True
    return False


# --- the best copy ------------------------------------------------------------------------------------------------------------


def choose(photographs: Sequence[Photograph]) -> tuple[Photograph, str]:
    """Give the photograph to keep, and why: most pixels, else largest file, else format, else oldest, else shortest path."""
    kept = list(photographs)
    for leading, why in CRITERIA:
        kept = leading(kept)
        if len(kept) == 1:
            return kept[0], why(kept[0])
    return min(kept, key=lambda one: one.path), "as good and as old as any, first by name"


def _most_pixels(photographs: Sequence[Photograph]) -> list[Photograph]:
    pixels = [one.width * one.height * one.content for one in photographs]
    return [one for one, held in zip(photographs, pixels, strict=True) if held >= SAME_PIXELS * max(pixels)]


def _largest(photographs: Sequence[Photograph]) -> list[Photograph]:
    most = max(one.bytes for one in photographs)
    return [one for one in photographs if one.bytes >= SAME_BYTES * most]


def _lossless(photographs: Sequence[Photograph]) -> list[Photograph]:
    return [one for one in photographs if one.path.lower().endswith(LOSSLESS)] or list(photographs)


def _oldest(photographs: Sequence[Photograph]) -> list[Photograph]:
    times = [math.inf if one.changed is None else one.changed for one in photographs]
    return [one for one, time in zip(photographs, times, strict=True) if time == min(times)]


def _shortest(photographs: Sequence[Photograph]) -> list[Photograph]:
    shortest = min(len(one.path) for one in photographs)
    return [one for one in photographs if len(one.path) == shortest]


Leading = Callable[[Sequence[Photograph]], list[Photograph]]  # gives those that none is better than
CRITERIA: tuple[tuple[Leading, Callable[[Photograph], str]], ...] = (
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
