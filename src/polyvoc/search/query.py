"""Queries: made of a photograph, of a stored image, and expanded by verified hits.

Query expansion: Chum, Philbin, Sivic, Isard, Zisserman, ICCV 2007 (average query expansion), from words and signatures alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import check_features, extract_pixels
from polyvoc.index.folder import IndexFolder
from polyvoc.options import FeatureOptions
from polyvoc.scoring.engine import Engine
from polyvoc.threads import count_threads
from polyvoc.types import (
    Array,
    FeatureKind,
    Features,
    Floats32,
    ImageRef,
    ImageWords,
    Keypoints,
    Region,
    inside_region,
    with_planes,
)
from polyvoc.vocabulary.assign import Quantiser

# A path, the address of a file in a store, the bytes of a file, features made elsewhere, or the id of an image of the index.
Photo = str | os.PathLike[str] | bytes | Features | int
MARGIN = 0.25  # of the query's extent, by which features of a hit may lie outside of it


@dataclass(frozen=True, eq=False)
class Query:
    """A query: the words and signatures of its features, and their keypoints if they are known."""

    words: Array  # [Q, K] or [Q, K, A]
    signatures: Array | None
    keypoints: Keypoints | None = None
    vector: Floats32 | None = None  # [d] of a global embedding, for `fuse`
    region: Region | None = None  # of the query photograph, all of it or a part; None: unknown

    @cached_property
    def image_words(self) -> ImageWords:
        """Return what geometry compares: the nearest words."""
        if self.keypoints is None:
            raise OptionError("verify needs the keypoints of the query's features; give a photograph or a Features record")
        if len(self.keypoints) != len(self.words):
            raise OptionError(
                f"words of {len(self.words)} features but {len(self.keypoints)} keypoints; give those of the same"
            )
        axes = self.words.ndim
        words = self.words if axes == 2 else self.words[:, :, 0]
        if self.signatures is None:
            return ImageWords(words, np.zeros((len(words), 0), np.uint64), self.keypoints)
        return ImageWords(words, self.signatures if axes == 2 else self.signatures[:, :, 0], self.keypoints)


def query_of_image(engine: Engine, ref: ImageRef, size: tuple[int, int], region: Region | None = None) -> Query:
    """Return a query with what is stored of an image of some (width, height), or of a region of it."""
    (stored,) = engine.image_words([ref])
    at = stored.keypoints
    kept = np.ones(len(at), bool) if region is None else inside_region(at.xy, region, size)
    signatures = stored.signatures[kept] if stored.signatures.shape[1] else None
    keypoints = Keypoints(at.xy[kept], at.scale[kept], at.angle[kept])
    return Query(stored.words[kept], signatures, keypoints, region=region or (0, 0, *size))


@dataclass(frozen=True, eq=False)
class PhotoReader:
    """Reads photographs as those of an index were read."""

    options: FeatureOptions | None  # None: polyvoc does not extract the features of this index
    kind: FeatureKind
    quantiser: Quantiser
    folder: IndexFolder

    @classmethod
    def of(cls, folder: IndexFolder) -> PhotoReader:
        """Load what is needed of an index."""
        options = folder.feature_options
        return cls(options if options.kind == folder.kind else None, folder.kind, folder.quantiser, folder)

    def query(self, photo: str | bytes | Features, assignments: int, region: Region | None, seconds: dict[str, float],
              threads: int | None = None) -> Query:  # fmt: skip
        """Extract and quantise a photograph; write the seconds of each stage to `seconds`."""
        features = self.features(photo, seconds, threads)
        if region is not None:
            features = features.inside(region)
        with timed(seconds, "quantise"):
            words, signatures = self.quantiser.quantise(features.descriptors, assignments)
        whole = (0, 0, features.width, features.height)
        return Query(words, signatures, features.keypoints, region=region or whole)

    def features(self, photo: str | bytes | Features, seconds: dict[str, float], threads: int | None = None) -> Features:
        """Return the features of a photograph; features made elsewhere are checked."""
        if isinstance(photo, Features):
            check_features(photo, self.kind, str(self.folder.path))
            return photo
        options = self.options or self.folder.extraction  # which raises
        with timed(seconds, "decode"):
            grey = read_grey(photo, options.long_side)
        with timed(seconds, "sift"):
            return extract_pixels(grey, options, photo, threads=count_threads(threads))


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Write the seconds that a stage takes to `seconds`."""
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started


def expand(query: ImageWords, hits: Sequence[tuple[ImageWords, Array]]) -> tuple[Array, Array | None]:
    """Return the words [Q, K] and signatures of a query with the features of verified hits: (image, transform to it)."""
    words, signatures = [np.asarray(query.words, np.int64)], [with_planes(query.signatures, 2)]
    for image, transform in hits:
        chosen = _inside_query(query, image, transform)
        words.append(image.words[chosen].astype(np.int64))
        signatures.append(with_planes(image.signatures, 2)[chosen])
    return np.concatenate(words), np.concatenate(signatures) if query.signatures.shape[1] else None


def _inside_query(query: ImageWords, image: ImageWords, transform: Array) -> npt.NDArray[np.bool_]:
    """Return which features of an image are where the query's features are, with a margin."""
    back = np.linalg.inv(np.vstack([transform, [0, 0, 1]]))[:2]
    positions = image.keypoints.xy @ back[:, :2].T + back[:, 2]
    low, high = query.keypoints.xy.min(axis=0), query.keypoints.xy.max(axis=0)
    slack = MARGIN * (high - low)
    result: npt.NDArray[np.bool_] = ((positions >= low - slack) & (positions <= high + slack)).all(axis=1)
    return result
