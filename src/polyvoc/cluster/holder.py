"""An actor that holds segments; what travels."""

from __future__ import annotations

import io
import pickle
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, PolyvocError
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import Segment
from polyvoc.index.statistics import Statistics, norm_key
from polyvoc.options import Idf, SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.query import QueryWords
from polyvoc.scoring.segments import HeldSegment, SegmentInfo
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.storage.files import map_array
from polyvoc.threads import thread_map
from polyvoc.types import Array, Floats32, Keypoints

SMALL = 64  # numbers: fewer are not worth a look


class _Packer(pickle.Pickler):
    """Pickles arrays narrow, and records without what they have computed of their fields."""

    def reducer_override(self, value: Any) -> Any:
        """Say how arrays and records are put together again."""
        if type(value) is np.ndarray and value.size >= SMALL and value.dtype.kind in "iuf":
            return _narrow(value)
        if is_dataclass(value) and not isinstance(value, type):
            return _record, (type(value), [getattr(value, field.name) for field in fields(value)])
        return NotImplemented


def pack(value: Any) -> bytes:
    """Give a value as bytes. Functions travel by name: those at the top level of a module."""
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def unpack(content: bytes) -> Any:
    """Give a value back; only for bytes from machines of one's own cluster."""
    return pickle.loads(content)  # noqa: S301 - Ray itself unpickles whatever its machines send


def _narrow(array: Array) -> Any:
    """Say how an array is made of fewer bytes: exactly the same numbers come out."""
    rows = array
    if len(array) > 1 and array.ndim > 1 and _are_equal(array):
        rows = array[:1]
    small = rows.astype(_narrowest(rows), copy=False)
    if small.nbytes == array.nbytes:
        return NotImplemented
    return _widened, (small.tobytes(), small.dtype.str, small.shape, array.dtype.str, len(array))


