"""Do two images show the same thing in the same arrangement? Spatial verification from words and signatures alone.

Tentative matches become one-to-one, vote for a change of scale and a rotation, and give an affine transform by a robust
estimator; the matches that agree with it are its inliers. No descriptors are needed. The loops are in `kernels/geometry.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.kernels import geometry as kernels
from polyvoc.kernels import matching
from polyvoc.records import Region
from polyvoc.segment import Segment, with_planes
from polyvoc.weighting import USUAL

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

TOLERANCE = 0.02  # of the long side of the indexed image: how far from its place an inlier may lie
CROWD = 64  # features of a query with one word that are matched: more of them are texture


@dataclass(frozen=True, eq=False)
class Frames:
    """Where the features of one image lie, how large they are and how they are turned; scale 0 means not known."""

    xy: Floats  # [n, 2]
    scale: Floats  # [n]
    angle: Floats  # [n] degrees, clockwise from the x axis

    def __post_init__(self) -> None:
        """Take numbers of any type; refuse arrays that do not belong together or hold no numbers."""
        for name in ("xy", "scale", "angle"):
            values = np.asarray(getattr(self, name), np.float64)
            object.__setattr__(self, name, values)
            if not np.isfinite(values).all():
                raise OptionError(f"geometry: {name} holds values that are not finite; extract the features again")
        n = len(self.xy)
        if self.xy.shape != (n, 2) or self.scale.shape != (n,) or self.angle.shape != (n,):
            raise OptionError(f"geometry: xy {self.xy.shape}, scale {self.scale.shape}, angle {self.angle.shape} do not fit")
        if (self.scale < 0).any():
            raise OptionError("geometry: some scales are negative; extract the features again")

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)

    @cached_property
    def extent(self) -> float:
        """Give the long side of the box around all features."""
        columns = np.ascontiguousarray(self.xy.T)  # the reductions of strided columns are five times slower
        return float((columns.max(axis=1) - columns.min(axis=1)).max()) if len(self) else 0.0


@dataclass(frozen=True, eq=False)
class Sketch:
    """What an index keeps of one image. May be shared by threads."""

    words: Array  # [n, K]
    signatures: Array  # [n, K] ([n, K, 2] beyond 64 bits), or [n, 0] without signatures
    frames: Frames

    @classmethod
    def of(cls, segment: Segment, position: int) -> Sketch:
        """Read the image at a position of a segment."""
        rows = segment.features_of(position)
        scale, angle = rows["shape"].T
        return cls(np.asarray(rows["words"]), np.asarray(rows["signatures"]), Frames(rows["xy"], scale, angle))

    @cached_property
    def lists(self) -> tuple[Array, ...]:
        """Give the numbers of the words and the features of each, as `kernels.matching` wants them."""
        words = np.ascontiguousarray(self.words, np.int64)
        bases = np.concatenate([[0], np.cumsum(words.max(axis=0, initial=-1) + 2)])
        return (bases, *matching.list_words(words, bases, CROWD))

    @cached_property
    def orders(self) -> list[npt.NDArray[np.int64]]:
        """Give the features by their word, for each vocabulary: sorted lists are joined twice as fast."""
        return [np.argsort(self.words[:, k], kind="stable") for k in range(self.words.shape[1])]


@dataclass(frozen=True, eq=False)
class Verifications:
    """How many matches of a query with each of several images agree on one transform, their weight, and which transform."""

    counts: npt.NDArray[np.int64]  # [n]
    weights: Floats  # [n]
    transforms: Floats  # [n, 2, 3] places of the query to places of the image; NaN: none


def default_table(n_vocabularies: int, bits: int) -> npt.NDArray[np.float32]:
    """Tabulate exp(-h^2 / sigma^2) of a match by the number of lists that hold it and its mean distance [K + 1, bits + 1]."""
    limit, sigma = USUAL.get(bits, (0, 1.0))  # without signatures every match is at distance 0
    h = np.arange(bits + 1)
    near = np.where(h <= limit, np.exp(-((h / sigma) ** 2)), 0.0)
    return np.asarray(np.arange(n_vocabularies + 1)[:, None] * near, np.float32)


def verify_images(query: Sketch, segment: Segment, positions: Array, table: Array,
                  tolerance: float = TOLERANCE) -> Verifications:  # fmt: skip
    """Verify the images at some positions of a segment.

    table [K + 1, bits + 1]: weight of a match by the number of words that it shares and their mean Hamming distance, halves
    up; 0 or less: no match.
    """
    return _verify_images(query, segment, positions, table, tolerance, np.empty((0, 2), np.int64))


def inlier_pairs(query: Sketch, segment: Segment, position: int, table: Array,
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


def sharing(query: Sketch, image: Sketch, k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give the pairs (query feature, feature) that share the word of vocabulary k, by word."""
    words, places = query.words[query.orders[k], k], image.words[image.orders[k], k]
    first = np.searchsorted(places, words, "left")
    lengths = np.searchsorted(places, words, "right") - first
    q = np.repeat(np.arange(len(words)), lengths)
    within = np.arange(len(q)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return query.orders[k][q], image.orders[k][first[q] + within]


def _verify_images(query: Sketch, segment: Segment, positions: Array, table: Array, tolerance: float,
                   pairs: npt.NDArray[np.int64]) -> Verifications:  # fmt: skip
    """Verify images, and write the inliers of the last of them to `pairs` as far as there is room."""
    _check(query, segment, table, tolerance)
    n = len(positions)
    if n and not 0 <= np.min(positions) <= np.max(positions) < segment.n_images:
        raise OptionError(f"geometry: the segment has {segment.n_images} images; there is none at position {np.max(positions)}")
    found = Verifications(np.zeros(n, np.int64), np.zeros(n), np.full((n, 2, 3), np.nan))
    if not len(query.words) or not n:
        return found
    ranks, weights = _ranks(table)
    frames = np.column_stack([query.frames.xy, query.frames.scale, query.frames.angle])
    signed = np.ascontiguousarray(with_planes(query.signatures, 2)[:, :, : segment.planes])
    a = segment.arrays
    kernels.verify_images(np.asarray(positions), a["feature_starts"], a["words"], a["places"], a["signatures"], a["xy"],
                          a["shape"].view(np.uint16), frames, signed, *query.lists, ranks, weights, tolerance, found.counts,
                          found.weights, found.transforms, pairs)  # fmt: skip
    return found


def _ranks(table: Array) -> tuple[npt.NDArray[np.int32], Floats]:
    """Give the rank of a match by its shared words and the *sum* of their distances, -1 for none, and each rank's weight."""
    weights = np.unique(table[table > 0])[::-1]
    ranks = np.where(table > 0, np.searchsorted(-weights, -table), -1).astype(np.int32)
    order, total = np.arange(len(table))[:, None], np.arange((table.shape[1] - 1) * (len(table) - 1) + 1)
    mean = np.minimum((2 * total + order) // np.maximum(2 * order, 1), table.shape[1] - 1)
    return np.take_along_axis(ranks, mean, axis=1), weights.astype(np.float64)


def _check(query: Sketch, segment: Segment, table: Array, tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise OptionError(f"tolerance={tolerance!r} should be between 0 and 1, a share of the image's long side")
    if len(query.words) != len(query.frames) or len(query.signatures) != len(query.words):
        raise OptionError(f"geometry: {len(query.words)} words, {len(query.signatures)} signatures, {len(query.frames)} places")
    if len(query.words) and query.words.shape[1] != segment.n_vocabularies:
        raise OptionError(f"geometry: words of {query.words.shape[1]} vocabularies where {segment.n_vocabularies} are expected")
    planes = with_planes(query.signatures, 2).shape[2] if query.signatures.shape[1] else 0
    if len(query.words) and segment.planes not in (0, planes):
        raise OptionError(f"geometry: the query has signatures of {64 * planes} bits, the images of {64 * segment.planes}")
    shape = (segment.n_vocabularies + 1, 64 * segment.planes + 1)
    if table.shape != shape or not np.isfinite(table).all():
        raise OptionError(f"geometry: a table of shape {table.shape} should be {shape}, of finite numbers")
