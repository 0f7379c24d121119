"""An actor that holds the segments of one shard and runs operations on them, and the serialisation of what it exchanges."""

from __future__ import annotations

import io
import pickle
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyvoc.errors import DamagedError, PolyvocError
from polyvoc.index.folder import IndexFolder, SegmentKind
from polyvoc.index.statistics import Statistics
from polyvoc.scoring.query import QueryWords
from polyvoc.scoring.segments import HeldSegment, SegmentInfo, live_spans
from polyvoc.search.pipeline import warm_up
from polyvoc.threads import thread_map
from polyvoc.types import Array, Spans

_QUERIES = 32  # kept, with what phase 1 found of them for phase 2
_MIN_PACKED = 64  # numbers of an array that is worth packing
_warm_up = cache(warm_up)


class UnknownSnapshotError(PolyvocError):
    """The actor does not hold a snapshot: it was restarted."""


class SegmentAssignment(NamedTuple):
    """A segment that an actor holds."""

    number: int  # among the segments of the snapshot, as in image refs
    segment: int  # its number in the catalogue
    checksum: str  # of its `meta.json`
    deleted: tuple[int, ...]  # positions


@dataclass(frozen=True)
class ShardAssignment:
    """The segments of one shard in one snapshot of an index."""

    path: Path
    kind: SegmentKind
    segments: tuple[SegmentAssignment, ...]


class ShardSummary(NamedTuple):
    """The contents of the segments of a shard, in their order."""

    infos: list[SegmentInfo]
    spans: list[Spans]  # ids of the live images of each segment
    statistics: Statistics
    damage: dict[int, str]  # why segments cannot be opened, by number; the others are summarised


class Task(NamedTuple):
    """An operation on segments, a function that joins its results (or None), and the arguments that all segments share."""

    operation: Any
    join: Any
    shared: tuple[Any, ...]


class TaskResults(NamedTuple):
    """What a task returned."""

    results: Any  # of each segment, or joined; None for a damaged one
    damage: dict[int, str]  # why, by number


class ShardActor:
    """Segments of an index, mapped from a disk that all machines share. Several threads may call it."""

    def __init__(self, threads: int) -> None:
        """Start without segments; operations run on `threads` threads."""
        self._threads = threads
        self._snapshots: dict[int, dict[int, HeldSegment]] = {}  # by snapshot, by number
        self._released: set[int] = set()  # a late call may load one of them
        self._queries: OrderedDict[str, QueryWords] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, snapshot: int, assignment: bytes, statistics: bytes | None) -> bytes | None:
        """Map the segments of an assignment. Without statistics return a summary; with those of all segments, keep them.

        Only a summary may leave damaged segments out. Calls may come in any order, more than once, and after the
        snapshot was released.
        """
        if snapshot in self._snapshots:
            return None
        wanted: ShardAssignment = unpack(assignment)
        known: Statistics | None = None if statistics is None else unpack(statistics)
        damage: dict[int, str] = {}
        segments = list(_map_segments(wanted, known, damage))
        if known is None:
            return pack(_summarise(segments, wanted.kind.sizes, damage))
        for reason in damage.values():
            raise DamagedError(reason)
        bits, code_bits = (64 * max(map(planes, segments), default=0) for planes in (_planes, _code_planes))
        _warm_up(wanted.kind.sizes, bits, code_bits)
        with self._lock:
            if snapshot not in self._released:
                self._snapshots[snapshot] = {held.number: held for held in segments}
        return None

    def release(self, snapshot: int) -> None:
        """Drop a snapshot."""
        with self._lock:
            self._released.add(snapshot)
            self._snapshots.pop(snapshot, None)

    def run(self, snapshot: int, own: bytes | None, *pieces: bytes) -> bytes:
        """Run a task on all segments, or for each (number, argument) of `own`; return its outcome."""
        segments = self._snapshots.get(snapshot)
        if segments is None:
            raise UnknownSnapshotError(f"snapshot {snapshot} is not loaded here")
        task: Task = unpack(b"".join(pieces))
        shared = [self._cached(value) if isinstance(value, QueryWords) else value for value in task.shared]
        calls: Sequence[tuple[HeldSegment, tuple[Any, ...]]] = [(held, ()) for held in segments.values()]
        if own is not None:
            calls = [(segments[number], (argument,)) for number, argument in unpack(own)]
        damage: dict[int, str] = {}

        def run(call: tuple[HeldSegment, tuple[Any, ...]]) -> Any:
            try:
                return task.operation(call[0], *call[1], *shared)
            except DamagedError as error:
                damage[call[0].number] = str(error)
                return None

        results: Any = thread_map(run, calls, self._threads)
        if task.join is not None:
            found = [result for result in results if result is not None]
            results = task.join(found) if found else None
        return pack(TaskResults(results, damage))

    def _cached(self, query: QueryWords) -> QueryWords:
        """Return the first query with this key: segments keep the runs of its lists."""
        with self._lock:
            known = self._queries.setdefault(query.key, query)
            self._queries.move_to_end(query.key)
            while len(self._queries) > _QUERIES:
                self._queries.popitem(last=False)
        return known


