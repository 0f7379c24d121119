"""No other coefficients make the observed targets more probable than the fitted ones."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.experiments.fit.regression import logistic
from polyvoc.search.probability import sigmoid


def drawn(seed: int, n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    columns = np.column_stack([np.ones(n), rng.normal(0, 2, (n, 3))])
    return columns, (rng.random(n) < sigmoid(columns @ np.array([0.5, 1.0, -2.0, 0.0]))).astype(np.float64)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalty", [np.zeros(4), np.array([0.0, 0.3, 0.3, 0.3]), np.full(4, 10.0)])
def test_nothing_is_better(seed: int, penalty: np.ndarray) -> None:
    """The loss is convex: what is better than all that is near is better than all."""
    columns, targets = drawn(seed)

    def loss(coefficients: np.ndarray) -> float:
        logits = columns @ coefficients
        return float(np.logaddexp(0, logits).sum() - targets @ logits + penalty @ coefficients**2 / 2)

    fitted = logistic(columns, targets, penalty)
    for other in np.random.default_rng(seed).normal(0, 1, (50, 4)):
        for step in (1e-4, 1e-2, 1.0):
            assert loss(fitted + step * other) > loss(fitted)


def test_a_penalty_keeps_coefficients_finite() -> None:
    columns = np.column_stack([np.ones(40), np.linspace(-1, 1, 40)])
    fitted = logistic(columns, (columns[:, 1] > 0).astype(np.float64), np.array([0.0, 1e-3]))
    assert 5 < fitted[1] < 1e4
    assert abs(fitted[0]) < 1e-6
    np.testing.assert_allclose(sigmoid(np.array([-1e9, 0.0, 1e9])), [0, 0.5, 1], atol=1e-20)  # nothing overflows


def test_nonnegative_coefficients() -> None:
    rng = np.random.default_rng(0)
    columns = np.column_stack([np.ones(4000), rng.normal(0, 1, (4000, 2))])
    targets = (rng.random(4000) < sigmoid(columns @ np.array([0.5, 2.0, -1.0]))).astype(np.float64)
    constant, first, second = logistic(columns, targets, np.full(3, 1e-3), nonnegative=True)
    assert second == 0 and first > 1 and np.isfinite(constant)
