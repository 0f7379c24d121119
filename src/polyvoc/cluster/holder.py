"""An actor that holds the segments of one shard and runs operations on them, and the serialisation of what it exchanges."""

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
from polyvoc.index.statistics import Statistics
from polyvoc.scoring.query import QueryWords
from polyvoc.scoring.segments import HeldSegment, SegmentInfo
from polyvoc.search.pipeline import warm_up
from polyvoc.threads import thread_map
from polyvoc.types import Array

_QUERIES = 32  # kept, with what phase 1 found of them for phase 2
_MIN_PACKED = 64  # numbers of an array that is worth packing
_warm_up = cache(warm_up)


class UnknownSnapshotError(PolyvocError):
    """The actor does not hold a snapshot: it was restarted."""


class SegmentAssignment(NamedTuple):
    """A segment that an actor holds."""

    number: int  # among the segments of the snapshot, as in image refs
    segment: int  # its number in the catalogue
    deleted: tuple[int, ...]  # positions


@dataclass(frozen=True)
class ShardAssignment:
    """The segments of one shard in one snapshot of an index."""

    path: Path
    sizes: tuple[int, ...]
    segments: tuple[SegmentAssignment, ...]


class ShardSummary(NamedTuple):
    """The contents of the segments of a shard, in their order."""

    infos: list[SegmentInfo]
    spans: list[npt.NDArray[np.int64]]  # ids of the live images of each segment, first .. last [m, 2]
    statistics: Statistics


class Task(NamedTuple):
    """An operation on segments, a function that joins its results (or None), and the arguments that all segments share."""

    operation: Any
    join: Any
    shared: tuple[Any, ...]


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

        Calls may come in any order, more than once, and after the snapshot was released.
        """
        if snapshot in self._snapshots:
            return None
        wanted: ShardAssignment = unpack(assignment)
        known: Statistics | None = None if statistics is None else unpack(statistics)
        try:
            segments = _map_segments(wanted, known)
            summary = None if known is not None else pack(_summarise(segments, wanted.sizes))
        except (KeyError, IndexError, ValueError):  # counting the words of deleted images
            raise DamagedError(f"{wanted.path}: arrays contradict each other; run 'polyvoc check'") from None
        if known is not None:
            bits, code_bits = (64 * max(map(planes, segments), default=0) for planes in (_planes, _code_planes))
            _warm_up(wanted.sizes, bits, code_bits)
            with self._lock:
                if snapshot not in self._released:
                    self._snapshots[snapshot] = {held.number: held for held in segments}
        return summary

    def release(self, snapshot: int) -> None:
        """Drop a snapshot."""
        with self._lock:
            self._released.add(snapshot)
            self._snapshots.pop(snapshot, None)

    def run(self, snapshot: int, own: bytes | None, *pieces: bytes) -> bytes:
        """Run a task on all segments, or for each (number, argument) of `own`; return its results, joined if it joins."""
        segments = self._snapshots.get(snapshot)
        if segments is None:
            raise UnknownSnapshotError(f"snapshot {snapshot} is not loaded here")
        task: Task = unpack(b"".join(pieces))
        shared = [self._cached(value) if isinstance(value, QueryWords) else value for value in task.shared]
        calls: Sequence[tuple[HeldSegment, tuple[Any, ...]]] = [(held, ()) for held in segments.values()]
        if own is not None:
            calls = [(segments[number], (argument,)) for number, argument in unpack(own)]
        results = thread_map(lambda call: task.operation(call[0], *call[1], *shared), calls, self._threads)
        return pack(results if task.join is None else task.join(results))

    def _cached(self, query: QueryWords) -> QueryWords:
        """Return the first query with this key: segments keep the runs of its lists."""
        with self._lock:
            known = self._queries.setdefault(query.key, query)
            self._queries.move_to_end(query.key)
            while len(self._queries) > _QUERIES:
                self._queries.popitem(last=False)
        return known


def _map_segments(assignment: ShardAssignment, statistics: Statistics | None) -> list[HeldSegment]:
    folder = IndexFolder(assignment.path)
    return [
        HeldSegment(part.number, folder.read_segment(part.segment, assignment.sizes, part.deleted), statistics)
        for part in assignment.segments
    ]


def _planes(held: HeldSegment) -> int:
    return held.segment.planes


def _code_planes(held: HeldSegment) -> int:
    return held.segment.code_planes


def _summarise(held: Sequence[HeldSegment], sizes: tuple[int, ...]) -> ShardSummary:
    segments = [one.segment for one in held]
    statistics = Statistics.of_segments(segments, sizes)
    return ShardSummary(list(map(SegmentInfo.of, segments)), list(map(live_spans, segments)), statistics)


def live_spans(segment: Segment) -> npt.NDArray[np.int64]:
    """Return the ids of the live images of a segment as ranges first .. last [m, 2]."""
    ids = np.sort(segment.ids[segment.live_positions()])
    breaks = np.diff(ids, prepend=-2, append=np.iinfo(np.int64).max) != 1
    return np.column_stack([ids[breaks[:-1]], ids[breaks[1:]]])


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
