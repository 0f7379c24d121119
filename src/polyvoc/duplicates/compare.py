"""Each new photograph against the earlier ones; stored pairs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from polyvoc.duplicates.overlap import (
    LONG_SIDE,
    NOTHING,
    apply,
    compose,
    inside,
    inverse,
    pixel_similarity,
    scale,
    shares,
    stretch,
)
from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import single_cv2_thread
from polyvoc.index.catalogue import ImageRow
from polyvoc.index.folder import record_of
from polyvoc.options import SearchOptions
from polyvoc.search.index import Index
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.search.verify import Found, match_table, verify
from polyvoc.storage.files import map_array
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import SIFT, Array, FeatureKind, Features, GreyImage, ImageWords, Problem, Progress, keypoints_of

# What speaks for or against a copy; NaN: not known.
EVIDENCE = (
    "inliers",  # matches that agree on one transform
    "nats",  # what they say together for "the same thing"
    "share",  # of the features that the poorer of the two has where both overlap
    "residual",  # median distance of inliers from where the transform puts them, in pixels that were looked at
    "drift",  # the same in diameters of the features: blurred photographs have large ones, whose places are less exact
    "stretch",  # how far the transform is from a similarity: ratio of its axes, at least 1
    "cover",  # of the area of the smaller one that the other shows
    "quarter",  # likeness of pixels: see `likeness.Likeness`
    "median",
    "upper",
    "coarse",
)
# Ids; the transform takes places of the later one to places of the earlier one, in pixels of the full size.
PAIR = np.dtype([
    ("later", np.int64),
    ("earlier", np.int64),
    ("transform", np.float64, (2, 3)),
    ("evidence", np.float32, (len(EVIDENCE),)),
])  # fmt: skip
Pairs = npt.NDArray[np.void]  # [P] of PAIR
NO_IMAGES = np.empty(0, PAIR)


@dataclass(frozen=True)
class PairsRecord:
    """What the catalogue of an index holds of its pairs: the fact "copies"."""

    serial: int  # of the file that holds them
    pairs: int
    checksum: str
    asked: int  # the last image that has asked; all before it have, too
    mirrored: int  # the last one that has asked as its mirror image

    @classmethod
    def of(cls, fact: Any, source: Path) -> Self | None:
        """Read it from a catalogue's fact; None if nobody has looked for copies."""
        return record_of(cls, fact, "copies", source)

    @property
    def plausible(self) -> bool:
        """Tell whether it may be one."""
        counts = (self.serial, self.pairs, self.asked, self.mirrored)
        return all(isinstance(count, int) and count >= 0 for count in counts) and isinstance(self.checksum, str)

    def read(self, path: Path) -> Pairs:
        """Map the pairs from their file."""
        return map_array(path, PAIR, (self.pairs,))


def pairs_errors(pairs: Pairs) -> str | None:
    """Say what is wrong with pairs, None if nothing is."""
    sound = (pairs["later"] > pairs["earlier"]).all() and np.isfinite(pairs["transform"]).all()
    counted = pairs["evidence"][:, EVIDENCE.index("inliers")]
    return None if sound and (counted > 0).all() else "holds pairs that are out of order, or have no transform"


ROWS, COLUMNS, DIRECTIONS = 4, 4, 8  # of a SIFT descriptor, in this order
# A descriptor is laid out along its feature's own direction: seen in a mirror, what was on one side of that direction is on the
# other, and gradients turn the other way.
_ORDER = np.arange(ROWS * COLUMNS * DIRECTIONS).reshape(ROWS, COLUMNS, DIRECTIONS)
PERMUTATION = _ORDER[::-1][:, :, -np.arange(DIRECTIONS) % DIRECTIONS].ravel()


def mirrored(features: Features) -> Features:
    """Give the SIFT features of the photograph with left and right exchanged; the same order, strongest first."""
    if features.name != SIFT or features.descriptors.shape[1] != len(PERMUTATION):
        raise OptionError(f"features of the kind {features.kind} cannot be mirrored, only those of SIFT; leave mirrors out")
    xy = features.xy.copy()
    xy[:, 0] = features.width - 1 - xy[:, 0]
    return Features(
        xy=xy,
        scale=features.scale,
        angle=(180 - features.angle) % 360,
        descriptors=features.descriptors[:, PERMUTATION],
        width=features.width,
        height=features.height,
        name=features.name,
    )


def mirror(width: int) -> npt.NDArray[np.float64]:
    """Give the transform [2, 3] that exchanges left and right of a photograph."""
    return np.array([[-1.0, 0.0, width - 1.0], [0.0, 1.0, 0.0]])


CANDIDATES = 50  # images that each one verifies
WORTH, MIN_INLIERS = 10.0, 5  # nats and inliers from which a pair is looked at
REMEMBERED = 128  # small photographs that are kept, up to 0.3 MB each


class PairTask(NamedTuple):
    """An image that asks the earlier ones: as it is, as its mirror image, or both."""

    image: int
    plain: bool
    mirror: bool


class PairResult(NamedTuple):
    """The pairs that an image found, and why it could not ask as its mirror image, if so."""

    pairs: Pairs
    problem: Problem | None


