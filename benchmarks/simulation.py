"""One search over many shards, simulated: fan-outs one after another, each as slow as the last of its answers.

A discrete-event model. Shards serve in the order of arrival; a shard's time is drawn, from the measured spread of single segments, as
the time in which its threads finish all its segments; the driver is one more queue, since its work has the interpreter's lock.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
POOL = 512  # times of a shard that are drawn in advance


@dataclass(frozen=True)
class Phase:
    """One fan-out, as one shard and the driver see it; seconds and bytes."""

    segment: float  # kernels, of one segment on one thread
    locked: float  # of one segment, with the interpreter's lock: one at a time in a process
    fixed: float  # unpacking, packing
    floor: float  # memory bandwidth of the machine allows no less
    sent: float  # bytes to each shard
    received: float  # bytes from each shard
    pack: float  # the driver's, once
    take: float  # the driver's, per answer: receiving, taking, unpacking, joining it


@dataclass(frozen=True)
class Layout:
    """Who holds what."""

    shards: int
    replicas: int
    threads: float  # of a shard
    segments: float  # of a shard
    copies: int  # of what is sent: one per shard, or one per machine if it takes the detour by the object store


@dataclass(frozen=True)
class Link:
    """What every call costs beside the work: all in seconds, bytes per second."""

    speed: float
    round_trip: float
    submit: float
    calls: Floats  # measured times of a call that does nothing, as quantiles


@dataclass(frozen=True)
class Work:
    """A search: what the driver does once, its fan-outs, and candidates to verify in a last one."""

    once: float
    phases: tuple[Phase, ...]
    verify: Phase | None  # `segment` is of one candidate
    candidates: int


@dataclass(frozen=True)
class Spread:
    """How times vary: of a segment around its mean, and of a query's lists around theirs; quantiles, mean 1."""

    segments: Floats
    queries: Floats


def makespans(layout: Layout, spread: Spread, random: np.random.Generator) -> Floats:
    """Draw the time in which a shard finishes its segments, in units of a segment's mean."""
    threads = max(1, int(min(layout.threads, layout.segments)))
    each = max(1, round(layout.segments / threads))
    drawn = random.choice(spread.segments, (POOL, threads, min(each, 64))).sum(axis=2) * (each / min(each, 64))
    exact: Floats = drawn.max(axis=1) * (layout.segments / (threads * each))
    return exact


@dataclass
class Pending:
    """A fan-out under way: when each shard was asked, and when its answer is back."""

    phase: Phase
    arrivals: Floats
    replica: npt.NDArray[np.int64]
    seconds: Floats
    ends: Floats
    late: npt.NDArray[np.bool_]


