"""All segments together, local or remote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ClusterError, OptionError
from polyvoc.index.segment import MAX_IMAGES, MAX_VOCABULARIES, Batch, Segment
from polyvoc.index.statistics import Statistics, norm_key
from polyvoc.options import SearchOptions
from polyvoc.scoring.query import QueryWords, Weights, complete_counts, rule_name, weigh
from polyvoc.scoring.rules import default_table, needs_counts
from polyvoc.scoring.segments import (
    BestCandidates,
    HeldSegment,
    Scored,
    SegmentImages,
    SegmentInfo,
    add_arrays,
    as_scored,
    best_entries,
    best_in,
    count_in,
    find_image,
    image_words_at,
    joining,
    norm_at,
    norm_in,
    rank_entries,
    score_in,
    segment_images,
    total_in,
    vector_at,
)
from polyvoc.threads import thread_map
from polyvoc.types import Array, Floats32, ImageRef, ImageWords, Spans

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from polyvoc.search.links import LinkGraph

Operation = Callable[..., Any]
Join = Callable[[Sequence[Any]], Any]


class Shards(Protocol):
    """Those who hold the segments of one collection. Where one does not answer, its results are None."""

    @property
    def statistics(self) -> Statistics:
        """Give what the weights need to know of all segments."""

    @property
    def census(self) -> Sequence[SegmentInfo]:
        """Give how much each segment holds."""

    @property
    def missing(self) -> Sequence[int]:
        """Give the segments that did not answer since this attempt began, in order."""

    @property
    def missing_ids(self) -> Spans:
        """Give the ids of the images in those segments."""

    def attempt(self, whole: bool) -> Shards:
        """Give the same shards with a clean slate for what is missing; `whole`: raise ClusterError rather than miss any."""

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, *shared) of every segment, in order."""

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join what `each` gives, in any order, to one; only what is joined travels. None if nobody answers."""

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, argument, *shared) for every (segment, argument)."""

    def close(self) -> None:
        """Release what holds the segments."""


