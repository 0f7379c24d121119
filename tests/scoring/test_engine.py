"""Rankings of the engine: ties, deletions, bad queries."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from random_collections import plain

OPTIONS = plain(merge="b1", idf="none", norm="none")


def engine(images: list[list[int]], segment_images: int = 2) -> Engine:
    return Engine.from_words([np.array(image).reshape(-1, 1) for image in images], (10,), segment_images=segment_images)


def ranking(of: Engine, words: list[int], options: SearchOptions = OPTIONS) -> list[int]:
    query = of.query(np.array(words).reshape(-1, 1), None, options)
    return [one.image for one in of.best(query, options)[0]]


def test_ties_are_broken_by_image() -> None:
    images = [[5], [1], [5, 5], [1], [1]]
    for segment_images in (1, 2, 5):
        assert ranking(engine(images, segment_images), [1, 5]) == [2, 0, 1, 3, 4]
        assert ranking(engine(images, segment_images), [1, 5], plain(merge="b1", idf="none", norm="none", top=2)) == [
            2,
            0,
        ]


def test_images_without_a_vote_are_no_hits() -> None:
    assert ranking(engine([[1], [2], []]), [2]) == [1]
    assert ranking(engine([]), [2]) == []


def test_deleted_images_do_not_count() -> None:
    images = [[1, 2], [1], [1, 1], [3]]
    whole = engine(images, 4)
    partly = Engine([whole.segments[0].without([1, 2])], (10,))
    rebuilt = engine([images[0], images[3]], 4)
    assert partly.statistics.n_images == 2
    assert np.array_equal(partly.statistics.occurrences, rebuilt.statistics.occurrences)
    assert np.array_equal(partly.statistics.documents, rebuilt.statistics.documents)
    assert ranking(partly, [1, 3]) == [0, 3]


@pytest.mark.parametrize(
    "words, options, message",
    [
        (np.zeros((1, 2), int), OPTIONS, "should be integers"),
        (np.full((1, 1), 10), OPTIONS, "outside"),
        (np.full((1, 1), -2), OPTIONS, "outside"),
        (np.zeros((1, 1), int), plain(hamming=20), "signatures"),
    ],
)
def test_queries_that_do_not_fit_are_refused(words: np.ndarray, options: SearchOptions, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        engine([[1]]).query(words, None, options)


def test_collections_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OptionError, match="vocabular"):
        Engine.from_words([], (5,) * 10)
    with pytest.raises(OptionError, match="vocabulary 0 has 10 words"):
        engine([[10]])
    with pytest.raises(OptionError, match="signatures"):
        Engine.from_words([np.zeros((1, 1), int)], (10,), signatures=[])


def test_a_word_given_twice_counts_once() -> None:
    images = [np.array([[1, 2], [3, 0]]), np.array([[1, 0]])]
    of = Engine.from_words(images, (4, 4))
    options = plain(merge="bayes", assignments=2, burstiness="intra", idf="none")
    twice = of.query(np.array([[[1, 1], [2, 2]]] * 50), None, options)
    once = of.query(np.array([[[1, -1], [2, -1]]] * 50), None, options)
    assert np.array_equal(of.scores(twice, options)[0], of.scores(once, options)[0])


def test_unsigned_words_ask_as_well() -> None:
    """Words of a segment are unsigned, and have no room for -1."""
    made = engine([[5], [1, 5]])
    for words in (np.array([[5], [1]]), np.array([[5], [1]], np.uint16)):
        (scores,) = made.scores(made.query(words, None, OPTIONS), OPTIONS)
        assert scores.tolist() == [1, 2]


def test_long_images_have_right_norms() -> None:
    of = Engine.from_words([np.zeros((70_000, 1), int)], (1,))
    assert of.norms(plain(idf="none"))[0].tolist() == [70_000]


@pytest.mark.parametrize("image", [np.array([[0.5]]), np.array([[2**40]]), np.zeros((2, 3), int), np.array([[-1]])])
def test_images_that_do_not_fit_are_refused(image: np.ndarray) -> None:
    with pytest.raises(OptionError):
        Engine.from_words([image], (10,))
