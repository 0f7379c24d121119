"""Operations on one segment: count the sets of a query, vote, rank.

An *operation* is a function at the top level of a module whose first argument is a held segment. It returns something small,
and runs in this process or on the machine that holds the segment (`engine.Shards`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import Segment
from polyvoc.index.statistics import Statistics, norms
from polyvoc.kernels.images import SPARE, add_shared, share_images, vote_images
from polyvoc.kernels.lists import add_lists, add_lists_and_shared, count_blocks, share_features, vote_hamming
from polyvoc.kernels.matches import BEST, INTRA, KEEP_ALL, count_matches, vote_matches
from polyvoc.kernels.near import vote_near
from polyvoc.kernels.postings import count_postings, find_runs
from polyvoc.options import Burstiness, NormKey
from polyvoc.scoring.codes import CodeWeights, score_codes
from polyvoc.scoring.query import Floats, QueryWords, Weights
from polyvoc.scoring.rules import Counts, ScoringPlan
from polyvoc.types import Array, Floats32, ImageFeatures, ImageRef, Spans
from polyvoc.vocabulary.codes import CodedQuery

BURSTINESS: dict[Burstiness, int] = {"none": KEEP_ALL, "best": BEST, "intra": INTRA}
Path = Literal["lists", "signed lists", "near matches", "images", "matches"]


class SegmentInfo(NamedTuple):
    """How much one segment holds."""

    n_images: int  # deleted ones included, as in arrays over its images
    n_features: int
    planes: int  # groups of 64 bits of a signature
    signed: bool
    code_planes: int  # groups of 64 bits of a code, 0: no codes

    @classmethod
    def of(cls, segment: Segment) -> Self:
        """Return how much a segment holds."""
        return cls(segment.n_images, segment.n_features, segment.planes, segment.signed, segment.code_planes)


class SegmentImages(NamedTuple):
    """Image ids of one segment, and the positions that are not deleted."""

    ids: npt.NDArray[np.int64]  # [n], deleted ones included
    live: npt.NDArray[np.int64]  # positions


@dataclass(frozen=True, eq=False)
class Runs:
    """Where in each list of a query the features lie that share the partner's word: begins, ends [Q, K]."""

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SharedFeatures:
    """The features in several lists of a query with one assignment. What vocabulary 0 and one other share is in `Runs`."""

    begins: npt.NDArray[np.int64]  # of the run of each of the query's own lists
    ends: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint64]  # where other lists share something, see `share_features`
    counts: Counts  # [Q, 2^K] live features of every exact mask of two or more lists, runs included


@dataclass(frozen=True, eq=False)
class SharedImages:
    """The images in lists of several vocabularies of a query, and what phase 1 summed with weights of lists."""

    weights: Floats  # [Q, K, A] of the lists
    images: npt.NDArray[np.uint16]
    masks: npt.NDArray[np.uint16]  # [0] with two vocabularies: all are of both
    votes: Floats  # weights of the lists of the query feature that hold the image
    ranges: npt.NDArray[np.int64]  # [Q, 2] of each query feature
    counts: Counts  # [Q, 2^K] images of every exact mask
    sums: Floats  # [n] weights of all lists that hold an image