class LocalShards:
    """Segments of this process, mapped or in memory, asked by threads."""

    missing: Sequence[int] = ()
    missing_ids: Spans = ()

    def __init__(self, segments: Sequence[Segment], sizes: tuple[int, ...], norms: Sequence[Floats32] | None = None) -> None:
        """Hold segments; the norms of the default options if they are known."""
        self.segments = list(segments)
        self.statistics = Statistics.of_segments(self.segments, sizes)
        self.census = [SegmentInfo.of(segment) for segment in self.segments]
        self.held = [HeldSegment(number, segment, self.statistics) for number, segment in enumerate(self.segments)]
        for held, known in zip(self.held, norms or (), strict=norms is not None):
            held.norms[norm_key(SearchOptions(), len(sizes))] = known

    def attempt(self, whole: bool) -> Self:
        """Give the same shards: none of them is ever missing."""
        return self

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, *shared) of every segment, in order."""
        return thread_map(lambda held: operation(held, *shared), self.held, threads)

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join what `each` gives to one; None if there are no segments."""
        found = self.each(operation, *shared, threads=threads)
        return join(found) if found else None

    def close(self) -> None:
        """Release nothing: whoever mapped the segments has them."""

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, argument, *shared) for every (segment, argument)."""
        return thread_map(lambda one: operation(self.held[one[0]], one[1], *shared), own, threads)


class Engine:
    """A snapshot of segments, wherever they are held: read-only, shareable by threads."""

    def __init__(self, shards: Shards | Sequence[Segment], sizes: Sequence[int], norms: Sequence[Floats32] | None = None,
                 neighbours: LinkGraph | None = None) -> None:  # fmt: skip
        """Ask the shards of one collection, or hold its segments; the norms of the default options, and who is like whom, if
        they are known."""
        self.neighbours = neighbours
        self.sizes = tuple(int(size) for size in sizes)
        if not 1 <= len(self.sizes) <= MAX_VOCABULARIES:
            raise OptionError(f"{len(self.sizes)} vocabularies; 1 to {MAX_VOCABULARIES} can be merged")
        self.shards = LocalShards(shards, self.sizes, norms) if isinstance(shards, Sequence) else shards
        self._standing: list[list[SegmentImages]] = []  # once it is known; attempts share it

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

    def attempt(self, whole: bool = False) -> Self:
        """Give the same engine, which notes who does not answer from now on; `whole`: ClusterError instead."""
        if isinstance(self.shards, LocalShards):
            return self
        again = copy(self)
        again.shards = self.shards.attempt(whole)
        return again

    # -- what is known of the segments together

    @property
    def segments(self) -> list[Segment]:
        """Give the segments, if this process holds them."""
        if not isinstance(self.shards, LocalShards):
            raise OptionError("the segments of this index are held by other machines; open it without ray")
        return self.shards.segments

    @property
    def statistics(self) -> Statistics:
        """Give what the weights need to know of all segments."""
        return self.shards.statistics

    @property
    def signed(self) -> bool:
        """Tell whether Hamming signatures are stored."""
        return bool(self.shards.census) and all(part.signed for part in self.shards.census)

    @property
    def bits(self) -> int:
        """Give the length of the signatures, 0 without any."""
        return 64 * max((part.planes for part in self.shards.census if part.n_features), default=0)

    def standing(self, threads: int | None = None) -> list[SegmentImages]:
        """Give the images of each segment; none of a segment that does not answer."""
        if not self._standing:
            nobody = np.empty(0, np.int64)
            parts = self.shards.each(segment_images, threads=threads)
            found = [
                SegmentImages(np.full(known.n_images, -1), nobody) if part is None else part
                for part, known in zip(parts, self.shards.census, strict=True)
            ]
            if any(part is None for part in parts):
                return found
            self._standing.append(found)
        return self._standing[0]

    # -- queries

    def query(self, words: Array, signatures: Array | None, options: SearchOptions) -> QueryWords:
        """Check a query against this collection."""
        if options.signed and self.shards.census and not self.signed:
            raise OptionError(f"{rule_name(options)} needs an index with signatures; this one has none")
        query = QueryWords.of(words, signatures, self.sizes, options)
        if query.bits and self.bits and query.bits != self.bits:
            raise OptionError(f"the query has signatures of {query.bits} bits, the index of {self.bits}; use its vocabularies")
        return query

    def settled(self, options: SearchOptions) -> SearchOptions:
        """Give the options with the table that `likelihood` uses here, checked."""
        if options.merge != "likelihood" or not self.bits:
            return options
        held = options.evidence or default_table(len(self.sizes), self.bits)
        if (held.n_vocabularies, held.bits) != (len(self.sizes), self.bits):
            raise OptionError(f"a table of evidence for {held.n_vocabularies} vocabularies with {held.bits} bits does not fit "
                              f"{len(self.sizes)} with {self.bits}; fit one: polyvoc calibrate --save")  # fmt: skip
        return replace(options, evidence=held)

    def counts(self, query: QueryWords, options: SearchOptions, threads: int | None = None) -> npt.NDArray[np.int64]:
        """Phase 1: count features (or images) of every exact mask [Q, 2^K]; zeros for rules that do not ask."""
        nothing = np.zeros((len(query.words), 1 << len(query.sizes)), np.int64)
        if not needs_counts(options, len(query.sizes)):
            return nothing
        found = self.shards.joined(count_in, add_arrays, query, options, threads=threads)
        counts = nothing if found is None else found.astype(np.int64)
        complete_counts(counts, query, self.statistics, options)
        return counts

    def weights(self, query: QueryWords, options: SearchOptions, threads: int | None = None) -> Weights:
        """Count, and turn the counts into what all segments vote with."""
        weights = weigh(query, self.counts(query, options, threads), self.statistics, options)
        if options.burstiness in ("inter", "both"):
            for part in self.shards.each(total_in, query, weights, options, threads=threads):
                if part is not None:
                    weights.totals[:] += part  # in the order of segments: sums of floats depend on it
        return weights

    def scores(self, query: QueryWords, options: SearchOptions, threads: int | None = None) -> list[Floats32]:
        """Score every image: one array per segment, 0 for deleted images and those of a segment that does not answer."""
        found: list[Floats32 | None] = [None] * len(self.shards.census)
        if not self._silent(options):
            options = self.settled(options)
            shared = query, self.weights(query, options, threads), options, self.scale(query, options)
            found = self.shards.each(score_in, *shared, threads=threads)
        return [
            np.zeros(known.n_images, np.float32) if part is None else part
            for part, known in zip(found, self.shards.census, strict=True)
        ]

    def best(self, query: QueryWords, options: SearchOptions, threads: int | None = None, depth: int | None = None,
             also: Sequence[ImageRef] = ()) -> tuple[list[Scored], list[Scored]]:  # fmt: skip
        """Give the `depth` (else `top`) best images, best first, and the scores of some others: only these travel."""
        if self._silent(options):
            return [], []
        options, depth = self.settled(options), depth or options.top
        weights, scale = self.weights(query, options, threads), self.scale(query, options)
        shared = query, weights, options, scale, depth, tuple(also)
        found: BestCandidates | None = self.shards.joined(best_in, joining(depth), *shared, threads=threads)
        return ([], []) if found is None else (as_scored(found.ranked), as_scored(found.also))

    def ranked(self, scores: Sequence[Floats32], top: int) -> list[Scored]:
        """Give the `top` images with the highest scores above 0, ties by image id."""
        parts = enumerate(zip(self.standing(), scores, strict=True))
        best = [best_entries(number, held.ids, part, top) for number, (held, part) in parts]
        return as_scored(rank_entries(best, top))

    def _silent(self, options: SearchOptions) -> bool:
        """Tell whether no image can answer: none has a feature, hence a signature."""
        return options.merge == "likelihood" and not self.bits

    def norms(self, options: SearchOptions, threads: int | None = None) -> list[Floats32]:
        """Give the norms of all images, one array per segment; computed once per kind."""
        return self._all(self.shards.each(norm_in, options, threads=threads))

    def scale(self, query: QueryWords, options: SearchOptions) -> float:
        """Give what scores are divided by besides the norms of images: for "self" what makes an image score 1 against itself.

        Exact where only the best match counts: a feature matches itself in all K lists at distance 0.
        """
        if options.norm != "self":
            return 1.0
        squares = self.statistics.squares_of(options.idf)
        first = query.numbers[:, :, 0]
        total = float(np.where(first >= 0, squares[first], 0.0).sum())
        if options.merge == "likelihood" and options.evidence is not None:
            bins = len(options.evidence.edges) + 1
            total *= (options.evidence.rows[options.evidence.groups[-1] * bins][0] / len(query.sizes)) ** 2
        return float(np.sqrt(total)) or 1.0

    # -- single images

    def find(self, image: int) -> ImageRef | None:
        """Give where an image stands, None if it is not in the collection."""
        places = self.shards.each(find_image, image, threads=1)
        found = [place for place in places if place is not None]
        if not found and self.shards.missing:
            raise ClusterError(f"image {image} is not on the machines that answer; ask again when all of them do")
        return found[0] if found else None

    def image_at(self, place: ImageRef) -> int:
        """Give the id of the image at (segment, position)."""
        return int(self.standing()[place[0]].ids[place[1]])

    def sketches(self, places: Sequence[ImageRef]) -> list[ImageWords]:
        """Give what is stored of images for geometry, and to ask with."""
        return self._all(self.shards.at(image_words_at, places))

    def vector_at(self, place: ImageRef) -> npt.NDArray[np.float32] | None:
        """Give the stored vector [d] of an image, None if it has none."""
        rows = self.shards.at(vector_at, [place])
        if rows[0] is None and self.shards.missing:
            raise ClusterError(NO_ANSWER)
        vector: npt.NDArray[np.float32] | None = rows[0]
        return vector

    def norm_at(self, place: ImageRef, options: SearchOptions) -> float:
        """Give the norm of an image."""
        return float(self._one(norm_at, place, options))

    def inliers(self, sketch: ImageWords, place: ImageRef, table: Array) -> npt.NDArray[np.int64]:
        """Give the pairs (query feature, feature) [n, 2] that agree on the arrangement of an image."""
        from polyvoc.search.verify import inliers_in

        found: npt.NDArray[np.int64] = self._one(inliers_in, place, sketch, table)
        return found

    def _one(self, operation: Any, place: ImageRef, *shared: Any) -> Any:
        return self._all(self.shards.at(operation, [place], *shared))[0]

    def _all(self, found: list[Any]) -> list[Any]:
        """Give what all of the shards said that were asked; nothing stands in for what is missing."""
        if any(one is None for one in found):
            raise ClusterError(NO_ANSWER)
        return found


NO_ANSWER = "a machine that holds what is asked for does not answer; ask again when it does"
