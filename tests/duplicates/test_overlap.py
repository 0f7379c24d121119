"""Frames, transforms between them, and words for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.duplicates.overlap import (
    IDENTITY,
    Size,
    apply,
    compose,
    describe_change,
    inside,
    inverse,
    scale,
    shared_area,
    shares,
    stretch,
)

angles = st.floats(0, 359)
factors = st.floats(0.2, 5)


def similarity(angle: float, factor: float, x: float = 0, y: float = 0) -> np.ndarray:
    """Turn clockwise, as seen with y pointing down."""
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return np.column_stack([factor * np.array([[c, -s], [s, c]]), [x, y]])


@settings(deadline=None)
@given(angles, factors, st.floats(-500, 500), st.floats(-500, 500))
def test_there_and_back(angle: float, factor: float, x: float, y: float) -> None:
    there = similarity(angle, factor, x, y)
    np.testing.assert_allclose(compose(inverse(there), there), IDENTITY, atol=1e-6)
    assert scale(there) == pytest.approx(factor)
    assert stretch(there) == pytest.approx(1)


@settings(deadline=None)
@given(angles, factors, st.floats(-300, 300), st.floats(-300, 300))
def test_shared_area_is_what_a_count_of_places_gives(angle: float, factor: float, x: float, y: float) -> None:
    first, second, there = (120, 80), (200, 150), similarity(angle, factor, x, y)
    grid = np.stack(np.meshgrid(np.arange(200), np.arange(150)), axis=-1).reshape(-1, 2)
    counted = inside(apply(inverse(there), grid), first).sum()
    edge = min(2 * (120 + 80) * factor, 2 * (200 + 150))  # what is convex has no longer edge than what it lies in
    assert abs(shared_area(first, second, there) - counted) <= edge / 2 + 1  # Nosarzewska 1948
    own, shown = shares(first, second, there)
    assert 0 <= own <= 1
    assert 0 <= shown <= 1


def test_the_same_frame_is_shared_whole() -> None:
    assert shared_area((100, 50), (100, 50), IDENTITY) == pytest.approx(5000)
    assert shares((100, 50), (100, 50), IDENTITY) == pytest.approx((1, 1))
    assert shared_area((100, 50), (100, 50), similarity(0, 1, 100)) == 0


MIRROR = np.array([[-1.0, 0, 399], [0, 1, 0]])


@pytest.mark.parametrize(
    ("copy", "transform", "words"),
    [
        ((400, 300), IDENTITY, "the same picture in another file"),
        ((400, 300), MIRROR, "mirrored"),
        ((100, 75), similarity(0, 4), "25 % of the size"),
        ((200, 150), similarity(0, 1, 50, 50), "25 % of the area"),
        ((400, 300), similarity(180, 1, 399, 299), "rotated 180°"),
        ((300, 400), similarity(-90, 1, 0, 299), "rotated 90° right"),
        ((300, 400), similarity(90, 1, 399, 0), "rotated 90° left"),
        ((440, 340), similarity(0, 1, -20, -20), "something added around it"),
        ((400, 150), np.array([[1.0, 0, 0], [0, 2, 0]]), "71 % of the size, stretched"),
    ],
)
def test_words(copy: Size, transform: np.ndarray, words: str) -> None:
    assert describe_change(copy, (400, 300), transform) == words


def test_words_join() -> None:
    turned = compose(similarity(-90, 1, 0, 299), np.array([[-1.0, 0, 299], [0, 1, 0]]))
    assert describe_change((300, 400), (400, 300), turned).startswith("mirrored, rotated 90°")
