"""Segments and what is known of them together: words in, scores out. The part of an index that knows no photographs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc import scoring, weighting
from polyvoc.errors import OptionError
from polyvoc.records import SearchOptions
from polyvoc.scoring import Query
from polyvoc.segment import MAX_IMAGES, Batch, Segment
from polyvoc.weighting import Statistics

Array = npt.NDArray[Any]
Scores = npt.NDArray[np.float32]
MAX_VOCABULARIES = 9


class Engine:
    """A snapshot of segments: read-only, shareable by threads. A search allocates a few bytes per image."""

    def __init__(self, segments: list[Segment], sizes: Sequence[int], norms: list[Scores] | None = None) -> None:
        """Hold the segments of one collection, and the norms of the default options if they are known."""
        self.segments = segments
        self.sizes = tuple(int(size) for size in sizes)
        if not 1 <= len(self.sizes) <= MAX_VOCABULARIES:
            raise OptionError(f"{len(self.sizes)} vocabularies; 1 to {MAX_VOCABULARIES} can be merged")
        self.statistics = Statistics.of_segments(segments, self.sizes)
        self._norms: dict[tuple[str, int], list[Scores]] = {}
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
        if options.hamming is not None and self.segments and not self.signed:
            raise OptionError(f"hamming={options.hamming} needs an index with signatures; this one has none")
        return Query.of(words, signatures, self.sizes, options)

    def scores(self, query: Query, options: SearchOptions, threads: int | None = None) -> list[Scores]:
        """Score every image: one array per segment, 0 for deleted images."""
        norms = self.norms(options, threads)
        with threads_over(self.segments, threads) as over:
            votes = scoring.votes(self.segments, query, self.statistics, options, over)
            return [_divide(*part) for part in zip(self.segments, votes, norms, strict=True)]

    def best(self, query: Query, options: SearchOptions, threads: int | None = None) -> list[tuple[int, int, float]]:
        """Give (segment, position, score) of the best images with a score above 0, ties by image id."""
        found = []
        for number, scores in enumerate(self.scores(query, options, threads)):
            candidates = np.flatnonzero(scores > 0)
            if len(candidates) > options.top:  # keep all that tie with the last
                limit = np.partition(scores[candidates], -options.top)[-options.top]
                candidates = candidates[scores[candidates] >= limit]
            ids = self.segments[number].ids
            found += [(-float(scores[p]), int(ids[p]), number, int(p)) for p in candidates]
        return [(number, position, -score) for score, _, number, position in sorted(found)[: options.top]]

    def norms(self, options: SearchOptions, threads: int | None = None) -> list[Scores]:
        """Give the norms of all images, one array per segment; computed once per kind."""
        key = norm_key(options, len(self.sizes))
        with self._lock:
            if key not in self._norms:
                if key[0] == "none":
                    ones = [np.ones(segment.n_images, np.float32) for segment in self.segments]
                    self._norms[key] = ones
                else:
                    squares = weighting.idf_squared(self.statistics, options.idf if options.norm == "tfidf" else "none")
                    with threads_over(self.segments, threads) as over:
                        parts = over(lambda segment: weighting.norms(segment, squares, key[1]), self.segments)
                        self._norms[key] = list(parts)
            return self._norms[key]


def norm_key(options: SearchOptions, n_vocabularies: int) -> tuple[str, int]:
    """Name a kind of norm ("none", or "tf-" and its idf), and how many vocabularies count."""
    kind = {"tfidf": "tf-" + options.idf, "tf": "tf-none", "none": "none"}[options.norm]
    return kind, 1 if options.merge == "b0" else n_vocabularies


@contextmanager
def threads_over(segments: Sequence[Segment], threads: int | None) -> Iterator[Callable[..., Any]]:
    """Give a `map` over segments: on all cores unless told, in the order of the segments."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} should be at least 1, or None for all cores")
    threads = min(len(segments), threads or os.cpu_count() or 1)
    if threads <= 1:
        yield map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


def _divide(segment: Segment, votes: Scores, norms: Scores) -> Scores:
    scores = np.divide(votes, norms, out=np.zeros_like(votes), where=norms > 0)
    if len(segment.alive):
        scores[segment.alive == 0] = 0
    return scores
