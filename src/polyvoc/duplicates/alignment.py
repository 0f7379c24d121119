"""How exactly the pixels of two images lie on each other: what distinguishes a copy from a second shot.

A copy differs from its original by one affine transform, to a fraction of a pixel everywhere, and both show the same noise. In
a second shot the camera has moved: nearer things shift against farther ones, the lens bends straight lines elsewhere, leaves
and people move, and the noise is another. So the transform is refined on the pixels: corners of one image are followed in the
other (Lucas & Kanade 1981, in pyramids), a robust affine transform is fitted to their displacements, and what remains of them
is measured, together with the correlation of tiles, of all detail and of the finest alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.duplicates.overlap import Size, apply, compose, image_corners, inverse, pixel_side, scale
from polyvoc.types import Array, Floats32, Floats64, GreyImage

LONG_SIDE = 1024  # pixels of the long side of the images that are compared
GRID = 640  # points on the long side of the overlap, at most
MIN_GRID = 48  # points on its short side, at least
ROUNDS = 2  # displacements are measured, the transform refined, and they are measured again
MAX_CORNERS, CORNER_QUALITY, CORNER_DISTANCE = 300, 0.02, 8
MIN_CORNERS, MIN_FOLLOWED = 20, 12
WINDOW = 15  # points of the side of the square that is followed
MAX_MOVE = 12.0  # points: the first transform is not as wrong as that
MAX_RETURN = 0.3  # points: a corner that is followed there and back ends where it began
NEIGHBOURHOOD = 25  # points: side of the squares in which brightness and contrast are made the same
FLAT = 2.0  # grey levels: less contrast is not made more
TILE = 16  # points of the side of a tile
MIN_CONTRAST, MIN_FINE = 4.0, 1.5  # grey levels: tiles with a smaller standard deviation in both images are left out
FINE = 1.5  # points: detail that a Gaussian of this width removes is fine
MIN_TILES = 8  # with contrast; with fewer all is unknown


class Alignment(NamedTuple):
    """Measures of how two images lie on each other; all NaN if they could not be compared."""

    followed: float  # share of the corners of one image that are found in the other
    shift: float  # median distance of these corners from where one affine transform has them, in points of the grid
    shift_q90: float
    bend: float  # the part of these distances that is smooth: how far the transform is from affine, root mean square
    q10: float  # quantiles of the correlations of tiles
    q25: float
    median: float
    q75: float
    fine_q25: float  # the same of the finest detail
    fine_median: float
    fine_q75: float
    tone_correlation: float  # rank correlation of the mean grey levels of all tiles, also of plain ones
    points: float  # of the long side of the grid: distances on a coarse one say less


UNKNOWN = Alignment._make([math.nan] * len(Alignment._fields))
UNLIKE = Alignment._make([0.0, MAX_MOVE, MAX_MOVE, MAX_MOVE, *[0.0] * 8, math.nan])  # too few corners are found again


def align(first: GreyImage | None, second: GreyImage | None, transform: Array) -> Alignment:
    """Measure how two images lie on each other where they overlap.

    The transform maps points of the first to points of the second, in pixels of the full size; it may be off by some pixels.
    An image that is None could not be read.
    """
    grid = None if first is None or second is None else _Grid.of(first, second, transform)
    if first is None or second is None or grid is None:
        return UNKNOWN
    other = grid.sample(second, grid.to_second)
    following = _Following.of(other, grid.shown(first, transform) & grid.shown(second))
    if following is None:
        return UNKNOWN
    final, here = np.asarray(transform, np.float64), grid.sample(first, compose(inverse(transform), grid.to_second))
    displacements = following.follow(here)
    for _ in range(ROUNDS - 1):
        if displacements is not None:
            final = grid.refined(final, displacements)
            here = grid.sample(first, compose(inverse(final), grid.to_second))
            displacements = following.follow(here)
    if displacements is None:
        return UNLIKE._replace(followed=following.share, points=float(max(grid.size)))
    mask = grid.shown(first, final) & grid.shown(second)
    tiles = _tiles(here, mask), _tiles(other, mask)
    plain = _correlations(*tiles, MIN_CONTRAST)
    fine = _correlations(_tiles(_fine(here), mask), _tiles(_fine(other), mask), MIN_FINE)
    if len(plain) < MIN_TILES:
        return UNKNOWN
    if len(fine) < MIN_TILES:  # blurred: what detail there is counts as fine
        fine = plain
    return Alignment._make([
        following.share,
        *np.quantile(displacements.left, (0.5, 0.9)).tolist(),
        displacements.bend(),
        *np.quantile(plain, (0.1, 0.25, 0.5, 0.75)).tolist(),
        *np.quantile(fine, (0.25, 0.5, 0.75)).tolist(),
        rank_correlation(*tiles),
        float(max(grid.size)),
    ])  # fmt: skip


class _Grid(NamedTuple):
    """Points in rows and columns of the second image, over the overlap, as dense as the pixels of the coarser image."""

    size: Size
    to_second: Floats64  # [2, 3] points of the grid to points of the second image
    step: float  # distance of points, in pixels of the full size of the second image
    pixel: float  # side of the coarser image's pixels there

    @classmethod
    def of(cls, first: GreyImage, second: GreyImage, transform: Array) -> _Grid | None:
        """Lay a grid on the overlap; None if it is too small."""
        corners = apply(transform, image_corners((first.width, first.height)))
        x0, y0 = np.maximum(corners.min(axis=0), -0.5)
        x1, y1 = np.minimum(corners.max(axis=0), (second.width - 0.5, second.height - 0.5))
        pixel = max(pixel_side(first) * scale(transform), pixel_side(second))
        step = max(pixel, (max(x1 - x0, y1 - y0)) / GRID)
        if min(x1 - x0, y1 - y0) < MIN_GRID * step:
            return None
        size = int((x1 - x0) / step), int((y1 - y0) / step)
        return cls(size, np.array([[step, 0, x0 + step / 2], [0, step, y0 + step / 2]]), step, pixel)

    def sample(self, image: GreyImage, to_image: Array) -> Floats32:
        """Return the grey levels of an image at the points; a finer one is reduced first: both show the same detail."""
        pixels: Array = image.pixels
        step = self._step(image, to_image)
        if step > 1.01:
            reduced = max(MIN_GRID // 4, round(pixels.shape[1] / step)), max(MIN_GRID // 4, round(pixels.shape[0] / step))
            pixels = cv2.resize(pixels, reduced, interpolation=cv2.INTER_AREA)
        flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        matrix = _to_pixels(image, pixels, to_image)
        warped = cv2.warpAffine(pixels.astype(np.float32), matrix, self.size, flags=flags, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(warped, np.float32)

    def shown(self, image: GreyImage, transform: Array | None = None) -> npt.NDArray[np.bool_]:
        """Return which points an image shows; the first by its transform, the second without."""
        to_image = self.to_second if transform is None else compose(inverse(transform), self.to_second)
        x, y = np.arange(self.size[0]), np.arange(self.size[1])[:, None]
        across, down = (row[0] * x + row[1] * y + row[2] for row in to_image)
        return np.asarray((across > 0) & (down > 0) & (across < image.width - 1) & (down < image.height - 1))

    def _step(self, image: GreyImage, to_image: Array) -> float:
        """Return the distance of points in pixels of the reduced image."""
        return scale(to_image) / pixel_side(image)

    def refined(self, transform: Floats64, displacements: _Displacements) -> Floats64:
        """Return the transform that takes the measured displacements into account."""
        constant, linear = displacements.affine[0], displacements.affine[1:].T / (max(self.size) / 2)
        middle = np.array(self.size) / 2
        moved = np.column_stack([np.eye(2) + linear, constant - linear @ middle])  # points of the grid
        return compose(self.to_second, inverse(compose(compose(inverse(transform), self.to_second), moved)))


class _Displacements(NamedTuple):
    """Where corners of one image are found in the other, relative to where they are expected, in points of the grid."""

    at: Floats64  # [n, 2] -1 to 1 along the long side
    moved: Floats64  # [n, 2]
    affine: Floats64  # [3, 2] the affine part: 1, x, y -> displacement
    left: Floats64  # [n] distance from it
    weights: Floats64  # [n] 0: an outlier

    @classmethod
    def of(cls, at: Floats64, moved: Floats64) -> _Displacements:
        """Fit the affine part: least squares with the weights of Tukey's biweight, again and again."""
        columns, weights = np.column_stack([np.ones(len(at)), at]), np.ones(len(at))
        for _ in range(8):
            weighted = columns * weights[:, None]
            normal = weighted.T @ columns + 1e-6 * np.eye(3)
            affine = np.asarray(np.linalg.solve(normal, weighted.T @ moved), np.float64)
            left = np.asarray(np.linalg.norm(moved - columns @ affine, axis=1), np.float64)
            limit = 4.5 * max(float(np.median(left)), 0.03)
            weights = np.where(left < limit, (1 - (left / limit) ** 2) ** 2, 0.0)
        return cls(at, moved, affine, left, weights)

    def bend(self) -> float:
        """Return how far smooth displacements of the third degree are from affine ones, root mean square."""
        kept = self.weights > 0
        x, y = self.at[kept].T
        columns = np.column_stack([np.ones(len(x)), x, y, x * x, x * y, y * y, x**3, x * x * y, x * y * y, y**3])
        penalty = np.diag([0, 0, 0, *[1e-2] * 7])
        smooth = columns @ np.linalg.solve(columns.T @ columns + penalty + 1e-9 * np.eye(10), columns.T @ self.moved[kept])
        affine = columns[:, :3]
        bent = smooth - affine @ np.linalg.lstsq(affine, smooth, rcond=None)[0]
        return math.sqrt(float((bent**2).sum(axis=1).mean()))


