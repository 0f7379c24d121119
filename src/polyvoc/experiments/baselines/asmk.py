"""ASMK* (Tolias, Avrithis, Jégou, ICCV 2013): one binary code per image and word, compared with a selective kernel."""

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
from polyvoc.index.statistics import idf_squared
from polyvoc.kernels.vectors import sum_by_word
from polyvoc.types import Floats32, Floats64, Signatures, Words
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.vocabulary import Vocabulary

Weighting = Literal["none", "idf"]
_LANE = 64  # bits of an element of a code
_missing: Any = object()  # fills the shorter of two sequences


@dataclass(frozen=True)
class AsmkOptions:
    """How images are compared. The defaults are those of the authors' experiments."""

    alpha: float = 3.0  # exponent of the similarity: the higher, the more only near matches count
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
        """Take a vocabulary that was trained on the same kind of descriptors."""
        self.vocabulary = vocabulary
        self.options = options

    def index(self, images: Iterable[npt.ArrayLike], words: Iterable[npt.ArrayLike] | None = None) -> AsmkIndex:
        """Return the inverted file of images of descriptors [n_i, dimension]; `words` [n_i] of each, if they are known."""
        words_of, codes, counts = [np.empty(0, np.int32)], [np.empty((0, self.lanes), np.uint64)], []
        pairs = zip(images, repeat(None)) if words is None else zip_longest(images, words, fillvalue=_missing)
        for number, (descriptors, of_image) in enumerate(pairs):
            if descriptors is _missing or of_image is _missing:
                raise OptionError(
                    f"image {number}: descriptors or words are missing: give as many arrays of one as of the other"
                )
            image_words, image_codes = self.aggregate(descriptors, of_image)
            words_of.append(image_words)
            codes.append(image_codes)
            counts.append(len(image_words))
        every = np.concatenate(words_of)  # [P], by image
        order = np.argsort(every, kind="stable")
        of_posting = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        idf_squares = self._idf_squared(np.bincount(every, minlength=self.vocabulary.size), len(counts))
        return AsmkIndex(
            model=self,
            starts=np.searchsorted(every[order], np.arange(self.vocabulary.size + 1)).astype(np.int64),
            images=of_posting[order],
            codes=np.concatenate(codes)[order],
            idf_squared=idf_squares,
            norms=np.sqrt(np.bincount(of_posting, weights=idf_squares[every], minlength=len(counts))),
        )

    def aggregate(
        self, descriptors: npt.ArrayLike, words: npt.ArrayLike | None = None, assignments: int = 1
    ) -> tuple[Words, Signatures]:
        """Return the words of one image, ascending, and their codes [m, lanes].

        Bit j is set if the sum of residuals has x_j > 0.

        descriptors: [n, dimension]; words: [n] or [n, assignments], found here if they are not given.
        """
        points = self._points(descriptors)
        if words is None:
            words = self._assigner.assign(points, assignments)[:, 0]
        assigned = self._assigned(words, len(points))  # [n, assignments]
        found, columns = np.unique(assigned, return_inverse=True)
        columns = columns.reshape(assigned.shape)
        # In float64 these sums of float32 have no rounding to speak of: signs do not depend on the order of features.
        sums = np.zeros((len(found), self.vocabulary.dimension))
        for column in columns.T:
            sum_by_word(points, np.ascontiguousarray(column, np.int32), sums)
        times = np.bincount(columns.ravel(), minlength=len(found))
        sums -= times[:, None] * self.vocabulary.centroids[found].astype(np.float64)
        return found, _pack(sums > 0, self.lanes)

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

    def _idf_squared(self, documents: npt.NDArray[np.int64], n_images: int) -> Floats64:
        """Return the squared weight of each word [size]; a word that no image holds has none by idf."""
        if self.options.idf == "none":
            return np.ones(len(documents))
        return idf_squared(documents, n_images)

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
    idf_squared: Floats64  # [size]  squared weight of each word
    norms: Floats64  # [N]  1 / g of each image; 0 if none of its words weighs anything

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.norms)

    def scores(self, descriptors: npt.ArrayLike, words: npt.ArrayLike | None = None) -> Floats32:
        """Return the similarity of each image to a query: float32 [N], at most 1; 0 where nothing is in common.

        descriptors: [n, dimension]; words: [n] or [n, assignments] if they are known, nearest words are found otherwise.
        """
        found, codes = self.model.aggregate(descriptors, words, self.model.options.assignments)
        scores = np.zeros(len(self))
        for word, code, weight in zip(found.tolist(), codes, self.idf_squared[found].tolist(), strict=True):
            postings = slice(self.starts[word], self.starts[word + 1])  # an image is at most once among them
            distances = np.bitwise_count(self.codes[postings] ^ code).sum(axis=1)
            scores[self.images[postings]] += weight * self.model.similarity[distances]
        norms = self.norms * math.sqrt(self.idf_squared[found].sum())
        return np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0).astype(np.float32)


def _pack(bits: npt.NDArray[np.bool_], lanes: int) -> Signatures:
    """Return bits [m, dimension] as uint64 [m, lanes]; those beyond the dimension are 0."""
    padded = np.zeros((len(bits), lanes * _LANE), np.bool_)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
