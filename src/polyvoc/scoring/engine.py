"""Words in, scores out: all segments of a collection together, in this process or on other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, Protocol, Self

import numpy as np

from polyvoc.errors import ClusterError, DamagedError, OptionError
from polyvoc.index.segment import MAX_IMAGES, Batch, Segment
from polyvoc.index.statistics import Statistics
from polyvoc.index.words import MAX_VOCABULARIES
from polyvoc.options import CODES, ScoringOptions
from polyvoc.scoring.codes import CodeWeights, weigh_codes
from polyvoc.scoring.query import QueryWords, Weights, complete_counts, first_weights, needs_signatures_text, weigh
from polyvoc.scoring.rules import Counts, ScoringPlan, make_plan
from polyvoc.scoring.segments import (
    BestCandidates,
    Candidate,
    HeldSegment,
    SegmentImages,
    SegmentInfo,
    add_counts,
    as_candidates,
    best,
    best_entries,
    count,
    find_image,
    image_features_at,
    join_best,
    live_spans,
    rank_entries,
    score,
    segment_images,
)
from polyvoc.threads import count_threads, thread_map
from polyvoc.types import Array, Floats32, ImageFeatures, ImageRef, Spans
from polyvoc.vocabulary.codes import CodedQuery

Operation = Callable[..., Any]
Join = Callable[[Sequence[Any]], Any]
SPREAD = 4  # segments per thread from which on threads take whole segments; below, all scan one segment together
UNAVAILABLE = "a machine that holds part of the index is unavailable; try again when it is back"


class Shards(Protocol):
    """Holds the segments of one collection. Results of a segment that is unavailable or damaged are None."""

    @property
    def statistics(self) -> Statistics:
        """Return what the weights need of all segments."""

    @property
    def infos(self) -> Sequence[SegmentInfo]:
        """Return how much each segment holds."""

    @property
    def missing(self) -> Sequence[int]:
        """Return the segments that were unavailable or damaged since this session began, in order."""

    @property
    def missing_ids(self) -> Spans:
        """Return the ids of the images in those segments."""

    @property
    def damage(self) -> tuple[str, ...]:
        """Return one line for each of them that is damaged."""

    def session(self, require_all: bool) -> Shards:
        """Return the same shards with no segment missing; `require_all`: raise an error as soon as one is."""

    def images(self, threads: int | None = None) -> list[SegmentImages]:
        """Return the images of each segment; ids -1 and no live position for a segment that is unavailable."""

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Return operation(held, *shared) of every segment, in order."""

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join the results of `each`, in any order, to one; only what is joined travels. None if there is none."""

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Return operation(held, argument, *shared) for every (segment, argument)."""

    def close(self) -> None:
        """Release the segments."""


