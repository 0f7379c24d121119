"""Copies lie on their original to a fraction of a pixel, whatever was done to them; second shots do not."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance

from polyvoc.duplicates.alignment import UNLIKE, Alignment, align, rank_correlation
from polyvoc.duplicates.alignment import _correlations as correlations
from polyvoc.duplicates.overlap import IDENTITY, compose, inverse
from polyvoc.types import GreyImage
from samples import photograph

EXACT, BENT = 0.12, 0.3  # points of the grid


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Image.Image:
    """A photograph with structure of every size."""
    folder = tmp_path_factory.mktemp("drawn")
    with Image.open(photograph(folder / "a.png", 1, (480, 360))) as image:
        grain = np.random.default_rng(1).normal(0, 1, (360, 480))
        coarse = cv2.GaussianBlur(grain, (0, 0), 1.2) * 30 + cv2.GaussianBlur(grain, (0, 0), 4) * 90
        return Image.fromarray(np.clip(np.asarray(image.convert("L")) * 0.6 + 50 + coarse, 0, 255).astype(np.uint8))


def aligned(first: Image.Image, second: Image.Image, transform: np.ndarray = IDENTITY) -> Alignment:
    return align(*(GreyImage(np.asarray(image.convert("L")), *image.size) for image in (first, second)), transform)


def shift(x: float, y: float = 0.0) -> np.ndarray:
    return np.array([[1.0, 0, x], [0, 1, y]])


def warped(image: Image.Image, x: np.ndarray, y: np.ndarray) -> Image.Image:
    """Move every pixel by [h, w] to the left and up."""
    down, across = np.mgrid[: image.height, : image.width].astype(np.float32)
    moved = cv2.remap(
        np.asarray(image), across + np.float32(x), down + np.float32(y), cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT
    )
    return Image.fromarray(moved)


def noisy(image: Image.Image, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).normal(0, 12, (image.height, image.width))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 3.7])
def test_crops_of_any_size_are_exact(drawn: Image.Image, scale: float) -> None:
    crop = drawn.crop((60, 40, 360, 280)).resize((round(300 * scale), round(240 * scale)), Image.Resampling.BICUBIC)
    transform = np.array([[1 / scale, 0, 60 - 0.5 + 0.5 / scale], [0, 1 / scale, 40 - 0.5 + 0.5 / scale]])
    for found in (aligned(crop, drawn, transform), aligned(drawn, crop, inverse(transform))):
        assert found.shift < EXACT and found.bend < EXACT and found.followed > 0.8
        assert found.median > 0.95 and found.fine_median > 0.8 and found.tone_correlation > 0.95


@pytest.mark.parametrize(
    "change",
    [
        lambda image: ImageEnhance.Contrast(image.point(lambda value: 30 + value * 0.7)).enhance(1.3),
        lambda image: image.rotate(0),
        lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    ],
)
def test_tones_do_not_matter(drawn: Image.Image, change: Callable[[Image.Image], Image.Image]) -> None:
    found = aligned(change(drawn), drawn)
    assert found.shift < EXACT and found.bend < EXACT and found.q25 > 0.95 and found.fine_q25 > 0.9


def test_an_inexact_transform_is_refined(drawn: Image.Image) -> None:
    turn = np.array([[1.006, 0.004, 2.0], [-0.004, 0.997, -1.5]])
    found = aligned(drawn, drawn, turn)
    assert found.shift < EXACT and found.bend < EXACT and found.median > 0.9


def test_overlays_affect_what_they_cover(drawn: Image.Image) -> None:
    marked = drawn.copy()
    ImageDraw.Draw(marked).rectangle((100, 100, 260, 150), fill="white")
    found = aligned(marked, drawn)
    assert found.q25 > 0.99 and found.shift < EXACT and found.bend < EXACT
    ImageDraw.Draw(marked).rectangle((0, 0, 480, 230), fill="white")
    assert aligned(marked, drawn).q25 < 0.5


def test_what_a_moving_camera_does_is_measured(drawn: Image.Image) -> None:
    """A bend of two pixels, or a nearer part that has shifted by three; the noise of another moment."""
    across = np.linspace(-1, 1, drawn.width)[None, :] * np.ones((drawn.height, 1))
    assert aligned(warped(drawn, 2 * across**2, 0 * across), drawn).bend > BENT
    nearer = warped(drawn, 3.0 * (across > 0.2), 0 * across)
    assert max(aligned(nearer, drawn)[1:4]) > BENT
    once, again = noisy(drawn, 2), noisy(drawn, 3)
    assert aligned(once, once).fine_median > 0.99
    assert aligned(once, again).fine_median < 0.8
    assert aligned(once, again).bend < EXACT, "noise moves corners, but bends nothing"


def test_other_images_are_unlike_and_without_overlap_or_contrast_nothing_is_known(drawn: Image.Image) -> None:
    other = Image.fromarray(np.asarray(drawn)[::-1].copy())
    found = aligned(other, drawn)
    assert found.followed < 0.3 and found.median < 0.5
    assert UNLIKE.shift > 1 and UNLIKE.median == 0
    for x in (470.0, 500.0, -1000.0):
        assert np.isnan(aligned(drawn, drawn, shift(x))).all()
    flat = Image.new("L", (100, 100), 128)
    assert np.isnan(aligned(flat, flat)).all()
    assert np.isnan(align(None, GreyImage(np.asarray(drawn), *drawn.size), IDENTITY)).all()
    crop = drawn.crop((50, 50, 300, 300))
    assert aligned(crop, drawn, compose(shift(40), shift(50, 50))).median < 0.8, "too far off to be refined"


def test_correlations_are_those_of_numpy() -> None:
    one, other = np.random.default_rng(1).normal(100, 40, (2, 5, 256)).astype(np.float32)
    other[:2] += one[:2]
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(correlations(one, other, 4.0), expected, atol=1e-5)
    one[0] = other[0] = 7
    assert len(correlations(one, other, 4.0)) == 4, "flat in both"


def test_rank_correlation_ignores_tones(drawn: Image.Image) -> None:
    tiles = np.asarray(drawn, np.float64)[:352].reshape(-1, 64)
    assert rank_correlation(tiles, tiles) == pytest.approx(1)
    assert rank_correlation(tiles, 255 * (tiles / 255) ** 2) > 0.95
    assert abs(rank_correlation(tiles, np.random.default_rng(1).permutation(tiles))) < 0.2
