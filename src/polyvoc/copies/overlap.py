"""Where does one photograph lie in another? Frames, affine transforms [2, 3] between their places, and words for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Size = tuple[int, int]  # width and height

IDENTITY = np.eye(2, 3)
WHOLE = 0.97  # of a photograph: as good as all of it
LEVEL = 1.0  # degrees: less is not said
SAME_SCALE = 0.03  # by which scales differ that count as equal


def compose(after: Array, before: Array) -> Floats:
    """Give the transform that does one and then the other."""
    return np.column_stack([after[:, :2] @ before[:, :2], after[:, :2] @ before[:, 2] + after[:, 2]])


def inverse(transform: Array) -> Floats:
    """Give the transform back."""
    back = np.linalg.inv(transform[:, :2])
    return np.column_stack([back, -back @ transform[:, 2]])


def apply(transform: Array, places: Array) -> Floats:
    """Give where places [n, 2] go."""
    return np.asarray(places @ transform[:, :2].T + transform[:, 2], np.float64)


def scale(transform: Array) -> float:
    """Give by how much lengths grow, in the mean."""
    return math.sqrt(abs(float(np.linalg.det(transform[:, :2]))))


def stretch(transform: Array) -> float:
    """Give how far a transform is from a similarity: the ratio of its axes, 1 if it is one."""
    long, short = np.linalg.svd(transform[:, :2], compute_uv=False)
    return float(long / max(short, 1e-12))


def frame(size: Size) -> Floats:
    """Give the corners [4, 2] of a photograph: its edges lie half a pixel outside the centres of its outer pixels."""
    right, low = size[0] - 0.5, size[1] - 0.5
    return np.array([[-0.5, -0.5], [right, -0.5], [right, low], [-0.5, low]])


def inside(places: Array, size: Size) -> npt.NDArray[np.bool_]:
    """Tell which places [n, 2] lie in a photograph."""
    return np.asarray(((places > -0.5) & (places < np.array(size) - 0.5)).all(axis=1))


def shared_area(first: Size, second: Size, transform: Array) -> float:
    """Give the area, in square pixels of the second photograph, that both show."""
    return area(_clipped(apply(transform, frame(first)), second))


def shares(first: Size, second: Size, transform: Array) -> tuple[float, float]:
    """Give which part of the first photograph the second one shows, and which part of the second the first one shows."""
    both = shared_area(first, second, transform)
    whole = first[0] * first[1] * scale(transform) ** 2
    return min(both / max(whole, 1e-12), 1.0), min(both / (second[0] * second[1]), 1.0)


def area(corners: Array) -> float:
    """Give the area of a polygon by its corners [n, 2]."""
    if len(corners) < 3:
        return 0.0
    x, y = corners.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def _clipped(corners: Floats, size: Size) -> Floats:
    """Give the part of a convex polygon that lies in a photograph (Sutherland and Hodgman 1974)."""
    edges = ((0, 1, -0.5), (0, -1, size[0] - 0.5), (1, 1, -0.5), (1, -1, size[1] - 0.5))  # axis, which side, where
    for axis, side, limit in edges:
        kept: list[Array] = []
        for here, after in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            within, next_within = side * (here[axis] - limit) >= 0, side * (after[axis] - limit) >= 0
            if within:
                kept.append(here)
            if within != next_within:
                kept.append(here + (after - here) * (limit - here[axis]) / (after[axis] - here[axis]))
        if not kept:
            return np.empty((0, 2))
        corners = np.array(kept)
    return corners


def in_words(copy: Size, best: Size, transform: Array) -> str:
    """Say what was done to a photograph to make a copy of it; the transform takes places of the copy to places of the best."""
    told = []
    turned = transform[:, :2]
    if np.linalg.det(turned) < 0:
        told.append("mirrored")
        turned = turned @ np.diag([-1.0, 1.0])
    # Clockwise, since y points down: by how much the best must be turned to stand as the copy does.
    angle = -math.degrees(math.atan2(turned[1, 0] - turned[0, 1], turned[0, 0] + turned[1, 1]))
    if abs(angle) >= LEVEL:
        told.append(f"rotated {abs(angle):.0f}°" + ("" if round(abs(angle)) == 180 else " right" if angle > 0 else " left"))
    own, shown = shares(copy, best, transform)
    if shown < WHOLE:
        told.append(f"{max(shown, 0.001):.0%} of the area".replace("%", " %"))
    if own < WHOLE:
        told.append("something added around it")
    size = 1 / scale(transform)
    if abs(math.log(size)) > SAME_SCALE:
        told.append(f"{size:.0%} of the size".replace("%", " %"))
    if stretch(transform) > 1 + SAME_SCALE:
        told.append("stretched")
    return ", ".join(told) or "the same picture in another file"
