"""Compares each new image of an index with all earlier ones, and stores the evidence of the pairs that match.

An image is compared as it is, and as its mirror image: word search, spatial verification, then pixels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.duplicates.alignment import LONG_SIDE, Alignment, align
from polyvoc.duplicates.overlap import apply, compose, inside, inverse, scale, shares, stretch
from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import single_cv2_thread
from polyvoc.index.catalogue import ImageRow
from polyvoc.index.folder import DUPLICATE_PAIRS, IndexFolder
from polyvoc.index.writer import IndexWriter
from polyvoc.scoring.segments import Candidate
from polyvoc.search.index import Index
from polyvoc.search.pairs import SEARCHED_TOGETHER, StoredQueries
from polyvoc.search.pipeline import search
from polyvoc.search.query import PhotoReader, Query
from polyvoc.search.verify import AnyVerification, inliers_in, prepare_verification, verify
from polyvoc.storage.trust import Trust
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import SIFT, FeatureKind, Features, Floats64, GreyImage, Problem, Progress

SAVE_SECONDS = 30.0  # a killed process loses at most this much work
CANDIDATES = 50  # images that are verified for each one
MIN_LLR, MIN_INLIERS = 10.0, 5  # of a pair that is stored
CACHED_IMAGES = 64  # reduced images kept in memory, up to 1 MB each

# Evidence for or against a copy; NaN: not known.
EVIDENCE = (
    "inliers",  # matches that are consistent with one transform
    "llr",  # sum of their log-likelihood ratios, in nats
    "share",  # inliers / features in the overlap of the image that has fewer there
    "residual",  # median distance of inliers from their transformed position, in pixels of the extraction
    "drift",  # the same in diameters of the features: blurred images have large ones, whose positions are less exact
    "stretch",  # ratio of the axes of the transform, at least 1
    "cover",  # share of the smaller image that the other shows
    *Alignment._fields,
)
EVIDENCE_VERSION = 2  # raised when values of the evidence change: pairs with others are compared again
# Ids; the transform maps points of the later image to points of the earlier one, in pixels of the full size.
PAIR = np.dtype([
    ("later", np.int64),
    ("earlier", np.int64),
    ("transform", np.float64, (2, 3)),
    ("evidence", np.float32, (len(EVIDENCE),)),
])  # fmt: skip
Pairs = npt.NDArray[np.void]  # [P] of PAIR

# SIFT describes 4 x 4 cells of 8 directions along the feature's own direction: in a mirror the rows of cells and the directions
# are reversed.
_CELLS = np.arange(128).reshape(4, 4, 8)
MIRROR_ORDER = _CELLS[::-1][:, :, -np.arange(8) % 8].ravel()


def compare(writer: IndexWriter, mirror: bool = True, progress: Progress | None = None) -> list[Problem]:
    """Compare the images that have not been compared yet with all earlier ones, also as mirror images; store the pairs.

    Return the files that could not be read for their mirror image. Pairs are saved every SAVE_SECONDS and on interruption.
    """
    writer.commit()
    problems: list[Problem] = []
    with Index.open(writer.folder.path) as index:
        index.folder.trust.require_named()
        index.engine.session(require_all=True)  # what cannot be opened would count as compared
        mirror = mirror and can_mirror(index)
        stored, tasks = read_pairs(index.folder), pending_tasks(index, mirror)
        found = [np.array(stored.pairs)]
        last = {"compared": stored.compared, "mirror_compared": stored.mirror_compared, "evidence": EVIDENCE_VERSION}
        threads = count_threads(None)
        size = max(1, min(SEARCHED_TOGETHER, -(-len(tasks) // threads)))
        blocks = [tasks[first : first + size] for first in range(0, len(tasks), size)]
        results = ordered_map(PairComparer(index).find_block, blocks, threads, "polyvoc-duplicates")
        saved = time.monotonic()
        with single_cv2_thread(), closing(results):
            try:
                compared = (one for _, found_in_block in results for one in found_in_block)
                for done, (task, pairs, problem) in enumerate(compared, start=1):
                    found.append(pairs)
                    problems += [] if problem is None else [problem]
                    for name in ("compared", "mirror_compared") if mirror else ("compared",):
                        last[name] = max(last[name], task.image)
                    if progress is not None:
                        progress("comparing", done, len(tasks))
                    if time.monotonic() - saved >= SAVE_SECONDS:
                        _save_pairs(writer, index, found, last)
                        saved = time.monotonic()
            finally:
                _save_pairs(writer, index, found, last)
    return problems


def _save_pairs(writer: IndexWriter, index: Index, found: list[Pairs], last: dict[str, int]) -> None:
    """Store the pairs found so far, unless nothing was compared since. Searches do not read them: this is no commit.

    Only pairs of live images are stored, by their ids; of a pair found both plain and mirrored, the stronger.
    """
    before = writer.folder.side_file(DUPLICATE_PAIRS)
    if before is not None and before.extra == last:
        return
    pairs, ids = np.concatenate(found), _live_ids(index)
    pairs = pairs[np.isin(pairs["later"], ids) & np.isin(pairs["earlier"], ids)]
    llr = pairs["evidence"][:, EVIDENCE.index("llr")]
    pairs = pairs[np.lexsort((-llr, pairs["earlier"], pairs["later"]))]
    again = (pairs["later"][1:] == pairs["later"][:-1]) & (pairs["earlier"][1:] == pairs["earlier"][:-1])
    writer.save_side_file(DUPLICATE_PAIRS, pairs[np.concatenate([[True], ~again])[: len(pairs)]], dict(last))


class PairTask(NamedTuple):
    """An image to compare with the earlier ones: as it is, as its mirror image, or both."""

    image: int
    plain: bool
    mirror: bool


class StoredPairs(NamedTuple):
    """The pairs that an index stores, and the last images that were compared; all with smaller ids were, too."""

    pairs: Pairs
    compared: int
    mirror_compared: int  # the same of mirror images


def pending_tasks(index: Index, mirror: bool = True) -> list[PairTask]:
    """Return the images of an index that have not been compared yet, by id."""
    _, compared, mirror_compared = read_pairs(index.folder)
    return list_tasks(_live_ids(index).tolist(), compared, mirror_compared if mirror and can_mirror(index) else None)


def list_tasks(images: Sequence[int], compared: int, mirror_compared: int | None) -> list[PairTask]:
    """Return tasks for the images (ids, ascending) above those compared; mirror_compared=None: without mirror images."""
    last = max(images, default=0) if mirror_compared is None else mirror_compared
    return [PairTask(image, image > compared, image > last) for image in images if image > min(compared, last)]


def can_mirror(index: Index) -> bool:
    """Return whether the features of mirror images can be computed: of SIFT only."""
    return index.folder.kind == FeatureKind()


def _live_ids(index: Index) -> npt.NDArray[np.int64]:
    return np.sort(np.concatenate([np.empty(0, np.int64), *(part.ids[part.live] for part in index.engine.images())]))


class PairComparer:
    """Gathers the evidence of pairs of images of one index; threads may share it."""

    def __init__(self, index: Index) -> None:
        """Compare images of an index."""
        self.index = index
        self._options = replace(index.preset("fast"), top=CANDIDATES + 1)  # and the image itself
        self._read_small = lru_cache(CACHED_IMAGES)(partial(_read_small, index.folder.trust))

    @cached_property
    def _reader(self) -> PhotoReader:
        return PhotoReader.of(self.index.folder)

    @cached_property
    def _source(self) -> StoredQueries:
        return StoredQueries(self.index.engine, self._options, self.index.coder)

    def find_block(self, tasks: Sequence[PairTask]) -> list[tuple[PairTask, Pairs, Problem | None]]:
        """Return the pairs of some images with earlier ones; what is stored of them is decoded together."""
        rows = [self.index.image(task.image) for task in tasks]
        plain = [row for row, task in zip(rows, tasks, strict=True) if task.plain]
        queries = self._source.of_many([self.index.find(row.image) for row in plain], verify=1)
        asked = dict(zip((row.image for row in plain), queries, strict=True))
        return [(task, *self.find_pairs(row, task, asked.get(row.image))) for row, task in zip(rows, tasks, strict=True)]

    def find_pairs(self, row: ImageRow, task: PairTask, plain: Query | None) -> tuple[Pairs, Problem | None]:
        """Return the pairs of an image with earlier ones, and why its mirror image could not be compared, if so.

        plain: what is stored of it, None if only its mirror image is to be compared.

        Of a pair that matches both plain and mirrored, the stronger is returned.
        """
        pairs: dict[int, tuple[float, np.void]] = {}
        problem = None
        try:
            for query, width in self._queries(row, task, plain):
                prepared = prepare_verification(self.index.engine, query, self._options)
                for candidate in self._candidates(query, prepared, row.image):
                    weight = candidate.weight or 0.0
                    if candidate.image not in pairs or weight > pairs[candidate.image][0]:
                        pairs[candidate.image] = weight, self._pair(row, prepared, candidate, width)
        except (ImageError, OptionError) as error:  # its file, or the library that its store needs
            problem = Problem(row.path, str(error))
        return np.array([pair for _, pair in pairs.values()], PAIR), problem

    def _queries(self, row: ImageRow, task: PairTask, plain: Query | None) -> Iterator[tuple[Query, int | None]]:
        """Yield the queries of an image; with the width of the image for its mirror image, else None."""
        if plain is not None:
            yield plain, None
        if task.mirror:
            # Descriptors are not stored: its file is read again.
            features = mirror_features(self.index.features(row.image))
            query = self._reader.query_of(features.descriptors, replace(self._options, verify=1))
            yield replace(query, keypoints=features.keypoints), features.width

    def _candidates(self, query: Query, prepared: AnyVerification, image: int) -> list[Candidate]:
        """Return the earlier images that are consistent with a query by one transform."""
        hits = search(self.index.engine, query, self._options, threads=1)
        earlier = [hit.ref for hit in hits if hit.image < image]
        verified = verify(self.index.engine, prepared, earlier, threads=1).values()
        return [one for one in verified if (one.weight or 0.0) >= MIN_LLR and one.inliers >= MIN_INLIERS]

    def _pair(self, row: ImageRow, query: AnyVerification, candidate: Candidate, mirror_width: int | None) -> np.void:
        """Return a pair with its evidence, as PAIR; mirror_width: width of the image if its mirror image was compared."""
        assert candidate.transform is not None
        other = self.index.image(candidate.image)
        transform = candidate.transform
        if mirror_width is not None:
            transform = compose(transform, mirror_transform(mirror_width))
        aligned = align(self._read_small(row.path), self._read_small(other.path), transform)
        evidence = {**self._feature_evidence(row, other, query, candidate), **aligned._asdict()}
        pair: np.void = np.array([(row.image, other.image, transform, [evidence[name] for name in EVIDENCE])], PAIR)[0]
        return pair

    def _feature_evidence(
        self, row: ImageRow, other: ImageRow, query: AnyVerification, candidate: Candidate
    ) -> dict[str, float]:
        """Return the evidence of the features and of their transform."""
        assert candidate.transform is not None
        (stored,) = self.index.engine.image_features([candidate.ref])
        (inliers,) = self.index.engine.at(inliers_in, [candidate.ref], query)
        size, other_size = (row.width, row.height), (other.width, other.height)
        moved, points = apply(candidate.transform, query.xy), stored.keypoints.xy
        back = apply(inverse(candidate.transform), points)
        n_overlap = min(inside(moved, other_size).sum(), inside(back, size).sum())
        # The coarser of the two images limits how exact positions can be.
        pixel = max(self._pixel_side(other_size), self._pixel_side(size) * scale(candidate.transform))
        distance = np.linalg.norm(moved[inliers[:, 0]] - points[inliers[:, 1]], axis=1)
        diameters = np.maximum(stored.keypoints.scale[inliers[:, 1]], pixel)
        return {
            "inliers": candidate.inliers,
            "llr": candidate.weight or 0.0,
            "share": min(1.0, candidate.inliers / max(int(n_overlap), 1)),
            "residual": float(np.median(distance)) / pixel,
            "drift": float(np.median(distance / diameters)),
            "stretch": stretch(candidate.transform),
            "cover": max(shares(size, other_size, candidate.transform)),
        }

    def _pixel_side(self, size: tuple[int, int]) -> float:
        """Return the side of a pixel of the extraction, in pixels of the full size."""
        return max(1.0, max(size) / self.index.folder.feature_options.long_side)


def _read_small(trust: Trust, path: str) -> GreyImage | None:
    """Read a reduced image; return None if its file cannot be read, or may not be."""
    try:
        return read_grey(trust.require(path), LONG_SIDE)
    except (ImageError, OptionError):
        return None


def mirror_features(features: Features) -> Features:
    """Return the SIFT features of the image with left and right exchanged, in the same order."""
    if features.name != SIFT or features.descriptors.shape[1] != len(MIRROR_ORDER):
        raise OptionError(f"features of {features.kind} cannot be mirrored, only those of SIFT; use --no-mirror")
    xy = features.xy.copy()
    xy[:, 0] = features.width - 1 - xy[:, 0]
    descriptors = features.descriptors[:, MIRROR_ORDER]
    return replace(features, xy=xy, angle=(180 - features.angle) % 360, descriptors=descriptors)


def mirror_transform(width: int) -> Floats64:
    """Return the transform [2, 3] that exchanges left and right of an image."""
    return np.array([[-1.0, 0.0, width - 1.0], [0.0, 1.0, 0.0]])


# -- pairs stored in the index


def read_pairs(folder: IndexFolder) -> StoredPairs:
    """Map the pairs that an index stores."""
    side = folder.side_file(DUPLICATE_PAIRS)
    if side is None or side.extra.get("evidence") != EVIDENCE_VERSION:  # none, or of an older polyvoc
        return StoredPairs(np.empty(0, PAIR), 0, 0)
    return StoredPairs(folder.map_side_file(side, PAIR), side.extra["compared"], side.extra["mirror_compared"])


def check_pairs(folder: IndexFolder) -> Iterator[str]:
    """Yield one line if stored pairs are impossible: a check for `index.check`."""
    side = folder.side_file(DUPLICATE_PAIRS)
    if side is None or side.extra.get("evidence") != EVIDENCE_VERSION:
        return
    if not all(isinstance(side.extra.get(name), int) and side.extra[name] >= 0 for name in ("compared", "mirror_compared")):
        yield f"{folder.catalogue.path}: the setting {DUPLICATE_PAIRS!r} cannot be {side.as_setting()!r}"
    pairs = folder.map_side_file(side, PAIR)
    valid = (pairs["later"] > pairs["earlier"]).all() and np.isfinite(pairs["transform"]).all()
    if not valid or (pairs["evidence"][:, EVIDENCE.index("inliers")] <= 0).any():
        yield f"{folder.side_path(side)} holds pairs that are out of order, or have no transform"
