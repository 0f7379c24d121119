"""The records of plots: JSON and back, and one clear line for what cannot be drawn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from polyvoc.errors import OptionError
from polyvoc.experiments.report.figures import Figure, Panel, Series, finite
from report_helpers import figures


@settings(deadline=None)
@given(figures())
def test_json_and_back(figure: Figure) -> None:
    assert Figure.from_dict(json.loads(json.dumps(figure.as_dict(), allow_nan=False))) == figure


def test_arrays_become_numbers_of_json() -> None:
    drawn = Series("s", np.arange(3, dtype=np.float32), np.array([1.0, np.nan, np.inf]), np.zeros(3), np.ones(3))
    assert (drawn.x, drawn.y) == ((0.0, 1.0, 2.0), (1.0, None, None))
    assert drawn == Series.from_dict(json.loads(json.dumps(drawn.as_dict())))
    assert finite(None) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Series("s", [1], [1, 2]), "series 's' has 1 x, 2 y, 0 low, 0 high: give one y per x"),
        (lambda: Series("s", [1], [1], low=[0]), "1 low, 0 high"),
        (lambda: Series("s", [1], [1], labels=["a", "b"]), "'s' has 2 labels for 1 points: give all or none"),
        (lambda: Series("s", [float("nan")], [1]), "'s' has an x that is no number"),
        (lambda: Series("s", [1], [1], style="pie"), "style of series 's' is 'pie': choose one of line, points"),  # type: ignore[arg-type]
        (lambda: Panel("", "", [], xscale="cubic"), "xscale is 'cubic'"),  # type: ignore[arg-type]
        (lambda: Panel("", "", [Series("s", [0, 1], [1, 1])], xscale="log"), "'s' has x = 0: a log scale begins above 0"),
        (lambda: Panel("", "", [Series("s", [1], [1], style="bars")], xscale="log"), "bars on a log scale have no true size"),
        (lambda: Panel("", "", [Series("s", [1], [-2])], yscale="log"), "'s' has y = -2"),
        (lambda: Figure("f", []), "figure 'f' has no panels"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_name_has_one_colour_in_all_panels() -> None:
    a, b = Series("a", [1], [1]), Series("b", [1], [1])
    fixed, grey = Series("c", [1], [1], color=0), Series("a", [1], [1], style="paper")
    whole = Figure("f", [Panel("", "", [a, b, grey]), Panel("", "", [b, fixed], "second")])
    colours = [[series.color for series in panel.series] for panel in whole.coloured().panels]
    assert colours == [[1, 2, None], [2, 0]]  # 0 was taken
    first, second = whole.apart()
    assert [series.color for series in second.panels[0].series] == [2, 0]
    assert (first.title, second.title, second.panels[0].title) == ("f", "f: second", "")
