"""The probability that a hit shows the same thing: a small logistic model, fitted to data.

Its inputs mean the same in every collection, for every query and by every rule of scoring:

- *Noise rank*: -ln of the rank at which the noise of the query's own scores would reach the score of the hit by words
  (`NoiseCurve`). It is the E-value of sequence search (Karlin & Altschul, PNAS 1990): how many unrelated images of this
  collection would score as much? Scale, rule and size of the collection cancel. Among the noise it is -ln of the rank.
- *Weight*: the log-likelihood ratio of the matches that are consistent with one transform, in nats.

    ln p / (1 - p) = a + b noise_rank                             by words alone
    ln p / (1 - p) = a + b noise_rank + c ln(1 + weight / 20)     verified

with b, c >= 0: more votes or more inliers never make a hit less probable. Whether the query has a true hit at all enters
through a: it had one in half of the searches that the coefficients were fitted to (`experiments.fit.hit_probability`).
"""

from __future__ import annotations

import importlib.resources
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.options import DETECTOR_KINDS
from polyvoc.scoring.segments import Candidate
from polyvoc.types import SIFT, FeatureKind, Floats64
from polyvoc.vocabulary.vocabulary import LEARNED

FORMAT = "polyvoc hit probability"
DEPTH = 100  # rank where a curve of scores is taken to be noise ...
SHARE = 4  # ... or at a quarter of the images, if that is less
FLAT = 1e-9  # a fall of this many nats is rounding
USUAL = 20.0  # nats: weights far below count as they are, those far above by their logarithm
LIKELY = 0.5  # a hit from this probability on is more likely right than wrong
KINDS = (FeatureKind(), DETECTOR_KINDS["orb"], *LEARNED.values())  # of features that coefficients come with polyvoc for
MEASURED = (64, 128)  # bits of signatures for which weights of matches are in nats


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

    def log_rank(self, score: float) -> float:
        """Return the logarithm of the rank at which noise would reach a score above that of the anchor."""
        return math.log(self.depth) - self.steepness * (math.log(score) - math.log(self.score))

    def log_ranks(self, scores: Floats64) -> Floats64:
        """Return the logarithm of the rank at which noise would reach each score above that of the anchor."""
        steps = np.log(scores) - math.log(self.score)
        ranks: Floats64 = math.log(self.depth) - self.steepness * steps
        return ranks


@dataclass(frozen=True)
class NoiseRanks:
    """How hits of one query rise above the noise of its scores by words."""

    noise: NoiseCurve | None  # None: the scores show no noise
    lowest: int  # a rank that every image not among the best has, at least

    @classmethod
    def of(cls, best: Sequence[float], n_images: int) -> Self:
        """Read it off the best scores of a collection, best first; `DEPTH` of them, or all that are above 0."""
        return cls(NoiseCurve.of(best, n_images), len(best) + 1)

    def noise_rank(self, score: float | None, rank: int) -> float:
        """Return the noise rank of a hit by its score and its rank by words, from 1; score None: not among the best."""
        if score is None:
            return -math.log(self.lowest)
        if self.noise is None:
            return -math.log(rank)
        if score <= self.noise.score:
            return -math.log(max(rank, self.noise.depth))  # many may score as much as the anchor, the first of them above it
        return -self.noise.log_rank(score)


@dataclass(frozen=True)
class HitProbability:
    """Coefficients of the probability of a hit, and what they were fitted on."""

    votes: tuple[float, float]  # a, b
    verified: tuple[float, float, float]  # a, b, c
    source: str = ""
    share: float = 1.0  # of its evidence that counts beside that of other kinds (`search.joint`)

    def __post_init__(self) -> None:
        """Raise OptionError for coefficients that would make a hit less probable for more votes or inliers."""
        if (len(self.votes), len(self.verified)) != (2, 3) or not all(map(math.isfinite, (*self.votes, *self.verified))):
            raise OptionError(f"coefficients {self.votes} and {self.verified} should be 2 and 3 numbers")
        if min(*self.votes[1:], *self.verified[1:]) < 0:
            raise OptionError(f"coefficients {self.votes} and {self.verified} should be 0 or more, but for the first of each")
        if not 0 <= self.share < math.inf:
            raise OptionError(f"share={self.share!r} should be a number, 0 or more")

    def of(self, noise_rank: float, weight: float | None = None) -> float:
        """Return the probability of a hit by its noise rank and, if it was verified, the nats of its inliers."""
        if weight is None:
            a, b = self.votes
            return logistic(a + b * noise_rank)
        a, b, c = self.verified
        return logistic(a + b * noise_rank + c * math.log1p(weight / USUAL))

    def rate(self, candidates: Sequence[Candidate], best: Sequence[Candidate], n_images: int) -> list[Candidate]:
        """Return candidates with their noise rank and probability. best: the ranking by words alone, of n images."""
        noise = NoiseRanks.of([one.score for one in best], n_images)
        ranks = {one.ref: (one.score, rank) for rank, one in enumerate(best, start=1)}
        rated = []
        for one in candidates:
            noise_rank = noise.noise_rank(*ranks.get(one.ref, (None, 0)))
            rated.append(replace(one, noise_rank=noise_rank, probability=self.of(noise_rank, one.weight)))
        return rated

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        coefficients = {"votes": list(self.votes), "verified": list(self.verified), "share": self.share}
        return {"format": FORMAT, "source": self.source, **coefficients}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> Self:
        """Read what `as_dict` returned; raise DamagedError, which names the file `where`, if it is something else."""
        try:
            if values["format"] != FORMAT:
                raise ValueError
            (a, b), (d, e, f) = (map(float, values[name]) for name in ("votes", "verified"))
            return cls((a, b), (d, e, f), str(values["source"]), float(values["share"]))
        except (KeyError, TypeError, ValueError, OptionError):
            raise DamagedError(f"{where}: not a table of hit probabilities; install polyvoc again") from None


def hit_probability_of(kind: FeatureKind, code_bits: int, bits: int) -> HitProbability | None:
    """Return the shipped coefficients for an index of such features, codes and signatures; None where nothing was measured."""
    measured = kind in KINDS and (code_bits in MEASURED or bits in MEASURED)
    return default_hit_probability(kind.name) if measured else None


def probability_file(kind: str) -> str:
    """Return the name of the file with the coefficients of a kind of features."""
    return "hit_probability.json" if kind == SIFT else f"hit_probability_{kind}.json"


@cache
def default_hit_probability(kind: str = SIFT) -> HitProbability:
    """Return the shipped coefficients of a kind of features."""
    path = importlib.resources.files("polyvoc") / "data" / probability_file(kind)
    return HitProbability.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))


def probability_text(probability: float) -> str:
    """Format a probability as percent: 97 %. Nothing is certain, and nothing impossible."""
    percent = math.floor(100 * probability + 0.5)
    return "< 1 %" if percent < 1 else "> 99 %" if percent > 99 else f"{percent} %"


def nothing_found_text(min_probability: float = 0.0, any_hits: bool = False, since: int | None = None) -> str:
    """Return the message for a search without likely hits: unlikely ones may be left, or all of them were dropped."""
    if any_hits:
        return "nothing found that is likely to show the same thing"
    if min_probability:
        return f"nothing found that shows the same thing with a probability of {100 * min_probability:g} % or more"
    among = "the index" if since is None else f"those added after commit {since}"
    return f"nothing found: no photograph of {among} shares a feature with it"


def logistic(x: float) -> float:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def sigmoid(logits: Floats64) -> Floats64:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -50, 50))))
