"""One photograph laid on another: transforms, pixel similarity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.search.verify import outline
from polyvoc.types import Array, Floats64, GreyImage

Size = tuple[int, int]  # width and height
IDENTITY = np.eye(2, 3)
WHOLE = 0.97  # of a photograph: as good as all of it
LEVEL = 1.0  # degrees: less is not said
SAME_SCALE = 0.03  # by which scales differ that count as equal


def compose(after: Array, before: Array) -> Floats64:
    """Give the transform that does one and then the other."""
    return np.column_stack([after[:, :2] @ before[:, :2], after[:, :2] @ before[:, 2] + after[:, 2]])


def inverse(transform: Array) -> Floats64:
    """Give the transform back."""
    back = np.linalg.inv(transform[:, :2])
    return np.column_stack([back, -back @ transform[:, 2]])


def apply(transform: Array, places: Array) -> Floats64:
    """Give where places [n, 2] go."""
    return np.asarray(places @ transform[:, :2].T + transform[:, 2], np.float64)


def scale(transform: Array) -> float:
    """Give by how much lengths grow, in the mean."""
    return math.sqrt(abs(float(np.linalg.det(transform[:, :2]))))


def stretch(transform: Array) -> float:
    """Give how far a transform is from a similarity: the ratio of its axes, 1 if it is one."""
    long, short = np.linalg.svd(transform[:, :2], compute_uv=False)
    return float(long / max(short, 1e-12))


def frame(size: Size) -> Floats64:
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


def _clipped(corners: Floats64, size: Size) -> Floats64:
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


def describe_change(copy: Size, best: Size, transform: Array) -> str:
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


LONG_SIDE = 512  # pixels of the long side of the photographs that are compared
GRID = 192  # places on the long side of what both show that are compared, at most
TILE = 8  # places of the side of a tile
FLAT = 4.0  # grey levels: a tile that deviates less in both photographs says nothing
MIN_PIXELS = 8  # tiles that say something; fewer decide nothing
QUANTILES = (0.25, 0.5, 0.75)  # of the correlations of tiles that are told
CONTENT_SIDE = 96  # pixels, or up to twice as many, of the long side where content is looked for
PLAIN = 3.0  # grey levels within which a frame is of one colour
UNKNOWN = float("nan")


class PixelSimilarity(NamedTuple):
    """How alike the pixels are that both photographs show: correlations of tiles, from -1 to 1; NaN if too few say anything."""

    quarter: float  # three out of four tiles are more alike
    median: float
    upper: float  # one out of four is
    coarse: float  # correlation of the ranks of the mean grey levels of all tiles, also of plain ones


NOTHING = PixelSimilarity(*[UNKNOWN] * len(PixelSimilarity._fields))


def pixel_similarity(first: GreyImage, second: GreyImage, transform: Array) -> PixelSimilarity:
    """Compare two photographs where they overlap; the transform [2, 3] takes places of the first to places of the second.

    Places are in pixels of the full size.
    """
    box = overlap_box(first, second, transform)
    if box is None:
        return NOTHING
    x0, y0, x1, y1 = box
    reduced = (_reduction(first) * np.sqrt(abs(np.linalg.det(transform[:, :2]))), _reduction(second))
    step = max(*reduced, max(x1 - x0, y1 - y0) / GRID)
    columns, rows = np.arange(x0 + step / 2, x1, step), np.arange(y0 + step / 2, y1, step)
    there = np.stack(np.meshgrid(columns, rows), axis=-1)  # [r, c, 2] in the second
    here = (there - transform[:, 2]) @ np.linalg.inv(transform[:, :2]).T
    values = [_sampled(first, here, step / reduced[0]), _sampled(second, there, step / reduced[1])]
    tiles = _tiles(*values)
    alike = tile_correlations(*tiles)
    if len(alike) < MIN_PIXELS:
        return NOTHING
    quarter, median, upper = np.quantile(alike, QUANTILES).tolist()
    return PixelSimilarity(quarter, median, upper, rank_correlation(*tiles))


def overlap_box(first: GreyImage, second: GreyImage, transform: Array) -> tuple[float, float, float, float] | None:
    """Give the part of the second photograph within which the first may lie, None if it lies elsewhere."""
    corners = np.array(outline((-0.5, -0.5, first.width - 0.5, first.height - 0.5), transform))
    x0, y0 = np.maximum(corners.min(axis=0), -0.5)
    x1, y1 = np.minimum(corners.max(axis=0), (second.width - 0.5, second.height - 0.5))
    return (float(x0), float(y0), float(x1), float(y1)) if x1 > x0 and y1 > y0 else None


def _tiles(first: Floats64, second: Floats64) -> tuple[Floats64, Floats64]:
    """Cut two pictures [r, c] into tiles [t, places], those that both show whole; NaN: not shown."""
    rows, columns = (size // TILE for size in first.shape)

    def cut(values: Floats64) -> Floats64:
        squares = values[: rows * TILE, : columns * TILE].reshape(rows, TILE, columns, TILE)
        return squares.swapaxes(1, 2).reshape(-1, TILE * TILE)

    one, other = cut(first), cut(second)
    whole = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    return one[whole], other[whole]


def tile_correlations(first: Floats64, second: Floats64) -> Floats64:
    """Give the normalised correlation of every tile [t, places] of two pictures that says something."""
    one, other = (tiles - tiles.mean(axis=1, keepdims=True) for tiles in (first, second))
    spread, others = one.std(axis=1), other.std(axis=1)
    telling = np.maximum(spread, others) >= FLAT
    product = (one[telling] * other[telling]).mean(axis=1)
    # A tile that is flat in one photograph alone is unlike: one grey level keeps the quotient finite.
    return np.asarray(product / np.maximum(spread[telling] * others[telling], 1.0))


def rank_correlation(first: Floats64, second: Floats64) -> float:
    """Give the correlation of the ranks of the means of tiles [t, places] (Spearman 1904): no change of tones alters it.

    Photographs that share a frame and nothing else agree in tiles of the frame, but not in this.
    """
    one, other = (_ranks(tiles.mean(axis=1)) for tiles in (first, second))
    return float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12)


def _ranks(values: Floats64) -> Floats64:
    """Give ranks from their mean on; equal values share theirs."""
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[number]
    return np.asarray(ranks - ranks.mean())


def content(image: GreyImage, others: Sequence[tuple[Array, Size]]) -> float:
    """Give the share of a photograph that shows something: all but a frame of one colour, or corners left by a rotation.

    others: copies of it, each as the transform of its places to theirs, and their size. What one of them does not show shows
    nothing if it has the grey level of a corner, and is joined to it by places that have it, too.
    """
    factor = max(1, max(image.pixels.shape) // CONTENT_SIDE)
    pixels = _averaged(image.pixels, factor)
    rows, columns = pixels.shape
    side = factor * _reduction(image)
    places = (np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2) + 0.5) * side - 0.5
    added = np.zeros(rows * columns, bool)
    for transform, size in others:
        added |= ~inside(apply(transform, places), size)
    empty = np.zeros(pixels.shape, bool)
    for corner in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)):
        empty |= _joined(np.abs(pixels - pixels[corner]) <= PLAIN, corner)
    return 1 - float((empty.ravel() & added).mean())


def _joined(same: npt.NDArray[np.bool_], start: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Give the places that are joined to one of them by steps on places that are the same."""
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