def _narrowest(array: Array) -> np.dtype[Any]:
    """Give the narrowest type that holds all numbers of an array exactly."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            exact = array.dtype == np.float64 and bool((array.astype(np.float32) == array).all())
        return np.dtype(np.float32) if exact else array.dtype
    if array.dtype.itemsize == 1 or not array.size:
        return array.dtype
    found = np.result_type(np.min_scalar_type(array.min()), np.min_scalar_type(array.max()))
    return array.dtype if found.kind == "f" else found  # which would not hold all of them exactly


def _are_equal(rows: Array) -> bool:
    """Tell whether all rows are the same, bit by bit."""
    bits = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    return bool((bits == bits[:1]).all())


def _widened(content: bytes, kind: str, shape: Sequence[int], wanted: str, length: int) -> Array:
    rows = np.frombuffer(content, kind).reshape(shape).astype(wanted)
    return rows if len(rows) == length else np.repeat(rows, length, axis=0)


def _record(kind: type, values: Sequence[Any]) -> Any:
    """Give a record with these fields; it was checked when it was made."""
    made: Any = object.__new__(kind)
    for field, value in zip(fields(kind), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made


WEIGHED: tuple[Idf, ...] = ("average", "plain")  # kinds of idf that take logarithms
QUERIES = 32  # that it remembers, with the runs of their lists, from phase 1 to phase 2


class ForgottenError(PolyvocError):
    """A holder does not know a generation of the index: it was restarted."""


class SegmentAssignment(NamedTuple):
    """A segment that a holder is in charge of."""

    number: int  # among those of the index as it is open, as in places
    segment: int  # its number in the catalogue
    deleted: tuple[int, ...]  # positions
    first: int  # of its images among those of all segments


@dataclass(frozen=True)
class ShardAssignment:
    """What a holder has to hold for one generation of an index."""

    path: Path
    sizes: tuple[int, ...]
    holdings: tuple[SegmentAssignment, ...]
    norms: Path | None  # file with those of all images, by the default options
    n_images: int  # of all segments


class ShardSummary(NamedTuple):
    """What a holder found in its segments, in their order."""

    census: list[SegmentInfo]
    spans: list[npt.NDArray[np.int64]]  # ids of the live images of each segment, from .. to [m, 2]
    statistics: Statistics


class Task(NamedTuple):
    """An operation, what joins its results (None: nothing), and what is the same for all segments."""

    operation: Any
    join: Any
    shared: tuple[Any, ...]


class ShardActor:
    """Segments of an index, mapped from a disk that all machines share. Several threads may ask at a time."""

    def __init__(self, threads: int) -> None:
        """Begin with nothing; work with some threads."""
        self._threads = threads
        self._held: dict[int, dict[int, HeldSegment]] = {}  # by generation, by number
        self._released: set[int] = set()  # a call to hold one of them may be late
        self._queries: OrderedDict[str, QueryWords] = OrderedDict()
        self._lock = threading.Lock()

    def hold(self, generation: int, charge: bytes, statistics: bytes | None) -> bytes | None:
        """Map the segments of a charge; says what is in them, or learns the statistics of all of them.

        Calls may come in any order, more than once, and after the generation was released: it is ready when it knows all.
        """
        if self._known(generation) is not None:
            return None
        wanted: ShardAssignment = unpack(charge)
        known: Statistics | None = None if statistics is None else unpack(statistics)
        try:
            held = _hold(wanted, known)
            said = None if known is not None else pack(_take(held, wanted.sizes))
        except (KeyError, IndexError, ValueError):  # counting the words of deleted images
            raise DamagedError(f"{wanted.path}: arrays contradict each other; run 'polyvoc check'") from None
        if known is not None:
            warm_up(wanted.sizes, max((one.segment.planes for one in held), default=0))
            with self._lock:
                if generation not in self._released:
                    self._held[generation] = {one.number: one for one in held}
        return said

    def _known(self, generation: int) -> dict[int, HeldSegment] | None:
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
        shared = [self._remembered(value) if isinstance(value, QueryWords) else value for value in task.shared]
        calls: Sequence[tuple[HeldSegment, tuple[Any, ...]]] = [(one, ()) for one in held.values()]
        if own is not None:
            calls = [(held[number], (argument,)) for number, argument in unpack(own)]
        found = thread_map(lambda call: task.operation(call[0], *call[1], *shared), calls, self._threads)
        return pack(found if task.join is None else task.join(found))

    def _remembered(self, query: QueryWords) -> QueryWords:
        """Give the query that is known by this key: the runs of its lists are known, too."""
        with self._lock:
            known = self._queries.setdefault(query.key, query)
            self._queries.move_to_end(query.key)
            while len(self._queries) > QUERIES:
                self._queries.popitem(last=False)
        return known


def _hold(charge: ShardAssignment, statistics: Statistics | None) -> list[HeldSegment]:
    norms, key = _read_norms(charge, statistics), norm_key(SearchOptions(), len(charge.sizes))
    found = []
    for part in charge.holdings:
        segment = IndexFolder(charge.path).read_segment(part.segment, charge.sizes, part.deleted)
        held = HeldSegment(part.number, segment, statistics)
        if norms is not None:
            held.norms[key] = norms[part.first : part.first + segment.n_images]
        found.append(held)
    return found


def _read_norms(charge: ShardAssignment, statistics: Statistics | None) -> Floats32 | None:
    """Map the norms; whoever knows all segments can do without, if a later commit has taken the file away."""
    try:
        return None if charge.norms is None else map_array(charge.norms, np.float32, (charge.n_images,))
    except DamagedError:
        if statistics is None:
            raise
        return None


@cache
def warm_up(sizes: tuple[int, ...], planes: int) -> None:
    """Compile or load the kernels of the usual searches, on a made-up segment: no search should have to wait for that."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, sizes, (40, len(sizes))).astype(np.int32)
    bits = rng.integers(0, 1 << 63, (40, len(sizes), max(planes, 1)), dtype=np.uint64)
    signatures = None if not planes else bits[:, :, 0] if planes == 1 else bits
    engine = Engine.from_words([words, words[:20]], sizes, None if signatures is None else [signatures, signatures[:20]])
    frames = Keypoints(rng.uniform(0, 100, (40, 2)), np.ones(40), np.zeros(40))
    asked = Query(words, signatures, frames)
    usual = [preset(name, 64 * planes) for name in ("fast", "best")]
    for options in (*usual, SearchOptions(), *([SearchOptions(hamming=24)] if planes else [])):
        search(engine, asked, options, threads=1)


def _take(held: Sequence[HeldSegment], sizes: tuple[int, ...]) -> ShardSummary:
    segments = [one.segment for one in held]
    return ShardSummary([SegmentInfo.of(part) for part in segments], [spans(part) for part in segments],
                     Statistics.of_segments(segments, sizes))  # fmt: skip


def spans(segment: Segment) -> npt.NDArray[np.int64]:
    """Give the ids of the live images of a segment as ranges [m, 2], both ends included."""
    ids = np.sort(segment.ids[segment.live_positions()])
    if not len(ids):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1)
    return np.column_stack([ids[np.concatenate([[0], breaks + 1])], ids[np.concatenate([breaks, [len(ids) - 1]])]])
