"""Probability that a pair of images are copies: logistic regression on the evidence of the pair.

The coefficients are fitted by `experiments.fit.duplicates`.
"""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from polyvoc.duplicates.compare import EVIDENCE, Pairs
from polyvoc.errors import DamagedError
from polyvoc.search.probability import sigmoid
from polyvoc.types import Array, Floats64

FORMAT = "polyvoc duplicate probability"
SIMILARITY = ("q25", "median", "q75", "tone_correlation")
# Columns of the regression: logarithms of what spans orders of magnitude.
WITHOUT_PIXELS = ("ln inliers", "share", "ln residual", "ln drift", "ln stretch")
WITH_PIXELS = (*WITHOUT_PIXELS, *(f"ln unlike {name}" for name in SIMILARITY), "frame only")
# Below these limits smaller is not better: a pair that is exact in one respect must not make up for another.
MIN_UNLIKE = 0.02  # 1 - correlation
MIN_RESIDUAL, MIN_DRIFT = 0.2, 0.05  # pixels, diameters
MIN_STRETCH = 0.003  # ln of the ratio of axes
# The same frame around another picture: exact where it agrees, but most does not.
FRAME_MEDIAN, FRAME_TONES = 0.5, 0.85  # correlations below which a pair shares a frame only


@dataclass(frozen=True)
class Coefficients:
    """An intercept and one coefficient per column."""

    intercept: float
    weights: dict[str, float]

    def probabilities(self, evidence: Array) -> Floats64:
        """Return the probability of every pair [P] by its evidence [P, len(EVIDENCE)]."""
        return sigmoid(self.intercept + columns(evidence, tuple(self.weights)) @ np.array(list(self.weights.values())))


@dataclass(frozen=True)
class DuplicateProbability:
    """Coefficients for pairs whose pixels were compared, and for pairs whose pixels could not be read."""

    with_pixels: Coefficients
    without_pixels: Coefficients
    source: str = ""  # what they were fitted on

    def probabilities(self, pairs: Pairs) -> Floats64:
        """Return the probability that each pair [P] are copies."""
        evidence = pairs["evidence"].astype(np.float64)
        complete = np.isfinite(evidence).all(axis=1)
        result = np.empty(len(pairs))
        result[complete] = self.with_pixels.probabilities(evidence[complete])
        result[~complete] = self.without_pixels.probabilities(evidence[~complete])
        return result

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Any, file: str) -> Self:
        """Read what `as_dict` returned; raise DamagedError, naming the file, if it is something else."""
        try:
            if values["format"] != FORMAT:
                raise ValueError
            with_pixels, without_pixels = (
                Coefficients(float(values[key]["intercept"]), {name: float(values[key]["weights"][name]) for name in names})
                for key, names in (("with_pixels", WITH_PIXELS), ("without_pixels", WITHOUT_PIXELS))
            )
            return cls(with_pixels, without_pixels, str(values["source"]))
        except (KeyError, TypeError, ValueError):
            raise DamagedError(f"{file}: not a table of duplicate probabilities; install polyvoc again") from None


@cache
def shipped_duplicate_probability() -> DuplicateProbability:
    """Return the coefficients that come with the package."""
    path = importlib.resources.files("polyvoc") / "data" / "duplicate_probability.json"
    return DuplicateProbability.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))


def columns(evidence: Array, names: tuple[str, ...]) -> Floats64:
    """Return columns of the regression [P, len(names)] from evidence [P, len(EVIDENCE)]."""
    values = dict(zip(EVIDENCE, np.asarray(evidence, np.float64).T, strict=True))
    available = {
        "ln inliers": np.log(np.maximum(values["inliers"], 1)),
        "share": values["share"],
        "ln residual": np.log(np.maximum(values["residual"], MIN_RESIDUAL)),
        "ln drift": np.log(np.maximum(values["drift"], MIN_DRIFT)),
        "ln stretch": np.log(np.maximum(np.log(np.maximum(values["stretch"], 1)), MIN_STRETCH)),
        "frame only": ((values["median"] < FRAME_MEDIAN) & (values["tone_correlation"] < FRAME_TONES)).astype(np.float64),
        **{f"ln unlike {name}": np.log(np.maximum(1 - values[name], MIN_UNLIKE)) for name in SIMILARITY},
    }
    return np.column_stack([available[name] for name in names])
