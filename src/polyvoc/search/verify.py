"""Spatial verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.segment import Segment, with_planes
from polyvoc.kernels.verification import list_words, verify_candidates
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.rules import USUAL_HAMMING
from polyvoc.scoring.segments import HeldSegment
from polyvoc.types import Array, Floats64, ImageRef, ImageWords, Region

TOLERANCE = 0.02  # of the long side of the indexed image: how far from its place an inlier may lie
MAX_PER_WORD = 64  # features of a query with one word that are matched: more of them are texture


@dataclass(frozen=True, eq=False)
class Verifications:
    """How many matches of a query with each of several images agree on one transform, their weight, and which transform."""

    counts: npt.NDArray[np.int64]  # [n]
    weights: Floats64  # [n]
    transforms: Floats64  # [n, 2, 3] places of the query to places of the image; NaN: none


def default_match_table(n_vocabularies: int, bits: int) -> npt.NDArray[np.float32]:
    """Tabulate exp(-h^2 / sigma^2) of a match by the number of lists that hold it and its mean distance [K + 1, bits + 1]."""
    limit, sigma = USUAL_HAMMING.get(bits, (0, 1.0))  # without signatures every match is at distance 0
    h = np.arange(bits + 1)
    near = np.where(h <= limit, np.exp(-((h / sigma) ** 2)), 0.0)
    return np.asarray(np.arange(n_vocabularies + 1)[:, None] * near, np.float32)


def verify_images(query: ImageWords, segment: Segment, positions: Array, table: Array,
                  tolerance: float = TOLERANCE) -> Verifications:  # fmt: skip
    """Verify the images at some positions of a segment.

    table [K + 1, bits + 1]: weight of a match by the number of words that it shares and their mean Hamming distance, halves
    up; 0 or less: no match.
    """
    return _verify_images(query, segment, positions, table, tolerance, np.empty((0, 2), np.int64))


def inlier_pairs(query: ImageWords, segment: Segment, position: int, table: Array,
                 tolerance: float = TOLERANCE) -> npt.NDArray[np.int64]:  # fmt: skip
    """Give the inliers that `verify_images` counts for one image, heaviest first: query feature and feature [n, 2]."""
    pairs = np.empty((len(query.words), 2), np.int64)
    found = _verify_images(query, segment, np.array([position]), table, tolerance, pairs)
    return pairs[: found.counts[0]]


def outline(region: Region, transform: Array) -> tuple[tuple[float, float], ...]:
    """Give the corners of a region in the image that a transform takes it to, from the upper left, clockwise."""
    x0, y0, x1, y1 = region
    corners = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])
    return tuple((float(x), float(y)) for x, y in corners @ transform[:, :2].T + transform[:, 2])


def _verify_images(query: ImageWords, segment: Segment, positions: Array, table: Array, tolerance: float,
                   pairs: npt.NDArray[np.int64]) -> Verifications:  # fmt: skip
    """Verify images, and write the inliers of the last of them to `pairs` as far as there is room."""
    _check_keypoints(query, segment, table, tolerance)
    n = len(positions)
    if n and not 0 <= np.min(positions) <= np.max(positions) < segment.n_images:
        raise OptionError(f"geometry: the segment has {segment.n_images} images; there is none at position {np.max(positions)}")
    found = Verifications(np.zeros(n, np.int64), np.zeros(n), np.full((n, 2, 3), np.nan))
    if not len(query.words) or not n:
        return found
    ranks, weights = _ranks(table)
    frames = np.column_stack([query.keypoints.xy, query.keypoints.scale, query.keypoints.angle])
    signed = np.ascontiguousarray(with_planes(query.signatures, 2)[:, :, : segment.planes])
    a = segment.arrays
    verify_candidates(np.asarray(positions), a["feature_starts"], a["words"], a["places"], a["signatures"], a["xy"],
                          a["shape"].view(np.uint16), frames, signed, *_word_lists(query), ranks, weights, tolerance, found.counts,
                          found.weights, found.transforms, pairs)  # fmt: skip
    return found


def _word_lists(query: ImageWords) -> tuple[Array, ...]:
    """Return the numbers of the query's words and the features of each, as `kernels.verification` wants them."""
    words = np.ascontiguousarray(query.words, np.int64)
    offsets = np.concatenate([[0], np.cumsum(words.max(axis=0, initial=-1) + 2)])
    return (offsets, *list_words(words, offsets, MAX_PER_WORD))


