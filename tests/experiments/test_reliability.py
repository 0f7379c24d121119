"""Reliability: the measured error of a right table is small, that of a wrong one is its true error."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.likelihood import Tally, fit_table, together
from polyvoc.experiments.fit.reliability import _pool_numbers, curve_figure, reliability
from polyvoc.scoring.rules import groups_by_size
from polyvoc.types import LikelihoodTable

BITS = 64
PAIRS = np.array([4e8, 1e7])


def truth(k: int = 2) -> LikelihoodTable:
    """Return the table that the matches below are drawn from: more lists have higher ratios."""
    h = np.arange(BITS + 1)
    rows = [np.maximum((order + 5) * (1 - h / 27), 0) for order in range(1, k + 1)]
    return LikelihoodTable(groups_by_size(k), (), tuple(tuple(row.tolist()) for row in rows))


def drawn(table: LikelihoodTable, groups: int = 40, seed: int = 0, chance: float = 0.7) -> list[Tally]:
    """Draw tallies whose log-likelihood ratios are those of a table, on top of what related images share anyway."""
    rng = np.random.default_rng([5, seed])
    h = np.arange(BITS + 1)
    shape = np.exp(-(((h - 30) / 8.0) ** 2)) * 4000  # unrelated matches, most at half of the bits
    tallies = []
    for _ in range(groups):
        counts = np.zeros((2, len(table.groups), 1, BITS + 1), np.int64)
        for mask in range(1, len(table.groups)):
            ratio = np.exp(np.array(table.rows[table.groups[mask]]) + chance)
            counts[:, mask, 0] = rng.poisson([shape, shape * ratio * PAIRS[1] / PAIRS[0]])
        tallies.append(Tally(counts, PAIRS, ()))
    return tallies


def stretched(table: LikelihoodTable, by: float) -> LikelihoodTable:
    return replace(table, rows=tuple(tuple(by * value for value in row) for row in table.rows))


def test_the_error_of_a_right_table_is_small() -> None:
    found = reliability(truth(), drawn(truth()))
    assert found.error < 0.1 and reliability(truth(), drawn(truth(), chance=2.0)).error < 0.1
    assert reliability(truth(), drawn(truth(), chance=0.0)).error < 0.15  # what related images share anyway does not matter
    assert [curve.name for curve in found.curves] == ["1 list", "2 lists"]
    covered = []
    for curve in found.curves:
        assert len(curve.predicted) > 6
        assert (np.diff(curve.predicted) < 0).all()  # the strongest first
        assert ((curve.low <= curve.observed) & (curve.observed <= curve.high)).all()
        covered += ((curve.low - 0.05 <= curve.predicted) & (curve.predicted <= curve.high + 0.05)).tolist()
    assert np.mean(covered) > 0.8


@pytest.mark.parametrize("by", [0.5, 1.4])
def test_the_error_of_a_wrong_table_is_measured(by: float) -> None:
    found = reliability(stretched(truth(), by), drawn(truth()))
    assert found.error > 0.5
    for curve in found.curves:
        strong = curve.predicted > 1.0
        np.testing.assert_allclose(curve.observed[strong], curve.predicted[strong] / by, atol=0.6)


def test_a_table_on_what_it_was_fitted_on() -> None:
    tallies = drawn(truth(3))
    fitted = fit_table(together(tallies))
    assert reliability(fitted, tallies).error < 0.1
    assert reliability(fitted, drawn(truth(3), seed=1)).error < 0.2


def test_bins_of_the_ratio() -> None:
    """Each bin has its own row, and its own level of chance."""
    low, high = truth(1), stretched(truth(1), 0.6)
    both = LikelihoodTable((0, 0), (0.5,), (*low.rows, *high.rows))
    tallies = [
        Tally(np.concatenate([a.counts, b.counts], axis=2), PAIRS, (0.5,))
        for a, b in zip(drawn(low, chance=0.2), drawn(high, chance=1.5), strict=True)
    ]
    assert reliability(both, tallies).error < 0.1
    swapped = replace(both, rows=both.rows[::-1])
    assert reliability(swapped, tallies).error > 0.3


def test_hand_worked() -> None:
    """400 related and 100 unrelated matches at distance 0; at 27 bits, 1000 and 2000 are chance matches."""
    counts = np.zeros((2, 2, 1, BITS + 1), np.int64)
    counts[:, 1, 0, 0] = 100, 400
    counts[:, 1, 0, 27] = 2000, 1000
    tallies = [Tally(counts, np.array([1e6, 1e5]), ())]
    table = LikelihoodTable((0, 0), (), ((2.0, *(0.0,) * BITS),))
    (curve,) = reliability(table, tallies).curves
    chance = (1000.5 / 1e5) / (2000.5 / 1e6)
    expected = math.log(400.5 / 1e5) - math.log((100 * chance + 0.5) / 1e6)
    assert (curve.predicted.tolist(), curve.related.tolist()) == ([2.0], [400])
    assert curve.observed == pytest.approx([expected])
    assert reliability(table, tallies).error == pytest.approx(abs(2.0 - expected))
    assert np.isnan(curve.low).all()  # one group alone has no interval
    assert reliability(table, tallies).as_dict()["curves"]["1 list"]["low"] == [None]


def test_thin_pools_are_joined() -> None:
    llr = np.array([5.2, 4.1, 4.4, 3.3, 2.2, 0.3])
    related, unrelated = np.array([9.0, 30, 30, 50, 50, 4]), np.array([1.0, 15, 15, 30, 30, 3])
    assert _pool_numbers(llr, related, unrelated, 1.0, 20).tolist() == [0, 0, 0, 1, 2, 2]
    assert _pool_numbers(llr, related, unrelated, 1.0, 1).tolist() == [0, 1, 1, 2, 3, 4]
    assert _pool_numbers(llr, related, unrelated, 10.0, 20).tolist() == [0] * 6
    assert _pool_numbers(llr, related, unrelated, 1.0, 1000).tolist() == [-1] * 6


def test_results_repeat_and_are_json() -> None:
    tallies = drawn(truth(), groups=10)
    first, again = (reliability(truth(), tallies).as_dict() for _ in range(2))
    assert first == again
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert set(first["curves"]) == {"1 list", "2 lists"}


def test_what_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(OptionError, match="for 3 vocabularies with 64 bits cannot be compared with matches of 2 with 64"):
        reliability(truth(3), drawn(truth(2), groups=2))
    with pytest.raises(OptionError, match="same bins of the ratio"):
        binned = LikelihoodTable((0, 0), (0.5,), truth(1).rows * 2)
        reliability(binned, drawn(truth(1), groups=2))
    empty = [replace(one, counts=0 * one.counts) for one in drawn(truth(), groups=2)]
    with pytest.raises(OptionError, match="0 matches of related images are too few to test a table"):
        reliability(truth(), empty)


def test_the_figure_has_a_panel_for_each_test() -> None:
    found = {name: reliability(truth(), drawn(truth(), groups=5, seed=n)) for n, name in enumerate("ab")}
    panels = curve_figure(found).panels
    assert [panel.title.split(":")[0] for panel in panels] == ["a", "b"]
    for panel, judged in zip(panels, found.values(), strict=True):
        assert f"{judged.error:.2f} nats" in panel.title
        *points, right = panel.series
        assert [series.name for series in points] == ["1 list", "2 lists"]
        assert points[0].y == pytest.approx(judged.curves[0].observed)
        assert right.x == right.y