@dataclass(eq=False)
class HeldSegment:
    """A segment by its number in the index, with what was computed of it. May be shared by threads."""

    number: int
    segment: Segment
    statistics: Statistics | None = None  # of all segments; None until they are known
    norms: dict[NormKey, Floats32] = field(default_factory=dict)  # computed once per kind
    # What phase 1 found of queries, for phase 2: dropped with the query, or when it is taken.
    _runs: WeakKeyDictionary[QueryWords, Runs] = field(default_factory=WeakKeyDictionary)
    _features: WeakKeyDictionary[QueryWords, SharedFeatures] = field(default_factory=WeakKeyDictionary)
    _shared: WeakKeyDictionary[QueryWords, SharedImages] = field(default_factory=WeakKeyDictionary)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def norm(self, key: NormKey) -> Floats32:
        """Return the norms of the images [n]."""
        with self._lock:
            if key not in self.norms:
                assert self.statistics is not None, "norms need the statistics of all segments"
                self.segment.verify_words()
                self.norms[key] = norms(self.segment, self.statistics, key)
            return self.norms[key]

    def runs(self, query: QueryWords) -> Runs:
        """Return the runs of the lists of a query with one assignment."""
        found = self._runs.get(query)
        if found is None:
            found = self._runs[query] = query_runs(self.segment, query)
        return found

    def keep_features(self, query: QueryWords) -> SharedFeatures:
        """Find the features that several lists share, and keep them for phase 2."""
        found = self._features[query] = shared_features(self.segment, query, self.runs(query))
        return found

    def take_features(self, query: QueryWords) -> SharedFeatures:
        """Return the features that phase 1 kept, and keep them no longer; find them if there are none."""
        found = self._features.pop(query, None)
        return shared_features(self.segment, query, self.runs(query)) if found is None else found

    def keep_shared(self, query: QueryWords, weights: Floats) -> SharedImages:
        """Find the images that several vocabularies share, and keep them for phase 2."""
        found = self._shared[query] = shared_images(self.segment, query, weights)
        return found

    def take_shared(self, query: QueryWords, weights: Floats) -> SharedImages:
        """Return the images that phase 1 kept, and keep them no longer: they may be many.

        Find them if there are none, or a search with other options kept its own.
        """
        found = self._shared.pop(query, None)
        if found is None or found.weights.dtype != weights.dtype or not np.array_equal(found.weights, weights):
            return shared_images(self.segment, query, weights)
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """An image on its way to a hit: its score, and what later stages add."""

    ref: ImageRef
    image: int  # its id
    score: float
    inliers: int = 0  # matches that are consistent with one transform
    weight: float | None = None  # log-likelihood ratio of the inliers, in nats; None: not verified
    transform: Array | None = None  # [2, 3] positions in the query to positions in the image
    noise_rank: float | None = None  # -ln of the rank that noise would reach with its score
    probability: float | None = None  # of showing the same thing; None: not available


ENTRY = np.dtype([("segment", np.int64), ("position", np.int64), ("image", np.int64), ("score", np.float32)])
Entries = npt.NDArray[np.void]  # [n] of ENTRY: candidates as they travel


class BestCandidates(NamedTuple):
    """The images with the highest scores above 0, ties by image id; and the scores of some that were requested."""

    ranked: Entries
    requested: Entries


def as_candidates(best: BestCandidates) -> tuple[list[Candidate], list[Candidate]]:
    """Return entries as candidates: the ranked and the requested ones."""
    ranked, requested = (
        [Candidate((segment, position), image, score) for segment, position, image, score in entries.tolist()]
        for entries in best
    )
    return ranked, requested


# -- operations: phase 1, phase 2


def count(held: HeldSegment, query: QueryWords, plan: ScoringPlan, first: Floats) -> Counts:
    """Phase 1: count the live features (with image sets: images) of every exact mask of two or more lists [Q, 2^K].

    With several assignments also of the masks of one list. first: weights of the lists, see `first_weights`.
    """
    held.segment.verify_words()
    if plan.image_sets:
        needed_later = choose_path(query, plan) == "images"
        return (held.keep_shared(query, first) if needed_later else shared_images(held.segment, query, first)).counts
    if query.words.shape[2] == 1:
        needed_later = choose_path(query, plan) == "lists"
        return (held.keep_features(query) if needed_later else shared_features(held.segment, query, held.runs(query))).counts
    segment, counts = held.segment, np.zeros((len(query.words), 1 << len(query.sizes)), np.int64)
    count_matches(query.words, query.bases, *_run_arrays(segment), segment.alive, query.masks, counts)
    return counts


def add_counts(parts: Sequence[Counts]) -> Counts:
    """Add what `count` returned for parts of a collection."""
    total: Counts = np.sum(parts, axis=0, dtype=np.int64)
    return total


