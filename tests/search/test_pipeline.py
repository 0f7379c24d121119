"""A search with verification: what it raises, what it leaves alone, and what must not matter."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.index.segment import Segment
from polyvoc.options import SearchOptions
from polyvoc.options import preset as presets_preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.pipeline import score_all, search
from polyvoc.search.query import Query
from polyvoc.search.verify import Found
from polyvoc.types import Keypoints
from scenes import RIGHT, SIDE, SIZES, engine_of, world

SEEDS = range(6)


def options_for(bits: int, **changes: object) -> SearchOptions:
    return replace(presets_preset("default", bits), **{"top": 100, **changes})  # type: ignore[arg-type]


def told(engine: Engine, found: list[Found]) -> list[tuple[int, float, int, object]]:
    """Give hits as plain values, exactly: image, score, inliers, transform."""
    return [
        (engine.image_at(one.place), one.score, one.inliers, None if one.transform is None else one.transform.tolist())
        for one in found
    ]


def by_image(engine: Engine, asked: Query, options: SearchOptions) -> np.ndarray:
    scores, _ = score_all(engine, asked, options)
    return np.concatenate(scores)


# -- what it raises


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_image_with_the_arrangement_comes_first(seed: int, bits: int) -> None:
    query, images = world(seed, bits)
    engine = engine_of(images)
    scored = search(engine, query.asked, options_for(bits, verify=0))
    assert engine.image_at(scored[0].place) != RIGHT  # the words alone do not tell
    first = search(engine, query.asked, options_for(bits))[0]
    assert engine.image_at(first.place) == RIGHT
    assert first.inliers > 20
    assert first.transform is not None
    moved = query.xy @ first.transform[:, :2].T + first.transform[:, 2]
    assert np.abs(moved - images[RIGHT].xy[: len(query)]).max() < 0.03 * SIDE


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_score_is_lowered_and_none_raised_without_inliers(seed: int, bits: int) -> None:
    query, images = world(seed, bits)
    engine = engine_of(images, 7)
    before = by_image(engine, query.asked, options_for(bits, verify=0))
    scores, seen = score_all(engine, query.asked, options_for(bits))
    after = np.concatenate(scores)
    assert (after >= before).all()
    assert len(seen) == np.count_nonzero(before) > 20
    inliers = np.zeros(len(images), int)
    for place, found in seen.items():
        inliers[engine.image_at(place)] = found.inliers
        assert (found.transform is None) == (found.inliers == 0) == (found.weight == 0)
    nothing = inliers == 0
    assert np.array_equal(after[nothing], before[nothing])
    assert (after[~nothing] > before[~nothing]).all() and not nothing.all()


def test_no_verification_is_the_score_of_the_engine() -> None:
    for seed in SEEDS:
        query, images = world(seed)
        engine = engine_of(images, 9)
        for merge in ("likelihood", "posterior", "bayes", "b0"):
            options = options_for(64, merge=merge, verify=0, top=12)
            asked = engine.query(query.words, query.signatures, options)
            scores, seen = score_all(engine, query.asked, options)
            assert seen == {}
            for part, expected in zip(scores, engine.scores(asked, options), strict=True):
                assert np.array_equal(part, expected)
            hits = search(engine, query.asked, options)
            assert [(hit.place, hit.image, hit.score) for hit in hits] == engine.best(asked, options)[0]
            assert all((hit.inliers, hit.transform) == (0, None) for hit in hits)


@pytest.mark.parametrize("verify", [1, 5, 12])
def test_candidates_that_are_not_verified_stay_as_they_are(verify: int) -> None:
    for seed in SEEDS:
        query, images = world(seed)
        engine = engine_of(images, 10)
        before = told(engine, search(engine, query.asked, options_for(64, verify=0)))
        after = told(engine, search(engine, query.asked, options_for(64, verify=verify)))
        best = {image for image, *_ in before[:verify]}
        assert [row for row in after if row[0] not in best] == before[verify:]
        assert {row[0] for row in after} == {row[0] for row in before}


# -- what does not matter


@pytest.mark.parametrize("expansion", ["none", "average", "hamming"])
@pytest.mark.parametrize("bits", [0, 64, 128])
def test_segments_and_threads_do_not_matter(bits: int, expansion: str) -> None:
    for seed in range(3):
        query, images = world(seed, bits)
        options = options_for(bits, verify=20, expansion=expansion)
        whole = engine_of(images)
        expected = told(whole, search(whole, query.asked, options, threads=1))
        assert expected[0][0] == RIGHT and len(expected) == len(images)
        for segment_images in (1, 6, len(images)):
            engine = engine_of(images, segment_images)
            for threads in (1, 2, None):
                assert told(engine, search(engine, query.asked, options, threads)) == expected


@pytest.mark.parametrize("bits", [0, 64, 128])
def test_a_loaded_segment_gives_what_the_saved_one_did(bits: int, tmp_path: Path) -> None:
    query, images = world(1, bits)
    made = engine_of(images, 20)
    for number, segment in enumerate(made.segments):
        segment.save(tmp_path / str(number))
    loaded = Engine([Segment.open(tmp_path / str(number)) for number in range(len(made.segments))], SIZES)
    for name in ("fast", "default", "best"):
        options = presets_preset(name, bits)
        assert told(loaded, search(loaded, query.asked, options)) == told(made, search(made, query.asked, options))


def test_deleted_images_are_no_candidates() -> None:
    query, images = world(2)
    whole = engine_of(images)
    engine = Engine([whole.segments[0].without([RIGHT, 0])], SIZES)
    _, seen = score_all(engine, query.asked, options_for(64))
    assert seen and not {RIGHT, 0} & {position for _, position in seen}
    assert not {RIGHT, 0} & {engine.image_at(hit.place) for hit in search(engine, query.asked, options_for(64))}


def test_further_assignments_do_not_change_what_is_verified() -> None:
    query, images = world(4)
    engine = engine_of(images)
    assert query.signatures is not None
    several = Query(
        np.stack([query.words, np.full_like(query.words, -1)], axis=2),
        np.stack([query.signatures, np.zeros_like(query.signatures)], axis=2),
        query.asked.frames,
    )
    options = options_for(64, verify=50)
    once = told(engine, search(engine, query.asked, options))
    assert told(engine, search(engine, several, replace(options, assignments=2))) == once


@pytest.mark.parametrize("expansion", ["none", "hamming"])
def test_an_early_ranking_changes_nothing(expansion: str) -> None:
    query, images = world(1)
    engine = engine_of(images, 10)
    options = options_for(64, expansion=expansion)
    early: list[list[Found]] = []
    final = search(engine, query.asked, options, early=early.append)
    assert told(engine, final) == told(engine, search(engine, query.asked, options))
    alone = replace(options, verify=0, expansion="none")
    assert [told(engine, found) for found in early] == [told(engine, search(engine, query.asked, alone))]
    search(engine, query.asked, alone, early=early.append)
    assert len(early) == 1  # nothing follows: nobody has to be told early


def test_inputs_stay_as_they_are() -> None:
    query, images = world(5)
    before = [array.copy() for array in query.arrays()]
    for array in query.arrays():
        array.flags.writeable = False
    engine = engine_of(images)
    for expansion in ("none", "average", "hamming"):
        search(engine, query.asked, options_for(64, expansion=expansion))
    for old, new in zip(before, query.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


# -- what has no answer, and what is refused


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("name", ["fast", "default", "best"])
def test_queries_that_nothing_answers(bits: int, name: str) -> None:
    query, images = world(0, bits)
    engine = engine_of(images, 10)
    options = presets_preset(name, bits)
    assert search(engine, query.chosen(slice(0, 0)).asked, options) == []
    used = [set(np.concatenate([image.words[:, k] for image in images]).tolist()) for k in range(3)]
    unused = [next(word for word in range(size) if word not in words) for size, words in zip(SIZES, used, strict=True)]
    stranger = replace(query, words=np.tile(np.array(unused, np.int32), (len(query), 1)))
    assert search(engine, stranger.asked, options) == []


def test_an_empty_collection() -> None:
    query, _ = world(0, 0)
    assert search(Engine([], SIZES), query.asked, options_for(0)) == []


def refused(engine: Engine, asked: Query, options: SearchOptions) -> str:
    with pytest.raises(OptionError) as caught:
        search(engine, asked, options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_verified_is_one_line() -> None:
    query, images = world(0)
    engine = engine_of(images)
    options = options_for(64)
    nowhere = Query(query.words, query.signatures)
    assert "verify needs the places" in refused(engine, nowhere, options)
    assert search(engine, nowhere, replace(options, verify=0))
    elsewhere = Query(query.words, query.signatures, Keypoints(query.xy[1:], query.scale[1:], query.angle[1:]))
    assert "words of 40 features but places of 39" in refused(engine, elsewhere, options)
    plain = replace(options, merge="posterior")
    bare = Query(query.words, None, query.asked.frames)
    assert "signatures of 64 bits, not 0" in refused(engine, bare, plain)
    longer = world(0, 128)[0]
    assert "signatures of 64 bits, not 128" in refused(engine, longer.asked, plain)
    with pytest.raises(OptionError, match="threads=0"):
        search(engine, query.asked, options, threads=0)


def test_signatures_that_the_index_has_not_are_ignored() -> None:
    query, images = world(3, 64)
    bare = engine_of([replace(image, signatures=None) for image in images])
    options = options_for(0)
    expected = told(bare, search(bare, replace(query, signatures=None).asked, options))
    assert told(bare, search(bare, query.asked, options)) == expected


@pytest.mark.parametrize("verify, top", [(1, 1), (3, 2), (5, 40), (40, 3)])
def test_few_candidates_travel_and_the_ranking_is_that_of_all_scores(verify: int, top: int) -> None:
    """Only the best are fetched; whoever fetches the scores of all images ranks the same."""
    for seed, preset in product(SEEDS, ("default", "best")):
        query, images = world(seed)
        engine = engine_of(images, 7)
        options = replace(presets_preset(preset, 64), verify=verify, top=top)
        scores, seen = score_all(engine, query.asked, options)
        hits = search(engine, query.asked, options)
        assert [(hit.place, hit.image, hit.score) for hit in hits] == engine.ranked(scores, top)
        assert all(hit.inliers == seen[hit.place].inliers for hit in hits if hit.place in seen)
