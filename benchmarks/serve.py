"""`polyvoc serve` beside the library, under load, and its memory over many requests.

    python benchmarks/serve.py PHOTOGRAPHS --work FOLDER [--images 10000] [--cache FOLDER]

The index is that of `synthetic.py`, from the features of the real PHOTOGRAPHS; it is made once and kept in FOLDER. The queries are real files, enlarged or reduced to a long side of 1024 pixels. The server is a process of
its own with its default settings, the clients are another; only the searches in the library run in this one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import clients
from clients import Connection, Reply, Request, get, post
from endtoend import medians
from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.search.hits import Hits
from polyvoc.search.index import Index
from polyvoc.web.settings import Settings
from search import at_1024
from synthetic import synthetic_index

CLIENTS = (1, 4, 16, 64)
PAUSE = 0.02  # seconds before each search of a pair: threads of the previous one may still be spinning
START_SECONDS = 120
MIXED_CLIENTS = 4
SAMPLE = 250  # requests between two samples of the memory
KEPT = 64  # uploads that a server keeps for further searches: its memory is full only then
PICTURES = 60  # images whose thumbnails are requested


def log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


# --- the server


@contextmanager
def serving(index: Path, work: Path) -> Iterator[tuple[int, int]]:
    """Serve an index in a process of its own; yields its id and the port."""
    output = work / "serve.log"
    with output.open("wb") as out:
        command = [sys.executable, "-m", "polyvoc", "serve", str(index), "--port", "0"]
        server = subprocess.Popen(command, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"at http://[^ ]*:(\d+)/", output.read_text())) is None:
            assert server.poll() is None and time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        yield server.pid, int(found[1])
    finally:
        server.send_signal(signal.SIGINT)
        log(f"the server ended with {server.wait(60)}")


# --- one client beside the library


def overhead(pairs: int, library: Callable[[int], Hits], server: Callable[[int], Reply]) -> dict[str, Any]:
    """Milliseconds of the same search in the library and over HTTP, taking turns, and of what lies between."""
    timed: dict[str, list[float]] = {"library": [], "server": []}
    stages: dict[str, list[dict[str, float]]] = {"library": [], "server": []}
    for number in range(pairs):
        for name in ("library", "server") if number % 2 else ("server", "library"):
            time.sleep(PAUSE)
            begin = time.perf_counter()
            reply = library(number) if name == "library" else server(number)
            timed[name].append(1000 * (time.perf_counter() - begin))
            stages[name].append(json.loads(reply.body)["seconds"] if isinstance(reply, Reply) else reply.seconds)
    work = [1000 * sum(seconds.values()) for seconds in stages["server"]]
    return {
        "pairs": pairs,
        "library_ms": quantiles(timed["library"]),
        "server_ms": quantiles(timed["server"]),
        "overhead_ms": quantiles(np.subtract(timed["server"], timed["library"])),
        "outside_the_stages_ms": quantiles(np.subtract(timed["server"], work)),
        "stages_ms": {
            name: {stage: round(1000 * value, 3) for stage, value in medians(rows).items()} for name, rows in stages.items()
        },
        "pairs_ms": [[round(value, 3) for value in pair] for pair in zip(timed["library"], timed["server"], strict=True)],
    }


def beside_the_library(index: Index, port: int, queries: list[Path], ids: list[int], pairs: int) -> dict[str, Any]:
    connection, options = Connection(port), index.default_options
    uploads = [post("/search", query.read_bytes()) for query in queries]

    def send(request: Request) -> Reply:
        reply = connection.send(request)
        assert reply.status == 200, reply
        return reply

    def of(values: list[Any], number: int) -> Any:
        return values[number // 2 % len(values)]  # each in both orders

    def in_library(photos: list[Any]) -> Callable[[int], Hits]:
        return lambda number: index.search(of(photos, number), options)

    by_id = [post(f"/search?query={image}") for image in ids]
    kinds: dict[str, tuple[int, Callable[[int], Hits], Callable[[int], Reply]]] = {
        "by id": (2 * pairs, in_library(ids), lambda number: send(of(by_id, number))),
        "upload": (pairs, in_library(queries), lambda number: send(of(uploads, number))),
    }
    measured = {}
    for name, (count, library, server) in kinds.items():
        for number in range(0, 2 * len(queries), 2):  # compiles, and reads the files
            library(number), server(number)
        measured[name] = overhead(count, library, server)
        log(f"{name}: { {key: value for key, value in measured[name].items() if key != 'pairs_ms'} }")
    connection.close()
    return measured


def quantiles(values: list[float] | npt.NDArray[np.float64]) -> dict[str, float]:
    return {f"p{percent}": round(float(np.percentile(values, percent)), 3) for percent in (50, 95, 99)}


# --- many clients


def under_load(executor: Executor, port: int, requests: dict[str, list[Request]], enough: dict[str, int]) -> dict[str, Any]:
    """Requests per second and their times for each kind and number of clients."""
    measured: dict[str, Any] = {}
    for name, several in requests.items():
        measured[name] = {}
        for count in CLIENTS:
            reply = executor.submit(clients.load, port, several, count, enough[name]).result()
            measured[name][str(count)] = entry = {
                "answered": len(reply.answered),
                "seconds": round(reply.seconds, 3),
                "per_second": round(len(reply.answered) / reply.seconds, 2),
                "ms": quantiles([1000 * seconds for seconds in reply.answered]),
                "ms_with_waits": quantiles([1000 * seconds for seconds in reply.with_waits]),
                "busy": reply.busy,
                "failed": reply.failed,
                "client_ms": round(1000 * reply.client_seconds / (len(reply.answered) + reply.busy), 3),
            }
            log(f"{name}, {count} clients: {entry}")
    return measured


# --- memory


def memory(pid: int) -> dict[str, float]:
    """Return the megabytes that are the server's own, mapped from files, and of its decoder processes."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that ended meanwhile
            children += [int(child) for child in (task / "children").read_text().split()]
    own = resident(pid)
    return {
        "own": own["RssAnon"],
        "mapped": own["RssFile"],
        "decoders": sum(resident(child)["VmRSS"] for child in children),
        "largest_decoder": max(resident(child)["VmRSS"] for child in children),
    }


