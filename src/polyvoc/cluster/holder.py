"""One shard: a process of the cluster that holds some segments of an index and does what it is asked with them.

It may hold several generations of an index at a time: searches that have begun go on with theirs while the next commit is
opened. A holder that was restarted knows none of them until it is told again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc import presets, searching, storage
from polyvoc.cluster.packing import pack, unpack
from polyvoc.engine import Engine
from polyvoc.errors import DamagedError, PolyvocError
from polyvoc.geometry import Frames
from polyvoc.home import Home
from polyvoc.records import Idf, SearchOptions
from polyvoc.scoring import Query
from polyvoc.searching import Asked
from polyvoc.segment import Segment
from polyvoc.shards import Census, Held, Scores, norm_key, threads_over
from polyvoc.weighting import Statistics

WEIGHED: tuple[Idf, ...] = ("average", "plain")  # kinds of idf that take logarithms
QUERIES = 32  # that it remembers, with the runs of their lists, from phase 1 to phase 2


class ForgottenError(PolyvocError):
    """A holder does not know a generation of the index: it was restarted."""


class Holding(NamedTuple):
    """A segment that a holder is in charge of."""

    number: int  # among those of the index as it is open, as in places
    segment: int  # its number in the catalogue
    deleted: tuple[int, ...]  # positions
    first: int  # of its images among those of all segments


@dataclass(frozen=True)
class Charge:
    """What a holder has to hold for one generation of an index."""

    path: Path
    sizes: tuple[int, ...]
    holdings: tuple[Holding, ...]
    norms: Path | None  # file with those of all images, by the default options
    n_images: int  # of all segments


class Inventory(NamedTuple):
    """What a holder found in its segments, in their order."""

    census: list[Census]
    spans: list[npt.NDArray[np.int64]]  # ids of the live images of each segment, from .. to [m, 2]
    statistics: Statistics


class Task(NamedTuple):
    """An operation, what joins its results (None: nothing), and what is the same for all segments."""

    operation: Any
    join: Any
    shared: tuple[Any, ...]


class Holder:
    """Segments of an index, mapped from a disk that all machines share. Several threads may ask at a time."""

    def __init__(self, threads: int) -> None:
        """Begin with nothing; work with some threads."""
        self._threads = threads
        self._held: dict[int, dict[int, Held]] = {}  # by generation, by number
        self._released: set[int] = set()  # a call to hold one of them may be late
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._lock = threading.Lock()

    def hold(self, generation: int, charge: bytes, statistics: bytes | None) -> bytes | None:
        """Map the segments of a charge; says what is in them, or learns the statistics of all of them.

        Calls may come in any order, more than once, and after the generation was released: it is ready when it knows all.
        """
        if self._known(generation) is not None:
            return None
        wanted: Charge = unpack(charge)
        known: Statistics | None = None if statistics is None else unpack(statistics)
        try:
            held = _hold(wanted, known)
            said = None if known is not None else pack(_take(held, wanted.sizes))
        except (KeyError, IndexError, ValueError):  # counting the words of deleted images
            raise DamagedError(f"{wanted.path}: arrays contradict each other; run 'polyvoc check'") from None
        if known is not None:
            warm(wanted.sizes, max((one.segment.planes for one in held), default=0))
            with self._lock:
                if generation not in self._released:
                    self._held[generation] = {one.number: one for one in held}
        return said

    def _known(self, generation: int) -> dict[int, Held] | None:
        with self._lock:
            return self._held.get(generation)

    def release(self, generation: int) -> None:
        """Forget a generation."""
        with self._lock:
            self._released.add(generation)
            self._held.pop(generation, None)

    def ask(self, generation: int, own: bytes | None, *pieces: bytes) -> bytes:
        """Do a task with all segments, or for each (number, argument) of `own`; gives the results, or the one they join to."""
        held = self._known(generation)
        if held is None:
            raise ForgottenError(f"generation {generation} is not held here")
        task: Task = unpack(b"".join(pieces))
        shared = [self._remembered(value) if isinstance(value, Query) else value for value in task.shared]
        calls: Sequence[tuple[Held, tuple[Any, ...]]] = [(one, ()) for one in held.values()]
        if own is not None:
            calls = [(held[number], (argument,)) for number, argument in unpack(own)]
        with threads_over(calls, self._threads) as over:
            found = list(over(lambda call: task.operation(call[0], *call[1], *shared), calls))
        return pack(found if task.join is None else task.join(found))

    def _remembered(self, query: Query) -> Query:
        """Give the query that is known by this key: the runs of its lists are known, too."""
        with self._lock:
            known = self._queries.setdefault(query.key, query)
            self._queries.move_to_end(query.key)
            while len(self._queries) > QUERIES:
                self._queries.popitem(last=False)
        return known


def _hold(charge: Charge, statistics: Statistics | None) -> list[Held]:
    norms, key = _read_norms(charge, statistics), norm_key(SearchOptions(), len(charge.sizes))
    found = []
    for part in charge.holdings:
        segment = Home(charge.path).read_segment(part.segment, charge.sizes, part.deleted)
        held = Held(part.number, segment, statistics)
        if norms is not None:
            held.norms[key] = norms[part.first : part.first + segment.n_images]
        found.append(held)
    return found


def _read_norms(charge: Charge, statistics: Statistics | None) -> Scores | None:
    """Map the norms; whoever knows all segments can do without, if a later commit has taken the file away."""
    try:
        return None if charge.norms is None else storage.map_array(charge.norms, np.float32, (charge.n_images,))
    except DamagedError:
        if statistics is None:
            raise
        return None


@cache
def warm(sizes: tuple[int, ...], planes: int) -> None:
    """Compile or load the kernels of the usual searches, on a made-up segment: no search should have to wait for that."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, sizes, (40, len(sizes))).astype(np.int32)
    bits = rng.integers(0, 1 << 63, (40, len(sizes), max(planes, 1)), dtype=np.uint64)
    signatures = None if not planes else bits[:, :, 0] if planes == 1 else bits
    engine = Engine.from_words([words, words[:20]], sizes, None if signatures is None else [signatures, signatures[:20]])
    frames = Frames(rng.uniform(0, 100, (40, 2)), np.ones(40), np.zeros(40))
    asked = Asked(words, signatures, frames)
    usual = [presets.preset(name, 64 * planes) for name in ("fast", "best")]
    for options in (*usual, SearchOptions(), *([SearchOptions(hamming=24)] if planes else [])):
        searching.search(engine, asked, options, threads=1)


def _take(held: Sequence[Held], sizes: tuple[int, ...]) -> Inventory:
    segments = [one.segment for one in held]
    return Inventory([Census.of(part) for part in segments], [spans(part) for part in segments],
                     Statistics.of_segments(segments, sizes))  # fmt: skip


def spans(segment: Segment) -> npt.NDArray[np.int64]:
    """Give the ids of the live images of a segment as ranges [m, 2], both ends included."""
    ids = np.sort(segment.ids[segment.live_positions()])
    if not len(ids):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1)
    return np.column_stack([ids[np.concatenate([[0], breaks + 1])], ids[np.concatenate([breaks, [len(ids) - 1]])]])
