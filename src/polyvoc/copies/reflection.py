"""What would the features be if the photograph were seen in a mirror? Told without its pixels: one extraction serves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.records import SIFT, Features

ROWS, COLUMNS, DIRECTIONS = 4, 4, 8  # of a SIFT descriptor, in this order
# A descriptor is laid out along its feature's own direction: seen in a mirror, what was on one side of that direction is on the
# other, and gradients turn the other way.
_ORDER = np.arange(ROWS * COLUMNS * DIRECTIONS).reshape(ROWS, COLUMNS, DIRECTIONS)
PERMUTATION = _ORDER[::-1][:, :, -np.arange(DIRECTIONS) % DIRECTIONS].ravel()


def mirrored(features: Features) -> Features:
    """Give the SIFT features of the photograph with left and right exchanged; the same order, strongest first."""
    if features.name != SIFT or features.descriptors.shape[1] != len(PERMUTATION):
        raise OptionError(f"features of the kind {features.kind} cannot be mirrored, only those of SIFT; leave mirrors out")
    xy = features.xy.copy()
    xy[:, 0] = features.width - 1 - xy[:, 0]
    return Features(
        xy=xy,
        scale=features.scale,
        angle=(180 - features.angle) % 360,
        descriptors=features.descriptors[:, PERMUTATION],
        width=features.width,
        height=features.height,
        name=features.name,
    )


def mirror(width: int) -> npt.NDArray[np.float64]:
    """Give the transform [2, 3] that exchanges left and right of a photograph."""
    return np.array([[-1.0, 0.0, width - 1.0], [0.0, 1.0, 0.0]])