def score(held: HeldSegment, query: QueryWords | CodedQuery, weights: Weights | CodeWeights, plan: ScoringPlan) -> Floats32:
    """Phase 2: score every image of a segment [n], 0 for deleted ones and those before the first of the plan."""
    earlier = held.segment.ids < plan.first_image
    if earlier.any() and earlier.all():
        return np.zeros(len(earlier), np.float32)
    scores = _score(held, query, weights, plan)
    scores[earlier] = 0
    return scores


def _score(held: HeldSegment, query: QueryWords | CodedQuery, weights: Weights | CodeWeights, plan: ScoringPlan) -> Floats32:
    if isinstance(query, CodedQuery):
        assert isinstance(weights, CodeWeights)
        return score_codes(held.segment, query, weights)
    assert isinstance(weights, Weights)
    held.segment.verify_words()
    image_norms = held.norm(plan.norm)
    votes = _vote(held, query, weights, plan)
    scores = np.divide(votes, image_norms, out=np.zeros_like(votes), where=image_norms > 0)
    if len(held.segment.alive):
        scores[held.segment.alive == 0] = 0
    return scores


def best(held: HeldSegment, query: QueryWords | CodedQuery, weights: Weights | CodeWeights, plan: ScoringPlan, depth: int,
         requested: Sequence[ImageRef]) -> BestCandidates:  # fmt: skip
    """Phase 2, but return only the best `depth` images of a segment, and the scores of the requested ones."""
    scores = score(held, query, weights, plan)
    positions = np.array([position for number, position in requested if number == held.number], np.int64)
    ranked = best_entries(held.number, held.segment.ids, scores, depth)
    return BestCandidates(ranked, _entries(held.number, held.segment.ids, scores, positions))


def join_best(depth: int, parts: Sequence[BestCandidates]) -> BestCandidates:
    """Join what `best` returned for parts of a collection."""
    requested = np.concatenate([part.requested for part in parts])
    return BestCandidates(rank_entries([part.ranked for part in parts], depth), requested)


def best_entries(number: int, ids: npt.NDArray[np.int64], scores: Floats32, depth: int) -> Entries:
    """Return the best `depth` images of a segment by their scores [n]."""
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) > depth:  # keep all that tie with the last
        limit = np.partition(scores[candidates], -depth)[-depth]
        candidates = candidates[scores[candidates] >= limit]
    return rank_entries([_entries(number, ids, scores, candidates)], depth)


def rank_entries(parts: Sequence[Entries], depth: int) -> Entries:
    """Return the best of parts of a collection, ties by image id."""
    entries = np.concatenate([np.empty(0, ENTRY), *parts])
    return entries[np.lexsort((entries["image"], -entries["score"]))[:depth]]


def _entries(number: int, ids: npt.NDArray[np.int64], scores: Floats32, positions: npt.NDArray[np.int64]) -> Entries:
    entries = np.empty(len(positions), ENTRY)
    entries["segment"], entries["position"] = number, positions
    entries["image"], entries["score"] = ids[positions], scores[positions]
    return entries


# -- operations: single images and what a segment holds


def segment_images(held: HeldSegment) -> SegmentImages:
    """Return the images of a segment."""
    return SegmentImages(np.asarray(held.segment.ids), held.segment.live_positions())


def live_spans(segment: Segment) -> Spans:
    """Return the ids of the live images of a segment as ranges first .. last."""
    return spans_of(segment.ids[segment.live_positions()])


def spans_of(images: npt.ArrayLike) -> Spans:
    """Return ids as ranges first .. last, in order."""
    ids = np.sort(np.asarray(images, np.int64))
    breaks = np.diff(ids, prepend=-2, append=np.iinfo(np.int64).max) != 1
    return tuple(zip(ids[breaks[:-1]].tolist(), ids[breaks[1:]].tolist(), strict=True))


def find_image(held: HeldSegment, image: int) -> ImageRef | None:
    """Return the ref of a live image, None if it is not in this segment."""
    alive = held.segment.alive
    for position in np.flatnonzero(held.segment.ids == image):
        if not len(alive) or alive[position]:
            return held.number, int(position)
    return None


