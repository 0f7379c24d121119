"""Duplicate probabilities: the fit recovers a known law, is calibrated, and the shipped coefficients are plausible."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polyvoc.duplicates.compare import EVIDENCE, PAIR
from polyvoc.duplicates.decisions import COPY, DIFFERENT, SAME, VERDICTS, Decision
from polyvoc.duplicates.probability import (
    COPY_COLUMNS,
    FORMAT,
    WITHOUT_PIXELS,
    DuplicateProbability,
    Line,
    columns,
    duplicate_probability,
    shipped_duplicate_probability,
)
from polyvoc.errors import DamagedError, OptionError
from polyvoc.experiments.fit.duplicates import (
    A_COPY,
    ANOTHER_SHOT,
    OTHER,
    fit_coefficients,
    fit_duplicate_probability,
    fit_line,
    fit_lines,
)
from polyvoc.index.catalogue import IndexSettings
from polyvoc.index.folder import DUPLICATE_LINES

RANGES = {
    "inliers": (5, 500), "llr": (10, 500), "share": (0, 1), "residual": (0.05, 5), "drift": (0.005, 0.5), "stretch": (1, 2),
    "cover": (0, 1), "followed": (0, 1), "shift": (0.01, 5), "shift_q90": (0.02, 8), "bend": (0.005, 4), "points": (60, 640),
}  # fmt: skip


def evidence(n: int, seed: int = 0) -> np.ndarray:
    """Evidence of pairs [n, len(EVIDENCE)], of any strength; correlations where no range is given."""
    return np.random.default_rng(seed).uniform(
        *np.transpose([RANGES.get(name, (-0.5, 1)) for name in EVIDENCE]), (n, len(EVIDENCE))
    )


def drawn(given: np.ndarray, weights: dict[str, float], intercept: float, seed: int = 1) -> np.ndarray:
    logits = intercept + columns(given, tuple(weights)) @ np.array(list(weights.values()))
    return np.random.default_rng(seed).random(len(given)) < 1 / (1 + np.exp(-logits))


def as_pairs(*rows: dict[str, float]) -> np.ndarray:
    """Pairs of some evidence; correlations that are not given are those of `like`."""
    pairs = np.zeros(len(rows), PAIR)
    for pair, row in zip(pairs, rows, strict=True):
        pair["evidence"] = [row.get(name, row["like"]) for name in EVIDENCE]
    return pairs


def test_fit_recovers_the_law_that_made_the_data() -> None:
    weights = {"ln inliers": 0.8, "ln llr": 0.0, "share": 2.0, "ln residual": -1.0, "ln drift": -0.5, "ln stretch": -1.0}
    given = evidence(20_000)
    fitted = fit_coefficients(given, drawn(given, weights, -7.0), WITHOUT_PIXELS)
    assert fitted.intercept == pytest.approx(-7.0, abs=0.9)
    for name, value in weights.items():
        assert fitted.weights[name] == pytest.approx(value, abs=0.35), name


def test_fit_is_calibrated_on_other_pairs() -> None:
    same, copy = {"share": 3.0, "followed": 2.0}, {"ln bend": -1.0, "ln shift": -0.7}
    given, other = evidence(8000), evidence(8000, seed=5)

    def classes(of: np.ndarray, seed: int) -> np.ndarray:
        return np.where(drawn(of, same, -2.0, seed), np.where(drawn(of, copy, 0.0, seed + 1), A_COPY, ANOTHER_SHOT), OTHER)

    fitted = fit_duplicate_probability(given, classes(given, 1))
    pairs, truth = np.zeros(len(other), PAIR), classes(other, 11)
    pairs["evidence"] = other
    for predicted, wanted in zip(fitted.probabilities(pairs), (A_COPY, ANOTHER_SHOT), strict=True):
        for low, high in ((0.05, 0.3), (0.3, 0.6), (0.6, 0.9)):
            chosen = (predicted >= low) & (predicted < high)
            assert chosen.sum() > 100
            assert (truth[chosen] == wanted).mean() == pytest.approx(predicted[chosen].mean(), abs=0.08)
    assert (sum(fitted.probabilities(pairs)) <= 1).all()


def test_separable_pairs_give_finite_coefficients_and_one_class_none() -> None:
    given = evidence(200)
    given[:, EVIDENCE.index("median")] = np.where(np.arange(200) < 100, 0.98, 0.1)
    fitted = fit_coefficients(given, np.arange(200) < 100, COPY_COLUMNS)
    assert np.abs(list(fitted.weights.values())).max() < 100
    for copies in (np.zeros(200), np.ones(200)):
        with pytest.raises(OptionError, match="pairs of either kind"):
            fit_coefficients(given, copies, WITHOUT_PIXELS)


CLEAR = {
    "inliers": 600, "llr": 5000, "share": 0.6, "residual": 0.1, "drift": 0.015, "stretch": 1.0, "cover": 1, "followed": 0.99,
    "shift": 0.03, "shift_q90": 0.08, "bend": 0.01, "points": 640, "like": 0.98,
}  # fmt: skip
UNRELATED = {
    "inliers": 6, "llr": 12, "share": 0.01, "residual": 4, "drift": 0.4, "stretch": 1.4, "cover": 0.5, "followed": 0.05,
    "shift": 3, "shift_q90": 6, "bend": 3, "points": 500, "like": 0.1,
}  # fmt: skip
SECOND = {
    "inliers": 150, "llr": 900, "share": 0.25, "residual": 0.8, "drift": 0.1, "stretch": 1.02, "cover": 1, "followed": 0.8,
    "shift": 0.8, "shift_q90": 2, "bend": 1.0, "points": 640, "like": 0.6,
}  # fmt: skip
TRIPOD = CLEAR | {"shift": 0.25, "shift_q90": 0.5, "bend": 0.25, "residual": 0.36, "like": 0.93}  # nothing moved but the camera


def test_shipped_coefficients_are_plausible() -> None:
    shipped = shipped_duplicate_probability()
    assert shipped.source
    pairs = as_pairs(CLEAR, UNRELATED, SECOND, TRIPOD)
    copy, shot = shipped.probabilities(pairs)
    assert copy[0] > 0.99 and shot[0] < 0.01
    assert copy[1] < 0.01 and shot[1] < 0.5
    assert copy[2] < 0.01 and shot[2] > 0.5
    assert copy[3] < 0.9
    pairs["evidence"][:, EVIDENCE.index("median")] = np.nan  # pixels that could not be read
    copy, _ = shipped.probabilities(pairs)
    assert copy[0] > copy[2] > copy[1]
    assert copy[0] < 0.99, "the features alone are no reason to move a file"
    assert DuplicateProbability.from_dict(json.loads(json.dumps(shipped.as_dict())), "here") == shipped


@pytest.mark.parametrize("values", [None, [], {}, {"format": "other"}, {"format": FORMAT, "scene": 1}])
def test_damaged_tables_raise(values: object) -> None:
    with pytest.raises(DamagedError, match="here: not a table"):
        DuplicateProbability.from_dict(values, "here")


# -- lines fitted to verdicts


def decisions(n: int, verdict: str, row: dict[str, float], first: int = 0) -> list[Decision]:
    (pair,) = as_pairs(row)
    return [Decision(f"{verdict}{first + number}", f"other{number}", verdict, 1, pair["evidence"]) for number in range(n)]


def test_a_line_moves_the_probabilities_towards_the_verdicts() -> None:
    """Of pairs that look like copies, the user calls most another shot: a scanner of prints, perhaps."""
    doubtful = CLEAR | {"shift": 0.15, "shift_q90": 0.3, "bend": 0.08, "like": 0.96}
    scene, copy = fit_lines([*decisions(5, COPY, CLEAR), *decisions(25, SAME, doubtful)])
    assert scene == Line(), "nothing was called different"
    before, after = (
        table.probabilities(as_pairs(doubtful)).copy[0]
        for table in (shipped_duplicate_probability(), shipped_duplicate_probability().with_lines(scene, copy))
    )
    assert after < max(before, 0.3)
    assert fit_line(np.array([-8.0, -8.0, 8.0, 8.0]), np.array([0, 0, 1, 1])) == pytest.approx(Line(), abs=0.2)


def test_a_line_recovers_the_law_of_many_verdicts() -> None:
    logits = np.random.default_rng(1).normal(0, 4, 5000)
    labels = np.random.default_rng(2).random(5000) < 1 / (1 + np.exp(-(1.0 + 0.5 * logits)))
    assert fit_line(logits, labels) == pytest.approx((1.0, 0.5), abs=0.15)


def test_too_few_verdicts_are_one_line() -> None:
    few = [*decisions(10, COPY, CLEAR), *decisions(9, SAME, SECOND)]
    for given in ([], few, decisions(40, COPY, CLEAR), [*decisions(40, COPY, CLEAR), *decisions(4, DIFFERENT, UNRELATED)]):
        with pytest.raises(OptionError, match="too few: decide on at least 20, and on 5 of two kinds") as error:
            fit_lines(given)
        assert "\n" not in str(error.value)
    unknown = [Decision(str(number), "x", VERDICTS[number % 3], 1) for number in range(60)]
    with pytest.raises(OptionError, match="0 verdicts on compared pairs"):
        fit_lines(unknown)
    assert fit_lines([*few, *decisions(1, COPY, CLEAR, first=50)])[1] != Line()


def test_an_index_has_the_lines_of_its_verdicts() -> None:
    settings = IndexSettings(Path("catalogue.sqlite"))
    assert duplicate_probability(settings) is shipped_duplicate_probability()
    settings[DUPLICATE_LINES] = {"scene": [0.0, 1.0], "copy": [-2.0, 0.5]}
    found = duplicate_probability(settings)
    assert (found.scene.line, found.copy.line) == (Line(), Line(-2.0, 0.5))
    pairs = as_pairs(CLEAR)
    assert found.probabilities(pairs).copy < shipped_duplicate_probability().probabilities(pairs).copy
    for odd in ([], {"scene": [0, 1]}, {"scene": [0, 1], "copy": [0, -1]}, {"scene": [0, 1], "copy": [0]}):
        settings[DUPLICATE_LINES] = odd
        with pytest.raises(DamagedError, match="duplicate_lines"):
            duplicate_probability(settings)
