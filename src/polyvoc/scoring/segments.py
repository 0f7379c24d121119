"""Count, vote and rank in one segment."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import Segment
from polyvoc.index.statistics import NormKey, Statistics, norm_key, norms
from polyvoc.kernels.lists import add_lists, add_lists_and_runs, count_shared, vote_hamming, vote_shared
from polyvoc.kernels.matches import BEST, BOTH, INTER, INTRA, KEEP_ALL, count_matches, vote_matches
from polyvoc.kernels.near import vote_near
from polyvoc.kernels.postings import find_runs
from polyvoc.options import Burstiness, SearchOptions
from polyvoc.scoring.query import QueryWords, Weights
from polyvoc.types import Array, Floats32, ImageRef, ImageWords

BURSTINESS: dict[Burstiness, int] = {
    "none": KEEP_ALL, "best": BEST, "intra": INTRA, "inter": INTER, "both": BOTH
}  # fmt: skip
Path = Literal["lists", "signed lists", "near matches", "matches"]


def path_of(query: QueryWords, options: SearchOptions) -> Path:
    """Choose the kernels: gathering every match one by one is the last resort."""
    bursts = options.burstiness != "none"
    if query.words.shape[2] > 1 or options.sets == "image" or (bursts and query.signatures is None):
        return "matches"
    if query.signatures is None:
        return "lists"
    return "near matches" if bursts or options.merge == "likelihood" else "signed lists"


@dataclass(frozen=True, eq=False)
class Runs:
    """Where in each list of a query stand the features that share the partner's word: begins, ends [Q, K]."""

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def query_runs(segment: Segment, query: QueryWords) -> Runs:
    """Look up the runs of a query with one assignment in one segment; they serve both phases."""
    if len(query.sizes) == 1:
        nothing = np.zeros((len(query.words), 1), np.int64)
        return Runs(nothing, nothing)
    first = 0 if query.signatures is not None else 1  # without signatures nobody asks for the runs of vocabulary 0
    return Runs(*find_runs(query.words[:, :, 0], query.order, query.bases, *_run_arrays(segment)[:4], first))


def _run_arrays(segment: Segment) -> tuple[Array, ...]:
    names = ("starts", "run_starts", "run_words", "run_lengths", "columns", "postings")
    return tuple(segment.arrays[name] for name in names)


def count_masks(segment: Segment, query: QueryWords, options: SearchOptions, runs: Runs | None) -> npt.NDArray[np.int64]:
    """Phase 1: count the live features of every exact mask of two or more lists [Q, 2^K] in one segment.

    With several assignments, or with sets of images (which are then counted), also of the masks of one list.
    """
    n_vocabularies = len(query.sizes)
    counts = np.zeros((len(query.words), 1 << n_vocabularies), np.int64)
    if query.words.shape[2] > 1 or options.sets == "image":
        count_matches(query.words, query.bases, *_run_arrays(segment), segment.alive, query.masks,
                            options.sets == "image", counts)  # fmt: skip
        return counts
    runs = runs or query_runs(segment, query)
    if n_vocabularies == 2 and len(segment.alive) == 0:
        counts[:, 3] = runs.ends[:, 1] - runs.begins[:, 1]
    else:
        count_shared(*_shared_arrays(segment, query, runs), segment.alive, counts)
    return counts


def vote(segment: Segment, query: QueryWords, weights: Weights, options: SearchOptions,
         runs: Runs | None = None) -> npt.NDArray[np.float32]:  # fmt: skip
    """Phase 2: sum the votes for every image of one segment [n_images], before the norm."""
    scores = np.zeros(segment.n_images, np.float32)
    path = path_of(query, options)
    if path == "matches":
        _vote_matches(segment, query, weights, options, scores, weights.totals)
    elif path == "near matches":
        _vote_near(segment, query, weights, options, scores, weights.totals, runs)
    elif path == "lists":
        return _vote_lists(segment, query, weights, runs)
    else:
        runs = runs or query_runs(segment, query)
        vote_hamming(*_shared_arrays(segment, query, runs), *_signature_arrays(segment, query),
                           weights.idf[:, :, 0], weights.factors, weights.closeness, scores)  # fmt: skip
    return scores


def total_votes(segment: Segment, query: QueryWords, weights: Weights, options: SearchOptions,
          runs: Runs | None = None) -> npt.NDArray[np.float64]:  # fmt: skip
    """Between the phases, for burstiness across images: sum the votes of every query feature in one segment [Q]."""
    totals, nothing = np.zeros(len(query.words)), np.empty(0, np.float32)
    if path_of(query, options) == "matches":
        _vote_matches(segment, query, weights, options, nothing, totals)
    else:
        _vote_near(segment, query, weights, options, nothing, totals, runs)
    return totals


