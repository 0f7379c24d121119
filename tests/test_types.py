"""Records raise for impossible values; a region keeps the features inside."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.types import Features, Region
from samples import features


def test_only_features_strictly_inside_a_region_are_kept() -> None:
    xy = np.array([[10, 20], [10, 30], [11, 21], [30, 40], [29.5, 39.5], [20, 40], [20, 30], [50, 25]], np.float32)
    n = np.arange(8)
    every = Features(xy, n, 10 * n, np.eye(8), 60, 50)
    kept = every.inside((10, 20, 30, 40))
    assert kept.scale.tolist() == [2, 4, 6] and kept.angle.tolist() == [20, 40, 60]
    assert np.array_equal(kept.xy, xy[[2, 4, 6]]) and np.array_equal(kept.descriptors, np.eye(8)[[2, 4, 6]])
    assert (kept.width, kept.height) == (60, 50)
    assert np.array_equal(every.xy, xy)


def test_a_region_of_all_pixels_keeps_all() -> None:
    every = features(1, 30)
    for region in ((0.0, 0.0, 101.0, 100.0), (-1e308, -1e308, 1e308, 1e308)):
        kept = every.inside(region)
        for field in fields(Features):
            assert np.array_equal(getattr(kept, field.name), getattr(every, field.name))


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ((0, 0, math.nan, 9), "x0 < x1 and y0 < y1"),
        ((0, 0, math.inf, 9), "x0 < x1 and y0 < y1"),
        ((5, 0, 5, 9), "x0 < x1 and y0 < y1"),
        ((0, 9, 5, 8), "x0 < x1 and y0 < y1"),
        ((0, 9, 5), "x0 < x1 and y0 < y1"),
        ((101, 0, 200, 9), "within the photograph of 101 x 100 pixels"),
        ((0, -9, 200, 0), "within the photograph of 101 x 100 pixels"),
        ((0, 0, 1e-9, 1e-9), "holds no feature; draw a larger one"),
    ],
)
def test_an_impossible_region_raises(region: Region, expected: str) -> None:
    with pytest.raises(OptionError, match=expected) as caught:
        features(1, 30).inside(region)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"xy": np.zeros((3, 2))}, "do not fit"),
        ({"scale": np.zeros(3)}, "do not fit"),
        ({"descriptors": np.zeros((3, 12))}, "2 positions but descriptors"),
        ({"name": ""}, "kind='' should be a name"),
        ({"descriptors": np.zeros((2, 0))}, "dimension=0 should be at least 1"),
    ],
)
def test_features_that_do_not_fit_raise(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        replace(features(1, 2), **changes)
