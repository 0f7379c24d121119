"""The share of true matches among those in the intersection, by the cardinality ratio: what w(r) of the paper stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.fit.true_matches import DISTANCE, near, relevant_images, without
from polyvoc.experiments.match_table import Matcher
from polyvoc.experiments.measures import draw_groups, quantile_bounds
from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.types import Floats64

BINS = 8  # of the ratio, with equally many matches


def shares_by_ratio(bench: QuantisedDataset) -> dict[str, Any]:
    """Return the share of true matches by bins of the ratio of image sets, and the fall from the lower to the upper half.

    A match counts if its image has a feature in each list and is not the query; it is true if it is near and its image
    relevant. Intervals are of 95 %, by a bootstrap over groups of questions; fall: value, low, high.
    """
    ratio, total, true, group = _pooled(bench)
    order = np.argsort(ratio, kind="stable")
    ends = np.searchsorted(np.cumsum(total[order]), np.linspace(0, total.sum(), BINS + 1)[1:-1])
    bins = np.empty(len(order), np.int64)
    bins[order] = np.searchsorted(ends, np.arange(len(order)), "right")
    sums = [_by_group(values, group, bins) for values in (total, true, ratio * total)]
    drawn = draw_groups(len(sums[0]), 0)
    shares = _shares(drawn, *sums[:2])
    low, high = quantile_bounds(shares)
    halves = [np.stack([part[:, : BINS // 2].sum(axis=1), part[:, BINS // 2 :].sum(axis=1)], axis=1) for part in sums[:2]]
    falls, (fall,) = (np.diff(_shares(rows, *halves))[:, 0] for rows in (drawn, np.ones((1, len(drawn[0])))))
    whole = [part.sum(axis=0) for part in sums]
    return {
        "ratio": (whole[2] / whole[0]).tolist(),
        "share": (whole[1] / whole[0]).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "fall": [float(fall), *map(float, quantile_bounds(falls))],
    }


def _shares(drawn: Floats64, total: Floats64, true: Floats64) -> Floats64:
    """Return the share of true matches [draws, bins] of groups drawn so often [draws, groups]."""
    return np.asarray(drawn @ true / np.maximum(drawn @ total, 1))


def _by_group(values: Floats64, group: npt.NDArray[np.int64], bins: npt.NDArray[np.int64]) -> Floats64:
    sums = np.bincount(group * BINS + bins, values, (group.max() + 1) * BINS)
    return np.asarray(sums.reshape(-1, BINS), np.float64)


def _pooled(bench: QuantisedDataset) -> tuple[Floats64, Floats64, Floats64, npt.NDArray[np.int64]]:
    """Return ratio, matches in the intersection, true ones among them, and group of every query feature that has any."""
    dataset, matcher = bench.dataset, Matcher(bench)
    truths, numbers = dataset.truths[dataset.main_level], dict[str, int]()
    parts = []
    for number, (question, truth) in enumerate(zip(dataset.questions, truths, strict=True)):
        table = without(matcher.table(number), question.image)
        assert table.distance is not None
        inside = np.flatnonzero(table.images.mask == (1 << table.n_vocabularies) - 1)
        relevant = np.isin(table.image[inside], relevant_images(truth, question.image))
        limit = DISTANCE * bench.bits // 64
        right = relevant & near(table.shared[inside], table.distance[inside], limit, "either")
        counts = [np.bincount(table.query[rows], minlength=len(table.words)) for rows in (inside, inside[right])]
        own = numbers.setdefault(question.group or question.name, len(numbers))
        parts.append((table.images.ratios[:, -1], *counts, np.full(len(table.words), own)))
    ratio, total, true, group = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = total > 0
    return ratio[kept], total[kept].astype(np.float64), true[kept].astype(np.float64), group[kept]
