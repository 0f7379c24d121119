"""Penalised logistic regression by Newton's method, for the probabilities of hits and of duplicates."""

from __future__ import annotations

import numpy as np

from polyvoc.search.probability import sigmoid
from polyvoc.types import Floats64

MAX_ROUNDS = 100
MAX_STEP = 5.0  # of a coefficient in a round: far from the optimum the curvature misleads
TOLERANCE = 1e-9


def logistic(columns: Floats64, targets: Floats64, penalty: Floats64, nonnegative: bool = False,
             centre: Floats64 | float = 0.0) -> Floats64:  # fmt: skip
    """Return the coefficients [d] that maximise the likelihood of targets 0 or 1 [n], given columns [n, d].

    Half the penalty [d] times the squared coefficients, less a `centre` [d], is subtracted from the log-likelihood. With
    nonnegative all coefficients but the first are 0 or more; the most negative one is fixed at 0 until none is left.
    """
    used, centres = np.ones(columns.shape[1], bool), np.broadcast_to(np.asarray(centre, np.float64), columns.shape[1:])
    while True:
        coefficients = np.zeros(columns.shape[1])
        coefficients[used] = _newton(columns[:, used], targets, penalty[used], centres[used])
        if not nonnegative or (coefficients[1:] >= 0).all():
            return coefficients
        used[1 + int(np.argmin(coefficients[1:]))] = False


def _newton(columns: Floats64, targets: Floats64, penalty: Floats64, centre: Floats64) -> Floats64:
    coefficients, ridge = np.zeros(columns.shape[1]), np.diag(penalty)
    for _ in range(MAX_ROUNDS):
        predicted = sigmoid(columns @ coefficients)
        gradient = columns.T @ (targets - predicted) - ridge @ (coefficients - centre)
        hessian = (columns * (predicted * (1 - predicted))[:, None]).T @ columns + ridge
        step = np.linalg.solve(hessian, gradient)
        coefficients += step * min(1.0, MAX_STEP / float(np.abs(step).max() or 1.0))
        if np.abs(step).max() < TOLERANCE:
            break
    return coefficients
