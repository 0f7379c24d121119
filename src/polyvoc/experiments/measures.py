"""Measures of a ranking (mAP, N-S, precision, recall), per query; bootstrap intervals of means and of differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError

Ranking = npt.NDArray[np.int64] | Sequence[int]
Values = Sequence[float | None] | npt.NDArray[np.float64]
_CHUNK = 1 << 20  # draws of the bootstrap held in memory at once


@dataclass(frozen=True)
class Truth:
    """The relevant images of one question, by number."""

    relevant: frozenset[int]
    junk: frozenset[int] = frozenset()  # taken out of a ranking before it is measured


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Measure:
    """A measure: a value per question, and how it is written."""

    name: str
    function: Callable[[Ranking, Truth], float | None]
    scale: float  # written as value * scale: mAP in percent, N-S as it is
    digits: int

    def __call__(self, ranking: Ranking, truth: Truth) -> float | None:
        """Return the value of one ranking; None if the question has no relevant images."""
        return self.function(ranking, truth)

    def show(self, value: float) -> str:
        """Return a value as text."""
        return f"{value * self.scale:.{self.digits}f}"


def rank(scores: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the image numbers of scores, best first; equal scores by number, NaN last."""
    return np.argsort(-np.asarray(scores, np.float64), kind="stable")


def positions(ranking: Ranking, truth: Truth) -> npt.NDArray[np.int64]:
    """Return the 0-based ranks of the relevant images found, as if there were no junk.

    An image that is both relevant and junk is junk, hence never found, as in the program of the Oxford buildings.
    """
    numbers = np.asarray(ranking, np.int64)  # [n]
    kept = numbers[~np.isin(numbers, _array(truth.junk))] if truth.junk else numbers
    ranks = np.flatnonzero(np.isin(kept, _array(truth.relevant)))
    if len(np.unique(kept[ranks])) < len(ranks):
        raise OptionError("the ranking holds an image twice; give each image at most once")
    return ranks


def average_precision(ranking: Ranking, truth: Truth) -> float | None:
    """Return the area under the precision-recall curve by trapezoids: the AP of Holidays, Oxford and the revisited protocol.

    Each relevant image found adds 1 / R times the mean of the precision just before it (1 at the very top) and with it.
    """
    if not truth.relevant:
        return None
    ranks = positions(ranking, truth)
    earlier = np.arange(len(ranks))  # relevant images before each
    before = np.where(ranks == 0, 1.0, earlier / np.maximum(ranks, 1))
    after = (earlier + 1) / (ranks + 1)
    return float((before + after).sum() / (2 * len(truth.relevant)))


def precision_at(ranking: Ranking, truth: Truth, k: int) -> float | None:
    """Return the share of relevant images among the first k, or among fewer if they hold all that are relevant.

    P@k of the revisited protocol: k is lowered to the rank of the last relevant image, so that a perfect ranking has 1.
    """
    _require_k(k)
    if not truth.relevant:
        return None
    ranks = positions(ranking, truth)
    complete = len(ranks) == len(truth.relevant)  # otherwise the last relevant image has no rank: it is below any k
    depth = min(k, int(ranks[-1]) + 1) if complete else k
    return int((ranks < depth).sum()) / depth


def recall_at(ranking: Ranking, truth: Truth, k: int) -> float | None:
    """Return the share of the relevant images that are among the first k."""
    _require_k(k)
    if not truth.relevant:
        return None
    return int((positions(ranking, truth) < k).sum()) / len(truth.relevant)


def ns(ranking: Ranking, truth: Truth) -> float | None:
    """Return how many of the first four are relevant: the N-S score of Ukbench, where the query itself is relevant too."""
    if not truth.relevant:
        return None
    return float((positions(ranking, truth) < 4).sum())


