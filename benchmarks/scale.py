"""The plan on paper to a billion images: sizes, latencies, rates and costs, from measured costs by simulation.

    python benchmarks/scale.py INDEX SEGMENTS [--measured results/ray.json]    measures, checks the model, makes the plan
    python benchmarks/scale.py                                                 the same with the costs measured last

INDEX: as `serve.py` makes it, for what a catalogue costs. SEGMENTS: a folder of segments, as `endtoend.py` makes it, for what scoring
costs. What no file of `results/` holds and nothing here measures is an assumption; all of those are options with a default.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import shardcosts
from machine import RESULTS, machine, write_result
from polyvoc.options import SearchOptions
from polyvoc.search.index import Index
from polyvoc.search.query import Query
from scalemodel import Assumptions, Case, bytes_of, cluster_of, kernel_seconds, machines_of, phase_of, postings, work_of
from simulation import capacity, summary

IMAGES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
FEATURES = (500, 1000)  # of an image, and of a query
WORDS, BITS = (20_000, 200_000, 1_000_000), (128, 64)
PER_MACHINE = (1, 2, 4, 8, 16, 32, 64)  # shards
HOURS = 730  # of a month
ONE_BY_ONE, BUSY = 400, 1500  # searches to simulate
REPLICAS = (
    "one replica",
    "two, as now",
    "two, hedged",
    "two, the same one for all shards, at random",
    "two, the same one for all shards, free first",
)
HEDGED = 0.2  # share of the capacity at which replicas and hedging are compared


def tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def stored(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


# --- the plan


def row(costs: dict[str, Any], case: Case, assumed: Assumptions) -> dict[str, Any]:
    """All that the plan says of one collection."""
    tried = {n: summary(cluster_of(costs, case, n, assumed), 0, 60)["p95"] for n in PER_MACHINE}
    per_machine = min(tried, key=lambda n: (tried[n], n))
    cluster = cluster_of(costs, case, per_machine, assumed)
    machines, able = machines_of(costs, case, assumed), capacity(cluster)
    rate = min(able.values())
    alone = summary(cluster_of(costs, case, per_machine, assumed), 0, ONE_BY_ONE)
    loaded = summary(cluster_of(costs, case, per_machine, assumed), assumed.load * rate, BUSY)
    memory, disk = bytes_of(costs, case)
    total = case.images * case.features
    month = machines * assumed.machine_hour * HOURS + total * disk / 1e9 * assumed.disk_month
    search = stored("search")
    per_core = search["index"]["photographs_per_second"] / search["machine"]["cores"]
    hours = case.images / per_core / assumed.cores / 3600  # of one machine
    network = cluster.layout.shards * sum(phase.sent + phase.received for phase in cluster.work.phases)
    assert cluster.work.verify is not None
    network += min(assumed.candidates, cluster.layout.shards) * (cluster.work.verify.sent + cluster.work.verify.received)
    return {
        **asdict(case), "memory_bytes": total * memory, "disk_bytes": total * disk, "bytes_per_feature": [memory, disk],
        "segments": case.segments, "machines": machines, "shards": cluster.layout.shards, "per_machine": per_machine,
        "postings_per_query": postings(costs, case, case.asking, total),
        "longest_lists": total / case.words, "core_seconds": core_seconds(costs, case),
        "network_bytes": network, "alone": alone, "loaded": loaded, "rate": able, "month": month,
        "per_thousand": 1000 * month / (HOURS * 3600 * assumed.load * rate),
        "build": {"machine_hours": hours, "hours": hours / machines, "cost": hours * assumed.machine_hour},
        "catalogue_bytes": case.images * costs["catalogue"]["file_bytes_per_image"],
        "all_shards_p95": {str(n): value for n, value in tried.items()},
    }  # fmt: skip


def core_seconds(costs: dict[str, Any], case: Case) -> float:
    """Seconds of one core that all segments take together for a query."""
    names = [name for name in costs["variants"][case.variant]["phases"] if name.startswith(case.rule)]
    return case.segments * sum(
        kernel_seconds(costs, case, name, case.asking, case.segment_features)
        + costs["variants"][case.variant]["phases"][name]["locked_per_segment"]
        for name in names
    )


def levers(costs: dict[str, Any], assumed: Assumptions) -> dict[str, dict[str, Any]]:
    """What would make a billion images cheaper to ask, one change at a time."""
    base = Case(IMAGES[-1], FEATURES[0], WORDS[0], BITS[0])
    changed = {
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
    return {name: row(costs, case, assumed) for name, case in changed.items()}


def tails(costs: dict[str, Any], assumed: Assumptions) -> list[dict[str, Any]]:
    """What waiting for the slowest of many costs, and what replicas and hedging would give; two shards per machine."""
    found = []
    for images in IMAGES[1:]:
        case = Case(images, FEATURES[0], WORDS[0], BITS[0])
        rate = HEDGED * min(capacity(cluster_of(costs, case, 2, assumed)).values())
        for name in REPLICAS:
            cluster = cluster_of(costs, case, 2, assumed, 1 if name == REPLICAS[0] else 2)
            single = cluster.service(cluster.work.phases[0], 1.0)
            cluster.together = {REPLICAS[3]: "random", REPLICAS[4]: "free"}.get(name, "")
            if name == REPLICAS[2]:  # later than 99 of 100 shards answer, whatever the query
                times = cluster.random.choice(single, 10_000) * cluster.random.choice(cluster.spread.queries, 10_000)
                cluster.patience = float(np.percentile(times + cluster.random.choice(cluster.link.calls, 10_000), 99))
            found.append({"images": images, "how": name, "shards": cluster.layout.shards, "rate": rate, "one_shard": float(np.median(single)),
                          **summary(cluster, rate, BUSY)})  # fmt: skip
    return found


# --- the check


def predicted(
    costs: dict[str, Any], rule: str, query: int, segments: list[float], shards: int | None, threads: int, verify: int
) -> float:
    """Seconds of a search on this machine: by the library (shards: None), or over Ray nodes that share its cores."""
    case = Case(0, 0, WORDS[0], BITS[0], "posterior" if rule == "posterior" else "likelihood")
    names = {"likelihood": ("likelihood: vote",), "posterior": ("posterior: count", "posterior: vote")}[case.rule]
    gain = costs["search"]["two_threads"] if min(threads, shards or threads) > 1 else 1.0
    phases = [[phase_of(costs, case, name, query, features) for features in segments] for name in names]
    seconds = costs["search"]["once"] + sum(one.segment + one.locked for phase in phases for one in phase) / gain
    seconds += verify * costs["search"]["candidate"] / gain
    if shards is None:
        return float(seconds)
    trip = float(np.median(costs["ray"]["round_trip"]))
    told = [phase[0] for phase in phases] + ([work_of(costs, case, query, 0, shards, Assumptions()).verify] if verify else [])
    for one in told:
        assert one is not None
        seconds += one.pack + trip + shards * (costs["ray"]["submit"] + one.take + one.fixed / min(shards, 2))
    return float(seconds)


def of_index(costs: dict[str, Any]) -> dict[str, Any]:
    """The same costs for the index that `ray.py` and `serve.py` ask: its lists, its near postings, its candidates."""
    changed = copy.deepcopy(costs)
    changed["spread"]["list_factors"] = [costs["index"]["list_factor"]]
    changed["search"]["candidate"] = costs["index"]["candidate"]
    fits = changed["variants"][f"{WORDS[0]} words, {BITS[0]} bits"]["phases"]
    times = costs["index"]["near_share"] / fits["likelihood: vote"]["near_share"]
    for fit in fits.values():
        fit["near_share"] *= times
    return changed


def alone(path: Path, searches: int = 50) -> dict[str, Any]:
    """Time whole local searches by images of an index, with nothing beside them; the ones that `ray.py` asks over Ray."""
    index = Index.open(path)
    ids = [row.image for row in index.images()]
    default = index.default_options
    rules = {"fast": index.preset("fast"), "default": default,
             "posterior": replace(default, merge="posterior", hamming=52, sigma=26.0, burstiness="none")}  # fmt: skip
    found: dict[str, Any] = {}
    for name, options in rules.items():
        asked = [index.asked(image, options) for image in ids[:: max(1, len(ids) // searches)][:searches]]
        found[name] = {"features": round(float(np.mean([len(query.words) for query in asked])))}
        for threads in (1, machine()["cores"]):
            found[name][str(threads)] = float(np.median([seconds_of(index, query, options, threads) for query in asked]))
    return found


def seconds_of(index: Index, query: Query, options: SearchOptions, threads: int) -> float:
    started = time.perf_counter()
    index.find(query, options, threads)
    return time.perf_counter() - started


def check(costs: dict[str, Any], measured: Path | None) -> list[dict[str, Any]]:
    """Predicted beside measured, of committed results and of searches over Ray."""
    rows: list[dict[str, Any]] = []

    def enter(what: str, source: str, told: float, seen: float) -> None:
        rows.append({"what": what, "source": source, "predicted": told, "measured": seen, "ratio": told / seen})

    end, cores = stored("endtoend"), machine()["cores"]
    parts = [end["features"] / 8] * 8
    for name, threads in (("1 thread", 1), ("all threads", cores)):
        seen = end["verification_median_seconds"][name]
        told = predicted(costs, "likelihood", 3000, parts, None, threads, 0)
        enter(f"{end['images']:,} images, 3,000 query features, scores, {name}", "endtoend.json", told, seen["score"])
    told = 200 * costs["search"]["candidate"]
    enter(
        "verifying 200 candidates, 1 thread",
        "endtoend.json",
        told,
        end["verification_median_seconds"]["1 thread"]["verify 200"],
    )
    serve, costs = stored("serve"), of_index(costs)
    query = round(serve["features"] / serve["images"])
    told = predicted(costs, "likelihood", query, [serve["features"] / 4] * 4, None, cores, 100)
    enter(
        f"{serve['images']:,} images, {query} query features, default",
        "serve.json",
        told,
        serve["overhead"]["by id"]["stages_ms"]["library"]["score"] / 1e3,
    )
    parts = [serve["features"] / 4] * 4
    for rule, verify in (("fast", 0), ("default", 100), ("posterior", 100)):
        seen = costs["alone"][rule]
        for threads in (1, cores):
            told = predicted(costs, rule, seen["features"], parts, None, threads, verify)
            what = f"{serve['images']:,} images, {seen['features']} query features, {rule}, {threads} threads"
            enter(what.replace("1 threads", "1 thread"), "this run", told, seen[str(threads)])
    if measured is not None and measured.exists():
        check_ray(costs, json.loads(measured.read_text(encoding="utf-8"))["serving"], cores, enter)
    return rows


def check_ray(costs: dict[str, Any], seen: dict[str, Any], cores: int, enter: Any) -> None:
    parts = [seen["features"] / seen["segments"]] * seen["segments"]
    for rule, verify in (("fast", 0), ("default", 100), ("posterior", 100)):
        for shards, entry in seen["shards"].items():
            query, milliseconds = entry[rule]["features"], entry[rule]["milliseconds"]
            if shards == "1":
                told = predicted(costs, rule, query, parts, None, 1, verify)
                enter(
                    f"{seen['images']:,} images, {query} query features, {rule}, local, 1 thread",
                    "ray.json",
                    told,
                    milliseconds["one_thread"] / 1e3,
                )
                told = predicted(costs, rule, query, parts, None, cores, verify)
                enter(f"the same, {cores} threads", "ray.json", told, milliseconds["local"] / 1e3)
            told = predicted(costs, rule, query, parts, int(shards), cores, verify)
            enter(f"the same, Ray, {shards} shards", "ray.json", told, milliseconds["ray"] / 1e3)


# --- the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path, nargs="?")
    parser.add_argument("segments", type=Path, nargs="?")
    parser.add_argument("--measured", type=Path, default=RESULTS / "ray.json", help="a result of benchmarks/ray.py")
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    for field in fields(Assumptions):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    given = parser.parse_args()
    assumed = Assumptions(**{field.name: getattr(given, field.name) for field in fields(Assumptions)})
    if given.index is None:
        costs = stored("scale")["costs"]
    else:
        costs = {
            "measured_on": machine(),
            "load_average": os.getloadavg()[0],
            "alone": alone(given.index),
            **shardcosts.measure(given.index, given.segments, given.queries, given.repeats, tell),
        }
    cases = [
        Case(images, features, words, bits) for images in IMAGES for features in FEATURES for words in WORDS for bits in BITS
    ]
    cases += [Case(images, features, WORDS[0], BITS[0], "posterior") for images in IMAGES for features in FEATURES]
    rows = [row(costs, case, assumed) for case in cases]
    tell("the plan is made")
    ray = json.loads(given.measured.read_text(encoding="utf-8")) if given.measured.exists() else {}
    result = {
        "ray_measured_on": ray.get("machine"),
        "ray_is_kept": given.measured.exists() and given.measured.resolve() == (RESULTS / "ray.json").resolve(),
        "assumptions": asdict(assumed),
        "check": check(costs, given.measured),
        "plan": rows,
        "levers": levers(costs, assumed),
        "tails": tails(costs, assumed),
        "costs": costs,
    }
    for entry in result["check"]:
        tell(
            f"{entry['what']}: predicted {entry['predicted']:.4f}, measured {entry['measured']:.4f}, ratio {entry['ratio']:.2f}"
        )
    print(write_result("scale", result))


if __name__ == "__main__":
    # Ray is imported later: once its neighbours are imported, the folder of this file, with its ray.py, must not stand before it.
    sys.path = [path for path in sys.path if Path(path).absolute() != Path(__file__).absolute().parent]
    main()
