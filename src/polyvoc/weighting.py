"""How much is a word worth, a Hamming distance, an image's length? Pure formulas, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.kernels import score
from polyvoc.records import Idf, SearchOptions
from polyvoc.segment import Segment, bases_of

Array = npt.NDArray[Any]
USUAL = {64: (24, 16.0), 128: (52, 26.0)}  # threshold and sigma of Hamming Embedding by the length of signatures


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


def closeness(options: SearchOptions, bits: int) -> npt.NDArray[np.float32]:
    """Tabulate the weight of each Hamming distance 0..bits: exp(-h^2 / sigma^2) up to the threshold, then 0.

    Jegou, Douze, Schmid, IJCV 2010 (no factor 2 in the exponent). Where distances are weighed elsewhere, or not at all: 1.
    """
    distance = np.arange(bits + 1)
    if options.hamming is None or options.merge == "likelihood":
        return np.ones(bits + 1, np.float32)
    weights = np.where(distance <= options.hamming, np.exp(-((distance / options.sigma) ** 2)), 0.0)
    return weights.astype(np.float32)


def norms(segment: Segment, squares: npt.NDArray[np.float64], n_vocabularies: int, root: bool) -> npt.NDArray[np.float32]:
    """Give the L2 norm of the tf-idf vector of each image of a segment, over its first vocabularies; `root`: of sqrt(tf) idf.

    squares: [W] idf^2. The sum of (tf idf)^2 over words is idf^2 once per feature plus (tf^2 - tf) idf^2 for repeated words:
    the first is a scan of the postings, the second a short list.
    """
    arrays = segment.arrays
    last = int(bases_of(segment.sizes)[n_vocabularies]) if n_vocabularies < segment.n_vocabularies else len(squares)
    sums = np.zeros(segment.n_images, np.float64)
    score.add_squares(arrays["starts"], arrays["postings"], squares, 0, last, sums)
    if not root:
        repeats = arrays["repeats"][arrays["repeats"][:, 1] < last]
        times = repeats[:, 2].astype(np.float64)
        np.add.at(sums, repeats[:, 0], times * (times - 1) * squares[repeats[:, 1]])
    return np.sqrt(sums).astype(np.float32)
