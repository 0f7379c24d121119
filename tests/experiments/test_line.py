"""Term 2: the fitted line is the planted one, its intervals come from groups, and its predictions are those by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.fit.line import Fit, PowerCurve, fit_line, fit_lines, fit_lines_pairs, line_figure, measure_line
from polyvoc.experiments.fit.true_matches import Observations, Sampling, find_pairs, observe, observe_pairs
from polyvoc.experiments.workbench import Workbench
from polyvoc.options import SetKind
from polyvoc.search.index import Index
from polyvoc.vocabulary.vocabulary import Vocabulary


def planted(a: float, b: float, seed: int = 0, groups: int = 60, features: int = 400) -> Observations:
    """Draw true matches of which each stands in the intersection with the probability a r + b, cut to [0, 1]."""
    rng = np.random.default_rng([7, seed])
    n = groups * features
    ratio = rng.beta(1, 4, n)
    true = rng.integers(1, 5, n)
    inside = rng.binomial(true, np.clip(a * ratio + b, 0, 1))
    return Observations(ratio, inside, true, np.repeat(np.arange(groups), features), groups, groups)


def planted_curve(b: float, power: float, seed: int = 0) -> Observations:
    """Draw true matches of which each stands in the intersection with the probability 1 - (1 - b) (1 - r)^power."""
    seen = planted(0.0, 0.5, seed)
    inside = np.random.default_rng([8, seed]).binomial(seen.true, 1 - (1 - b) * (1 - seen.ratio) ** power)
    return replace(seen, inside=inside)


SEEN = planted(0.7, 0.3)


def test_the_planted_line_is_found() -> None:
    for seed, (a, b) in enumerate([(0.7, 0.3), (0.4, 0.6), (0.9, 0.1)]):
        fitted = fit_line(planted(a, b, seed))
        assert fitted.free == pytest.approx((a, b), abs=0.03)
        assert fitted.tied == pytest.approx((a, b), abs=0.02)
        assert sum(fitted.tied) == pytest.approx(1)
        assert all(i.low < x < i.high for i, x in ((fitted.a, a), (fitted.b, b), (fitted.tied_b, b)))
        assert fitted.tied_b.high - fitted.tied_b.low < 0.03


def test_the_free_line_is_the_least_squares_of_the_bins() -> None:
    seen = planted(1.2, 0.2)
    fitted = fit_line(seen)
    bins = fitted.bins
    assert fitted.free == pytest.approx(np.polyfit(bins.ratio, bins.share, 1, w=np.sqrt(bins.weight)))
    assert fitted.raw == pytest.approx(np.polyfit(seen.ratio, seen.inside / seen.true, 1))
    steps = np.linspace(0, 1, 100_001)
    errors = [(bins.weight * ((1 - b) * bins.ratio + b - bins.share) ** 2).sum() for b in steps]
    assert fitted.tied[1] == pytest.approx(steps[np.argmin(errors)], abs=2e-5)


def test_the_planted_curve_is_found() -> None:
    for seed, (b, power) in enumerate([(0.3, 2.0), (0.5, 4.0), (0.2, 1.0), (0.4, 0.5)]):
        fitted = fit_line(planted_curve(b, power, seed))
        assert (fitted.curve.b, fitted.curve.power) == (pytest.approx(b, abs=0.02), pytest.approx(power, rel=0.1))
        assert fitted.power.low < power < fitted.power.high
        assert fitted.power.mean == fitted.curve.power
        assert (fitted.power.low > 1) == (power > 1)  # concave, beyond chance
    line = fit_line(SEEN)
    assert line.curve.power == pytest.approx(1, rel=0.1)
    assert line.power.low < 1 < line.power.high


def test_the_curve_is_the_least_squares_of_the_bins() -> None:
    fitted = fit_line(planted_curve(0.3, 3.0))
    bins = fitted.bins

    def error(b: float, power: float) -> float:
        return float((bins.weight * (1 - (1 - b) * (1 - bins.ratio) ** power - bins.share) ** 2).sum())

    least = error(fitted.curve.b, fitted.curve.power)
    assert least <= error(fitted.tied[1], 1.0)
    for b in np.linspace(0.2, 0.4, 41):
        assert least <= min(error(b, power) for power in np.linspace(2, 4, 401)) + 1e-9


def test_bins_by_hand() -> None:
    ratio, group = np.array([0.0, 0.1, 0.2, 0.6, 0.7, 1.0]), np.array([0, 0, 1, 1, 2, 2])
    seen = Observations(ratio, np.array([1, 0, 2, 3, 3, 4]), np.array([2, 1, 3, 4, 4, 4]), group, 3, 3)
    fitted = fit_line(seen, width=0.5, least=6)
    np.testing.assert_allclose(fitted.bins.ratio, [(0.1 + 3 * 0.2) / 6, (4 * 0.6 + 4 * 0.7 + 4) / 12])
    np.testing.assert_allclose(fitted.bins.share, [3 / 6, 10 / 12])
    np.testing.assert_allclose(fitted.bins.weight, [6, 12])
    with pytest.raises(OptionError, match=r"18 true matches of 3 pairs are too few to fit a line: 1 bins"):
        fit_line(seen, width=0.5, least=7)


def test_bins_with_few_true_matches_do_not_count() -> None:
    more = {"ratio": 0.999, "inside": 0, "true": 5, "group": 0}
    stray = replace(SEEN, **{name: np.append(getattr(SEEN, name), value) for name, value in more.items()})
    assert fit_line(stray).free == pytest.approx(fit_line(SEEN).free)
    assert fit_line(stray, least=1).free != pytest.approx(fit_line(SEEN, least=1).free)


def test_the_fit_is_repeatable_and_json() -> None:
    result = fit_line(SEEN).as_dict()
    assert json.loads(json.dumps(result, allow_nan=False)) == fit_line(SEEN).as_dict()
    assert result["true_matches"] == SEEN.true.sum()
    assert (result["features"], result["groups"], result["pairs"]) == (len(SEEN.ratio), 60, 60)
    assert len({len(result["bins"][name]) for name in ("ratio", "share", "weight", "low", "high")}) == 1


def test_one_group_has_no_interval() -> None:
    fitted = fit_line(replace(SEEN, group=np.zeros(60 * 400, np.int64)))
    assert fitted.free == pytest.approx(fit_line(SEEN).free)
    assert (fitted.b.low, fitted.b.high) == (-math.inf, math.inf)
    result = fitted.as_dict()
    assert result["intervals"]["tied_b"] == [None, None]
    assert json.dumps(result, allow_nan=False)
    assert result["intervals"]["power"] == [None, None]
    assert set(line_figure({"one": {"feature": fitted}}).panels[0].series[0].low) == {None}


def test_features_of_one_group_are_not_independent() -> None:
    shaken = replace(SEEN, inside=np.where(SEEN.group % 2, SEEN.true, SEEN.inside))  # half of the groups are another world
    mixed = np.random.default_rng(0).permutation(len(SEEN.group)) % 600
    grouped, scattered = (fit_line(one).tied_b for one in (shaken, replace(shaken, group=mixed)))
    assert grouped.high - grouped.low > 5 * (scattered.high - scattered.low)


def test_nothing_to_fit_and_impossible_bins() -> None:
    none = np.empty(0, np.int64)
    empty = Observations(np.empty(0), none, none, none, 5, 0)
    assert empty.share == 0
    with pytest.raises(OptionError, match="0 true matches of 0 pairs are too few"):
        fit_line(empty)
    with pytest.raises(OptionError, match="too few to test"):
        measure_line((0.6, 0.4), empty)
    for width, least in ((0.0, 20), (0.6, 20), (0.1, 0)):
        with pytest.raises(OptionError, match="width"):
            fit_line(SEEN, width, least)


# -- fitted here, tested there


def test_a_prediction_by_hand() -> None:
    seen = Observations(np.array([0.1, 0.6]), np.array([5, 18]), np.array([20, 20]), np.array([0, 1]), 2, 2)
    result = measure_line((0.5, 0.2), seen)
    chances = (0.25, 0.5)
    likelihood = (5 * math.log(0.25) + 15 * math.log(0.75) + 20 * math.log(0.5)) / 40
    assert result.likelihood == pytest.approx(likelihood)
    assert result.error == pytest.approx(math.sqrt(((chances[0] - 0.25) ** 2 + (chances[1] - 0.9) ** 2) / 2))
    share = 23 / 40
    assert result.constant_likelihood == pytest.approx(share * math.log(share) + (1 - share) * math.log(1 - share))
    assert result.gain == pytest.approx(likelihood - result.constant_likelihood)
    assert result.as_dict()["gain"] == result.gain


def test_the_right_line_predicts_best() -> None:
    seen = planted(0.7, 0.3, seed=1)
    right, wrong = measure_line((0.7, 0.3), seen), measure_line((0.3, 0.7), seen)
    assert right.gain > 0 > wrong.gain
    assert right.error < 0.02 < wrong.error
    level = measure_line((0.0, seen.share), seen)
    assert level.gain == pytest.approx(0)
    assert measure_line(fit_line(planted(0.7, 0.3, seed=2)).tied, seen).gain == pytest.approx(right.gain, abs=1e-3)
    # A line is cut as the rules cut it.
    seen = Observations(np.array([0.0, 1.0]), np.array([0, 30]), np.array([30, 30]), np.array([0, 1]), 2, 2)
    result = measure_line((3.0, -1.0), seen)
    assert math.isfinite(result.likelihood)
    assert result.error == pytest.approx(0, abs=1e-5)


def test_a_curve_predicts_what_a_line_cannot() -> None:
    seen = planted_curve(0.2, 4.0, seed=1)
    fitted = fit_line(planted_curve(0.2, 4.0, seed=2))
    errors = {name: measure_line(line, seen).error for name, line in {**fitted.lines, "curve": fitted.curve}.items()}
    assert errors["curve"] < 0.02 < errors["free"] < errors["tied"]
    assert measure_line(PowerCurve(0.3, 1.0), SEEN).as_dict() == pytest.approx(measure_line((0.7, 0.3), SEEN).as_dict())
    one = Observations(np.array([0.5]), np.array([30]), np.array([40]), np.array([0]), 1, 1)
    assert measure_line(PowerCurve(0.2, 2.0), one).error == pytest.approx(0.05)  # 1 - 0.8 / 4 = 0.8, and 30 of 40 are inside
    assert math.isfinite(measure_line(PowerCurve(-1.0, 1.0), one).likelihood)  # cut as the rules cut it


def test_the_figure() -> None:
    fits: dict[str, dict[SetKind, Fit]] = {
        "one": {"feature": fit_line(SEEN), "image": fit_line(planted_curve(0.2, 4.0))},
        "two": {"feature": fit_line(planted(1.2, 0.2))},
    }
    drawn = line_figure(fits)
    assert [panel.title for panel in drawn.panels] == ["one, feature sets", "one, image sets", "two, feature sets"]
    for panel, fitted in zip(drawn.panels, [fit for kinds in fits.values() for fit in kinds.values()], strict=True):
        points, free, tied, curve = panel.series
        assert (curve.y[0], curve.y[-1]) == (pytest.approx(fitted.curve.b), pytest.approx(1, abs=1e-5))
        assert points.y == pytest.approx(fitted.bins.share)
        assert all(low <= y <= high for low, y, high in zip(points.low, points.y, points.high, strict=True))
        assert (free.y[0], tied.y[-1]) == (pytest.approx(fitted.free[1]), pytest.approx(1))
        assert max(free.y) <= 1


def test_too_few_pairs_are_an_error(views_index: Path, index_path: Path) -> None:
    index, copies = Index.open(views_index), Index.open(index_path)
    with pytest.raises(
        OptionError, match=r"^12 queries .* 0 verified pairs, .* at least 20 are needed; index more photographs"
    ):
        fit_lines_pairs(copies, find_pairs(copies))
    with pytest.raises(OptionError, match=r"^3 queries .* 6 verified pairs, .*; give a larger --queries, or index more"):
        fit_lines_pairs(index, find_pairs(index, Sampling(queries=3)))


@pytest.mark.parametrize("kind", ["feature", "image"])
def test_each_kind_of_sets_has_its_line(
    views_index: Path, views: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path, kind: SetKind
) -> None:
    index, bench = Index.open(views_index), Workbench(tmp_path).bench(READERS["groups"](views), vocabularies)
    pairs, steps = find_pairs(index), list[str]()
    labelled = fit_lines(bench, lambda name, done, total: steps.append(name))
    assert labelled[kind].as_dict() == fit_line(observe(bench, sets=kind)).as_dict()
    assert fit_lines_pairs(index, pairs)[kind].as_dict() == fit_line(observe_pairs(index, pairs, kind)).as_dict()
    assert labelled["image"].tied != labelled["feature"].tied
    assert labelled["image"].observations.share > labelled["feature"].observations.share  # an image may be in both by chance
    assert f"true matches, {kind} sets: groups" in steps
