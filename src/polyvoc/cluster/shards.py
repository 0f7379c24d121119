"""Replicas, fan-out, shards of an index."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.cluster.connect import cluster_cores, connect, count_cores, start_actor
from polyvoc.cluster.holder import (
    WEIGHED,
    ForgottenError,
    SegmentAssignment,
    ShardActor,
    ShardAssignment,
    ShardSummary,
    Task,
    pack,
    unpack,
)
from polyvoc.errors import ClusterError, UnusableIndexError
from polyvoc.index.folder import IndexFolder, Layout
from polyvoc.index.statistics import Statistics
from polyvoc.options import ClusterOptions
from polyvoc.scoring.engine import Engine, Join, Operation
from polyvoc.scoring.segments import SegmentInfo
from polyvoc.types import Spans


def assign_segments(sizes: Mapping[int, int], count: int, kept: Mapping[int, int] | None = None) -> list[list[int]]:
    """Give the segments of each of `count` shards, in order, by the sizes of segments; `kept`: the shard where one is now."""
    shards: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    kept = {segment: shard for segment, shard in (kept or {}).items() if segment in sizes and shard < count}
    for segment, shard in kept.items():
        shards[shard].append(segment)
        loads[shard] += sizes[segment]
    for segment in sorted(sizes.keys() - kept.keys(), key=lambda one: (-sizes[one], one)):
        lightest = min(range(count), key=lambda shard: (loads[shard], shard))
        shards[lightest].append(segment)
        loads[lightest] += sizes[segment]
    return [sorted(shard) for shard in shards]


def assign_replicas(loads: Sequence[int], machines: Mapping[str, float], replicas: int) -> list[list[str]]:
    """Give the machines of the replicas of each shard: those of one shard apart as long as there are enough of them.

    machines: how much each can bear, in any unit, such as cores.
    """
    borne = dict.fromkeys(machines, 0.0)
    placed: list[list[str]] = [[] for _ in loads]
    for shard in sorted(range(len(loads)), key=lambda one: (-loads[one], one)):
        for _ in range(replicas):
            others = [name for name in machines if name not in placed[shard]] or list(machines)
            chosen = min(others, key=lambda name: ((borne[name] + loads[shard] + 1) / max(machines[name], 1e-9), name))
            placed[shard].append(chosen)
            borne[chosen] += loads[shard] + 1  # an empty shard is a process all the same
    return placed


PIECE = 64 * 1024  # bytes: Ray sends arguments of less than 100 KB along with a call, without a detour by its object store
INLINE = 1 << 20  # bytes: a task larger than this takes the detour, once per machine instead of once per shard
OPENING = 300.0  # seconds until every shard has said what is in its segments
AGAIN = 1.0  # seconds between attempts to tell a replica what to hold
HEDGE = 0.25  # of the patience, after which another replica is asked as well
LOOK = 0.05  # seconds between two looks whether a replica is back
logger = logging.getLogger("polyvoc.cluster")


@dataclass(eq=False)
class Replica:
    """One holder of a shard, and whether it knows what to hold."""

    actor: Any
    waking: dict[int, Loading] = field(default_factory=dict)  # by generation; gone when it is ready
    lock: threading.Lock = field(default_factory=threading.Lock)


class Loading(NamedTuple):
    """A replica that was told what to hold."""

    answer: Any  # reference to what it says
    since: float


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An index as of one commit, spread over the shards of a fleet."""

    number: int
    charges: Sequence[bytes]  # of each shard
    statistics: list[Any] = field(default_factory=list)  # reference to those of all segments, once they are known


