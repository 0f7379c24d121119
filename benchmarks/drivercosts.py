"""What does the driver of a cluster keep and do? A catalogue, and calls of Ray that do nothing; measured for `scale.py`."""

from __future__ import annotations

import os
import sqlite3
import statistics as st
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.cluster.holder import pack
from polyvoc.index.catalogue import FILE
from polyvoc.index.segment import Segment
from polyvoc.search.index import Index


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = work()
    return time.perf_counter() - begin, found


def catalogue(path: Path) -> dict[str, Any]:
    """Measure what the driver keeps and does per image, per segment and per hit."""
    file = path / FILE
    opening = [seconds_of(lambda: Index.open(path))[0] for _ in range(5)]
    index = Index.open(path)
    folders = [index.home.segment_folder(number) for number in index.home.catalogue.segments()]
    mapping = [seconds_of(lambda folder=folder: Segment.open(folder))[0] for folder in folders * 3]
    ids = [row.image for row in index.images()]
    lookups, _ = seconds_of(lambda: [index.home.catalogue.image(image) for image in ids[:: max(1, len(ids) // 500)]])
    sizes = st.median(seconds_of(index.home.catalogue.segment_sizes)[0] for _ in range(25)) / len(folders)
    listing, _ = seconds_of(lambda: sum(1 for _ in index.images()))
    tracemalloc.start()
    rows = list(index.images())
    row_bytes = tracemalloc.get_traced_memory()[0] / len(rows)
    tracemalloc.stop()
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        paths = database.execute("SELECT avg(length(path)) FROM images").fetchone()[0]
    return {
        "images": len(ids), "segments": len(folders), "file_bytes_per_image": file.stat().st_size / len(ids), "path_bytes": paths,
        "open_seconds": st.median(opening), "map_segment_seconds": st.median(mapping), "segment_row_seconds": sizes, "row_bytes_in_memory": row_bytes,
        "rows_per_second": len(ids) / listing, "lookup_seconds": lookups / len(ids[:: max(1, len(ids) // 500)]),
        "statistics_bytes": len(pack(index.engine.statistics)), "words": sum(index.engine.sizes), "cores": os.cpu_count(),
    }  # fmt: skip


def ray_calls(count: int = 400) -> dict[str, Any]:
    """Measure a call of an actor that does nothing: the whole way, and what of it is the driver's work."""
    from ray.cluster_utils import Cluster

    from polyvoc.cluster.connect import cluster_cores, connect, start_actor

    class Echo:  # here, so that it travels itself: workers do not know this file
        def say(self, content: bytes) -> bytes:
            return content[:3000]

    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    )
    ray = connect(made.address)
    try:
        actor = start_actor(ray, Echo, next(iter(cluster_cores(ray))))
        content = os.urandom(48 * 1024)
        ray.get([actor.say.remote(content) for _ in range(20)])
        trips = [seconds_of(lambda: ray.get(actor.say.remote(content)))[0] for _ in range(count)]
        submitting = []
        for _ in range(count):
            seconds, reference = seconds_of(lambda: actor.say.remote(content))
            ray.get(reference)
            submitting.append(seconds)
        drains = {str(n): drained(ray, actor, n) for n in (8, 32, 128, 512)}
        return {
            "round_trip": np.quantile(trips, np.linspace(0, 1, 101)).round(6).tolist(),
            "submit": st.median(submitting),
            "drain": drains,
        }
    finally:
        ray.shutdown()
        made.shutdown()


def drained(ray: Any, actor: Any, n: int) -> float:
    """Give the seconds that taking n answers takes per answer, when all have come: as a fan-out takes them, one by one."""
    under_way = {actor.say.remote(b""): at for at in range(n)}
    ray.wait(list(under_way), num_returns=n)
    begin = time.perf_counter()
    while under_way:
        for reference in ray.wait(list(under_way), num_returns=1)[0]:
            ray.get(reference)
            del under_way[reference]
    return (time.perf_counter() - begin) / n