def _vote_lists(segment: Segment, query: QueryWords, weights: Weights, runs: Runs | None) -> npt.NDArray[np.float32]:
    """Add each list once with the summed weight of its query features, then correct the features that lists share."""
    scores = np.zeros(segment.n_images, weights.delta.dtype)
    lists = (*weights.lists, segment.arrays["starts"])
    postings = segment.arrays["postings"]
    if not weights.delta.any():
        add_lists(*lists, postings, scores)
        return scores.astype(np.float32, copy=False)
    runs = runs or query_runs(segment, query)
    if len(query.sizes) == 2:
        shared = (*query.run_order, runs.begins, runs.ends, weights.delta)
        add_lists_and_runs(*lists, *shared, postings, scores)
    else:
        add_lists(*lists, postings, scores)
        vote_shared(*_shared_arrays(segment, query, runs), weights.delta, scores)
    return scores.astype(np.float32, copy=False)


def _shared_arrays(segment: Segment, query: QueryWords, runs: Runs) -> tuple[Array, ...]:
    lists = tuple(segment.arrays[name] for name in ("starts", "columns", "postings"))
    return (query.words[:, :, 0], query.bases, runs.begins, runs.ends, *lists)


def _signature_arrays(segment: Segment, query: QueryWords) -> tuple[Array, Array]:
    assert query.signatures is not None
    return segment.arrays["signatures"], query.signatures[:, :, 0]


def _vote_near(segment: Segment, query: QueryWords, weights: Weights, options: SearchOptions, scores: npt.NDArray[np.float32],
               totals: npt.NDArray[np.float64], runs: Runs | None) -> None:  # fmt: skip
    runs = runs or query_runs(segment, query)
    vote_near(*_shared_arrays(segment, query, runs), *_signature_arrays(segment, query), weights.idf[:, :, 0],
                       weights.factors, weights.closeness, weights.cells, weights.table, segment.alive,
                       BURSTINESS[options.burstiness], weights.on_difference, totals, scores)  # fmt: skip


def _vote_matches(segment: Segment, query: QueryWords, weights: Weights, options: SearchOptions, scores: npt.NDArray[np.float32],
                  totals: npt.NDArray[np.float64]) -> None:  # fmt: skip
    signatures, query_signatures = segment.arrays["signatures"], query.signatures
    if query_signatures is None:
        signatures, query_signatures = np.empty((0, 0), np.uint64), np.empty((*query.words.shape, 0), np.uint64)
    vote_matches(query.words, query.bases, *_run_arrays(segment), signatures, query_signatures, weights.idf,
                         weights.factors, weights.closeness, weights.cells, weights.table, segment.alive, query.masks,
                         options.sets == "image", BURSTINESS[options.burstiness], weights.on_difference, totals,
                         scores)  # fmt: skip


class SegmentInfo(NamedTuple):
    """How much one segment holds."""

    n_images: int  # deleted ones included, as in arrays over its images
    n_features: int
    planes: int  # groups of 64 bits of a signature
    signed: bool

    @classmethod
    def of(cls, segment: Segment) -> Self:
        """Count what a segment holds."""
        return cls(segment.n_images, segment.n_features, segment.planes, segment.signed)


class SegmentImages(NamedTuple):
    """Which images stand in one segment."""

    ids: npt.NDArray[np.int64]  # [n], deleted ones included
    live: npt.NDArray[np.int64]  # positions of those that are not


@dataclass(eq=False)
class HeldSegment:
    """A segment by its number in the index, and what was computed of it. May be shared by threads."""

    number: int
    segment: Segment
    statistics: Statistics | None = None  # of all segments; None until they are known
    norms: dict[NormKey, Floats32] = field(default_factory=dict)
    runs: WeakKeyDictionary[QueryWords, Runs] = field(default_factory=WeakKeyDictionary)  # of queries in the middle of a search
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def norm(self, key: NormKey) -> Floats32:
        """Give the norms of the images [n]; computed once per kind."""
        if key.kind == "none":
            return np.ones(self.segment.n_images, np.float32)
        with self._lock:
            if key not in self.norms:
                assert self.statistics is not None, "norms need the statistics of all segments"
                squares = self.statistics.squares_of(key.idf)
                self.norms[key] = norms(self.segment, squares, key.n_vocabularies, key.kind == "root")
            return self.norms[key]

    def keep_runs(self, query: QueryWords, options: SearchOptions) -> Runs | None:
        """Look up the runs of a query's lists, None if its kernels want none; kept while it lives, for phase 2."""
        if path_of(query, options) == "matches":
            return None
        found = self.runs.get(query)
        if found is None:
            found = self.runs[query] = query_runs(self.segment, query)
        return found


def segment_images(held: HeldSegment) -> SegmentImages:
    """Give the images of a segment."""
    return SegmentImages(np.asarray(held.segment.ids), held.segment.live_positions())


def find_image(held: HeldSegment, image: int) -> ImageRef | None:
    """Give where a live image stands, None if it is not in this segment."""
    alive = held.segment.alive
    for position in np.flatnonzero(held.segment.ids == image):
        if not len(alive) or alive[position]:
            return held.number, int(position)
    return None


def image_words_at(held: HeldSegment, position: int) -> ImageWords:
    """Give what is stored of an image for geometry, and to ask with."""
    return held.segment.image_words(position)


