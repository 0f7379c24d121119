"""Synthetic collections of any size whose words have the joint frequencies of real photographs."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.experiments.workbench import no_progress
from polyvoc.index.segment import MAX_IMAGES, Batch, Geometry, Segment
from polyvoc.scoring.engine import Engine
from polyvoc.types import Array, Progress

Real = Mapping[str, Array]  # of photographs: words [F, 3], signatures [F, 3], counts [photographs]
FEATURES = 475  # per image: 1.9 GB at 4 bytes per feature and 1 M images, as in the paper
QUERY_FEATURES = 3000


def distinct_pairs(words: Array) -> int:
    """Count the distinct pairs of the first two words."""
    return len(np.unique(words[:, 0].astype(np.int64) << 32 | words[:, 1]))


def heaps_law(words: Array, rng: np.random.Generator) -> dict[str, Any]:
    """Return the distinct pairs of the first two words against the number of features: pairs = factor * features^exponent."""
    shuffled = words[rng.permutation(len(words))]
    sizes = [len(words) // 16, len(words) // 8, len(words) // 4, len(words) // 2, len(words)]
    pairs = [distinct_pairs(shuffled[:n]) for n in sizes]
    exponent, offset = np.polyfit(np.log(sizes[-3:]), np.log(pairs[-3:]), 1)  # the tail, where it is going
    return {"features": sizes, "pairs": pairs, "exponent": float(exponent), "factor": float(np.exp(offset))}


class World:
    """A generator of synthetic images with real joint frequencies."""

    def __init__(self, real: Real, redraw: float = 0.0) -> None:
        """Take real features; `redraw` is the share of those that get another second word."""
        self.words, self.signatures, self.counts = real["words"], real["signatures"], real["counts"]
        self.starts = np.concatenate([[0], np.cumsum(self.counts)])
        self.redraw = redraw
        rng = np.random.default_rng(0)
        self.shuffled = np.concatenate([s + rng.permutation(n) for s, n in zip(self.starts, self.counts, strict=False)])
        self.by_third = np.argsort(self.words[:, 2], kind="stable")
        self.third_starts = np.searchsorted(self.words[self.by_third, 2], np.arange(self.words[:, 2].max() + 2))

    def draw(self, n_images: int, n_features: int, seed: int) -> Array:
        """Return rows of real features [n_images * n_features].

        Each image takes its features from one photograph, none twice if it has as many.
        """
        rng = np.random.default_rng(seed)
        photographs = rng.integers(len(self.counts), size=n_images)
        offsets = rng.integers(self.counts[photographs])[:, None] + np.arange(n_features)
        rows: Array = self.shuffled[(self.starts[photographs, None] + offsets % self.counts[photographs, None]).ravel()]
        return rows

    def query(self, k: int, seed: int) -> tuple[Array, Array]:
        """Return words and signatures of QUERY_FEATURES different real features of as many photographs as it takes."""
        rng = np.random.default_rng([seed, 2])
        photographs = rng.permutation(len(self.counts))[:20]
        rows = np.concatenate([np.arange(self.starts[p], self.starts[p + 1]) for p in photographs])[:QUERY_FEATURES]
        return self.words[rows, :k].astype(np.int32), self.signatures[rows, :k]

    def images(self, n_images: int, n_features: int, k: int, seed: int) -> tuple[Array, Array]:
        """Return words [F, k] and signatures [F, k]; one bit in sixteen of a signature is flipped, so that copies differ."""
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


def fitted_world(real: Real, law: dict[str, Any], n_images: int = MAX_IMAGES) -> dict[str, Any]:
    """Return the share of redrawn words for which a collection has as many distinct pairs as Heaps' law predicts."""
    n = n_images * FEATURES
    target = law["factor"] * n ** law["exponent"]
    low, high = 0.0, 1.0
    for _ in range(5):
        middle = (low + high) / 2
        pairs = distinct_pairs(World(real, middle).images(n_images, FEATURES, 2, 0)[0])
        low, high = (middle, high) if pairs < target else (low, middle)
    share = (low + high) / 2
    drawn = distinct_pairs(World(real, share).images(n_images, FEATURES, 2, 0)[0])
    plain = distinct_pairs(World(real).images(n_images, FEATURES, 2, 0)[0])
    return {"redrawn": share, "pairs_foretold": target, "pairs_drawn": drawn, "pairs_without_redrawing": plain}


def build(
    world: World, n_images: int, sizes: tuple[int, ...], folder: Path, progress: Progress = no_progress
) -> tuple[list[Segment], dict[str, Any]]:
    """Build segments on disk, unless they exist, and open them mapped."""
    k = len(sizes)
    segments, rates = [], []
    for number, first in enumerate(range(0, n_images, MAX_IMAGES)):
        n = min(MAX_IMAGES, n_images - first)
        path = folder / f"{k}-{number:03d}-{n}"
        if not path.exists():
            words, signatures = world.images(n, FEATURES, k, seed=number)
            starts = np.arange(n + 1, dtype=np.int64) * FEATURES
            ids = np.arange(first, first + n, dtype=np.int64)
            batch = Batch(ids, starts, Geometry.unknown(n, len(words)), words, signatures)
            begin = time.perf_counter()
            segment = Segment.build(batch, sizes)
            rate = {"features": len(words), "seconds": time.perf_counter() - begin}
            path.with_suffix(".json").write_text(json.dumps(rate))  # first: a segment that is there is complete
            segment.save(path)
            del segment, batch, words, signatures
            gc.collect()
        rates.append(json.loads(path.with_suffix(".json").read_text()))
        segments.append(Segment.open(path))
        progress("segments", first + n, n_images)
    features, seconds = sum(rate["features"] for rate in rates), sum(rate["seconds"] for rate in rates)
    return segments, {"features": features, "seconds": seconds, "features_per_second": features / seconds}


def bytes_per_feature(engine: Engine) -> dict[str, float]:
    """Return the bytes of a feature in each array, and in all that scoring without signatures reads."""
    features = sum(segment.n_features for segment in engine.segments)
    names = ("postings", "run_words", "run_lengths", "run_starts", "starts", "columns", "signatures")
    parts = {name: sum(s.arrays[name].nbytes for s in engine.segments) / features for name in names}
    parts["norms"] = 4 * engine.statistics.n_images / features
    parts["scoring"] = sum(value for name, value in parts.items() if name != "signatures")
    return parts