def resident(pid: int) -> dict[str, float]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) / 1000 for name in ("VmRSS", "RssAnon", "RssFile")}


def mixed(queries: list[Path], ids: list[int], count: int) -> list[Request]:
    """Return requests of every kind, wrong ones as well."""
    draw = random.Random(1)
    photos = [query.read_bytes() for query in queries]
    kinds: list[tuple[int, Callable[[], Request]]] = [
        (60, lambda: post(f"/search?query={draw.choice(ids)}")),
        (6, lambda: post(f"/search?query={draw.choice(ids)}&preset=best")),
        (8, lambda: post("/search", draw.choice(photos))),
        (2, lambda: post("/search?region=50,50,700,600", draw.choice(photos))),
        (3, lambda: post("/queries", draw.choice(photos), 201)),
        (8, lambda: get(f"/images/{draw.randint(1, PICTURES)}/thumbnail")),
        (5, lambda: get(f"/explain?image={draw.choice(ids)}&query={draw.choice(ids)}")),
        (2, lambda: get(f"/images?page={draw.randint(0, 50)}")),
        (1, lambda: post("/search", draw.choice(photos)[:3000], 422)),
        (1, lambda: post("/search", b"<svg></svg>", 422)),
        (1, lambda: post("/search?query=1&top=0", status=422)),
        (1, lambda: post("/search?query=99999999", status=404)),
        (1, lambda: get("/images/9999/thumbnail", 404)),
        (1, lambda: get("/queries/forgotten", 404)),
    ]
    chosen = draw.choices([make for _, make in kinds], [weight for weight, _ in kinds], k=count)
    return [make() for make in chosen]


def over_time(executor: Executor, pid: int, port: int, requests: list[Request], warm_up: list[Request]) -> dict[str, Any]:
    """Return the megabytes after every SAMPLE requests, and their growth."""

    failed: list[str] = []

    def send(several: list[Request]) -> dict[str, float]:
        reply = executor.submit(clients.load, port, several, MIXED_CLIENTS, len(several)).result()
        failed.extend(reply.failed)
        return memory(pid)

    begin = time.perf_counter()
    samples = [send(warm_up)]
    for first in range(0, len(requests), SAMPLE):
        samples.append(send(requests[first : first + SAMPLE]))
        log(f"memory after {first + SAMPLE} requests: {samples[-1]}")
    result: dict[str, Any] = {
        "requests": len(requests),
        "warm_up": len(warm_up),
        "seconds": round(time.perf_counter() - begin, 1),
        "failed": failed,
    }
    thousands = np.arange(len(samples)) * SAMPLE / 1000
    third = len(samples) // 3
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        result[name] = {
            "first_third_mb": round(float(np.mean(values[:third])), 2),
            "last_third_mb": round(float(np.mean(values[-third:])), 2),
            "mb_per_1000_requests": round(float(np.polyfit(thousands, values, 1)[0]), 3),
            "samples_mb": [round(value, 2) for value in values],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--uploads", type=int, default=200, help="replies for each number of clients")
    parser.add_argument("--searches", type=int, default=1_000, help="the same, by id")
    parser.add_argument("--mixed", type=int, default=5_000, help="requests over which the memory is measured")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    files = sorted(arguments.photographs.absolute().rglob("*.jpg"))
    path = arguments.work / f"serve-{arguments.images}.polyvoc"
    synthetic_index(path, files, arguments.images, arguments.cache)
    queries = [at_1024(file, arguments.work) for file in files[:: max(1, len(files) // arguments.queries)]]
    ids = random.Random(0).sample(range(1, arguments.images + 1), min(arguments.images, 1_000))
    started = os.getloadavg()
    index = Index.open(path)
    by_id = [post(f"/search?query={image}") for image in ids]
    uploads = [post("/search", query.read_bytes()) for query in queries]
    warm_up = [post("/queries", queries[n % len(queries)].read_bytes(), 201) for n in range(KEPT)]
    warm_up += [get(f"/images/{image}/thumbnail") for image in range(1, PICTURES + 1)] + mixed(queries, ids, 376)
    spawn = multiprocessing.get_context("spawn")
    with serving(path, arguments.work) as (pid, port), ProcessPoolExecutor(1, spawn) as executor:
        alone = beside_the_library(index, port, queries, ids, arguments.pairs)
        kinds, enough = {"by id": by_id, "upload": uploads}, {"by id": arguments.searches, "upload": arguments.uploads}
        loaded = under_load(executor, port, kinds, enough)
        watched = over_time(executor, pid, port, mixed(queries, ids, arguments.mixed), warm_up)
    settings = Settings(path)
    result = {
        "images": len(index),
        "features": sum(segment.n_features for segment in index.engine.segments),
        "settings": {"workers": settings.threads, "queue": settings.queue},
        "load_average_before": [round(value, 2) for value in started],
        "overhead": alone,
        "load": loaded,
        "memory": watched,
    }
    print(write_result("serve", result))


if __name__ == "__main__":
    main()
