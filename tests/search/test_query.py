"""Queries: what they compare; and query expansion: what verified hits add, and which of them may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coded_scenes import CodedPicture, coded_again, coded_engine, coded_joined, coded_picture, coder_of
from polyvoc.errors import OptionError
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, SearchOptions, preset
from polyvoc.scoring.segments import Candidate
from polyvoc.search.pipeline import COPY_SHARE, SURE, score_all, search
from polyvoc.search.probability import HitProbability
from polyvoc.search.query import MARGIN, expand, query_of_image
from polyvoc.types import strictly_inside
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


def test_only_hits_that_are_nearly_certain_add_their_features() -> None:
    query, pictures = bridge(64)
    engine = engine_of(pictures)
    sure, unsure = HitProbability((-2.0, 1.0), (5.0, 0.0, 0.0)), HitProbability((-2.0, 1.0), (2.0, 0.0, 0.0))
    assert 1 / (1 + np.exp(-2.0)) < SURE < 1 / (1 + np.exp(-5.0))
    for most in (1, 5):
        options = options_for(64, expand=most)
        without = search(engine, query.query, replace(options, expand=0), unsure)
        assert plain(search(engine, query.query, options, unsure)) == plain(without)
        assert TARGET not in {one.image for one in without}
        found_sure = search(engine, query.query, options, sure)
        assert {one.image for one in found_sure} >= {BRIDGE, TARGET}
        scores = score_all(engine, query.query, options, probability=sure)[0]
        assert all(scores[one.image] == np.float32(one.score) for one in found_sure)
        assert np.array_equal(
            score_all(engine, query.query, options, probability=unsure)[0],
            score_all(engine, query.query, replace(options, expand=0))[0],
        )


def test_the_hits_of_an_expanded_query_are_rated_by_it_but_for_those_that_it_was_made_of() -> None:
    rng = np.random.default_rng(8)
    query, pictures = bridge(64)
    pictures += [apart(rng, 30, 64, 0) for _ in range(30)]  # noise
    engine, model = engine_of(pictures), HitProbability((-2.0, 1.0), (4.0, 1.0, 1.0))
    options = options_for(64)
    alone = {one.image: one for one in search(engine, query.query, replace(options, expand=0), model)}
    hits = {one.image: one for one in search(engine, query.query, options, model)}
    assert hits[BRIDGE].noise_rank == alone[BRIDGE].noise_rank and hits[BRIDGE].probability == alone[BRIDGE].probability
    assert TARGET not in alone and hits[TARGET].noise_rank is not None


def plain(candidates: Sequence[Candidate]) -> list[tuple[int, float, float | None]]:
    return [(one.image, one.score, one.probability) for one in candidates]


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
    expanded = expand(query.query, [(stored, np.eye(3)[:2])], options_for(bits), None)
    assert expanded.codes is None and np.array_equal(expanded.words, np.concatenate([query.words, hit.words]))
    if query.signatures is None or hit.signatures is None:
        assert expanded.signatures is None
    else:
        both = np.concatenate([query.signatures, hit.signatures])
        assert expanded.signatures is not None and np.array_equal(expanded.signatures.reshape(both.shape), both)
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


# -- codes: stored images, expansion


def test_a_stored_image_finds_itself_first_and_its_near_copy_second() -> None:
    rng = np.random.default_rng(41)
    images = [coded_picture(rng, 50) for _ in range(20)]
    images += [coded_joined(coded_again(rng, one), coded_picture(rng, 5)) for one in images[:10]]
    engine = coded_engine(images, 7)
    for verify in (0, 20):
        options = SearchOptions(verify=verify, top=3)
        for number in range(10):
            (stored,) = engine.image_features([(number // 7, number % 7)])
            query = query_of_image(stored, options, coder_of())
            assert query.words is None and query.signatures is None and len(query) == 50
            hits = search(engine, query, options)
            assert [hit.image for hit in hits[:2]] == [number, number + 20]
            if verify:
                assert hits[0].inliers > hits[1].inliers > 20


def test_a_stored_query_has_what_a_search_compares() -> None:
    rng = np.random.default_rng(42)
    shown = coded_picture(rng, 30)
    stored = coded_engine([shown]).segments[0].image_features(0)
    coder, by_codes = coder_of(), SearchOptions(verify=0)
    by_words = SearchOptions(merge="posterior", burstiness="none", verify=0)
    found = query_of_image(stored, by_codes, coder, (640, 480))
    assert found.words is None and found.codes is not None and found.codes.words.shape == (30, CODE_ASSIGNMENTS)
    assert found.region == (0, 0, 640, 480) and found.keypoints is not None
    assert np.array_equal(found.keypoints.xy, stored.keypoints.xy)
    three = query_of_image(stored, replace(by_codes, assignments=3), coder).codes
    assert three is not None and np.array_equal(three.words, found.codes.words[:, :3])
    # As with its descriptors, but for what codes do not keep of them.
    exact = shown.coded()
    assert np.mean(found.codes.words[:, 0] == exact.words[:, 0]) > 0.5
    assert np.mean((found.codes.words == exact.words[:, :1]).any(axis=1)) > 0.9
    alone = query_of_image(stored, by_words, coder)
    assert alone.codes is None and np.array_equal(alone.words, stored.words) and alone.signatures is None
    both = query_of_image(stored, replace(by_words, verify=5), coder)
    assert both.words is not None and both.codes is not None
    assert np.array_equal(both.codes.words, found.codes.words)  # geometry compares as many words as the default search
    assert query_of_image(stored, replace(by_words, verify=5), None).codes is None


def test_a_region_of_a_stored_image_has_the_codes_inside() -> None:
    shown = coded_picture(np.random.default_rng(43), 40)
    stored = coded_engine([shown]).segments[0].image_features(0)
    region = (0.2 * SIDE, 0.1 * SIDE, 0.9 * SIDE, 0.7 * SIDE)
    options, size = SearchOptions(), (int(SIDE), int(SIDE))
    whole, part = (query_of_image(stored, options, coder_of(), size, one) for one in (None, region))
    inside = strictly_inside(stored.keypoints.xy, region)
    assert 0 < inside.sum() == len(part) < len(whole) and part.region == region
    assert whole.codes is not None and part.codes is not None and part.keypoints is not None
    assert np.array_equal(part.keypoints.xy, stored.keypoints.xy[inside])
    for name in ("words", "ratios", "totals"):
        np.testing.assert_allclose(getattr(part.codes, name), getattr(whole.codes, name)[inside], rtol=1e-3)
    with pytest.raises(OptionError, match="holds no feature"):
        query_of_image(stored, options, coder_of(), size, (0.0, 0.0, 1e-3, 1e-3))


def test_codes_of_hits_are_added_to_a_query() -> None:
    rng = np.random.default_rng(44)
    shown, hit, other = coded_picture(rng, 20), coded_picture(rng, 30), coded_picture(rng, 10)
    stored = [coded_engine([one]).segments[0].image_features(0) for one in (hit, other)]
    to = np.array([[1.0, 0.0, 30.0], [0.0, 1.0, -20.0]])
    far = to + np.array([[0, 0, 10 * SIDE]] * 2)  # nothing of this one lies where the query is
    query, options = shown.query, SearchOptions(assignments=4)
    query = replace(query, codes=shown.coded(4))
    expanded = expand(query, [(stored[0], to), (stored[1], far)], options, coder_of())
    assert expanded.words is None and expanded.keypoints is None and expanded.codes is not None and query.codes is not None
    low, high = shown.shown.xy.min(axis=0), shown.shown.xy.max(axis=0)
    slack = MARGIN * (high - low)
    at = stored[0].keypoints.xy - to[:, 2]
    kept = ((at >= low - slack) & (at <= high + slack)).all(axis=1)
    assert stored[0].codes is not None and 0 < kept.sum() <= 30
    added = coder_of().query_stored(stored[0].codes.chosen(kept), 4, CODE_CUT)
    assert len(expanded) == 20 + kept.sum()
    for name in ("words", "ratios", "codes", "totals"):
        mine, own, more = (getattr(one, name) for one in (expanded.codes, query.codes, added))
        np.testing.assert_allclose(mine, np.concatenate([own, more]), rtol=1e-6)
    assert len(expanded.codes.magnitudes) == expanded.codes.words.size


def coded_bridge(seed: int, shift: float = 0.0) -> tuple[CodedPicture, list[CodedPicture]]:
    """Return what `bridge` returns, as descriptors, among other images."""
    rng = np.random.default_rng([45, seed])
    query, rest = coded_picture(rng, 40), coded_picture(rng, 40)
    rest = replace(rest, shown=replace(rest.shown, xy=rest.shown.xy + shift * SIDE))
    both = coded_joined(coded_again(rng, coded_joined(query.chosen(slice(0, 28)), rest)), coded_picture(rng, 10))
    target = coded_joined(coded_again(rng, rest), coded_picture(rng, 10))
    return query, [coded_picture(rng, 30), both, target, *(coded_picture(rng, 30) for _ in range(15))]


def test_an_image_is_found_by_codes_through_a_verified_hit() -> None:
    for seed in range(4):
        query, pictures = coded_bridge(seed)
        engine = coded_engine(pictures, 5)
        options = SearchOptions(top=50)
        alone = {one.image: one.score for one in search(engine, query.query, options)}
        hits = search(engine, query.query, replace(options, expand=5), coder=coder_of())
        assert [hit.image for hit in hits[:2]] in ([BRIDGE, TARGET], [TARGET, BRIDGE])
        assert alone.get(TARGET, 0.0) < 0.2 * alone[BRIDGE]


def test_codes_outside_of_the_query_are_not_added() -> None:
    for shift, added in ((0.0, True), (2.5, False)):
        query, pictures = coded_bridge(1, shift)
        engine = coded_engine(pictures)
        before, after = (
            np.concatenate(score_all(engine, query.query, SearchOptions(expand=expand), coder=coder_of())) for expand in (0, 5)
        )
        assert (after[TARGET] > 3 * max(before[TARGET], 1e-3)) == added


def test_words_are_expanded_by_words_where_there_are_codes() -> None:
    query, pictures = coded_bridge(2)
    engine = coded_engine(pictures)
    options = SearchOptions(merge="posterior", burstiness="none", expand=5, top=50)
    hits = search(engine, query.query, options)  # verified by codes
    assert hits[0].image in (BRIDGE, TARGET) and {BRIDGE, TARGET} <= {hit.image for hit in hits[:4]}
    assert max(hit.inliers for hit in hits) > 15