def _reduction(image: GreyImage) -> float:
    """Give how many pixels of the full size a pixel is wide."""
    return image.width / int(image.pixels.shape[1])


def _sampled(image: GreyImage, places: Floats64, coarser: float) -> Floats64:
    """Give the grey levels at places [r, c, 2] of the full size, bilinear; NaN outside.

    `coarser`: pixels between neighbouring places, which are averaged so that nothing is seen that the other photograph lost.
    """
    factor = min(max(1, round(coarser)), *image.pixels.shape)
    pixels = _averaged(image.pixels, factor)
    height, width = pixels.shape
    side = factor * np.array([image.width / image.pixels.shape[1], image.height / image.pixels.shape[0]])  # of a pixel
    at = (places + 0.5) / side - 0.5
    whole = np.floor(at).astype(np.int64)
    inside = ((whole >= 0) & (whole < (width - 1, height - 1))).all(axis=-1)
    x, y = np.clip(whole[..., 0], 0, max(width - 2, 0)), np.clip(whole[..., 1], 0, max(height - 2, 0))
    right, down = at[..., 0] - x, at[..., 1] - y
    x1, y1 = np.minimum(x + 1, width - 1), np.minimum(y + 1, height - 1)
    upper = pixels[y, x] * (1 - right) + pixels[y, x1] * right
    lower = pixels[y1, x] * (1 - right) + pixels[y1, x1] * right
    return np.where(inside, upper * (1 - down) + lower * down, UNKNOWN)


def _averaged(pixels: Array, factor: int) -> Floats64:
    """Give pixels averaged in squares; what is left over at the right and lower edge is cut off."""
    rows, columns = (size // factor for size in pixels.shape)
    cut = pixels[: rows * factor, : columns * factor]
    total = np.zeros((rows, columns))
    for y in range(factor):  # some times as fast as a mean over two axes
        for x in range(factor):
            total += cut[y::factor, x::factor]
    return total / factor**2
