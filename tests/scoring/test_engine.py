"""Rankings of the engine: ties, deletions, single images, collections that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import norms_of
from random_collections import plain

OPTIONS = plain(merge="b1", idf="none", norm="none")


def engine(images: list[list[int]], segment_images: int = 2) -> Engine:
    return Engine.from_words([np.array(image).reshape(-1, 1) for image in images], (10,), segment_images=segment_images)


def ranking(of: Engine, words: list[int], depth: int = 10) -> list[int]:
    plan = of.plan(OPTIONS)
    query = of.query(np.array(words).reshape(-1, 1), None, plan)
    best, _ = of.best(query, plan, depth)
    assert [one.image for one in of.rank(of.scores(query, plan), of.images(), depth)] == [one.image for one in best]
    return [one.image for one in best]


@pytest.mark.parametrize("segment_images", [1, 2, 5])
def test_ties_are_broken_by_image(segment_images: int) -> None:
    made = engine([[5], [1], [5, 5], [1], [1]], segment_images)
    assert ranking(made, [1, 5]) == [2, 0, 1, 3, 4]
    assert ranking(made, [1, 5], depth=2) == [2, 0]


def test_requested_images_come_with_their_scores() -> None:
    made = engine([[5], [1], [5, 5], []])
    plan = made.plan(OPTIONS)
    best, requested = made.best(made.query(np.array([[5]]), None, plan), plan, 1, requested=[(0, 0), (1, 1)])
    assert [(one.image, one.ref, one.score) for one in best] == [(2, (1, 0), 2)]
    assert [(one.image, one.ref, one.score) for one in requested] == [(0, (0, 0), 1), (3, (1, 1), 0)]


def test_images_without_a_vote_are_not_ranked() -> None:
    assert ranking(engine([[1], [2], []]), [2]) == [1]
    assert ranking(engine([]), [2]) == []


def test_deleted_images_do_not_count() -> None:
    images = [[1, 2], [1], [1, 1], [3]]
    partly = Engine([engine(images, 4).segments[0].without([1, 2])], (10,))
    rebuilt = engine([images[0], images[3]], 4)
    assert partly.statistics.n_images == 2
    assert np.array_equal(partly.statistics.occurrences, rebuilt.statistics.occurrences)
    assert np.array_equal(partly.statistics.documents, rebuilt.statistics.documents)
    assert ranking(partly, [1, 3]) == [0, 3]


def test_single_images_are_found_and_read() -> None:
    made = engine([[5], [1, 2], []])
    assert [made.find(image) for image in (0, 1, 2, 3)] == [(0, 0), (0, 1), (1, 0), None]
    assert [stored.words.ravel().tolist() for stored in made.image_features([(1, 0), (0, 1)])] == [[], [1, 2]]
    assert Engine([made.segments[0].without([1])], (10,)).find(1) is None


def test_long_images_have_right_norms() -> None:
    made = Engine.from_words([np.zeros((70_000, 1), int)], (1,))
    assert made.shards.each(norms_of, made.plan(plain(idf="none")).norm)[0].tolist() == [70_000]


@pytest.mark.parametrize(
    "images, changes, message",
    [
        ([], {"sizes": (5,) * 10}, "10 vocabularies; at most 9"),
        ([np.array([[0]])], {"sizes": ()}, r"integers \[n, 0\] are expected"),
        ([np.array([[10]])], {}, "words of vocabulary 0 should be 0 to 9"),
        ([np.array([[-1]])], {}, "words of vocabulary 0 should be 0 to 9"),
        ([np.array([[0.5]])], {}, "integers"),
        ([np.array([[2**40]])], {}, "larger than any vocabulary"),
        ([np.zeros((2, 3), int)], {}, "integers"),
        ([np.zeros((1, 1), int)], {"signatures": []}, "1 images but signatures of 0"),
        ([], {"segment_images": 0}, "segment_images=0 should be at least 1"),
    ],
)
def test_a_collection_that_does_not_fit_raises(images: list[np.ndarray], changes: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Engine.from_words(images, **{"sizes": (10,), **changes})  # type: ignore[arg-type]
