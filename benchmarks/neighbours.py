"""Smoothing and diffusion of scores over the graph of linked images, with many settings. Smoothing is the option `smooth`.

The graph is made without a query: every photograph of the collection searches for the others, and those that verification
confirms become its neighbours, weighted by ln(1 + inliers); by codes or by words, as the options of the search are. The query is left out of the graph: its own score
is no evidence for its neighbours, and most queries are not in the collection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import SearchOptions
from polyvoc.search.pairs import StoredQueries
from polyvoc.search.pipeline import search

Array = npt.NDArray[np.float64]

SHARES = (0.25, 0.5, 1.0)  # weight of the neighbours' mean beside the image's own score
ALPHAS = (0.1, 0.2, 0.5, 0.8)  # share of a score that comes from neighbours
MIN_INLIERS = (6, 12)  # of neighbours


def graph(bench: QuantisedDataset, options: SearchOptions) -> npt.NDArray[np.int64]:
    """Return the inliers of all pairs of images where one finds the other and verification confirms it [N, N]."""
    source = StoredQueries(bench.engine, options, bench.coder)
    inliers = np.zeros((bench.n_images, bench.n_images), np.int64)
    first = 0
    starts = []
    for segment in bench.engine.segments:
        starts.append(first)
        first += segment.n_images
    for number, segment in enumerate(bench.engine.segments):
        for position in range(segment.n_images):
            query = source.of((number, position), options.verify)
            for one in search(bench.engine, query, replace(options, top=options.verify)):
                other, at = one.ref
                inliers[starts[number] + position, starts[other] + at] = one.inliers
    return np.maximum(inliers, inliers.T)


def ways(inliers: npt.NDArray[np.int64], scores: npt.NDArray[Any], query: int) -> dict[str, Array]:
    """Return the scores [N] of one query, smoothed and diffused with all settings, by name."""
    changed = {}
    for least in MIN_INLIERS:
        weights = np.where(inliers >= least, np.log1p(inliers), 0.0)
        weights[query], weights[:, query] = 0.0, 0.0
        np.fill_diagonal(weights, 0.0)
        for share in SHARES:
            changed[f"smoothing, share {share:g}, {least} inliers"] = smoothed(scores, weights, share)
        for alpha in ALPHAS:
            changed[f"diffusion, alpha {alpha:g}, {least} inliers"] = diffused(scores, weights, alpha)
    return changed


def smoothed(scores: npt.NDArray[Any], weights: Array, share: float) -> Array:
    """Return the mean of each score and those of its neighbours, these together with the weight `share` [N]."""
    total = weights.sum(axis=1)
    theirs = np.divide(weights @ scores, total, out=np.array(scores, np.float64), where=total > 0)
    result: Array = (scores + share * theirs) / (1 + share)
    return result


def diffused(scores: npt.NDArray[Any], weights: Array, alpha: float) -> Array:
    """Return scores diffused over their neighbours: (1 - a) (I - a S)^-1 Y (Zhou et al., "Ranking on data manifolds", NIPS 2003)."""
    total = weights.sum(axis=1)
    root = np.divide(1.0, np.sqrt(total), out=np.zeros(len(total)), where=total > 0)
    system = np.eye(len(total)) - alpha * root[:, None] * weights * root
    result: Array = (1 - alpha) * np.linalg.solve(system, np.asarray(scores, np.float64))
    return result