class Cluster:
    """Queues of shards and of the driver, on the clock of the simulation."""

    def __init__(self, work: Work, layout: Layout, link: Link, spread: Spread, seed: int = 0) -> None:
        self.work, self.layout, self.link, self.spread = work, layout, link, spread
        self.random = np.random.default_rng(seed)
        self.pool = makespans(layout, spread, self.random)
        slots = int(np.clip(layout.threads // max(layout.segments, 1), 1, 64))  # queries at a time without sharing a thread
        self.free = np.zeros((layout.shards, layout.replicas, slots))
        self.driver = 0.0
        self.patience = np.inf  # seconds until another replica is asked as well
        self.together = ""  # a fan-out asks the same replica of all shards: one at "random", or that which is "free" first

    def service(self, phase: Phase, factor: float) -> Floats:
        """Draw the seconds that each shard works on a fan-out."""
        n = self.layout.segments
        kernels = self.random.choice(self.pool, self.layout.shards) * phase.segment * factor
        return np.maximum(np.maximum(kernels, n * phase.locked), phase.floor * factor) + phase.fixed

    def verification(self, phase: Phase) -> Floats:
        shards = self.layout.shards
        counts = np.bincount(self.random.integers(shards, size=self.work.candidates), minlength=shards)
        rounds = np.ceil(counts / max(1, self.layout.threads))
        return np.where(counts > 0, rounds * phase.segment + phase.fixed, 0.0)

    def _queue(self, arrivals: Floats, replica: npt.NDArray[np.int64], seconds: Floats) -> Floats:
        """Let shards work in the order of arrival; gives when they have finished. What has 0 seconds is not asked."""
        rows = np.arange(len(arrivals))
        slot = self.free[rows, replica].argmin(axis=1)
        ends: Floats = np.maximum(arrivals, self.free[rows, replica, slot]) + seconds
        asked = seconds > 0
        self.free[rows[asked], replica[asked], slot[asked]] = ends[asked]
        return np.where(asked, ends, arrivals)

    def fan_out(self, start: float, phase: Phase, seconds: Floats) -> Pending:
        """Ask all shards that have something to do."""
        layout, link = self.layout, self.link
        asked = seconds > 0
        step = max(link.submit, phase.sent * layout.copies / layout.shards / link.speed)
        begin = max(start, self.driver) + phase.pack
        arrivals = begin + np.cumsum(np.where(asked, step, 0.0)) + link.round_trip / 2
        replica = self.random.integers(layout.replicas, size=layout.shards)
        if self.together:
            replica[:] = replica[0] if self.together == "random" else self.free.min(axis=2).max(axis=0).argmin()
        calls = self.random.choice(link.calls, layout.shards)
        ends = self._queue(arrivals, replica, seconds) + np.where(asked, calls, 0.0)
        self.driver = begin + int(asked.sum()) * (step + phase.take)
        late = asked & (ends - arrivals > self.patience) & (layout.replicas > 1)
        return Pending(phase, arrivals, replica, seconds, ends, late)

    def ask_again(self, pending: Pending) -> None:
        """Ask another replica of the shards that are late; the first answer counts, nothing is called back."""
        layout, late = self.layout, pending.late
        again = np.where(late, self.random.choice(pending.seconds[pending.seconds > 0], layout.shards), 0.0)
        ends = self._queue(pending.arrivals + self.patience, (pending.replica + 1) % layout.replicas, again)
        ends += self.random.choice(self.link.calls, layout.shards)
        pending.ends = np.where(late, np.minimum(pending.ends, ends), pending.ends)
        self.driver += int(late.sum()) * self.link.submit

    def finish(self, pending: Pending) -> float:
        """Give when the driver has taken the last answer."""
        taken = np.sort(pending.ends[pending.seconds > 0]) + self.link.round_trip / 2
        return float((taken + pending.phase.take * np.arange(len(taken), 0, -1)).max())

    def run(self, rate: float, queries: int) -> Floats:
        """Give the seconds of each of some queries that come at random, `rate` per second; 0: one after the other."""
        arrivals = np.cumsum(self.random.exponential(1 / rate, queries)) if rate else np.zeros(queries)
        factors = self.random.choice(self.spread.queries, queries)
        ends = np.zeros(queries)
        events: list[Any] = [(at, number, 0, None) for number, at in enumerate(arrivals[: None if rate else 1])]
        heapq.heapify(events)
        while events:
            now, number, stage, pending = heapq.heappop(events)
            if stage == 0 and pending is None:
                arrivals[number] = now
                now = self.driver = max(now, self.driver) + self.work.once
            if pending is not None:
                self.ask_again(pending)
                heapq.heappush(events, (self.finish(pending), number, stage + 1, None))
            elif (asked := self._stage(now, stage, float(factors[number]))) is None:
                ends[number] = now
                if not rate and number + 1 < queries:
                    heapq.heappush(events, (now, number + 1, 0, None))
            elif asked.late.any():
                heapq.heappush(events, (float(asked.arrivals[asked.late].min()) + self.patience, number, stage, asked))
            else:
                heapq.heappush(events, (self.finish(asked), number, stage + 1, None))
        return ends - arrivals

    def _stage(self, now: float, stage: int, factor: float) -> Pending | None:
        if stage < len(self.work.phases):
            phase = self.work.phases[stage]
            return self.fan_out(now, phase, self.service(phase, factor))
        if stage == len(self.work.phases) and self.work.verify is not None:
            return self.fan_out(now, self.work.verify, self.verification(self.work.verify))
        return None


def capacity(cluster: Cluster) -> dict[str, float]:
    """Give the queries per second that the shards could serve, and that one driver could."""
    work, layout, link = cluster.work, cluster.layout, cluster.link
    slots = cluster.free.shape[2]
    busy = sum(float(np.mean([cluster.service(phase, 1.0).mean() for _ in range(20)])) for phase in work.phases)
    driven = work.once
    for phase in work.phases:
        driven += phase.pack + layout.shards * (
            max(link.submit, phase.sent * layout.copies / layout.shards / link.speed) + phase.take
        )
    if work.verify is not None:
        asked = layout.shards * (1 - (1 - 1 / layout.shards) ** work.candidates)
        busy += float(np.mean([cluster.verification(work.verify).mean() for _ in range(20)]))
        driven += work.verify.pack + asked * (link.submit + work.verify.take)
    return {"shards": slots * layout.replicas / busy, "driver": 1 / driven}


def percentiles(seconds: Floats) -> dict[str, float]:
    return {f"p{n}": float(np.percentile(seconds, n)) for n in (50, 95, 99)}


def summary(cluster: Any, rate: float, queries: int) -> dict[str, float]:
    found: Floats = cluster.run(rate, queries)
    return percentiles(found[queries // 10 :])  # the first ones find empty queues
