"""Idf, closeness and norms, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.index.statistics import Statistics, idf_squared
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.rules import hamming_weights
from random_collections import plain

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
    assert idf_squared(STATISTICS, idf).tolist() == pytest.approx(expected)  # type: ignore[arg-type]


def test_closeness_ends_at_the_threshold() -> None:
    table = hamming_weights(plain(hamming=24, sigma=16), 64)
    assert table[0] == 1
    assert table[16] == pytest.approx(np.exp(-1))
    assert table[24] == pytest.approx(np.exp(-2.25))
    assert not table[25:].any()
    assert hamming_weights(plain(), 64).tolist() == [1.0] * 65


def test_norm_counts_repeated_words_squared() -> None:
    words = np.array([[0, 1], [0, 2], [0, 1]])  # word 0 three times; in vocabulary 1 word 1 twice, word 2 once
    engine = Engine.from_words([words, np.empty((0, 2), int)], (3, 3))
    options = plain(idf="none")
    assert engine.norms(options)[0].tolist() == pytest.approx([np.sqrt(9 + 4 + 1), 0])
    first_only = plain(idf="none", merge="b0")
    assert engine.norms(first_only)[0].tolist() == pytest.approx([3, 0])


def test_norms_equal_a_direct_sum() -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 6, size=(rng.integers(0, 30), 3)) for _ in range(20)]
    engine = Engine.from_words(images, (6, 6, 6), segment_images=7)
    squares = idf_squared(engine.statistics, "average").reshape(3, 6)
    direct = [
        np.sqrt(sum((np.bincount(words[:, k], minlength=6) ** 2 * squares[k]).sum() for k in range(3))) for words in images
    ]
    assert np.concatenate(engine.norms(plain())).tolist() == pytest.approx(direct)