class LocalShards:
    """Segments of this process, mapped or in memory, searched by threads.

    A damaged one raises DamagedError, except in a `session` that records it as missing.
    """

    def __init__(self, segments: Sequence[Segment], sizes: tuple[int, ...], lost: Mapping[str, Spans] | None = None) -> None:
        """Hold segments. lost: ids of the images in segments that could not be opened, by the reason."""
        self.segments = list(segments)
        self.statistics = Statistics.of_segments(self.segments, sizes)
        self.infos = [SegmentInfo.of(segment) for segment in self.segments]
        self.held = [HeldSegment(number, segment, self.statistics) for number, segment in enumerate(self.segments)]
        self.lost = dict(lost or {})
        self._require_all, self._damaged = True, dict[int, str]()

    def session(self, require_all: bool) -> Self:
        """Return the same shards, which record damaged segments from now on; `require_all`: DamagedError instead."""
        for reason in self.lost if require_all else ():
            raise DamagedError(reason)
        session = copy(self)
        session._require_all, session._damaged = require_all, {}
        return session

    @property
    def missing(self) -> Sequence[int]:
        """Return the segments that were found damaged since the session began, in order."""
        return sorted(self._damaged)

    @property
    def missing_ids(self) -> Spans:
        """Return the ids of the images in those segments, and in those that could not be opened."""
        damaged = (live_spans(self.segments[number]) for number in self._damaged)
        return tuple(sorted(span for spans in (*damaged, *self.lost.values()) for span in spans))

    @property
    def damage(self) -> tuple[str, ...]:
        """Return why images are missing, a line for each segment."""
        return *self.lost, *self._damaged.values()

    def images(self, threads: int | None = None) -> list[SegmentImages]:
        """Return the images of each segment."""
        return [segment_images(held) for held in self.held]

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Return operation(held, *shared) of every segment, in order."""
        if len(self.held) == 1:
            return [self._run(operation, self.held[0], *shared)]
        return thread_map(lambda held: self._run(operation, held, *shared), self.held, threads)

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join the results of `each` to one; None if there are none."""
        results = [result for result in self.each(operation, *shared, threads=threads) if result is not None]
        return join(results) if results else None

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Return operation(held, argument, *shared) for every (segment, argument)."""
        if len(own) == 1:
            return [self._run(operation, self.held[own[0][0]], own[0][1], *shared)]
        return thread_map(lambda one: self._run(operation, self.held[one[0]], one[1], *shared), own, threads)

    def _run(self, operation: Operation, held: HeldSegment, *arguments: Any) -> Any:
        """Run an operation; None if the segment is damaged, and this session records it."""
        try:
            return operation(held, *arguments)
        except DamagedError as error:
            if self._require_all:
                raise
            self._damaged[held.number] = str(error)
            return None

    def close(self) -> None:
        """Release nothing: memory maps end with their arrays."""


class Engine:
    """A snapshot of segments, wherever they are held: read-only, may be shared by threads."""

    def __init__(self, shards: Shards | Sequence[Segment], sizes: Sequence[int]) -> None:
        """Use the shards of one collection, or hold its segments. sizes: of the vocabularies of its words."""
        self.sizes = tuple(int(size) for size in sizes)
        if len(self.sizes) > MAX_VOCABULARIES:
            raise OptionError(f"{len(self.sizes)} vocabularies; at most {MAX_VOCABULARIES} can be merged")
        self.shards = LocalShards(shards, self.sizes) if isinstance(shards, Sequence) else shards

    @classmethod
    def from_words(cls, images: Sequence[Array], sizes: Sequence[int], signatures: Sequence[Array] | None = None,
                   segment_images: int = MAX_IMAGES) -> Engine:  # fmt: skip
        """Build segments in memory from images of [n_i, K] words and, if given, signatures [n_i, K]."""
        if segment_images < 1:
            raise OptionError(f"segment_images={segment_images!r} should be at least 1")
        if signatures is not None and len(signatures) != len(images):
            raise OptionError(f"{len(images)} images but signatures of {len(signatures)}")
        segments = []
        for first in range(0, len(images), segment_images):
            part = slice(first, first + segment_images)
            bits = None if signatures is None else signatures[part]
            segments.append(Segment.build(Batch.of_words(images[part], len(sizes), bits, first), tuple(sizes)))
        return cls(segments, sizes)

    def session(self, require_all: bool = False) -> Engine:
        """Return the same engine for one search: it records segments that are missing; `require_all`: raises instead."""
        return Engine(self.shards.session(require_all), self.sizes)

    # -- all segments together

    @property
    def segments(self) -> list[Segment]:
        """Return the segments, if this process holds them."""
        if not isinstance(self.shards, LocalShards):
            raise OptionError("the segments of this index are held by other machines; open it without ray")
        return self.shards.segments

    @property
    def statistics(self) -> Statistics:
        """Return what the weights need of all segments."""
        return self.shards.statistics

    @cached_property
    def code_bits(self) -> int:
        """Return the length of the codes, 0 if there are none."""
        return 64 * max((part.code_planes for part in self.shards.infos), default=0)

    @cached_property
    def signed(self) -> bool:
        """Return whether the words have Hamming signatures."""
        return bool(self.shards.infos) and all(part.signed for part in self.shards.infos)

    @cached_property
    def bits(self) -> int:
        """Return the length of the signatures, 0 without."""
        return 64 * max((part.planes for part in self.shards.infos if part.n_features), default=0)

    def images(self, threads: int | None = None) -> list[SegmentImages]:
        """Return the images of each segment; ids -1 and no live position for a segment that is unavailable."""
        return self.shards.images(threads)

    # -- queries

    def plan(self, options: ScoringOptions) -> ScoringPlan:
        """Resolve options for this collection: once per search."""
        plan = make_plan(options, self.sizes, self.bits, self.code_bits)
        if plan.needs_signatures and self.shards.infos and not self.signed:
            raise OptionError(f"{needs_signatures_text(options)} needs an index with signatures; this one has none")
        return plan

    def query(self, words: Array, signatures: Array | None, plan: ScoringPlan) -> QueryWords:
        """Check a query against this collection."""
        return QueryWords.of(words, signatures, self.sizes, plan)

    def query_of(self, codes: CodedQuery | None, words: Array | None, signatures: Array | None,
                 plan: ScoringPlan) -> QueryWords | CodedQuery:  # fmt: skip
        """Return what a plan scores by, codes or words, checked against this collection."""
        if plan.options.merge == CODES:
            if codes is None and self.shards.infos and not self.code_bits:
                raise OptionError("merge='codes' needs an index with codes; this one has none")
            if codes is None:
                raise OptionError("merge='codes' needs the codes of the query; give a photograph, or another rule")
            size, bits = len(self.statistics.code_occurrences), 64 * codes.codes.shape[2]
            if self.code_bits and (codes.words.max(initial=-1) >= size or bits != self.code_bits):
                raise OptionError(f"query codes of {bits} bits do not fit codes of {self.code_bits} bits relative to {size} "
                                  "words; make them with the fine vocabulary of the index")  # fmt: skip
            return codes
        if words is None:
            raise OptionError(f"merge={plan.options.merge!r} needs the words of the query; none were given")
        return self.query(words, signatures, plan)

    def counts(self, query: QueryWords, plan: ScoringPlan, threads: int | None = None) -> Counts:
        """Phase 1: count features (or images) of every exact mask [Q, 2^K]."""
        first = first_weights(query, self.statistics, plan)
        counts = self.shards.joined(count, add_counts, query, plan, first, threads=threads)
        if counts is None:
            counts = np.zeros((len(query.words), 1 << len(query.sizes)), np.int64)
        return complete_counts(counts, query, self.statistics, plan)

    def weights(self, query: QueryWords | CodedQuery, plan: ScoringPlan, threads: int | None = None) -> Weights | CodeWeights:
        """Count where the rule needs it, and turn the counts into the weights that all segments vote with."""
        if isinstance(query, CodedQuery):
            assert plan.code_table is not None
            return weigh_codes(query, self.statistics, plan.code_table, 1 if self._takes_whole_segments(threads) else threads)
        counts = np.zeros((len(query.words), 1 << len(query.sizes)), np.int64)
        if plan.needs_counts:
            counts = self.counts(query, plan, threads)
        return weigh(query, counts, self.statistics, plan)

    def _takes_whole_segments(self, threads: int | None) -> bool:
        """Return whether each thread scans segments of its own, rather than all one segment together."""
        return len(self.shards.infos) >= SPREAD * count_threads(threads)

    def _segment_threads(self, query: QueryWords | CodedQuery, threads: int | None) -> int | None:
        """Return how many segments are scanned at once."""
        together = isinstance(query, CodedQuery) and not self._takes_whole_segments(threads)
        return 1 if together else threads

    def scores(self, query: QueryWords | CodedQuery, plan: ScoringPlan, threads: int | None = None) -> list[Floats32]:
        """Score every image: one array per segment, 0 for deleted images and those of an unavailable segment."""
        results: list[Floats32 | None] = [None] * len(self.shards.infos)
        if not plan.is_empty:
            shared = query, self.weights(query, plan, threads), plan
            results = self.shards.each(score, *shared, threads=self._segment_threads(query, threads))
        return [
            np.zeros(info.n_images, np.float32) if part is None else part
            for part, info in zip(results, self.shards.infos, strict=True)
        ]

    def best(self, query: QueryWords | CodedQuery, plan: ScoringPlan, depth: int, requested: Sequence[ImageRef] = (),
             threads: int | None = None) -> tuple[list[Candidate], list[Candidate]]:  # fmt: skip
        """Return the `depth` best images, best first, and the requested ones: only these travel."""
        if plan.is_empty:
            return [], []
        shared = query, self.weights(query, plan, threads), plan, depth, tuple(requested)
        at_once = self._segment_threads(query, threads)
        result: BestCandidates | None = self.shards.joined(best, partial(join_best, depth), *shared, threads=at_once)
        return ([], []) if result is None else as_candidates(result)

    def rank(self, scores: Sequence[Floats32], images: Sequence[SegmentImages], depth: int) -> list[Candidate]:
        """Return the `depth` images with the highest scores above 0, ties by image id. scores: one array per segment."""
        parts = enumerate(zip(images, scores, strict=True))
        ranked = rank_entries([best_entries(number, part.ids, row, depth) for number, (part, row) in parts], depth)
        return as_candidates(BestCandidates(ranked, ranked[:0]))[0]

    # -- single images

    def find(self, image: int) -> ImageRef | None:
        """Return the ref of an image, None if it is not in the collection."""
        refs = [ref for ref in self.shards.each(find_image, image, threads=1) if ref is not None]
        if not refs and self.shards.missing:
            raise ClusterError(f"image {image} is not on the machines that are available; try again when all of them are")
        return refs[0] if refs else None

    def image_features(self, refs: Sequence[ImageRef]) -> list[ImageFeatures]:
        """Return what is stored of images."""
        return self.at(image_features_at, refs)

    def at(self, operation: Operation, refs: Sequence[ImageRef], *shared: Any) -> list[Any]:
        """Return operation(held, position, *shared) of images; raise ClusterError if one is unavailable."""
        results = self.shards.at(operation, refs, *shared)
        if self.shards.missing and any(result is None for result in results):
            raise DamagedError(self.shards.damage[0]) if self.shards.damage else ClusterError(UNAVAILABLE)
        return results
