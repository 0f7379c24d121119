"""An index on a cluster: shards of segments, replicas of shards, and the fan-out of a search to them."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.cluster.connect import LostTaskError, cluster_cores, connect, count_cores, get_result, start_actor
from polyvoc.cluster.holder import (
    SegmentAssignment,
    ShardActor,
    ShardAssignment,
    ShardSummary,
    Task,
    TaskResults,
    UnknownSnapshotError,
    pack,
    unpack,
)
from polyvoc.errors import ClusterError, DamagedError, UnusableIndexError, one_line
from polyvoc.index.folder import EmbeddingSource, IndexFolder, Layout
from polyvoc.index.statistics import Statistics
from polyvoc.options import ClusterOptions
from polyvoc.scoring.engine import Engine, Join, Operation
from polyvoc.scoring.segments import SegmentImages, SegmentInfo, segment_images
from polyvoc.search.index import Index, lost_images
from polyvoc.types import Spans

PIECE = 64 * 1024  # bytes: Ray sends arguments of less than 100 KB along with a call, not through its object store
INLINE = 1 << 20  # bytes: a larger task goes through the object store, once per machine instead of once per shard
_OPEN_SECONDS = 300.0  # until every shard has loaded its segments
_RELOAD_SECONDS = 1.0  # between attempts to load a replica
_HEDGE = 0.25  # of the timeout, after which another replica is called as well
_POLL_SECONDS = 0.05  # between two looks whether a replica is available again
logger = logging.getLogger("polyvoc.cluster")


def open_index(path: str | os.PathLike[str], embedding: EmbeddingSource | None, options: ClusterOptions | str) -> Index:
    """Open an index whose segments are held by the machines of a Ray cluster (or its address); else as `Index.open`."""
    with closing(IndexFolder(Path(path))) as folder:
        _ = folder.catalogue  # raises if there is no index, before a cluster is started
    replicas = ReplicaSet(ClusterOptions(options) if isinstance(options, str) else options)
    return Index.open(path, embedding, replicas.read_engine)


class RayShards:
    """The segments of one commit, held by the actors of a replica set.

    All of them are required, else ClusterError, or DamagedError, except in a `session` that records those that are missing.
    """

    def __init__(self, replicas: ReplicaSet, snapshot: Snapshot, numbers: Sequence[Sequence[int]],
                 summaries: Sequence[ShardSummary], lost: Mapping[str, Spans]) -> None:  # fmt: skip
        """Join the summaries of shards. numbers: of the segments of each; lost: as of `LocalShards`."""
        self.replicas, self.snapshot, self.numbers = replicas, snapshot, numbers
        contents: dict[int, tuple[SegmentInfo, Spans]] = {}
        for held, part in zip(numbers, summaries, strict=True):
            contents |= dict(zip(held, zip(part.infos, part.spans, strict=True), strict=True))
        self.infos: Sequence[SegmentInfo] = [contents[number][0] for number in sorted(contents)]
        self.spans = [contents[number][1] for number in sorted(contents)]
        self.statistics: Statistics = reduce(add, (part.statistics for part in summaries))
        self._shard_of = {number: shard for shard, held in enumerate(numbers) for number in held}
        self._all: Mapping[int, None] = dict.fromkeys(self._shard_of.values())  # shards that hold segments
        self.lost = dict(lost)
        self._require_all, self._unavailable, self._damaged = True, set[int](), dict[int, str]()

    @classmethod
    def open(cls, folder: IndexFolder, layout: Layout, replicas: ReplicaSet, lost: Mapping[str, Spans] = {}) -> RayShards:
        """Load the segments of an index into the actors, each by one shard. lost: images that the layout leaves out."""
        sizes = {part.segment: part.n_features + part.n_images for part in layout.parts}
        placement = assign_segments(sizes, replicas.n_shards, replicas.placement)
        replicas.placement = {segment: shard for shard, segments in enumerate(placement) for segment in segments}
        number_of = {part.segment: number for number, part in enumerate(layout.parts)}
        numbers = [sorted(number_of[segment] for segment in segments) for segments in placement]
        loads = [sum(sizes[segment] for segment in segments) for segments in placement]
        snapshot, summaries = replicas.open([_assignment(folder, layout, held) for held in numbers], loads)
        if damage := {number: reason for part in summaries for number, reason in part.damage.items()}:
            found = {reason: lost_images(folder, layout, layout.parts[number], DamagedError(reason))
                     for number, reason in damage.items()}  # fmt: skip
            sound = tuple(part for number, part in enumerate(layout.parts) if number not in damage)
            return cls.open(folder, replace(layout, parts=sound), replicas, {**lost, **found})
        shards = cls(replicas, snapshot, numbers, summaries, lost)
        replicas.set_statistics(snapshot, shards.statistics)
        return shards

    def session(self, require_all: bool) -> RayShards:
        """Return the same shards, which record what is missing from now on; `require_all`: an error instead."""
        for reason in self.lost if require_all else ():
            raise DamagedError(reason)
        session = copy(self)
        session._require_all, session._unavailable, session._damaged = require_all, set(), {}
        return session

    @property
    def missing(self) -> Sequence[int]:
        """Return the segments that were unavailable or found damaged since the session began, in order."""
        return sorted(self._unavailable | self._damaged.keys())

    @property
    def missing_ids(self) -> Spans:
        """Return the ids of the images in those segments, and in those that could not be opened."""
        found = (self.spans[number] for number in self.missing)
        return tuple(sorted(span for spans in (*found, *self.lost.values()) for span in spans))

    @property
    def damage(self) -> tuple[str, ...]:
        """Return a line for each damaged segment."""
        return *self.lost, *self._damaged.values()

    def images(self, threads: int | None = None) -> list[SegmentImages]:
        """Return the images of each segment; ids -1 and no live position for a segment that is missing."""
        if self.snapshot.images is not None:
            return self.snapshot.images
        parts = self.each(segment_images, threads=threads)
        if all(part is not None for part in parts):
            self.snapshot.images = parts
        empty = (SegmentImages(np.full(info.n_images, -1), np.empty(0, np.int64)) for info in self.infos)
        return [part or other for part, other in zip(parts, empty, strict=True)]

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Return operation(held, *shared) of every segment, in order; None for those that are missing."""
        return self._scatter(Task(operation, None, shared), self._all, self.numbers, len(self.infos))

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join the results of `each`: in every shard, then here. None if all are missing."""
        results = self._gather(Task(operation, join, shared), self._all)
        found = [results[shard] for shard in sorted(results) if results[shard] is not None]
        return join(found) if found else None

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Return operation(held, argument, *shared) for every (segment, argument); None for those that are missing."""
        positions: list[list[int]] = [[] for _ in self.numbers]
        for position, (number, _) in enumerate(own):
            positions[self._shard_of[number]].append(position)
        calls = {shard: pack([own[position] for position in chosen]) for shard, chosen in enumerate(positions) if chosen}
        return self._scatter(Task(operation, None, shared), calls, positions, len(own))

    def close(self) -> None:
        """Release this commit in the actors; they end with the last one."""
        self.replicas.release(self.snapshot.number)

    def _scatter(self, task: Task, calls: Mapping[int, bytes | None], positions: Sequence[Sequence[int]], n: int) -> list[Any]:
        """Return the results of shards as one list [n]; `positions` are those of each shard in it."""
        results: list[Any] = [None] * n
        for shard, parts in self._gather(task, calls).items():
            for position, part in zip(positions[shard], parts, strict=True):
                results[position] = part
        return results

    def _gather(self, task: Task, calls: Mapping[int, bytes | None]) -> dict[int, Any]:
        """Run a task on shards, each with its own argument; return the results of those that are available."""
        if not calls:
            return {}
        outcomes = _FanOut(self.replicas, self.snapshot, calls, self.replicas.pieces(task), self._require_all).run()
        missing = calls.keys() - outcomes.keys()
        if missing and self._require_all:
            raise ClusterError(f"{len(missing)} of {len(self.numbers)} shards did not respond within "
                               f"{self.replicas.options.timeout:g} s; search again later, or without require_all")  # fmt: skip
        damage = {number: reason for outcome in outcomes.values() for number, reason in outcome.damage.items()}
        for reason in damage.values() if self._require_all else ():
            raise DamagedError(reason)
        self._unavailable.update(number for shard in missing for number in self.numbers[shard])
        self._damaged.update(damage)
        return {shard: outcome.results for shard, outcome in outcomes.items()}


