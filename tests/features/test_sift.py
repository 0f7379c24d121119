"""SIFT: the features of OpenCV's, at the right positions and scales, the same on any number of threads."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from polyvoc.cli.demo_photos import find_photographs
from polyvoc.features.decode import read_grey
from polyvoc.features.sift import STRIP, _blur, find_sift
from polyvoc.types import Floats32

Pixels = npt.NDArray[np.uint8]


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    """Return blurred noise: extrema everywhere."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width)).astype(np.float32)
    return np.rint(cv2.normalize(cv2.GaussianBlur(values, (0, 0), 2), np.empty(0), 0, 255, cv2.NORM_MINMAX)).astype(np.uint8)


def blob(height: int, width: int, centre: tuple[float, float], sigma: float) -> Pixels:
    y, x = np.mgrid[:height, :width]
    return np.rint(40 + 180 * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * sigma**2))).astype(np.uint8)


@pytest.fixture(scope="module")
def photograph() -> Pixels:
    return read_grey(next(iter(find_photographs().values()))[0], 512).pixels


def opencv(pixels: Pixels) -> tuple[Floats32, npt.NDArray[np.float64]]:
    keypoints, descriptors = cv2.SIFT.create(enable_precise_upscale=True).detectAndCompute(pixels, None)
    return np.array([(*k.pt, k.size, k.angle) for k in keypoints], np.float32), descriptors.astype(np.float64)


def test_features_are_those_of_opencv(photograph: Pixels) -> None:
    """Most of ours have one of OpenCV's at the same position, scale and angle, with nearly the same descriptor."""
    table, descriptors = find_sift(photograph, 500, photograph.shape[1])
    theirs, their_descriptors = opencv(photograph)
    cosines = []
    for (x, y, size, angle), descriptor in zip(table[:, :4], descriptors.astype(float), strict=True):
        turned = np.abs((theirs[:, 3] - angle + 180) % 360 - 180)
        off = np.hypot(theirs[:, 0] - x, theirs[:, 1] - y) / size
        near = np.flatnonzero((off < 0.1) & (np.abs(np.log(theirs[:, 2] / size)) < 0.1) & (turned < 5))
        if len(near):
            other = their_descriptors[near[np.argmin(off[near])]]
            cosines.append(descriptor @ other / np.linalg.norm(descriptor) / np.linalg.norm(other))
    assert len(cosines) > 0.7 * len(table)
    assert np.median(cosines) > 0.98


def test_threads_make_no_difference(photograph: Pixels) -> None:
    for pixels in (photograph, noise(STRIP * 2 + 17, 90)):
        one, several = find_sift(pixels, 400, 512), find_sift(pixels, 400, 512, threads=3)
        assert len(one[0]) > 100
        assert all(np.array_equal(a, b) for a, b in zip(one, several, strict=True))


@pytest.mark.parametrize("height", [STRIP - 1, STRIP, STRIP + 1, 3 * STRIP + 5])
@pytest.mark.parametrize("sigma", [1.2, 3.1])
def test_strips_are_blurred_as_the_whole(height: int, sigma: float) -> None:
    image = noise(height, 70).astype(np.float32)
    out = np.empty_like(image)
    _blur(image, sigma, out, threads=2)
    assert np.allclose(out, cv2.GaussianBlur(image, (0, 0), sigma), atol=1e-3)


@pytest.mark.parametrize("long_side", [100, 200, 263, 10_000])
@pytest.mark.parametrize("centre", [(120.0, 77.0), (31.5, 140.25)])
def test_a_small_image_is_enlarged_and_positions_are_its_own(long_side: int, centre: tuple[float, float]) -> None:
    table, _ = find_sift(blob(180, 200, centre, 5), 1, long_side)
    assert np.abs(table[0, :2] - centre).max() < 0.1
    assert table[0, 2] == pytest.approx(2 * 5 * 2 ** (-1 / 6), rel=0.03)  # of the nearer one of the two blurs


def test_enlarging_finds_smaller_features(photograph: Pixels) -> None:
    small = photograph[:160, :200]
    plain, enlarged = (find_sift(small, 10_000, long_side)[0] for long_side in (200, 400))
    assert len(enlarged) > len(plain)
    assert enlarged[:, 2].min() < 0.7 * plain[:, 2].min()
    assert len(find_sift(small, 10_000, 4000)[0]) == len(enlarged)  # at most twice


def test_strongest_first_and_no_more_than_wanted(photograph: Pixels) -> None:
    table, descriptors = find_sift(photograph, 10_000, 512)
    assert (np.diff(table[:, 4]) <= 0).all()
    few, few_descriptors = find_sift(photograph, 60, 512)
    assert len(few) == len(few_descriptors) == 60
    assert np.array_equal(few, table[:60])
    assert np.array_equal(few_descriptors, descriptors[:60])


@pytest.mark.parametrize("shape", [(1, 1), (1, 400), (11, 11), (12, 12), (13, 300)])
def test_images_without_room_have_no_features_or_some(shape: tuple[int, int]) -> None:
    table, descriptors = find_sift(noise(*shape) if min(shape) > 1 else np.zeros(shape, np.uint8), 100, max(shape))
    assert table.shape == (len(descriptors), 5)
    assert descriptors.shape == (len(table), 128)
    assert np.isfinite(table).all()


def test_a_flat_image_has_no_features() -> None:
    assert len(find_sift(np.full((100, 100), 90, np.uint8), 100, 100)[0]) == 0


def test_pixels_stay_unmodified(photograph: Pixels) -> None:
    before = photograph.copy()
    find_sift(photograph, 100, 512)
    assert np.array_equal(photograph, before)
