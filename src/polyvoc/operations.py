"""What a segment is asked in the course of a search: each function gives something small of one held segment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc import scoring
from polyvoc.geometry import Sketch, Verifications, inlier_pairs, verify_images
from polyvoc.records import SearchOptions
from polyvoc.scoring import Query, Weights
from polyvoc.shards import Held, Scores, Standing, norm_key

Array = npt.NDArray[Any]
Place = tuple[int, int]  # segment, position


# --- what it holds ------------------------------------------------------------------------------------------------------------


def standing(held: Held) -> Standing:
    """Give the images of a segment."""
    return Standing(np.asarray(held.segment.ids), held.segment.live_positions())


def place_of(held: Held, image: int) -> Place | None:
    """Give where a live image stands, None if it is not in this segment."""
    alive = held.segment.alive
    for position in np.flatnonzero(held.segment.ids == image):
        if not len(alive) or alive[position]:
            return held.number, int(position)
    return None


def features_at(held: Held, position: int) -> dict[str, Array]:
    """Give what is stored of the features of an image."""
    return {name: np.asarray(rows) for name, rows in held.segment.features_of(position).items()}


def sketch_at(held: Held, position: int) -> Sketch:
    """Give what is stored of an image for geometry, and to ask with."""
    return Sketch.of(held.segment, position)


def vector_at(held: Held, position: int) -> npt.NDArray[np.float32] | None:
    """Give the stored vector [d] of an image, None if it has none."""
    rows = held.segment.embeddings
    return None if rows is None or not rows[position].any() else rows[position].astype(np.float32)


def live_features(held: Held) -> int:
    """Count the features of the live images."""
    return int(np.diff(held.segment.arrays["feature_starts"].astype(np.int64))[held.segment.live_positions()].sum())


def words_at(held: Held, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Give the words [n, K] of some features, by their numbers among those of the live images, ascending."""
    starts, live = held.segment.arrays["feature_starts"].astype(np.int64), held.segment.live_positions()
    ends = np.cumsum(np.diff(starts)[live])
    image = np.searchsorted(ends, numbers, "right")
    rest = ends[image] - numbers  # features from this one to the end of its image
    words: npt.NDArray[np.int64] = held.segment.arrays["words"][starts[live[image] + 1] - rest].astype(np.int64)
    return words


# --- the two phases -----------------------------------------------------------------------------------------------------------


def count(held: Held, query: Query, options: SearchOptions) -> npt.NDArray[np.int64]:
    """Phase 1: count the sets of a query in a segment."""
    return scoring.count(held.segment, query, options, held.keep_runs(query, options))


def total(held: Held, query: Query, weights: Weights, options: SearchOptions) -> npt.NDArray[np.float64]:
    """Between the phases, for burstiness across images: sum the votes of every query feature."""
    return scoring.total(held.segment, query, weights, options, held.keep_runs(query, options))


def norm(held: Held, options: SearchOptions) -> Scores:
    """Give the norms of the images of a segment [n]."""
    return held.norm(norm_key(options, len(held.segment.sizes)))


def norm_at(held: Held, position: int, options: SearchOptions) -> float:
    """Give the norm of one image."""
    return float(norm(held, options)[position])


def score(held: Held, query: Query, weights: Weights, options: SearchOptions, scale: float) -> Scores:
    """Phase 2: score every image of a segment [n], 0 for deleted ones."""
    norms = norm(held, options)
    votes = scoring.vote(held.segment, query, weights, options, held.runs.get(query))
    scores = np.divide(votes, norms, out=np.zeros_like(votes), where=norms > 0)
    if scale != 1.0:
        scores /= np.float32(scale)
    if len(held.segment.alive):
        scores[held.segment.alive == 0] = 0
    return scores


# --- the best -----------------------------------------------------------------------------------------------------------------

ENTRY = np.dtype([("segment", np.int64), ("position", np.int64), ("image", np.int64), ("score", np.float32)])
Entries = npt.NDArray[np.void]  # [n] of ENTRY


class Scored(NamedTuple):
    """An image and its score."""

    place: Place
    image: int
    score: float


class Best(NamedTuple):
    """The images with the highest scores above 0, ties by image id; and the scores of some that were asked for."""

    ranked: Entries
    also: Entries


def best(held: Held, query: Query, weights: Weights, options: SearchOptions, scale: float, depth: int,
         also: Sequence[Place]) -> Best:  # fmt: skip
    """Phase 2, and what is worth telling of it: the best `depth` images of a segment."""
    scores = score(held, query, weights, options, scale)
    mine = np.array([position for number, position in also if number == held.number], np.int64)
    return Best(best_of(held.number, held.segment.ids, scores, depth), _entries(held.number, held.segment.ids, scores, mine))


def best_of(number: int, ids: npt.NDArray[np.int64], scores: Scores, depth: int) -> Entries:
    """Give the best `depth` images of a segment by their scores [n]."""
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) > depth:  # keep all that tie with the last
        limit = np.partition(scores[candidates], -depth)[-depth]
        candidates = candidates[scores[candidates] >= limit]
    return ranked([_entries(number, ids, scores, candidates)], depth)


def _entries(number: int, ids: npt.NDArray[np.int64], scores: Scores, positions: npt.NDArray[np.int64]) -> Entries:
    found = np.empty(len(positions), ENTRY)
    found["segment"], found["position"] = number, positions
    found["image"], found["score"] = ids[positions], scores[positions]
    return found


def ranked(parts: Sequence[Entries], depth: int) -> Entries:
    """Give the best of parts of a collection, ties by image id."""
    found = np.concatenate([np.empty(0, ENTRY), *parts])
    return found[np.lexsort((found["image"], -found["score"]))[:depth]]


def as_scored(entries: Entries) -> list[Scored]:
    """Give entries one by one."""
    return [Scored((segment, position), image, score) for segment, position, image, score in entries.tolist()]


# --- how parts of a collection are joined -------------------------------------------------------------------------------------


def joining(depth: int) -> partial[Best]:
    """Give what joins the best `depth` images of parts of a collection."""
    return partial(_join_best, depth)


def _join_best(depth: int, parts: Sequence[Best]) -> Best:
    return Best(ranked([part.ranked for part in parts], depth), np.concatenate([part.also for part in parts]))


def added(parts: Sequence[Array]) -> Array:
    """Add arrays of whole numbers."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


# --- geometry -----------------------------------------------------------------------------------------------------------------


def verify(held: Held, positions: Sequence[int], sketch: Sketch, table: Array) -> tuple[list[int], Verifications]:
    """Verify images of a segment by their positions; gives their ids, too."""
    ids = [int(held.segment.ids[position]) for position in positions]
    return ids, verify_images(sketch, held.segment, np.array(positions), table)


def inliers(held: Held, position: int, sketch: Sketch, table: Array) -> npt.NDArray[np.int64]:
    """Give the pairs (query feature, feature) [n, 2] that agree on the arrangement of an image."""
    return inlier_pairs(sketch, held.segment, position, table)
