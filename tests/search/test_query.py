"""Queries: what they compare; and query expansion: what verified hits add, and which of them may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.options import SearchOptions, preset
from polyvoc.search.pipeline import COPY_SHARE, score_all, search
from polyvoc.search.query import expand
from scenes import SIDE, Picture, engine_of, joined, picture, scrambled, seen_again

BRIDGE, TARGET = 1, 2  # of a collection: shares something with the query; shares something with the bridge only


def options_for(bits: int, **changes: Any) -> SearchOptions:
    return replace(preset("best", bits), top=50, **changes)


def found(pictures: list[Picture], query: Picture, options: SearchOptions) -> list[int]:
    return [one.image for one in search(engine_of(pictures, 2), query.query, options)]


def apart(rng: np.random.Generator, count: int, bits: int, shift: int) -> Picture:
    """Return a picture of words that pictures of another shift (0 to 3) do not have."""
    drawn = picture(rng, count, bits)
    return replace(drawn, words=drawn.words % 100 + 100 * shift)


# -- query expansion


def bridge(bits: int, seed: int = 0, shift: float = 0.0) -> tuple[Picture, list[Picture]]:
    """Return a query; and images: something else; most of the query with what the query lacks; that alone.

    shift: how far outside of the query lies what it lacks, in sides of a picture.
    """
    rng = np.random.default_rng([12, seed])
    query, rest = apart(rng, 30, bits, 0), apart(rng, 30, bits, 1)
    rest = replace(rest, xy=rest.xy + shift * SIDE)
    both = joined(seen_again(rng, joined(query.chosen(slice(0, 20)), rest)), apart(rng, 10, bits, 2))
    target = joined(seen_again(rng, rest, stray=0.0), apart(rng, 10, bits, 2))
    return query, [apart(rng, 30, bits, 3), both, target]


@pytest.mark.parametrize("bits", [0, 64, 128])
def test_an_image_without_shared_words_is_found_through_a_verified_hit(bits: int) -> None:
    for seed in range(4):
        query, pictures = bridge(bits, seed)
        alone = found(pictures, query, options_for(bits, expand=0))
        assert BRIDGE in alone and not set(alone) & {TARGET}
        assert found(pictures, query, options_for(bits))[:2] in ([BRIDGE, TARGET], [TARGET, BRIDGE])


def test_features_outside_of_the_query_are_not_added() -> None:
    for shift, added in ((0.0, True), (0.1, True), (2.0, False)):
        query, pictures = bridge(64, shift=shift)
        assert (TARGET in found(pictures, query, options_for(64))) == added


def test_a_copy_of_the_query_adds_nothing() -> None:
    """Not even what else it shows."""
    rng = np.random.default_rng(3)
    query, pictures = bridge(64, 1)
    rest = apart(rng, 20, 64, 1)
    pictures[BRIDGE] = joined(seen_again(rng, query, stray=0.0), rest)
    pictures[TARGET] = joined(seen_again(rng, rest, stray=0.0))
    engine = engine_of(pictures)
    alone = score_all(engine, query.query, options_for(64, expand=0))[0]
    hits = {one.image: one.inliers for one in search(engine, query.query, options_for(64, expand=0))}
    assert hits[BRIDGE] > COPY_SHARE * len(query)
    again = score_all(engine, query.query, options_for(64))[0]
    assert np.array_equal(again, alone) and again[TARGET] == 0


def test_a_hit_with_few_inliers_adds_nothing() -> None:
    rng = np.random.default_rng(4)
    for shared, added in ((3, False), (14, True)):
        query, pictures = bridge(64, 2)
        rest = apart(rng, 30, 64, 1)
        some = query.chosen(slice(0, shared))
        pictures[BRIDGE] = seen_again(rng, joined(some, rest), stray=0.0)
        pictures[TARGET] = seen_again(rng, rest, stray=0.0)
        assert (TARGET in found(pictures, query, options_for(64))) == added


def test_a_hit_without_a_transform_adds_nothing() -> None:
    query, pictures = bridge(64, 3)
    pictures[BRIDGE] = scrambled(np.random.default_rng(1), pictures[BRIDGE])
    assert TARGET not in found(pictures, query, options_for(64))


def test_the_best_verified_hits_come_first() -> None:
    rng = np.random.default_rng(6)
    query, first, second = (apart(rng, 30, 64, shift) for shift in range(3))
    pictures = [
        seen_again(rng, joined(query.chosen(slice(0, 12)), second), stray=0.0),
        seen_again(rng, joined(query.chosen(slice(8, 30)), first), stray=0.0),
        seen_again(rng, first, stray=0.0),
        seen_again(rng, second, stray=0.0),
    ]
    assert set(found(pictures, query, options_for(64, expand=1))) == {0, 1, 2}
    assert set(found(pictures, query, options_for(64, expand=2))) == {0, 1, 2, 3}


@pytest.mark.parametrize("bits", [0, 64, 128])
def test_features_are_added_as_they_are(bits: int) -> None:
    query = picture(np.random.default_rng(9), 12, bits)
    hit = replace(query, signatures=None if query.signatures is None else query.signatures ^ np.uint64(1))
    before = [array.copy() for array in (*query.arrays(), *hit.arrays())]
    stored = engine_of([hit]).segments[0].image_features(0)
    words, signatures = expand(query.query.image_features, [(stored, np.eye(3)[:2])])
    assert np.array_equal(words, np.concatenate([query.words, hit.words]))
    if query.signatures is None or hit.signatures is None:
        assert signatures is None
    else:
        both = np.concatenate([query.signatures, hit.signatures])
        assert signatures is not None and np.array_equal(signatures.reshape(both.shape), both)
    assert all(np.array_equal(old, new) for old, new in zip(before, (*query.arrays(), *hit.arrays()), strict=True))


# -- what geometry compares


def test_geometry_compares_the_nearest_words() -> None:
    known = picture(np.random.default_rng(1), 5).query
    assert known.signatures is not None
    several = replace(known, words=np.stack([known.words, known.words + 1], axis=2),
                      signatures=np.stack([known.signatures, known.signatures + np.uint64(1)], axis=2))  # fmt: skip
    for query in (known, several):
        assert np.array_equal(query.image_features.words, known.words)
        assert np.array_equal(query.image_features.signatures, known.signatures)
    assert replace(known, signatures=None).image_features.signatures.shape == (5, 0)


def test_geometry_needs_the_keypoints_of_every_feature() -> None:
    known = picture(np.random.default_rng(1), 5).query
    with pytest.raises(OptionError, match="verify needs the keypoints of the query"):
        _ = replace(known, keypoints=None).image_features
    with pytest.raises(OptionError, match="words of 4 features but 5 keypoints"):
        _ = replace(known, words=known.words[:4]).image_features
