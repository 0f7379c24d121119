"""Spatial verification: which matches of a query and an image are consistent with one affine transform?

Tentative matches, by codes or, in an index without them, by words and signatures, become one-to-one, vote for a change of
scale and a rotation, and give an affine transform by a robust estimator; the matches that fit it are its inliers. The loops
are in `kernels.verification`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.reading import read_features, read_lists
from polyvoc.index.segment import Segment
from polyvoc.kernels.verification import list_words, verify_candidates, verify_codes
from polyvoc.options import USUAL_HAMMING, ScoringOptions
from polyvoc.scoring.codes import default_code_table, table_rows
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.rules import likelihood_table
from polyvoc.scoring.segments import Candidate, HeldSegment
from polyvoc.search.query import Query
from polyvoc.types import Array, CodeTable, Floats32, Floats64, ImageFeatures, ImageRef, Keypoints, Region, Words, with_planes
from polyvoc.vocabulary.codes import CodedQuery
from polyvoc.vocabulary.vocabulary import MAX_BITS

TOLERANCE = 0.02  # of the long side of the indexed image: how far from its predicted position an inlier may be
# Nats of a match of a feature without angle, more than: its position alone excludes little chance, and chance matches are the
# weak ones. XFeat on Holidays, 16,384 words, medians: the best wrong image has 40 inliers without this limit, 6 with it.
UNTURNED = 3.0
MAX_PER_WORD = 64  # features of a query with one word that are matched: more of them are texture
MIN_LLR, MIN_INLIERS = 20.0, 6  # nats and inliers from which a hit is reliable enough for query expansion and links
CHUNK = 16  # candidates that one thread verifies at a time


@dataclass(frozen=True, eq=False)
class Verifications:
    """Matches of a query with each of several images that are consistent with one transform: number, weight, transform."""

    counts: npt.NDArray[np.int64]  # [n]
    weights: Floats64  # [n] nats
    transforms: Floats64  # [n, 2, 3] positions in the query to positions in the image; NaN: none


@dataclass(frozen=True, eq=False)
class CodedVerification:
    """A query prepared for verification by codes: once for all candidates."""

    features: Floats64  # [Q, 4] x, y, scale, angle
    query: tuple[Array, ...]  # rows of the table, codes, magnitudes, totals, as `kernels.verification.match_codes` takes them
    visited: tuple[Array, ...]  # of `list_visits`
    size: int  # fine words that codes refer to
    ranks: npt.NDArray[np.int32]  # [rows, columns + 1] rank of a match, -1 for none
    weights: Floats64  # of each rank
    reach: int  # largest Hamming distance of a match

    @classmethod
    def of(cls, query: CodedQuery, keypoints: Keypoints, table: CodeTable, size: int) -> CodedVerification:
        """Prepare a query for codes relative to `size` fine words."""
        if len(query.words) != len(keypoints):
            raise OptionError(f"geometry: codes of {len(query.words)} features, {len(keypoints)} keypoints")
        if query.words.max(initial=-1) >= size:  # the kernels do not check it
            raise OptionError(f"geometry: codes relative to word {query.words.max()} where {size} words are expected")
        rows = np.asarray(table.rows)
        matched = rows > (UNTURNED if len(keypoints) and np.isnan(keypoints.angle).all() else 0.0)
        weights = np.unique(rows[matched])[::-1]
        ranks = np.where(matched, np.searchsorted(-weights, -rows), -1).astype(np.int32)
        places = np.column_stack([keypoints.xy, keypoints.scale, keypoints.angle])
        visited = list_visits(query, size, MAX_PER_WORD)
        return cls(places, visit_arrays(query, table_rows(query, table)), visited, size, ranks, weights, table.reach)

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.features)

    @cached_property
    def words(self) -> Words:
        """Return the fine words that the query visits."""
        return np.flatnonzero(self.visited[0][: self.size]).astype(np.int32)

    @property
    def xy(self) -> Floats64:
        """Return the positions of the features [Q, 2]."""
        return self.features[:, :2]

    def check(self, segment: Segment) -> None:
        """Raise OptionError if the query does not fit a segment."""
        if segment.n_features and (segment.fine, segment.code_planes) != (self.size, self.query[1].shape[1]):
            raise OptionError(f"geometry: codes of {self.query[1].shape[1]} x 64 bits relative to {self.size} words "
                              f"where {segment.code_planes} x 64 relative to {segment.fine} are stored")  # fmt: skip

    def run(self, segment: Segment, positions: Array, tolerance: float, result: Verifications, pairs: Array) -> None:
        """Verify images of a segment; see `verify_images`."""
        read_lists(segment, self.words)
        read_features(segment, positions)
        a = segment.arrays
        lists = a["code_starts"], a["codes"], a["code_images"]
        verify_codes(positions, a["feature_starts"], a["code_words"], lists, a["frames"], a["positions"], a["shapes"],
                     self.features, self.query, self.visited, self.ranks, self.weights, self.reach, tolerance, result.counts,
                     result.weights, result.transforms, pairs)  # fmt: skip


@dataclass(frozen=True, eq=False)
class WordVerification:
    """A query prepared for verification by words: once for all candidates."""

    image: ImageFeatures
    signatures: npt.NDArray[np.uint64]  # [Q, K, B]; [Q, 0, 1] without
    keypoints: Floats64  # [Q, 4] x, y, scale, angle
    lists: tuple[Array, ...]  # numbers of its words and the features of each, as `kernels.verification` takes them
    ranks: npt.NDArray[np.int32]  # [K + 1, sum of distances] rank of a match, -1 for none
    weights: Floats64  # of each rank
    table_shape: tuple[int, ...]

    @classmethod
    def of(cls, image: ImageFeatures, table: Array) -> WordVerification:
        """Prepare a query.

        table [K + 1, bits + 1]: weight of a match by the number of words that it shares and their mean Hamming distance,
        halves up; 0 or less: no match.
        """
        if len(image.words) != len(image.keypoints) or len(image.signatures) != len(image.words):
            raise OptionError(f"geometry: {len(image.words)} words, {len(image.signatures)} signatures, "
                              f"{len(image.keypoints)} keypoints")  # fmt: skip
        if not np.isfinite(table).all():
            raise OptionError("geometry: the table of match weights holds values that are not finite")
        at, words, signatures = image.keypoints, np.ascontiguousarray(image.words, np.int64), with_planes(image.signatures, 2)
        offsets = np.concatenate([[0], np.cumsum(words.max(axis=0, initial=-1) + 2)])
        lists = (offsets, *list_words(words, offsets, MAX_PER_WORD)) if len(words) else ()
        return cls(image, signatures, np.column_stack([at.xy, at.scale, at.angle]), lists, *_ranks(table), table.shape)

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.image.words)

    @property
    def xy(self) -> Floats64:
        """Return the positions of the features [Q, 2]."""
        return self.image.keypoints.xy

    def run(self, segment: Segment, positions: Array, tolerance: float, result: Verifications, pairs: Array) -> None:
        """Verify images of a segment; see `verify_images`."""
        segment.verify_words()
        segment.verify_images(positions, "positions", "shapes")
        signatures = np.ascontiguousarray(self.signatures[:, :, : segment.planes])
        a = segment.arrays
        verify_candidates(positions, a["feature_starts"], a["words"], a["places"], a["signatures"], a["frames"],
                          a["positions"], a["shapes"], self.keypoints, signatures, *self.lists, self.ranks, self.weights,
                          tolerance, result.counts, result.weights, result.transforms, pairs)  # fmt: skip

    @property
    def bits(self) -> int:
        """Return the length of the signatures, 0 without."""
        return 64 * self.signatures.shape[2] if self.signatures.shape[1] else 0

    def check(self, segment: Segment) -> None:
        """Raise OptionError if the query does not fit a segment."""
        if len(self.image.words) and self.image.words.shape[1] != segment.n_vocabularies:
            raise OptionError(f"geometry: words of {self.image.words.shape[1]} vocabularies where {segment.n_vocabularies} "
                              "are expected")  # fmt: skip
        planes = self.bits // 64
        if len(self.image.words) and segment.planes not in (0, planes):
            raise OptionError(f"geometry: the query has signatures of {64 * planes} bits, the images of {64 * segment.planes}")
        shape = (segment.n_vocabularies + 1, 64 * segment.planes + 1)
        if self.table_shape != shape:
            raise OptionError(f"geometry: a table of shape {self.table_shape} should be {shape}")


AnyVerification = CodedVerification | WordVerification


def list_visits(query: CodedQuery, size: int, most: int) -> tuple[Array, ...]:
    """List the visits q A + a of a query to each of `size` fine words, the first `most` of them, for `match_codes`."""
    visits: tuple[Array, ...] = list_words(query.words.reshape(-1, 1).astype(np.int64), np.array([0, size + 1]), most)
    return visits


def visit_arrays(query: CodedQuery, rows: Array) -> tuple[Any, ...]:
    """Return a query as `match_codes` takes it, one row per visit q A + a. rows: [Q, A] of the table."""
    codes = query.codes.reshape(-1, query.codes.shape[2])
    return rows.ravel(), codes, query.magnitudes, query.totals.ravel(), query.words.shape[1]


def _ranks(table: Array) -> tuple[npt.NDArray[np.int32], Floats64]:
    """Return the rank of a match by its shared words and the *sum* of their distances, -1 for none, and each rank's weight."""
    weights = np.unique(table[table > 0])[::-1]
    ranks = np.where(table > 0, np.searchsorted(-weights, -table), -1).astype(np.int32)
    n_lists, total = np.arange(len(table))[:, None], np.arange((table.shape[1] - 1) * (len(table) - 1) + 1)
    mean = np.minimum((2 * total + n_lists) // np.maximum(2 * n_lists, 1), table.shape[1] - 1)
    return np.take_along_axis(ranks, mean, axis=1), weights.astype(np.float64)


def prepare_verification(engine: Engine, query: Query, options: ScoringOptions) -> AnyVerification:
    """Prepare a query for verification: by codes where the collection has them, else by words."""
    if query.codes is None:
        return WordVerification.of(query.image_features, match_table(engine, options))
    table = options.code_table or default_code_table(engine.code_bits or MAX_BITS)
    return CodedVerification.of(query.codes, query.checked_keypoints, table, len(engine.statistics.code_occurrences))


def verify(engine: Engine, query: AnyVerification, refs: Sequence[ImageRef],
           threads: int | None = None) -> dict[ImageRef, Candidate]:  # fmt: skip
    """Verify images. Those of an unavailable machine are left out: they keep the rank that their words give them."""
    if isinstance(query, WordVerification) and engine.bits and query.bits != engine.bits:
        raise OptionError(f"verify needs the query's signatures of {engine.bits} bits, not {query.bits}; quantise as the index "
                          "does")  # fmt: skip
    by_segment: dict[int, list[int]] = {}
    for segment, position in refs:
        by_segment.setdefault(segment, []).append(position)
    chunks = [(s, positions[i : i + CHUNK]) for s, positions in by_segment.items() for i in range(0, len(positions), CHUNK)]
    parts = engine.shards.at(verify_in, chunks, query, threads=threads)
    return {
        candidate.ref: candidate
        for (number, positions), part in zip(chunks, parts, strict=True)
        if part is not None
        for candidate in _candidates(number, positions, *part)
    }


def _candidates(number: int, positions: Sequence[int], ids: Sequence[int], verified: Verifications) -> list[Candidate]:
    rows = zip(positions, ids, verified.counts, verified.weights, verified.transforms, strict=True)
    return [
        Candidate((number, position), image, 0.0, int(count), float(weight), transform if count else None)
        for position, image, count, weight, transform in rows
    ]


def is_reliable(candidate: Candidate) -> bool:
    """Return whether an image shows the same thing with near certainty."""
    return candidate.weight is not None and candidate.weight >= MIN_LLR and candidate.inliers >= MIN_INLIERS


# -- operations on one segment


def verify_in(held: HeldSegment, positions: Sequence[int], query: AnyVerification) -> tuple[list[int], Verifications]:
    """Verify images of a segment by their positions; return their ids, too."""
    return [int(held.segment.ids[position]) for position in positions], verify_images(query, held.segment, positions)


def inliers_in(held: HeldSegment, position: int, query: AnyVerification) -> npt.NDArray[np.int64]:
    """Return the inliers of one image (`inlier_pairs`)."""
    return inlier_pairs(query, held.segment, position)


def verify_images(query: AnyVerification, segment: Segment, positions: Sequence[int] | Array,
                  tolerance: float = TOLERANCE, pairs: npt.NDArray[np.int64] | None = None) -> Verifications:  # fmt: skip
    """Verify the images at some positions of a segment.

    `pairs`, if given, receives the inliers of the last of them, as far as there is room.
    """
    query.check(segment)
    if not 0 < tolerance < 1:
        raise OptionError(f"tolerance={tolerance!r} should be between 0 and 1, a share of the image's long side")
    n, at = len(positions), np.asarray(positions, np.int64)
    if n and not 0 <= at.min() <= at.max() < segment.n_images:
        raise OptionError(f"geometry: the segment has {segment.n_images} images; there is none at position {at.max()}")
    result = Verifications(np.zeros(n, np.int64), np.zeros(n), np.full((n, 2, 3), np.nan))
    if len(query) and n:
        query.run(segment, at, tolerance, result, np.empty((0, 2), np.int64) if pairs is None else pairs)
    return result


def inlier_pairs(query: AnyVerification, segment: Segment, position: int,
                 tolerance: float = TOLERANCE) -> npt.NDArray[np.int64]:  # fmt: skip
    """Return the inliers that `verify_images` counts for one image, heaviest first: query feature and feature [n, 2]."""
    pairs = np.empty((len(query), 2), np.int64)
    result = verify_images(query, segment, [position], tolerance, pairs)
    return pairs[: result.counts[0]]


# -- weights of matches, outlines


def match_table(engine: Engine, options: ScoringOptions) -> Floats32:
    """Return the weight of a match for geometry by the number of lists that hold it and the mean distance [K + 1, bits + 1]."""
    n_vocabularies = len(engine.sizes)
    if not engine.bits:
        return default_match_table(n_vocabularies, 0)
    if options.vocabularies is not None:  # geometry uses all vocabularies, a table for fewer does not fit
        options = replace(options, likelihood_table=None)
    table = likelihood_table(options, n_vocabularies, engine.bits)
    bins = len(table.edges) + 1
    rows = [table.rows[table.groups[(1 << n_lists) - 1] * bins] for n_lists in range(1, n_vocabularies + 1)]
    return np.array([rows[0], *rows], np.float32)


def default_match_table(n_vocabularies: int, bits: int) -> Floats32:
    """Tabulate exp(-h^2 / sigma^2) of a match by the number of lists that hold it and its mean distance [K + 1, bits + 1]."""
    limit, sigma = USUAL_HAMMING.get(bits, (0, 1.0))  # without signatures every match is at distance 0
    h = np.arange(bits + 1)
    near = np.where(h <= limit, np.exp(-((h / sigma) ** 2)), 0.0)
    return np.asarray(np.arange(n_vocabularies + 1)[:, None] * near, np.float32)


Outline = tuple[tuple[float, float], ...]


def outlines(region: Region | None, transforms: Sequence[Array | None]) -> list[Outline | None]:
    """Return the corners of a region in each image, from the upper left, clockwise; None where it is not known."""
    return [None if region is None or transform is None else outline(region, transform) for transform in transforms]


def outline(region: Region, transform: Array) -> Outline:
    """Return the corners of a region in the image that a transform maps it to, from the upper left, clockwise."""
    x0, y0, x1, y1 = region
    corners = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])
    return tuple((float(x), float(y)) for x, y in corners @ transform[:, :2].T + transform[:, 2])
