"""What does a cluster cost, and what does it give? Searches over Ray beside the local index, and the rate of building.

    python benchmarks/ray.py INDEX PHOTOGRAPHS [--images 300] [--searches 60]

INDEX: of several segments, such as the one that `serve.py` makes up. Its own images ask, in turn of the local index and of the same index
held by a cluster of two Ray nodes on this machine, one core each, which therefore share the cores that the local index has for itself.
PHOTOGRAPHS: some of them are indexed anew: by the local writer, and by a cluster of one and of two workers.
"""

from __future__ import annotations

import argparse
import json
import statistics as st
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import write_result
from polyvoc.cluster.build import RayWorkers
from polyvoc.cluster.connect import connect
from polyvoc.cluster.shards import PIECE, RayShards, ReplicaSet, open_index
from polyvoc.index.writer import IndexWriter
from polyvoc.options import ClusterOptions, SearchOptions
from polyvoc.search.index import Index
from polyvoc.storage.folders import list_photographs

STORE = 200 << 20  # bytes of a node's object store
SHARDS = (1, 2, 4)
PAUSE = 0.02  # seconds before each search: threads of the one before may still be spinning


def tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Start Ray nodes with one core each, and connect to them; gives their address."""
    from ray.cluster_utils import Cluster

    settings = {"num_cpus": 1, "object_store_memory": STORE}
    made = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
    for _ in range(nodes - 1):
        made.add_node(**settings)
    made.wait_for_nodes()
    ray = connect(made.address)
    try:
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


class Watch:
    """Records what a replica set sends and receives, and how long each fan-out takes."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self.sent = self.received = 0
        self.fan_outs: list[float] = []
        self._gather, self._get = replicas.gather, replicas.get
        replicas.gather, replicas.get = self.gather, self.get  # type: ignore[method-assign]

    def gather(self, snapshot: Any, calls: dict[int, bytes | None], pieces: list[bytes], require_all: bool) -> dict[int, Any]:
        self.sent += sum(len(own or b"") + sum(map(len, pieces)) for own in calls.values())
        started = time.perf_counter()
        answers = self._gather(snapshot, calls, pieces, require_all)
        self.fan_outs.append(time.perf_counter() - started)
        return answers

    def get(self, reference: Any) -> Any:
        content = self._get(reference)
        self.received += len(content)
        return content

    def clear(self) -> None:
        self.sent = self.received = 0
        self.fan_outs = []


