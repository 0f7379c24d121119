"""Two photographs laid upon each other: are they the same pixels, whatever was done to colours, sizes and encodings?

What both show is cut into tiles, and the tiles are compared one by one by normalised correlation. Colours that were changed
alter no correlation; letters, a stamp or a face that was pasted in spoil some tiles and leave the others as they were; where
the camera or the world has moved between two shots, most tiles are a little wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc import geometry
from polyvoc.copies import overlap
from polyvoc.images import GreyImage

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

LONG_SIDE = 512  # pixels of the long side of the photographs that are compared
GRID = 192  # places on the long side of what both show that are compared, at most
TILE = 8  # places of the side of a tile
FLAT = 4.0  # grey levels: a tile that deviates less in both photographs says nothing
LEAST = 8  # tiles that say something; fewer decide nothing
QUANTILES = (0.25, 0.5, 0.75)  # of the correlations of tiles that are told
CONTENT_SIDE = 96  # pixels, or up to twice as many, of the long side where content is looked for
PLAIN = 3.0  # grey levels within which a frame is of one colour
UNKNOWN = float("nan")


class Likeness(NamedTuple):
    """How alike the pixels are that both photographs show: correlations of tiles, from -1 to 1; NaN if too few say anything."""

    quarter: float  # three out of four tiles are more alike
    median: float
    upper: float  # one out of four is
    coarse: float  # correlation of the ranks of the mean grey levels of all tiles, also of plain ones


NOTHING = Likeness(*[UNKNOWN] * len(Likeness._fields))


def compare(first: GreyImage, second: GreyImage, transform: Array) -> Likeness:
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
    if len(alike) < LEAST:
        return NOTHING
    quarter, median, upper = np.quantile(alike, QUANTILES).tolist()
    return Likeness(quarter, median, upper, rank_correlation(*tiles))


def overlap_box(first: GreyImage, second: GreyImage, transform: Array) -> tuple[float, float, float, float] | None:
    """Give the part of the second photograph within which the first may lie, None if it lies elsewhere."""
    corners = np.array(geometry.outline((-0.5, -0.5, first.width - 0.5, first.height - 0.5), transform))
    x0, y0 = np.maximum(corners.min(axis=0), -0.5)
    x1, y1 = np.minimum(corners.max(axis=0), (second.width - 0.5, second.height - 0.5))
    return (float(x0), float(y0), float(x1), float(y1)) if x1 > x0 and y1 > y0 else None


def _tiles(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Cut two pictures [r, c] into tiles [t, places], those that both show whole; NaN: not shown."""
    rows, columns = (size // TILE for size in first.shape)

    def cut(values: Floats) -> Floats:
        squares = values[: rows * TILE, : columns * TILE].reshape(rows, TILE, columns, TILE)
        return squares.swapaxes(1, 2).reshape(-1, TILE * TILE)

    one, other = cut(first), cut(second)
    whole = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    return one[whole], other[whole]


def tile_correlations(first: Floats, second: Floats) -> Floats:
    """Give the normalised correlation of every tile [t, places] of two pictures that says something."""
    one, other = (tiles - tiles.mean(axis=1, keepdims=True) for tiles in (first, second))
    spread, others = one.std(axis=1), other.std(axis=1)
    telling = np.maximum(spread, others) >= FLAT
    product = (one[telling] * other[telling]).mean(axis=1)
    # A tile that is flat in one photograph alone is unlike: one grey level keeps the quotient finite.
    return np.asarray(product / np.maximum(spread[telling] * others[telling], 1.0))


def rank_correlation(first: Floats, second: Floats) -> float:
    """Give the correlation of the ranks of the means of tiles [t, places] (Spearman 1904): no change of tones alters it.

    Photographs that share a frame and nothing else agree in tiles of the frame, but not in this.
    """
    one, other = (_ranks(tiles.mean(axis=1)) for tiles in (first, second))
    return float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12)


def _ranks(values: Floats) -> Floats:
    """Give ranks from their mean on; equal values share theirs."""
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[number]
    return np.asarray(ranks - ranks.mean())


def content(image: GreyImage, others: Sequence[tuple[Array, overlap.Size]]) -> float:
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
        added |= ~overlap.inside(overlap.apply(transform, places), size)
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


def _sampled(image: GreyImage, places: Floats, coarser: float) -> Floats:
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


def _averaged(pixels: Array, factor: int) -> Floats:
    """Give pixels averaged in squares; what is left over at the right and lower edge is cut off."""
    rows, columns = (size // factor for size in pixels.shape)
    cut = pixels[: rows * factor, : columns * factor]
    total = np.zeros((rows, columns))
    for y in range(factor):  # some times as fast as a mean over two axes
        for x in range(factor):
            total += cut[y::factor, x::factor]
    return total / factor**2
