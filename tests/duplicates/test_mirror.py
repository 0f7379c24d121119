"""Mirrored features are those of the mirrored photograph, as OpenCV finds them."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from polyvoc.duplicates.compare import PERMUTATION, mirror, mirrored
from polyvoc.errors import OptionError
from polyvoc.features.extract import detect, extract
from polyvoc.options import FeatureOptions
from polyvoc.types import Features, GreyImage
from samples import features, photograph


def noise(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return cv2.GaussianBlur(rng.integers(0, 256, (151, 200), np.uint8), (0, 0), 2.0)


def test_descriptors_are_those_of_the_mirrored_pixels() -> None:
    """OpenCV describes the same places of mirrored pixels by the permuted numbers, but for rounding at the edges of bins."""
    pixels = cv2.normalize(noise(), None, 0, 255, cv2.NORM_MINMAX)
    sift = cv2.SIFT.create(enable_precise_upscale=True)
    places, described = sift.detectAndCompute(pixels, None)
    width = pixels.shape[1]
    turned = [
        cv2.KeyPoint(width - 1 - p.pt[0], p.pt[1], p.size, (180 - p.angle) % 360, p.response, p.octave, p.class_id)
        for p in places
    ]
    _, again = sift.compute(np.ascontiguousarray(pixels[:, ::-1]), turned)
    differences = np.abs(described[:, PERMUTATION] - again).max(axis=1)
    assert len(differences) > 100
    assert (differences <= 1).mean() > 0.5
    unrelated = np.abs(described - again).max(axis=1)
    assert np.median(unrelated) > 50


def test_extraction_of_mirrored_pixels_gives_mirrored_features() -> None:
    pixels = cv2.normalize(noise(1), None, 0, 255, cv2.NORM_MINMAX)
    height, width = pixels.shape
    plain = mirrored(detect(GreyImage(pixels, width, height), FeatureOptions(max_features=500)))
    found = detect(GreyImage(np.ascontiguousarray(pixels[:, ::-1]), width, height), FeatureOptions(max_features=500))
    near = np.linalg.norm(plain.xy[:, None] - found.xy[None], axis=2)
    turned = np.abs((plain.angle[:, None] - found.angle[None] + 180) % 360 - 180)
    same = (near < 0.5) & (turned < 3)
    assert same.any(axis=1).mean() > 0.9
    distance = np.linalg.norm(plain.descriptors[:, None] - found.descriptors[None], axis=2)
    assert np.median(np.where(same, distance, np.inf).min(axis=1)) < 1e-3


def test_twice_is_never(tmp_path) -> None:
    found = extract(photograph(tmp_path / "a.png", 1))
    again = mirrored(mirrored(found))
    for name in ("xy", "scale", "descriptors"):
        np.testing.assert_allclose(getattr(again, name), getattr(found, name), atol=1e-4)
    np.testing.assert_allclose((again.angle - found.angle + 180) % 360 - 180, 0, atol=1e-3)
    assert (again.width, again.height) == (found.width, found.height)


def test_the_transform_agrees_with_the_places(tmp_path) -> None:
    found = extract(photograph(tmp_path / "a.png", 2))
    transform = mirror(found.width)
    np.testing.assert_allclose(found.xy @ transform[:, :2].T + transform[:, 2], mirrored(found).xy, atol=1e-3)


def test_other_features_are_refused() -> None:
    other = features(1)
    with pytest.raises(OptionError, match=r"sift \(12 numbers\) cannot be mirrored"):
        mirrored(other)
    named = Features(other.xy, other.scale, other.angle, np.zeros((len(other), 128)), 100, 100, name="superpoint")
    with pytest.raises(OptionError, match="superpoint"):
        mirrored(named)
