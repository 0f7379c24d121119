"""How fast are the postings? Build rate, bytes, and time per rule at 65,536 to 1,000,000 images.

    python benchmarks/engine.py PHOTOGRAPHS --work FOLDER [--images 65536 262144 1000000]

The words are synthetic, their joint frequencies real: every feature of a synthetic image is a feature of one photograph of
PHOTOGRAPHS, quantised by the shipped vocabularies. A small collection repeats its pairs of words more than a large one would, so a
share of the features takes its second word from another real feature that has the same word in a third vocabulary; the share is set
so that the number of distinct pairs follows the growth (Heaps' law) measured on the photographs themselves. FOLDER needs about
25 bytes per feature and vocabulary (20 GB for a million images) and may be deleted afterwards.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import shutil
import statistics as st
import time
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc import default_vocabularies
from polyvoc.engine import Engine
from polyvoc.features import extract_many
from polyvoc.kernels.compiler import kernel
from polyvoc.quantiser import Quantiser
from polyvoc.records import FeatureOptions, Features, SearchOptions
from polyvoc.segment import MAX_IMAGES, Batch, Segment

FEATURES = 475  # per image: 1.9 GB at 4 bytes per feature and 1 M images, as in the paper
QUERY_FEATURES = 3000
RULES = ("b0", "b1", "b2", "bayes", "posterior")


# ------------------------------------------------------------------------------------------------ real words


def real_words(photographs: Path, work: Path) -> dict[str, np.ndarray]:
    """Words and signatures of real photographs in three vocabularies, cached in the work folder."""
    cache = work / "words.npz"
    if not cache.exists():
        quantiser = Quantiser(default_vocabularies())
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


def distinct_pairs(words: np.ndarray) -> int:
    return len(np.unique(words[:, 0].astype(np.int64) << 32 | words[:, 1]))


def heaps_law(words: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Distinct pairs of the first two words against the number of features: pairs = factor * features^exponent."""
    shuffled = words[rng.permutation(len(words))]
    sizes = [len(words) // 16, len(words) // 8, len(words) // 4, len(words) // 2, len(words)]
    pairs = [distinct_pairs(shuffled[:n]) for n in sizes]
    exponent, offset = np.polyfit(np.log(sizes[-3:]), np.log(pairs[-3:]), 1)  # the tail, where it is going
    return {"features": sizes, "pairs": pairs, "exponent": float(exponent), "factor": float(np.exp(offset))}


class World:
    """A generator of synthetic images with real joint frequencies."""

    def __init__(self, real: dict[str, np.ndarray], redraw: float = 0.0) -> None:
        self.words, self.signatures, self.counts = real["words"], real["signatures"], real["counts"]
        self.starts = np.concatenate([[0], np.cumsum(self.counts)])
        self.redraw = redraw
        rng = np.random.default_rng(0)
        self.shuffled = np.concatenate([s + rng.permutation(n) for s, n in zip(self.starts, self.counts, strict=False)])
        self.by_third = np.argsort(self.words[:, 2], kind="stable")
        self.third_starts = np.searchsorted(self.words[self.by_third, 2], np.arange(self.words[:, 2].max() + 2))

    def draw(self, n_images: int, n_features: int, seed: int) -> np.ndarray:
        """Rows of real features [n_images * n_features]: each image takes its features from one photograph, none twice if it has
        as many."""
        rng = np.random.default_rng(seed)
        photographs = rng.integers(len(self.counts), size=n_images)
        offsets = rng.integers(self.counts[photographs])[:, None] + np.arange(n_features)
        return self.shuffled[(self.starts[photographs, None] + offsets % self.counts[photographs, None]).ravel()]

    def query(self, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Words and signatures of QUERY_FEATURES different real features of as many photographs as it takes."""
        rng = np.random.default_rng([seed, 2])
        photographs = rng.permutation(len(self.counts))[:20]
        rows = np.concatenate([np.arange(self.starts[p], self.starts[p + 1]) for p in photographs])[:QUERY_FEATURES]
        return self.words[rows, :k].astype(np.int32), self.signatures[rows, :k]

    def images(self, n_images: int, n_features: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Words [F, k] and signatures [F, k]; one bit in sixteen of a signature is turned over, so that copies differ."""
        rng = np.random.default_rng([seed, 1])
        rows = self.draw(n_images, n_features, seed)
        words = self.words[rows, :k].astype(np.int32)
        turned = np.flatnonzero(rng.random(len(rows)) < self.redraw)
        third = self.words[rows[turned], 2].astype(np.int64)
        first, last = self.third_starts[third], self.third_starts[third + 1]
        others = self.by_third[first + (rng.random(len(turned)) * (last - first)).astype(np.int64)]
        words[turned, 1] = self.words[others, 1]
        noise = np.iinfo(np.uint64).max * np.ones((), np.uint64)
        shape = (len(rows), k)
        for _ in range(4):
            noise = noise & rng.integers(0, 1 << 64, size=shape, dtype=np.uint64)
        return words, self.signatures[rows, :k] ^ noise


def fitted_world(real: dict[str, np.ndarray], law: dict[str, Any]) -> dict[str, Any]:
    """The share of redrawn words that gives one segment as many distinct pairs as Heaps' law foretells."""
    n = MAX_IMAGES * FEATURES
    target = law["factor"] * n ** law["exponent"]
    low, high = 0.0, 1.0
    for _ in range(5):
        middle = (low + high) / 2
        pairs = distinct_pairs(World(real, middle).images(MAX_IMAGES, FEATURES, 2, 0)[0])
        low, high = (middle, high) if pairs < target else (low, middle)
    share = (low + high) / 2
    drawn = distinct_pairs(World(real, share).images(MAX_IMAGES, FEATURES, 2, 0)[0])
    plain = distinct_pairs(World(real).images(MAX_IMAGES, FEATURES, 2, 0)[0])
    return {"redrawn": share, "pairs_foretold": target, "pairs_drawn": drawn, "pairs_without_redrawing": plain}


# ------------------------------------------------------------------------------------------------ building


def build(world: World, n_images: int, k: int, folder: Path) -> tuple[list[Segment], dict[str, Any]]:
    """Build segments on disk (those that exist are taken as they are) and open them mapped."""
    sizes = (20_000,) * k
    segments, rates = [], []
    for number, first in enumerate(range(0, n_images, MAX_IMAGES)):
        n = min(MAX_IMAGES, n_images - first)
        path = folder / f"{k}-{number:03d}-{n}"
        if not path.exists():
            words, signatures = world.images(n, FEATURES, k, seed=number)
            starts = np.arange(n + 1, dtype=np.int64) * FEATURES
            ids = np.arange(first, first + n, dtype=np.int64)
            empty = np.zeros((len(words), 2))
            batch = Batch(ids, starts, words, signatures, empty.astype(np.float32), empty.astype(np.float16))
            begin = time.perf_counter()
            segment = Segment.build(batch, sizes)
            rate = {"features": len(words), "seconds": time.perf_counter() - begin}
            segment.save(path)
            path.with_suffix(".json").write_text(json.dumps(rate))
            del segment, batch, words, signatures
            gc.collect()
        rates.append(json.loads(path.with_suffix(".json").read_text()))
        segments.append(Segment.open(path))
    features, seconds = sum(rate["features"] for rate in rates), sum(rate["seconds"] for rate in rates)
    return segments, {"features": features, "seconds": seconds, "features_per_second": features / seconds}


def bytes_per_feature(engine: Engine) -> dict[str, float]:
    features = sum(segment.n_features for segment in engine.segments)
    names = ("postings", "run_words", "run_lengths", "run_starts", "starts", "columns", "signatures")
    parts = {name: sum(s.arrays[name].nbytes for s in engine.segments) / features for name in names}
    parts["norms"] = 4 * engine.statistics.n_images / features
    parts["scoring"] = sum(value for name, value in parts.items() if name != "signatures")
    return parts


# ------------------------------------------------------------------------------------------------ timing


@kernel
def scatter_add(numbers, starts, postings, scores):
    """The least that voting can be: add 1 to the image of every posting of the lists."""
    visited = 0
    for number in numbers:
        first, last = np.int64(starts[number]), np.int64(starts[number + 1])
        visited += last - first
        for p in range(first, last):
            scores[postings[p]] += np.float32(1)
    return visited


def bare(engine: Engine, numbers: np.ndarray) -> int:
    """Scatter-add the lists of a query over all segments, on one thread; gives the number of postings."""
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
    """Seconds of every rule, with and without signatures, on one and two threads, beside bare scatter-adds; interleaved."""
    samples: dict[str, list[float]] = {}
    postings, distinct = [], []
    for repeat in range(repeats + 1):
        for words, signatures in queries:
            plain = engine.query(words, None, SearchOptions(merge="b1"))
            named = np.sort(plain.numbers.ravel())
            once = np.unique(named)
            jobs = {"bare, every list as often as named, 1 thread": lambda named=named: bare(engine, named),
                    "bare, every list once, 1 thread": lambda once=once: bare(engine, once)}  # fmt: skip
            for threads in (1, 2):
                for merge in RULES:
                    for threshold in (None, 24) if hamming and merge in ("b1", "bayes", "posterior") else (None,):
                        options = SearchOptions(merge=merge, hamming=threshold)
                        query = engine.query(words, signatures, options)
                        name = f"{merge}{' + signatures' if threshold else ''}, {threads} thread{'s' * (threads > 1)}"
                        jobs[name] = lambda query=query, options=options, t=threads: engine.scores(query, options, t)
            for name, job in jobs.items():
                seconds = seconds_of(job)
                if repeat:  # the first round warms the page cache
                    samples.setdefault(name, []).append(seconds)
            postings.append(bare(engine, named))
            distinct.append(bare(engine, once))
    return {"median_seconds": {name: st.median(values) for name, values in samples.items()}, "seconds": samples,
            "postings_per_query": st.mean(postings), "distinct_postings_per_query": st.mean(distinct)}  # fmt: skip


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """The promises, as ratios of medians of one run."""
    median = result["median_seconds"]
    one = "{}, 1 thread".format
    promised = {
        "bayes / b1": median[one("bayes")] / median[one("b1")],
        "posterior / b1": median[one("posterior")] / median[one("b1")],
        "b1 / bare, every list as often as named": median[one("b1")] / median["bare, every list as often as named, 1 thread"],
        "b1 / bare, every list once": median[one("b1")] / median["bare, every list once, 1 thread"],
        "b1: ns per posting": 1e9 * median[one("b1")] / result["postings_per_query"],
        "bare: ns per posting": 1e9 * median["bare, every list as often as named, 1 thread"] / result["postings_per_query"],
        "2 threads: seconds of posterior": median["posterior, 2 threads"],
        "2 threads: seconds of bayes": median["bayes, 2 threads"],
    }
    for rule in ("b1", "bayes", "posterior"):
        if one(f"{rule} + signatures") in median:
            promised[f"{rule} with / without signatures"] = median[one(f"{rule} + signatures")] / median[one(rule)]
    return promised


def private_memory() -> int:
    """Bytes of this process that are not mapped files."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_of_search(engine: Engine, query: tuple[np.ndarray, np.ndarray]) -> dict[str, int]:
    """Growth of private memory over ten searches, warm."""
    options = SearchOptions(top=10)
    prepared = engine.query(*query, options)
    engine.best(prepared, options)
    before = private_memory()
    for _ in range(10):
        engine.best(prepared, options)
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
        segments, rate = build(world, n_images, k, arguments.work)
        if arguments.build_only:
            continue
        engine = Engine(segments, (20_000,) * k)
        queries = [world.query(k, seed) for seed in range(arguments.queries)]
        measured = time_rules(engine, queries, arguments.repeats, hamming=True)
        entry = {"build": rate, "bytes_per_feature": bytes_per_feature(engine), "ratios": ratios(measured), **measured,
                 "memory": memory_of_search(engine, queries[0])}  # fmt: skip
        entry["norms_seconds"] = seconds_of(lambda engine=engine: Engine(engine.segments, engine.sizes).norms(SearchOptions()))
        result["sizes"][f"{n_images} images, K={k}"] = entry
        print(n_images, k, rate, entry["bytes_per_feature"], entry["ratios"], entry["memory"], sep="\n  ", flush=True)
    if arguments.build_only:
        return
    print(write_result(arguments.name, result))
    if not arguments.keep:
        shutil.rmtree(arguments.work)


if __name__ == "__main__":
    main()