def image_features_at(held: HeldSegment, position: int) -> ImageFeatures:
    """Return what is stored of an image."""
    return held.segment.image_features(position)


def vector_at(held: HeldSegment, position: int) -> Floats32 | None:
    """Return the stored vector [d] of an image, None if it has none."""
    rows = held.segment.embeddings
    return None if rows is None or not rows[position].any() else rows[position].astype(np.float32)


def code_norm_at(held: HeldSegment, position: int) -> float:
    """Return the norm of an image for scores by codes."""
    return float(held.segment.arrays["code_norms"][position])


def norms_of(held: HeldSegment, key: NormKey) -> Floats32:
    """Return the norms of the images of a segment [n]."""
    return held.norm(key)


# -- kernels


def choose_path(query: QueryWords, plan: ScoringPlan) -> Path:
    """Choose the kernels: gathering every match one by one is the last resort."""
    bursts = plan.options.burstiness != "none"
    if plan.image_sets and not plan.rule.needs_table and (plan.rule.on_difference or not bursts):
        return "images"
    if query.words.shape[2] > 1 or plan.image_sets or (bursts and query.signatures is None):
        return "matches"
    if query.signatures is None:
        return "lists"
    return "near matches" if bursts or plan.rule.needs_table else "signed lists"


def query_runs(segment: Segment, query: QueryWords) -> Runs:
    """Look up the runs of a query with one assignment in one segment."""
    if len(query.sizes) == 1:
        nothing = np.zeros((len(query.words), 1), np.int64)
        return Runs(nothing, nothing)
    first = 0 if query.signatures is not None else 1  # without signatures the runs of vocabulary 0 are not used
    return Runs(*find_runs(query.words[:, :, 0], query.order, query.bases, *_run_arrays(segment)[:4], first))


def shared_features(segment: Segment, query: QueryWords, runs: Runs) -> SharedFeatures:
    """Find the features that lists of a query with one assignment share, in one segment, and count them."""
    counts, (starts, postings) = np.zeros((len(query.words), 1 << len(query.sizes)), np.int64), _list_arrays(segment)
    numbers, features, vocabularies = query.own_lists
    begins, ends = runs.begins[features, vocabularies], runs.ends[features, vocabularies]
    found = SharedFeatures(begins, ends, np.empty(count_blocks(numbers, vocabularies, starts), np.uint64), counts)
    share_features(*_own_arrays(segment, query, found), starts, postings, segment.alive, found.bits, counts)
    return found


def shared_images(segment: Segment, query: QueryWords, weights: Floats) -> SharedImages:
    """Find the images in lists of several vocabularies of a query, in one segment, and sum the weights of all its lists."""
    counts, ranges = np.zeros((len(query.words), 1 << len(query.sizes)), np.int64), np.zeros((len(query.words), 2), np.int64)
    starts, postings = _list_arrays(segment)
    most = count_postings(query.words, query.bases, starts) // 2 + SPARE  # allocated, but only what is found takes memory
    masked = most if len(query.sizes) > 2 else 0
    found = np.empty(most, np.uint16), np.empty(masked, np.uint16), np.empty(most, weights.dtype)
    sums = np.zeros(segment.n_images, weights.dtype)
    lists = (query.words, query.order, query.groups, query.bases, starts, postings, segment.alive, weights)
    n = share_images(*lists, *found, ranges, counts, sums)
    images, masks, votes = (array[:n] for array in found)
    return SharedImages(weights, images, masks, votes, ranges, counts, sums)


