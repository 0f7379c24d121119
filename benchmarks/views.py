"""Queries as if the same thing had been photographed otherwise: turned, from far off, from near, by night."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

Random = np.random.Generator
View = Callable[[Image.Image, Random], Image.Image]

FACTOR = 3  # of the scales
EXPOSURE, GAMMA = 0.12, 1.4  # of linear light; the exponent of a dark tone curve after it
SHOT, READ = 400.0, 0.004  # photons of white, and the noise of reading, as a share of white


def turned(image: Image.Image, rng: Random) -> Image.Image:
    """Turned by 90 degrees."""
    return image.transpose(Image.Transpose.ROTATE_90)


def smaller(image: Image.Image, rng: Random) -> Image.Image:
    """A third of the width and of the height."""
    return image.resize((image.width // FACTOR, image.height // FACTOR), Image.Resampling.LANCZOS)


def larger(image: Image.Image, rng: Random) -> Image.Image:
    """The middle ninth, enlarged to the size of the photograph."""
    left, top = (side * (FACTOR - 1) // (2 * FACTOR) for side in image.size)
    box = (left, top, left + image.width // FACTOR, top + image.height // FACTOR)
    return image.crop(box).resize(image.size, Image.Resampling.BICUBIC)


def darkened(image: Image.Image, rng: Random) -> Image.Image:
    """As exposed by night: a tenth of the light, its noise, a dark tone curve, eight bits."""
    light = (np.asarray(image.convert("RGB"), np.float64) / 255) ** 2.2 * EXPOSURE
    light = rng.poisson(light * SHOT) / SHOT + rng.normal(0, READ, light.shape)
    toned = np.clip(light, 0, 1) ** (GAMMA / 2.2)
    return Image.fromarray(np.rint(255 * toned).astype(np.uint8))


VIEWS: dict[str, View] = {
    "turned by 90 degrees": turned,
    "scaled by 1/3": smaller,
    "scaled by 3": larger,
    "darkened": darkened,
}


def view_of(name: str, image: Image.Image, seed: int) -> Image.Image:
    """Return an altered photograph; of the same seed the same one."""
    return VIEWS[name](image, np.random.default_rng(seed))
