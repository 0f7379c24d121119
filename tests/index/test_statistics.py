"""Idf and norms, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.index.segment import Batch, Segment
from polyvoc.index.statistics import Statistics, norms
from polyvoc.options import ScoringOptions

STATISTICS = Statistics(10, (4,), np.array([0, 2, 5, 40]), np.array([0, 1, 5, 10]))


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


def test_statistics_of_parts_add_up() -> None:
    both = STATISTICS + STATISTICS
    assert both.n_images == 20 and both.occurrences.tolist() == [0, 4, 10, 80] and both.documents.tolist() == [0, 2, 10, 20]
    assert both.idf_squared["plain"].tolist() == STATISTICS.idf_squared["plain"].tolist()


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, np.sqrt(9 + 4 + 1)),  # word 0 three times; in vocabulary 1 word 1 twice, word 2 once
        ({"merge": "b0"}, 3),
        ({"norm": "tf"}, np.sqrt(9 + 4 + 1)),
        ({"norm": "sqrt-tf"}, np.sqrt(6)),
        ({"norm": "features"}, np.sqrt(6)),
        ({"norm": "features", "merge": "b0"}, np.sqrt(3)),
    ],
)
def test_norm_counts_repeated_words_squared(options: dict[str, str], expected: float) -> None:
    segment = Segment.build(Batch.of_words([np.array([[0, 1], [0, 2], [0, 1]]), np.empty((0, 2), int)], 2), (3, 3))
    statistics, key = Statistics.of_segments([segment], (3, 3)), ScoringOptions(idf="none", **options).norm_key(2)  # type: ignore[arg-type]
    assert norms(segment, statistics, key).tolist() == pytest.approx([expected, 0])


def test_norm_none_is_1_for_all() -> None:
    segment = Segment.build(Batch.of_words([np.array([[0]]), np.empty((0, 1), int)], 1), (3,))
    key = ScoringOptions(norm="none").norm_key(1)
    assert norms(segment, Statistics.of_segments([segment], (3,)), key).tolist() == [1, 1]


def test_norms_equal_a_direct_sum() -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 6, size=(rng.integers(0, 30), 3)) for _ in range(20)]
    sizes = (6, 6, 6)
    segments = [Segment.build(Batch.of_words(images[i : i + 7], 3, first_id=i), sizes) for i in range(0, 20, 7)]
    statistics = Statistics.of_segments(segments, sizes)
    squares = statistics.idf_squared["average"].reshape(3, 6)
    direct = [
        np.sqrt(sum((np.bincount(words[:, k], minlength=6) ** 2 * squares[k]).sum() for k in range(3))) for words in images
    ]
    values = [norms(segment, statistics, ScoringOptions().norm_key(3)) for segment in segments]
    assert np.concatenate(values).tolist() == pytest.approx(direct)
