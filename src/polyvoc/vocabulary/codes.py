"""Binary codes: one per feature, relative to its word in a fine vocabulary; how queries are compared with them, and decoding.

Bit i of a code says whether coordinate i of the descriptor, in the axes of a random rotation, lies above that of its word
(Jegou, Douze, Schmid, ECCV 2008, with the word itself for the medians). What the code leaves is kept in a few bytes by a
product quantiser, apart from what is scanned: so an image of the index can be a query, although its descriptors are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from polyvoc.errors import VocabularyError
from polyvoc.kernels.codes import relative_distances, sign_codes, sign_query, subtract_decoded, write_signs
from polyvoc.kernels.vectors import Blocks, largest_products, multiply
from polyvoc.threads import thread_map
from polyvoc.types import Descriptors, FeatureCodes, Floats32, Words
from polyvoc.vocabulary.assign import Assigner, batches
from polyvoc.vocabulary.products import make_blocks, products
from polyvoc.vocabulary.vocabulary import Decoder, Vocabulary, code_axes, full_rotation

PARTS = 8  # bytes that keep what a code leaves of a descriptor
PART_VALUES = 256  # of each
SAMPLE = 200_000  # descriptors that a decoder is learned from
POWER_STEPS = 8  # of the power method that finds the widest axis of some words
HALF = 0.5  # share of the usual search for nearest words: for stored features, found by several words, and for pairs
_BATCH = 4096  # descriptors signed together


@dataclass(frozen=True, eq=False)
class CodedQuery:
    """The features of a query, signed relative to each of their nearest words."""

    words: Words  # [Q, A] nearest first, -1 where there is none
    ratios: Floats32  # [Q, A] distance of the word relative to that of the nearest
    codes: npt.NDArray[np.uint64]  # [Q, A, planes]
    magnitudes: npt.NDArray[np.uint8]  # [Q A, bits] |coordinate - that of the word|, the largest 255
    totals: npt.NDArray[np.int64]  # [Q, A] their sums

    def scan_order(self) -> npt.NDArray[np.int64]:
        """Return the features in the order of their nearest words.

        Neighbouring words have neighbouring numbers: features in this order visit lists that are still in the cache.
        """
        return np.argsort(self.words[:, 0], kind="stable")

    def visits(self, features: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places in [Q A] of the words that some features have, feature by feature."""
        n_words = self.words.shape[1]
        places = (features[:, None] * n_words + np.arange(n_words)).ravel()
        return np.asarray(places[self.words.ravel()[places] >= 0])

    def part(self, first: int, last: int) -> CodedQuery:
        """Return the features first .. last."""
        n_words, own = self.words.shape[1], slice(first, last)
        magnitudes = self.magnitudes[first * n_words : last * n_words]
        return CodedQuery(self.words[own], self.ratios[own], self.codes[own], magnitudes, self.totals[own])

    @classmethod
    def concatenate(cls, parts: Sequence[CodedQuery]) -> CodedQuery:
        """Join the features of several; words beyond those that all have are dropped."""
        width = min(part.words.shape[1] for part in parts)
        rows = [
            (part.words[:, :width], part.ratios[:, :width], part.codes[:, :width],
             part.magnitudes.reshape(*part.words.shape, part.magnitudes.shape[1])[:, :width], part.totals[:, :width])
            for part in parts
        ]  # fmt: skip
        words, ratios, codes, magnitudes, totals = (np.concatenate(column) for column in zip(*rows, strict=True))
        return cls(words, ratios, codes, np.ascontiguousarray(magnitudes.reshape(words.size, magnitudes.shape[2])), totals)


