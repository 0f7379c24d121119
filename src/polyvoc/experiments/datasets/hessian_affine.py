"""Hessian-affine regions with SIFT, the features of the paper, through pyhesaff. The only user of pyhesaff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.errors import ImageError, OptionError
from polyvoc.experiments.datasets.descriptor_files import SiftFeatures
from polyvoc.features.decode import read_grey
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import FeatureKind

NAME = "hessian-affine"


@dataclass(frozen=True)
class HessianAffine:
    """How photographs become Hessian-affine features: pyhesaff's defaults, upright regions, all that it finds."""

    long_side: int = 1024
    detector: str = NAME

    @property
    def kind(self) -> FeatureKind:
        """Return a kind of its own: vocabularies of other regions do not fit."""
        return FeatureKind(NAME)


def has_pyhesaff() -> bool:
    """Return whether pyhesaff is installed."""
    return find_spec("pyhesaff") is not None


def extract_hessian_affine(
    files: Sequence[Path], options: HessianAffine, threads: int | None = None
) -> Iterator[tuple[Path, SiftFeatures | ImageError]]:
    """Yield (path, features or error) in the order of the files, using all cores."""
    detector = _load_pyhesaff()

    def attempt(path: Path) -> SiftFeatures | ImageError:
        try:
            return detect_regions(detector, path, options)
        except ImageError as error:
            return type(error)(str(error))

    yield from ordered_map(attempt, files, count_threads(threads), "polyvoc-hesaff")


def detect_regions(detector: Any, path: Path, options: HessianAffine) -> SiftFeatures:
    """Return the features of one photograph, in pixels of its full size."""
    image = read_grey(path, options.long_side)
    keypoints, descriptors = detector.detect_feats_in_image(np.ascontiguousarray(image.pixels))
    # [n, 6]  x, y, the lower triangle of the matrix that takes the unit circle to the region, and an orientation
    x, y, a11, _, a22, orientation = np.asarray(keypoints, np.float64).reshape(-1, 6).T
    (height, width) = image.pixels.shape
    factor = np.array([image.width / width, image.height / height])
    return SiftFeatures(
        xy=((np.stack([x, y], axis=1) + 0.5) * factor - 0.5).astype(np.float32),
        scale=(2 * np.sqrt(np.abs(a11 * a22) * factor.prod())).astype(np.float32),  # of the circle of the same area
        angle=(np.degrees(orientation) % 360).astype(np.float32),
        descriptors=np.asarray(descriptors, np.uint8).reshape(-1, 128),
    )


def _load_pyhesaff() -> Any:
    """Import pyhesaff. Raise OptionError if it is not installed."""
    try:
        import pyhesaff
    except ImportError:
        raise OptionError(f"{NAME} regions: pyhesaff is missing; install it: pip install 'polyvoc[paper]'") from None
    return pyhesaff
