"""Rank aggregation: each vocabulary ranks by itself, and images are ordered by the median of their ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.types import Floats64


def aggregate(scores: npt.ArrayLike) -> Floats64:
    """Return how many images each image beats: float64 [N], higher is better.

    scores: [K, N], higher is better. The median rank decides, then the mean rank, then the summed score; images that are
    equal in all three get the same value. In one vocabulary images with equal scores share the mean of their ranks.
    """
    table = _checked(scores)
    ranks = _ranks(table)
    # Sorted before summing: rounding must not depend on the order of the vocabularies.
    keys = np.stack([-np.median(ranks, axis=0), -ranks.sum(axis=0), np.sort(table, axis=0).sum(axis=0)])  # [3, N]
    order = np.lexsort(keys[::-1])  # worst first
    along = keys[:, order]
    differs = (along[:, 1:] != along[:, :-1]).any(axis=0)
    group = np.concatenate([[0], np.cumsum(differs)])[: len(order)]
    beaten: Floats64 = np.empty(len(order))
    beaten[order] = np.searchsorted(group, group)
    return beaten


def _ranks(table: Floats64) -> Floats64:
    """Return the rank of each image in each vocabulary [K, N]; equal scores share the mean of their ranks."""
    ranks = np.empty(table.shape)
    for row, scores in zip(ranks, table, strict=True):
        _, group, counts = np.unique(-scores, return_inverse=True, return_counts=True)
        row[:] = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks


def _checked(scores: npt.ArrayLike) -> Floats64:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or len(table) == 0:
        raise OptionError(f"scores of shape {table.shape} should be [vocabularies, images], with at least one vocabulary")
    if np.isnan(table).any():
        raise OptionError("scores: some are not numbers (NaN), which have no rank; give 0 to images that are not found")
    return table
