"""Speed and size of the postings: build rate, bytes, and time per rule at 65,536 to 1,000,000 images.

    python benchmarks/engine.py PHOTOGRAPHS --work FOLDER [--images 65536 262144 1000000]

The words are synthetic, their joint frequencies real: every feature of a synthetic image is a feature of one photograph of
PHOTOGRAPHS, quantised by the shipped vocabularies. A small collection repeats its pairs of words more than a large one would, so a
share of the features takes its second word from another real feature that has the same word in a third vocabulary; the share is set
so that the number of distinct pairs follows the growth (Heaps' law) measured on the photographs themselves. FOLDER needs about
25 bytes per feature and vocabulary (20 GB for a million images) and may be deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics as st
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc.experiments.paper.word_statistics import (
    FEATURES,
    QUERY_FEATURES,
    World,
    build,
    bytes_per_feature,
    fitted_world,
    heaps_law,
)
from polyvoc.features.extract import extract_many
from polyvoc.index.statistics import norms
from polyvoc.kernels.compiler import kernel
from polyvoc.options import FeatureOptions, SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.types import Features
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.vocabulary import default_vocabularies

RULES = ("b0", "b1", "b2", "bayes", "posterior", "bayes by image sets")
PLAIN = SearchOptions(merge="posterior", burstiness="none", sets="feature", verify=0)


# ------------------------------------------------------------------------------------------------ real words


def real_words(photographs: Path, work: Path) -> dict[str, np.ndarray]:
    """Return words and signatures of real photographs in three vocabularies, cached in the work folder."""
    cache = work / "words.npz"
    if not cache.exists():
        quantiser = Quantiser([one.shortened(64) for one in default_vocabularies(3)])
        words, signatures, counts = [], [], []
        paths = sorted(path for path in photographs.rglob("*") if path.suffix.lower() == ".jpg")
        for _, found in extract_many(paths, FeatureOptions(max_features=1000)):
            if isinstance(found, Features):
                of_image = quantiser.quantise(found.descriptors)
                words.append(of_image[0].astype(np.uint16))
                signatures.append(of_image[1])
                counts.append(len(found))
        np.savez(cache, words=np.concatenate(words), signatures=np.concatenate(signatures), counts=np.array(counts))
    with np.load(cache) as stored:
        return {name: stored[name] for name in stored.files}


# ------------------------------------------------------------------------------------------------ timing


@kernel
def scatter_add(numbers, starts, postings, scores):
    """Add 1 to the image of every posting of the lists: the lower bound of voting."""
    visited = 0
    for number in numbers:
        first, last = np.int64(starts[number]), np.int64(starts[number + 1])
        visited += last - first
        for p in range(first, last):
            scores[postings[p]] += np.float32(1)
    return visited


def bare(engine: Engine, numbers: np.ndarray) -> int:
    """Scatter-add the lists of a query over all segments, on one thread; return the number of postings."""
    visited = 0
    for segment in engine.segments:
        scores = np.zeros(segment.n_images, np.float32)
        visited += scatter_add(numbers, segment.arrays["starts"], segment.arrays["postings"], scores)
    return visited


def seconds_of(function: Any) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def time_rules(engine: Engine, queries: list[tuple[np.ndarray, np.ndarray]], repeats: int, hamming: bool) -> dict[str, Any]:
    """Return the seconds of every rule, with and without signatures, on one and two threads, beside bare scatter-adds; interleaved."""
    samples: dict[str, list[float]] = {}
    postings, distinct = [], []
    for repeat in range(repeats + 1):
        for words, signatures in queries:
            plain = engine.query(words, None, engine.plan(replace(PLAIN, merge="b1")))
            named = np.sort(plain.numbers.ravel())
            once = np.unique(named)
            jobs = {"bare, every list as often as named, 1 thread": lambda named=named: bare(engine, named),
                    "bare, every list once, 1 thread": lambda once=once: bare(engine, once)}  # fmt: skip
            for threads in (1, 2):
                for merge in RULES:
                    for threshold in (None, 24) if hamming and merge in ("b1", "bayes", "posterior") else (None,):
                        rule, by_images = merge.split()[0], "image" in merge
                        options = replace(PLAIN, merge=rule, hamming=threshold, sets="image" if by_images else "feature")
                        plan = engine.plan(options)
                        query = engine.query(words, signatures, plan)
                        name = f"{merge}{' + signatures' if threshold else ''}, {threads} thread{'s' * (threads > 1)}"
                        jobs[name] = lambda query=query, plan=plan, t=threads: engine.scores(query, plan, t)
            for name, job in jobs.items():
                seconds = seconds_of(job)
                if repeat:  # the first round warms the page cache
                    samples.setdefault(name, []).append(seconds)
            postings.append(bare(engine, named))
            distinct.append(bare(engine, once))
    return {"median_seconds": {name: st.median(values) for name, values in samples.items()}, "seconds": samples,
            "postings_per_query": st.mean(postings), "distinct_postings_per_query": st.mean(distinct)}  # fmt: skip


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """Return ratios of medians of one run."""
    median = result["median_seconds"]
    one = "{}, 1 thread".format
    named = {
        "bayes / b1": median[one("bayes")] / median[one("b1")],
        "posterior / b1": median[one("posterior")] / median[one("b1")],
        "bayes by image sets / b1": median[one("bayes by image sets")] / median[one("b1")],
        "bayes by image sets / b1, 2 threads": median["bayes by image sets, 2 threads"] / median["b1, 2 threads"],
        "b1 / bare, every list as often as named": median[one("b1")] / median["bare, every list as often as named, 1 thread"],
        "b1 / bare, every list once": median[one("b1")] / median["bare, every list once, 1 thread"],
        "b1: ns per posting": 1e9 * median[one("b1")] / result["postings_per_query"],
        "bare: ns per posting": 1e9 * median["bare, every list as often as named, 1 thread"] / result["postings_per_query"],
        "2 threads: seconds of posterior": median["posterior, 2 threads"],
        "2 threads: seconds of bayes": median["bayes, 2 threads"],
        "2 threads: seconds of bayes by image sets": median["bayes by image sets, 2 threads"],
    }
    for rule in ("b1", "bayes", "posterior"):
        if one(f"{rule} + signatures") in median:
            named[f"{rule} with / without signatures"] = median[one(f"{rule} + signatures")] / median[one(rule)]
    return named


def all_norms(engine: Engine) -> list[np.ndarray]:
    """Return the norms of all images."""
    key = PLAIN.norm_key(len(engine.sizes))
    return [norms(segment, engine.statistics, key) for segment in engine.segments]


def private_memory() -> int:
    """Return the bytes of this process that are not mapped files."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_of_search(engine: Engine, query: tuple[np.ndarray, np.ndarray]) -> dict[str, int]:
    """Return private memory before and after ten searches, warm."""
    plan = engine.plan(PLAIN)
    prepared = engine.query(*query, plan)
    engine.best(prepared, plan, 10)
    before = private_memory()
    for _ in range(10):
        engine.best(prepared, plan, 10)
    return {"private_before": before, "private_after_10_searches": private_memory()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, nargs="+", default=[65_536, 262_144, 1_000_000])
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="keep the segments for another run")
    parser.add_argument("--build-only", action="store_true", help="make the segments, measure in another run")
    parser.add_argument("--name", default="engine")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    real = real_words(arguments.photographs, arguments.work)
    law = heaps_law(real["words"], np.random.default_rng(0))
    fitted = arguments.work / "world.json"
    if not fitted.exists():
        fitted.write_text(json.dumps(fitted_world(real, law)))
    fit = json.loads(fitted.read_text())
    world = World(real, fit["redrawn"])
    print("features", len(real["words"]), "Heaps", law, "fit", fit, flush=True)
    result: dict[str, Any] = {"photographs": len(real["counts"]), "real_features": len(real["words"]), "heaps": law,
                              "world": fit, "features_per_image": FEATURES, "query_features": QUERY_FEATURES, "sizes": {}}  # fmt: skip
    runs = [(n, 2) for n in arguments.images] + [(min(arguments.images), 3)]
    for n_images, k in runs:
        segments, rate = build(world, n_images, (20_000,) * k, arguments.work)
        if arguments.build_only:
            continue
        engine = Engine(segments, (20_000,) * k)
        queries = [world.query(k, seed) for seed in range(arguments.queries)]
        measured = time_rules(engine, queries, arguments.repeats, hamming=True)
        entry = {"build": rate, "bytes_per_feature": bytes_per_feature(engine), "ratios": ratios(measured), **measured,
                 "memory": memory_of_search(engine, queries[0])}  # fmt: skip
        entry["norms_seconds"] = seconds_of(lambda engine=engine: all_norms(engine))
        result["sizes"][f"{n_images} images, K={k}"] = entry
        print(n_images, k, rate, entry["bytes_per_feature"], entry["ratios"], entry["memory"], sep="\n  ", flush=True)
    if arguments.build_only:
        return
    print(write_result(arguments.name, result))
    if not arguments.keep:
        shutil.rmtree(arguments.work)


if __name__ == "__main__":
    main()
