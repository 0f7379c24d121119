"""Small pictures as descriptors, words and keypoints, and collections that hold the codes of these descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from polyvoc.index.segment import Batch, Geometry, Segment
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, TrainOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.query import Query
from polyvoc.types import FeatureCodes, Floats32, Keypoints
from polyvoc.vocabulary.codes import CodedQuery, Coder
from polyvoc.vocabulary.train import train
from scenes import SIZES, Picture, Random, joined, picture, scrambled, seen_again

DIMENSION = 128
WORDS = 200  # of the fine vocabulary
NOISE = 0.03  # of each number of a descriptor that is seen again: about a sixth of the bits of its code change


@cache
def coder_of(bits: int = 128) -> Coder:
    """Return what makes codes of a length, trained on random descriptors."""
    return Coder(train(descriptors(np.random.default_rng(5), 4000), TrainOptions(size=WORDS, rounds=4, bits=bits)))


def descriptors(rng: Random, count: int) -> Floats32:
    """Return random descriptors [count, DIMENSION], as rootSIFT not negative and of length 1."""
    return _unit(np.abs(rng.normal(size=(count, DIMENSION))))


def noisy(rng: Random, before: Floats32, noise: float = NOISE) -> Floats32:
    """Return descriptors that differ a little."""
    return _unit(np.abs(before + rng.normal(0, noise, before.shape)))


def _unit(rows: Any) -> Floats32:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9), np.float32)


@dataclass(frozen=True, eq=False)
class CodedPicture:
    """A picture with its descriptors; its words have no signatures."""

    shown: Picture
    descriptors: Floats32  # [n, DIMENSION]

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.descriptors)

    @property
    def keypoints(self) -> Keypoints:
        """Return where its features are."""
        return Keypoints(self.shown.xy, self.shown.scale, self.shown.angle)

    def coded(self, assignments: int = CODE_ASSIGNMENTS, bits: int = 128) -> CodedQuery:
        """Return its features as those of a query."""
        return coder_of(bits).query(self.descriptors, assignments, CODE_CUT)

    @property
    def query(self) -> Query:
        """Return a query for it, by codes of 128 bits and by words."""
        return Query(self.coded(), self.shown.words, None, self.keypoints)

    def chosen(self, rows: Any) -> CodedPicture:
        """Return a picture of some of its features."""
        return CodedPicture(self.shown.chosen(rows), self.descriptors[rows])


def coded_picture(rng: Random, count: int = 40) -> CodedPicture:
    """Return a picture of features all over it."""
    return CodedPicture(picture(rng, count, 0), descriptors(rng, count))


def coded_again(rng: Random, before: CodedPicture, noise: float = NOISE) -> CodedPicture:
    """Return the same thing turned, scaled, stretched and moved, its descriptors changed a little."""
    return CodedPicture(seen_again(rng, before.shown), noisy(rng, before.descriptors, noise))


def coded_scrambled(rng: Random, before: CodedPicture) -> CodedPicture:
    """Return the same descriptors at random positions."""
    return CodedPicture(scrambled(rng, before.shown), before.descriptors)


def coded_joined(*parts: CodedPicture) -> CodedPicture:
    """Return a picture that shows all of some pictures."""
    return CodedPicture(joined(*(part.shown for part in parts)), np.concatenate([part.descriptors for part in parts]))


def coded_batch(pictures: Sequence[CodedPicture], first: int = 0, bits: int = 128) -> Batch:
    """Return pictures with ids from `first` on as the input of a segment."""
    every = coded_joined(*pictures)
    starts = np.cumsum([0, *(len(one) for one in pictures)])
    codes: FeatureCodes = coder_of(bits).encode(every.descriptors)
    geometry = Geometry.of(every.shown.xy, every.shown.scale, every.shown.angle, starts)
    return Batch(np.arange(first, first + len(pictures)), starts, geometry, every.shown.words, None, codes)


def coded_engine(pictures: Sequence[CodedPicture], segment_images: int = 1000, bits: int = 128) -> Engine:
    """Return an engine of pictures with codes, and words without signatures."""
    parts = [(first, pictures[first : first + segment_images]) for first in range(0, len(pictures), segment_images)]
    return Engine([Segment.build(coded_batch(part, first, bits), SIZES, WORDS) for first, part in parts], SIZES)
