"""How sure is it that two photographs are copies? The evidence of a pair becomes a probability: logistic regression."""

from __future__ import annotations

import numpy as np

from polyvoc.duplicates.probability import Coefficients, columns
from polyvoc.errors import OptionError
from polyvoc.experiments.fit.regression import logistic
from polyvoc.types import Array

RIDGE = 0.3  # weight of the penalty on coefficients, per unit of the spread of a column


def fit_coefficients(evidence: Array, copies: Array, names: tuple[str, ...]) -> Coefficients:
    """Fit coefficients by penalised likelihood (ridge on the standardised columns)."""
    given, wanted = columns(evidence, names), np.asarray(copies, np.float64)
    if not 0 < wanted.sum() < len(wanted):
        raise OptionError("coefficients need pairs of both kinds: copies, and others")
    mean, spread = given.mean(axis=0), np.maximum(given.std(axis=0), 1e-9)
    design = np.column_stack([np.ones(len(given)), (given - mean) / spread])
    found = logistic(design, wanted, np.array([0.0, *[RIDGE] * len(names)]))
    weights = found[1:] / spread
    return Coefficients(float(found[0] - weights @ mean), dict(zip(names, weights.tolist(), strict=True)))