class _Following:
    """Corners of one image, to be followed in the other."""

    def __init__(self, image: npt.NDArray[np.uint8], corners: Floats32) -> None:
        self._image, self._corners = image, corners
        self.share = 0.0  # of the corners that were found last

    @classmethod
    def of(cls, image: Floats32, mask: npt.NDArray[np.bool_]) -> _Following | None:
        """Choose corners of an image away from the edge of a mask; None if there are too few."""
        even = _even(image)
        framed = np.pad(mask.astype(np.uint8), 1)
        inner = cv2.erode(framed, np.ones((WINDOW, WINDOW), np.uint8))[1:-1, 1:-1]
        found = cv2.goodFeaturesToTrack(even, MAX_CORNERS, CORNER_QUALITY, CORNER_DISTANCE, mask=inner, blockSize=5)
        return None if found is None or len(found) < MIN_CORNERS else cls(even, np.asarray(found, np.float32))

    def follow(self, image: Floats32) -> _Displacements | None:
        """Find the corners in another image that lies nearly on this one; None if too few are found."""
        even, corners = _even(image), self._corners
        ends = cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 20, 0.005
        window = (WINDOW, WINDOW)

        def found_in(first: Array, second: Array, points: Array) -> tuple[Array, Array]:
            at, found, _ = cv2.calcOpticalFlowPyrLK(
                first, second, points, points.copy(), winSize=window, maxLevel=2, criteria=ends
            )
            return np.asarray(at), np.asarray(found)[:, 0] > 0

        there, found = found_in(self._image, even, corners)
        back, again = found_in(even, self._image, there)
        moved = (there - corners)[:, 0].astype(np.float64)
        returned = np.linalg.norm((back - corners)[:, 0], axis=1) < MAX_RETURN
        kept = found & again & returned & (np.linalg.norm(moved, axis=1) < MAX_MOVE)
        self.share = float(kept.mean())
        if kept.sum() < MIN_FOLLOWED:
            return None
        size = np.array(image.shape[::-1])
        return _Displacements.of((corners[kept, 0].astype(np.float64) - size / 2) / (size.max() / 2), moved[kept])


