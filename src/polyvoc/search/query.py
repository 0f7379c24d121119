"""What is asked: from a photograph, from a stored image, expanded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.segment import with_planes
from polyvoc.options import Expansion
from polyvoc.scoring.engine import Engine
from polyvoc.types import Array, Features, Floats32, ImageRef, ImageWords, Keypoints, Region, inside_region

# An image, the transform from the query to it, and the pairs (query feature, feature) that agree with that (for "hamming").
Verified = tuple[ImageWords, Array, Array]
MARGIN = 0.25  # of the query's extent, by which features of a hit may lie outside of it


def expand(query: ImageWords, hits: Sequence[Verified], kind: Expansion) -> tuple[Array, Array | None]:
    """Give the words [Q, K] and signatures of a query and what its hits add to it.

    "average": the features of the hits join those of the query. "hamming": features that match one of the query change
    its signature, bit by bit to what most of them say, instead of joining.
    """
    signed = query.signatures.shape[1] > 0
    words, signatures = [np.asarray(query.words, np.int64)], [with_planes(query.signatures, 2)]
    ballots = _ballots(query) if kind == "hamming" and signed else None
    for image, transform, pairs in hits:
        chosen = _inside(query, image, transform)
        if ballots is not None:
            _vote(ballots, query, image, pairs)
            chosen[pairs[:, 1]] = False
        words.append(image.words[chosen].astype(np.int64))
        signatures.append(with_planes(image.signatures, 2)[chosen])
    if not signed:
        return np.concatenate(words), None
    if ballots is not None:
        signatures[0] = np.packbits(ballots > 0, axis=-1, bitorder="little").view(np.uint64)
    return np.concatenate(words), np.concatenate(signatures)


def _inside(query: ImageWords, image: ImageWords, transform: Array) -> npt.NDArray[np.bool_]:
    """Tell which features of an image lie where the query's features are, with a margin."""
    back = np.linalg.inv(np.vstack([transform, [0, 0, 1]]))[:2]
    places = image.keypoints.xy @ back[:, :2].T + back[:, 2]
    low, high = query.keypoints.xy.min(axis=0), query.keypoints.xy.max(axis=0)
    slack = MARGIN * (high - low)
    result: npt.NDArray[np.bool_] = ((places >= low - slack) & (places <= high + slack)).all(axis=1)
    return result


def _ballots(query: ImageWords) -> npt.NDArray[np.float32]:
    """Start a vote on each bit of each signature with the query's own voice, one and a half to break ties [Q, K, bits]."""
    own = np.unpackbits(with_planes(query.signatures, 2).view(np.uint8), axis=-1, bitorder="little")
    return np.where(own == 1, 1.5, -1.5).astype(np.float32)


def _vote(ballots: npt.NDArray[np.float32], query: ImageWords, image: ImageWords, pairs: Array) -> None:
    """Let the features of an image vote on the signatures of the query features that they match, where the word is the same."""
    q, f = pairs.T
    theirs = np.unpackbits(np.ascontiguousarray(with_planes(image.signatures, 2)[f]).view(np.uint8), axis=-1, bitorder="little")
    shared = query.words[q] == image.words[f]
    ballots[q] += np.where(shared[:, :, None], np.where(theirs == 1, 1.0, -1.0), 0.0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Query:
    """A query: the words and signatures of its features, and where they lie if anybody knows."""

    words: Array  # [Q, K] or [Q, K, A]
    signatures: Array | None
    frames: Keypoints | None = None
    vector: Floats32 | None = None  # [d] of a global embedding, to `fuse`
    region: Region | None = None  # of the photograph that asks, all of it or a part; None: nobody knows

    @classmethod
    def stored(cls, engine: Engine, place: ImageRef, size: tuple[int, int], region: Region | None = None) -> Query:
        """Ask with what is stored of an image, of some width and height, or of a region of it."""
        (sketch,) = engine.sketches([place])
        at = sketch.keypoints
        held = np.ones(len(at), bool) if region is None else inside_region(at.xy, region, size)
        signatures = sketch.signatures[held] if sketch.signatures.shape[1] else None
        frames = Keypoints(at.xy[held], at.scale[held], at.angle[held])
        return cls(sketch.words[held], signatures, frames, region=region or (0, 0, *size))

    @cached_property
    def sketch(self) -> ImageWords:
        """Give what geometry compares: the nearest words."""
        if self.frames is None:
            raise OptionError("verify needs the places of the query's features; give a photograph or a Features record")
        if len(self.frames) != len(self.words):
            raise OptionError(f"words of {len(self.words)} features but places of {len(self.frames)}; give those of the same")
        axes = self.words.ndim
        words = self.words if axes == 2 else self.words[:, :, 0]
        if self.signatures is None:
            return ImageWords(words, np.zeros((len(words), 0), np.uint64), self.frames)
        return ImageWords(words, self.signatures if axes == 2 else self.signatures[:, :, 0], self.frames)


# A path, an address in a store, the bytes of a file, features made elsewhere, or the id of an image of the collection.
Photo = str | os.PathLike[str] | bytes | Features | int
Clock = Callable[[str], AbstractContextManager[None]]  # times what is done within a stage of this name


def _whole(features: Features) -> Region:
    return 0, 0, features.width, features.height
