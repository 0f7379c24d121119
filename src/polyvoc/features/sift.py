"""SIFT (Lowe, IJCV 2004), several times as fast as OpenCV's: pixels -> keypoints and descriptors.

OpenCV blurs; the rest is `kernels.sift`. Two differences make it fast: the image is not doubled, but enlarged to the long side
of the options if it is smaller; and the windows of descriptors are sampled (`kernels.sift.describe`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.kernels.sift import BORDER, MAX_ORIENTATIONS, SIGMA, STEPS, describe, find_extrema, find_slopes, orient
from polyvoc.threads import thread_map
from polyvoc.types import Floats32

CONTRAST = 0.02  # of the faintest extremum, as a share of all grey levels; OpenCV's 0.04 leaves few in dark photographs
CAMERA_BLUR = 0.5  # pixels, of a photograph
MAX_ENLARGEMENT = 2.0
STRIP = 128  # rows that one thread works on: fixed, so that results do not depend on the number of threads
POINTS = 256  # that one thread describes
_BLURS = [SIGMA * math.sqrt(4 ** (i / STEPS) - 4 ** ((i - 1) / STEPS)) for i in range(1, STEPS + 3)]  # from layer to layer


def find_sift(
    pixels: npt.NDArray[np.uint8], max_features: int, long_side: int, threads: int = 1
) -> tuple[Floats32, npt.NDArray[np.uint8]]:
    """Return the strongest SIFT features of pixels [h, w], strongest first, then from the top.

    A table [n, 5] of x, y, diameter, angle (degrees, clockwise from the right) and contrast; descriptors [n, 128].
    """
    factor = min(MAX_ENLARGEMENT, max(1.0, long_side / max(pixels.shape)))
    octaves = list(_octaves(pixels, factor, threads))
    found = _strongest([_extrema(layers, threads) for layers in octaves], max_features)
    parts = [_describe(layers, points, threads) for layers, points in zip(octaves, found, strict=True)]
    none = np.empty((0, 5), np.float32), np.empty((0, 128), np.uint8)
    table = np.concatenate([none[0], *(_keypoints(oriented, 2.0**o) for o, (oriented, _) in enumerate(parts))])
    descriptors = np.concatenate([none[1], *(rows for _, rows in parts)])
    if factor > 1:
        size = np.array(pixels.shape[::-1])
        table[:, :2] = (table[:, :2] + 0.5) * (size / np.rint(size * factor)) - 0.5
        table[:, 2] /= factor
    x, y, diameter, angle, contrast = table.T
    order = np.lexsort((angle, diameter, x, y, -contrast))[:max_features]
    return table[order], descriptors[order]


def _octaves(pixels: npt.NDArray[np.uint8], factor: float, threads: int) -> Iterator[Floats32]:
    """Yield the layers of every octave; each has half the width and height of the one before it."""
    image = pixels.astype(np.float32)
    if factor > 1:
        width, height = (round(side * factor) for side in pixels.shape[::-1])
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR).astype(np.float32, copy=False)
    base = np.empty_like(image)
    _blur(image, math.sqrt(SIGMA**2 - (CAMERA_BLUR * factor) ** 2), base, threads)
    while min(base.shape) > 2 * BORDER + 1:
        layers = np.empty((STEPS + 3, *base.shape), np.float32)
        layers[0] = base
        for i, sigma in enumerate(_BLURS):
            _blur(layers[i], sigma, layers[i + 1], threads)
        yield layers
        base = layers[STEPS][::2, ::2]


def _blur(image: Floats32, sigma: float, out: Floats32, threads: int) -> None:
    """Blur an image [h, w], strip by strip. out: [h, w]."""
    margin = math.ceil(4 * sigma) + 1  # OpenCV cuts the Gaussian at four times its width

    def blur_strip(rows: slice) -> None:
        first = max(rows.start - margin, 0)
        blurred = cv2.GaussianBlur(image[first : rows.stop + margin], (0, 0), sigma)
        out[rows] = blurred[rows.start - first :][: len(out[rows])]

    thread_map(blur_strip, _strips(len(image)), threads)


def _extrema(layers: Floats32, threads: int) -> Floats32:
    """Return the extrema of an octave as points of `kernels.sift`."""
    differences = np.subtract(layers[1:], layers[:-1])

    def find(rows: slice) -> Floats32:
        points = np.empty(((rows.stop - rows.start) * layers.shape[2] // 8, 5), np.float32)
        return points[: find_extrema(differences, CONTRAST, rows.start, rows.stop, points)]

    return np.concatenate(thread_map(find, _strips(layers.shape[1]), threads))


def _strongest(found: Sequence[Floats32], count: int) -> list[Floats32]:
    """Return the points of each octave that are among the `count` with the highest contrast of all, with those that tie."""
    contrasts = np.concatenate([np.empty(0, np.float32), *(points[:, 3] for points in found)])
    if len(contrasts) <= count:
        return list(found)
    least = np.partition(contrasts, -count)[-count]
    return [points[points[:, 3] >= least] for points in found]


def _describe(layers: Floats32, points: Floats32, threads: int) -> tuple[Floats32, npt.NDArray[np.uint8]]:
    """Return the oriented points of an octave and their descriptors."""
    strengths, directions = np.empty((2, STEPS, *layers.shape[1:]), np.float32)
    if len(points):
        strips = _strips(layers.shape[1])
        thread_map(lambda rows: find_slopes(layers, rows.start, rows.stop, strengths, directions), strips, threads)

    def describe_some(some: Floats32) -> tuple[Floats32, npt.NDArray[np.uint8]]:
        oriented = np.empty((MAX_ORIENTATIONS * len(some), 6), np.float32)
        oriented = oriented[: orient(strengths, directions, some, oriented)]
        descriptors = np.empty((len(oriented), 128), np.uint8)
        describe(strengths, directions, oriented, descriptors)
        return oriented, descriptors

    parts = thread_map(describe_some, [points[i : i + POINTS] for i in range(0, max(len(points), 1), POINTS)], threads)
    return np.concatenate([oriented for oriented, _ in parts]), np.concatenate([rows for _, rows in parts])


def _keypoints(oriented: Floats32, step: float) -> Floats32:
    """Return x, y, diameter, angle and contrast of oriented points of an octave whose pixels are `step` pixels wide."""
    x, y, layer, contrast, _, turn = oriented.T
    diameter = 2 * step * SIGMA * 2 ** (layer / STEPS)
    return np.column_stack([step * x, step * y, diameter, 360 * turn, contrast]).astype(np.float32)


def _strips(height: int) -> list[slice]:
    return [slice(first, min(first + STRIP, height)) for first in range(0, height, STRIP)]
