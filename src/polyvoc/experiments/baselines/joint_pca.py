"""Joint PCA of several vocabularies: the histograms of all of them as one short vector per image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.statistics import idf_squared
from polyvoc.types import Array, Floats32, Floats64

_BLOCK = 256  # images whose histograms are in memory at once
_FAINTEST = 1e-6  # of the largest variance: below is the rounding of float32, which whitening would blow up
_NOTHING = 1e-12  # a variance of vectors of length 1 that is rounding alone


@dataclass(frozen=True, eq=False)
class Histograms:
    """How the words of an image become K vectors of length 1 side by side."""

    sizes: tuple[int, ...]
    weights: Floats32  # [W]  idf of each word, W = sum of the sizes
    power: float

    @classmethod
    def learn(cls, images: Sequence[Array], sizes: tuple[int, ...], idf: bool, power: float) -> Histograms:
        """Count in how many images each word occurs. A word that none of them holds weighs 0: its axis is unknown."""
        if not idf:
            return cls(sizes, np.ones(sum(sizes), np.float32), power)
        documents = [np.zeros(size, np.int64) for size in sizes]
        for words in images:
            for k, held_by in enumerate(documents):
                held_by[np.unique(words[:, k])] += 1
        counts = np.concatenate(documents)
        squares = idf_squared(counts, len(images))
        return cls(sizes, np.sqrt(squares).astype(np.float32), power)

    def part(self, images: Sequence[Array], k: int) -> Floats32:
        """Return the histograms of vocabulary k: [n, size of k]."""
        size, first = self.sizes[k], sum(self.sizes[:k])
        table = np.empty((len(images), size), np.float32)
        for row, words in zip(table, images, strict=True):
            row[:] = np.bincount(words[:, k], minlength=size)
        table *= self.weights[first : first + size]
        table **= self.power
        return _unit(table)

    def joint(self, images: Sequence[Array]) -> Floats32:
        """Return the histograms of all vocabularies side by side: [n, W]."""
        return np.hstack([self.part(images, k) for k in range(len(self.sizes))])


@dataclass(frozen=True, eq=False)
class JointPca:
    """A projection of K histograms to a short vector, fitted by `JointPca.fit`."""

    histograms: Histograms
    axes: Floats32  # [W, D']  principal axes, each over the standard deviation along it
    offset: Floats32  # [D']  the mean histogram along these axes

    @classmethod
    def fit(
        cls, images: Sequence[npt.ArrayLike], sizes: Sequence[int], dimensions: int = 128, idf: bool = True, power: float = 0.5
    ) -> JointPca:
        """Fit to the words [n_i, K] of independent images; images without features are ignored.

        `dimensions` should be well below the number of images: the last axes are noise, which whitening amplifies.
        """
        shape = tuple(int(size) for size in sizes)
        if not shape or min(shape) < 1:
            raise OptionError(f"sizes={sizes!r} should be the sizes of one or more vocabularies")
        if not 0 < power < np.inf:
            raise OptionError(f"power={power!r} should be positive")
        training = [words for words in _checked(images, shape) if len(words)]
        most = min(len(training) - 1, sum(shape))
        if not 1 <= dimensions <= most:
            raise OptionError(
                f"dimensions={dimensions!r} should be 1 to {max(most, 0)} for {len(training)} training images with features "
                f"and {sum(shape)} words: give more images or fewer dimensions"
            )
        histograms = Histograms.learn(training, shape, idf, power)
        learn = _from_gram if len(training) < sum(shape) else _from_covariance
        mean, axes = learn(histograms, training, dimensions)
        return cls(histograms, axes.astype(np.float32), (mean @ axes).astype(np.float32))

    @property
    def dimensions(self) -> int:
        """Count the numbers of a code."""
        return len(self.offset)

    def encode(self, images: Sequence[npt.ArrayLike]) -> Floats32:
        """Return the codes of images of words [n_i, K]: [N, D'], of length 1; 0 for an image without features.

        Scores are `encode(database) @ encode(queries).T`.
        """
        return _unit(self.project(images))

    def project(self, images: Sequence[npt.ArrayLike]) -> Floats32:
        """Return the codes before they get length 1; over the training images their mean is 0 and their covariance 1."""
        checked = _checked(images, self.histograms.sizes)
        codes = np.zeros((len(checked), self.dimensions), np.float32)
        for first, block in _blocks(checked):
            codes[first : first + len(block)] = self.histograms.joint(block) @ self.axes - self.offset
        codes[[len(words) == 0 for words in checked]] = 0
        return codes


def _from_gram(histograms: Histograms, images: Sequence[Array], dimensions: int) -> tuple[Floats64, Floats64]:
    """Return the mean [W] and the whitening axes [W, D'] by way of the inner products of n images, n < W.

    One vocabulary at a time: it is the largest dense table, [n, size], and the histograms are quickly made a second time.
    """
    n, vocabularies = len(images), range(len(histograms.sizes))
    gram = np.zeros((n, n))
    means = []
    for k in vocabularies:
        table = histograms.part(images, k)
        means.append(table.mean(axis=0, dtype=np.float64))
        table -= means[-1].astype(np.float32)
        gram += table @ table.T / n
    values, vectors = _leading(gram, dimensions)
    # X' v / sqrt(n value) is an axis of length 1, and the variance along it is the value.
    mixing = (vectors / (np.sqrt(n) * values)).astype(np.float32)  # [n, D']
    axes = []
    for k in vocabularies:
        table = histograms.part(images, k)
        table -= means[k].astype(np.float32)
        axes.append(table.T @ mixing)
    return np.concatenate(means), np.concatenate(axes).astype(np.float64)


def _from_covariance(histograms: Histograms, images: Sequence[Array], dimensions: int) -> tuple[Floats64, Floats64]:
    """Return the mean [W] and the whitening axes [W, D'] by way of the W x W covariance, for many images and few words."""
    n, words = len(images), sum(histograms.sizes)
    mean = np.zeros(words)
    for _, block in _blocks(images):
        mean += histograms.joint(block).sum(axis=0, dtype=np.float64) / n
    covariance = np.zeros((words, words))
    for _, block in _blocks(images):
        table = histograms.joint(block) - mean
        covariance += table.T @ table / n
    values, vectors = _leading(covariance, dimensions)
    return mean, vectors / np.sqrt(values)


def _leading(matrix: Floats64, count: int) -> tuple[Floats64, Floats64]:
    """Return the `count` largest eigenvalues of a symmetric matrix, largest first, and their eigenvectors as columns."""
    values, vectors = np.linalg.eigh(matrix)  # ascending
    rank = np.count_nonzero(values > max(_FAINTEST * values[-1], _NOTHING))
    if count > rank:
        raise OptionError(
            f"dimensions={count!r}, but the training images differ in {rank}: give more different images or fewer dimensions"
        )
    return values[::-1][:count], vectors[:, ::-1][:, :count]


def _unit(rows: Floats32) -> Floats32:
    """Scale rows to length 1, in place; rows of zeros stay so."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))  # without the table of squares that `norm` makes
    rows /= np.where(lengths > 0, lengths, 1)[:, None]
    return rows


def _blocks(images: Sequence[Array]) -> Iterator[tuple[int, Sequence[Array]]]:
    """Return images in blocks, each with the number of its first."""
    for first in range(0, len(images), _BLOCK):
        yield first, images[first : first + _BLOCK]


def _checked(images: Sequence[npt.ArrayLike], sizes: tuple[int, ...]) -> list[Array]:
    checked = []
    for number, given in enumerate(images):
        words = np.asarray(given)
        if words.ndim != 2 or words.shape[1] != len(sizes) or (words.size and words.dtype.kind not in "iu"):
            raise OptionError(
                f"image {number}: {words.dtype} of shape {words.shape} should be integer words [features, {len(sizes)}]"
            )
        if len(words) and not ((words >= 0) & (words < np.array(sizes))).all():
            raise OptionError(
                f"image {number}: some words are outside of vocabularies of sizes {sizes}; use the same vocabularies"
            )
        checked.append(words.astype(np.int64, copy=False))
    return checked
