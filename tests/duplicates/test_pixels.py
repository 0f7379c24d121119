"""Pixels laid upon each other: copies are alike whatever was done to them, other pictures are not."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from polyvoc.duplicates.overlap import (
    IDENTITY,
    LONG_SIDE,
    _tiles,
    compose,
    content,
    inverse,
    pixel_similarity,
    rank_correlation,
    tile_correlations,
)
from polyvoc.types import GreyImage
from samples import photograph


def grey(image: Image.Image, long_side: int = LONG_SIDE) -> GreyImage:
    small = image.convert("L")
    small.thumbnail((long_side, long_side), Image.Resampling.BILINEAR)
    return GreyImage(np.array(small), *image.size)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Image.Image:
    with Image.open(photograph(tmp_path_factory.mktemp("drawn") / "a.png", 1, (480, 360))) as image:
        return image.copy()


def test_a_photograph_is_like_itself(drawn: Image.Image) -> None:
    assert pixel_similarity(grey(drawn), grey(drawn), IDENTITY) == pytest.approx((1, 1, 1, 1))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 3.7])
def test_size_and_place_do_not_matter(drawn: Image.Image, scale: float) -> None:
    box = (60, 40, 360, 280)
    cut = drawn.crop(box).resize((round(300 * scale), round(240 * scale)), Image.Resampling.BICUBIC)
    there = np.array([[1 / scale, 0, 60 - 0.5 + 0.5 / scale], [0, 1 / scale, 40 - 0.5 + 0.5 / scale]])
    assert pixel_similarity(grey(cut), grey(drawn), there).median > 0.95
    assert pixel_similarity(grey(drawn), grey(cut), inverse(there)).median > 0.95
    moved = compose(np.array([[1.0, 0, 12], [0, 1, 0]]), there)
    assert pixel_similarity(grey(cut), grey(drawn), moved).median < 0.8


def test_brightness_and_contrast_do_not_matter(drawn: Image.Image) -> None:
    dull = drawn.point(lambda value: 60 + value * 0.4)
    assert pixel_similarity(grey(dull), grey(drawn), IDENTITY).quarter > 0.95


def test_letters_spoil_few_tiles(drawn: Image.Image) -> None:
    marked = drawn.copy()
    ImageDraw.Draw(marked).rectangle((100, 100, 260, 150), fill="white")
    assert pixel_similarity(grey(marked), grey(drawn), IDENTITY).quarter > 0.99
    ImageDraw.Draw(marked).rectangle((0, 0, 480, 230), fill="white")
    assert pixel_similarity(grey(marked), grey(drawn), IDENTITY).quarter < 0.5


def test_other_photographs_are_unlike(drawn: Image.Image, tmp_path) -> None:
    with Image.open(photograph(tmp_path / "b.png", 2, (480, 360))) as other:
        assert pixel_similarity(grey(other), grey(drawn), IDENTITY).median < 0.5


@pytest.mark.parametrize("x", [470.0, 500.0, -1000.0])
def test_hardly_any_overlap_says_nothing(drawn: Image.Image, x: float) -> None:
    assert np.isnan(pixel_similarity(grey(drawn), grey(drawn), np.array([[1.0, 0, x], [0, 1, 0]]))).all()


def test_flat_photographs_say_nothing() -> None:
    flat = GreyImage(np.full((100, 100), 128, np.uint8), 100, 100)
    assert np.isnan(pixel_similarity(flat, flat, IDENTITY)).all()


def test_correlations_are_those_of_numpy() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(100, 40, (2, 16, 24))
    other[:8] += one[:8]
    other[0, 23] = np.nan  # the last tile of the first row is not shown whole
    expected = [
        np.corrcoef(one[y : y + 8, x : x + 8].ravel(), other[y : y + 8, x : x + 8].ravel())[0, 1]
        for y, x in ((0, 0), (0, 8), (8, 0), (8, 8), (8, 16))
    ]
    np.testing.assert_allclose(tile_correlations(*_tiles(one, other)), expected)


def test_ranks_of_tones_do_not_change_with_them(drawn: Image.Image) -> None:
    tiles = _tiles(*[np.asarray(drawn.convert("L"), np.float64)] * 2)
    assert rank_correlation(tiles[0], tiles[1]) == pytest.approx(1)
    assert rank_correlation(tiles[0], 255 * (tiles[1] / 255) ** 2) > 0.95
    assert abs(rank_correlation(tiles[0], np.random.default_rng(1).permutation(tiles[1]))) < 0.2


def test_a_frame_and_corners_left_by_a_rotation_show_nothing(drawn: Image.Image) -> None:
    framed = ImageOps.expand(drawn, 60, "white")
    inner = drawn.width * drawn.height / (framed.width * framed.height)
    there = np.array([[1.0, 0, -60], [0, 1, -60]])
    assert content(grey(framed), [(there, drawn.size)]) == pytest.approx(inner, rel=0.05)
    assert content(grey(drawn), [(inverse(there), framed.size)]) == 1
    turned = drawn.rotate(30, expand=True)
    inner = drawn.width * drawn.height / (turned.width * turned.height)
    c, s = np.cos(np.radians(30)), np.sin(np.radians(30))
    middle, before = (np.array(image.size) / 2 - 0.5 for image in (turned, drawn))
    turn = np.array([[c, -s], [s, c]])
    back = np.column_stack([turn, before - turn @ middle])
    assert content(grey(turned), [(back, drawn.size)]) == pytest.approx(inner, rel=0.08)


def test_what_all_copies_show_is_content(drawn: Image.Image) -> None:
    """A plain sky is a part of the photograph, unless a copy lacks it."""
    assert content(grey(drawn), [(IDENTITY, drawn.size)]) == 1
    assert content(grey(drawn), []) == 1
    flat = GreyImage(np.zeros((50, 60), np.uint8), 60, 50)
    assert content(flat, [(np.array([[1.0, 0, -30], [0, 1, 0]]), (30, 50))]) == pytest.approx(0.5)
