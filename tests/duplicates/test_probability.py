"""Duplicate probabilities: the fit recovers a known law, is calibrated, and the shipped coefficients are plausible."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polyvoc.duplicates.compare import EVIDENCE, PAIR
from polyvoc.duplicates.probability import (
    FORMAT,
    WITH_PIXELS,
    WITHOUT_PIXELS,
    DuplicateProbability,
    columns,
    shipped_duplicate_probability,
)
from polyvoc.errors import DamagedError, OptionError
from polyvoc.experiments.fit.duplicates import fit_coefficients, fit_duplicate_probability

# In the order of EVIDENCE: inliers, llr, share, residual, drift, stretch, cover, then correlations.
RANGES = ((5, 500), (10, 500), (0, 1), (0.05, 5), (0.005, 0.5), (1, 2), (0, 1), *[(-0.5, 1)] * 4)


def evidence(n: int, seed: int = 0) -> np.ndarray:
    """Evidence of pairs [n, len(EVIDENCE)], of any strength."""
    return np.random.default_rng(seed).uniform(*np.transpose(RANGES), (n, len(EVIDENCE)))


def drawn(given: np.ndarray, weights: dict[str, float], intercept: float, seed: int = 1) -> np.ndarray:
    logits = intercept + columns(given, tuple(weights)) @ np.array(list(weights.values()))
    return np.random.default_rng(seed).random(len(given)) < 1 / (1 + np.exp(-logits))


def test_fit_recovers_the_law_that_made_the_data() -> None:
    weights = {"ln inliers": 0.8, "share": 2.0, "ln residual": -1.0, "ln drift": -0.5, "ln stretch": -1.0}
    given = evidence(20_000)
    fitted = fit_coefficients(given, drawn(given, weights, -7.0), WITHOUT_PIXELS)
    assert fitted.intercept == pytest.approx(-7.0, abs=0.6)
    for name, value in weights.items():
        assert fitted.weights[name] == pytest.approx(value, abs=0.35), name


def test_fit_is_calibrated_on_other_pairs() -> None:
    weights = dict(zip(WITH_PIXELS, (0.5, 2.0, -0.5, -0.3, -0.5, -0.3, -0.5, -0.5, -0.3, -0.5), strict=True))
    given = evidence(8000)
    fitted = fit_duplicate_probability(given, drawn(given, weights, -5.0))
    other = evidence(8000, seed=5)
    pairs = np.zeros(len(other), PAIR)
    pairs["evidence"] = other
    predicted, copies = fitted.probabilities(pairs), drawn(other, weights, -5.0, seed=6)
    for low, high in ((0.05, 0.3), (0.3, 0.7), (0.7, 0.95)):
        chosen = (predicted >= low) & (predicted < high)
        assert chosen.sum() > 100
        assert copies[chosen].mean() == pytest.approx(predicted[chosen].mean(), abs=0.06)


def test_separable_pairs_give_finite_coefficients_and_one_class_none() -> None:
    given = evidence(200)
    given[:, EVIDENCE.index("median")] = np.where(np.arange(200) < 100, 0.98, 0.1)
    fitted = fit_coefficients(given, np.arange(200) < 100, WITH_PIXELS)
    assert np.abs(list(fitted.weights.values())).max() < 100
    for copies in (np.zeros(200), np.ones(200)):
        with pytest.raises(OptionError, match="copies and pairs that are not"):
            fit_coefficients(given, copies, WITHOUT_PIXELS)


def test_shipped_coefficients_are_plausible() -> None:
    shipped = shipped_duplicate_probability()
    assert shipped.source
    # inliers, llr, share, residual, drift, stretch, cover, q25, median, q75, tone_correlation
    copy = (600, 4000, 0.6, 0.1, 0.015, 1.0, 1, 0.98, 0.99, 0.995, 0.99)
    unrelated = (6, 12, 0.01, 4, 0.4, 1.4, 0.5, -0.2, 0.0, 0.2, 0.1)
    second_shot = (150, 900, 0.15, 1.5, 0.2, 1.05, 1, 0.1, 0.4, 0.7, 0.8)
    pairs = np.zeros(6, PAIR)
    pairs["evidence"] = (copy, unrelated, second_shot) * 2
    pairs["evidence"][3:, EVIDENCE.index("median")] = np.nan  # pixels that could not be read
    predicted = shipped.probabilities(pairs)
    assert predicted[0] > 0.95 and predicted[1] < 0.1 and predicted[2] < 0.3
    assert predicted[3] > predicted[5] > predicted[4]
    assert DuplicateProbability.from_dict(json.loads(json.dumps(shipped.as_dict())), "here") == shipped


@pytest.mark.parametrize("values", [None, [], {}, {"format": "other"}, {"format": FORMAT, "with_pixels": 1}])
def test_damaged_tables_raise(values: object) -> None:
    with pytest.raises(DamagedError, match="here: not a table"):
        DuplicateProbability.from_dict(values, "here")