def bootstrap(
    values: Values, groups: Sequence[Hashable] | None = None, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the mean of values per question and its percentile bootstrap interval; questions whose value is None are left out.

    Questions of one group show the same object and succeed or fail together: whole groups are drawn. One group alone has no
    spread, so its interval is infinite.
    """
    if samples < 1 or not 0 < level < 1:
        raise OptionError(f"samples={samples!r} should be at least 1 and level={level!r} between 0 and 1")
    sums, counts = _by_group(_floats(values), groups)
    mean = float(sums.sum() / counts.sum())
    if len(sums) == 1:
        return Interval(mean, -math.inf, math.inf)
    means = np.concatenate(list(_resampled_means(sums, counts, samples, seed)))
    low, high = quantile_bounds(means, level)
    return Interval(mean, float(low), float(high))


def difference(first: Values, second: Values, groups: Sequence[Hashable] | None = None) -> Interval:
    """Return the mean of first - second and its bootstrap interval, paired by question.

    A question that either of them leaves out is left out.
    """
    if len(first) != len(second):
        raise OptionError(f"{len(first)} values and {len(second)}: give one of each per question")
    return bootstrap(_floats(first) - _floats(second), groups)


def draw_groups(count: int, seed: int, samples: int = 1000) -> npt.NDArray[np.float64]:
    """Return how often each group is drawn in a bootstrap [samples, count]: as many as there are, with replacement."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), samples).astype(np.float64)


def quantile_bounds(values: npt.ArrayLike, level: float = 0.95) -> npt.NDArray[np.float64]:
    """Return the quantiles of each column that enclose the level [2, ...], without NaN; NaN for a column without values."""
    table = np.asarray(values, np.float64)
    if not len(table):
        return np.full((2, *table.shape[1:]), np.nan)
    empty = np.isnan(table).all(axis=0)
    bounds = np.nanquantile(np.where(empty, 0.0, table), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.where(empty, np.nan, bounds)


def _by_group(
    values: npt.NDArray[np.float64], groups: Sequence[Hashable] | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sum and the number of the values of each group, without those left out."""
    if groups is not None and len(groups) != len(values):
        raise OptionError(f"{len(values)} values but {len(groups)} groups: give one group per question")
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        raise OptionError("no value to average: no question has relevant images")
    if groups is None:
        return values[known], np.ones(len(known), np.int64)
    numbers: dict[Hashable, int] = {}
    members = np.array([numbers.setdefault(groups[i], len(numbers)) for i in known.tolist()])
    sums = np.zeros(len(numbers))
    np.add.at(sums, members, values[known])
    return sums, np.bincount(members).astype(np.int64)


def _resampled_means(
    sums: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], samples: int, seed: int
) -> Iterator[npt.NDArray[np.float64]]:
    """Return the means of as many groups drawn with replacement as there are, `samples` times, a chunk at a time."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK // len(sums))
    even = bool((counts == counts[0]).all())
    for start in range(0, samples, rows):
        drawn = rng.integers(0, len(sums), (min(rows, samples - start), len(sums)), dtype=np.int32)
        total = sums[drawn].sum(axis=1)
        yield total / (counts.sum() if even else counts[drawn].sum(axis=1))


def _floats(values: Values) -> npt.NDArray[np.float64]:
    """Return values as numbers, NaN for those left out."""
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _array(numbers: frozenset[int]) -> npt.NDArray[np.int64]:
    return np.fromiter(numbers, np.int64, len(numbers))


def _require_k(k: int) -> None:
    if k < 1:
        raise OptionError(f"k={k!r} should be at least 1")


def _at(kind: str, k: int) -> Measure:
    return Measure(f"{kind}@{k}", partial(precision_at if kind == "mP" else recall_at, k=k), scale=100.0, digits=2)


_ENTRIES = (
    Measure("mAP", average_precision, scale=100.0, digits=2),
    *(_at("mP", k) for k in (1, 5, 10)),
    Measure("N-S", ns, scale=1.0, digits=3),
    *(_at("R", k) for k in (1, 4, 10, 100)),
)
MEASURES: Mapping[str, Measure] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
