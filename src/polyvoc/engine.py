"""Segments and what is known of them together: words in, scores out. The part of an index that knows no photographs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc import merging, operations, scoring
from polyvoc.errors import ClusterError, OptionError
from polyvoc.evidence import default_evidence
from polyvoc.geometry import Sketch
from polyvoc.operations import Best, Place, Scored
from polyvoc.records import SearchOptions
from polyvoc.scoring import Query, Weights
from polyvoc.segment import MAX_IMAGES, Batch, Segment
from polyvoc.shards import LocalShards, Scores, Shards, Standing
from polyvoc.weighting import Statistics

if TYPE_CHECKING:
    from polyvoc.neighbourhood import Neighbourhood  # which searches with engines

Array = npt.NDArray[Any]
MAX_VOCABULARIES = 9


class Engine:
    """A snapshot of segments, wherever they are held: read-only, shareable by threads."""

    def __init__(self, shards: Shards | Sequence[Segment], sizes: Sequence[int], norms: Sequence[Scores] | None = None,
                 neighbours: Neighbourhood | None = None) -> None:  # fmt: skip
        """Ask the shards of one collection, or hold its segments; the norms of the default options, and who is like whom, if
        they are known."""
        self.neighbours = neighbours
        self.sizes = tuple(int(size) for size in sizes)
        if not 1 <= len(self.sizes) <= MAX_VOCABULARIES:
            raise OptionError(f"{len(self.sizes)} vocabularies; 1 to {MAX_VOCABULARIES} can be merged")
        self.shards = LocalShards(shards, self.sizes, norms) if isinstance(shards, Sequence) else shards
        self._standing: list[list[Standing]] = []  # once it is known; attempts share it

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

    def standing(self, threads: int | None = None) -> list[Standing]:
        """Give the images of each segment; none of a segment that does not answer."""
        if not self._standing:
            nobody = np.empty(0, np.int64)
            parts = self.shards.each(operations.standing, threads=threads)
            found = [
                Standing(np.full(known.n_images, -1), nobody) if part is None else part
                for part, known in zip(parts, self.shards.census, strict=True)
            ]
            if any(part is None for part in parts):
                return found
            self._standing.append(found)
        return self._standing[0]

    # -- queries

    def query(self, words: Array, signatures: Array | None, options: SearchOptions) -> Query:
        """Check a query against this collection."""
        if options.signed and self.shards.census and not self.signed:
            raise OptionError(f"{scoring.asking(options)} needs an index with signatures; this one has none")
        query = Query.of(words, signatures, self.sizes, options)
        if query.bits and self.bits and query.bits != self.bits:
            raise OptionError(f"the query has signatures of {query.bits} bits, the index of {self.bits}; use its vocabularies")
        return query

    def settled(self, options: SearchOptions) -> SearchOptions:
        """Give the options with the table that `likelihood` uses here, checked."""
        if options.merge != "likelihood" or not self.bits:
            return options
        held = options.evidence or default_evidence(len(self.sizes), self.bits)
        if (held.n_vocabularies, held.bits) != (len(self.sizes), self.bits):
            raise OptionError(f"a table of evidence for {held.n_vocabularies} vocabularies with {held.bits} bits does not fit "
                              f"{len(self.sizes)} with {self.bits}; fit one: polyvoc calibrate --save")  # fmt: skip
        return replace(options, evidence=held)

    def counts(self, query: Query, options: SearchOptions, threads: int | None = None) -> npt.NDArray[np.int64]:
        """Phase 1: count features (or images) of every exact mask [Q, 2^K]; zeros for rules that do not ask."""
        nothing = np.zeros((len(query.words), 1 << len(query.sizes)), np.int64)
        if not merging.needs_counts(options, len(query.sizes)):
            return nothing
        found = self.shards.joined(operations.count, operations.added, query, options, threads=threads)
        counts = nothing if found is None else found.astype(np.int64)
        scoring.complete(counts, query, self.statistics, options)
        return counts

    def weights(self, query: Query, options: SearchOptions, threads: int | None = None) -> Weights:
        """Count, and turn the counts into what all segments vote with."""
        weights = scoring.weigh(query, self.counts(query, options, threads), self.statistics, options)
        if options.burstiness in ("inter", "both"):
            for part in self.shards.each(operations.total, query, weights, options, threads=threads):
                if part is not None:
                    weights.totals[:] += part  # in the order of segments: sums of floats depend on it
        return weights

    def scores(self, query: Query, options: SearchOptions, threads: int | None = None) -> list[Scores]:
        """Score every image: one array per segment, 0 for deleted images and those of a segment that does not answer."""
        found: list[Scores | None] = [None] * len(self.shards.census)
        if not self._silent(options):
            options = self.settled(options)
            shared = query, self.weights(query, options, threads), options, self.scale(query, options)
            found = self.shards.each(operations.score, *shared, threads=threads)
        return [
            np.zeros(known.n_images, np.float32) if part is None else part
            for part, known in zip(found, self.shards.census, strict=True)
        ]

    def best(self, query: Query, options: SearchOptions, threads: int | None = None, depth: int | None = None,
             also: Sequence[Place] = ()) -> tuple[list[Scored], list[Scored]]:  # fmt: skip
        """Give the `depth` (else `top`) best images, best first, and the scores of some others: only these travel."""
        if self._silent(options):
            return [], []
        options, depth = self.settled(options), depth or options.top
        weights, scale = self.weights(query, options, threads), self.scale(query, options)
        shared = query, weights, options, scale, depth, tuple(also)
        found: Best | None = self.shards.joined(operations.best, operations.joining(depth), *shared, threads=threads)
        return ([], []) if found is None else (operations.as_scored(found.ranked), operations.as_scored(found.also))

    def ranked(self, scores: Sequence[Scores], top: int) -> list[Scored]:
        """Give the `top` images with the highest scores above 0, ties by image id."""
        parts = enumerate(zip(self.standing(), scores, strict=True))
        best = [operations.best_of(number, held.ids, part, top) for number, (held, part) in parts]
        return operations.as_scored(operations.ranked(best, top))

    def _silent(self, options: SearchOptions) -> bool:
        """Tell whether no image can answer: none has a feature, hence a signature."""
        return options.merge == "likelihood" and not self.bits

    def norms(self, options: SearchOptions, threads: int | None = None) -> list[Scores]:
        """Give the norms of all images, one array per segment; computed once per kind."""
        return self._all(self.shards.each(operations.norm, options, threads=threads))

    def scale(self, query: Query, options: SearchOptions) -> float:
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

    def find(self, image: int) -> Place | None:
        """Give where an image stands, None if it is not in the collection."""
        places = self.shards.each(operations.place_of, image, threads=1)
        found = [place for place in places if place is not None]
        if not found and self.shards.missing:
            raise ClusterError(f"image {image} is not on the machines that answer; ask again when all of them do")
        return found[0] if found else None

    def image_at(self, place: Place) -> int:
        """Give the id of the image at (segment, position)."""
        return int(self.standing()[place[0]].ids[place[1]])

    def features_at(self, place: Place) -> dict[str, Array]:
        """Give what is stored of the features of an image: words, signatures, xy, shape."""
        found: dict[str, Array] = self._one(operations.features_at, place)
        return found

    def sketches(self, places: Sequence[Place]) -> list[Sketch]:
        """Give what is stored of images for geometry, and to ask with."""
        return self._all(self.shards.at(operations.sketch_at, places))

    def vector_at(self, place: Place) -> npt.NDArray[np.float32] | None:
        """Give the stored vector [d] of an image, None if it has none."""
        rows = self.shards.at(operations.vector_at, [place])
        if rows[0] is None and self.shards.missing:
            raise ClusterError(NO_ANSWER)
        vector: npt.NDArray[np.float32] | None = rows[0]
        return vector

    def norm_at(self, place: Place, options: SearchOptions) -> float:
        """Give the norm of an image."""
        return float(self._one(operations.norm_at, place, options))

    def inliers(self, sketch: Sketch, place: Place, table: Array) -> npt.NDArray[np.int64]:
        """Give the pairs (query feature, feature) [n, 2] that agree on the arrangement of an image."""
        found: npt.NDArray[np.int64] = self._one(operations.inliers, place, sketch, table)
        return found

    def _one(self, operation: Any, place: Place, *shared: Any) -> Any:
        return self._all(self.shards.at(operation, [place], *shared))[0]

    def _all(self, found: list[Any]) -> list[Any]:
        """Give what all of the shards said that were asked; nothing stands in for what is missing."""
        if any(one is None for one in found):
            raise ClusterError(NO_ANSWER)
        return found


NO_ANSWER = "a machine that holds what is asked for does not answer; ask again when it does"
