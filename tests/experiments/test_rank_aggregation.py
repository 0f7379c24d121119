"""Rank aggregation against a brute-force count, worked values, and what must not change it."""

from __future__ import annotations

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.errors import OptionError
from polyvoc.experiments.baselines.rank_aggregation import aggregate

# Few different values, so that ties abound; whole numbers, so that sums are exact.
tables = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=5).map(np.array)
)


def ranks_by_counting(scores: list[int]) -> list[Fraction]:
    """Return 1 + those better + half of the others that are equal."""
    return [1 + sum(b > a for b in scores) + Fraction(sum(b == a for b in scores) - 1, 2) for a in scores]


def key_by_counting(table: np.ndarray, image: int) -> tuple[Fraction, Fraction, int]:
    ranks = [ranks_by_counting(row)[image] for row in table.tolist()]
    return statistics.median(ranks), sum(ranks, Fraction(0)), -int(table[:, image].sum())


@settings(deadline=None)
@given(tables)
def test_as_counted_by_brute_force(table: np.ndarray) -> None:
    keys = [key_by_counting(table, image) for image in range(table.shape[1])]
    assert aggregate(table).tolist() == [sum(other > key for other in keys) for key in keys]


@pytest.mark.parametrize(
    ("scores", "order"),
    [
        ([[9, 5, 5, 0, 0], [1, 7, 3, 0, 2]], [2, 4, 3, 0, 1]),  # median ranks 2.5, 1.75, 2.25, 4.75, 3.75
        ([[3, 2, 1], [3, 2, 1], [0, 2, 1]], [2, 1, 0]),  # the median of three forgives one vocabulary
        ([[3, 2, 1, 0], [2, 3, 1, 0], [2, 3, 1, 0], [0, 1, 2, 3], [3, 0, 1, 2]], [3, 2, 1, 0]),  # equal medians: by mean rank
        ([[9, 1, 0], [4, 5, 0]], [2, 1, 0]),  # equal mean ranks: by the sum
        ([[5, 4, 0], [4, 5, 0]], [1, 1, 0]),
    ],
)
def test_by_hand(scores: list[list[int]], order: list[int]) -> None:
    assert aggregate(scores).tolist() == order


@given(tables)
def test_one_vocabulary_ranks_as_it_scores(table: np.ndarray) -> None:
    scores = table[0]
    assert aggregate(table[:1]).tolist() == [int((scores < score).sum()) for score in scores]


@given(tables)
def test_what_changes_nothing(table: np.ndarray) -> None:
    growing = np.exp(table.astype(float)) + np.arange(len(table))[:, None]  # any growing function, one per vocabulary
    assert len(table) > 1 or np.array_equal(aggregate(growing), aggregate(table))
    shuffle = np.random.default_rng(len(table)).permutation
    vocabularies, images = shuffle(len(table)), shuffle(table.shape[1])
    uneven = table / 10  # sums of these round
    assert np.array_equal(aggregate(uneven[vocabularies]), aggregate(uneven))
    assert np.array_equal(aggregate(table[:, images]), aggregate(table)[images])


def test_nothing_and_inputs() -> None:
    assert aggregate(np.empty((3, 0))).shape == (0,)
    frozen = np.array([[1.0, 0.0], [np.inf, 2.0]])
    frozen.setflags(write=False)
    assert aggregate(frozen).tolist() == [1, 0]
    for wrong in ([1, 2, 3], np.empty((0, 3))):
        with pytest.raises(OptionError, match="at least one vocabulary"):
            aggregate(wrong)
    with pytest.raises(OptionError, match="NaN"):
        aggregate([[1, np.nan]])
