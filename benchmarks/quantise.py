"""Finding the nearest words: faiss' indexes beside polyvoc's assigner, on real descriptors.

    python benchmarks/quantise.py PHOTOGRAPHS

PHOTOGRAPHS is a folder of photographs that the vocabularies were not trained on. Each number of threads is measured in
a process of its own, so that every library keeps to it. A query's time is the best of five; agreement is the share of descriptors
whose first word is the exact nearest one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from machine import write_result
from polyvoc.features.extract import extract_many
from polyvoc.options import FeatureOptions
from polyvoc.types import Features
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.vocabulary import Vocabulary, default_vocabularies

QUERY, MANY = 3_000, 100_000  # descriptors of one query, and of a large batch
Search = Callable[[np.ndarray], np.ndarray]  # float32 [n, dimension] -> words [n, vocabularies that it serves]


def read_descriptors(folder: Path, limit: int) -> np.ndarray:
    """Return up to `limit` descriptors of a folder's photographs."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
    rows, count = [], 0
    for _, result in extract_many(paths, FeatureOptions()):
        if isinstance(result, Features):
            rows.append(result.descriptors)
            count += len(result)
        if count >= limit:
            break
    return np.concatenate(rows)[:limit]


def faiss_index(description: str, words: np.ndarray, **settings: Any) -> Search:
    """Build a faiss index of one vocabulary by its factory name; settings go to the part that has them."""
    index = faiss.index_factory(words.shape[1], description)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.cp.niter, ivf.cp.max_points_per_centroid = 6, 100
    index.train(words)
    index.add(words)
    for name, value in settings.items():
        if name == "efSearch":
            index.hnsw.efSearch = value
        elif name == "nprobe":
            ivf.nprobe = value
        else:
            index.k_factor = value
    return lambda x: index.search(x, 1)[1]


def shared_coarse(vocabularies: Sequence[Vocabulary], cells: int, nprobe: int) -> Search:
    """Search K inverted files whose cells are the same: the cells of a descriptor are found once."""
    every = np.concatenate([v.centroids for v in vocabularies])
    quantizer = faiss.IndexFlatL2(every.shape[1])
    kmeans = faiss.Kmeans(every.shape[1], cells, niter=6, seed=1, max_points_per_centroid=40)
    kmeans.train(every)
    quantizer.add(kmeans.centroids)
    files = []
    for vocabulary in vocabularies:
        file = faiss.IndexIVFFlat(quantizer, every.shape[1], cells)
        file.train(vocabulary.centroids)
        file.add(vocabulary.centroids)
        file.nprobe = nprobe
        files.append(file)

    def search(x: np.ndarray) -> np.ndarray:
        distances, probed = quantizer.search(x, nprobe)
        return np.concatenate([file.search_preassigned(x, 1, probed, distances)[1] for file in files], axis=1)

    return search


def union_graph(vocabularies: Sequence[Vocabulary], ef: int, depth: int = 24) -> Search:
    """Search one graph over the words of all vocabularies, and take the first of each among the `depth` nearest."""
    index = faiss.index_factory(vocabularies[0].dimension, "HNSW32")
    index.hnsw.efSearch = ef
    index.add(np.concatenate([v.centroids for v in vocabularies]))
    starts = np.cumsum([0] + [v.size for v in vocabularies])

    def search(x: np.ndarray) -> np.ndarray:
        found = index.search(x, depth)[1]
        columns = []
        for first, last in pairwise(starts):
            inside = (found >= first) & (found < last)
            word = found[np.arange(len(found)), inside.argmax(axis=1)] - first
            columns.append(np.where(inside.any(axis=1), word, -1))
        return np.stack(columns, axis=1)

    return search


def candidates(vocabularies: Sequence[Vocabulary]) -> Iterator[tuple[str, Callable[[], Search]]]:
    """Yield every method by name, not yet built."""
    words = vocabularies[0].centroids

    def one(description: str, **settings: Any) -> tuple[str, Callable[[], Search]]:
        name = " ".join([description, *(f"{key}={value}" for key, value in settings.items())])
        return name, lambda: faiss_index(description, words, **settings)

    yield "polyvoc, 3 vocabularies", lambda: Assigner(vocabularies).assign
    yield "polyvoc, 1 vocabulary", lambda: Assigner(vocabularies[:1]).assign
    yield one("Flat")
    for factor in (1, 8, 32):
        yield one("PQ64x4fs,RFlat", k_factor=factor)
    for ef in (16, 32, 64, 128):
        yield one("HNSW32", efSearch=ef)
    for cells, probes in ((256, (16, 32)), (512, (32, 64))):
        for nprobe in probes:
            for kind in ("Flat", "SQfp16", "SQ8"):
                yield one(f"IVF{cells},{kind}", nprobe=nprobe)
            yield one(f"IVF{cells},PQ64x4fs,RFlat", nprobe=nprobe, k_factor=16)
    for cells, nprobe in ((512, 32), (512, 48), (1024, 64)):
        name = f"IVF{cells},Flat nprobe={nprobe}, coarse shared by 3 vocabularies"
        yield name, lambda c=cells, p=nprobe: shared_coarse(vocabularies, c, p)
    for ef in (48, 96):
        yield f"HNSW32 efSearch={ef}, union of 3 vocabularies", lambda e=ef: union_graph(vocabularies, e)


def measure(descriptors: np.ndarray, threads: int) -> list[dict[str, Any]]:
    """Time every method on one query and on a large batch."""
    faiss.omp_set_num_threads(threads)
    vocabularies = default_vocabularies(3)
    truth = np.concatenate([faiss_index("Flat", v.centroids)(descriptors) for v in vocabularies], axis=1)
    Assigner(vocabularies[:1]).assign(descriptors[:QUERY])  # loads the compiled kernels
    rows = []
    for name, build in candidates(vocabularies):
        started = time.perf_counter()
        search = build()
        built = time.perf_counter()
        words = search(descriptors)
        ended = time.perf_counter()
        kinds = words.shape[1]
        agreement = np.mean(words == truth[:, :kinds], axis=0)
        row = {
            "method": name,
            "threads": threads,
            "construction_s": round(built - started, 3),
            "us_query": round(best_time(search, descriptors[:QUERY]) / QUERY / kinds * 1e6, 2),
            "us_many": round((ended - built) / len(descriptors) / kinds * 1e6, 2),
            "agreement": [round(float(share), 4) for share in agreement],
        }
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def best_time(search: Search, descriptors: np.ndarray) -> float:
    """Return the shortest of five runs in seconds."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        search(descriptors)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--descriptors", type=Path, help=argparse.SUPPRESS)  # of the process that measures
    arguments = parser.parse_args()
    if arguments.descriptors is not None:
        print(json.dumps(measure(np.load(arguments.descriptors), arguments.threads[0])))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "descriptors.npy"
        descriptors = read_descriptors(arguments.photographs, MANY)
        np.save(path, descriptors)
        for threads in arguments.threads:
            limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
            command = [
                sys.executable,
                __file__,
                str(arguments.photographs),
                "--threads",
                str(threads),
                "--descriptors",
                str(path),
            ]
            if threads == 1 and hasattr(os, "sched_getaffinity"):
                command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
            run = subprocess.run(command, env=os.environ | limits, stdout=subprocess.PIPE, check=True)
            rows += json.loads(run.stdout)
    write_result(
        "quantise",
        {
            "load_average": [round(load, 2) for load in os.getloadavg()],
            "vocabularies": [v.fingerprint for v in default_vocabularies(3)],
            "unit": f"microseconds per descriptor and vocabulary; query: {QUERY} descriptors, many: {len(descriptors)}",
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