def _to_pixels(image: GreyImage, pixels: Array, to_image: Array) -> Floats64:
    """Return the transform to pixels of a reduced image, given that to points of its full size."""
    x, y = image.width / pixels.shape[1], image.height / pixels.shape[0]
    return compose(np.array([[1 / x, 0, 0.5 / x - 0.5], [0, 1 / y, 0.5 / y - 0.5]]), to_image)


def _even(image: Floats32) -> npt.NDArray[np.uint8]:
    """Return an image whose brightness and contrast are the same everywhere: a copy may have other tones."""
    side = (NEIGHBOURHOOD, NEIGHBOURHOOD)
    detail = image - cv2.blur(image, side)
    contrast = np.sqrt(cv2.blur(detail * detail, side) + np.float32(FLAT**2))
    return np.asarray(np.clip(detail / contrast * 40 + 128, 0, 255), np.uint8)


def _fine(image: Floats32) -> Floats32:
    return np.asarray(image - cv2.GaussianBlur(image, (0, 0), FINE), np.float32)


def _tiles(image: Floats32, mask: npt.NDArray[np.bool_]) -> Floats32:
    """Cut an image into tiles [t, points], without those that are not all in a mask."""
    rows, columns = (side // TILE for side in image.shape)

    def cut(values: Array) -> Array:
        squares = values[: rows * TILE, : columns * TILE].reshape(rows, TILE, columns, TILE)
        return squares.swapaxes(1, 2).reshape(-1, TILE * TILE)

    return np.asarray(cut(image)[cut(mask).all(axis=1)], np.float32)


def _correlations(first: Floats32, second: Floats32, min_contrast: float) -> Floats64:
    """Return the normalised correlation of every pair of tiles [t, points] with contrast."""
    one, other = (tiles - tiles.mean(axis=1, keepdims=True) for tiles in (first, second))
    deviation, others = one.std(axis=1), other.std(axis=1)
    used = np.maximum(deviation, others) >= min_contrast
    product = (one[used] * other[used]).mean(axis=1)
    # A tile that is flat in one image alone is unlike: the quotient stays finite.
    return np.asarray(product / np.maximum(deviation[used] * others[used], (min_contrast / 4) ** 2), np.float64)


def rank_correlation(first: Array, second: Array) -> float:
    """Return the rank correlation of the means of tiles [t, points] (Spearman 1904), which no change of tones alters.

    Images that share a frame and nothing else agree in tiles of the frame, but not in this.
    """

    def ranks(tiles: Array) -> Floats64:  # minus their mean; equal values share theirs
        _, number, counts = np.unique(tiles.mean(axis=1), return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[number]
        return np.asarray(ranks - ranks.mean())

    one, other = ranks(first), ranks(second)
    return float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12)
