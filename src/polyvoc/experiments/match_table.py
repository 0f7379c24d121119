"""Every match of a question as a table, for experiments with rules that the engine does not have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import ScoringOptions
from polyvoc.scoring.rules import Counts, cardinality_ratios
from polyvoc.types import Array, Floats64, with_planes

UNRELATED = 255  # distance of features that do not share the word


@dataclass(frozen=True, eq=False)
class MatchSets:
    """The set of lists that each match counts in: those that hold its feature, or those that hold a feature of its image."""

    query: npt.NDArray[np.int32]  # [m] which feature of the question
    mask: Counts  # [m] the set of each match: bit k for the list of vocabulary k
    counts: Counts  # [Q, 2^K] features (or images) of every exact set

    @cached_property
    def order(self) -> Counts:
        """Return the number of lists in the set of each match [m]."""
        return np.bitwise_count(self.mask).astype(np.int64)

    @cached_property
    def ratios(self) -> Floats64:
        """Return |intersection| / |union| of every set of lists [Q, 2^K]."""
        return cardinality_ratios(self.counts)

    @cached_property
    def ratio(self) -> Floats64:
        """Return the cardinality ratio of the set of each match [m]."""
        return np.asarray(self.ratios[self.query, self.mask])

    @cached_property
    def joint_ratio(self) -> Floats64:
        """Return the cardinality ratio of all K lists of each match's query feature [m]."""
        return np.asarray(self.ratios[self.query, -1])


@dataclass(frozen=True, eq=False)
class MatchTable:
    """The pairs (query feature, indexed feature) that share a word in one vocabulary or more, one row each."""

    query: npt.NDArray[np.int32]  # [m] which feature of the question
    feature: npt.NDArray[np.int64]  # [m] which feature of the database
    image: npt.NDArray[np.int32]  # [m] which image holds it
    shared: npt.NDArray[np.bool_]  # [m, K] whether they share the word of vocabulary k
    distance: npt.NDArray[np.uint8] | None  # [m, K] between their signatures; UNRELATED where the word is not shared
    words: npt.NDArray[np.int32]  # [Q, K] of the question
    n_images: int

    @property
    def n_vocabularies(self) -> int:
        """Return the number of vocabularies."""
        return int(self.words.shape[1])

    @cached_property
    def mask(self) -> Counts:
        """Return the set of each match: bit k is set if the word of vocabulary k is shared [m]."""
        return np.asarray(self.shared @ (1 << np.arange(self.n_vocabularies)), np.int64)

    @cached_property
    def features(self) -> MatchSets:
        """Return the sets of features."""
        return MatchSets(self.query, self.mask, self._count(self.query, self.mask))

    @cached_property
    def images(self) -> MatchSets:
        """Return the sets of images: an image is in every list that holds one of its features."""
        pairs, number = self._pairs
        masks = np.zeros(len(pairs), np.int64)
        np.bitwise_or.at(masks, number, self.mask)
        return MatchSets(self.query, masks[number], self._count(pairs // max(self.n_images, 1), masks))

    @property
    def pair(self) -> Counts:
        """Return the number of each match's pair of a query feature and an image [m]."""
        return self._pairs[1]

    @cached_property
    def _pairs(self) -> tuple[Counts, Counts]:
        """Return the distinct pairs of a query feature and an image, and which of them each match belongs to [m]."""
        pairs, number = np.unique(self.query * np.int64(self.n_images) + self.image, return_inverse=True)
        return pairs, number

    def _count(self, query: npt.NDArray[np.integer], mask: Counts) -> Counts:
        """Count the elements of every exact set, given the query feature and the set of each [Q, 2^K]."""
        n_masks = 1 << self.n_vocabularies
        flat = np.bincount(query * np.int64(n_masks) + mask, minlength=len(self.words) * n_masks)
        return np.asarray(flat.reshape(-1, n_masks), np.int64)


class Matcher:
    """Builds the match tables of a quantised dataset, and turns weights of matches into scores of images."""

    def __init__(self, bench: QuantisedDataset) -> None:
        """Sort the features of the database by their words."""
        self.bench = bench
        n = bench.n_features
        self._words = np.ascontiguousarray(bench.words[:n])
        self._image_of = np.repeat(np.arange(bench.n_images, dtype=np.int32), np.diff(bench.store.starts[: bench.n_images + 1]))
        self._orders = [np.argsort(self._words[:, k], kind="stable") for k in range(len(bench.sizes))]
        self._starts = [
            np.concatenate([[0], np.cumsum(np.bincount(self._words[:, k], minlength=size))])
            for k, size in enumerate(bench.sizes)
        ]

    def table(self, question: int) -> MatchTable:
        """Return every match of a question."""
        rows = self.bench.rows(question)
        words = self.bench.words[rows]
        lists = [self._list(words[:, k], k, words) for k in range(words.shape[1])]
        query, feature = (np.concatenate(column) for column in zip(*lists, strict=True))
        shared = words[query] == self._words[feature]
        distance = None
        if self.bench.signatures is not None:
            signatures = with_planes(self.bench.signatures, 2)  # [F, K, B]
            bits = np.bitwise_count(signatures[rows][query] ^ signatures[feature]).sum(axis=2)
            distance = np.where(shared, bits, UNRELATED).astype(np.uint8)
        image = self._image_of[feature]
        return MatchTable(query.astype(np.int32), feature, image, shared, distance, words, self.bench.n_images)

    def _list(self, words: Array, k: int, every: Array) -> tuple[Array, Array]:
        """Return (query feature, indexed feature) of the lists of vocabulary k, without those that an earlier list holds."""
        starts = self._starts[k]
        lengths = starts[words + 1] - starts[words]
        query = np.repeat(np.arange(len(words)), lengths)
        within = np.arange(len(query)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        feature = self._orders[k][starts[words][query] + within]
        if k == 0:
            return query, feature
        new = (every[query, :k] != self._words[feature, :k]).all(axis=1)
        return query[new], feature[new]

    def terms(self, table: MatchTable, options: ScoringOptions) -> Floats64:
        """Return idf (to its power) times Hamming weight of the shared words of each match, 0 for the others [m, K]."""
        values = self.bench.engine.statistics.word_weights(options.idf, options.idf_power)
        bases = np.cumsum((0, *self.bench.sizes[:-1]))
        terms = np.where(table.shared, values[table.words + bases][table.query], 0.0)
        return terms if options.hamming is None else terms * hamming_weights(table, options.hamming, options.sigma)

    def scores(self, table: MatchTable, weights: Floats64, options: ScoringOptions) -> Floats64:
        """Sum the weights of the matches of each image and divide by its norm [N]."""
        votes = np.bincount(table.image, weights=weights, minlength=table.n_images)
        norms = np.concatenate(self.bench.norms(options)).astype(np.float64)
        return np.asarray(np.divide(votes, norms, out=np.zeros(len(votes)), where=norms > 0))


def near(table: MatchTable, threshold: int) -> npt.NDArray[np.bool_]:
    """Return which shared words of each match have signatures within the threshold [m, K]."""
    assert table.distance is not None, "the vocabularies have no signatures"
    return np.asarray(table.shared & (table.distance <= threshold))


def hamming_weights(table: MatchTable, threshold: int, sigma: float) -> Floats64:
    """Return exp(-h^2 / sigma^2) of each shared word up to the threshold, 0 beyond it [m, K]."""
    within = near(table, threshold)
    assert table.distance is not None
    return np.asarray(np.where(within, np.exp(-((table.distance / sigma) ** 2)), 0.0))
