"""Fits the probability that a pair of images are copies: penalised logistic regression."""

from __future__ import annotations

import numpy as np

from polyvoc.duplicates.probability import WITH_PIXELS, WITHOUT_PIXELS, Coefficients, DuplicateProbability, columns
from polyvoc.errors import OptionError
from polyvoc.experiments.fit.regression import logistic
from polyvoc.types import Array

RIDGE = 0.3  # penalty on coefficients of standardised columns


def fit_duplicate_probability(evidence: Array, copies: Array, source: str = "") -> DuplicateProbability:
    """Fit the evidence of pairs [P, len(EVIDENCE)] to whether they are copies [P]; NaN: pixels that could not be read."""
    complete = np.isfinite(evidence).all(axis=1)
    return DuplicateProbability(
        fit_coefficients(evidence[complete], copies[complete], WITH_PIXELS),
        fit_coefficients(evidence, copies, WITHOUT_PIXELS),
        source,
    )


def fit_coefficients(evidence: Array, copies: Array, names: tuple[str, ...]) -> Coefficients:
    """Fit the coefficients of some columns by penalised likelihood (ridge on the standardised columns)."""
    values, labels = columns(evidence, names), np.asarray(copies, np.float64)
    if not 0 < labels.sum() < len(labels):
        raise OptionError("coefficients need pairs that are copies and pairs that are not")
    mean, spread = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-9)
    design = np.column_stack([np.ones(len(values)), (values - mean) / spread])
    solution = logistic(design, labels, np.array([0.0, *[RIDGE] * len(names)]))
    weights = solution[1:] / spread
    return Coefficients(float(solution[0] - weights @ mean), dict(zip(names, weights.tolist(), strict=True)))
