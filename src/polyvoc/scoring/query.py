"""The words of a query, checked and numbered for the lists, and the weights that they vote with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.statistics import Statistics
from polyvoc.options import ScoringOptions
from polyvoc.scoring.rules import CANCELS, Counts, ScoringPlan
from polyvoc.types import Array, Floats32, Floats64, Signatures, with_planes

Floats = npt.NDArray[np.floating[Any]]
MAX_CODES = 1 << 20  # (assignments + 1)^K: combinations of assigned words that the general kernel can tell apart


@dataclass(frozen=True, eq=False)
class QueryWords:
    """The words of a query's features: [Q, K, A], -1 where there is none; signatures [Q, K, A, B], or None."""

    words: npt.NDArray[np.int64]
    signatures: npt.NDArray[np.uint64] | None
    sizes: tuple[int, ...]
    key: str = field(default_factory=lambda: uuid4().hex)  # identifies it on other machines

    @classmethod
    def of(cls, words: Array, signatures: Array | None, sizes: tuple[int, ...], plan: ScoringPlan) -> QueryWords:
        """Check words [Q, K] or [Q, K, A] and signatures against vocabularies; keep those of the vocabularies that vote."""
        words = np.asarray(words)
        wanted = f"[Q, {len(sizes)}] or [Q, {len(sizes)}, A]"
        if words.ndim not in (2, 3) or words.shape[1] != len(sizes) or (words.size and words.dtype.kind not in "iu"):
            raise OptionError(f"query words {words.dtype}{list(words.shape)} should be integers {wanted}")
        shape, k = words.shape, len(plan.sizes)
        words = words.astype(np.int64)  # unsigned words have no room for -1
        words = _without_repeats(words if words.ndim == 3 else words[:, :, None])
        too_large = words.max(axis=(0, 2), initial=-1) >= np.array(sizes)
        if too_large.any() or words.min(initial=0) < -1:
            raise OptionError(f"query words outside the vocabularies of sizes {list(sizes)}; quantise with those of the index")
        if (words.shape[2] + 1) ** k > MAX_CODES:
            raise OptionError(f"{words.shape[2]} assignments with {k} vocabularies are too many; lower assignments")
        signed = _checked_signatures(signatures, shape, plan)
        if signed is not None:
            signed = np.ascontiguousarray(signed.reshape(*words.shape, signed.shape[-1])[:, :k])
        return cls(np.ascontiguousarray(words[:, :k]), signed, plan.sizes)

    @cached_property
    def bases(self) -> npt.NDArray[np.int64]:
        """Return the number of the first word of each vocabulary, and the number of words [K + 1]."""
        return np.cumsum((0, *self.sizes))

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the number of each word among all vocabularies [Q, K, A], -1 where there is none."""
        return np.where(self.words >= 0, self.words + self.bases[:-1, None], -1)

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """Return the query features by their word in the last of the first two vocabularies, those without one first.

        Those with the same first words follow one another.
        """
        by_first = _sort_words(self.words[:, 0, 0])
        return by_first[_sort_words(self.words[by_first, :2, 0][:, -1])]

    @cached_property
    def groups(self) -> npt.NDArray[np.int64]:
        """Return where in the order the query features with equal words begin, and the end [G + 1]."""
        words = self.words[self.order]
        changes = (words[1:] != words[:-1]).any(axis=(1, 2))
        return np.flatnonzero(np.concatenate([[True], changes, [True]]) if len(words) else [True])

    @cached_property
    def own_lists(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the lists of vocabularies 1 .. K - 1, ascending, and the query feature and vocabulary of each."""
        numbers, features, vocabularies = [self.order[:0]], [self.order[:0]], [self.order[:0]]
        for k in range(1, len(self.sizes)):
            words = self.words[self.order, k, 0]
            by_word = np.arange(len(words)) if k == 1 else _sort_words(words)  # the order is by the words of vocabulary 1
            by_word = by_word[np.count_nonzero(words < 0) :]
            numbers.append(words[by_word] + self.bases[k])
            features.append(self.order[by_word])
            vocabularies.append(np.full(len(by_word), k))
        return np.concatenate(numbers), np.concatenate(features), np.concatenate(vocabularies)

    @cached_property
    def masks(self) -> npt.NDArray[np.int64]:
        """Tabulate the vocabularies that take part in each combination of assigned words [(A + 1)^K]."""
        base = self.words.shape[2] + 1
        codes = np.arange(base ** len(self.sizes))
        return sum(((codes // base**k % base > 0).astype(np.int64) << k for k in range(len(self.sizes))), np.int64(0) * codes)


def _sort_words(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the order of words [n], -1 first, stable. NumPy sorts integers of 16 bits by radix, in less time."""
    keys = words + 1
    order: npt.NDArray[np.int64] = np.argsort(keys.astype(np.uint16) if keys.max(initial=0) < 1 << 16 else keys, kind="stable")
    return order


def needs_signatures_text(options: ScoringOptions) -> str:
    """Return the option that needs signatures, as text for errors."""
    return f"hamming={options.hamming}" if options.hamming is not None else f"merge={options.merge!r}"


def _checked_signatures(signatures: Array | None, shape: tuple[int, ...], plan: ScoringPlan) -> Signatures | None:
    """Return signatures with an axis of planes, None where they are not compared; raise OptionError if they are missing."""
    if signatures is not None and np.shape(signatures)[: len(shape)] != shape:
        raise OptionError(f"query signatures {list(np.shape(signatures))} should have the shape of the words {list(shape)}")
    if not plan.needs_signatures:
        return None
    if signatures is None:
        raise OptionError(f"{needs_signatures_text(plan.options)} needs the signatures of the query; none were given")
    if np.size(signatures) and np.asarray(signatures).dtype.kind not in "iu":
        raise OptionError(f"query signatures of {np.asarray(signatures).dtype} should be integers")
    found = with_planes(np.asarray(signatures, np.uint64), len(shape))
    if plan.bits and 64 * found.shape[-1] != plan.bits:
        raise OptionError(f"the query has signatures of {64 * found.shape[-1]} bits, the index of {plan.bits}; use its "
                          "vocabularies")  # fmt: skip
    return found


def _without_repeats(words: Array) -> Array:
    """Replace words that a query feature has twice in one vocabulary by -1: its lists are united, each counts once."""
    n_assignments = words.shape[2]
    earlier = np.tri(n_assignments, k=-1, dtype=bool)  # [later, earlier]
    repeated = ((words[:, :, :, None] == words[:, :, None, :]) & earlier).any(axis=3)
    return np.where(repeated, -1, words)


@dataclass(frozen=True, eq=False)
class Weights:
    """What the segments need to vote: the same for all of them."""

    factors: Floats32  # [Q, 2^K] of the rule
    numbers: npt.NDArray[np.int64]  # [Q, K, A] of the words, -1 for none
    idf: Floats32  # [Q, K, A] idf of the words, or its square
    hamming: Floats32  # [bits + 1] of Hamming distances
    cells: npt.NDArray[np.int64]  # [Q, 2^K] row of the likelihood table for each set; [0, 0] for rules that sum over lists
    table: Floats32  # [rows, bits + 1] log-likelihood ratios
    first: Floats  # [Q, K, A] of phase 1, see `first_weights`

    @cached_property
    def singles(self) -> Floats64:
        """Return the weight of a feature in one list only, for each list [Q, K, A]."""
        bits = 1 << np.arange(self.idf.shape[1])
        return self.idf.astype(np.float64) * self.factors[:, bits, None]

    @cached_property
    def delta(self) -> Floats:
        """Return what a feature that the first words share gets beyond the sum of its single weights [Q, 2^K].

        In the list of vocabulary 0 and two or more others: also beyond what vocabulary 0 and each of them get, added by runs.
        """
        masks = np.arange(self.factors.shape[1])
        lists = (masks[:, None] >> np.arange(self.idf.shape[1]) & 1).astype(np.float64)  # [2^K, K]
        singles = self.singles[:, :, 0] @ lists.T
        wanted = self.factors * (self.idf[:, :, 0] @ lists.T)
        delta = wanted - singles
        if self.idf.shape[1] > 2:
            pairs = 1 | 1 << np.arange(1, self.idf.shape[1])
            larger = (masks & 1 == 1) & (lists.sum(axis=1) > 2)
            delta[:, larger] -= delta[:, pairs] @ lists[larger, 1:].T
        return np.asarray(delta, self.dtype)

    @cached_property
    def gains(self) -> Floats:
        """Return the factor of each set less that of one list alone, which is the same for all lists [Q, 2^K]."""
        return self.factors.astype(self.first.dtype) - self.factors[:, 1:2]

    @cached_property
    def dtype(self) -> type[np.floating[Any]]:
        """Return the type of sums that are corrected where lists share something.

        Where that is worth next to nothing the correction cancels the weights of single lists, and of pairs where three or more
        lists share it: float32 would leave noise.
        """
        singles = self.factors[:, 1 << np.arange(self.idf.shape[1])].max(axis=1, keepdims=True, initial=0.0)
        cancels = bool(((self.factors > 0) & (self.factors < CANCELS * singles)).any())
        if self.idf.shape[1] > 2:
            larger = self.factors[:, np.bitwise_count(np.arange(self.factors.shape[1])) > 2]
            limits = self.factors.max(axis=1, keepdims=True, initial=0.0)
            cancels |= bool(((larger > 0) & (larger < CANCELS * limits)).any())
        return np.float64 if cancels else np.float32

    @cached_property
    def lists(self) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the distinct words, ascending, and the sum of their single weights: each list is scanned once."""
        present = self.numbers >= 0
        numbers, inverse = np.unique(self.numbers[present], return_inverse=True)
        sums = np.bincount(inverse, weights=self.singles[present], minlength=len(numbers))
        return numbers, sums.astype(self.dtype)


def complete_counts(counts: Counts, query: QueryWords, statistics: Statistics, plan: ScoringPlan) -> Counts:
    """Return the sum of phase 1 over all segments [Q, 2^K] with what it need not count: what is in one list only."""
    if query.words.shape[2] > 1:
        return counts  # counted as well
    words, by_mask = query.words[:, :, 0], np.array(counts.T, order="C")  # rows are added in less time than columns
    lengths = statistics.documents if plan.image_sets else statistics.occurrences
    lengths = np.where(words >= 0, lengths[query.numbers[:, :, 0]], 0)
    masks = np.arange(len(by_mask))
    for k in range(len(query.sizes)):  # its length, less all that it shares
        shared = masks[(masks >> k & 1 == 1) & (masks != 1 << k)]
        by_mask[1 << k] = lengths[:, k] - by_mask[shared].sum(axis=0)
    return np.ascontiguousarray(by_mask.T)


def word_weights(query: QueryWords, statistics: Statistics, plan: ScoringPlan) -> Floats32:
    """Return the idf, or its square, of the words of a query [Q, K, A], 0 where there is none."""
    values = statistics.word_weights(plan.options.idf, plan.options.idf_power)
    return np.where(query.words >= 0, values[query.numbers], 0.0).astype(np.float32)


def first_weights(query: QueryWords, statistics: Statistics, plan: ScoringPlan) -> Floats:
    """Return the weights of the lists that phase 1 sums over image sets [Q, K, A], 0 where votes are not sums over lists."""
    if not plan.image_sets or query.signatures is not None or plan.options.burstiness != "none":
        return np.zeros(query.words.shape, np.float32)
    return word_weights(query, statistics, plan).astype(plan.sum_type(statistics.n_images))


def weigh(query: QueryWords, counts: Counts, statistics: Statistics, plan: ScoringPlan) -> Weights:
    """Turn the counts of the whole collection into the weights that every segment votes with."""
    bits = 0 if query.signatures is None else 64 * query.signatures.shape[3]
    return Weights(
        numbers=query.numbers,
        idf=word_weights(query, statistics, plan),
        first=first_weights(query, statistics, plan),
        **plan.weights(counts, statistics.n_images, bits)._asdict(),
    )
