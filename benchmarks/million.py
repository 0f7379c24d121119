"""The default search at 65,536 to 1,000,000 images: seconds, nanoseconds per posting, bytes per feature, growth.

    python benchmarks/million.py TRAINING QUERIES --work FOLDER [--images 65536 262144 1000000]

Every image of the collection has 475 features of one photograph of TRAINING (drawn at random from all of its features), with
their real codes, words, positions and rests. Queries are the photographs of QUERIES, which are not among them. A search goes from
descriptors in memory to ranked hits. FOLDER needs 34 bytes per feature (16 GB for a million images) and may be deleted afterwards.
The floor is the time to read the codes and images of all visited lists once, in sequence, on as many threads.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics as st
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc.features.extract import extract_many
from polyvoc.index.segment import MAX_IMAGES, Batch, Geometry, Segment
from polyvoc.kernels.compiler import kernel
from polyvoc.options import CODE_CUT, FeatureOptions, SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.threads import thread_map
from polyvoc.types import FeatureCodes, Features
from polyvoc.vocabulary.codes import Coder
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary

FEATURES = 475
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi2"}
SCANNED = ("codes", "code_images", "code_starts")


def photographs(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg"})


def real_features(training: Path, work: Path, coder: Coder, least: int = FEATURES) -> dict[str, np.ndarray]:
    """Return codes and keypoints of the features of photographs, cached in the work folder."""
    cache = work / "features.npz"
    if not cache.exists():
        parts: list[tuple[np.ndarray, ...]] = []
        for _, found in extract_many(photographs(training), FeatureOptions()):
            if isinstance(found, Features) and len(found) >= least:
                codes = coder.encode(found.descriptors)
                places = np.column_stack([found.xy, found.scale, found.angle]).astype(np.float32)
                parts.append((codes.words.astype(np.uint16), codes.codes, codes.rest, places, np.array([len(found)])))
        names = ("words", "codes", "rest", "places", "counts")
        np.savez(cache, **dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True)))
    with np.load(cache) as stored:
        return {name: stored[name] for name in stored.files}


def draw_batch(real: dict[str, np.ndarray], first: int, n_images: int, n_features: int = FEATURES) -> Batch:
    """Return images of features drawn from single photographs."""
    random = np.random.default_rng([20, first])
    starts = np.concatenate([[0], np.cumsum(real["counts"])])
    photos = random.integers(0, len(real["counts"]), n_images)
    rows = np.empty((n_images, n_features), np.int64)
    for image, photo in enumerate(photos.tolist()):
        n = int(real["counts"][photo])
        rows[image] = starts[photo] + np.sort(random.permutation(n)[:n_features])
    flat = rows.ravel()
    feature_starts = np.arange(n_images + 1, dtype=np.int64) * n_features
    xy, scale, angle = real["places"][flat, :2], real["places"][flat, 2], real["places"][flat, 3]
    codes = FeatureCodes(real["words"][flat].astype(np.uint32), real["codes"][flat], real["rest"][flat])
    geometry = Geometry.of(xy, scale, angle, feature_starts)
    nothing = np.empty((len(flat), 0), np.int32)
    return Batch(np.arange(first, first + n_images), feature_starts, geometry, nothing, codes=codes)


def build(
    real: dict[str, np.ndarray], n_images: int, size: int, work: Path, n_features: int = FEATURES
) -> tuple[list[Segment], float]:
    """Build segments on disk, unless they exist, and open them mapped; also return features per second of building."""
    segments, features, seconds = [], 0, 0.0
    for first in range(0, n_images, MAX_IMAGES):
        n = min(MAX_IMAGES, n_images - first)
        path = work / f"{first:07d}-{n}"
        if not path.exists():
            batch = draw_batch(real, first, n, n_features)
            begin = time.perf_counter()
            segment = Segment.build(batch, (), size)
            segment.save(path)
            features, seconds = features + segment.n_features, seconds + time.perf_counter() - begin
            del batch, segment
        segments.append(Segment.open(path))
    return segments, features / seconds if seconds else 0.0


@kernel
def read_all(numbers, starts, codes, images):
    total = np.uint64(0)
    for number in numbers:
        for p in range(starts[number], starts[number + 1]):
            total += codes[0, p] ^ codes[1, p] ^ np.uint64(images[p])
    return total


def floor(engine: Engine, words: np.ndarray, threads: int) -> float:
    """Return the seconds to read all visited lists once."""
    numbers = np.unique(words[words >= 0])
    begin = time.perf_counter()
    thread_map(lambda s: read_all(numbers, *(s.arrays[name] for name in ("code_starts", "codes", "code_images"))),
               engine.segments, threads)  # fmt: skip
    return time.perf_counter() - begin


def visited(engine: Engine, words: np.ndarray) -> int:
    """Return the postings that a query compares, lists as often as they are visited."""
    chosen = words[words >= 0]
    return sum(int((s.arrays["code_starts"][chosen + 1].astype(np.int64) - s.arrays["code_starts"][chosen]).sum())
               for s in engine.segments)  # fmt: skip


def time_searches(engine: Engine, coder: Coder, queries: list[Features], repeats: int, assignments: int) -> dict[str, Any]:
    """Return medians of the stages of `--fast` and of the default search, warm, on all threads and on one."""
    samples: dict[str, list[float]] = {}
    postings, n_features, by_query = [], [], dict[int, list[float]]()
    for repeat in range(repeats + 1):
        for features in queries:
            for threads in (2, 1):
                own = Coder(coder.vocabulary, threads) if threads == 1 else coder
                begin = time.perf_counter()
                codes = own.query(features.descriptors, assignments, CODE_CUT)
                quantised = time.perf_counter()
                query = Query(codes, keypoints=features.keypoints)
                search(engine, query, fast(assignments), threads=threads)
                scored = time.perf_counter()
                search(engine, query, usual(assignments), threads=threads)
                verified = time.perf_counter()
                if repeat == 0:  # warms the page cache
                    continue
                for name, value in (("quantise", quantised - begin), ("score", scored - quantised),
                                    ("fast", scored - begin), ("default", verified - scored + quantised - begin)):  # fmt: skip
                    samples.setdefault(f"{name}, {threads} threads", []).append(value)
            if repeat:
                samples.setdefault("floor, 2 threads", []).append(floor(engine, codes.words, 2))
                by_query.setdefault(len(features), []).append(samples["fast, 2 threads"][-1])
                postings.append(visited(engine, codes.words))
                n_features.append(len(features))
    median = {name: st.median(values) for name, values in samples.items()}
    return {
        "median_seconds": median,
        "runs": len(postings),
        "query_features": st.mean(n_features),
        "seconds_by_query_features": {str(n): st.median(some) for n, some in sorted(by_query.items())},
        "postings": st.mean(postings),
        "ns_per_posting_1_thread": 1e9 * median["score, 1 threads"] / st.mean(postings),
        "score_over_floor": median["score, 2 threads"] / median["floor, 2 threads"],
    }


def fast(assignments: int) -> SearchOptions:
    return replace(preset("fast", 0, 128), assignments=assignments)


def usual(assignments: int) -> SearchOptions:
    return replace(preset("default", 0, 128), assignments=assignments)


def bytes_per_feature(engine: Engine) -> dict[str, float]:
    """Return the bytes of a feature in each array, in those that a scan reads, and in all."""
    features = sum(segment.n_features for segment in engine.segments)
    names = engine.segments[0].arrays
    parts = {name: sum(s.arrays[name].nbytes for s in engine.segments) / features for name in names}
    return {**parts, "scanned": sum(parts[name] for name in SCANNED), "all": sum(parts.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("training", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, nargs="+", default=[65_536, 262_144, 1_000_000])
    parser.add_argument("--features", type=int, default=FEATURES, help="of each image")
    parser.add_argument("--least-features", type=int, default=0, help="of a query")
    parser.add_argument("--n-queries", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--assignments", type=int, nargs="+", default=[10])
    parser.add_argument("--name", default="million")
    parser.add_argument("--keep", action="store_true", help="keep the segments for another run")
    parser.add_argument("--avx2", action="store_true", help="without AVX-512")
    arguments = parser.parse_args()
    if arguments.avx2 and not AVX2.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **AVX2})  # numba reads them when it is imported
    arguments.work.mkdir(parents=True, exist_ok=True)
    coder = Coder(default_fine_vocabulary())
    real = real_features(arguments.training, arguments.work, coder, arguments.features)
    every = [one for _, one in extract_many(photographs(arguments.queries), FeatureOptions()) if isinstance(one, Features)]
    every = [one for one in every if len(one) >= arguments.least_features]
    found = every[:: max(1, len(every) // arguments.n_queries)][: arguments.n_queries]
    result: dict[str, Any] = {"photographs": len(real["counts"]), "features_per_image": arguments.features, "sizes": {}}
    for n_images in arguments.images:
        segments, rate = build(real, n_images, coder.vocabulary.size, arguments.work, arguments.features)
        engine = Engine(segments, ())
        entry: dict[str, Any] = {"bytes_per_feature": bytes_per_feature(engine)}
        if rate:
            entry["built_features_per_second"] = rate
        for assignments in arguments.assignments:
            entry[f"{assignments} words"] = time_searches(engine, coder, found, arguments.repeats, assignments)
            print(n_images, assignments, entry[f"{assignments} words"], flush=True)
        print(n_images, entry["bytes_per_feature"], rate, flush=True)
        result["sizes"][str(n_images)] = entry
    print(write_result(arguments.name, result))
    if not arguments.keep:
        shutil.rmtree(arguments.work)


if __name__ == "__main__":
    main()