def _map_segments(wanted: ShardAssignment, statistics: Statistics | None, damage: dict[int, str]) -> Iterator[HeldSegment]:
    """Yield the segments of an assignment; note why the others are damaged."""
    folder = IndexFolder(wanted.path)
    for part in wanted.segments:
        try:
            segment = folder.read_segment(part.segment, part.checksum, wanted.kind, part.deleted)
            _ = segment.live_code_lengths, segment.live_lengths  # reads what deleted images hold
            yield HeldSegment(part.number, segment, statistics)
        except DamagedError as error:
            damage[part.number] = str(error)


def _planes(held: HeldSegment) -> int:
    return held.segment.planes


def _code_planes(held: HeldSegment) -> int:
    return held.segment.code_planes


def _summarise(held: Sequence[HeldSegment], sizes: tuple[int, ...], damage: dict[int, str]) -> ShardSummary:
    segments = [one.segment for one in held]
    statistics = Statistics.of_segments(segments, sizes)
    return ShardSummary(list(map(SegmentInfo.of, segments)), list(map(live_spans, segments)), statistics, damage)


# -- serialisation


def pack(value: Any) -> bytes:
    """Return a value as bytes. Functions are stored by name: only those at the top level of a module."""
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def unpack(content: bytes) -> Any:
    """Return a packed value; only for bytes from machines of the same cluster."""
    return pickle.loads(content)  # noqa: S301 - Ray itself unpickles whatever its machines send


class _Packer(pickle.Pickler):
    """Pickles arrays in the narrowest type, and records without their cached properties."""

    def reducer_override(self, value: Any) -> Any:
        """Return how an array or a record is made again."""
        if type(value) is np.ndarray and value.size >= _MIN_PACKED and value.dtype.kind in "iuf":
            return _reduce_array(value)
        if is_dataclass(value) and not isinstance(value, type):
            return _make_record, (type(value), [getattr(value, field.name) for field in fields(value)])
        return NotImplemented


def _reduce_array(array: Array) -> Any:
    """Return how exactly the same array is made from fewer bytes, if it can be."""
    rows = array[:1] if len(array) > 1 and array.ndim > 1 and _are_equal(array) else array
    small = rows.astype(_narrowest(rows), copy=False)
    if small.nbytes == array.nbytes:
        return NotImplemented
    return _make_array, (small.tobytes(), small.dtype.str, small.shape, array.dtype.str, len(array))


def _narrowest(array: Array) -> np.dtype[Any]:
    """Return the narrowest type that holds all numbers of an array exactly."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            exact = array.dtype == np.float64 and bool((array.astype(np.float32) == array).all())
        return np.dtype(np.float32) if exact else array.dtype
    if array.dtype.itemsize == 1 or not array.size:
        return array.dtype
    narrow = np.result_type(np.min_scalar_type(array.min()), np.min_scalar_type(array.max()))
    return array.dtype if narrow.kind == "f" else narrow  # a float would not hold all of them exactly


def _are_equal(rows: Array) -> bool:
    """Return whether all rows are the same, bit by bit."""
    bits = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    return bool((bits == bits[:1]).all())


def _make_array(content: bytes, narrow: str, shape: Sequence[int], dtype: str, length: int) -> Array:
    rows = np.frombuffer(content, narrow).reshape(shape).astype(dtype)
    return rows if len(rows) == length else np.repeat(rows, length, axis=0)


def _make_record(kind: type, values: Sequence[Any]) -> Any:
    """Return a record with these fields, without its checks: they were made before."""
    record: Any = object.__new__(kind)
    for field, value in zip(fields(kind), values, strict=True):
        object.__setattr__(record, field.name, value)
    return record
