"""Idf and norms, computed by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest

from polyvoc.index.segment import Batch, Segment
from polyvoc.index.statistics import Statistics, norms
from polyvoc.options import Idf, Norm, ScoringOptions

STATISTICS = Statistics(10, (4,), np.array([0, 2, 5, 40]), np.array([0, 1, 5, 10]), np.array([5, 0, 11]))


@pytest.mark.parametrize(
    "idf, expected",
    [
        ("average", [0, np.log(5) ** 2, np.log(2) ** 2, 0]),  # 40 occurrences in 10 images: cut at 0, not squared
        ("plain", [0, np.log(10) ** 2, np.log(2) ** 2, 0]),
        ("none", [0, 1, 1, 1]),
    ],
)
def test_idf(idf: str, expected: list[float]) -> None:
    assert STATISTICS.idf_squared[idf].tolist() == pytest.approx(expected)  # type: ignore[index]


def test_idf_of_fine_words() -> None:
    assert STATISTICS.code_idf_squared.tolist() == pytest.approx([np.log(2) ** 2, 0, 0])


@pytest.mark.parametrize("idf", ["average", "plain", "none"])
def test_power_of_the_idf(idf: Idf) -> None:
    squares = STATISTICS.idf_squared[idf]
    assert STATISTICS.word_weights(idf, 2).tolist() == squares.tolist()
    assert STATISTICS.word_weights(idf, 1).tolist() == pytest.approx([math.sqrt(square) for square in squares])


def test_idf_once_is_the_logarithm() -> None:
    assert STATISTICS.word_weights("average", 1).tolist() == pytest.approx([0, math.log(5), math.log(2), 0])
    assert STATISTICS.word_weights("plain", 1).tolist() == pytest.approx([0, math.log(10), math.log(2), 0])


def test_statistics_of_parts_add_up() -> None:
    both = STATISTICS + STATISTICS
    assert both.n_images == 20 and both.occurrences.tolist() == [0, 4, 10, 80] and both.documents.tolist() == [0, 2, 10, 20]
    assert both.idf_squared["plain"].tolist() == STATISTICS.idf_squared["plain"].tolist()
    assert both.code_occurrences.tolist() == [10, 0, 22]
    for whole in (STATISTICS + Statistics.of_segments([], (4,)), Statistics.of_segments([], (4,)) + STATISTICS):
        assert whole.n_images == 10 and whole.code_occurrences.tolist() == [5, 0, 11]  # a machine may hold no segment


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, np.sqrt(9 + 4 + 1)),  # word 0 three times; in vocabulary 1 word 1 twice, word 2 once
        ({"merge": "b0"}, 3),
        ({"norm": "tf"}, np.sqrt(9 + 4 + 1)),
        ({"norm": "sqrt-tf"}, np.sqrt(6)),
        ({"norm": "features"}, np.sqrt(6)),
        ({"norm": "features", "merge": "b0"}, np.sqrt(3)),
        ({"norm": "features", "vocabularies": 1}, np.sqrt(3)),
        ({"norm": "distinct"}, np.sqrt(1 + 2)),
        ({"norm": "distinct", "merge": "b0"}, 1),
        ({"norm": "distinct", "vocabularies": 1}, 1),
        ({"vocabularies": 1}, 3),
        ({"vocabularies": 2}, np.sqrt(9 + 4 + 1)),
    ],
)
def test_norm_counts_repeated_words_squared(options: dict[str, Any], expected: float) -> None:
    segment = Segment.build(Batch.of_words([np.array([[0, 1], [0, 2], [0, 1]]), np.empty((0, 2), int)], 2), (3, 3))
    statistics, key = Statistics.of_segments([segment], (3, 3)), ScoringOptions(idf="none", **options).norm_key(2)
    assert norms(segment, statistics, key).tolist() == pytest.approx([expected, 0])


def test_norm_none_is_1_for_all() -> None:
    segment = Segment.build(Batch.of_words([np.array([[0]]), np.empty((0, 1), int)], 1), (3,))
    key = ScoringOptions(norm="none").norm_key(1)
    assert norms(segment, Statistics.of_segments([segment], (3,)), key).tolist() == [1, 1]


@pytest.mark.parametrize("vocabularies", [1, 2, 3])
@pytest.mark.parametrize("idf", get_args(Idf))
@pytest.mark.parametrize("norm", [norm for norm in get_args(Norm) if norm != "none"])
def test_norms_equal_a_direct_sum(norm: Norm, idf: Idf, vocabularies: int) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 6, size=(rng.integers(0, 30), 3)) for _ in range(20)]
    sizes = (6, 6, 6)
    segments = [Segment.build(Batch.of_words(images[i : i + 7], 3, first_id=i), sizes) for i in range(0, 20, 7)]
    statistics = Statistics.of_segments(segments, sizes)
    squares = statistics.idf_squared["none" if norm in ("tf", "features") else idf].reshape(3, 6)
    power = {"tfidf": 2, "tf": 2, "sqrt-tf": 1, "features": 1, "distinct": 0}[norm]  # of the term frequency
    direct = []
    for words in images:
        sums = [squares[k][word] * times**power for k in range(vocabularies) for word, times in Counter(words[:, k]).items()]
        direct.append(math.sqrt(sum(sums)))
    options = ScoringOptions(norm=norm, idf=idf, vocabularies=vocabularies)
    values = [norms(segment, statistics, options.norm_key(3)) for segment in segments]
    assert np.concatenate(values).tolist() == pytest.approx(direct)
