"""Logistic regression with a penalty on its coefficients, by Newton's method: what probabilities are fitted with."""

from __future__ import annotations

import numpy as np

from polyvoc.search.probability import sigmoid
from polyvoc.types import Floats64

ROUNDS = 100  # at most
STRIDE = 5.0  # by which a coefficient changes in a round, at most: far from the end the curve misleads
NEAR = 1e-9  # a change that is none


def logistic(columns: Floats64, wanted: Floats64, penalty: Floats64) -> Floats64:
    """Return the coefficients [d] that make the wanted 0 or 1 [n] most probable, by columns [n, d].

    From the logarithm of that probability half the penalty [d] times the squares of the coefficients is taken.
    """
    found, ridge = np.zeros(columns.shape[1]), np.diag(penalty)
    for _ in range(ROUNDS):
        chance = sigmoid(columns @ found)
        slope = columns.T @ (wanted - chance) - ridge @ found
        bend = (columns * (chance * (1 - chance))[:, None]).T @ columns + ridge
        step = np.linalg.solve(bend, slope)
        found += step * min(1.0, STRIDE / float(np.abs(step).max() or 1.0))
        if np.abs(step).max() < NEAR:
            break
    return found
