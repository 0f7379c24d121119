"""Transforms, shared area, descriptions of changes, and what is a frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from polyvoc.duplicates.overlap import (
    IDENTITY,
    Size,
    apply,
    compose,
    content_share,
    describe_change,
    inside,
    inverse,
    scale,
    shared_area,
    shares,
    stretch,
)
from polyvoc.types import GreyImage
from samples import photograph


def similarity(angle: float, factor: float, x: float = 0, y: float = 0) -> np.ndarray:
    """Rotate clockwise, with y pointing down."""
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return np.column_stack([factor * np.array([[c, -s], [s, c]]), [x, y]])


def shift(x: float, y: float = 0) -> np.ndarray:
    return similarity(0, 1, x, y)


@settings(deadline=None)
@given(st.floats(0, 359), st.floats(0.2, 5), st.floats(-300, 300), st.floats(-300, 300))
def test_inverse_scale_and_shared_area(angle: float, factor: float, x: float, y: float) -> None:
    first, second, transform = (120, 80), (200, 150), similarity(angle, factor, x, y)
    np.testing.assert_allclose(compose(inverse(transform), transform), IDENTITY, atol=1e-6)
    assert (scale(transform), stretch(transform)) == (pytest.approx(factor), pytest.approx(1))
    grid = np.stack(np.meshgrid(np.arange(200), np.arange(150)), axis=-1).reshape(-1, 2)
    counted = inside(apply(inverse(transform), grid), first).sum()
    edge = min(2 * (120 + 80) * factor, 2 * (200 + 150))  # a convex area has no longer edge than one that contains it
    assert abs(shared_area(first, second, transform) - counted) <= edge / 2 + 1  # Nosarzewska 1948
    assert all(0 <= share <= 1 for share in shares(first, second, transform))


def test_equal_and_disjoint_images() -> None:
    size = (100, 50)
    assert (shared_area(size, size, IDENTITY), shared_area(size, size, shift(100))) == (pytest.approx(5000), 0)
    assert shares(size, size, IDENTITY) == pytest.approx((1, 1))


MIRROR = np.array([[-1.0, 0, 399], [0, 1, 0]])


@pytest.mark.parametrize(
    ("copy", "transform", "text"),
    [
        ((400, 300), IDENTITY, "the same picture in another file"),
        ((400, 300), MIRROR, "mirrored"),
        ((100, 75), similarity(0, 4), "25 % of the size"),
        ((200, 150), shift(50, 50), "25 % of the area"),
        ((400, 300), similarity(180, 1, 399, 299), "rotated 180°"),
        ((300, 400), similarity(-90, 1, 0, 299), "rotated 90° right"),
        ((300, 400), similarity(90, 1, 399, 0), "rotated 90° left"),
        ((440, 340), shift(-20, -20), "something added around it"),
        ((400, 150), np.array([[1.0, 0, 0], [0, 2, 0]]), "71 % of the size, stretched"),
        ((300, 400), compose(similarity(-90, 1, 0, 299), np.array([[-1.0, 0, 299], [0, 1, 0]])), "mirrored, rotated 90° right"),
    ],
)
def test_changes_are_described(copy: Size, transform: np.ndarray, text: str) -> None:
    assert describe_change(copy, (400, 300), transform) == text


# -- pixels


def grey(image: Image.Image) -> GreyImage:
    small = image.convert("L")
    small.thumbnail((512, 512), Image.Resampling.BILINEAR)
    return GreyImage(np.array(small), *image.size)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Image.Image:
    with Image.open(photograph(tmp_path_factory.mktemp("drawn") / "a.png", 1, (480, 360))) as image:
        return image.copy()


def test_frames_and_corners_left_by_a_rotation_are_no_content(drawn: Image.Image) -> None:
    def share(larger: Image.Image) -> float:
        return drawn.width * drawn.height / (larger.width * larger.height)

    framed, transform = ImageOps.expand(drawn, 60, "white"), shift(-60, -60)
    assert content_share(grey(framed), [(transform, drawn.size)]) == pytest.approx(share(framed), rel=0.05)
    assert content_share(grey(drawn), [(inverse(transform), framed.size)]) == 1
    rotated = drawn.rotate(30, expand=True)
    middle, before = (np.array(image.size) / 2 - 0.5 for image in (rotated, drawn))
    turn = similarity(30, 1)[:, :2]
    back = np.column_stack([turn, before - turn @ middle])
    assert content_share(grey(rotated), [(back, drawn.size)]) == pytest.approx(share(rotated), rel=0.08)


def test_what_all_copies_show_is_content(drawn: Image.Image) -> None:
    """A plain sky is a part of the image, unless a copy lacks it."""
    assert content_share(grey(drawn), [(IDENTITY, drawn.size)]) == 1
    assert content_share(grey(drawn), []) == 1
    flat = GreyImage(np.zeros((50, 60), np.uint8), 60, 50)
    assert content_share(flat, [(shift(-30), (30, 50))]) == pytest.approx(0.5)
