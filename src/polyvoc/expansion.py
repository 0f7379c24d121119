"""What do verified hits add to a query? Their features, where they show what the query shows.

Chum, Philbin, Sivic, Isard, Zisserman, ICCV 2007 (average query expansion); Tolias, Jégou, Pattern Recognition 2014 (Hamming
query expansion). From words and signatures alone; no descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.geometry import Sketch
from polyvoc.records import Expansion
from polyvoc.segment import with_planes

Array = npt.NDArray[Any]
# An image, the transform from the query to it, and the pairs (query feature, feature) that agree with that (for "hamming").
Verified = tuple[Sketch, Array, Array]
MARGIN = 0.25  # of the query's extent, by which features of a hit may lie outside of it


def expand(query: Sketch, hits: Sequence[Verified], kind: Expansion) -> tuple[Array, Array | None]:
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


def _inside(query: Sketch, image: Sketch, transform: Array) -> npt.NDArray[np.bool_]:
    """Tell which features of an image lie where the query's features are, with a margin."""
    back = np.linalg.inv(np.vstack([transform, [0, 0, 1]]))[:2]
    places = image.frames.xy @ back[:, :2].T + back[:, 2]
    low, high = query.frames.xy.min(axis=0), query.frames.xy.max(axis=0)
    slack = MARGIN * (high - low)
    result: npt.NDArray[np.bool_] = ((places >= low - slack) & (places <= high + slack)).all(axis=1)
    return result


def _ballots(query: Sketch) -> npt.NDArray[np.float32]:
    """Start a vote on each bit of each signature with the query's own voice, one and a half to break ties [Q, K, bits]."""
    own = np.unpackbits(with_planes(query.signatures, 2).view(np.uint8), axis=-1, bitorder="little")
    return np.where(own == 1, 1.5, -1.5).astype(np.float32)


def _vote(ballots: npt.NDArray[np.float32], query: Sketch, image: Sketch, pairs: Array) -> None:
    """Let the features of an image vote on the signatures of the query features that they match, where the word is the same."""
    q, f = pairs.T
    theirs = np.unpackbits(np.ascontiguousarray(with_planes(image.signatures, 2)[f]).view(np.uint8), axis=-1, bitorder="little")
    shared = query.words[q] == image.words[f]
    ballots[q] += np.where(shared[:, :, None], np.where(theirs == 1, 1.0, -1.0), 0.0).astype(np.float32)
