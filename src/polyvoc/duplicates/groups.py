"""Groups of copies around the best image, made from the stored pairs, from files with identical bytes, and from verdicts."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, count, product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polyvoc.duplicates import A_COPY, ANOTHER_SHOT, IDENTICAL, MIN_PROBABILITY, SOMETHING_ELSE
from polyvoc.duplicates.compare import pending_tasks, read_pairs
from polyvoc.duplicates.decisions import COPY, DIFFERENT, SAME, Decisions
from polyvoc.duplicates.overlap import (
    IDENTITY,
    NEARLY_ALL,
    Size,
    compose,
    content_share,
    describe_change,
    inverse,
    scale,
    shares,
)
from polyvoc.duplicates.probability import duplicate_probability
from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_rgb
from polyvoc.index.catalogue import ImageRow
from polyvoc.search.index import Index
from polyvoc.storage.files import checksum
from polyvoc.storage.folders import absolute_path, is_below
from polyvoc.storage.stores import is_url
from polyvoc.types import Floats64, GreyImage, Progress

READ_SIDE = 512  # pixels of the long side of images in which frames are looked for
SAME_PIXELS, SAME_BYTES = 0.95, 0.9  # shares of the largest that count as equal to it
MIN_CHAIN_SHARE = 0.25  # of one of two images: what the other shows at least, where only a chain links them
MAX_PART_SHARE = 0.1  # of the smaller of two parts of an image: what they share at most if they are two pictures
COLLAGE_SCALE = 0.9  # pictures are reduced to this or less in a collage
GREY = (0.299, 0.587, 0.114)  # shares of red, green and blue (ITU-R BT.601)
PALE, FEW = (
    16,
    0.01,
)  # a colour has channels that differ by more grey levels; a coloured picture has a larger share of such pixels
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
    coloured: bool = True  # or not known
    reference: bool = False  # in a folder whose files are always kept

    @property
    def size(self) -> Size:
        """Return its width and height."""
        return self.width, self.height


@dataclass(frozen=True, eq=False)
class Link:
    """Two files that may be copies, or two shots of the same thing."""

    first: str
    second: str
    probability: float  # that they are copies
    transform: Floats64  # [2, 3] points of the first to points of the second
    identical: bool = False  # byte for byte
    another_shot: float = 0.0  # probability that they are two shots of the same thing
    verdict: str | None = None  # of the user, in `decisions.VERDICTS`; the probabilities follow it

    @property
    def kind(self) -> str:
        """Return the class of the pair: the verdict, or the most probable one."""
        if self.identical:
            return IDENTICAL
        rest = 1 - self.probability - self.another_shot
        if max(self.probability, self.another_shot) < rest:
            return SOMETHING_ELSE
        return A_COPY if self.probability >= self.another_shot else ANOTHER_SHOT

    @property
    def paths(self) -> frozenset[str]:
        """Return both paths."""
        return frozenset((self.first, self.second))


@dataclass(frozen=True, eq=False)
class Copy:
    """A file of a group that is not its best."""

    file: ImageFile
    probability: float  # that it is a copy of the best: of the pair, or the product along the chain of links
    via: str | None  # the previous file of the chain; None: linked with the best itself
    transform: Floats64  # [2, 3] its points to points of the best
    identical: bool  # byte for byte the best
    verdict: str | None = None  # of the user, on this file and the best

    @property
    def kind(self) -> str:
        """Return the class of the pair of this file and the best."""
        return IDENTICAL if self.identical else A_COPY

    def describe(self, best: ImageFile) -> str:
        """Describe what turned the best into this copy."""
        return "identical file" if self.identical else describe_change(self.file.size, best.size, self.transform)


@dataclass(frozen=True, eq=False)
class Group:
    """The best of some copies, and the others."""

    best: ImageFile
    reason: str  # why it is the best
    copies: tuple[Copy, ...]  # most probable first

    @property
    def decided(self) -> bool:
        """Return whether the user has decided on every copy."""
        return all(copy.verdict is not None for copy in self.copies)


@dataclass(frozen=True, eq=False)
class Duplicates:
    """The groups of copies in an index."""

    min_probability: float
    n_images: int  # files that were considered
    links: tuple[Link, ...]  # pairs that are copies with at least that probability, most probable first
    groups: tuple[Group, ...]
    not_compared: int  # images that were added since the last comparison
    shots: tuple[Link, ...] = ()  # the same of pairs that are two shots, without those that the user has decided on


@dataclass(frozen=True)
class Scope:
    """Which pairs and files are considered; folders below which photographs of the index lie."""

    reference: tuple[str, ...] = ()  # folders whose files are always kept
    between: tuple[str, str] | None = None  # only pairs of one file below each

    def checked(self, paths: Iterable[str]) -> Scope:
        """Return it with absolute folders; raise OptionError for one below which there is none of some paths."""
        known = list(paths)

        def absolute(folder: str) -> str:
            full = absolute_path(folder)
            if not any(is_below(path, [full]) for path in known):
                raise OptionError(f"{folder}: no photograph of the index lies there; give a folder that was indexed")
            return full

        between = None if self.between is None else (absolute(self.between[0]), absolute(self.between[1]))
        return Scope(tuple(map(absolute, self.reference)), between)

    def has(self, link: Link) -> bool:
        """Return whether a pair is considered."""
        if self.between is None:
            return True
        one, other = ([folder] for folder in self.between)
        straight = is_below(link.first, one) and is_below(link.second, other)
        return straight or (is_below(link.first, other) and is_below(link.second, one))


EVERYTHING = Scope()


def find_duplicates(index: Index, min_probability: float = MIN_PROBABILITY, mirror: bool = True,
                    progress: Progress | None = None, scope: Scope = EVERYTHING) -> Duplicates:  # fmt: skip
    """Return the groups of copies in an index, from the pairs that `compare` has stored and the verdicts of the user."""
    check_min_probability(min_probability)
    trust = index.folder.trust
    trust.require_named()
    rows = list(index.images())
    files = _files(rows)
    same = _same_bytes(index, rows, files)
    scope = scope.checked(files)
    for path, file in files.items():
        if scope.reference and is_below(path, scope.reference):
            files[path] = replace(file, reference=True)
    links = _links(index, rows, mirror, [[files[path] for path in paths] for paths in same], scope)
    copies = [link for link in links if link.probability >= min_probability]
    shots = [link for link in links if link.another_shot >= min_probability and link.verdict is None]
    shots.sort(key=lambda link: (-link.another_shot, link.first, link.second))
    apart = {link.paths for link in links if link.verdict in (SAME, DIFFERENT)}
    doubtful = {link.paths for link in links if link.probability < min_probability}
    n_linked = len({path for link in copies for path in (link.first, link.second)})
    done = count(1)

    def look(file: ImageFile, copies: Sequence[tuple[Floats64, Size]]) -> ImageFile:
        if progress is not None:
            progress("grouping", next(done), n_linked)
        try:
            return with_content(file, read_rgb(trust.require(file.path), READ_SIDE), copies) if copies else file
        except (ImageError, OptionError):  # its file cannot be read
            return file

    groups = group_copies(files, copies, min_probability, look, apart, chains=scope.between is None, doubtful=doubtful)
    not_compared = len(pending_tasks(index, mirror))
    return Duplicates(min_probability, len(files), tuple(copies), tuple(groups), not_compared, tuple(shots))


def with_content(file: ImageFile, pixels: npt.NDArray[np.uint8], copies: Sequence[tuple[Floats64, Size]]) -> ImageFile:
    """Return a file with what its pixels [h, w, 3] show; copies: the transform to each copy of it, and its size."""
    grey = np.rint(pixels @ GREY).astype(np.uint8)
    spread = pixels.max(axis=2).astype(np.int16) - pixels.min(axis=2)
    share = content_share(GreyImage(grey, file.width, file.height), copies)
    return replace(file, content=share, coloured=bool((spread > PALE).mean() > FEW))


def _files(rows: Iterable[ImageRow]) -> dict[str, ImageFile]:
    return {
        row.path: ImageFile(row.path, row.image, row.width, row.height, row.state.size or 0, row.state.changed) for row in rows
    }


def find_links(index: Index, mirror: bool = True) -> list[Link]:
    """Return all pairs of an index that match, of any class: most probable copies first."""
    index.folder.trust.require_named()
    rows = list(index.images())
    files = _files(rows)
    same = [[files[path] for path in paths] for paths in _same_bytes(index, rows, files)]
    return _links(index, rows, mirror, same, EVERYTHING)


def _links(
    index: Index, rows: Sequence[ImageRow], mirror: bool, same: Iterable[Sequence[ImageFile]], scope: Scope
) -> list[Link]:
    """Return the pairs of a scope; `same`: files with the same bytes."""
    similar = {link.paths: link for link in _similar_links(index, {row.image: row for row in rows}, mirror)}
    decided = {link.paths: link for link in _decided_links(index, rows, similar)}
    identical = {link.paths: link for group in same for link in _identical_links(group, scope)}
    links = (link for link in (similar | decided | identical).values() if scope.has(link))
    return sorted(links, key=lambda link: (-link.probability, link.first, link.second))


def _similar_links(index: Index, rows: dict[int, ImageRow], mirror: bool) -> Iterator[Link]:
    """Yield the stored pairs of live images with their probabilities."""
    pairs = read_pairs(index.folder).pairs
    live = np.isin(pairs["later"], list(rows)) & np.isin(pairs["earlier"], list(rows))
    not_mirrored = np.linalg.det(pairs["transform"][:, :, :2]) > 0
    pairs = pairs[live & (not_mirrored | mirror)]
    predicted = duplicate_probability(index.folder.catalogue.settings()).probabilities(pairs)
    for pair, copy, another_shot in zip(pairs, *predicted, strict=True):
        first, second = rows[int(pair["later"])], rows[int(pair["earlier"])]
        if first.digest is not None and first.digest == second.digest:
            yield Link(first.path, second.path, 1.0, IDENTITY, identical=True)
        else:
            shot = float(another_shot)
            yield Link(first.path, second.path, float(copy), np.array(pair["transform"]), another_shot=shot)


def _decided_links(index: Index, rows: Iterable[ImageRow], similar: Mapping[frozenset[str], Link]) -> Iterator[Link]:
    """Yield the pairs of files on which the user has decided."""
    decisions = Decisions.read(index.folder)
    by_digest: dict[str, list[ImageRow]] = {}
    for row in rows if len(decisions) else ():
        if row.digest is not None:
            by_digest.setdefault(row.digest, []).append(row)
    for one in decisions:
        for first, second in product(by_digest.get(one.first, ()), by_digest.get(one.second, ())):
            known = similar.get(frozenset((first.path, second.path)))
            link = known or Link(first.path, second.path, 0.0, _stretched(first, second))
            shot = float(one.verdict == SAME)
            yield replace(link, probability=float(one.verdict == COPY), another_shot=shot, verdict=one.verdict)


def _stretched(first: ImageRow, second: ImageRow) -> Floats64:
    """Return the transform that lays all of one image on all of another, for a pair of which no other is known."""
    x, y = second.width / max(first.width, 1), second.height / max(first.height, 1)
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2]])


def _same_bytes(index: Index, rows: Iterable[ImageRow], files: dict[str, ImageFile]) -> list[list[str]]:
    """Return the paths of files with the same bytes, in groups; those that could not be indexed are added to `files`."""
    by_digest: dict[str, list[str]] = {}
    for row in rows:
        if row.digest is not None:
            by_digest.setdefault(row.digest, []).append(row.path)
    by_size: dict[int, list[str]] = {}
    unusable = index.folder.catalogue.problems()
    for path, (state, _) in unusable.items():
        if state.size and not is_url(path) and index.folder.trust.allows(path):
            by_size.setdefault(state.size, []).append(path)
    for size, paths in by_size.items():
        for path in paths if len(paths) > 1 else []:
            try:
                digest = checksum(Path(path))
            except OSError:
                continue
            by_digest.setdefault(digest, []).append(path)
            files[path] = ImageFile(path, bytes=size, changed=unusable[path][0].changed)
    return [paths for paths in by_digest.values() if len(paths) > 1]


def _identical_links(files: Sequence[ImageFile], scope: Scope) -> Iterator[Link]:
    """Yield the links of files with the same bytes with the best of them; between two folders, with the best of the other."""
    sides = [(files, files)]
    if scope.between is not None:
        one, other = ([file for file in files if is_below(file.path, [folder])] for folder in scope.between)
        sides = [(one, other), (other, one)]
    for side, others in sides:
        best = choose(side)[0].path if side else None
        yield from (Link(best, file.path, 1.0, IDENTITY, identical=True) for file in others if best and file.path != best)


# -- grouping

Edges = dict[str, list[Link]]  # by path, directed so that the file is the first
# Returns a file with what its pixels show, given the transforms to its copies and their sizes.
Look = Callable[[ImageFile, Sequence[tuple[Floats64, Size]]], ImageFile]


def group_copies(files: Mapping[str, ImageFile], links: Iterable[Link], min_probability: float,
                 look: Look = lambda file, copies: file, apart: AbstractSet[frozenset[str]] = frozenset(),
                 chains: bool = True, doubtful: AbstractSet[frozenset[str]] = frozenset()) -> list[Group]:  # fmt: skip
    """Return the groups of files, by path, that links of at least some probability connect; the largest first.

    Two files that are to stay apart are in no group together. Without chains every file of a group is linked with the best; no
    chain links a file with a best of which it is doubtful that it is a copy: what their own pixels say goes before a chain.
    """
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
        linked[path] = look(files[path], copies)
    groups: list[Group] = []
    for component in _components(edges):
        groups += _split({path: linked[path] for path in component}, _Rules(edges, min_probability, apart, chains, doubtful))
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


@dataclass(frozen=True)
class _Rules:
    """What holds for all groups."""

    edges: Edges
    min_probability: float
    apart: AbstractSet[frozenset[str]]  # paths of two files that are in no group together
    chains: bool  # whether files are copies that are linked with the best by others only
    doubtful: AbstractSet[frozenset[str]]  # paths of two files that are joined by no chain


def _split(members: dict[str, ImageFile], rules: _Rules) -> list[Group]:
    """Split a component into groups around their best files; files that are left alone are in none."""
    groups: list[Group] = []
    left = dict(members)
    while len(left) > 1:
        best, reason = choose(list(left.values()))
        copies = _copies_of(best, left, rules)
        if is_collage(best, left, rules.edges):
            complete = {best.path: best}  # and copies that show all of it, and not a part
            for copy in copies:
                if copy.identical or shares(copy.file.size, best.size, copy.transform)[1] >= NEARLY_ALL:
                    complete[copy.file.path] = copy.file
            copies = _copies_of(best, complete, rules)
        del left[best.path]
        for copy in copies:
            del left[copy.file.path]
        if copies:
            groups.append(Group(best, reason, tuple(copies)))
    return groups


def _copies_of(best: ImageFile, left: Mapping[str, ImageFile], rules: _Rules) -> list[Copy]:
    """Return the copies of a file, most probable first: by a link, else by their most probable chain (Dijkstra 1959)."""
    copies: dict[str, Copy] = {}
    direct = {link.second: link for link in rules.edges[best.path]}
    start = Link(best.path, best.path, 1.0, IDENTITY, identical=True)
    order = count()  # of entries that are equal in all else
    queue: list[tuple[float, str, str, int, Link]] = [(-1.0, best.path, "", next(order), start)]
    done: set[str] = set()
    while queue:
        negative, path, via, _, link = heapq.heappop(queue)
        if path in done or _is_apart(path, best, copies, rules.apart):
            continue
        done.add(path)
        if path != best.path:
            linked = direct.get(path)
            verdict = None if linked is None else linked.verdict
            chain = None if linked is not None else via
            copy = Copy(left[path], -negative, chain, link.transform, link.identical, verdict)
            if has_more(copy, best):  # it represents its own copies, too
                continue
            copies[path] = copy
        for edge in rules.edges[path] if rules.chains or path == best.path else ():
            probability = -negative * edge.probability
            known = edge.second in done or (edge.second in direct and path != best.path)
            if known or edge.second not in left or probability < rules.min_probability:
                continue
            if path != best.path and frozenset((edge.second, best.path)) in rules.doubtful:
                continue
            transform = compose(link.transform, inverse(edge.transform))
            if path == best.path or _overlap(left[edge.second], best, transform):
                further = Link(edge.second, best.path, probability, transform, edge.identical and link.identical)
                heapq.heappush(queue, (-probability, edge.second, path, next(order), further))
    return sorted(copies.values(), key=lambda copy: (-copy.probability, copy.file.path))


def _is_apart(path: str, best: ImageFile, copies: Iterable[str], apart: AbstractSet[frozenset[str]]) -> bool:
    """Return whether a file is to stay apart from one that is in the group already."""
    return bool(apart) and any(frozenset((path, other)) in apart for other in (best.path, *copies))


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


def has_more(copy: Copy, best: ImageFile) -> bool:
    """Return whether a copy has detail or colours that the best lacks, which would be lost with it.

    So has a photograph that the best shows on a wall. A reference folder and the user's verdict go before that.
    """
    if copy.identical or best.reference or copy.verdict == COPY or not (copy.file.width and best.width):
        return False
    return scale(copy.transform) < COLLAGE_SCALE or (copy.file.coloured and not best.coloured)


# -- the best of a group


# Score of a file, share of the largest score that is kept, and the reason that is given if one file is left.
CRITERIA: tuple[tuple[Callable[[ImageFile], float], float, Callable[[ImageFile], str]], ...] = (
    (lambda f: f.reference, 1, lambda f: "in a reference folder"),
    (lambda f: f.width * f.height * f.content, SAME_PIXELS, lambda f: f"most pixels: {f.width} x {f.height}"),
    (lambda f: f.coloured, 1, lambda f: "as many pixels as any, in colour"),
    (lambda f: f.bytes, SAME_BYTES, lambda f: f"as many pixels as any, largest file: {format_bytes(f.bytes)}"),
    (lambda f: _suffix(f) in LOSSLESS, 1, lambda f: f"as many pixels as any, lossless: {_suffix(f)[1:]}"),
    # A share of 1 is an integer, so that nanoseconds stay exact.
    (lambda f: -math.inf if f.changed is None else -f.changed, 1, lambda f: f"as good as any, oldest: {format_day(f.changed)}"),
    (lambda f: -len(f.path), 1, lambda f: "as good and as old as any, shortest path"),
)


def choose(files: Sequence[ImageFile]) -> tuple[ImageFile, str]:
    """Return the file to keep, and why: reference, else most pixels, in colour, largest, lossless, oldest, shortest path."""
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
