"""Similarities of images that hold one binary code per word."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat, zip_longest
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.statistics import Statistics, idf_squared
from polyvoc.kernels.compiler import kernel, popcount
from polyvoc.kernels.vectors import sum_by_word
from polyvoc.types import Floats32, Floats64, Signatures, Words
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.vocabulary import Vocabulary


@kernel
def add_similarities(words, codes, weights, starts, images, indexed, similarity, scores):
    """Compare the codes of a query with those of the same words in an inverted file. out: scores [n_images] float64.

    words: [m] of the query, each once; codes: [m, lanes] uint64; weights: [size] of each word; starts: [size + 1] and
    images: [P] are the inverted file, indexed: [P, lanes] its codes; similarity: [bits + 1] of each Hamming distance.
    """
    for i in range(len(words)):
        weight = weights[words[i]]
        if weight == 0:
            continue
        for p in range(starts[words[i]], starts[words[i] + 1]):
            distance = np.int64(0)
            for lane in range(codes.shape[1]):
                distance += popcount(codes[i, lane] ^ indexed[p, lane])
            scores[images[p]] += weight * similarity[distance]


Weighting = Literal["none", "idf"]
_LANE = 64  # bits of an element of a code
_missing: Any = object()  # stands for an array that the shorter of two sequences lacks


@dataclass(frozen=True)
class AsmkOptions:
    """How images are compared. The defaults are those of the first authors' experiments."""

    alpha: float = 3.0  # exponent of the similarity: higher trusts near matches alone
    threshold: float = 0.0  # similarities up to this do not count
    idf: Weighting = "idf"  # weigh a word by ln(N / images that hold it), squared, or all words alike
    assignments: int = 5  # words per query feature; those of the collection get one

    def __post_init__(self) -> None:
        """Raise OptionError for values out of range, naming the choices."""
        if not 0 < self.alpha < math.inf:
            raise OptionError(f"alpha={self.alpha!r} should be positive")
        if not -1 <= self.threshold < 1:
            raise OptionError(f"threshold={self.threshold!r} should be from -1 to below 1, as similarities are")
        if self.idf not in get_args(Weighting):
            raise OptionError(f"idf={self.idf!r} should be one of {', '.join(get_args(Weighting))}")
        if self.assignments < 1:
            raise OptionError(f"assignments={self.assignments!r} should be at least 1")


