"""The holders of an index: who holds what, who answers, and what is missing while one does not.

A fan-out asks one replica of every shard and waits for all. A replica that dies is restarted by Ray, perhaps on another
machine; it is told anew what to hold, and meanwhile another replica of its shard is asked, if there is one.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from polyvoc.cluster import machines, placement
from polyvoc.cluster.holder import Charge, ForgottenError, Holder, Inventory
from polyvoc.cluster.packing import pack, unpack
from polyvoc.errors import ClusterError, PolyvocError
from polyvoc.records import ClusterOptions
from polyvoc.shards import Common

PIECE = 64 * 1024  # bytes: Ray sends arguments of less than 100 KB along with a call, without a detour by its object store
INLINE = 1 << 20  # bytes: a task larger than this takes the detour, once per machine instead of once per shard
OPENING = 300.0  # seconds until every shard has said what is in its segments
AGAIN = 1.0  # seconds between attempts to tell a replica what to hold


@dataclass(eq=False)
class Replica:
    """One holder of a shard, and whether it knows what to hold."""

    actor: Any
    waking: dict[int, Any] = field(default_factory=dict)  # by generation: None if it is ready, else what tells when
    asked: dict[int, float] = field(default_factory=dict)  # when it was told last
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, eq=False)
class Generation:
    """An index as of one commit, spread over the shards of a fleet."""

    number: int
    charges: Sequence[bytes]  # of each shard
    common: list[Any] = field(default_factory=list)  # reference to what is known of all segments, once it is


class Fleet:
    """Holders on the machines of a cluster. May be used by several threads; ends with the last index that uses it."""

    def __init__(self, options: ClusterOptions) -> None:
        """Connect to the cluster; holders are started by the first index."""
        self.options = options
        self.ray = machines.connect(options.address)
        self.shards: list[list[Replica]] = []
        self.kept: dict[int, int] = {}  # the shard of each segment
        self._numbers = itertools.count()
        self._open: set[int] = set()
        self._turn = itertools.count()
        self._lock = threading.RLock()  # garbage may be collected, and a generation released, while it is held

    @property
    def count(self) -> int:
        """Give the number of shards: as asked, or one per core of the cluster."""
        return len(self.shards) or self.options.shards or machines.count_cores(self.ray)

    # -- opening and closing

    def open(self, charges: Sequence[Charge], loads: Sequence[int]) -> tuple[Generation, list[Inventory]]:
        """Let every shard hold its charge; gives what each found."""
        with self._lock:
            generation = Generation(next(self._numbers), [pack(charge) for charge in charges])
            self._open.add(generation.number)
            if not self.shards:
                self._start(loads)
            weakref.finalize(generation, self.release, generation.number)  # when no index uses it any more
        return generation, [unpack(said) for said in self._tell_all(generation)]

    def teach(self, generation: Generation, common: Common) -> None:
        """Tell all holders what is known of all segments together."""
        generation.common.append(self.ray.put(pack(common)))
        self._tell_all(generation)

    def _tell_all(self, generation: Generation) -> list[bytes]:
        """Tell all holders what to hold; gives what the first of each shard says."""
        for shard, replicas in enumerate(self.shards):
            for replica in replicas:
                self._tell(generation, shard, replica)
        return [self._first(generation, shard) for shard in range(len(self.shards))]

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
            if last:
                self.ray.kill(replica.actor)
            else:
                replica.waking.pop(number, None)
                replica.actor.release.remote(number)

    def _start(self, loads: Sequence[int]) -> None:
        seats = placement.seats(loads, machines.cores(self.ray), self.options.replicas)
        cores = machines.cores(self.ray)
        crowd = {name: sum(name in seat for seat in seats) for name in cores}
        for seat in seats:
            holders = [machines.start(self.ray, Holder, name, max(1, int(cores[name] // crowd[name]))) for name in seat]
            self.shards.append([Replica(actor) for actor in holders])

    def _tell(self, generation: Generation, shard: int, replica: Replica) -> None:
        """Tell a replica what to hold."""
        common = generation.common[0] if generation.common else None
        replica.asked[generation.number] = time.monotonic()
        replica.waking[generation.number] = replica.actor.hold.remote(generation.number, generation.charges[shard], common)

    def _first(self, generation: Generation, shard: int) -> bytes:
        """Give what the first replica of a shard says that knows what to hold."""
        deadline = time.monotonic() + OPENING
        while time.monotonic() < deadline:
            waiting = {replica.waking[generation.number]: replica for replica in self.shards[shard]}
            done, _ = self.ray.wait(list(waiting), timeout=deadline - time.monotonic())
            for reference in done:
                try:
                    said: bytes = self._get(reference)
                except ClusterError:
                    time.sleep(AGAIN)
                    self._tell(generation, shard, waiting[reference])
                else:
                    waiting[reference].waking[generation.number] = None
                    return said
        raise ClusterError(f"shard {shard} did not open its segments within {OPENING:.0f} s; see the logs of Ray")

    def _get(self, reference: Any) -> Any:
        """Give a result; ClusterError if its holder is gone, or whatever went wrong with the work itself."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, BaseException) else ClusterError(str(error))) from None
        except self.ray.exceptions.RayError as error:
            raise ClusterError(f"a holder is gone ({type(error).__name__})") from None

    # -- asking

    def pieces(self, task: Any) -> list[Any]:
        """Give a task as arguments of a call."""
        content = pack(task)
        if len(content) > INLINE:
            return [self.ray.put(content)]
        return [content[start : start + PIECE] for start in range(0, len(content), PIECE)]

    def gather(self, generation: Generation, calls: dict[int, bytes | None], pieces: Sequence[Any],
               whole: bool) -> dict[int, Any]:  # fmt: skip
        """Ask shards, each with its own argument; gives what those said that answer. `whole`: wait for all of them.

        Without `whole` a shard whose replicas are all down is not waited for.
        """
        return _FanOut(self, generation, calls, pieces, whole).run()

    def ready(self, generation: Generation, shard: int) -> list[Replica]:
        """Give the replicas of a shard that can be asked, another one first each time; wake the others."""
        replicas = self.shards[shard]
        turn = next(self._turn) % len(replicas)
        ordered = replicas[turn:] + replicas[:turn]
        return [replica for replica in ordered if self._is_ready(generation, shard, replica)]

    def down(self, generation: Generation, shard: int, replica: Replica) -> None:
        """Note that a replica does not answer: when it does again, it must be told what to hold."""
        with replica.lock:
            if replica.waking.get(generation.number) is None:
                self._tell(generation, shard, replica)

    def _is_ready(self, generation: Generation, shard: int, replica: Replica) -> bool:
        with replica.lock:
            waking = replica.waking.get(generation.number)
            if waking is None:
                return True
            if not self.ray.wait([waking], timeout=0)[0]:
                return False
            try:
                self._get(waking)
            except PolyvocError:  # it was restarted once more, or its segments are gone
                if time.monotonic() - replica.asked[generation.number] > AGAIN:
                    self._tell(generation, shard, replica)
                return False
            replica.waking[generation.number] = None
            return True