@dataclass(eq=False)
class Snapshot:
    """An index as of one commit, spread over the shards of a replica set."""

    number: int
    assignments: Sequence[bytes]  # of each shard
    statistics: Any = None  # reference to those of all segments, once they are known
    images: list[SegmentImages] | None = None  # likewise


@dataclass(eq=False)
class Replica:
    """An actor that holds a shard."""

    actor: Any
    loading: dict[int, tuple[Any, float]] = field(default_factory=dict)  # call and its time, by snapshot; removed when loaded
    lock: threading.Lock = field(default_factory=threading.Lock)


class ReplicaSet:
    """The actors of an index on a cluster. May be used by several threads; they end with the last snapshot."""

    def __init__(self, options: ClusterOptions) -> None:
        """Connect to the cluster; the first snapshot starts the actors."""
        self.options = options
        self.ray = connect(options.address)
        self.shards: list[list[Replica]] = []
        self.placement: dict[int, int] = {}  # the shard of each segment, which later snapshots keep
        self._numbers = itertools.count()
        self._open: set[int] = set()
        self._turns: dict[int, Iterator[int]] = {}
        self._lock = threading.RLock()  # reentrant: a snapshot may be collected, and so released, while it is held

    @property
    def n_shards(self) -> int:
        """Return the number of shards: that of the options, or one per core of the cluster."""
        return len(self.shards) or self.options.shards or count_cores(self.ray)

    def read_engine(self, folder: IndexFolder, layout: Layout) -> Engine:
        """Load a commit of an index as a new snapshot."""
        return Engine(RayShards.open(folder, layout, self), layout.kind.sizes)

    def open(self, assignments: Sequence[ShardAssignment], loads: Sequence[int]) -> tuple[Snapshot, list[ShardSummary]]:
        """Create a snapshot; return it with the summary of each shard. `set_statistics` completes it."""
        snapshot = Snapshot(next(self._numbers), [pack(assignment) for assignment in assignments])
        with self._lock:
            self._open.add(snapshot.number)
            weakref.finalize(snapshot, self.release, snapshot.number)  # when no index uses it any more
            if not self.shards:
                self._start(loads)
        try:
            return snapshot, [unpack(summary) for summary in self._load_all(snapshot)]
        except BaseException:
            self.release(snapshot.number)
            raise

    def set_statistics(self, snapshot: Snapshot, statistics: Statistics) -> None:
        """Send the statistics of all segments to the actors, which can then run operations."""
        snapshot.statistics = self.ray.put(pack(statistics))
        self._load_all(snapshot)

    def release(self, number: int) -> None:
        """Release a snapshot; with the last one the actors end."""
        with self._lock:
            if number not in self._open:
                return
            self._open.remove(number)
            last = not self._open
            shards, self.shards = self.shards, [] if last else self.shards
        if not self.ray.is_initialized():
            return  # the cluster, or the program, has ended
        for replica in itertools.chain.from_iterable(shards):
            replica.loading.pop(number, None)
            if last:
                self.ray.kill(replica.actor)
            else:
                replica.actor.release.remote(number)

    def _start(self, loads: Sequence[int]) -> None:
        cores = cluster_cores(self.ray)
        machines = assign_replicas(loads, cores, self.options.replicas)
        shares = {name: sum(name in chosen for chosen in machines) for name in cores}
        threads = {name: max(1, int(cores[name] // share)) for name, share in shares.items() if share}
        start = partial(start_actor, self.ray, ShardActor)
        self.shards = [[Replica(start(name, threads[name])) for name in chosen] for chosen in machines]
        self._turns = {shard: itertools.count() for shard in range(len(self.shards))}

    def _load_all(self, snapshot: Snapshot) -> list[bytes]:
        """Load a snapshot into all replicas; return the result of the first of each shard."""
        for shard, replicas in enumerate(self.shards):
            for replica in replicas:
                self._load(snapshot, shard, replica)
        deadline = time.monotonic() + _OPEN_SECONDS
        return [self._first_loaded(snapshot, shard, deadline) for shard in range(len(self.shards))]

    def _load(self, snapshot: Snapshot, shard: int, replica: Replica) -> None:
        reference = replica.actor.load.remote(snapshot.number, snapshot.assignments[shard], snapshot.statistics)
        replica.loading[snapshot.number] = reference, time.monotonic()

    def _first_loaded(self, snapshot: Snapshot, shard: int, deadline: float) -> Any:
        """Return the result of the replica of a shard that is loaded first."""
        reason = ""
        while (left := deadline - time.monotonic()) > 0:
            loading = {replica.loading[snapshot.number][0]: replica for replica in self.shards[shard]}
            for reference in self.ray.wait(list(loading), timeout=left)[0]:
                try:
                    result = get_result(self.ray, reference)
                except LostTaskError as error:  # the actor died; Ray restarts it
                    reason = f" ({error})"
                    time.sleep(_RELOAD_SECONDS)
                    self._load(snapshot, shard, loading[reference])
                else:
                    if snapshot.statistics is not None:
                        loading[reference].loading.pop(snapshot.number)
                    return result
        raise ClusterError(f"shard {shard} did not load its segments within {_OPEN_SECONDS:.0f} s{reason}; see the Ray logs")

    def pieces(self, task: Task) -> list[Any]:
        """Return a task as arguments of a call."""
        content = pack(task)
        if len(content) > INLINE:
            return [self.ray.put(content)]
        return [content[start : start + PIECE] for start in range(0, len(content), PIECE)]

    def available(self, snapshot: Snapshot, shard: int) -> list[Replica]:
        """Return the replicas of a shard that have loaded a snapshot, in turn another one first; reload the others."""
        if snapshot.number not in self._open:
            raise UnusableIndexError("the index was closed; open it again")
        replicas = self.shards[shard]
        turn = next(self._turns[shard]) % len(replicas)
        return [replica for replica in replicas[turn:] + replicas[:turn] if self._is_loaded(snapshot, shard, replica)]

    def mark_unavailable(self, snapshot: Snapshot, shard: int, replica: Replica) -> None:
        """Load a replica again, which is gone or too slow; it is not called until that is done."""
        with replica.lock:
            if snapshot.number not in replica.loading:
                self._load(snapshot, shard, replica)

    def _is_loaded(self, snapshot: Snapshot, shard: int, replica: Replica) -> bool:
        with replica.lock:
            reference, since = replica.loading.get(snapshot.number, (None, 0.0))
            if reference is None:
                return True
            if not self.ray.wait([reference], timeout=0)[0]:
                return False
            try:
                get_result(self.ray, reference)
            except Exception as error:  # noqa: BLE001 - it died again, its segments are gone, or its machine lacks memory
                if time.monotonic() - since > _RELOAD_SECONDS:
                    logger.warning("loading shard %d again: %s: %s", shard, type(error).__name__, one_line(error))
                    self._load(snapshot, shard, replica)
                return False
            replica.loading.pop(snapshot.number)
            return True


@dataclass(eq=False)
class _FanOut:
    """A task on its way to several shards."""

    replicas: ReplicaSet
    snapshot: Snapshot
    calls: Mapping[int, bytes | None]  # by shard: its own argument
    pieces: Sequence[Any]
    require_all: bool  # wait for shards whose replicas are all unavailable
    running: dict[Any, tuple[int, Replica]] = field(default_factory=dict)  # by reference
    results: dict[int, TaskResults] = field(default_factory=dict)  # by shard

    def run(self) -> dict[int, TaskResults]:
        """Return the outcomes by shard, of those that respond in time."""
        start, timeout = time.monotonic(), self.replicas.options.timeout
        for shard in self.calls:
            self._call(shard)
        while (seconds := time.monotonic() - start) < timeout and (self.require_all or self.running):
            for reference in self._wait(min(timeout - seconds, _HEDGE * timeout)):
                self._collect(reference)
            if len(self.results) == len(self.calls):
                break
            self._call_others(late=time.monotonic() - start > _HEDGE * timeout)
        for shard, replica in self.running.values():  # too slow: the next task goes to another one
            self.replicas.mark_unavailable(self.snapshot, shard, replica)
        return self.results

    def _wait(self, seconds: float) -> list[Any]:
        """Wait for a result, but only briefly if a shard has no available replica."""
        if not self.running:
            time.sleep(min(seconds, _POLL_SECONDS))
            return []
        called = {shard for shard, _ in self.running.values()}
        if self.require_all and self.calls.keys() - self.results.keys() - called:
            seconds = min(seconds, _POLL_SECONDS)
        return list(self.replicas.ray.wait(list(self.running), timeout=seconds)[0])

    def _call_others(self, late: bool) -> None:
        """Call replicas of shards without a running call, and a second replica of those that are late."""
        called = [shard for shard, _ in self.running.values()]
        for shard in self.calls.keys() - self.results.keys():
            if (self.require_all and shard not in called) or (late and called.count(shard) == 1):
                self._call(shard)

    def _call(self, shard: int) -> None:
        busy = [replica for _, replica in self.running.values()]
        for replica in self.replicas.available(self.snapshot, shard):
            if replica not in busy:
                reference = replica.actor.run.remote(self.snapshot.number, self.calls[shard], *self.pieces)
                self.running[reference] = shard, replica
                return

    def _collect(self, reference: Any) -> None:
        shard, replica = self.running.pop(reference)
        try:
            result = unpack(get_result(self.replicas.ray, reference))
        except (LostTaskError, UnknownSnapshotError):
            self.replicas.mark_unavailable(self.snapshot, shard, replica)
            if shard not in self.results:
                self._call(shard)  # another replica, if there is one
        else:
            self.results.setdefault(shard, result)


# -- placement


def assign_segments(sizes: Mapping[int, int], count: int, kept: Mapping[int, int] | None = None) -> list[list[int]]:
    """Return the segments of each of `count` shards, balanced by size; `kept`: shards of segments that stay there."""
    shards: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    kept = {segment: shard for segment, shard in (kept or {}).items() if segment in sizes and shard < count}
    for segment in [*kept, *sorted(sizes.keys() - kept.keys(), key=lambda one: (-sizes[one], one))]:
        shard = kept[segment] if segment in kept else min(range(count), key=lambda shard: (loads[shard], shard))
        shards[shard].append(segment)
        loads[shard] += sizes[segment]
    return [sorted(shard) for shard in shards]


def assign_replicas(loads: Sequence[int], machines: Mapping[str, float], replicas: int) -> list[list[str]]:
    """Return the machines of the replicas of each shard, on different machines as long as there are enough.

    machines: the capacity of each, in any unit, such as cores.
    """
    used = dict.fromkeys(machines, 0.0)
    placed: list[list[str]] = [[] for _ in loads]
    for shard in sorted(range(len(loads)), key=lambda one: (-loads[one], one)):
        for _ in range(replicas):
            others = [name for name in machines if name not in placed[shard]] or list(machines)
            chosen = min(others, key=lambda name: ((used[name] + loads[shard] + 1) / max(machines[name], 1e-9), name))
            placed[shard].append(chosen)
            used[chosen] += loads[shard] + 1  # an empty shard is a process, too
    return placed


def _assignment(folder: IndexFolder, layout: Layout, numbers: Sequence[int]) -> ShardAssignment:
    chosen = [(number, layout.parts[number]) for number in numbers]
    segments = tuple(SegmentAssignment(number, part.segment, part.checksum, part.deleted) for number, part in chosen)
    return ShardAssignment(folder.path.absolute(), layout.kind, segments)
