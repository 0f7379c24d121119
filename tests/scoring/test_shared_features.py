"""Features that several lists of a query feature share, with up to five vocabularies: scores are those of the oracle."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine, LocalShards
from random_collections import plain
from reference import score_words

N_IMAGES, DELETED = 60, [3, 17]


def collection(n_vocabularies: int) -> tuple[list[np.ndarray], tuple[int, ...], np.ndarray]:
    """Return images, sizes, query words: lists of more than one block, several query features in each, some without words."""
    rng = np.random.default_rng(n_vocabularies)
    sizes = (3, 4, 5, 3, 4)[:n_vocabularies]
    images = [rng.integers(0, sizes, (rng.integers(0, 20), n_vocabularies)) for _ in range(N_IMAGES)]
    words = np.concatenate([rng.integers(-1, sizes, (12, n_vocabularies)), images[5][:4], images[5][:2]])
    return images, sizes, words


def scores(engine: Engine, words: np.ndarray, options: SearchOptions) -> np.ndarray:
    plan = engine.plan(options)
    return np.concatenate(engine.scores(engine.query(words, None, plan), plan))


@pytest.mark.parametrize("merge", ["b2", "bayes", "posterior"])
@pytest.mark.parametrize("n_vocabularies", [2, 3, 4, 5])
def test_scores_are_those_of_the_oracle(n_vocabularies: int, merge: str) -> None:
    images, sizes, words = collection(n_vocabularies)
    options = plain(merge=merge, sets="feature", idf="none")
    whole = Engine.from_words(images, sizes)
    found = scores(whole, words, options)
    assert found.any() and np.allclose(found, score_words(images, sizes, words, options), rtol=1e-5, atol=1e-6)
    for segment_images in (7, 30):
        assert np.array_equal(scores(Engine.from_words(images, sizes, segment_images=segment_images), words, options), found)
    rest = [np.empty((0, n_vocabularies), int) if i in DELETED else image for i, image in enumerate(images)]
    partly = scores(Engine([whole.segments[0].without(DELETED)], sizes), words, options)
    rebuilt = scores(Engine.from_words([rest[i] for i in range(N_IMAGES) if i not in DELETED], sizes), words, options)
    assert np.array_equal(np.delete(partly, DELETED), rebuilt)


@pytest.mark.parametrize("n_vocabularies", [2, 3])
def test_what_phase_one_found_is_not_kept(n_vocabularies: int) -> None:
    """It is taken by phase 2, and without one dropped with the query; another search of the same query finds it again."""
    images, sizes, words = collection(n_vocabularies)
    engine = Engine.from_words(images, sizes)
    assert isinstance(engine.shards, LocalShards)
    kept = engine.shards.held[0]._features
    plan = engine.plan(plain(sets="feature", idf="none"))
    query = engine.query(words, None, plan)
    first, second = engine.scores(query, plan)[0], engine.scores(query, plan)[0]
    assert np.array_equal(first, second) and not kept
    engine.counts(query, plan)
    assert len(kept) == 1
    del query
    gc.collect()
    assert not kept
