"""Scores shared along a graph of verified neighbours, with many settings. Smoothing became an option (`neighbourhood.py`).

The graph is made without a query: every photograph of the collection searches for the others, and those that verification
confirms become its neighbours, weighed by ln(1 + inliers). The photograph that asks takes no part: its own score
is no evidence for its neighbours, and most queries are not in the collection.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import SearchOptions
from polyvoc.search.pipeline import score_all
from polyvoc.search.query import Query
from polyvoc.types import ImageWords

Array = npt.NDArray[np.float64]

SHARES = (0.25, 0.5, 1.0)  # weight of the neighbours' mean beside the image's own score
ALPHAS = (0.1, 0.2, 0.5, 0.8)  # share of a score that comes from neighbours
LEAST = (6, 12)  # inliers of neighbours


def graph(bench: QuantisedDataset, options: SearchOptions) -> npt.NDArray[np.int64]:
    """Give the inliers of all pairs of images that one finds and verification confirms [N, N]."""
    found = np.zeros((bench.n_images, bench.n_images), np.int64)
    first = 0
    starts = []
    for segment in bench.engine.segments:
        starts.append(first)
        first += segment.n_images
    for number, segment in enumerate(bench.engine.segments):
        for position in range(segment.n_images):
            sketch = ImageWords.of(segment, position)
            bits = sketch.signatures if sketch.signatures.shape[1] else None
            _, seen = score_all(bench.engine, Query(sketch.words, bits, sketch.frames), options)
            for (other, place), one in seen.items():
                found[starts[number] + position, starts[other] + place] = one.inliers
    return np.maximum(found, found.T)


def ways(inliers: npt.NDArray[np.int64], scores: npt.NDArray[Any], asker: int) -> dict[str, Array]:
    """Give the scores [N] of one question, smoothed and diffused with all settings, by name."""
    found = {}
    for least in LEAST:
        weights = np.where(inliers >= least, np.log1p(inliers), 0.0)
        weights[asker], weights[:, asker] = 0.0, 0.0
        np.fill_diagonal(weights, 0.0)
        for share in SHARES:
            found[f"smoothing, share {share:g}, {least} inliers"] = smoothed(scores, weights, share)
        for alpha in ALPHAS:
            found[f"diffusion, alpha {alpha:g}, {least} inliers"] = diffused(scores, weights, alpha)
    return found


def smoothed(scores: npt.NDArray[Any], weights: Array, share: float) -> Array:
    """Give the mean of each score and those of its neighbours, these together with the weight `share` [N]."""
    total = weights.sum(axis=1)
    theirs = np.divide(weights @ scores, total, out=np.array(scores, np.float64), where=total > 0)
    result: Array = (scores + share * theirs) / (1 + share)
    return result


def diffused(scores: npt.NDArray[Any], weights: Array, alpha: float) -> Array:
    """Give scores in balance with those of their neighbours: (1 - a) (I - a S)^-1 Y (Zhou et al., "Ranking on data manifolds", NIPS 2003)."""
    total = weights.sum(axis=1)
    root = np.divide(1.0, np.sqrt(total), out=np.zeros(len(total)), where=total > 0)
    system = np.eye(len(total)) - alpha * root[:, None] * weights * root
    result: Array = (1 - alpha) * np.linalg.solve(system, np.asarray(scores, np.float64))
    return result