def _ranks(table: Array) -> tuple[npt.NDArray[np.int32], Floats64]:
    """Give the rank of a match by its shared words and the *sum* of their distances, -1 for none, and each rank's weight."""
    weights = np.unique(table[table > 0])[::-1]
    ranks = np.where(table > 0, np.searchsorted(-weights, -table), -1).astype(np.int32)
    order, total = np.arange(len(table))[:, None], np.arange((table.shape[1] - 1) * (len(table) - 1) + 1)
    mean = np.minimum((2 * total + order) // np.maximum(2 * order, 1), table.shape[1] - 1)
    return np.take_along_axis(ranks, mean, axis=1), weights.astype(np.float64)


def _check_keypoints(query: ImageWords, segment: Segment, table: Array, tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise OptionError(f"tolerance={tolerance!r} should be between 0 and 1, a share of the image's long side")
    if len(query.words) != len(query.keypoints) or len(query.signatures) != len(query.words):
        raise OptionError(
            f"geometry: {len(query.words)} words, {len(query.signatures)} signatures, {len(query.keypoints)} places"
        )
    if len(query.words) and query.words.shape[1] != segment.n_vocabularies:
        raise OptionError(f"geometry: words of {query.words.shape[1]} vocabularies where {segment.n_vocabularies} are expected")
    planes = with_planes(query.signatures, 2).shape[2] if query.signatures.shape[1] else 0
    if len(query.words) and segment.planes not in (0, planes):
        raise OptionError(f"geometry: the query has signatures of {64 * planes} bits, the images of {64 * segment.planes}")
    shape = (segment.n_vocabularies + 1, 64 * segment.planes + 1)
    if table.shape != shape or not np.isfinite(table).all():
        raise OptionError(f"geometry: a table of shape {table.shape} should be {shape}, of finite numbers")


def verify_in(held: HeldSegment, positions: Sequence[int], sketch: ImageWords, table: Array) -> tuple[list[int], Verifications]:
    """Verify images of a segment by their positions; gives their ids, too."""
    ids = [int(held.segment.ids[position]) for position in positions]
    return ids, verify_images(sketch, held.segment, np.array(positions), table)


def inliers_in(held: HeldSegment, position: int, sketch: ImageWords, table: Array) -> npt.NDArray[np.int64]:
    """Give the pairs (query feature, feature) [n, 2] that agree on the arrangement of an image."""
    return inlier_pairs(sketch, held.segment, position, table)


MIN_LLR, MIN_INLIERS = 20.0, 6  # nats and inliers from which a hit may speak for the query
CHUNK = 16  # candidates that one thread verifies at a time


@dataclass(frozen=True, eq=False)
class Found:
    """An image that answers a query."""

    place: ImageRef
    image: int
    score: float
    inliers: int = 0  # matches that agree on one transform
    weight: float = 0.0  # what they say together, in nats
    transform: Array | None = None  # [2, 3] places of the query to places of the image
    probability: float | None = None  # of showing the same thing; None: nobody knows

    @property
    def trusted(self) -> bool:
        """Tell whether it surely shows the same thing."""
        return self.weight >= MIN_LLR and self.inliers >= MIN_INLIERS

    def outline(self, region: Region | None) -> tuple[tuple[float, float], ...] | None:
        """Give where the region that asks lies in the image: its corners; None if that is not known."""
        return None if region is None or self.transform is None else outline(region, self.transform)


def verify(engine: Engine, query: ImageWords, places: Sequence[ImageRef], options: SearchOptions,
           threads: int | None = None) -> dict[ImageRef, Found]:  # fmt: skip
    """Verify images: how many matches agree on one transform, and on which."""
    bits = 64 * with_planes(query.signatures, 2).shape[2] if query.signatures.shape[1] else 0
    if engine.bits and bits != engine.bits:
        raise OptionError(f"verify needs the query's signatures of {engine.bits} bits, not {bits}; quantise as the index does")
    table = match_table(engine, options)
    by_segment: dict[int, list[int]] = {}
    for segment, position in places:
        by_segment.setdefault(segment, []).append(position)
    chunks = [(s, held[i : i + CHUNK]) for s, held in by_segment.items() for i in range(0, len(held), CHUNK)]

    told = engine.shards.at(verify_in, chunks, query, table, threads=threads)
    seen = {}
    for (number, positions), part in zip(chunks, told, strict=True):
        if part is not None:  # else its machine does not answer: it stays where its words put it
            seen.update(_seen(number, positions, *part))
    return seen


def _seen(number: int, positions: Sequence[int], ids: Sequence[int], found: Verifications) -> dict[ImageRef, Found]:
    rows = zip(positions, ids, found.counts, found.weights, found.transforms, strict=True)
    return {
        (number, position): Found((number, position), image, 0.0, int(count), float(weight), transform if count else None)
        for position, image, count, weight, transform in rows
    }


def match_table(engine: Engine, options: SearchOptions) -> Array:
    """Give the weight of a match for geometry by the number of lists that hold it and the mean distance [K + 1, bits + 1]."""
    n_vocabularies = len(engine.sizes)
    evidence = engine.settled(replace(options, merge="likelihood")).evidence if engine.bits else None
    if evidence is None:
        return default_match_table(n_vocabularies, engine.bits)
    bins = len(evidence.edges) + 1
    rows = [evidence.rows[evidence.groups[(1 << order) - 1] * bins] for order in range(1, n_vocabularies + 1)]
    return np.array([rows[0], *rows], np.float32)
