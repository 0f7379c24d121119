"""One image laid on another: affine transforms, shared area, pixel similarity.

A transform [2, 3] maps points (x, y) of one image to points of the other, in pixels of the full size; (0, 0) is the centre of
the first pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.types import Array, Floats64, GreyImage

Size = tuple[int, int]  # width and height
IDENTITY = np.eye(2, 3)
NEARLY_ALL = 0.97  # share of an image that counts as all of it
MIN_ANGLE = 1.0  # degrees: smaller rotations are not described
SAME_SCALE = 0.03  # scales that differ by less count as equal

LONG_SIDE = 512  # pixels of the long side of the images that are compared
GRID = 192  # sampled points on the long side of the overlap, at most
TILE = 8  # points of the side of a tile
MIN_CONTRAST = 4.0  # grey levels: tiles with a smaller standard deviation in both images are left out
MIN_TILES = 8  # tiles with contrast; with fewer the similarity is unknown
CONTENT_SIDE = 96  # pixels, or up to twice as many, of the long side where plain frames are looked for
PLAIN = 3.0  # grey levels within which a frame is of one colour


class PixelSimilarity(NamedTuple):
    """Quantiles of the correlations of tiles that both images show, and the correlation of their tones, -1 to 1; or all NaN."""

    q25: float
    median: float
    q75: float
    tone_correlation: float  # rank correlation of the mean grey levels of all tiles, also of plain ones


NO_SIMILARITY = PixelSimilarity(*[math.nan] * len(PixelSimilarity._fields))


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
    corners = _clip(apply(transform, _corners(first)), second)
    if len(corners) < 3:
        return 0.0
    x, y = corners.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def _corners(size: Size) -> Floats64:
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


def pixel_similarity(first: GreyImage | None, second: GreyImage | None, transform: Array) -> PixelSimilarity:
    """Compare the pixels of two images where they overlap; the transform maps points of the first to points of the second.

    All is NaN if an image is None (not readable), or the overlap has too little contrast.
    """
    if first is None or second is None:
        return NO_SIMILARITY
    corners = apply(transform, _corners((first.width, first.height)))
    x0, y0 = np.maximum(corners.min(axis=0), -0.5)
    x1, y1 = np.minimum(corners.max(axis=0), (second.width - 0.5, second.height - 0.5))
    if x1 <= x0 or y1 <= y0:
        return NO_SIMILARITY
    pixels = (_pixel_side(first) * np.sqrt(abs(np.linalg.det(transform[:, :2]))), _pixel_side(second))  # in the second image
    step = max(*pixels, max(x1 - x0, y1 - y0) / GRID)
    columns, rows = np.arange(x0 + step / 2, x1, step), np.arange(y0 + step / 2, y1, step)
    there = np.stack(np.meshgrid(columns, rows), axis=-1)  # [r, c, 2] in the second image
    here = (there - transform[:, 2]) @ np.linalg.inv(transform[:, :2]).T
    tiles = cut_tiles(_sample(first, here, step / pixels[0]), _sample(second, there, step / pixels[1]))
    correlations = tile_correlations(*tiles)
    if len(correlations) < MIN_TILES:
        return NO_SIMILARITY
    q25, median, q75 = np.quantile(correlations, (0.25, 0.5, 0.75)).tolist()
    return PixelSimilarity(q25, median, q75, rank_correlation(*tiles))


def cut_tiles(first: Floats64, second: Floats64) -> tuple[Floats64, Floats64]:
    """Cut two grids of grey levels [r, c] into tiles [t, points]; tiles with a NaN (not shown) in either are left out."""
    rows, columns = (size // TILE for size in first.shape)

    def cut(values: Floats64) -> Floats64:
        squares = values[: rows * TILE, : columns * TILE].reshape(rows, TILE, columns, TILE)
        return squares.swapaxes(1, 2).reshape(-1, TILE * TILE)

    one, other = cut(first), cut(second)
    complete = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    return one[complete], other[complete]


def tile_correlations(first: Floats64, second: Floats64) -> Floats64:
    """Return the normalised correlation of every pair of tiles [t, points] with contrast."""
    one, other = (tiles - tiles.mean(axis=1, keepdims=True) for tiles in (first, second))
    deviation, others = one.std(axis=1), other.std(axis=1)
    used = np.maximum(deviation, others) >= MIN_CONTRAST
    product = (one[used] * other[used]).mean(axis=1)
    # A tile that is flat in one image alone is unlike: one grey level keeps the quotient finite.
    return np.asarray(product / np.maximum(deviation[used] * others[used], 1.0))


def rank_correlation(first: Floats64, second: Floats64) -> float:
    """Return the rank correlation of the means of tiles [t, points] (Spearman 1904), which no change of tones alters.

    Images that share a frame and nothing else agree in tiles of the frame, but not in this.
    """

    def ranks(tiles: Floats64) -> Floats64:  # minus their mean; equal values share theirs
        _, number, counts = np.unique(tiles.mean(axis=1), return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[number]
        return np.asarray(ranks - ranks.mean())

    one, other = ranks(first), ranks(second)
    return float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12)


def content_share(image: GreyImage, copies: Sequence[tuple[Array, Size]]) -> float:
    """Return the share of an image that is not a frame of one colour, nor a corner left by a rotation.

    copies: the transform to each copy, and its size. Points that a copy does not show are no content if they have the grey
    level of a corner and are connected to it by points that have it, too.
    """
    factor = max(1, max(image.pixels.shape) // CONTENT_SIDE)
    pixels = _downscale(image.pixels, factor)
    rows, columns = pixels.shape
    side = factor * _pixel_side(image)
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


def _pixel_side(image: GreyImage) -> float:
    """Return the width of a pixel of a reduced image, in pixels of the full size."""
    return image.width / int(image.pixels.shape[1])


def _sample(image: GreyImage, points: Floats64, step: float) -> Floats64:
    """Return the grey levels at points [r, c, 2] of the full size, bilinear; NaN outside.

    `step`: distance of neighbouring points in pixels; so many are averaged, so that both images show the same detail.
    """
    factor = min(max(1, round(step)), *image.pixels.shape)
    pixels = _downscale(image.pixels, factor)
    height, width = pixels.shape
    side = factor * np.array([image.width / image.pixels.shape[1], image.height / image.pixels.shape[0]])  # of a pixel
    at = (points + 0.5) / side - 0.5
    low = np.floor(at).astype(np.int64)
    within = ((low >= 0) & (low < (width - 1, height - 1))).all(axis=-1)
    x, y = np.clip(low[..., 0], 0, max(width - 2, 0)), np.clip(low[..., 1], 0, max(height - 2, 0))
    right, down = at[..., 0] - x, at[..., 1] - y
    x1, y1 = np.minimum(x + 1, width - 1), np.minimum(y + 1, height - 1)
    upper = pixels[y, x] * (1 - right) + pixels[y, x1] * right
    lower = pixels[y1, x] * (1 - right) + pixels[y1, x1] * right
    return np.where(within, upper * (1 - down) + lower * down, np.nan)


def _downscale(pixels: Array, factor: int) -> Floats64:
    """Return pixels averaged in squares; what is left over at the right and lower edge is cut off."""
    rows, columns = (size // factor for size in pixels.shape)
    cut = pixels[: rows * factor, : columns * factor]
    total = np.zeros((rows, columns))
    for y in range(factor):  # several times as fast as a mean over two axes
        for x in range(factor):
            total += cut[y::factor, x::factor]
    return total / factor**2
