"""Queries that do not fit raise; how words are given makes no difference."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from random_collections import plain

OPTIONS = plain(merge="b1", idf="none", norm="none")
ONE = np.zeros((1, 1), int)
SIGNATURE = np.zeros((1, 1), np.uint64)


def engine(*images: list[int], signed: bool = False) -> Engine:
    words = [np.array(image).reshape(-1, 1) for image in images]
    return Engine.from_words(words, (10,), [np.zeros(rows.shape, np.uint64) for rows in words] if signed else None)


@pytest.mark.parametrize(
    "words, signatures, options, message",
    [
        (np.zeros((1, 2), int), None, OPTIONS, "should be integers"),
        (np.zeros((1, 1)), None, OPTIONS, "should be integers"),
        (np.full((1, 1), 10), None, OPTIONS, "outside"),
        (np.full((1, 1), -2), None, OPTIONS, "outside"),
        (ONE, None, plain(hamming=20), "hamming=20 needs the signatures of the query"),
        (ONE, None, plain(merge="likelihood"), "merge='likelihood' needs the signatures of the query"),
        (ONE, np.zeros((2, 1), np.uint64), OPTIONS, "should have the shape of the words"),
        (ONE, np.zeros((1, 1, 2), np.uint64), plain(hamming=20), "signatures of 128 bits, the index of 64"),
    ],
)
def test_a_query_that_does_not_fit_raises(
    words: np.ndarray, signatures: np.ndarray | None, options: SearchOptions, message: str
) -> None:
    made = engine([1], signed=True)
    with pytest.raises(OptionError, match=message):
        made.query(words, signatures, made.plan(options))


def test_too_many_assignments_raise() -> None:
    made = Engine.from_words([np.zeros((1, 2), int)], (4, 4))
    with pytest.raises(OptionError, match="1024 assignments with 2 vocabularies are too many; lower assignments"):
        made.query(np.zeros((1, 2, 1024), int), None, made.plan(OPTIONS))


@pytest.mark.parametrize("options", [plain(hamming=20), plain(merge="likelihood")])
def test_signatures_that_the_index_lacks_raise(options: SearchOptions) -> None:
    made = engine([1])
    with pytest.raises(OptionError, match="needs an index with signatures; this one has none"):
        made.query(ONE, SIGNATURE, made.plan(options))


def test_a_word_given_twice_counts_once() -> None:
    made = Engine.from_words([np.array([[1, 2], [3, 0]]), np.array([[1, 0]])], (4, 4))
    plan = made.plan(plain(merge="bayes", assignments=2, burstiness="intra", idf="none"))
    twice = made.query(np.array([[[1, 1], [2, 2]]] * 50), None, plan)
    once = made.query(np.array([[[1, -1], [2, -1]]] * 50), None, plan)
    assert np.array_equal(made.scores(twice, plan)[0], made.scores(once, plan)[0])


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16])
def test_words_of_any_integer_type(kind: type) -> None:
    """Words of a segment are unsigned, and have no room for -1."""
    made = engine([5], [1, 5])
    plan = made.plan(OPTIONS)
    (scores,) = made.scores(made.query(np.array([[5], [1]], kind), None, plan), plan)
    assert scores.tolist() == [1, 2]
