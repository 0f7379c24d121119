"""How probable is it that a hit shows the same thing? A small logistic model of what a search knows of a hit, fitted to data.

What is known must mean the same in every collection, for every query and by every rule of scoring. Two things do:

- *Standing*: -ln of the rank at which the noise of the query's own scores would reach the score of the hit by words
  (`fusion.Noise`). It is the E-value of sequence search (Karlin & Altschul, PNAS 1990): how many unrelated images of this
  collection would score as much? Scale, rule and size of the collection cancel. Among the noise it is -ln of the rank.
- *Weight*: what the matches that agree on one arrangement say together, in nats (`evidence.py`).

    ln p / (1 - p) = a + b standing                             by words alone
    ln p / (1 - p) = a + b standing + c ln(1 + weight / 20)     verified

with b, c >= 0: more votes or more inliers never make a hit less probable. Whether the query has an answer at all enters
through a: it had one in half of the searches that the coefficients were fitted to (`lab/confidences.py`).
"""

from __future__ import annotations

import importlib.resources
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from polyvoc.errors import DamagedError, OptionError
from polyvoc.fusion import DEPTH, Noise

FORMAT = "polyvoc confidence"
NEEDED = DEPTH  # of the best scores of a query: what its noise is read off
USUAL = 20.0  # nats: weights far below count as they are, those far above by their logarithm
MEASURED = (64, 128)  # bits of signatures that weigh matches in nats


@dataclass(frozen=True)
class Confidence:
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
class Standings:
    """How hits of one query stand out from the noise of its scores by words."""

    noise: Noise | None  # None: scores do not tell
    lowest: int  # a rank that every image not among the best has, at least

    @classmethod
    def of(cls, best: Sequence[float], n_images: int) -> Self:
        """Read it off the best scores of a collection, best first; `NEEDED` of them, or all that are above 0."""
        return cls(Noise.of(best, n_images), len(best) + 1)

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
def shipped() -> Confidence:
    """Give the coefficients that come with the package."""
    path = importlib.resources.files("polyvoc") / "tables" / "confidence.json"
    return Confidence.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))


def in_words(probability: float) -> str:
    """Give a probability as people say it: 97 %. Nothing is certain, and nothing impossible."""
    whole = math.floor(100 * probability + 0.5)
    return "< 1 %" if whole < 1 else "> 99 %" if whole > 99 else f"{whole} %"


def nothing_found(sure: float) -> str:
    """Say that no hit is left, to somebody who wanted to be so sure."""
    return f"nothing found that shows the same thing with a probability of {100 * sure:g} % or more"


def _logistic(x: float) -> float:
    """Give 1 / (1 + exp(-x)) without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
