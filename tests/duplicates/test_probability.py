"""Probabilities: as a statistician would fit them, monotone, and what they say is so."""

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
from polyvoc.experiments.fit.duplicates import fit_coefficients


def evidence(n: int, seed: int = 0) -> np.ndarray:
    """Evidence of pairs, of any strength."""
    rng = np.random.default_rng(seed)
    made = {
        "inliers": rng.integers(5, 500, n),
        "nats": rng.uniform(10, 500, n),
        "share": rng.random(n),
        "residual": rng.uniform(0.05, 5, n),
        "drift": rng.uniform(0.005, 0.5, n),
        "stretch": rng.uniform(1, 2, n),
        "cover": rng.random(n),
        "quarter": rng.uniform(-0.5, 1, n),
        "median": rng.uniform(-0.5, 1, n),
        "upper": rng.uniform(-0.5, 1, n),
        "coarse": rng.uniform(-0.5, 1, n),
    }
    return np.column_stack([made[name] for name in EVIDENCE])


def drawn(given: np.ndarray, weights: dict[str, float], intercept: float, seed: int = 1) -> np.ndarray:
    logits = intercept + columns(given, tuple(weights)) @ np.array(list(weights.values()))
    return np.random.default_rng(seed).random(len(given)) < 1 / (1 + np.exp(-logits))


def test_a_fit_finds_the_law_that_made_the_data() -> None:
    weights = {"ln inliers": 0.8, "share": 2.0, "ln residual": -1.0, "ln drift": -0.5, "ln stretch": -1.0}
    given = evidence(20_000)
    found = fit_coefficients(given, drawn(given, weights, -7.0), WITHOUT_PIXELS)
    assert found.intercept == pytest.approx(-7.0, abs=0.6)
    for name, value in weights.items():
        assert found.weights[name] == pytest.approx(value, abs=0.35), name


def test_nine_of_ten_are_nine_of_ten_on_other_pairs() -> None:
    weights = dict(zip(WITH_PIXELS, (0.5, 2.0, -0.5, -0.3, -0.5, -0.3, -0.5, -0.5, -0.3, -0.5), strict=True))
    given = evidence(8000)
    fitted = DuplicateProbability.fitted(given, drawn(given, weights, -5.0))
    other = evidence(8000, seed=5)
    pairs = np.zeros(len(other), PAIR)
    pairs["evidence"] = other
    told, so = fitted.probabilities(pairs), drawn(other, weights, -5.0, seed=6)
    for low, high in ((0.05, 0.3), (0.3, 0.7), (0.7, 0.95)):
        held = (told >= low) & (told < high)
        assert held.sum() > 100
        assert so[held].mean() == pytest.approx(told[held].mean(), abs=0.06)


def test_separable_pairs_do_not_run_away() -> None:
    given = evidence(200)
    given[:, EVIDENCE.index("median")] = np.where(np.arange(200) < 100, 0.98, 0.1)
    found = fit_coefficients(given, np.arange(200) < 100, WITH_PIXELS)
    assert all(np.isfinite(list(found.weights.values())))
    assert np.abs(list(found.weights.values())).max() < 100


@pytest.mark.parametrize("copies", [np.zeros(5), np.ones(5)])
def test_one_kind_alone_teaches_nothing(copies: np.ndarray) -> None:
    with pytest.raises(OptionError, match="both kinds"):
        fit_coefficients(evidence(5), copies, WITHOUT_PIXELS)


def test_what_is_shipped_is_plausible() -> None:
    known = shipped_duplicate_probability()
    assert known.source
    # inliers, nats, share, residual, drift, stretch, cover, quarter, median, upper, coarse
    copy = (600, 4000, 0.6, 0.1, 0.015, 1.0, 1, 0.98, 0.99, 0.995, 0.99)
    chance = (6, 12, 0.01, 4, 0.4, 1.4, 0.5, -0.2, 0.0, 0.2, 0.1)
    again = (150, 900, 0.15, 1.5, 0.2, 1.05, 1, 0.1, 0.4, 0.7, 0.8)
    pairs = np.zeros(6, PAIR)
    pairs["evidence"] = (copy, chance, again) * 2
    pairs["evidence"][3:, EVIDENCE.index("median")] = np.nan  # pixels that could not be read
    told = known.probabilities(pairs)
    assert told[0] > 0.95
    assert told[1] < 0.1
    assert told[2] < 0.3
    assert told[3] > told[5] > told[4]


def test_a_table_survives_json() -> None:
    known = shipped_duplicate_probability()
    assert DuplicateProbability.from_dict(json.loads(json.dumps(known.as_dict())), "here") == known


@pytest.mark.parametrize("values", [None, [], {}, {"format": "other"}, {"format": FORMAT, "seeing": 1}])
def test_damaged_tables_are_refused(values: object) -> None:
    with pytest.raises(DamagedError, match="here: not a table"):
        DuplicateProbability.from_dict(values, "here")