class _FanOut:
    """One question to several shards on its way."""

    def __init__(self, fleet: Fleet, generation: Generation, calls: dict[int, bytes | None], pieces: Sequence[Any],
                 whole: bool) -> None:  # fmt: skip
        self.fleet, self.generation, self.calls, self.pieces, self.whole = fleet, generation, calls, pieces, whole
        self.under_way: dict[Any, tuple[int, Replica]] = {}
        self.answers: dict[int, Any] = {}
        self.deadline = time.monotonic() + fleet.options.patience

    def run(self) -> dict[int, Any]:
        for shard in self.calls:
            self._ask(shard)
        while (left := self.deadline - time.monotonic()) > 0 and len(self.answers) < len(self.calls):
            if not self.under_way and not self.whole:
                break
            done = self._wait(left)
            for reference in done:
                self._take(reference)
            if self.whole:
                for shard in self.calls.keys() - self.answers.keys() - {shard for shard, _ in self.under_way.values()}:
                    self._ask(shard)
        for shard, replica in self.under_way.values():  # too slow: the next question goes to another one
            self.fleet.down(self.generation, shard, replica)
        return self.answers

    def _wait(self, left: float) -> list[Any]:
        if not self.under_way:  # all that is missing is being restarted
            time.sleep(min(left, 0.05))
            return []
        timeout = min(left, 0.05) if self.whole and len(self.under_way) + len(self.answers) < len(self.calls) else left
        done: list[Any] = self.fleet.ray.wait(list(self.under_way), num_returns=1, timeout=timeout)[0]
        return done

    def _ask(self, shard: int) -> None:
        for replica in self.fleet.ready(self.generation, shard)[:1]:
            arguments = self.generation.number, self.calls[shard], *self.pieces
            self.under_way[replica.actor.ask.remote(*arguments)] = shard, replica

    def _take(self, reference: Any) -> None:
        shard, replica = self.under_way.pop(reference)
        try:
            self.answers[shard] = unpack(self.fleet._get(reference))
        except (ClusterError, ForgottenError):
            self.fleet.down(self.generation, shard, replica)
            self._ask(shard)  # another replica, if there is one
