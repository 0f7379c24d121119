"""Transforms, shared area, descriptions of changes, and pixel similarity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageOps

from polyvoc.duplicates.overlap import (
    IDENTITY,
    LONG_SIDE,
    PixelSimilarity,
    Size,
    apply,
    compose,
    content_share,
    cut_tiles,
    describe_change,
    inside,
    inverse,
    pixel_similarity,
    rank_correlation,
    scale,
    shared_area,
    shares,
    stretch,
    tile_correlations,
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
    small.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.BILINEAR)
    return GreyImage(np.array(small), *image.size)


def compared(first: Image.Image, second: Image.Image, transform: np.ndarray = IDENTITY) -> PixelSimilarity:
    return pixel_similarity(grey(first), grey(second), transform)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Image.Image:
    with Image.open(photograph(tmp_path_factory.mktemp("drawn") / "a.png", 1, (480, 360))) as image:
        return image.copy()


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 3.7])
def test_size_and_position_do_not_matter(drawn: Image.Image, scale: float) -> None:
    crop = drawn.crop((60, 40, 360, 280)).resize((round(300 * scale), round(240 * scale)), Image.Resampling.BICUBIC)
    transform = np.array([[1 / scale, 0, 60 - 0.5 + 0.5 / scale], [0, 1 / scale, 40 - 0.5 + 0.5 / scale]])
    assert compared(crop, drawn, transform).median > 0.95
    assert compared(drawn, crop, inverse(transform)).median > 0.95
    assert compared(crop, drawn, compose(shift(12), transform)).median < 0.8


def test_tones_do_not_matter_and_overlays_affect_few_tiles(drawn: Image.Image) -> None:
    assert compared(drawn, drawn) == pytest.approx((1, 1, 1, 1))
    assert compared(drawn.point(lambda value: 60 + value * 0.4), drawn).q25 > 0.95
    marked = drawn.copy()
    ImageDraw.Draw(marked).rectangle((100, 100, 260, 150), fill="white")
    assert compared(marked, drawn).q25 > 0.99
    ImageDraw.Draw(marked).rectangle((0, 0, 480, 230), fill="white")
    assert compared(marked, drawn).q25 < 0.5


def test_other_images_are_unlike_and_without_overlap_or_contrast_nothing_is_known(drawn: Image.Image, tmp_path: Path) -> None:
    with Image.open(photograph(tmp_path / "b.png", 2, (480, 360))) as other:
        assert compared(other, drawn).median < 0.5
    for x in (470.0, 500.0, -1000.0):
        assert np.isnan(compared(drawn, drawn, shift(x))).all()
    flat = GreyImage(np.full((100, 100), 128, np.uint8), 100, 100)
    assert np.isnan(pixel_similarity(flat, flat, IDENTITY)).all()


def test_correlations_are_those_of_numpy() -> None:
    one, other = np.random.default_rng(1).normal(100, 40, (2, 16, 24))
    other[:8] += one[:8]
    other[0, 23] = np.nan  # the last tile of the first row is not complete
    expected = [
        np.corrcoef(one[y : y + 8, x : x + 8].ravel(), other[y : y + 8, x : x + 8].ravel())[0, 1]
        for y, x in ((0, 0), (0, 8), (8, 0), (8, 8), (8, 16))
    ]
    np.testing.assert_allclose(tile_correlations(*cut_tiles(one, other)), expected)


def test_rank_correlation_ignores_tones(drawn: Image.Image) -> None:
    tiles, same = cut_tiles(*[np.asarray(drawn.convert("L"), np.float64)] * 2)
    assert rank_correlation(tiles, same) == pytest.approx(1)
    assert rank_correlation(tiles, 255 * (same / 255) ** 2) > 0.95
    assert abs(rank_correlation(tiles, np.random.default_rng(1).permutation(same))) < 0.2


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
