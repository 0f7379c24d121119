"""The plan for a billion images: sizes, latencies, rates and costs, simulated from measured costs. Makes docs/scale.md's numbers.

    python benchmarks/scale.py [--machine-hour 5 ...]

The measured costs of a segment, a call of Ray and the catalogue are those in results/scale.json (`costs`); the scripts that
measured them fitted the engine of that time and are in the history of this repository (commit 692b9ce). Everything that was
not measured is an assumption, and an option with a default.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from machine import RESULTS, write_result
from polyvoc.index.commit import MAX_FEATURES
from polyvoc.index.segment import MAX_IMAGES
from simulation import Cluster, Layout, Link, Phase, Spread, Work

Costs = dict[str, Any]
K, WORDS = 3, 20_000  # vocabularies, and words of each
IMAGES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
FEATURES = (500, 1000)  # of an image, and of a query
PER_MACHINE = (1, 2, 4, 8, 16, 32, 64)  # shards
HOURS = 730  # of a month
ALONE, BUSY = 400, 1500  # queries to simulate
LOW_LOAD = 0.2  # share of the capacity at which replicas are compared
INLINE = 1 << 20  # bytes: a larger call goes through Ray's object store, once per machine (cluster/shards.py)
SCORING = ("starts", "postings", "run_starts", "run_words", "run_lengths", "columns", "signatures")  # arrays that scoring reads
PHASES = {"likelihood": ("likelihood: vote",), "posterior": ("posterior: count", "posterior: vote")}


@dataclass(frozen=True)
class Assumptions:
    """What is not measured: machines, network, prices. Prices are round numbers, not an offer of any provider."""

    cores: int = 64
    memory: float = 512e9  # bytes of a machine
    usable: float = 0.8  # of them, for what scoring reads
    bandwidth: float = 200e9  # bytes per second of a machine's memory
    link: float = 25e9 / 8  # bytes per second
    round_trip: float = 1e-4  # seconds
    disk_read: float = 1e-4  # seconds of one random read: a candidate's words and keypoints are on the disk
    machine_hour: float = 3.0  # dollars
    disk_month: float = 0.10  # dollars per GB and month
    load: float = 0.5  # share of the capacity that is used
    candidates: int = 100


@dataclass(frozen=True)
class Case:
    """A collection, and how it is indexed."""

    images: int
    features: int
    words: int = WORDS
    bits: int = 128
    rule: str = "likelihood"
    query: int = 0  # features of a query; 0: as many as an image has
    spare: int = 1  # times as many machines as it takes to hold it

    @property
    def query_features(self) -> int:
        return self.query or self.features

    @property
    def variant(self) -> str:
        return f"{self.words} words, {self.bits} bits"

    @property
    def total(self) -> int:
        return self.images * self.features

    @property
    def segment_features(self) -> int:
        """Features of a full segment: of 65,536 images, unless merging stops before."""
        return min(MAX_FEATURES, MAX_IMAGES * self.features)

    @property
    def segments(self) -> int:
        return math.ceil(self.total / self.segment_features)


# --- the model


def postings(costs: Costs, case: Case, query: int, features: float) -> float:
    """Return the postings of the lists that a query names; `list_factors` corrects for lists of unequal length."""
    return query * K * features / case.words * float(np.mean(costs["spread"]["list_factors"]))


def bytes_per_feature(costs: Costs, case: Case) -> tuple[float, float]:
    """Return the bytes of the arrays that scoring reads, and of all; arrays by word are spread over a full segment."""
    entry = costs["variants"][case.variant]
    share = entry["features"] / case.segment_features
    by_word = ("starts", "run_starts", "documents")
    per = {name: value * (share if name in by_word else 1) for name, value in entry["bytes_per_feature"].items()}
    return sum(per[name] for name in SCORING) + 4 / case.features, sum(per.values()) + 4 / case.features


def count_machines(costs: Costs, case: Case, assumed: Assumptions) -> int:
    memory = case.total * bytes_per_feature(costs, case)[0]
    return case.spare * max(1, math.ceil(memory / (assumed.memory * assumed.usable)))


def kernel_seconds(costs: Costs, case: Case, name: str, query: int, features: float) -> float:
    """Return the seconds of one segment with so many features, on one thread."""
    fit = costs["variants"][case.variant]["phases"][name]
    per_posting = fit["per_posting"] + fit["per_near"] * fit["near_share"]
    return float(fit["per_segment"] + fit["per_list"] * query * K + per_posting * postings(costs, case, query, features))


def phase(costs: Costs, case: Case, name: str, query: int, features: float, replies: int = 1) -> Phase:
    """Return a fan-out that scores; `floor`, the bandwidth of the memory, is set by `cluster`."""
    travel, merge = costs["travelling"][name], ("vote" in name) * costs["search"]["merge"]
    locked = costs["variants"][case.variant]["phases"][name]["locked_per_segment"] + merge
    sent = travel["bytes"] + travel["bytes_per_feature"] * query
    take = take_seconds(costs, replies) + travel["unpack"] * travel["reply_bytes"] / sent + merge
    seconds = kernel_seconds(costs, case, name, query, features)
    return Phase(seconds, locked, travel["unpack"], 0.0, sent, travel["reply_bytes"], travel["pack"], take)


def verification(costs: Costs, query: int, shards: int, assumed: Assumptions) -> Phase:
    travel = costs["travelling"]["verify"]
    sent = travel["bytes"] + travel["bytes_per_feature"] * query
    candidate = costs["search"]["candidate"] + 4 * assumed.disk_read
    take = take_seconds(costs, shards)
    return Phase(candidate, 0.0, travel["unpack"], 0.0, sent, travel["reply_bytes"], travel["pack"], take)


def take_seconds(costs: Costs, replies: int) -> float:
    """Return the seconds of taking one reply of so many: interpolated, and extrapolated along a line."""
    measured = {int(n): seconds for n, seconds in costs["ray"]["drain"].items()}
    numbers, seconds = sorted(measured), [measured[n] for n in sorted(measured)]
    slope = (seconds[-1] - seconds[0]) / (numbers[-1] - numbers[0])
    return float(np.interp(replies, numbers, seconds)) + max(0.0, slope) * max(0, replies - numbers[-1])


def cluster(
    costs: Costs, case: Case, per_machine: int, assumed: Assumptions, replicas: int = 1, same_replica: bool = False
) -> Cluster:
    """Return the simulated cluster that holds in memory what scoring reads."""
    machines, query = count_machines(costs, case, assumed), case.query_features
    shards = min(machines * per_machine, case.segments)
    posting_bytes = case.bits / 8 + (K - 2) * (2 if case.words <= 1 << 16 else 4)  # signatures, and columns beyond K = 2
    floor = postings(costs, case, query, case.total) * posting_bytes / machines / assumed.bandwidth
    phases = tuple(
        replace(phase(costs, case, name, query, case.segment_features, shards), floor=floor if "vote" in name else 0.0)
        for name in PHASES[case.rule]
    )
    work = Work(costs["search"]["once"], phases, verification(costs, query, shards, assumed), assumed.candidates)
    copies = machines if max(one.sent for one in phases) > INLINE else shards
    layout = Layout(shards, replicas, max(1.0, assumed.cores / per_machine), case.segments / shards, copies)
    calls = np.array(costs["ray"]["round_trip"][:100])  # without the very worst, which is one call
    link = Link(assumed.link, assumed.round_trip, costs["ray"]["submit"], calls)
    segments, queries = np.array(costs["spread"]["fit"]["ratios"][:100]), np.array(costs["spread"]["list_factors"])
    spread = Spread(segments / segments.mean(), queries / queries.mean())
    return Cluster(work, layout, link, spread, same_replica)


# --- the plan


def plan(costs: Costs, case: Case, assumed: Assumptions) -> dict[str, Any]:
    """Return all numbers of the plan for one collection."""
    tried = {n: cluster(costs, case, n, assumed).percentiles(0, 60)["p95"] for n in PER_MACHINE}
    per_machine = min(tried, key=lambda n: (tried[n], n))
    chosen = cluster(costs, case, per_machine, assumed)
    rates, work, shards = chosen.capacity(), chosen.work, chosen.layout.shards
    rate, machines = min(rates.values()), count_machines(costs, case, assumed)
    memory, disk = bytes_per_feature(costs, case)
    month = machines * assumed.machine_hour * HOURS + case.total * disk / 1e9 * assumed.disk_month
    search = stored("search")
    per_core = search["index"]["photographs_per_second"] / search["machine"]["cores"]
    hours = case.images / per_core / assumed.cores / 3600  # of one machine
    assert work.verify is not None
    network = shards * sum(one.sent + one.received for one in work.phases)
    network += min(assumed.candidates, shards) * (work.verify.sent + work.verify.received)
    return {
        **asdict(case), "memory_bytes": case.total * memory, "disk_bytes": case.total * disk, "bytes_per_feature": [memory, disk],
        "segments": case.segments, "machines": machines, "shards": shards, "per_machine": per_machine,
        "postings_per_query": postings(costs, case, case.query_features, case.total), "longest_lists": case.total / case.words,
        "core_seconds": core_seconds(costs, case), "network_bytes": network,
        "alone": cluster(costs, case, per_machine, assumed).percentiles(0, ALONE),
        "loaded": cluster(costs, case, per_machine, assumed).percentiles(assumed.load * rate, BUSY),
        "rate": rates, "month": month, "per_thousand": 1000 * month / (HOURS * 3600 * assumed.load * rate),
        "build": {"machine_hours": hours, "hours": hours / machines, "cost": hours * assumed.machine_hour},
        "catalogue_bytes": case.images * costs["catalogue"]["file_bytes_per_image"],
        "all_shards_p95": {str(n): value for n, value in tried.items()},
    }  # fmt: skip


def core_seconds(costs: Costs, case: Case) -> float:
    """Return the seconds of one core that all segments together take for a query."""
    fits = costs["variants"][case.variant]["phases"]
    return case.segments * sum(
        kernel_seconds(costs, case, name, case.query_features, case.segment_features) + fits[name]["locked_per_segment"]
        for name in fits
        if name in PHASES[case.rule]
    )


def levers(costs: Costs, assumed: Assumptions) -> dict[str, dict[str, Any]]:
    """Return the plan for a billion images with one change at a time."""
    base = Case(IMAGES[-1], FEATURES[0])
    cases = {
        "as planned": base,
        "a query of 3,000 features": replace(base, query=3000),
        "a query of 250 features": replace(base, query=250),
        "signatures of 64 bits": replace(base, bits=64),
        "vocabularies of 200,000 words": replace(base, words=200_000),
        "vocabularies of 1,000,000 words": replace(base, words=1_000_000),
        "twice as many machines": replace(base, spare=2),
        "four times as many machines": replace(base, spare=4),
        "the rule `posterior` with signatures": replace(base, rule="posterior"),
    }
    return {name: plan(costs, case, assumed) for name, case in cases.items()}


def tails(costs: Costs, assumed: Assumptions) -> list[dict[str, Any]]:
    """Return what waiting for the slowest shard costs, and what replicas give; two shards per machine."""
    ways = {"one replica": (1, False), "two, as now": (2, False), "two, the same one for all shards, free first": (2, True)}
    rows = []
    for images in IMAGES[1:]:
        case = Case(images, FEATURES[0])
        rate = LOW_LOAD * min(cluster(costs, case, 2, assumed).capacity().values())
        for name, (replicas, same) in ways.items():
            simulated = cluster(costs, case, 2, assumed, replicas, same)
            one_shard = float(np.median(simulated.service(simulated.work.phases[0], 1.0)))
            rows.append({"images": images, "how": name, "shards": simulated.layout.shards, "rate": rate, "one_shard": one_shard,
                         **simulated.percentiles(rate, BUSY)})  # fmt: skip
    return rows


# --- the check


def predicted(
    costs: Costs, rule: str, query: int, segments: list[float], shards: int | None, threads: int, verify: int
) -> float:
    """Return the seconds of a search on this machine: by the library (shards: None), or over Ray nodes that share its cores."""
    case = Case(0, 0, rule="posterior" if rule == "posterior" else "likelihood")
    gain = costs["search"]["two_threads"] if min(threads, shards or threads) > 1 else 1.0
    phases = [[phase(costs, case, name, query, features) for features in segments] for name in PHASES[case.rule]]
    seconds = costs["search"]["once"] + sum(one.segment + one.locked for each in phases for one in each) / gain
    seconds += verify * costs["search"]["candidate"] / gain
    if shards is None:
        return float(seconds)
    trip = float(np.median(costs["ray"]["round_trip"]))
    calls = [each[0] for each in phases] + ([verification(costs, query, shards, Assumptions())] if verify else [])
    for one in calls:
        seconds += one.pack + trip + shards * (costs["ray"]["submit"] + one.take + one.fixed / min(shards, 2))
    return float(seconds)


def index_costs(costs: Costs) -> Costs:
    """Return the costs with the list lengths, near postings and candidates of the index that ray.py and serve.py search."""
    changed = copy.deepcopy(costs)
    changed["spread"]["list_factors"] = [costs["index"]["list_factor"]]
    changed["search"]["candidate"] = costs["index"]["candidate"]
    fits = changed["variants"][Case(0, 0).variant]["phases"]
    times = costs["index"]["near_share"] / fits["likelihood: vote"]["near_share"]
    for fit in fits.values():
        fit["near_share"] *= times
    return changed


def check(costs: Costs) -> list[dict[str, Any]]:
    """Return predicted beside measured times, of the results of other benchmarks."""
    rows: list[dict[str, Any]] = []

    def enter(what: str, source: str, prediction: float, seconds: float) -> None:
        row = {"what": what, "source": source, "predicted": prediction, "measured": seconds, "ratio": prediction / seconds}
        rows.append(row)

    end, serve, cores = stored("endtoend"), stored("serve"), costs["measured_on"]["cores"]
    measured, parts = end["verification_median_seconds"], [end["features"] / 8] * 8
    for name, threads in (("1 thread", 1), ("all threads", cores)):
        what = f"{end['images']:,} images, 3,000 query features, scores, {name}"
        prediction = predicted(costs, "likelihood", 3000, parts, None, threads, 0)
        enter(what, "endtoend.json", prediction, measured[name]["score"])
    prediction = 200 * costs["search"]["candidate"]
    enter("verifying 200 candidates, 1 thread", "endtoend.json", prediction, measured["1 thread"]["verify 200"])
    costs, parts, query = index_costs(costs), [serve["features"] / 4] * 4, round(serve["features"] / serve["images"])
    prediction = predicted(costs, "likelihood", query, parts, None, cores, 100)
    seconds = serve["overhead"]["by id"]["stages_ms"]["library"]["score"] / 1e3
    enter(f"{serve['images']:,} images, {query} query features, default", "serve.json", prediction, seconds)
    for rule, verify in (("fast", 0), ("default", 100), ("posterior", 100)):
        alone = costs["alone"][rule]
        for threads in (1, cores):
            what = (
                f"{serve['images']:,} images, {alone['features']} query features, {rule}, {threads} thread{'s' * (threads > 1)}"
            )
            prediction = predicted(costs, rule, alone["features"], parts, None, threads, verify)
            enter(what, "this run", prediction, alone[str(threads)])
    check_ray(costs, stored("ray")["serving"], cores, enter)
    return rows


def check_ray(costs: Costs, serving: dict[str, Any], cores: int, enter: Callable[..., None]) -> None:
    parts = [serving["features"] / serving["segments"]] * serving["segments"]
    for rule, verify in (("fast", 0), ("default", 100), ("posterior", 100)):
        for shards, entry in serving["shards"].items():
            query, milliseconds = entry[rule]["features"], entry[rule]["milliseconds"]
            ways = [(int(shards), cores, f"the same, Ray, {shards} shards", "ray")]
            if shards == "1":
                first = f"{serving['images']:,} images, {query} query features, {rule}, local, 1 thread"
                ways = [(None, 1, first, "one_thread"), (None, cores, f"the same, {cores} threads", "local"), *ways]
            for held, threads, what, name in ways:
                prediction = predicted(costs, rule, query, parts, held, threads, verify)
                enter(what, "ray.json", prediction, milliseconds[name] / 1e3)


# --- the command


def stored(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Assumptions):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    assumed, costs = Assumptions(**vars(parser.parse_args())), stored("scale")["costs"]
    cases = [Case(images, features, bits=bits) for images in IMAGES for features in FEATURES for bits in (128, 64)]
    result = {
        "assumptions": asdict(assumed),
        "check": check(costs),
        "plan": [plan(costs, case, assumed) for case in cases],
        "levers": levers(costs, assumed),
        "tails": tails(costs, assumed),
        "costs": costs,
    }
    print(write_result("scale", result))


if __name__ == "__main__":
    main()
