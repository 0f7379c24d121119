"""Idf, norms of a collection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import Segment, word_offsets
from polyvoc.kernels.lists import add_squares
from polyvoc.options import Idf, SearchOptions


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the weights need to know of the whole collection, however many segments or machines hold it."""

    n_images: int
    sizes: tuple[int, ...]
    occurrences: npt.NDArray[np.int64]  # [W] features of each word
    documents: npt.NDArray[np.int64]  # [W] images that hold each word
    squares: dict[Idf, npt.NDArray[np.float64]] = field(default_factory=dict, repr=False)  # [W] what `squares_of` computed

    def squares_of(self, idf: Idf) -> npt.NDArray[np.float64]:
        """Give idf^2 of every word [W]; computed once per kind."""
        if idf not in self.squares:
            self.squares[idf] = idf_squared(self, idf)
        return self.squares[idf]

    @classmethod
    def of_segments(cls, segments: list[Segment], sizes: tuple[int, ...]) -> Statistics:
        """Sum over segments, without deleted images."""
        zeros = np.zeros(sum(sizes), np.int64)
        return cls(
            n_images=sum(len(segment.live_positions()) for segment in segments),
            sizes=sizes,
            occurrences=sum((segment.live_lengths for segment in segments), zeros),
            documents=sum((segment.documents() for segment in segments), zeros),
        )

    def __add__(self, other: Statistics) -> Statistics:
        """Sum over two parts of a collection."""
        return Statistics(
            n_images=self.n_images + other.n_images,
            sizes=self.sizes,
            occurrences=self.occurrences + other.occurrences,
            documents=self.documents + other.documents,
        )


def idf_squared(statistics: Statistics, idf: Idf) -> npt.NDArray[np.float64]:
    """Give the squared inverse document frequency of each word [W]; 0 for words nobody has.

    "average": ln(N / occurrences), average IDF of Zheng, Wang, Liu, Tian, CVPR 2013 (p = 1); "plain": ln(N / images). Both
    are cut at 0: a bursty word may occur more often than there are images, and its square must not count.
    """
    counts = statistics.occurrences if idf == "average" else statistics.documents
    held = counts > 0
    if idf == "none":
        return held.astype(np.float64)
    values = np.zeros(len(counts))
    values[held] = np.log(max(statistics.n_images, 1) / counts[held])
    return np.maximum(values, 0.0) ** 2


def norms(segment: Segment, squares: npt.NDArray[np.float64], n_vocabularies: int, root: bool) -> npt.NDArray[np.float32]:
    """Give the L2 norm of the tf-idf vector of each image of a segment, over its first vocabularies; `root`: of sqrt(tf) idf.

    squares: [W] idf^2. The sum of (tf idf)^2 over words is idf^2 once per feature plus (tf^2 - tf) idf^2 for repeated words:
    the first is a scan of the postings, the second a short list.
    """
    arrays = segment.arrays
    last = int(word_offsets(segment.sizes)[n_vocabularies]) if n_vocabularies < segment.n_vocabularies else len(squares)
    sums = np.zeros(segment.n_images, np.float64)
    add_squares(arrays["starts"], arrays["postings"], squares, 0, last, sums)
    if not root:
        repeats = arrays["repeats"][arrays["repeats"][:, 1] < last]
        times = repeats[:, 2].astype(np.float64)
        np.add.at(sums, repeats[:, 0], times * (times - 1) * squares[repeats[:, 1]])
    return np.sqrt(sums).astype(np.float32)


class NormKey(NamedTuple):
    """A kind of norm: of tf idf ("tf"), of sqrt(tf) idf ("root") or "none"; its idf; over how many vocabularies."""

    kind: str
    idf: Idf
    n_vocabularies: int


def norm_key(options: SearchOptions, n_vocabularies: int) -> NormKey:
    """Name the norm that options ask for."""
    kinds = {"tfidf": ("tf", options.idf), "tf": ("tf", "none"), "sqrt-tf": ("root", options.idf),
             "self": ("root", options.idf), "features": ("root", "none"), "none": ("none", "none")}  # fmt: skip
    return NormKey(*kinds[options.norm], 1 if options.merge == "b0" else n_vocabularies)