class ReplicaSet:
    """Holders on the machines of a cluster. May be used by several threads; ends with the last index that uses it."""

    def __init__(self, options: ClusterOptions) -> None:
        """Connect to the cluster; holders are started by the first index."""
        self.options = options
        self.ray = connect(options.address)
        self.shards: list[list[Replica]] = []
        self.kept: dict[int, int] = {}  # the shard of each segment
        self._numbers = itertools.count()
        self._open: set[int] = set()
        self._turns: dict[int, Iterator[int]] = {}
        self._lock = threading.RLock()  # garbage may be collected, and a generation released, while it is held

    @property
    def count(self) -> int:
        """Give the number of shards: as asked, or one per core of the cluster."""
        return len(self.shards) or self.options.shards or count_cores(self.ray)

    # -- opening and closing

    def open(self, charges: Sequence[ShardAssignment], loads: Sequence[int]) -> tuple[Snapshot, list[ShardSummary]]:
        """Let every shard look at its charge; gives what each found. `teach` then lets them hold it."""
        generation = Snapshot(next(self._numbers), [pack(charge) for charge in charges])
        with self._lock:
            self._open.add(generation.number)
            weakref.finalize(generation, self.release, generation.number)  # when no index uses it any more
            if not self.shards:
                self._start(loads)
        try:
            return generation, [unpack(said) for said in self._tell_all(generation)]
        except BaseException:
            self.release(generation.number)
            raise

    def teach(self, generation: Snapshot, statistics: Statistics) -> None:
        """Tell all holders the statistics of all segments: from then on they answer."""
        generation.statistics.append(self.ray.put(pack(statistics)))
        self._tell_all(generation)

    def release(self, number: int) -> None:
        """Forget a generation; with the last one the holders end."""
        with self._lock:
            if number not in self._open:
                return
            self._open.remove(number)
            last = not self._open
            shards, self.shards = self.shards, [] if last else self.shards
        if not self.ray.is_initialized():
            return  # the cluster, or the program, has ended
        for replica in itertools.chain.from_iterable(shards):
            replica.waking.pop(number, None)
            if last:
                self.ray.kill(replica.actor)
            else:
                replica.actor.release.remote(number)

    def _start(self, loads: Sequence[int]) -> None:
        cores = cluster_cores(self.ray)
        seats = assign_replicas(loads, cores, self.options.replicas)
        crowd = {name: sum(name in seat for seat in seats) for name in cores}
        started = []
        for seat in seats:
            holders = [start_actor(self.ray, ShardActor, name, max(1, int(cores[name] // crowd[name]))) for name in seat]
            started.append([Replica(actor) for actor in holders])
        self.shards = started
        self._turns = {shard: itertools.count() for shard in range(len(started))}

    def _tell_all(self, generation: Snapshot) -> list[bytes]:
        """Tell all holders what to hold; gives what the first of each shard says."""
        for shard, replicas in enumerate(self.shards):
            for replica in replicas:
                self._tell(generation, shard, replica)
        deadline = time.monotonic() + OPENING
        return [self._first(generation, shard, deadline) for shard in range(len(self.shards))]

    def _tell(self, generation: Snapshot, shard: int, replica: Replica) -> None:
        """Tell a replica what to hold; one that holds it already says so at once."""
        statistics = generation.statistics[0] if generation.statistics else None
        answer = replica.actor.hold.remote(generation.number, generation.charges[shard], statistics)
        replica.waking[generation.number] = Loading(answer, time.monotonic())

    def _first(self, generation: Snapshot, shard: int, deadline: float) -> Any:
        """Give what the first replica of a shard says that was told what to hold."""
        last = ""
        while (left := deadline - time.monotonic()) > 0:
            waiting = {replica.waking[generation.number].answer: replica for replica in self.shards[shard]}
            for answer in self.ray.wait(list(waiting), timeout=left)[0]:
                try:
                    said = self.get(answer)
                except ClusterError as error:  # it died; it is restarted
                    last = f" ({error})"
                    time.sleep(AGAIN)
                    self._tell(generation, shard, waiting[answer])
                else:
                    if generation.statistics:
                        waiting[answer].waking.pop(generation.number)
                    return said
        raise ClusterError(f"shard {shard} did not open its segments within {OPENING:.0f} s{last}; see the logs of Ray")

    def get(self, reference: Any) -> Any:
        """Give a result; ClusterError if its holder is gone, or whatever went wrong with the work itself."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            known = isinstance(cause, Exception) and not isinstance(cause, self.ray.exceptions.RayError)
            raise (cause if known else ClusterError(_one_line(error))) from None
        except self.ray.exceptions.RayError as error:
            raise ClusterError(f"a holder is gone: {_one_line(error)}") from None

    # -- asking

    def pieces(self, task: Any) -> list[Any]:
        """Give a task as arguments of a call."""
        content = pack(task)
        if len(content) > INLINE:
            return [self.ray.put(content)]
        return [content[start : start + PIECE] for start in range(0, len(content), PIECE)]

    def gather(self, generation: Snapshot, calls: dict[int, bytes | None], pieces: Sequence[Any],
               whole: bool) -> dict[int, Any]:  # fmt: skip
        """Ask shards, each with its own argument; gives what those said that answer. `whole`: wait for all of them.

        Without `whole` a shard whose replicas are all down is not waited for.
        """
        return _FanOut(self, generation, calls, pieces, whole).run()

    def ready(self, generation: Snapshot, shard: int) -> list[Replica]:
        """Give the replicas of a shard that can be asked, another one first each time; wake the others."""
        if generation.number not in self._open:
            raise UnusableIndexError("the index was closed; open it again")
        replicas = self.shards[shard]
        turn = next(self._turns[shard]) % len(replicas)
        ordered = replicas[turn:] + replicas[:turn]
        return [replica for replica in ordered if self._is_ready(generation, shard, replica)]

    def down(self, generation: Snapshot, shard: int, replica: Replica) -> None:
        """Note that a replica does not answer, or forgot what to hold: it is told anew, and not asked until it says so."""
        with replica.lock:
            if generation.number not in replica.waking:
                self._tell(generation, shard, replica)

    def _is_ready(self, generation: Snapshot, shard: int, replica: Replica) -> bool:
        with replica.lock:
            waking = replica.waking.get(generation.number)
            if waking is None:
                return True
            if not self.ray.wait([waking.answer], timeout=0)[0]:
                return False
            try:
                self.get(waking.answer)
            except Exception as error:  # noqa: BLE001 - it was restarted once more, its segments are gone, or no memory is left
                if time.monotonic() - waking.since > AGAIN:
                    logger.warning("shard %d is told anew what to hold: %s", shard, _one_line(error))
                    self._tell(generation, shard, replica)
                return False
            replica.waking.pop(generation.number)
            return True


class _FanOut:
    """One question to several shards on its way."""

    def __init__(self, fleet: ReplicaSet, generation: Snapshot, calls: dict[int, bytes | None], pieces: Sequence[Any],
                 whole: bool) -> None:  # fmt: skip
        self.fleet, self.generation, self.calls, self.pieces, self.whole = fleet, generation, calls, pieces, whole
        self.under_way: dict[Any, tuple[int, Replica]] = {}
        self.answers: dict[int, Any] = {}
        self.begun = time.monotonic()

    def run(self) -> dict[int, Any]:
        for shard in self.calls:
            self._ask(shard)
        patience = self.fleet.options.patience
        while (spent := time.monotonic() - self.begun) < patience and (self.whole or self.under_way):
            for answer in self._wait(min(patience - spent, HEDGE * patience)):
                self._take(answer)
            if len(self.answers) == len(self.calls):
                break
            self._ask_others(late=time.monotonic() - self.begun > HEDGE * patience)
        for shard, replica in self.under_way.values():  # too slow: the next question goes to another one
            self.fleet.down(self.generation, shard, replica)
        return self.answers

    def _wait(self, longest: float) -> list[Any]:
        """Wait for an answer, but not so long that nobody looks for replicas."""
        if not self.under_way:
            time.sleep(min(longest, LOOK))
            return []
        asked = {shard for shard, _ in self.under_way.values()}
        looking = self.whole and self.calls.keys() - self.answers.keys() - asked
        done: list[Any] = self.fleet.ray.wait(list(self.under_way), timeout=min(longest, LOOK) if looking else longest)[0]
        return done

    def _ask_others(self, late: bool) -> None:
        """Ask replicas of shards that nobody is asked of, and further ones of those that are late."""
        asked = [shard for shard, _ in self.under_way.values()]
        for shard in self.calls.keys() - self.answers.keys():
            if (self.whole and shard not in asked) or (late and asked.count(shard) == 1):
                self._ask(shard)

    def _ask(self, shard: int) -> None:
        busy = [replica for _, replica in self.under_way.values()]
        free = [replica for replica in self.fleet.ready(self.generation, shard) if replica not in busy]
        for replica in free[:1]:
            arguments = self.generation.number, self.calls[shard], *self.pieces
            self.under_way[replica.actor.ask.remote(*arguments)] = shard, replica

    def _take(self, answer: Any) -> None:
        shard, replica = self.under_way.pop(answer)
        try:
            said = unpack(self.fleet.get(answer))
        except (ClusterError, ForgottenError):
            self.fleet.down(self.generation, shard, replica)
            if shard not in self.answers:
                self._ask(shard)  # another replica, if there is one
        else:
            self.answers.setdefault(shard, said)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def open_engine(home: IndexFolder, fleet: ReplicaSet) -> Engine:
    """Let a fleet hold the segments of the last commit, each by one shard."""
    layout = home.read_layout()
    return Engine(RayShards.open(home, layout, fleet), layout.sizes, neighbours=home.read_neighbours(layout))


class RayShards:
    """The segments of one commit, held by the actors of a fleet.

    Asked directly they are whole: ClusterError if one does not answer in time. An `attempt` notes which are missing.
    """

    def __init__(
        self, fleet: ReplicaSet, generation: Snapshot, held: Sequence[Sequence[int]], found: Sequence[ShardSummary]
    ) -> None:
        """Join what the shards found in the segments that they hold."""
        self.fleet = fleet
        self._generation = generation
        self._held = held  # the segments of each shard
        by_number: dict[int, tuple[SegmentInfo, npt.NDArray[np.int64]]] = {}
        for numbers, part in zip(held, found, strict=True):
            by_number |= dict(zip(numbers, zip(part.census, part.spans, strict=True), strict=True))
        self.census: Sequence[SegmentInfo] = [by_number[number][0] for number in sorted(by_number)]
        self._spans = [by_number[number][1] for number in sorted(by_number)]
        self.statistics: Statistics = reduce(add, (part.statistics for part in found))
        self._shard_of = {number: shard for shard, numbers in enumerate(held) for number in numbers}
        self._whole, self._absent = True, set[int]()

    @classmethod
    def open(cls, home: IndexFolder, layout: Layout, fleet: ReplicaSet) -> RayShards:
        """Spread the segments of an index over a fleet, by their size."""
        sizes = {part.segment: part.n_features + part.n_images for part in layout.parts}
        spread = assign_segments(sizes, fleet.count, fleet.kept)
        fleet.kept = {segment: shard for shard, segments in enumerate(spread) for segment in segments}
        numbers = {part.segment: number for number, part in enumerate(layout.parts)}
        held = [sorted(numbers[segment] for segment in segments) for segments in spread]
        loads = [sum(sizes[segment] for segment in segments) for segments in spread]
        generation, found = fleet.open([_charge(home, layout, numbers) for numbers in held], loads)
        made = cls(fleet, generation, held, found)
        for idf in WEIGHED:
            made.statistics.squares_of(idf)  # logarithms are taken once: machines might differ in the last bit
        fleet.teach(generation, made.statistics)
        return made

    def attempt(self, whole: bool) -> RayShards:
        """Give the same shards with a clean slate for what is missing."""
        again = copy(self)
        again._whole, again._absent = whole, set()
        return again

    @property
    def missing(self) -> Sequence[int]:
        """Give the segments that did not answer since this attempt began, in order."""
        return sorted(self._absent)

    @property
    def missing_ids(self) -> Spans:
        """Give the ids of the images in those segments."""
        rows = [self._spans[number] for number in self.missing]
        return tuple((int(first), int(last)) for first, last in sorted(map(tuple, np.concatenate(rows)))) if rows else ()

    # -- asking

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, *shared) of every segment, in order; None of those that do not answer."""
        answers = self._gather(Task(operation, None, shared), self._everybody())
        found: list[Any] = [None] * len(self.census)
        for shard, results in answers.items():
            for number, result in zip(self._held[shard], results, strict=True):
                found[number] = result
        return found

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join what `each` gives to one: in every shard, then here. None if nobody answers."""
        answers = self._gather(Task(operation, join, shared), self._everybody())
        return join([answers[shard] for shard in sorted(answers)]) if answers else None

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, argument, *shared) for every (segment, argument); None of those that do not answer."""
        mine: dict[int, list[int]] = {}
        for at, (number, _) in enumerate(own):
            mine.setdefault(self._shard_of[number], []).append(at)
        answers = self._gather(Task(operation, None, shared), {s: pack([own[at] for at in ats]) for s, ats in mine.items()})
        found: list[Any] = [None] * len(own)
        for shard, results in answers.items():
            for at, result in zip(mine[shard], results, strict=True):
                found[at] = result
        return found

    def close(self) -> None:
        """Let the holders forget this commit; with the last one that they hold they end."""
        self.fleet.release(self._generation.number)

    def _everybody(self) -> dict[int, bytes | None]:
        return {shard: None for shard, numbers in enumerate(self._held) if numbers}

    def _gather(self, task: Task, calls: dict[int, bytes | None]) -> dict[int, Any]:
        if not calls:
            return {}
        answers = self.fleet.gather(self._generation, calls, self.fleet.pieces(task), self._whole)
        absent = calls.keys() - answers.keys()
        if absent and self._whole:
            seconds = f"{self.fleet.options.patience:g} s"
            raise ClusterError(f"{len(absent)} of {len(self._held)} shards did not answer within {seconds}; ask again when "
                               "they are restarted, or leave out 'whole'")  # fmt: skip
        self._absent.update(number for shard in absent for number in self._held[shard])
        return answers


def _charge(home: IndexFolder, layout: Layout, numbers: Sequence[int]) -> ShardAssignment:
    firsts = np.cumsum([0, *(part.n_images for part in layout.parts)]).tolist()
    chosen = [(number, layout.parts[number]) for number in numbers]
    holdings = tuple(SegmentAssignment(number, part.segment, tuple(part.deleted), firsts[number]) for number, part in chosen)
    norms = None if layout.norms is None else layout.norms.absolute()
    return ShardAssignment(home.path.absolute(), layout.sizes, holdings, norms, firsts[-1])
