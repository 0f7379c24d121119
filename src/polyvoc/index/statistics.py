"""Idf of words and norms of images: what scoring needs of the whole collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import Segment
from polyvoc.index.words import find_repeats, word_offsets
from polyvoc.kernels.lists import add_squares
from polyvoc.options import Idf, NormKey
from polyvoc.types import Floats32, Floats64


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the weights need of the whole collection, however many segments or machines hold it."""

    n_images: int
    sizes: tuple[int, ...]
    occurrences: npt.NDArray[np.int64]  # [W] features of each word
    documents: npt.NDArray[np.int64]  # [W] images that hold each word
    code_occurrences: npt.NDArray[np.int64]  # [fine words] features of each fine word; [0] without codes
    # [W] of each kind. Computed once and sent to all machines: their logarithms might differ in the last bit.
    idf_squared: Mapping[Idf, Floats64] = field(init=False, repr=False)
    code_idf_squared: Floats64 = field(init=False, repr=False)  # [fine words], "average"

    def __post_init__(self) -> None:
        """Compute idf^2 of every word."""
        counts = {"average": self.occurrences, "plain": self.documents}
        squares = {idf: idf_squared(counts[idf], self.n_images) for idf in counts}
        object.__setattr__(self, "idf_squared", {**squares, "none": (self.occurrences > 0).astype(np.float64)})
        object.__setattr__(self, "code_idf_squared", idf_squared(self.code_occurrences, self.n_images))

    @classmethod
    def of_segments(cls, segments: list[Segment], sizes: tuple[int, ...]) -> Statistics:
        """Sum over segments, without deleted images."""
        zeros = np.zeros(sum(sizes), np.int64)
        fine = np.zeros(max((segment.fine for segment in segments), default=0), np.int64)
        return cls(
            n_images=sum(len(segment.live_positions()) for segment in segments),
            sizes=sizes,
            occurrences=sum((segment.live_lengths for segment in segments), zeros),
            documents=sum((segment.documents() for segment in segments), zeros),
            code_occurrences=sum((segment.live_code_lengths for segment in segments if segment.fine), fine),
        )

    def word_weights(self, idf: Idf, power: int) -> Floats64:
        """Return idf or idf^2 of each word [W]; the root is exact on every machine."""
        squares = self.idf_squared[idf]
        return squares if power == 2 else np.sqrt(squares)

    def __add__(self, other: Statistics) -> Statistics:
        """Sum over two parts of a collection."""
        return Statistics(
            n_images=self.n_images + other.n_images,
            sizes=self.sizes,
            occurrences=self.occurrences + other.occurrences,
            documents=self.documents + other.documents,
            code_occurrences=_add(self.code_occurrences, other.code_occurrences),
        )


def _add(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add counts; a part of a collection without segments has none."""
    return one + other if len(one) == len(other) else max(one, other, key=len)


def idf_squared(counts: npt.NDArray[np.int64], n_images: int) -> Floats64:
    """Return the squared inverse document frequency of each word [W] by its counts; 0 for words that do not occur.

    By features, ln(N / occurrences): average IDF of Zheng, Wang, Liu, Tian, CVPR 2013 (p = 1); by images, ln(N / images):
    plain. Both are cut at 0: a bursty word may occur more often than there are images, and its square must not count.
    """
    present = counts > 0
    values = np.zeros(len(counts))
    values[present] = np.log(max(n_images, 1) / counts[present])
    return np.maximum(values, 0.0) ** 2


def norms(segment: Segment, statistics: Statistics, key: NormKey) -> Floats32:
    """Return the L2 norm of the vector of each image of a segment [n] over its first vocabularies: tf idf, sqrt(tf) idf, idf.

    The sum of (tf idf)^2 over words is idf^2 once per feature plus (tf^2 - tf) idf^2 for repeated words: the first is a scan
    of the postings, the second a short list. Without tf the repetitions are taken away again.
    """
    if key.kind == "none":
        return np.ones(segment.n_images, np.float32)
    lengths = np.diff(segment.arrays["feature_starts"].astype(np.float64))
    if (key.kind, key.idf) == ("root", "none"):
        return np.sqrt(key.n_vocabularies * lengths).astype(np.float32)
    arrays, squares = segment.arrays, statistics.idf_squared[key.idf]
    partial = key.n_vocabularies < segment.n_vocabularies
    last = int(word_offsets(segment.sizes)[key.n_vocabularies]) if partial else len(squares)
    sums = np.zeros(segment.n_images, np.float64)
    add_squares(arrays["starts"], arrays["postings"], squares, 0, last, sums)
    if key.kind != "root":
        sizes = segment.sizes[: key.n_vocabularies]
        repeats = find_repeats(arrays["words"], arrays["feature_starts"].astype(np.int64), sizes)
        times = repeats[:, 2].astype(np.float64)
        more = times * (times - 1) if key.kind == "tf" else 1 - times
        np.add.at(sums, repeats[:, 0], more * squares[repeats[:, 1]])
    return np.sqrt(np.maximum(sums, 0.0)).astype(np.float32)
