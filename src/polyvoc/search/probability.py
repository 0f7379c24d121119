"""Probability of a hit."""

from __future__ import annotations

import importlib.resources
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.types import Floats64

DEPTH = 100  # rank where a curve is taken to be noise ...
SHARE = 4  # ... or at a quarter of the images, if that is less
FLAT = 1e-9  # a fall of this many nats is rounding


@dataclass(frozen=True)
class NoiseCurve:
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

    def log_ranks(self, scores: npt.NDArray[np.float64]) -> Floats64:
        """Give the logarithm of the rank at which noise would reach each score above that of the anchor."""
        steps = np.log(scores) - math.log(self.score)
        found: Floats64 = math.log(self.depth) - self.steepness * steps
        return found


FORMAT = "polyvoc confidence"
NEEDED = DEPTH  # of the best scores of a query: what its noise is read off
USUAL = 20.0  # nats: weights far below count as they are, those far above by their logarithm
MEASURED = (64, 128)  # bits of signatures that weigh matches in nats


@dataclass(frozen=True)
class HitProbability:
    """Coefficients of the probability of a hit, and what they were fitted on."""

    votes: tuple[float, float]  # a, b
    verified: tuple[float, float, float]  # a, b, c
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse coefficients that would make a hit less probable for more votes or inliers."""
        if (len(self.votes), len(self.verified)) != (2, 3) or not all(map(math.isfinite, (*self.votes, *self.verified))):
            raise OptionError(f"coefficients {self.votes} and {self.verified} should be 2 and 3 numbers")
        if min(*self.votes[1:], *self.verified[1:]) < 0:
            raise OptionError(f"coefficients {self.votes} and {self.verified} should be 0 or more, but for the first of each")

    def probability(self, standing: float, weight: float | None = None) -> float:
        """Give the probability of a hit by its standing and, if it was verified, the nats of its inliers."""
        if weight is None:
            a, b = self.votes
            return _logistic(a + b * standing)
        a, b, c = self.verified
        return _logistic(a + b * standing + c * math.log1p(weight / USUAL))

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"format": FORMAT, "source": self.source, "votes": list(self.votes), "verified": list(self.verified)}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> Self:
        """Read what `as_dict` gave, or say that it is damaged; `where` names the file."""
        try:
            if values["format"] != FORMAT:
                raise ValueError
            (a, b), (d, e, f) = (map(float, values[name]) for name in ("votes", "verified"))
            return cls((a, b), (d, e, f), str(values["source"]))
        except (KeyError, TypeError, ValueError, OptionError):
            raise DamagedError(f"{where}: not a table of confidence; install polyvoc again") from None


@dataclass(frozen=True)
class NoiseRanks:
    """How hits of one query stand out from the noise of its scores by words."""

    noise: NoiseCurve | None  # None: scores do not tell
    lowest: int  # a rank that every image not among the best has, at least

    @classmethod
    def of(cls, best: Sequence[float], n_images: int) -> Self:
        """Read it off the best scores of a collection, best first; `NEEDED` of them, or all that are above 0."""
        return cls(NoiseCurve.of(best, n_images), len(best) + 1)

    def standing(self, score: float | None, rank: int) -> float:
        """Give the standing of a hit by its score and its rank by words, from 1; None if it was not among the best."""
        if score is None:
            return -math.log(self.lowest)
        if self.noise is None:
            return -math.log(rank)
        if score <= self.noise.score:
            return -math.log(max(rank, self.noise.depth))  # many may score as much as the anchor, the first of them above it
        return -float(self.noise.log_ranks(np.array([score]))[0])


@cache
def shipped_hit_probability() -> HitProbability:
    """Give the coefficients that come with the package."""
    path = importlib.resources.files("polyvoc") / "data" / "hit_probability.json"
    return HitProbability.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))


def probability_text(probability: float) -> str:
    """Give a probability as people say it: 97 %. Nothing is certain, and nothing impossible."""
    whole = math.floor(100 * probability + 0.5)
    return "< 1 %" if whole < 1 else "> 99 %" if whole > 99 else f"{whole} %"


def nothing_found_text(sure: float) -> str:
    """Say that no hit is left, to somebody who wanted to be so sure."""
    return f"nothing found that shows the same thing with a probability of {100 * sure:g} % or more"


def _logistic(x: float) -> float:
    """Give 1 / (1 + exp(-x)) without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def sigmoid(logits: Floats64) -> Floats64:
    """Give 1 / (1 + exp(-x)) without overflow."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -50, 50))))