def rules(index: Index) -> dict[str, SearchOptions]:
    """Give what is asked: one phase and no geometry, one phase and geometry, both phases and geometry, and all twice."""
    default = index.default_options
    return {
        "fast": index.preset("fast"),
        "default": default,
        "posterior": replace(default, merge="posterior", hamming=52, sigma=26.0, burstiness="none"),
        "best": index.preset("best"),
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    time.sleep(PAUSE)
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def compare(local: Index, far: Index, options: SearchOptions, asking: list[int]) -> dict[str, Any]:
    """Ask both in turn with the same images; the answers must be equal."""
    assert isinstance(far.engine.shards, RayShards)
    watch = Watch(far.engine.shards.replicas)
    asked = [local.asked(image, options) for image in asking]
    for query in asked[:3]:  # loads what is loaded once
        far.find(query, options)
    rows = []
    for query in asked:
        here, hits = timed(lambda query=query: local.find(query, options))
        one, _ = timed(lambda query=query: local.find(query, options, threads=1))
        watch.clear()
        there, same = timed(lambda query=query: far.find(query, options))
        assert same == hits and same.complete
        rows.append((here, one, there, watch.fan_outs, watch.sent, watch.received))
    most = max(len(row[3]) for row in rows)
    fan_outs = [1e3 * st.median(row[3][at] for row in rows if len(row[3]) > at) for at in range(most)]
    milliseconds = {
        name: round(1e3 * st.median(row[at] for row in rows), 2) for at, name in enumerate(("local", "one_thread", "ray"))
    }
    return {
        "milliseconds": milliseconds,
        "overhead": round(1e3 * st.median(row[2] - row[0] for row in rows), 2),
        "fan_outs": [round(value, 2) for value in fan_outs],
        "bytes_sent": round(st.mean(row[4] for row in rows)),
        "bytes_received": round(st.mean(row[5] for row in rows)),
        "features": round(st.mean(len(query.words) for query in asked)),
    }


def empty_call(far: Index, count: int = 200) -> float:
    """Give the milliseconds of a fan-out that asks for next to nothing."""
    from polyvoc.scoring.segments import find_image

    times = [timed(lambda: far.engine.shards.each(find_image, -1))[0] for _ in range(count)]
    return round(1e3 * st.median(times), 2)


class Counter:
    """An actor that counts the bytes it is sent."""

    def count(self, *pieces: bytes) -> int:
        return sum(map(len, pieces))


def transport(size: int = 130_000, count: int = 100) -> dict[str, Any]:
    """Give the milliseconds of a call to another node with a payload: in pieces along with it, or by the object store."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    import ray

    other = next(node["NodeID"] for node in ray.nodes() if node["NodeID"] != ray.get_runtime_context().get_node_id())
    actor = ray.remote(Counter).options(num_cpus=0, scheduling_strategy=On(other, soft=False)).remote()
    content = bytes(size)
    pieces = [content[start : start + PIECE] for start in range(0, size, PIECE)]
    ways = {
        "pieces": lambda: ray.get(actor.count.remote(*pieces)),
        "object_store": lambda: ray.get(actor.count.remote(ray.put(content))),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, send in ways.items():
            times[name].append(timed(send)[0])
    return {"bytes": size, **{name: round(1e3 * st.median(values), 2) for name, values in times.items()}}


def serving(path: Path, searches: int) -> dict[str, Any]:
    local = Index.open(path)
    ids = [row.image for row in local.images()]
    asking = ids[:: max(1, len(ids) // searches)][:searches]
    found: dict[str, Any] = {
        "images": len(local),
        "segments": len(local.engine.segments),
        "searches": len(asking),
        "shards": {},
    }
    found["features"] = sum(segment.n_features for segment in local.engine.segments)
    with cluster(2) as address:
        found["transport"] = transport()
        for shards in SHARDS:
            started = time.perf_counter()
            far = open_index(path, None, ClusterOptions(address, shards, 1, 60))
            entry: dict[str, Any] = {"open_seconds": round(time.perf_counter() - started, 2)}
            for name, options in rules(local).items():
                entry[name] = compare(local, far, options, asking)
                tell(f"{shards} shards, {name}: {json.dumps(entry[name])}")
            entry["empty_fan_out"] = empty_call(far)
            found["shards"][str(shards)] = entry
            del far
    return found


def building(files: list[Path], workers: int | None) -> dict[str, Any]:
    """Index photographs anew; `workers`: Ray nodes with one core each, None for the local writer."""
    with tempfile.TemporaryDirectory() as folder:
        if workers is None:
            build(Path(folder) / "first", files[:16], None)
            return build(Path(folder) / "index", files, None)
        with cluster(workers) as address:
            build(Path(folder) / "first", files[:16], address)  # workers are started, kernels and vocabularies loaded
            return build(Path(folder) / "index", files, address)


def build(path: Path, files: list[Path], ray: str | None) -> dict[str, Any]:
    started = time.perf_counter()
    with IndexWriter.open(path) as writer:
        report = writer.update(files, workers=RayWorkers(ray) if ray else None)
    seconds = time.perf_counter() - started
    assert report.added == len(files), report
    return {"seconds": round(seconds, 2), "photographs_per_second": round(len(files) / seconds, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--searches", type=int, default=60)
    given = parser.parse_args()
    files = [Path(path) for path, _ in list_photographs([given.photographs])][: given.images]
    for path in files:  # from here on the disk is no matter
        path.read_bytes()
    rates = {}
    for name, workers in (("local", None), ("ray, 1 worker", 1), ("ray, 2 workers", 2)):
        rates[name] = building(files, workers)
        tell(f"building, {name}: {json.dumps(rates[name])}")
    result = {"serving": serving(given.index, given.searches), "building": {"photographs": len(files), **rates}}
    print(write_result("ray", result))


if __name__ == "__main__":
    # This file is called as the library is: once its neighbours are imported, their folder must not stand before it.
    sys.path = [path for path in sys.path if Path(path).absolute() != Path(__file__).absolute().parent]
    main()
