"""Where segments are held, and how they are asked: by threads of this process, or by the machines of a cluster.

An *operation* is a function at the top level of a module: it takes a held segment and arguments that are the same for all, and
gives something small. So the mathematics is written once, and whoever holds the segments can be asked for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from polyvoc import scoring, weighting
from polyvoc.errors import OptionError
from polyvoc.records import Idf, SearchOptions, Spans
from polyvoc.scoring import Query, Runs
from polyvoc.segment import Segment
from polyvoc.weighting import Statistics

Array = npt.NDArray[Any]
Scores = npt.NDArray[np.float32]
Operation = Callable[..., Any]
Join = Callable[[Sequence[Any]], Any]


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


class Census(NamedTuple):
    """How much one segment holds."""

    n_images: int  # deleted ones included, as in arrays over its images
    n_features: int
    planes: int  # groups of 64 bits of a signature
    signed: bool

    @classmethod
    def of(cls, segment: Segment) -> Self:
        """Count what a segment holds."""
        return cls(segment.n_images, segment.n_features, segment.planes, segment.signed)


class Standing(NamedTuple):
    """Which images stand in one segment."""

    ids: npt.NDArray[np.int64]  # [n], deleted ones included
    live: npt.NDArray[np.int64]  # positions of those that are not


@dataclass(eq=False)
class Held:
    """A segment by its number in the index, and what was computed of it. May be shared by threads."""

    number: int
    segment: Segment
    statistics: Statistics | None = None  # of all segments; None until they are known
    norms: dict[NormKey, Scores] = field(default_factory=dict)
    runs: WeakKeyDictionary[Query, Runs] = field(default_factory=WeakKeyDictionary)  # of queries in the middle of a search
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def norm(self, key: NormKey) -> Scores:
        """Give the norms of the images [n]; computed once per kind."""
        if key.kind == "none":
            return np.ones(self.segment.n_images, np.float32)
        with self._lock:
            if key not in self.norms:
                assert self.statistics is not None, "norms need the statistics of all segments"
                squares = self.statistics.squares_of(key.idf)
                self.norms[key] = weighting.norms(self.segment, squares, key.n_vocabularies, key.kind == "root")
            return self.norms[key]

    def keep_runs(self, query: Query, options: SearchOptions) -> Runs | None:
        """Look up the runs of a query's lists, None if its kernels want none; kept while it lives, for phase 2."""
        if scoring.path_of(query, options) == "matches":
            return None
        found = self.runs.get(query)
        if found is None:
            found = self.runs[query] = scoring.find_runs(self.segment, query)
        return found


class Shards(Protocol):
    """Those who hold the segments of one collection. Where one does not answer, its results are None."""

    @property
    def statistics(self) -> Statistics:
        """Give what the weights need to know of all segments."""

    @property
    def census(self) -> Sequence[Census]:
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

    def __init__(self, segments: Sequence[Segment], sizes: tuple[int, ...], norms: Sequence[Scores] | None = None) -> None:
        """Hold segments; the norms of the default options if they are known."""
        self.segments = list(segments)
        self.statistics = Statistics.of_segments(self.segments, sizes)
        self.census = [Census.of(segment) for segment in self.segments]
        self.held = [Held(number, segment, self.statistics) for number, segment in enumerate(self.segments)]
        for held, known in zip(self.held, norms or (), strict=norms is not None):
            held.norms[norm_key(SearchOptions(), len(sizes))] = known

    def attempt(self, whole: bool) -> Self:
        """Give the same shards: none of them is ever missing."""
        return self

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, *shared) of every segment, in order."""
        with threads_over(self.held, threads) as over:
            return list(over(lambda held: operation(held, *shared), self.held))

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join what `each` gives to one; None if there are no segments."""
        found = self.each(operation, *shared, threads=threads)
        return join(found) if found else None

    def close(self) -> None:
        """Release nothing: whoever mapped the segments has them."""

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, argument, *shared) for every (segment, argument)."""
        with threads_over(own, threads) as over:
            return list(over(lambda one: operation(self.held[one[0]], one[1], *shared), own))


@contextmanager
def threads_over(parts: Sequence[Any], threads: int | None) -> Iterator[Callable[..., Any]]:
    """Give a `map` over segments or other parts of the work: on all cores unless told, in their order."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} should be at least 1, or None for all cores")
    threads = min(len(parts), threads or os.cpu_count() or 1)
    yield map if threads <= 1 else _pool(os.getpid(), threads).map


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Give threads that stay: starting them would take longer than many a search. A process that was forked has none."""
    return ThreadPoolExecutor(threads, "polyvoc-segments")
