"""The paper's efficiency figures: bytes per feature and seconds per query at one million images."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.experiments.cache import digest_of
from polyvoc.experiments.evaluate import HAMMING, scoring_options
from polyvoc.experiments.measures import bootstrap
from polyvoc.experiments.paper.cells import Cells
from polyvoc.experiments.paper.claims import Claim, summary, verdict
from polyvoc.experiments.paper.numbers import BYTES, SECONDS
from polyvoc.experiments.paper.setup import Setup
from polyvoc.experiments.paper.word_statistics import (
    FEATURES,
    QUERY_FEATURES,
    World,
    build,
    bytes_per_feature,
    fitted_world,
    heaps_law,
)
from polyvoc.experiments.report.report import Section, Table, TableCell
from polyvoc.index.segment import MAX_IMAGES
from polyvoc.scoring.engine import Engine

QUERIES, ROUNDS = 5, 3
RULES: dict[str, dict[str, Any]] = {
    **{merge: {"merge": merge} for merge in ("b0", "b1", "b2", "bayes", "posterior")},
    "bayes, feature sets": {"merge": "bayes", "sets": "feature"},
    "b1 + HE": {"merge": "b1", "hamming": HAMMING},
    "bayes + HE": {"merge": "bayes", "hamming": HAMMING},
}
ROOM = 0.2  # "hardly more time": within a fifth


def efficiency(setup: Setup) -> Section:
    """Bytes per feature and seconds per query for B0, B1, Bayes at the number of images of the plan."""
    seeds = (0, 1, 2)
    names = [setup.lazy_vocabulary(setup.plan.size, seed).identity for seed in seeds]
    key = digest_of("efficiency", list(RULES), setup.identity, names, setup.plan.images)
    folder = setup.workbench.cache / "efficiency" / key
    measured: dict[str, Any] = setup.workbench.remember("efficiency", [key], lambda: measure(setup, seeds, folder))
    known = SECONDS if setup.plan.images == 1_000_000 else {}
    rows: list[Cells] = []
    for rule in RULES:
        sizes = measured["bytes"]
        kind = {"b0": "one", "posterior": "scoring", "bayes, feature sets": "scoring"}.get(rule, "plain")
        size = sizes[kind] + (sizes["signatures"] if "HE" in rule else 0.0)
        seconds = (statistics.median(measured["seconds"][rule][threads]) for threads in ("1", "all"))
        times = [TableCell(one, 3, paper=known.get(rule)) for one in seconds]
        rows.append([f"`{rule}`", TableCell(size, 2, paper=BYTES.get(rule)), *times])
    head = ["rule", "bytes per feature", "seconds per query, one thread", "seconds per query, all cores"]
    text = (
        f"{setup.plan.images:,} images of {FEATURES} features (as many as the paper's 1.9 GB at 4 bytes say), queries "
        f"of {QUERY_FEATURES:,} features, two vocabularies of {setup.plan.words(setup.plan.size):,} words. Scoring only, "
        f"index in memory, {measured['machine']}; synthetic words with the joint frequencies of real photographs. The paper: "
        "a server of 3.46 GHz with 64 GB."
    )
    theirs = SECONDS["bayes"] / SECONDS["b1"] - 1
    claims = [_time_claim(measured["seconds"], rule) for rule in ("bayes", "bayes, feature sets")]
    return Section(
        "efficiency",
        "Efficiency",
        [f"{text} Time beyond that of B1, as a share of it; the paper: {theirs:+.2f}."],
        [Table(f"{setup.plan.images:,} images", head, rows)],
        verdict=verdict(claims),
        verdict_text=summary(claims),
    )


def _time_claim(seconds: Mapping[str, Mapping[str, Sequence[float]]], rule: str) -> Claim:
    """Return the claim that a rule takes hardly more time than B1; pairs of searches with the same query, one thread."""
    more = np.divide(seconds[rule]["1"], seconds["b1"]["1"]) - 1
    interval = bootstrap(more)
    return Claim(f"`{rule}`", TableCell(interval.mean, 2, interval.low, interval.high, difference=True), 0, ROOM)


def measure(setup: Setup, seeds: tuple[int, ...], folder: Path) -> dict[str, Any]:
    """Build the collection in a folder, time every rule on it, and delete it."""
    vocabularies = [setup.vocabulary(setup.plan.size, seed) for seed in seeds]
    parts = [setup.workbench.words(setup.store, vocabulary) for vocabulary in vocabularies]
    counts = np.diff(setup.store.starts)
    real: dict[str, Any] = {
        "words": np.stack([words for words, _ in parts], axis=1).astype(np.uint16),
        "signatures": np.stack([bits for _, bits in parts if bits is not None], axis=1),
        "counts": counts[counts > 0],
    }
    law = heaps_law(real["words"], np.random.default_rng(0))
    images = min(setup.plan.images, MAX_IMAGES)
    inputs = (setup.store.digest, [vocabulary.fingerprint for vocabulary in vocabularies], images)
    fit = setup.workbench.remember("joint frequencies of words", inputs, lambda: fitted_world(real, law, images))
    world = World(real, fit["redrawn"])
    sizes = tuple(vocabulary.size for vocabulary in vocabularies[:2])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        segments, rate = build(world, setup.plan.images, sizes, folder, setup.workbench.progress)
        engine = Engine(segments, sizes)
        size = bytes_per_feature(engine)
        first = int(engine.segments[0].arrays["starts"][sizes[0]])
        share = first / len(engine.segments[0].arrays["postings"])  # of the first vocabulary
        size["one"] = share * size["postings"] + size["starts"] / 2 + size["norms"]
        size["plain"] = size["postings"] + size["starts"] + size["norms"]  # only merging needs the runs
        machine = f"{platform.system()}, {os.cpu_count()} cores"
        return {"machine": machine, "bytes": size, "seconds": _timed(engine, world), "build": rate, "heaps": law, "world": fit}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _timed(engine: Engine, world: World) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of every rule; all rules take turns, the first round is a warm-up."""
    options = {rule: scoring_options(**chosen) for rule, chosen in RULES.items()}
    samples: dict[tuple[str, str], list[float]] = {}
    for turn in range(ROUNDS + 1):
        for seed in range(QUERIES):
            words, bits = world.query(2, seed)
            for rule, chosen in options.items():
                plan = engine.plan(chosen)
                query = engine.query(words, bits, plan)
                for name, threads in (("1", 1), ("all", None)):
                    started = time.perf_counter()
                    engine.scores(query, plan, threads)
                    if turn:
                        samples.setdefault((rule, name), []).append(time.perf_counter() - started)
    return {rule: {name: samples[rule, name] for name in ("1", "all")} for rule in options}