@dataclass(eq=False)
class PairSearch:
    """A search for copies that goes on from what an index knows; it may stop at any image."""

    index: Index
    mirror: bool  # do mirror images ask, too?
    problems: list[Problem] = field(default_factory=list)  # files that could not be read to ask as mirror images

    def __post_init__(self) -> None:
        """Begin where the last search stopped; forget pairs of images that are gone."""
        home, record = self.index.home, self.index.home.read_copies()
        self.asked, self.mirrored = (0, 0) if record is None else (record.asked, record.mirrored)
        self._found = [NO_IMAGES if record is None else np.array(record.read(home.copies_file(record.serial)))]
        self.waiting = images_to_compare(self.index, self.asked, self.mirrored if self.mirror else None)

    def run(self, progress: Progress | None = None) -> Generator[int, None, None]:
        """Let images ask, by id, and give the id of each that has; closing it early begins no other."""
        examiner = PairComparer(self.index)
        told = ordered_map(examiner.ask, self.waiting, count_threads(None), "polyvoc-copies")
        with single_cv2_thread(), closing(told):
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


def images_to_compare(index: Index, asked: int = 0, mirrored: int | None = 0) -> list[PairTask]:
    """Give the images that have not asked yet, by id."""
    ids = sorted(int(image) for part in index.engine.standing() for image in part.ids[part.live])
    last = max(ids, default=0) if mirrored is None else mirrored
    return [PairTask(image, image > asked, image > last) for image in ids if image > min(asked, last)]


def can_mirror(index: Index) -> bool:
    """Tell whether the features of an index say what those of mirror images would be."""
    return index.home.kind == FeatureKind()


@dataclass(eq=False)
class PairComparer:
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
        return match_table(self.index.engine, self.options)

    def ask(self, asking: PairTask) -> PairResult:
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
        return PairResult(pairs, problem)

    def _queries(self, row: ImageRow, asking: PairTask) -> Generator[tuple[Query, int | None], None, None]:
        """Give what an image asks with; and its width, if it asks as its mirror image."""
        if asking.plain:
            yield self.index.asked(row.image, self.options), None
        if asking.mirror:
            # Descriptors are not stored: its file is read again.
            turned = mirrored(self.index.features(row.path))
            words, signatures = self.index.home.quantiser.quantise(turned.descriptors, 1)
            yield Query(words, signatures, keypoints_of(turned)), turned.width

    def candidates(self, query: Query, image: int) -> list[Found]:
        """Give the earlier images whose arrangement agrees with a query's."""
        engine = self.index.engine
        hits = search(engine, query, self.options, threads=1)
        earlier = [hit.place for hit in hits if hit.image < image]
        seen = verify(engine, query.sketch, earlier, self.options, threads=1).values()
        return [one for one in seen if one.transform is not None and one.weight >= WORTH and one.inliers >= MIN_INLIERS]

    def pair(self, row: ImageRow, sketch: ImageWords, one: Found, mirrored: int | None) -> np.void:
        """Gather the evidence of a pair, by the query's sketch; mirrored: the width of the photograph, if mirrored."""
        assert one.transform is not None
        other = self.index.image(one.image)
        evidence = self._of_features(row, other, sketch, one)
        there = one.transform if mirrored is None else compose(one.transform, mirror(mirrored))
        here, thumbnail = self.small(row), self.small(other)
        alike = NOTHING if here is None or thumbnail is None else pixel_similarity(here, thumbnail, there)
        told = {**evidence, **alike._asdict()}
        found: np.void = np.array([(row.image, other.image, there, [told[name] for name in EVIDENCE])], PAIR)[0]
        return found

    def _of_features(self, row: ImageRow, other: ImageRow, sketch: ImageWords, one: Found) -> dict[str, float]:
        """Give the evidence of features and of their arrangement."""
        assert one.transform is not None
        (stored,) = self.index.engine.sketches([one.place])
        matched = self.index.engine.inliers(sketch, one.place, self.table)
        size, others = (row.width, row.height), (other.width, other.height)
        places, there = apply(one.transform, sketch.keypoints.xy), stored.keypoints.xy
        back = apply(inverse(one.transform), there)
        rivals = min(inside(places, others).sum(), inside(back, size).sum())
        # The coarser of the two sets how exact places can be.
        pixel = max(self._pixel(others), self._pixel(size) * scale(one.transform))
        away = np.linalg.norm(places[matched[:, 0]] - there[matched[:, 1]], axis=1)
        diameters = np.maximum(stored.keypoints.scale[matched[:, 1]], pixel)
        return {
            "inliers": one.inliers,
            "nats": one.weight,
            "share": min(1.0, one.inliers / max(int(rivals), 1)),
            "residual": float(np.median(away)) / pixel,
            "drift": float(np.median(away / diameters)),
            "stretch": stretch(one.transform),
            "cover": max(shares(size, others, one.transform)),
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
            read = read_grey(row.path, LONG_SIDE)
        except (ImageError, OptionError):
            read = None
        with self._lock:
            self._small[row.image] = read
            while len(self._small) > REMEMBERED:
                self._small.popitem(last=False)
        return read
