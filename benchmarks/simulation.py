"""Discrete-event simulation of searches over many shards: fan-outs one after another, each as slow as its slowest shard.

A shard serves in order of arrival. Its time is drawn, from the measured spread of single segments, as the time in which its
threads finish all its segments. The driver is one more queue, because its work holds the interpreter's lock.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
POOL = 512  # times of a shard that are drawn in advance


@dataclass(frozen=True)
class Phase:
    """One fan-out, for one shard and for the driver; seconds and bytes."""

    segment: float  # kernels, of one segment (or candidate) on one thread
    locked: float  # of one segment, with the interpreter's lock: one at a time in a process
    fixed: float  # unpacking, packing
    floor: float  # least seconds that the memory bandwidth of the machine allows
    sent: float  # bytes to each shard
    received: float  # bytes from each shard
    pack: float  # by the driver, once
    take: float  # by the driver, per reply: receive, unpack, merge


@dataclass(frozen=True)
class Layout:
    """The shards and what each holds."""

    shards: int
    replicas: int
    threads: float  # of a shard
    segments: float  # of a shard
    copies: int  # of what is sent: one per shard, or one per machine if it goes through the object store


@dataclass(frozen=True)
class Link:
    """What every call costs beside the work: seconds, and bytes per second."""

    speed: float
    round_trip: float
    submit: float
    calls: Floats  # measured times of a call that does nothing, as quantiles


@dataclass(frozen=True)
class Work:
    """A search: the driver's own work, the fan-outs that score, and the candidates to verify in a last fan-out."""

    once: float
    phases: tuple[Phase, ...]
    verify: Phase | None
    candidates: int


@dataclass(frozen=True)
class Spread:
    """How times vary: of a segment around its mean, and of a query's lists around theirs; quantiles, mean 1."""

    segments: Floats
    queries: Floats


def makespans(layout: Layout, spread: Spread, random: np.random.Generator) -> Floats:
    """Draw the times in which a shard finishes its segments, in units of a segment's mean."""
    threads = max(1, int(min(layout.threads, layout.segments)))
    each = max(1, round(layout.segments / threads))
    drawn = random.choice(spread.segments, (POOL, threads, min(each, 64))).sum(axis=2) * (each / min(each, 64))
    exact: Floats = drawn.max(axis=1) * (layout.segments / (threads * each))
    return exact


class Cluster:
    """Queues of the shards and of the driver, on the simulated clock.

    `same_replica`: a fan-out uses one replica number for all shards, the one that is free first; otherwise each shard's is random.
    """

    def __init__(self, work: Work, layout: Layout, link: Link, spread: Spread, same_replica: bool = False) -> None:
        self.work, self.layout, self.link, self.spread, self.same_replica = work, layout, link, spread, same_replica
        self.random = np.random.default_rng(0)
        self.pool = makespans(layout, spread, self.random)
        slots = int(np.clip(layout.threads // max(layout.segments, 1), 1, 64))  # queries at a time without sharing a thread
        self.free = np.zeros((layout.shards, layout.replicas, slots))
        self.driver = 0.0

    def service(self, phase: Phase, factor: float) -> Floats:
        """Draw the seconds that each shard works on a fan-out."""
        kernels = self.random.choice(self.pool, self.layout.shards) * phase.segment * factor
        return np.maximum(np.maximum(kernels, self.layout.segments * phase.locked), phase.floor * factor) + phase.fixed

    def verification(self, phase: Phase) -> Floats:
        """Draw the seconds that each shard verifies candidates; 0 for a shard without one."""
        shards = self.layout.shards
        counts = np.bincount(self.random.integers(shards, size=self.work.candidates), minlength=shards)
        rounds = np.ceil(counts / max(1, self.layout.threads))
        return np.where(counts > 0, rounds * phase.segment + phase.fixed, 0.0)

    def fan_out(self, start: float, phase: Phase, seconds: Floats) -> float:
        """Return when the driver has the last reply of the shards that have work (seconds > 0)."""
        layout, link, used = self.layout, self.link, seconds > 0
        step = max(link.submit, phase.sent * layout.copies / layout.shards / link.speed)
        begin = max(start, self.driver) + phase.pack
        arrivals = begin + np.cumsum(np.where(used, step, 0.0)) + link.round_trip / 2
        replica = self.random.integers(layout.replicas, size=layout.shards)
        if self.same_replica:
            replica[:] = self.free.min(axis=2).max(axis=0).argmin()
        calls = self.random.choice(link.calls, layout.shards)
        rows = np.arange(layout.shards)
        slot = self.free[rows, replica].argmin(axis=1)
        ends = np.maximum(arrivals, self.free[rows, replica, slot]) + seconds
        self.free[rows[used], replica[used], slot[used]] = ends[used]
        self.driver = begin + int(used.sum()) * (step + phase.take)
        taken = np.sort((ends + calls)[used]) + link.round_trip / 2
        return float((taken + phase.take * np.arange(len(taken), 0, -1)).max())

    def run(self, rate: float, queries: int) -> Floats:
        """Return the seconds of queries that come at random, `rate` per second; 0: one after the other."""
        arrivals = np.cumsum(self.random.exponential(1 / rate, queries)) if rate else np.zeros(queries)
        factors = self.random.choice(self.spread.queries, queries)
        ends = np.zeros(queries)
        events = [(float(at), number, 0) for number, at in enumerate(arrivals[: None if rate else 1])]
        heapq.heapify(events)
        while events:
            now, number, stage = heapq.heappop(events)
            if stage == 0:
                arrivals[number] = now
                now = self.driver = max(now, self.driver) + self.work.once
            end = self._stage(now, stage, float(factors[number]))
            if end is not None:
                heapq.heappush(events, (end, number, stage + 1))
                continue
            ends[number] = now
            if not rate and number + 1 < queries:
                heapq.heappush(events, (now, number + 1, 0))
        return ends - arrivals

    def _stage(self, now: float, stage: int, factor: float) -> float | None:
        if stage < len(self.work.phases):
            phase = self.work.phases[stage]
            return self.fan_out(now, phase, self.service(phase, factor))
        if stage == len(self.work.phases) and self.work.verify is not None:
            return self.fan_out(now, self.work.verify, self.verification(self.work.verify))
        return None

    def capacity(self) -> dict[str, float]:
        """Return the queries per second that the shards could serve, and that one driver could."""
        work, layout, link = self.work, self.layout, self.link
        busy = sum(float(np.mean([self.service(phase, 1.0).mean() for _ in range(20)])) for phase in work.phases)
        driven = work.once
        for phase in work.phases:
            step = max(link.submit, phase.sent * layout.copies / layout.shards / link.speed)
            driven += phase.pack + layout.shards * (step + phase.take)
        if work.verify is not None:
            used = layout.shards * (1 - (1 - 1 / layout.shards) ** work.candidates)
            busy += float(np.mean([self.verification(work.verify).mean() for _ in range(20)]))
            driven += work.verify.pack + used * (link.submit + work.verify.take)
        return {"shards": self.free.shape[2] * layout.replicas / busy, "driver": 1 / driven}

    def percentiles(self, rate: float, queries: int) -> dict[str, float]:
        """Simulate queries; return p50, p95 and p99 in seconds without the first tenth, which finds empty queues."""
        seconds = self.run(rate, queries)[queries // 10 :]
        return {f"p{n}": float(np.percentile(seconds, n)) for n in (50, 95, 99)}
