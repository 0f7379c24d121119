"""One shard: a process of the cluster that holds some segments of an index and does what it is asked with them.

It may hold several generations of an index at a time: searches that have begun go on with theirs while the next commit is
opened. A holder that was restarted knows none of them until it is told again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc import operations, storage
from polyvoc.cluster.packing import pack, unpack
from polyvoc.errors import PolyvocError
from polyvoc.home import Home
from polyvoc.records import Idf, SearchOptions
from polyvoc.scoring import Query
from polyvoc.segment import Segment
from polyvoc.shards import Census, Common, Held, NormKey, Scores, norm_key, threads_over
from polyvoc.weighting import Statistics

WEIGHED: tuple[Idf, ...] = ("average", "plain")  # kinds of idf that take logarithms
QUERIES = 32  # that it remembers, with the runs of their lists, from phase 1 to phase 2


class ForgottenError(PolyvocError):
    """A holder does not know a generation of the index: it was restarted."""


class Part(NamedTuple):
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
    parts: tuple[Part, ...]
    norms: Path | None  # file with those of all images, by the default options
    n_images: int  # of all segments


class Inventory(NamedTuple):
    """What a holder found in its segments, in their order."""

    census: list[Census]
    spans: list[npt.NDArray[np.int64]]  # ids of the live images of each segment, from .. to [m, 2]
    statistics: Statistics


class Task(NamedTuple):
    """An operation, what its results are joined by (None: not at all), and what is the same for all segments."""

    operation: Any
    join: Any
    shared: tuple[Any, ...]


class Holder:
    """Segments of an index, mapped from a disk that all machines share. Several threads may ask at a time."""

    def __init__(self, threads: int) -> None:
        """Begin with nothing; work with some threads."""
        self._threads = threads
        self._held: dict[int, dict[int, Held]] = {}  # by generation, by number
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._lock = threading.Lock()

    def hold(self, generation: int, charge: bytes, common: bytes | None) -> bytes:
        """Map the segments of a charge, and learn what is known of all of them together; says what is in them."""
        wanted: Charge = unpack(charge)
        known = None if common is None else unpack(common)
        norms, key = _read_norms(wanted), norm_key(SearchOptions(), len(wanted.sizes))
        held = {part.number: _hold(wanted, part, known, norms, key) for part in wanted.parts}
        with self._lock:
            self._held[generation] = held
        return pack(_take(list(held.values()), wanted.sizes))

    def release(self, generation: int) -> None:
        """Forget a generation."""
        with self._lock:
            self._held.pop(generation, None)

    def ask(self, generation: int, own: bytes | None, *pieces: bytes) -> bytes:
        """Do a task with all segments, or for each (number, argument) of `own`; gives the results, or the one they join to."""
        with self._lock:
            held = self._held.get(generation)
        if held is None:
            raise ForgottenError(f"generation {generation} is not held here")
        task: Task = unpack(b"".join(pieces))
        shared = [self._remembered(value) if isinstance(value, Query) else value for value in task.shared]
        calls: Sequence[tuple[Held, tuple[Any, ...]]] = [(one, ()) for one in held.values()]
        if own is not None:
            calls = [(held[number], (argument,)) for number, argument in unpack(own)]
        with threads_over(calls, self._threads) as over:
            found = list(over(lambda call: task.operation(call[0], *call[1], *shared), calls))
        return pack(found if task.join is None else reduce(task.join, found))

    def _remembered(self, query: Query) -> Query:
        """Give the query that is known by this key: the runs of its lists are known, too."""
        with self._lock:
            known = self._queries.setdefault(query.key, query)
            self._queries.move_to_end(query.key)
            while len(self._queries) > QUERIES:
                self._queries.popitem(last=False)
        return known


def _hold(charge: Charge, part: Part, common: Common | None, norms: Scores | None, key: NormKey) -> Held:
    segment = Home(charge.path).read_segment(part.segment, charge.sizes, part.deleted)
    held = Held(part.number, segment, common)
    if norms is not None:
        held.norms[key] = norms[part.first : part.first + segment.n_images]
    return held


def _read_norms(charge: Charge) -> Scores | None:
    return None if charge.norms is None else storage.map_array(charge.norms, np.float32, (charge.n_images,))


def _take(held: Sequence[Held], sizes: tuple[int, ...]) -> Inventory:
    segments = [one.segment for one in held]
    return Inventory([operations.census(one) for one in held], [spans(part) for part in segments],
                     Statistics.of_segments(segments, sizes))  # fmt: skip


def spans(segment: Segment) -> npt.NDArray[np.int64]:
    """Give the ids of the live images of a segment as ranges [m, 2], both ends included."""
    ids = np.sort(segment.ids[segment.live_positions()])
    if not len(ids):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1)
    return np.column_stack([ids[np.concatenate([[0], breaks + 1])], ids[np.concatenate([breaks, [len(ids) - 1]])]])
