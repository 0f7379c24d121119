"""Which photographs of an index may be copies of each other? Each asks the earlier ones, as it is and as in a mirror.

A copy is made from the same shot: cropped, turned, mirrored, resized, encoded anew, written upon. Another shot of the same
thing is none, though it may look much alike. Here the evidence is gathered; `certainty.py` says what it is worth.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc import images, searching
from polyvoc.catalogue import ImageRow
from polyvoc.copies import likeness, overlap, reflection
from polyvoc.copies.resemblance import EVIDENCE, NOBODY, PAIR, Pairs
from polyvoc.detectors import one_cv2_thread
from polyvoc.errors import ImageError, OptionError
from polyvoc.geometry import Sketch
from polyvoc.images import GreyImage
from polyvoc.index import Index, frames_of
from polyvoc.lookahead import count_threads, in_order
from polyvoc.records import Kind, Problem, Progress, SearchOptions
from polyvoc.searching import Asked, Found

Array = npt.NDArray[Any]

CANDIDATES = 50  # images that each one verifies
WORTH, LEAST = 10.0, 5  # nats and inliers from which a pair is looked at
REMEMBERED = 128  # small photographs that are kept, up to 0.3 MB each


class Asking(NamedTuple):
    """An image that asks the earlier ones: as it is, as its mirror image, or both."""

    image: int
    plain: bool
    mirror: bool


class Told(NamedTuple):
    """The pairs that an image found, and why it could not ask as its mirror image, if so."""

    pairs: Pairs
    problem: Problem | None


@dataclass(eq=False)
class Search:
    """A search for copies that goes on from what an index knows; it may stop at any image."""

    index: Index
    mirror: bool  # do mirror images ask, too?
    problems: list[Problem] = field(default_factory=list)  # files that could not be read to ask as mirror images

    def __post_init__(self) -> None:
        """Begin where the last search stopped; forget pairs of images that are gone."""
        home, record = self.index.home, self.index.home.read_copies()
        self.asked, self.mirrored = (0, 0) if record is None else (record.asked, record.mirrored)
        self._found = [NOBODY if record is None else np.array(record.read(home.copies_file(record.serial)))]
        self.waiting = to_ask(self.index, self.asked, self.mirrored if self.mirror else None)

    def run(self, progress: Progress | None = None) -> Generator[int, None, None]:
        """Let images ask, by id, and give the id of each that has; closing it early begins no other."""
        examiner = Examiner(self.index)
        told = in_order(examiner.ask, self.waiting, count_threads(None), "polyvoc-copies")
        with one_cv2_thread(), closing(told):
            for done, (asking, (pairs, problem)) in enumerate(told, start=1):
                self._found.append(pairs)
                self.problems += [] if problem is None else [problem]
                self.asked = max(self.asked, asking.image)
                self.mirrored = max(self.mirrored, asking.image) if self.mirror else self.mirrored
                if progress is not None:
                    progress("comparing", done, len(self.waiting))
                yield asking.image

    def pairs(self) -> Pairs:
        """Give all pairs of live images, by their ids; of one found twice, plain and mirrored, the stronger."""
        found = np.concatenate(self._found)
        live = [part.ids[part.live] for part in self.index.engine.standing()]
        ids = np.concatenate([np.empty(0, np.int64), *live])
        found = found[np.isin(found["later"], ids) & np.isin(found["earlier"], ids)]
        nats = found["evidence"][:, EVIDENCE.index("nats")]
        found = found[np.lexsort((-nats, found["earlier"], found["later"]))]
        again = (found["later"][1:] == found["later"][:-1]) & (found["earlier"][1:] == found["earlier"][:-1])
        return np.asarray(found[np.concatenate([[True], ~again])[: len(found)]])


def to_ask(index: Index, asked: int = 0, mirrored: int | None = 0) -> list[Asking]:
    """Give the images that have not asked yet, by id."""
    ids = sorted(int(image) for part in index.engine.standing() for image in part.ids[part.live])
    last = max(ids, default=0) if mirrored is None else mirrored
    return [Asking(image, image > asked, image > last) for image in ids if image > min(asked, last)]


def can_mirror(index: Index) -> bool:
    """Tell whether the features of an index say what those of mirror images would be."""
    return index.home.kind == Kind()


@dataclass(eq=False)
class Examiner:
    """Looks at pairs of images of one index; threads may share it."""

    index: Index
    _small: OrderedDict[int, GreyImage | None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def options(self) -> SearchOptions:
        """Give how images are found: by their words."""
        return replace(self.index.preset("fast"), top=CANDIDATES + 1)  # and itself

    @cached_property
    def table(self) -> Array:
        """Give the weight of matches."""
        return searching.match_table(self.index.engine, self.options)

    def ask(self, asking: Asking) -> Told:
        """Let an image ask the earlier ones; of a pair that agrees both ways, plain and mirrored, the stronger is told."""
        row = self.index.image(asking.image)
        found: dict[int, tuple[float, np.void]] = {}
        problem = None
        try:
            for query, width in self._queries(row, asking):
                for one in self.candidates(query, row.image):
                    if one.image not in found or one.weight > found[one.image][0]:
                        found[one.image] = one.weight, self.pair(row, query.sketch, one, width)
        except (ImageError, OptionError) as error:  # its file, or the library that its store needs
            problem = Problem(row.path, str(error))
        pairs = np.array([pair for _, pair in found.values()], PAIR)
        return Told(pairs, problem)

    def _queries(self, row: ImageRow, asking: Asking) -> Generator[tuple[Asked, int | None], None, None]:
        """Give what an image asks with; and its width, if it asks as its mirror image."""
        if asking.plain:
            yield self.index.asked(row.image, self.options), None
        if asking.mirror:
            # Descriptors are not stored: its file is read again.
            turned = reflection.mirrored(self.index.features(row.path))
            words, signatures = self.index.home.quantiser.quantise(turned.descriptors, 1)
            yield Asked(words, signatures, frames_of(turned)), turned.width

    def candidates(self, query: Asked, image: int) -> list[Found]:
        """Give the earlier images whose arrangement agrees with a query's."""
        engine = self.index.engine
        hits = searching.search(engine, query, self.options, threads=1)
        earlier = [hit.place for hit in hits if hit.image < image]
        seen = searching.verify(engine, query.sketch, earlier, self.options, threads=1).values()
        return [one for one in seen if one.transform is not None and one.weight >= WORTH and one.inliers >= LEAST]

    def pair(self, row: ImageRow, sketch: Sketch, one: Found, mirrored: int | None) -> np.void:
        """Gather the evidence of a pair, by the query's sketch; mirrored: the width of the photograph, if mirrored."""
        assert one.transform is not None
        other = self.index.image(one.image)
        evidence = self._of_features(row, other, sketch, one)
        there = one.transform if mirrored is None else overlap.compose(one.transform, reflection.mirror(mirrored))
        here, thumbnail = self.small(row), self.small(other)
        alike = likeness.NOTHING if here is None or thumbnail is None else likeness.compare(here, thumbnail, there)
        told = {**evidence, **alike._asdict()}
        found: np.void = np.array([(row.image, other.image, there, [told[name] for name in EVIDENCE])], PAIR)[0]
        return found

    def _of_features(self, row: ImageRow, other: ImageRow, sketch: Sketch, one: Found) -> dict[str, float]:
        """Give the evidence of features and of their arrangement."""
        assert one.transform is not None
        (stored,) = self.index.engine.sketches([one.place])
        matched = self.index.engine.inliers(sketch, one.place, self.table)
        size, others = (row.width, row.height), (other.width, other.height)
        places, there = overlap.apply(one.transform, sketch.frames.xy), stored.frames.xy
        back = overlap.apply(overlap.inverse(one.transform), there)
        rivals = min(overlap.inside(places, others).sum(), overlap.inside(back, size).sum())
        # The coarser of the two sets how exact places can be.
        pixel = max(self._pixel(others), self._pixel(size) * overlap.scale(one.transform))
        away = np.linalg.norm(places[matched[:, 0]] - there[matched[:, 1]], axis=1)
        diameters = np.maximum(stored.frames.scale[matched[:, 1]], pixel)
        return {
            "inliers": one.inliers,
            "nats": one.weight,
            "share": min(1.0, one.inliers / max(int(rivals), 1)),
            "residual": float(np.median(away)) / pixel,
            "drift": float(np.median(away / diameters)),
            "stretch": overlap.stretch(one.transform),
            "cover": max(overlap.shares(size, others, one.transform)),
        }

    def _pixel(self, size: tuple[int, int]) -> float:
        """Give the side of a pixel that features were found in, in pixels of the full size."""
        return max(1.0, max(size) / self.index.home.feature_options.long_side)

    def small(self, row: ImageRow) -> GreyImage | None:
        """Give a small photograph, None if its file cannot be read."""
        with self._lock:
            if row.image in self._small:
                self._small.move_to_end(row.image)
                return self._small[row.image]
        try:
            read = images.read_grey(row.path, likeness.LONG_SIDE)
        except (ImageError, OptionError):
            read = None
        with self._lock:
            self._small[row.image] = read
            while len(self._small) > REMEMBERED:
                self._small.popitem(last=False)
        return read