def vector_at(held: HeldSegment, position: int) -> npt.NDArray[np.float32] | None:
    """Give the stored vector [d] of an image, None if it has none."""
    rows = held.segment.embeddings
    return None if rows is None or not rows[position].any() else rows[position].astype(np.float32)


def live_features(held: HeldSegment) -> int:
    """Count the features of the live images."""
    return int(np.diff(held.segment.arrays["feature_starts"].astype(np.int64))[held.segment.live_positions()].sum())


def words_at(held: HeldSegment, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Give the words [n, K] of some features, by their numbers among those of the live images, ascending."""
    starts, live = held.segment.arrays["feature_starts"].astype(np.int64), held.segment.live_positions()
    ends = np.cumsum(np.diff(starts)[live])
    image = np.searchsorted(ends, numbers, "right")
    rest = ends[image] - numbers  # features from this one to the end of its image
    words: npt.NDArray[np.int64] = held.segment.arrays["words"][starts[live[image] + 1] - rest].astype(np.int64)
    return words


def count_in(held: HeldSegment, query: QueryWords, options: SearchOptions) -> npt.NDArray[np.int64]:
    """Phase 1: count the sets of a query in a segment."""
    return count_masks(held.segment, query, options, held.keep_runs(query, options))


def total_in(held: HeldSegment, query: QueryWords, weights: Weights, options: SearchOptions) -> npt.NDArray[np.float64]:
    """Between the phases, for burstiness across images: sum the votes of every query feature."""
    return total_votes(held.segment, query, weights, options, held.keep_runs(query, options))


def norm_in(held: HeldSegment, options: SearchOptions) -> Floats32:
    """Give the norms of the images of a segment [n]."""
    return held.norm(norm_key(options, len(held.segment.sizes)))


def norm_at(held: HeldSegment, position: int, options: SearchOptions) -> float:
    """Give the norm of one image."""
    return float(norm_in(held, options)[position])


def score_in(held: HeldSegment, query: QueryWords, weights: Weights, options: SearchOptions, scale: float) -> Floats32:
    """Phase 2: score every image of a segment [n], 0 for deleted ones."""
    norms = norm_in(held, options)
    votes = vote(held.segment, query, weights, options, held.runs.get(query))
    scores = np.divide(votes, norms, out=np.zeros_like(votes), where=norms > 0)
    if scale != 1.0:
        scores /= np.float32(scale)
    if len(held.segment.alive):
        scores[held.segment.alive == 0] = 0
    return scores


ENTRY = np.dtype([("segment", np.int64), ("position", np.int64), ("image", np.int64), ("score", np.float32)])
Entries = npt.NDArray[np.void]  # [n] of ENTRY


class Scored(NamedTuple):
    """An image and its score."""

    place: ImageRef
    image: int
    score: float


class BestCandidates(NamedTuple):
    """The images with the highest scores above 0, ties by image id; and the scores of some that were asked for."""

    ranked: Entries
    also: Entries


def best_in(held: HeldSegment, query: QueryWords, weights: Weights, options: SearchOptions, scale: float, depth: int,
         also: Sequence[ImageRef]) -> BestCandidates:  # fmt: skip
    """Phase 2, and what is worth telling of it: the best `depth` images of a segment."""
    scores = score_in(held, query, weights, options, scale)
    mine = np.array([position for number, position in also if number == held.number], np.int64)
    return BestCandidates(
        best_entries(held.number, held.segment.ids, scores, depth), _entries(held.number, held.segment.ids, scores, mine)
    )


def best_entries(number: int, ids: npt.NDArray[np.int64], scores: Floats32, depth: int) -> Entries:
    """Give the best `depth` images of a segment by their scores [n]."""
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) > depth:  # keep all that tie with the last
        limit = np.partition(scores[candidates], -depth)[-depth]
        candidates = candidates[scores[candidates] >= limit]
    return rank_entries([_entries(number, ids, scores, candidates)], depth)


def _entries(number: int, ids: npt.NDArray[np.int64], scores: Floats32, positions: npt.NDArray[np.int64]) -> Entries:
    found = np.empty(len(positions), ENTRY)
    found["segment"], found["position"] = number, positions
    found["image"], found["score"] = ids[positions], scores[positions]
    return found


def rank_entries(parts: Sequence[Entries], depth: int) -> Entries:
    """Give the best of parts of a collection, ties by image id."""
    found = np.concatenate([np.empty(0, ENTRY), *parts])
    return found[np.lexsort((found["image"], -found["score"]))[:depth]]


def as_scored(entries: Entries) -> list[Scored]:
    """Give entries one by one."""
    return [Scored((segment, position), image, score) for segment, position, image, score in entries.tolist()]


def joining(depth: int) -> partial[BestCandidates]:
    """Give what joins the best `depth` images of parts of a collection."""
    return partial(_join_best, depth)


def _join_best(depth: int, parts: Sequence[BestCandidates]) -> BestCandidates:
    return BestCandidates(rank_entries([part.ranked for part in parts], depth), np.concatenate([part.also for part in parts]))


def add_arrays(parts: Sequence[Array]) -> Array:
    """Add arrays of whole numbers."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
