"""Views of a corner of a room whose walls are real photographs, with known cameras to check a reconstruction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import skimage
from PIL import Image

Array = npt.NDArray[np.float64]
DATA = Path(skimage.__file__).parent / "data"
WALLS = ("hubble_deep_field.jpg", "astronaut.png", "coffee.png")  # on the planes x = 0, y = 0, z = 0, each of two units
SIZE = (560, 420)
FOCAL = 500.0
TEXELS = 380  # of a wall: about as many as a view has pixels for it, so that there is no aliasing


@dataclass(frozen=True)
class View:
    """A camera: x in the world is seen at rotation @ (x - centre), z forward."""

    centre: Array
    rotation: Array


def views(count: int, turn: float = 0.0) -> list[View]:
    """Return cameras on an arc before the corner, all directed to it."""
    cameras = []
    for angle in np.radians(np.linspace(22, 68, count) + turn):
        centre = np.array([4.2 * np.cos(angle), 4.2 * np.sin(angle), 2.2 + 0.3 * np.sin(5 * angle)])
        forward = np.array([0.5, 0.5, 0.6]) - centre
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, [0, 0, 1])
        right /= np.linalg.norm(right)
        cameras.append(View(centre, np.array([right, np.cross(forward, right), forward])))
    return cameras


def render(view: View) -> Image.Image:
    """Render the view of a camera."""
    x, y = np.meshgrid(np.arange(SIZE[0]) + 0.5, np.arange(SIZE[1]) + 0.5)
    rays = np.stack([(x - SIZE[0] / 2) / FOCAL, (y - SIZE[1] / 2) / FOCAL, np.ones_like(x)], axis=-1) @ view.rotation
    depth = np.full(x.shape, np.inf)
    pixels = np.full((*x.shape, 3), 90.0)
    for axis, name in enumerate(WALLS):
        with np.errstate(divide="ignore"):
            far = -view.centre[axis] / rays[..., axis]
        places = np.delete(view.centre + far[..., None] * rays, axis, axis=-1)  # [h, w, 2]  on the wall
        seen = (far > 0) & (far < depth) & (places >= 0).all(axis=-1) & (places < 2).all(axis=-1)
        pixels[seen] = _sample(_wall(name), places[seen] / 2)
        depth[seen] = far[seen]
    return Image.fromarray(pixels.round().astype(np.uint8))


@cache
def _wall(name: str) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(DATA / name).convert("RGB").resize((TEXELS, TEXELS), Image.Resampling.LANCZOS))


def _sample(pixels: npt.NDArray[np.uint8], positions: Array) -> Array:
    """Return colours [n, 3] at positions [n, 2] from 0 to 1, interpolated linearly."""
    at = positions * (np.array(pixels.shape[:2]) - 1)
    low = at.astype(int)
    share = at - low
    corners = [
        (pixels[low[:, 0] + i, low[:, 1] + j], np.abs(1 - i - share[:, 0]) * np.abs(1 - j - share[:, 1]))
        for i in (0, 1)
        for j in (0, 1)
    ]
    return np.asarray(sum(colour * weight[:, None] for colour, weight in corners))
