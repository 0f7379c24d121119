"""Time of each stage of a search over many images, from the file to the ranking, in a warm process.

    python benchmarks/endtoend.py PHOTOGRAPHS QUERY... --work FOLDER [--images 100000] [--cache FOLDER]

The images are synthesised from the features of the real PHOTOGRAPHS (codes, words, keypoints), with what a usual index keeps: each takes
about 1,000 of one photograph, moved, scaled and rotated, with one bit of the codes in sixteen flipped. The queries are real files, enlarged or
reduced to a long side of 1024 pixels.
"""

from __future__ import annotations

import argparse
import json
import statistics as st
import time
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from million import bytes_per_feature
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.workbench import Workbench
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import extract, extract_pixels
from polyvoc.index.segment import Batch, Geometry, Segment
from polyvoc.options import CODE_CUT, FeatureOptions, SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.search.verify import prepare_verification, verify
from polyvoc.types import Features
from polyvoc.vocabulary.codes import Coder
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary, default_vocabularies
from search import at_1024

SEGMENT = 12_500  # images: several segments keep both cores busy
FEATURES = 1_000  # of an image, at most


class Photographs:
    """The codes, words and keypoints of real photographs."""

    def __init__(self, files: list[Path], cache: Path) -> None:
        workbench = Workbench(cache)
        self.vocabularies = default_vocabularies()
        store = workbench.store(files)
        self.words = np.stack([workbench.words(store, vocabulary)[0] for vocabulary in self.vocabularies], axis=1)
        self.coder = Coder(default_fine_vocabulary())
        self.codes = workbench.codes(store, self.coder)
        self.keypoints = np.concatenate([store.geometry(file) for file in range(len(store))])
        self.starts = store.starts
        self.usable = np.flatnonzero(np.diff(store.starts) >= 100)

    def images(self, first: int, count: int) -> Batch:
        """Return synthetic images: the strongest features of one photograph each, as if taken from elsewhere."""
        random = np.random.default_rng(first)
        chosen = random.choice(self.usable, count)
        lengths = np.minimum(self.starts[chosen + 1] - self.starts[chosen], FEATURES)
        rows = np.concatenate([np.arange(s, s + n) for s, n in zip(self.starts[chosen], lengths, strict=True)])
        codes, noise = self.codes.chosen(rows), ~np.uint64(0)
        for _ in range(4):
            noise = noise & random.integers(0, 1 << 64, size=codes.codes.shape, dtype=np.uint64)
        turn, octave = random.uniform(-30, 30, count).repeat(lengths), random.uniform(-1, 1, count).repeat(lengths)
        c, s = 2**octave * np.cos(np.radians(turn)), 2**octave * np.sin(np.radians(turn))
        x, y, scale, angle = self.keypoints[rows].T
        xy = np.column_stack([c * x - s * y, s * x + c * y])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        geometry = Geometry.of(xy, scale * 2**octave, (angle + turn) % 360, starts)
        codes = codes._replace(codes=codes.codes ^ noise)
        return Batch(np.arange(first, first + count), starts, geometry, self.words[rows], codes=codes)


def build(photographs: Photographs, count: int, folder: Path) -> Engine:
    """Build the collection on the disk, unless it exists, and map it."""
    sizes = tuple(vocabulary.size for vocabulary in photographs.vocabularies)
    folders, fine = [], photographs.coder.vocabulary.size
    for first in range(0, count, SEGMENT):
        folders.append(folder / f"{first:07d}-{min(SEGMENT, count - first)}")
        if not folders[-1].exists():
            Segment.build(photographs.images(first, min(SEGMENT, count - first)), sizes, fine).save(folders[-1])
            print(f"{first + SEGMENT} of {count} images", flush=True)
    return Engine([Segment.open(path) for path in folders], sizes)


def stages(engine: Engine, coder: Coder, query: Path, options: SearchOptions) -> dict[str, float]:
    """Return the seconds of each stage of one search."""
    feature_options = FeatureOptions()
    marks = [time.perf_counter()]
    grey = read_grey(query, feature_options.long_side)
    marks.append(time.perf_counter())
    found = extract_pixels(grey, feature_options, str(query))
    marks.append(time.perf_counter())
    codes = coder.query(found.descriptors, options.n_assignments, CODE_CUT)
    marks.append(time.perf_counter())
    search(engine, Query(codes, keypoints=found.keypoints), options, coder=coder)
    marks.append(time.perf_counter())
    names = ("decode", "sift", "quantise", "rank")
    return {**dict(zip(names, np.diff(marks).tolist(), strict=True)), "all": marks[-1] - marks[0]}


def verification(engine: Engine, coder: Coder, found: Features, threads: int | None) -> dict[str, float]:
    """Return the seconds to score all images, and to verify the best 200."""
    plan = engine.plan(preset("fast", 0, coder.bits))
    query = Query(coder.query(found.descriptors, plan.options.n_assignments, CODE_CUT), keypoints=found.keypoints)
    begin = time.perf_counter()
    scores = engine.scores(engine.query_of(query.codes, None, None, plan), plan, threads)
    scored = time.perf_counter()
    refs = [one.ref for one in engine.rank(scores, engine.images(), 200)]
    ranked = time.perf_counter()
    verify(engine, prepare_verification(engine, query, preset("fast", 0, coder.bits)), refs, threads)
    return {"score": scored - begin, "choose": ranked - scored, "verify 200": time.perf_counter() - ranked}


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: st.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("queries", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    real = Photographs(sorted(arguments.photographs.rglob("*.jpg")), arguments.cache)
    engine = build(real, arguments.images, arguments.work / "segments")
    queries = [at_1024(query, arguments.work) for query in arguments.queries]
    chosen = {name: preset(name, 0, real.coder.bits) for name in ("fast", "default", "best")}
    for options in chosen.values():
        stages(engine, real.coder, queries[0], options)  # compiles, and reads the files
    measured: dict[str, Any] = {name: [] for name in chosen}
    parts: dict[str, list[dict[str, float]]] = {"1 thread": [], "all threads": []}
    for _ in range(arguments.repeats):
        for query in queries:
            for name, options in chosen.items():
                measured[name].append(stages(engine, real.coder, query, options))
            found = extract(query, FeatureOptions())
            for name, threads in (("1 thread", 1), ("all threads", None)):
                parts[name].append(verification(engine, real.coder, found, threads))
    result = {
        "images": arguments.images,
        "features": sum(segment.n_features for segment in engine.segments),
        "bytes_per_feature": bytes_per_feature(engine),
        "median_seconds": {name: medians(rows) for name, rows in measured.items()},
        "verification_median_seconds": {name: medians(rows) for name, rows in parts.items()},
        "searches": measured,
        "verifications": parts,
    }
    print(json.dumps({key: result[key] for key in ("features", "median_seconds", "verification_median_seconds")}, indent=1))
    print(write_result("endtoend", result))


if __name__ == "__main__":
    main()