class Coder:
    """A fine vocabulary ready to use: codes of features, and queries that are compared with them. May be shared by threads."""

    def __init__(self, vocabulary: Vocabulary, threads: int | None = None) -> None:
        """Prepare a vocabulary with a decoder for at most so many threads, None: one per core."""
        if vocabulary.rotation is None or vocabulary.decoder is None:
            raise VocabularyError("the vocabulary has no decoder for codes; train it again: polyvoc train --bits 128")
        self.vocabulary = vocabulary
        self.rotation, self.decoder = vocabulary.rotation, vocabulary.decoder
        self._assigner = Assigner([vocabulary], threads)
        self._threads = threads

    @property
    def bits(self) -> int:
        """Return the length of a code."""
        return self.vocabulary.bits

    @property
    def n_parts(self) -> int:
        """Return the bytes of the rest of a descriptor."""
        return len(self.decoder.parts)

    @cached_property
    def _centres(self) -> Floats32:
        """Return the words in the coordinates of all axes [size, axes]."""
        words, centres = self.vocabulary.words, np.empty((self.vocabulary.size, len(self._full)), np.float32)
        thread_map(lambda part: multiply(words.values(part), self._columns, centres[part]), words.parts(), self._threads)
        return centres

    @cached_property
    def _full(self) -> Floats32:
        """Return all axes [axes, dimension], of which codes use the first: a full rotation, or more if codes are longer."""
        return self.rotation if self.bits >= self.vocabulary.dimension else full_rotation(self.vocabulary.dimension)

    def _project(self, descriptors: Descriptors) -> Floats32:
        """Return descriptors in the coordinates of all axes."""
        return products(np.asarray(descriptors, np.float32), self._columns, len(self._full))

    @cached_property
    def _columns(self) -> Blocks:
        """Return all axes as columns."""
        return make_blocks(self._full.T)

    @cached_property
    def _rows(self) -> Blocks:
        """Return the way back: the axes of a full rotation as rows."""
        return make_blocks(self._full[: self.vocabulary.dimension])

    @cached_property
    def _decoder_columns(self) -> Blocks:
        """Return the matrix of the decoder as columns."""
        return make_blocks(self.decoder.matrix.T)

    def encode(self, descriptors: Descriptors) -> FeatureCodes:
        """Return the codes of descriptors [n, dimension]."""
        words = self._assigner.assign(descriptors, effort=HALF)[:, 0]
        parts = thread_map(lambda job: self._encode(*job), _jobs(descriptors, words, self._threads), self._threads)
        codes, rest = (np.concatenate(column) for column in zip(*parts, strict=True))
        return FeatureCodes(words.astype(np.uint32), codes, rest)

    def _encode(self, descriptors: Descriptors, words: Words) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        z = self._project(descriptors)
        codes = np.empty((len(z), planes_of(self.bits)), np.uint64)
        sign_codes(z, words, self._centres, self.bits, codes)
        left = products(unpack_signs(codes, self.bits), self._decoder_columns, self.vocabulary.dimension)
        subtract_decoded(z, words, self._centres, left)
        return codes, quantise_parts(left, self.decoder.parts)

    def decode(self, stored: FeatureCodes) -> Floats32:
        """Return approximate descriptors [n, dimension] of codes."""
        dimension = self.vocabulary.dimension
        z = products(unpack_signs(stored.codes, self.bits), self._decoder_columns, dimension)
        z += self._centres[stored.words, :dimension]
        width = self.decoder.parts.shape[2]
        for part, values in enumerate(self.decoder.parts):
            at = slice(part * width, min((part + 1) * width, z.shape[1]))
            z[:, at] += values[stored.rest[:, part], : at.stop - at.start]
        return products(z, self._rows, dimension)

    def query(self, descriptors: Descriptors, assignments: int, cut: float, effort: float = 1.0) -> CodedQuery:
        """Return descriptors [Q, dimension] as a query: their nearest words, up to `cut` times as far as the first.

        effort: share of the usual search for them.
        """
        table = np.asarray(descriptors, np.float32)
        n_words = min(assignments, self.vocabulary.size)
        words = self._assigner.assign(table, n_words, effort).reshape(len(table), n_words)
        parts = thread_map(lambda job: self._sign(*job, cut), _jobs(table, words, self._threads), self._threads)
        return CodedQuery(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def query_stored(self, stored: FeatureCodes, assignments: int, cut: float, effort: float = 1.0) -> CodedQuery:
        """Return features of an index as a query, as far as their codes tell."""
        return self.query(self.decode(stored), assignments, cut, effort)

    def _sign(self, descriptors: Descriptors, words: Words, cut: float) -> tuple[npt.NDArray[np.generic], ...]:
        z, words = self._project(descriptors), words.copy()
        ratios = np.empty(words.shape, np.float32)
        relative_distances(z, words, self._centres, np.float32(cut), ratios)
        codes = np.empty((*words.shape, planes_of(self.bits)), np.uint64)
        magnitudes = np.empty((words.size, 64 * codes.shape[2]), np.uint8)
        totals = np.empty(words.shape, np.int64)
        sign_query(z, words, self._centres, self.bits, codes, magnitudes, totals)
        return words, ratios, codes, magnitudes, totals


def _jobs(descriptors: Descriptors, words: Words, threads: int | None) -> list[tuple[Descriptors, Words]]:
    """Cut descriptors and their words into batches."""
    parts = batches(np.asarray(descriptors), _BATCH, threads)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return list(zip(parts, np.split(words, ends), strict=True))


def planes_of(bits: int) -> int:
    """Return the number of uint64 that hold so many bits."""
    return (bits + 63) // 64


def unpack_signs(codes: npt.NDArray[np.uint64], bits: int) -> Floats32:
    """Return the bits of codes [n, planes] as -1 and 1: float32 [n, bits]."""
    signs = np.empty((len(codes), bits), np.float32)
    write_signs(np.ascontiguousarray(codes), signs)
    return signs


def quantise_parts(rows: Floats32, parts: Floats32) -> npt.NDArray[np.uint8]:
    """Return the nearest value of each part of rows [n, dimension]: uint8 [n, parts]."""
    width, nearest = parts.shape[2], np.empty((len(parts), len(rows)), np.uint8)
    for part, values in enumerate(parts):
        own = np.zeros((len(rows), width), np.float32)
        columns = rows[:, part * width : (part + 1) * width]
        own[:, : columns.shape[1]] = columns
        largest_products(own, make_blocks(values.T, np.einsum("vw,vw->v", values, values) / 2), nearest[part])
    return np.ascontiguousarray(nearest.T)


def learn_decoder(descriptors: Floats32, words: Words, vocabulary: Vocabulary, cluster: Callable[[Floats32, int], Floats32],
                  ) -> Decoder:  # fmt: skip
    """Learn what codes of descriptors [n, dimension] with their nearest words [n] leave. cluster: rows, size -> centroids."""
    bits, rotation = vocabulary.bits, code_axes(vocabulary.dimension, vocabulary.bits)
    centres = vocabulary.centroids @ rotation.T
    z = descriptors @ rotation.T
    codes = np.empty((len(z), planes_of(bits)), np.uint64)
    sign_codes(z, words, centres, bits, codes)
    signs, left = unpack_signs(codes, bits), (z - centres[words])[:, : vocabulary.dimension]
    gram = signs.T @ signs + np.eye(bits, dtype=np.float32)  # regularised: of few descriptors some signs never vary
    matrix = np.linalg.solve(gram, signs.T @ left).T.astype(np.float32)
    left -= signs @ matrix.T
    n_parts = min(PARTS, left.shape[1])
    width = -(-left.shape[1] // n_parts)
    n_parts = -(-left.shape[1] // width)
    parts = np.zeros((n_parts, min(PART_VALUES, len(left)), width), np.float32)
    for part in range(n_parts):
        rows = left[:, part * width : (part + 1) * width]
        found = cluster(rows, parts.shape[1])
        parts[part, :, : rows.shape[1]] = np.resize(found, (parts.shape[1], rows.shape[1]))
    return Decoder(np.ascontiguousarray(matrix), parts)


def neighbour_order(words: Floats32) -> npt.NDArray[np.int64]:
    """Return an order of words [size, dimension] in which neighbours are near each other: halved along the widest axis.

    Lists that a query visits together then lie together on the disk and in memory.
    """
    order = np.arange(len(words))

    def halve(first: int, last: int) -> None:
        if last - first <= 2:
            return
        rows = words[order[first:last]]
        centred = rows - rows.mean(axis=0)
        axis = centred[np.argmax(np.einsum("ij,ij->i", centred, centred))]
        for _ in range(POWER_STEPS):  # towards the axis of the largest variance
            axis = centred.T @ (centred @ axis)
            axis /= max(float(np.linalg.norm(axis)), np.finfo(np.float32).tiny)
        middle = (last - first) // 2
        part = np.argsort(centred @ axis, kind="stable")
        order[first:last] = order[first:last][part]
        halve(first, first + middle)
        halve(first + middle, last)

    halve(0, len(words))
    return order
