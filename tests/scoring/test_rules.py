"""Ratios and factors of the rules, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.scoring.rules import BayesModel, cardinality_ratios
from polyvoc.scoring.rules import factors as merging_factors
from random_collections import plain

# 2 features in list 0 only, 3 in list 1 only, 5 in both: |A| = 7, |B| = 8, union 10.
PAIR = np.array([[0, 2, 3, 5]])


def test_ratio_of_a_pair_is_intersection_over_union() -> None:
    assert cardinality_ratios(PAIR).tolist() == [[0.0, 1.0, 1.0, 0.5]]


def test_features_in_further_lists_count_in_the_ratio_of_a_pair() -> None:
    counts = np.zeros((1, 8), np.int64)
    counts[0, 0b011], counts[0, 0b111], counts[0, 0b001], counts[0, 0b100] = 1, 2, 3, 4
    ratios = cardinality_ratios(counts)
    assert ratios[0, 0b011] == pytest.approx(3 / 6)  # 1 + 2 shared; the union of lists 0 and 1 has 1 + 2 + 3
    assert ratios[0, 0b101] == pytest.approx(2 / 10)
    assert ratios[0, 0b111] == pytest.approx(2 / 10)


def test_empty_sets_have_the_ratio_0() -> None:
    assert cardinality_ratios(np.zeros((2, 4), np.int64)).tolist() == [[0.0] * 4] * 2


def test_counts_are_not_modified() -> None:
    counts = PAIR.copy()
    cardinality_ratios(counts)
    merging_factors(counts, plain(merge="bayes"), 100)
    assert np.array_equal(counts, PAIR)


def test_bayes_weighs_the_intersection_only() -> None:
    factors = merging_factors(PAIR, plain(merge="bayes", line=(0.6, 0.4), c=30), 1000)
    expected = 1 / (1 + 0.5 / 0.7 * np.log(30_000))
    assert factors[0, 1:].tolist() == pytest.approx([1.0, 1.0, expected])


def test_posterior_weighs_both_sets() -> None:
    factors = merging_factors(PAIR, plain(merge="posterior", line=(0.6, 0.4), c=30), 1000)
    inside = 1 / (1 + 0.5 / 0.7 * np.log(30_000))
    outside = 1 / (1 + 0.5 / 0.3 * np.log(30_000))
    assert factors[0, 1:].tolist() == pytest.approx([outside, outside, inside])


@pytest.mark.parametrize("merge, expected", [("b1", [1, 1, 1]), ("b2", [0, 0, 1])])
def test_plain_rules(merge: str, expected: list[float]) -> None:
    assert merging_factors(PAIR, plain(merge=merge), 10)[0, 1:].tolist() == expected  # type: ignore[arg-type]


def test_weights_fall_with_the_ratio_and_with_the_collection() -> None:
    ratio = np.linspace(0, 1, 11)
    small, large = BayesModel(0.6, 0.4, np.log(5_000)), BayesModel(0.6, 0.4, np.log(1_000_000))
    assert small.intersection(ratio)[0] == 1
    assert (np.diff(small.intersection(ratio)) < 0).all()
    assert (large.intersection(ratio[1:]) < small.intersection(ratio[1:])).all()


def test_a_line_beyond_probabilities_is_cut() -> None:
    model = BayesModel(3.0, 0.5, np.log(1000))
    assert np.isfinite(model.difference(np.array([0.0, 0.5, 1.0]))).all()
    assert model.term2(np.array([1.0]))[0] < 1
