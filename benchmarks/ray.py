"""Searches over Ray beside the local index, and the rate of distributed indexing.

    python benchmarks/ray.py INDEX PHOTOGRAPHS [--images 300] [--searches 60]

INDEX: of several segments, such as that of `synthetic.py`. Its own images are the queries, in turn to the local index and to the
same index held by a cluster of two Ray nodes on this machine, one core each, which share the cores that the local index has alone.
PHOTOGRAPHS: some of them are indexed by the local writer, and by a cluster of one and of two workers.
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
from unittest.mock import patch

import polyvoc
from machine import write_result
from polyvoc.cluster import shards
from polyvoc.cluster.build import RayWorkers
from polyvoc.cluster.connect import connect
from polyvoc.cluster.shards import PIECE
from polyvoc.index.writer import IndexWriter
from polyvoc.options import ClusterOptions, SearchOptions
from polyvoc.scoring.segments import Candidate, find_image
from polyvoc.search.index import Index
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query, query_of_image
from polyvoc.storage.folders import list_photographs

STORE = 200 << 20  # bytes of a node's object store
SHARDS = (1, 2, 4)
PAUSE = 0.02  # seconds before each search: threads of the previous one may still be spinning


def log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Start Ray nodes with one core each, and connect to them; yields their address."""
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
    """Records what fan-outs send and receive, and the time of each."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self.fan_outs: list[float] = []

    def clear(self) -> None:
        self.sent = self.received = 0
        self.fan_outs = []


@contextmanager
def watching(ray: Any) -> Iterator[Watch]:
    """Record all fan-outs; what goes by the object store is counted once."""
    watch, run, get, put = Watch(), shards._FanOut.run, shards.get_result, ray.put

    def timed_run(fan_out: Any) -> dict[int, Any]:
        shared = sum(len(piece) for piece in fan_out.pieces if isinstance(piece, bytes))
        watch.sent += sum(len(own or b"") + shared for own in fan_out.calls.values())
        started = time.perf_counter()
        replies: dict[int, Any] = run(fan_out)
        watch.fan_outs.append(time.perf_counter() - started)
        return replies

    def counted_get(library: Any, reference: Any) -> Any:
        content = get(library, reference)
        watch.received += len(content)
        return content

    def counted_put(content: bytes) -> Any:
        watch.sent += len(content)
        return put(content)

    with (
        patch.object(shards._FanOut, "run", timed_run),
        patch.object(shards, "get_result", counted_get),
        patch.object(ray, "put", counted_put),
    ):
        yield watch


def rules(index: Index) -> dict[str, SearchOptions]:
    """Return the searches: by codes, without and with verification; by words in two phases, verified; everything twice."""
    default = index.default_options
    return {
        "fast": index.preset("fast"),
        "default": default,
        "posterior": replace(default, merge="posterior", burstiness="none"),
        "best": index.preset("best"),
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    time.sleep(PAUSE)
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def stored_query(index: Index, image: int, options: SearchOptions) -> Query:
    row = index.image(image)
    (stored,) = index.engine.image_features([index.find(image)])
    return query_of_image(stored, options, index.coder, (row.width, row.height))


def ranking(candidates: list[Candidate]) -> list[tuple[int, float]]:
    return [(one.image, one.score) for one in candidates]


def compare(local: Index, remote: Index, options: SearchOptions, images: list[int]) -> dict[str, Any]:
    """Search both indexes in turn with the same images; the hits must be equal."""
    queries, coder = [stored_query(local, image, options) for image in images], local.coder
    for query in queries[:3]:  # loads what is loaded once
        search(remote.engine.session(), query, options, coder=coder)
    rows = []
    with watching(remote.engine.shards.replicas.ray) as watch:
        for query in queries:
            here, candidates = timed(lambda query=query: search(local.engine, query, options, coder=coder))
            one, _ = timed(lambda query=query: search(local.engine, query, options, threads=1, coder=coder))
            watch.clear()
            session = remote.engine.session()
            there, same = timed(lambda query=query, session=session: search(session, query, options, coder=coder))
            assert ranking(same) == ranking(candidates) and not session.shards.missing
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
        "features": round(st.mean(len(query) for query in queries)),
    }


def empty_call(remote: Index, count: int = 200) -> float:
    """Return the milliseconds of a fan-out with next to no work."""
    times = [timed(lambda: remote.engine.shards.each(find_image, -1))[0] for _ in range(count)]
    return round(1e3 * st.median(times), 2)


class Counter:
    """An actor that counts the bytes it receives."""

    def count(self, *pieces: bytes) -> int:
        return sum(map(len, pieces))


def transport(size: int = 130_000, count: int = 100) -> dict[str, Any]:
    """Return the milliseconds of a call to another node with a payload: in pieces along with it, or by the object store."""
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
    chosen = ids[:: max(1, len(ids) // searches)][:searches]
    found: dict[str, Any] = {
        "images": len(local),
        "segments": len(local.engine.segments),
        "searches": len(chosen),
        "shards": {},
    }
    found["features"] = sum(segment.n_features for segment in local.engine.segments)
    with cluster(2) as address:
        found["transport"] = transport()
        for count in SHARDS:
            started = time.perf_counter()
            remote = polyvoc.open(path, ray=ClusterOptions(address, shards=count, timeout=60))
            entry: dict[str, Any] = {"open_seconds": round(time.perf_counter() - started, 2)}
            for name, options in rules(local).items():
                entry[name] = compare(local, remote, options, chosen)
                log(f"{count} shards, {name}: {json.dumps(entry[name])}")
            entry["empty_fan_out"] = empty_call(remote)
            found["shards"][str(count)] = entry
            remote.close()
    return found


def building(files: list[Path], workers: int | None) -> dict[str, Any]:
    """Index photographs; `workers`: Ray nodes with one core each, None for the local writer."""
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
    for path in files:  # from here on they are in the page cache
        path.read_bytes()
    rates = {}
    for name, workers in (("local", None), ("ray, 1 worker", 1), ("ray, 2 workers", 2)):
        rates[name] = building(files, workers)
        log(f"building, {name}: {json.dumps(rates[name])}")
    result = {"serving": serving(given.index, given.searches), "building": {"photographs": len(files), **rates}}
    print(write_result("ray", result))


if __name__ == "__main__":
    # This file has the name of the library: its folder must not come first on the path when Ray is imported.
    sys.path = [path for path in sys.path if Path(path).absolute() != Path(__file__).absolute().parent]
    main()