class Asmk:
    """The method for one vocabulary: `Asmk(vocabulary).index(images).scores(query)`."""

    def __init__(self, vocabulary: Vocabulary, options: AsmkOptions = AsmkOptions()) -> None:
        """Take a vocabulary of the descriptors' own kind: one for shifted descriptors is trained on shifted ones."""
        self.vocabulary = vocabulary
        self.options = options

    def index(self, images: Iterable[npt.ArrayLike], words: Iterable[npt.ArrayLike] | None = None) -> AsmkIndex:
        """Return the inverted file of images of descriptors [n_i, dimension]; `words` [n_i] of each, if they are known."""
        held, codes, occupied = [np.empty(0, np.int32)], [np.empty((0, self.lanes), np.uint64)], []
        pairs = zip(images, repeat(None)) if words is None else zip_longest(images, words, fillvalue=_missing)
        for number, (descriptors, of_image) in enumerate(pairs):
            if descriptors is _missing or of_image is _missing:
                raise OptionError(
                    f"image {number}: descriptors or words are missing: give as many arrays of one as of the other"
                )
            found, signs = self.aggregate(descriptors, of_image)
            held.append(found)
            codes.append(signs)
            occupied.append(len(found))
        every = np.concatenate(held)  # [P], by image
        order = np.argsort(every, kind="stable")
        of_posting = np.repeat(np.arange(len(occupied), dtype=np.int32), occupied)
        squares = self._squares(np.bincount(every, minlength=self.vocabulary.size), len(occupied))
        return AsmkIndex(
            model=self,
            starts=np.searchsorted(every[order], np.arange(self.vocabulary.size + 1)).astype(np.int64),
            images=of_posting[order],
            codes=np.concatenate(codes)[order],
            squares=squares,
            norms=np.sqrt(np.bincount(of_posting, weights=squares[every], minlength=len(occupied))),
        )

    def aggregate(
        self, descriptors: npt.ArrayLike, words: npt.ArrayLike | None = None, assignments: int = 1
    ) -> tuple[Words, Signatures]:
        """Return the words of one image, ascending, and their codes [m, lanes]: bit j is set if the sum of residuals has x_j > 0.

        descriptors: [n, dimension]; words: [n] or [n, assignments], found here if they are not given.
        """
        points = self._points(descriptors)
        if words is None:
            words = self._assigner.assign(points, assignments)[:, 0]
        assigned = self._assigned(words, len(points))  # [n, assignments]
        held, places = np.unique(assigned, return_inverse=True)
        places = places.reshape(assigned.shape)
        # In float64 these sums of float32 have no rounding to speak of: signs do not depend on the order of features.
        sums = np.zeros((len(held), self.vocabulary.dimension))
        for column in places.T:
            sum_by_word(points, np.ascontiguousarray(column, np.int32), sums)
        times = np.bincount(places.ravel(), minlength=len(held))
        sums -= times[:, None] * self.vocabulary.centroids[held].astype(np.float64)
        return held, _pack(sums > 0, self.lanes)

    @property
    def lanes(self) -> int:
        """Count the numbers of 64 bits that hold a code."""
        return -(-self.vocabulary.dimension // _LANE)

    @cached_property
    def similarity(self) -> Floats64:
        """Return the selective similarity of each Hamming distance: [dimension + 1]."""
        plain = 1 - 2 * np.arange(self.vocabulary.dimension + 1) / self.vocabulary.dimension
        return np.where(plain > self.options.threshold, np.sign(plain) * np.abs(plain) ** self.options.alpha, 0.0)

    @cached_property
    def _assigner(self) -> Assigner:
        return Assigner([self.vocabulary])

    def _squares(self, documents: npt.NDArray[np.int64], n_images: int) -> Floats64:
        """Return the squared weight of each word [size]; a word that no image holds has none by idf."""
        if self.options.idf == "none":
            return np.ones(len(documents))
        return idf_squared(Statistics(n_images, (len(documents),), documents, documents), "plain")

    def _points(self, descriptors: npt.ArrayLike) -> Floats32:
        points = np.ascontiguousarray(descriptors, dtype=np.float32)
        if points.ndim != 2 or points.shape[1] != self.vocabulary.dimension:
            raise OptionError(f"descriptors of shape {points.shape} should be [features, {self.vocabulary.dimension}]")
        if not np.isfinite(points).all():
            raise OptionError("descriptors: some values are not finite; extract them again")
        return points

    def _assigned(self, words: npt.ArrayLike, n_features: int) -> Words:
        """Return words [n] or [n, assignments] as int32 [n, assignments]."""
        given = np.asarray(words)
        table = given[:, None] if given.ndim == 1 else given
        if table.ndim != 2 or len(table) != n_features or table.shape[1] == 0 or (table.size and table.dtype.kind not in "iu"):
            raise OptionError(f"words: {given.dtype} of shape {given.shape} do not fit {n_features} descriptors")
        if table.size and not 0 <= table.min() <= table.max() < self.vocabulary.size:
            raise OptionError(f"words should be 0 to {self.vocabulary.size - 1}: use those of the same vocabulary")
        return table.astype(np.int32)


@dataclass(frozen=True, eq=False)
class AsmkIndex:
    """An inverted file of aggregated codes: one posting per image and word."""

    model: Asmk
    starts: npt.NDArray[np.int64]  # [size + 1]  list of each word
    images: npt.NDArray[np.int32]  # [P]  image of each posting
    codes: Signatures  # [P, lanes]
    squares: Floats64  # [size]  squared weight of each word
    norms: Floats64  # [N]  1 / g of each image; 0 if none of its words weighs anything

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.norms)

    def scores(self, descriptors: npt.ArrayLike, words: npt.ArrayLike | None = None) -> Floats32:
        """Return the similarity of each image to a query: float32 [N], at most 1; 0 where nothing is in common.

        descriptors: [n, dimension]; words: [n] or [n, assignments] if they are known, nearest words are found otherwise.
        """
        held, codes = self.model.aggregate(descriptors, words, self.model.options.assignments)
        scores = np.zeros(len(self))
        add_similarities(held, codes, self.squares, self.starts, self.images, self.codes, self.model.similarity, scores)
        norms = self.norms * math.sqrt(self.squares[held].sum())
        return np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0).astype(np.float32)


def shift(descriptors: npt.ArrayLike, mean: npt.ArrayLike) -> Floats32:
    """Return descriptors [n, dimension] around the mean [dimension] of independent ones, with length 1 again.

    The authors' "SHIFT-SIFT": rootSIFT has no negative values, so two of them resemble each other whatever they show. It
    goes with a vocabulary that was trained on shifted descriptors.
    """
    moved = np.asarray(descriptors, dtype=np.float64) - np.asarray(mean, dtype=np.float64)
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    return (moved / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _pack(bits: npt.NDArray[np.bool_], lanes: int) -> Signatures:
    """Return bits [m, dimension] as uint64 [m, lanes]; those beyond the dimension are 0."""
    padded = np.zeros((len(bits), lanes * _LANE), np.bool_)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