def _vote(held: HeldSegment, query: QueryWords, weights: Weights, plan: ScoringPlan) -> Floats32:
    """Sum the votes for every image of one segment [n], before the norm."""
    path = choose_path(query, plan)
    if path == "lists":
        return _vote_lists(held, query, weights)
    if path == "images":
        return _vote_images(held, query, weights, plan)
    segment, scores = held.segment, np.zeros(held.segment.n_images, np.float32)
    burstiness = BURSTINESS[plan.options.burstiness]
    if path == "matches":
        vote_matches(query.words, query.bases, *_run_arrays(segment), *_signature_arrays(segment, query), weights.idf,
                     weights.factors, weights.hamming, weights.cells, weights.table, segment.alive, query.masks,
                     plan.image_sets, burstiness, plan.rule.on_difference, scores)  # fmt: skip
        return scores
    assert query.signatures is not None
    lists = (*_shared_arrays(segment, query, held.runs(query)), segment.arrays["signatures"], query.signatures[:, :, 0])
    if path == "near matches":
        vote_near(*lists, weights.idf[:, :, 0], weights.factors, weights.hamming, weights.cells, weights.table,
                  segment.alive, burstiness, plan.rule.on_difference, scores)  # fmt: skip
    else:
        vote_hamming(*lists, weights.idf[:, :, 0], weights.factors, weights.hamming, scores)
    return scores


def _vote_lists(held: HeldSegment, query: QueryWords, weights: Weights) -> Floats32:
    """Add each list once with the summed weight of its query features, then correct the features that lists share."""
    scores = np.zeros(held.segment.n_images, weights.dtype)
    lists = (*weights.lists, held.segment.arrays["starts"])
    postings = held.segment.arrays["postings"]
    if not weights.delta.any():
        add_lists(*lists, postings, scores)
        return scores.astype(np.float32, copy=False)
    found, (_, features, vocabularies) = held.take_features(query), query.own_lists
    more = weights.delta[features, 1 | 1 << vocabularies], weights.delta
    add_lists_and_shared(*lists, *_own_arrays(held.segment, query, found), found.bits, *more, postings, scores)
    return scores.astype(np.float32, copy=False)


def _vote_images(held: HeldSegment, query: QueryWords, weights: Weights, plan: ScoringPlan) -> Floats32:
    """Vote with the weight of each image's set; without signatures and burstiness by whole lists, corrected where shared."""
    found = held.take_shared(query, weights.first)
    if query.signatures is None and plan.options.burstiness == "none":
        scores = found.sums if plan.rule.adds_first else np.zeros(held.segment.n_images, weights.dtype)
        if not plan.rule.adds_first:
            add_lists(*weights.lists, *_list_arrays(held.segment), scores)
        add_shared(found.images, found.masks, found.votes, found.ranges, weights.gains, scores)
        return scores.astype(np.float32, copy=False)
    shared = found.images, found.masks, found.ranges
    votes = np.zeros(held.segment.n_images, np.float32)
    vote_images(query.words, query.bases, *_list_arrays(held.segment), *shared, *_signature_arrays(held.segment, query),
                weights.idf, weights.factors, weights.hamming, BURSTINESS[plan.options.burstiness], votes)  # fmt: skip
    return votes


def _signature_arrays(segment: Segment, query: QueryWords) -> tuple[Array, Array]:
    """Return the signatures of a segment and of a query; empty ones where they are not compared."""
    if query.signatures is None:
        return np.empty((0, 0), np.uint64), np.empty((*query.words.shape, 0), np.uint64)
    return segment.arrays["signatures"], query.signatures


def _list_arrays(segment: Segment) -> tuple[Array, Array]:
    return segment.arrays["starts"], segment.arrays["postings"]


def _run_arrays(segment: Segment) -> tuple[Array, ...]:
    names = ("starts", "run_starts", "run_words", "run_lengths", "columns", "postings")
    return tuple(segment.arrays[name] for name in names)


def _own_arrays(segment: Segment, query: QueryWords, found: SharedFeatures) -> tuple[Array, ...]:
    return (*query.own_lists, found.begins, found.ends, query.words[:, :, 0], segment.arrays["columns"])


def _shared_arrays(segment: Segment, query: QueryWords, runs: Runs) -> tuple[Array, ...]:
    lists = tuple(segment.arrays[name] for name in ("starts", "columns", "postings"))
    return (query.words[:, :, 0], query.bases, runs.begins, runs.ends, *lists)
