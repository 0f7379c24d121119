"""Evidence -> probability."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from polyvoc.duplicates.compare import EVIDENCE, Pairs
from polyvoc.errors import DamagedError
from polyvoc.search.probability import sigmoid
from polyvoc.types import Array, Floats64

if TYPE_CHECKING:
    pass

FORMAT = "polyvoc copies"
# Columns that the regression sees: logarithms of what spans orders of magnitude.
WITHOUT_PIXELS = ("ln inliers", "share", "ln residual", "ln drift", "ln stretch")
WITH_PIXELS = (*WITHOUT_PIXELS, "ln unlike quarter", "ln unlike median", "ln unlike upper", "ln unlike coarse", "other")
LIKENESS = ("quarter", "median", "upper", "coarse")
# What is good enough is not better: a pair that is exact in one respect must not make up for another.
NEAR = 0.02  # correlations above 1 - NEAR are all the same
EXACT, STEADY = 0.2, 0.05  # pixels and diameters: residuals and drifts below are all the same
UNSTRETCHED = 0.003  # stretches below 1.003 are all the same
HALF, TONES = 0.5, 0.85  # correlations: half of the tiles are less alike, and so are the tones


@dataclass(frozen=True)
class Coefficients:
    """An intercept and one coefficient per column."""

    intercept: float
    weights: dict[str, float]

    def probabilities(self, evidence: Array) -> Floats64:
        """Give the probability of every pair [P] by its evidence [P, columns]."""
        logits = self.intercept + columns(evidence, tuple(self.weights)) @ np.array(list(self.weights.values()))
        return sigmoid(logits)


@dataclass(frozen=True)
class DuplicateProbability:
    """What turns evidence into probabilities."""

    seeing: Coefficients
    blind: Coefficients
    source: str = ""  # what it was fitted on

    @classmethod
    def fitted(cls, evidence: Array, copies: Array, source: str = "") -> Self:
        """Fit it to the evidence of pairs [P, columns] and to whether they are copies [P]."""
        from polyvoc.experiments.fit.duplicates import fit_coefficients

        seen = np.isfinite(evidence).all(axis=1)
        return cls(
            fit_coefficients(evidence[seen], copies[seen], WITH_PIXELS),
            fit_coefficients(evidence, copies, WITHOUT_PIXELS),
            source,
        )

    def probabilities(self, pairs: Pairs) -> Floats64:
        """Give the probability that each pair [P] is one of copies."""
        evidence = pairs["evidence"].astype(np.float64)
        seen = np.isfinite(evidence).all(axis=1)
        told = np.empty(len(pairs))
        told[seen] = self.seeing.probabilities(evidence[seen])
        told[~seen] = self.blind.probabilities(evidence[~seen])
        return told

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> Self:
        """Read what `as_dict` gave, or say that it is damaged; `where` names the file."""
        try:
            if values["format"] != FORMAT:
                raise ValueError
            seeing, blind = (
                Coefficients(
                    float(values[name]["intercept"]), {column: float(values[name]["weights"][column]) for column in wanted}
                )
                for name, wanted in (("seeing", WITH_PIXELS), ("blind", WITHOUT_PIXELS))
            )
            return cls(seeing, blind, str(values["source"]))
        except (KeyError, TypeError, ValueError):
            raise DamagedError(f"{where}: not a table of coefficients for copies; install polyvoc again") from None


@cache
def shipped_duplicate_probability() -> DuplicateProbability:
    """Give the coefficients that come with the package."""
    path = importlib.resources.files("polyvoc") / "data" / "duplicate_probability.json"
    return DuplicateProbability.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))


def columns(evidence: Array, names: tuple[str, ...]) -> Floats64:
    """Give what the regression sees [P, len(names)] of evidence [P, len(EVIDENCE)]."""
    values = dict(zip(EVIDENCE, np.asarray(evidence, np.float64).T, strict=True))
    known = {
        "ln inliers": np.log(np.maximum(values["inliers"], 1)),
        "share": values["share"],
        "ln residual": np.log(np.maximum(values["residual"], EXACT)),
        "ln drift": np.log(np.maximum(values["drift"], STEADY)),
        "ln stretch": np.log(np.maximum(np.log(np.maximum(values["stretch"], 1)), UNSTRETCHED)),
        # The same frame around another picture: exact where it agrees, but most does not.
        "other": ((values["median"] < HALF) & (values["coarse"] < TONES)).astype(np.float64),
        **{f"ln unlike {name}": np.log(np.maximum(1 - values[name], NEAR)) for name in LIKENESS},
    }
    return np.column_stack([known[name] for name in names])
