"""Fit of the probability that two photographs are duplicates, by logistic regression on the evidence of pairs."""

from __future__ import annotations

import numpy as np

from polyvoc.duplicates.probability import Coefficients, columns
from polyvoc.errors import OptionError
from polyvoc.experiments.fit.regression import logistic
from polyvoc.types import Array

RIDGE = 0.3  # weight of the penalty on coefficients, per unit of the spread of a column


def fit_coefficients(evidence: Array, copies: Array, names: tuple[str, ...]) -> Coefficients:
    """Fit coefficients by penalised likelihood (ridge on the standardised columns)."""
    given, targets = columns(evidence, names), np.asarray(copies, np.float64)
    if not 0 < targets.sum() < len(targets):
        raise OptionError("coefficients need pairs of both kinds: copies, and others")
    mean, spread = given.mean(axis=0), np.maximum(given.std(axis=0), 1e-9)
    design = np.column_stack([np.ones(len(given)), (given - mean) / spread])
    fitted = logistic(design, targets, np.array([0.0, *[RIDGE] * len(names)]))
    weights = fitted[1:] / spread
    return Coefficients(float(fitted[0] - weights @ mean), dict(zip(names, weights.tolist(), strict=True)))
