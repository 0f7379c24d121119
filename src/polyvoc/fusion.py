"""Several witnesses scored the same images: what do they say together? Each is believed as far as its curve of scores falls.

A witness is a way to score images: the words, or a global embedding. Scores of two witnesses have nothing in common, but each
curve (the scores of one query, best first) shows how the images fall that merely resemble the query: along a line in a log-log
plot, score against rank. An outstanding score is read off on that line: it stands where noise would stand at rank 0.001, say.
Ranks are a common currency, and a witness who sees nothing, whose best images lie on the line too, hardly moves the sum. There
are no labels, no training, and no weights to choose.

That weights should follow from how curves fall, per query, is the idea of Zheng et al., "Query-adaptive late fusion", CVPR
2015, who normalise by the highest score and weigh by the area below the curve. The highest score must not set the scale,
though: it may be the query itself. The line through two ranks is a Pareto tail estimated from quantiles (Hill, Annals of
Statistics 1975, takes the mean, which right answers would spoil); the sum of logarithms is Fisher's way to join tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError

Array = npt.NDArray[np.float64]

DEPTH = 100  # rank where a curve is taken to be noise ...
SHARE = 4  # ... or at a quarter of the images, if that is less
FLAT = 1e-9  # a fall of this many nats is rounding
NEAREST = 1e-3  # distances below are as good as none: rounding, or another copy of the file


def fuse(*witnesses: npt.ArrayLike, at: npt.NDArray[np.int64] | None = None) -> Array:
    """Give the joint evidence [n] for each of n images, in nats: the sum over witnesses, each with scores [n] from 0 up.

    `at` asks for some images alone, by number: the same values, sooner.
    """
    if not witnesses:
        raise OptionError("no scores to fuse; give those of one witness at least")
    lengths = [np.size(scores) for scores in witnesses]
    if len(set(lengths)) > 1:
        raise OptionError(f"scores of {lengths} images cannot be fused; let every witness score the same images")
    joint: Array = np.sum([evidence(scores, at) for scores in witnesses], axis=0)
    return joint


def evidence(scores: npt.ArrayLike, at: npt.NDArray[np.int64] | None = None) -> Array:
    """Give ln(n / rank) for scores [n] from 0 up, in nats: what each tells, the same for c * scores ** p with any c, p > 0.

    With s(r) the score at rank r and the depth N = min(100, n / 4), but no deeper than scores are above 0,

        rank of s = N * (s(N) / s) ** a,  a = ln(N / H) / ln(s(H) / s(N)),  H = N / 2    above s(N): on the line
                  = number of scores not below s                                      otherwise: as it stands

    The order of the images stays. All scores equal say nothing: 0. `at` asks for some images alone, by number.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise OptionError("scores should be a row of numbers from 0 up, one per image; repair what made them")
    curve = np.sort(values)  # [n]  worst first
    n = len(curve)
    if at is not None:
        values = values[at]
    ranks = np.log(n - np.searchsorted(curve, values))  # of each value; logarithms
    noise = Noise.of(curve[::-1], n)
    if noise is not None:
        above = values > noise.score
        ranks[above] = noise.log_ranks(values[above])
    found: Array = math.log(max(n, 1)) - ranks
    return found


@dataclass(frozen=True)
class Noise:
    """The line along which the scores of a query's unrelated images fall: how many of them would reach a score?"""

    depth: int  # rank where it is anchored
    score: float  # of that rank
    steepness: float  # ln(rank) falls by this much where ln(score) rises by 1

    @classmethod
    def of(cls, best: npt.ArrayLike, n: int) -> Self | None:
        """Read it off the best scores of n images, best first; None if they do not fall, or are too few."""
        curve = np.asarray(best, np.float64)
        depth = min(DEPTH, n // SHARE, int(np.count_nonzero(curve > 0)))
        half = depth // 2
        fall = math.log(curve[half - 1]) - math.log(curve[depth - 1]) if half else 0.0
        return cls(depth, float(curve[depth - 1]), math.log(depth / half) / fall) if fall > FLAT else None

    def log_ranks(self, scores: npt.NDArray[np.float64]) -> Array:
        """Give the logarithm of the rank at which noise would reach each score above that of the anchor."""
        steps = np.log(scores) - math.log(self.score)
        found: Array = math.log(self.depth) - self.steepness * steps
        return found


def nearness(cosines: npt.ArrayLike) -> Array:
    """Give scores [n] from cosines of unit vectors: one over the squared distance, up to a factor that `evidence` ignores.

    Not the cosine itself: near 1 it hardly moves, while the distance to the nearest image may be a tenth of that to the next.
    """
    scores: Array = 1.0 / np.maximum(1.0 - np.asarray(cosines, np.float64), NEAREST)
    return scores
