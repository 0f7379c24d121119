"""Segments and what is known of them together: words in, scores out. The part of an index that knows no photographs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc import scoring, weighting
from polyvoc.errors import OptionError
from polyvoc.evidence import default_evidence
from polyvoc.records import Idf, SearchOptions
from polyvoc.scoring import Query
from polyvoc.segment import MAX_IMAGES, Batch, Segment
from polyvoc.weighting import Statistics

if TYPE_CHECKING:
    from polyvoc.neighbourhood import Neighbourhood  # which searches with engines

Array = npt.NDArray[Any]
Scores = npt.NDArray[np.float32]
MAX_VOCABULARIES = 9


class Engine:
    """A snapshot of segments: read-only, shareable by threads. A search allocates a few bytes per image."""

    def __init__(self, segments: list[Segment], sizes: Sequence[int], norms: list[Scores] | None = None,
                 neighbours: Neighbourhood | None = None) -> None:  # fmt: skip
        """Hold the segments of one collection; the norms of the default options, and who is like whom, if they are known."""
        self.segments = segments
        self.neighbours = neighbours
        self.sizes = tuple(int(size) for size in sizes)
        if not 1 <= len(self.sizes) <= MAX_VOCABULARIES:
            raise OptionError(f"{len(self.sizes)} vocabularies; 1 to {MAX_VOCABULARIES} can be merged")
        self.statistics = Statistics.of_segments(segments, self.sizes)
        self._norms: dict[NormKey, list[Scores]] = {}
        if norms is not None:
            self._norms[norm_key(SearchOptions(), len(self.sizes))] = norms
        self._lock = threading.Lock()

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

    @property
    def signed(self) -> bool:
        """Tell whether Hamming signatures are stored."""
        return bool(self.segments) and all(segment.signed for segment in self.segments)

    def query(self, words: Array, signatures: Array | None, options: SearchOptions) -> Query:
        """Check a query against this collection."""
        if options.signed and self.segments and not self.signed:
            raise OptionError(f"{scoring.asking(options)} needs an index with signatures; this one has none")
        query = Query.of(words, signatures, self.sizes, options)
        if query.bits and self.bits and query.bits != self.bits:
            raise OptionError(f"the query has signatures of {query.bits} bits, the index of {self.bits}; use its vocabularies")
        return query

    @property
    def bits(self) -> int:
        """Give the length of the signatures, 0 without any."""
        return 64 * max((segment.planes for segment in self.segments if segment.n_features), default=0)

    def settled(self, options: SearchOptions) -> SearchOptions:
        """Give the options with the table that `likelihood` uses here, checked."""
        if options.merge != "likelihood" or not self.bits:
            return options
        held = options.evidence or default_evidence(len(self.sizes), self.bits)
        if (held.n_vocabularies, held.bits) != (len(self.sizes), self.bits):
            raise OptionError(f"a table of evidence for {held.n_vocabularies} vocabularies with {held.bits} bits does not fit "
                              f"{len(self.sizes)} with {self.bits}; fit one: polyvoc calibrate --save")  # fmt: skip
        return replace(options, evidence=held)

    def scores(self, query: Query, options: SearchOptions, threads: int | None = None) -> list[Scores]:
        """Score every image: one array per segment, 0 for deleted images."""
        if options.merge == "likelihood" and not self.bits:  # no image has a feature
            return [np.zeros(segment.n_images, np.float32) for segment in self.segments]
        options = self.settled(options)
        norms = self.norms(options, threads)
        scale = self.scale(query, options)
        with threads_over(self.segments, threads) as over:
            votes = scoring.votes(self.segments, query, self.statistics, options, over)
            return [_divide(*part, scale) for part in zip(self.segments, votes, norms, strict=True)]

    def best(self, query: Query, options: SearchOptions, threads: int | None = None) -> list[tuple[int, int, float]]:
        """Give (segment, position, score) of the best images with a score above 0, ties by image id."""
        return [(*place, score) for place, score in self.ranked(self.scores(query, options, threads), options.top)]

    def ranked(self, scores: Sequence[Scores], top: int) -> list[tuple[tuple[int, int], float]]:
        """Give ((segment, position), score) of the `top` images with the highest scores above 0, ties by image id."""
        found = []
        for number, part in enumerate(scores):
            candidates = np.flatnonzero(part > 0)
            if len(candidates) > top:  # keep all that tie with the last
                limit = np.partition(part[candidates], -top)[-top]
                candidates = candidates[part[candidates] >= limit]
            ids = self.segments[number].ids
            found += [(-float(part[p]), int(ids[p]), number, int(p)) for p in candidates]
        return [((number, position), -score) for score, _, number, position in sorted(found)[:top]]

    def image_at(self, place: tuple[int, int]) -> int:
        """Give the id of the image at (segment, position)."""
        return int(self.segments[place[0]].ids[place[1]])

    def vector_at(self, place: tuple[int, int]) -> npt.NDArray[np.float32] | None:
        """Give the stored vector [d] of the image at (segment, position), None if it has none."""
        held = self.segments[place[0]].embeddings
        return None if held is None or not held[place[1]].any() else held[place[1]].astype(np.float32)

    def norms(self, options: SearchOptions, threads: int | None = None) -> list[Scores]:
        """Give the norms of all images, one array per segment; computed once per kind."""
        key = norm_key(options, len(self.sizes))
        with self._lock:
            if key not in self._norms:
                self._norms[key] = self._compute_norms(key, threads)
            return self._norms[key]

    def _compute_norms(self, key: NormKey, threads: int | None) -> list[Scores]:
        if key.kind == "none":
            return [np.ones(segment.n_images, np.float32) for segment in self.segments]
        squares = weighting.idf_squared(self.statistics, key.idf)
        root = key.kind == "root"
        with threads_over(self.segments, threads) as over:
            return list(over(lambda part: weighting.norms(part, squares, key.n_vocabularies, root), self.segments))

    def scale(self, query: Query, options: SearchOptions) -> float:
        """Give what scores are divided by besides the norms of images: for "self" what makes an image score 1 against itself.

        Exact where only the best match counts: a feature matches itself in all K lists at distance 0.
        """
        if options.norm != "self":
            return 1.0
        squares = weighting.idf_squared(self.statistics, options.idf)
        first = query.numbers[:, :, 0]
        total = float(np.where(first >= 0, squares[first], 0.0).sum())
        if options.merge == "likelihood" and options.evidence is not None:
            bins = len(options.evidence.edges) + 1
            total *= (options.evidence.rows[options.evidence.groups[-1] * bins][0] / len(query.sizes)) ** 2
        return float(np.sqrt(total)) or 1.0


class NormKey(NamedTuple):
    """A kind of norm: of tf idf ("tf"), of sqrt(tf) idf ("root") or "none"; its idf; over how many vocabularies."""

    kind: str
    idf: Idf
    n_vocabularies: int


def norm_key(options: SearchOptions, n_vocabularies: int) -> NormKey:
    """Name the norm that options ask for."""
    kinds = {"tfidf": ("tf", options.idf), "tf": ("tf", "none"), "sqrt-tf": ("root", options.idf),
             "self": ("root", options.idf), "features": ("root", "none"), "none": ("none", "none")}  # fmt: skip
    return NormKey(*kinds[options.norm], 1 if options.merge == "b0" else n_vocabularies)


@contextmanager
def threads_over(segments: Sequence[Any], threads: int | None) -> Iterator[Callable[..., Any]]:
    """Give a `map` over segments or other parts of the work: on all cores unless told, in their order."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} should be at least 1, or None for all cores")
    threads = min(len(segments), threads or os.cpu_count() or 1)
    if threads <= 1:
        yield map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


def _divide(segment: Segment, votes: Scores, norms: Scores, scale: float) -> Scores:
    scores = np.divide(votes, norms, out=np.zeros_like(votes), where=norms > 0)
    if scale != 1.0:
        scores /= np.float32(scale)
    if len(segment.alive):
        scores[segment.alive == 0] = 0
    return scores
