"""What a cluster does in a search, from measured costs: the sizes of a collection, its fan-outs, and who holds what."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyvoc.cluster.shards import INLINE
from polyvoc.index.commit import MAX_FEATURES
from polyvoc.index.segment import MAX_IMAGES
from simulation import Cluster, Layout, Link, Phase, Spread, Work

K = 3
SCORING = ("starts", "postings", "run_starts", "run_words", "run_lengths", "columns", "signatures")


@dataclass(frozen=True)
class Assumptions:
    """What is not measured: machines, network, prices. Prices are round numbers to reckon with, not anybody's offer."""

    cores: int = 64
    memory: float = 512e9  # bytes of a machine
    usable: float = 0.8  # of them, for what scoring reads
    bandwidth: float = 200e9  # bytes per second of a machine's memory
    link: float = 25e9 / 8  # bytes per second
    round_trip: float = 1e-4  # seconds
    disk_read: float = 1e-4  # seconds of one random read: places and words of a candidate lie on the disk
    machine_hour: float = 3.0  # dollars
    disk_month: float = 0.10  # dollars per GB and month
    load: float = 0.5  # share of the capacity that is used
    candidates: int = 100


@dataclass(frozen=True)
class Case:
    """A collection, and how it is indexed."""

    images: int
    features: int
    words: int
    bits: int
    rule: str = "likelihood"
    query: int = 0  # features of a query; 0: as many as an image has
    spare: int = 1  # times as many machines as it takes to hold it

    @property
    def asking(self) -> int:
        return self.query or self.features

    @property
    def variant(self) -> str:
        return f"{self.words} words, {self.bits} bits"

    @property
    def segment_features(self) -> int:
        """Features of a full segment: of 65,536 images, unless merging stops before."""
        return min(MAX_FEATURES, MAX_IMAGES * self.features)

    @property
    def segments(self) -> int:
        return math.ceil(self.images * self.features / self.segment_features)


def skew(costs: dict[str, Any]) -> float:
    """Postings of a query by those it had if all lists were equally long."""
    return float(np.mean(costs["spread"]["list_factors"]))


def postings(costs: dict[str, Any], case: Case, query: int, features: float) -> float:
    """Postings that a query of so many features names among so many features of a collection."""
    return query * K * features / case.words * skew(costs)


def bytes_of(costs: dict[str, Any], case: Case) -> tuple[float, float]:
    """Bytes per feature: of what scoring reads, and of all arrays. What a word takes is spread over a full segment."""
    entry = costs["variants"][case.variant]
    share = entry["features"] / case.segment_features
    per = {
        name: value * (share if name in ("starts", "run_starts", "documents") else 1)
        for name, value in entry["bytes_per_feature"].items()
    }
    return sum(per[name] for name in SCORING) + 4 / case.features, sum(per.values()) + 4 / case.features


def kernel_seconds(costs: dict[str, Any], case: Case, name: str, query: int, features: float) -> float:
    """Seconds of one segment with so many features, one thread."""
    fit = costs["variants"][case.variant]["phases"][name]
    named = postings(costs, case, query, features)
    return float(
        fit["per_segment"] + fit["per_list"] * query * K + (fit["per_posting"] + fit["per_near"] * fit["near_share"]) * named
    )


def phase_of(costs: dict[str, Any], case: Case, name: str, query: int, features: float, replies: int = 1) -> Phase:
    """A fan-out, by the fit of its operation; of the machine's memory bandwidth, see `bounded`."""
    travel, search = costs["travelling"][name], costs["search"]
    joins = "vote" in name
    locked = costs["variants"][case.variant]["phases"][name]["locked_per_segment"] + joins * search["merge"]
    sent = travel["bytes"] + travel["bytes_per_feature"] * query
    take = drain(costs, replies) + travel["unpack"] * travel["reply_bytes"] / sent + joins * search["merge"]
    return Phase(
        kernel_seconds(costs, case, name, query, features),
        locked,
        travel["unpack"],
        0.0,
        sent,
        travel["reply_bytes"],
        travel["pack"],
        take,
    )


def drain(costs: dict[str, Any], replies: int) -> float:
    """Seconds of taking one answer of so many: between the measured numbers along a line."""
    measured = {int(n): seconds for n, seconds in costs["ray"]["drain"].items()}
    numbers, seconds = sorted(measured), [measured[n] for n in sorted(measured)]
    slope = (seconds[-1] - seconds[0]) / (numbers[-1] - numbers[0])
    beyond = max(0.0, slope) * max(0, replies - numbers[-1])
    return float(np.interp(replies, numbers, seconds)) + beyond


def work_of(costs: dict[str, Any], case: Case, query: int, features: float, shards: int, assumed: Assumptions) -> Work:
    """A search with verification of the best candidates."""
    names = {"likelihood": ("likelihood: vote",), "posterior": ("posterior: count", "posterior: vote")}[case.rule]
    travel = costs["travelling"]["verify"]
    sent = travel["bytes"] + travel["bytes_per_feature"] * query
    one = costs["search"]["candidate"] + 4 * assumed.disk_read
    verify = Phase(one, 0.0, travel["unpack"], 0.0, sent, travel["reply_bytes"], travel["pack"], drain(costs, shards))
    phases = tuple(phase_of(costs, case, name, query, features, shards) for name in names)
    return Work(costs["search"]["once"], phases, verify, assumed.candidates)


def link_of(costs: dict[str, Any], assumed: Assumptions) -> Link:
    calls = np.array(costs["ray"]["round_trip"][:100])  # without the very worst, which is one call
    return Link(assumed.link, assumed.round_trip, costs["ray"]["submit"], calls)


def spread_of(costs: dict[str, Any]) -> Spread:
    segments = np.array(costs["spread"]["fit"]["ratios"][:100])
    queries = np.array(costs["spread"]["list_factors"])
    return Spread(segments / segments.mean(), queries / queries.mean())


def cluster_of(costs: dict[str, Any], case: Case, per_machine: int, assumed: Assumptions, replicas: int = 1) -> Cluster:
    """A cluster that holds in memory what scoring reads."""
    machines = machines_of(costs, case, assumed)
    shards = min(machines * per_machine, case.segments)
    work = work_of(costs, case, case.asking, case.segment_features, shards, assumed)
    read = postings(costs, case, case.asking, case.images * case.features) * posting_bytes(case) / machines
    bounded = tuple(replace(phase, floor=read / assumed.bandwidth if "vote" in name else 0.0)
                    for phase, name in zip(work.phases, ("vote",) if len(work.phases) == 1 else ("count", "vote"), strict=True))  # fmt: skip
    sent = max(phase.sent for phase in work.phases)
    layout = Layout(
        shards, replicas, max(1.0, assumed.cores / per_machine), case.segments / shards, machines if sent > INLINE else shards
    )
    return Cluster(replace(work, phases=bounded), layout, link_of(costs, assumed), spread_of(costs))


def posting_bytes(case: Case) -> float:
    """Bytes that a scan reads per posting: signatures, and columns of the vocabularies beyond the second."""
    return case.bits / 8 + (K - 2) * (2 if case.words <= 1 << 16 else 4)


def machines_of(costs: dict[str, Any], case: Case, assumed: Assumptions) -> int:
    held = case.images * case.features * bytes_of(costs, case)[0]
    return case.spare * max(1, math.ceil(held / (assumed.memory * assumed.usable)))
