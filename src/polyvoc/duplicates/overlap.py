"""One image laid on another: affine transforms, shared area, what changed.

A transform [2, 3] maps points (x, y) of one image to points of the other, in pixels of the full size; (0, 0) is the centre of
the first pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polyvoc.types import Array, Floats64, GreyImage

Size = tuple[int, int]  # width and height
IDENTITY = np.eye(2, 3)
NEARLY_ALL = 0.97  # share of an image that counts as all of it
MIN_ANGLE = 1.0  # degrees: smaller rotations are not described
SAME_SCALE = 0.03  # scales that differ by less count as equal

CONTENT_SIDE = 96  # pixels, or up to twice as many, of the long side where plain frames are looked for
PLAIN = 3.0  # grey levels within which a frame is of one colour


def compose(after: Array, before: Array) -> Floats64:
    """Return the transform that applies `before`, then `after`."""
    return np.column_stack([after[:, :2] @ before[:, :2], after[:, :2] @ before[:, 2] + after[:, 2]])


def inverse(transform: Array) -> Floats64:
    """Return the inverse transform."""
    back = np.linalg.inv(transform[:, :2])
    return np.column_stack([back, -back @ transform[:, 2]])


def apply(transform: Array, points: Array) -> Floats64:
    """Return points [n, 2] mapped by a transform."""
    return np.asarray(points @ transform[:, :2].T + transform[:, 2], np.float64)


def scale(transform: Array) -> float:
    """Return the mean factor by which lengths grow."""
    return math.sqrt(abs(float(np.linalg.det(transform[:, :2]))))


def stretch(transform: Array) -> float:
    """Return the ratio of a transform's axes: 1 for a similarity, else more."""
    long, short = np.linalg.svd(transform[:, :2], compute_uv=False)
    return float(long / max(short, 1e-12))


def inside(points: Array, size: Size) -> npt.NDArray[np.bool_]:
    """Return which points [n, 2] lie in an image."""
    return np.asarray(((points > -0.5) & (points < np.array(size) - 0.5)).all(axis=1))


def shares(first: Size, second: Size, transform: Array) -> tuple[float, float]:
    """Return the share of the first image that the second shows, and the share of the second that the first shows."""
    both = shared_area(first, second, transform)
    area = first[0] * first[1] * scale(transform) ** 2
    return min(both / max(area, 1e-12), 1.0), min(both / (second[0] * second[1]), 1.0)


def shared_area(first: Size, second: Size, transform: Array) -> float:
    """Return the area that both images show, in square pixels of the second."""
    corners = _clip(apply(transform, image_corners(first)), second)
    if len(corners) < 3:
        return 0.0
    x, y = corners.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def image_corners(size: Size) -> Floats64:
    """Return the corners [4, 2] of an image: its edges lie half a pixel outside the centres of its outer pixels."""
    right, low = size[0] - 0.5, size[1] - 0.5
    return np.array([[-0.5, -0.5], [right, -0.5], [right, low], [-0.5, low]])


def _clip(corners: Floats64, size: Size) -> Floats64:
    """Return the part of a convex polygon that lies in an image (Sutherland and Hodgman 1974)."""
    edges = ((0, 1, -0.5), (0, -1, size[0] - 0.5), (1, 1, -0.5), (1, -1, size[1] - 0.5))  # axis, sign, limit
    for axis, sign, limit in edges:
        kept: list[Array] = []
        for here, after in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            within, next_within = sign * (here[axis] - limit) >= 0, sign * (after[axis] - limit) >= 0
            if within:
                kept.append(here)
            if within != next_within:
                kept.append(here + (after - here) * (limit - here[axis]) / (after[axis] - here[axis]))
        if not kept:
            return np.empty((0, 2))
        corners = np.array(kept)
    return corners


def describe_change(copy: Size, best: Size, transform: Array) -> str:
    """Describe what turned the best image into a copy; the transform maps points of the copy to points of the best."""
    changes = []
    linear = transform[:, :2]
    if np.linalg.det(linear) < 0:
        changes.append("mirrored")
        linear = linear @ np.diag([-1.0, 1.0])
    # Clockwise, since y points down: the rotation that turns the best into the copy.
    angle = -math.degrees(math.atan2(linear[1, 0] - linear[0, 1], linear[0, 0] + linear[1, 1]))
    if abs(angle) >= MIN_ANGLE:
        side = "" if round(abs(angle)) == 180 else " right" if angle > 0 else " left"
        changes.append(f"rotated {abs(angle):.0f}°{side}")
    own, shown = shares(copy, best, transform)
    if shown < NEARLY_ALL:
        changes.append(f"{max(shown, 0.001):.0%} of the area".replace("%", " %"))
    if own < NEARLY_ALL:
        changes.append("something added around it")
    size = 1 / scale(transform)
    if abs(math.log(size)) > SAME_SCALE:
        changes.append(f"{size:.0%} of the size".replace("%", " %"))
    if stretch(transform) > 1 + SAME_SCALE:
        changes.append("stretched")
    return ", ".join(changes) or "the same picture in another file"


def content_share(image: GreyImage, copies: Sequence[tuple[Array, Size]]) -> float:
    """Return the share of an image that is not a frame of one colour, nor a corner left by a rotation.

    copies: the transform to each copy, and its size. Points that a copy does not show are no content if they have the grey
    level of a corner and are connected to it by points that have it, too.
    """
    factor = max(1, max(image.pixels.shape) // CONTENT_SIDE)
    pixels = _downscale(image.pixels, factor)
    rows, columns = pixels.shape
    side = factor * pixel_side(image)
    points = (np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2) + 0.5) * side - 0.5
    added = np.zeros(rows * columns, bool)
    for transform, size in copies:
        added |= ~inside(apply(transform, points), size)
    empty = np.zeros(pixels.shape, bool)
    for corner in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)):
        empty |= _connected(np.abs(pixels - pixels[corner]) <= PLAIN, corner)
    return 1 - float((empty.ravel() & added).mean())


def _connected(same: npt.NDArray[np.bool_], start: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the points of a mask that are connected to a start by steps within the mask."""
    reached = np.zeros(same.shape, bool)
    reached[start] = True
    while True:
        wider = reached.copy()
        wider[1:] |= reached[:-1]
        wider[:-1] |= reached[1:]
        wider[:, 1:] |= reached[:, :-1]
        wider[:, :-1] |= reached[:, 1:]
        wider &= same
        if (wider == reached).all():
            return reached
        reached = wider


def pixel_side(image: GreyImage) -> float:
    """Return the width of a pixel of a reduced image, in pixels of the full size."""
    return image.width / int(image.pixels.shape[1])


def _downscale(pixels: Array, factor: int) -> Floats64:
    """Return pixels averaged in squares; what is left over at the right and lower edge is cut off."""
    rows, columns = (size // factor for size in pixels.shape)
    cut = pixels[: rows * factor, : columns * factor]
    total = np.zeros((rows, columns))
    for y in range(factor):  # several times as fast as a mean over two axes
        for x in range(factor):
            total += cut[y::factor, x::factor]
    return total / factor**2
