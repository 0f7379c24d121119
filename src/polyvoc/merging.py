"""K vocabularies answered: whom do we believe? The rules, as factors on the sum over the vocabularies that agree.

A rule gives one factor per query feature and *mask* (bit k: the indexed feature stands in the list of vocabulary k); the
weight of an indexed feature is factor[mask] * sum of idf^2 * HE over the mask. Zheng, Wang, Zhou, Tian, CVPR 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyvoc.records import Merge, SearchOptions

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MARGIN = 1e-6  # a r + b is a probability: kept this far from 0 and 1


@dataclass(frozen=True)
class Model:
    """The numbers of the Bayes model: term 2 is a r + b, term 3 is ln(N c)."""

    a: float
    b: float
    term3: float

    @classmethod
    def of(cls, options: SearchOptions, n_images: int) -> Model:
        """Take the line and c from the options, N from the collection."""
        return cls(*options.line, max(0.0, float(np.log(max(n_images, 1) * options.c))))

    def term2(self, ratio: Floats) -> Floats:
        """Give p(in the intersection | true match), linear in the cardinality ratio (section 4.2)."""
        return np.clip(self.a * ratio + self.b, MARGIN, 1 - MARGIN)

    def intersection(self, ratio: Floats) -> Floats:
        """Give w(r) = p(true match | in the intersection), eq. 7."""
        return 1 / (1 + ratio / self.term2(ratio) * self.term3)

    def difference(self, ratio: Floats) -> Floats:
        """Give the same theorem for the complement: p(true match | in one list only)."""
        return 1 / (1 + (1 - ratio) / (1 - self.term2(ratio)) * self.term3)


def ratios(counts: Counts) -> Floats:
    """Give |intersection| / |union| of the lists of every mask, from the number of features of every exact mask.

    counts: [Q, 2^K]. Features that stand in further lists count as well (reading R2 of "k, and only k"; see ARCHITECTURE.md).
    """
    intersections, subsets = counts.copy(), counts.copy()
    masks = np.arange(counts.shape[1])
    for bit in (1 << k for k in range(counts.shape[1].bit_length() - 1)):
        without = masks[masks & bit == 0]
        intersections[:, without] += intersections[:, without | bit]
        subsets[:, without | bit] += subsets[:, without]
    unions = subsets[:, -1:] - subsets[:, masks[::-1]]  # all, less those that avoid every list of the mask
    result: Floats = np.divide(intersections, unions, out=np.zeros(counts.shape), where=unions > 0)
    return result


def _all_ones(counts: Counts, sizes: Floats, model: Model) -> Floats:
    return np.ones(counts.shape)


def _full_mask_only(counts: Counts, sizes: Floats, model: Model) -> Floats:
    factors = np.zeros(counts.shape)
    factors[:, -1] = 1
    return factors


def _bayes(counts: Counts, sizes: Floats, model: Model) -> Floats:
    return np.where(sizes >= 2, model.intersection(ratios(counts)), 1.0)  # eq. 11


def _posterior(counts: Counts, sizes: Floats, model: Model) -> Floats:
    ratio = ratios(counts)
    return np.where(sizes >= 2, model.intersection(ratio), model.difference(ratio[:, -1:]))


Rule = Callable[[Counts, Floats, Model], Floats]
RULES: dict[Merge, Rule] = {
    "likelihood": _all_ones,  # its table weighs sets and distances together (`evidence.py`)
    "b0": _all_ones,  # with the first vocabulary only
    "b1": _all_ones,
    "b2": _full_mask_only,
    "bayes": _bayes,
    "posterior": _posterior,
}


def needs_counts(options: SearchOptions, n_vocabularies: int) -> bool:
    """Tell whether a rule asks how many features its sets have; for factors of one vocabulary nobody does."""
    by_ratio = options.merge == "likelihood" and options.evidence is not None and len(options.evidence.edges) > 0
    return by_ratio or (options.merge in ("bayes", "posterior") and n_vocabularies > 1)


def factors(counts: Counts, options: SearchOptions, n_images: int) -> npt.NDArray[np.float32]:
    """Give the factor of every query feature and mask [Q, 2^K]. counts: features (or images) of every exact mask."""
    if counts.shape[1] == 2:
        return np.ones(counts.shape, np.float32)
    sizes = np.array([mask.bit_count() for mask in range(counts.shape[1])], np.float64)
    rule = RULES[options.merge]
    return rule(counts, sizes, Model.of(options, n_images)).astype(np.float32)
