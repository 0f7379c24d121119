"""The stages of a search: what verification changes, and what must not matter."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coded_scenes import (
    WORDS,
    CodedPicture,
    coded_again,
    coded_engine,
    coded_joined,
    coded_picture,
    coded_scrambled,
    coder_of,
    descriptors,
)
from polyvoc.errors import OptionError
from polyvoc.index.segment import Segment
from polyvoc.options import CODE_CUT, SearchOptions, TrainOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import Candidate
from polyvoc.search.pipeline import score_all, search, warm_up
from polyvoc.search.query import Query
from polyvoc.vocabulary.codes import Coder
from polyvoc.vocabulary.train import train
from scenes import RIGHT, SIDE, SIZES, engine_of, world

SEEDS = range(6)


def options_for(bits: int, **changes: object) -> SearchOptions:
    return replace(preset("default", bits), **{"top": 100, **changes})  # type: ignore[arg-type]


def values(candidates: list[Candidate]) -> list[tuple[int, float, int, object]]:
    """Return candidates as plain values, exactly: image, score, inliers, transform."""
    return [
        (one.image, one.score, one.inliers, None if one.transform is None else one.transform.tolist()) for one in candidates
    ]


def found(engine: Engine, query: Query, options: SearchOptions, threads: int | None = None) -> list[tuple[Any, ...]]:
    return values(search(engine, query, options, threads=threads))


def by_image(engine: Engine, query: Query, options: SearchOptions) -> np.ndarray:
    return np.concatenate(score_all(engine, query, options))


# -- what verification changes


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_image_with_a_consistent_transform_comes_first(seed: int, bits: int) -> None:
    query, images = world(seed, bits)
    engine = engine_of(images)
    assert search(engine, query.query, options_for(bits, verify=0))[0].image != RIGHT  # by words alone
    first = search(engine, query.query, options_for(bits))[0]
    assert first.image == RIGHT
    assert first.inliers > 20
    assert first.transform is not None
    moved = query.xy @ first.transform[:, :2].T + first.transform[:, 2]
    assert np.abs(moved - images[RIGHT].xy[: len(query)]).max() < 0.03 * SIDE


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_score_is_lowered_and_none_raised_without_inliers(seed: int, bits: int) -> None:
    query, images = world(seed, bits)
    engine = engine_of(images, 7)
    before = by_image(engine, query.query, options_for(bits, verify=0))
    after = by_image(engine, query.query, options_for(bits))
    assert (after >= before).all() and np.count_nonzero(before) > 20
    inliers = np.zeros(len(images), int)
    for one in search(engine, query.query, options_for(bits)):
        assert one.score == after[one.image] and one.weight is not None
        assert (one.transform is None) == (one.inliers == 0) == (one.weight == 0)
        inliers[one.image] = one.inliers
    nothing = inliers == 0
    assert np.array_equal(after[nothing], before[nothing])
    assert (after[~nothing] > before[~nothing]).all() and not nothing.all()


def test_no_verification_is_the_score_of_the_engine() -> None:
    for seed in SEEDS:
        query, images = world(seed)
        engine = engine_of(images, 9)
        for merge in ("likelihood", "posterior", "bayes", "b0"):
            options = options_for(64, merge=merge, verify=0, top=12)
            plan = engine.plan(options)
            words = engine.query(query.words, query.signatures, plan)
            for part, expected in zip(score_all(engine, query.query, options), engine.scores(words, plan), strict=True):
                assert np.array_equal(part, expected)
            assert found(engine, query.query, options) == values(engine.best(words, plan, 12)[0])


@pytest.mark.parametrize("verify", [1, 5, 12])
def test_candidates_that_are_not_verified_stay_as_they_are(verify: int) -> None:
    for seed in SEEDS:
        query, images = world(seed)
        engine = engine_of(images, 10)
        before = found(engine, query.query, options_for(64, verify=0))
        after = found(engine, query.query, options_for(64, verify=verify))
        best = {image for image, *_ in before[:verify]}
        assert [row for row in after if row[0] not in best] == before[verify:]
        assert {row[0] for row in after} == {row[0] for row in before}


# -- what does not matter


@pytest.mark.parametrize("expand", [0, 5])
@pytest.mark.parametrize("bits", [0, 64, 128])
def test_segments_and_threads_do_not_matter(bits: int, expand: int) -> None:
    for seed in range(3):
        query, images = world(seed, bits)
        options = options_for(bits, verify=20, expand=expand)
        one = engine_of(images)
        expected = found(one, query.query, options, threads=1)
        assert expected[0][0] == RIGHT and len(expected) == len(images)
        for segment_images in (1, 6, len(images)):
            engine = engine_of(images, segment_images)
            for threads in (1, 2, None):
                assert found(engine, query.query, options, threads) == expected


@pytest.mark.parametrize("bits", [0, 64, 128])
def test_loaded_segments_give_the_same(bits: int, tmp_path: Path) -> None:
    query, images = world(1, bits)
    made = engine_of(images, 20)
    for number, segment in enumerate(made.segments):
        segment.save(tmp_path / str(number))
    loaded = Engine([Segment.open(tmp_path / str(number)) for number in range(len(made.segments))], SIZES)
    for name in ("fast", "default", "best"):
        options = preset(name, bits)
        assert found(loaded, query.query, options) == found(made, query.query, options)


def test_deleted_images_are_no_candidates() -> None:
    query, images = world(2)
    engine = Engine([engine_of(images).segments[0].without([RIGHT, 0])], SIZES)
    left = {one.image for one in search(engine, query.query, options_for(64))}
    assert left and not {RIGHT, 0} & left
    assert not by_image(engine, query.query, options_for(64))[[RIGHT, 0]].any()


def test_further_assignments_do_not_change_what_is_verified() -> None:
    query, images = world(4)
    engine = engine_of(images)
    assert query.signatures is not None
    several = Query(
        None,
        np.stack([query.words, np.full_like(query.words, -1)], axis=2),
        np.stack([query.signatures, np.zeros_like(query.signatures)], axis=2),
        query.query.keypoints,
    )
    options = options_for(64, verify=50)
    once = found(engine, query.query, options)
    assert found(engine, several, replace(options, assignments=2)) == once


@pytest.mark.parametrize("expand", [0, 5])
def test_a_first_ranking_changes_nothing(expand: int) -> None:
    query, images = world(1)
    engine = engine_of(images, 10)
    options = options_for(64, expand=expand)
    first: list[list[Candidate]] = []
    final = search(engine, query.query, options, on_first=first.append)
    assert values(final) == found(engine, query.query, options)
    alone = replace(options, verify=0, expand=0)
    assert [values(ranking) for ranking in first] == [found(engine, query.query, alone)]
    search(engine, query.query, alone, on_first=first.append)
    assert len(first) == 1  # nothing follows


def test_inputs_are_not_modified() -> None:
    query, images = world(5)
    before = [array.copy() for array in query.arrays()]
    for array in query.arrays():
        array.flags.writeable = False
    engine = engine_of(images)
    for expand in (0, 5):
        search(engine, query.query, options_for(64, expand=expand))
    for old, new in zip(before, query.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


# -- queries without hits, and errors


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("name", ["fast", "default", "best"])
def test_queries_without_hits(bits: int, name: str) -> None:
    query, images = world(0, bits)
    engine = engine_of(images, 10)
    options = preset(name, bits)
    assert search(engine, query.chosen(slice(0, 0)).query, options) == []
    used = [set(np.concatenate([image.words[:, k] for image in images]).tolist()) for k in range(3)]
    unused = [next(word for word in range(size) if word not in words) for size, words in zip(SIZES, used, strict=True)]
    stranger = replace(query, words=np.tile(np.array(unused, np.int32), (len(query), 1)))
    assert search(engine, stranger.query, options) == []


def test_an_empty_collection() -> None:
    query, _ = world(0, 0)
    assert search(Engine([], SIZES), query.query, options_for(0)) == []


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"keypoints": None}, "verify needs the keypoints"),
        ({"signatures": None}, "signatures of 64 bits, not 0"),
        ({"signatures": np.zeros((40, 3, 2), np.uint64)}, "signatures of 64 bits, not 128"),
    ],
)
def test_a_query_that_cannot_be_verified_raises(changes: dict[str, Any], message: str) -> None:
    query, images = world(0)
    engine, options = engine_of(images), options_for(64, merge="posterior")
    with pytest.raises(OptionError, match=message) as caught:
        search(engine, replace(query.query, **changes), options)
    assert "\n" not in str(caught.value)
    assert search(engine, replace(query.query, **changes), replace(options, verify=0))


@pytest.mark.parametrize(
    "changes, keywords, message",
    [
        ({}, {"threads": 0}, "threads=0"),
        ({"smooth": 1.0}, {}, "smooth needs the links between images; build them: polyvoc link"),
        ({"fuse": True}, {}, "fuse needs the pixels of the query"),
        ({"min_probability": 0.5}, {}, r"min_probability=0\.5: no probability model"),
    ],
)
def test_options_that_need_something_else_raise(changes: dict[str, Any], keywords: dict[str, Any], message: str) -> None:
    query, images = world(0)
    with pytest.raises(OptionError, match=message):
        search(engine_of(images), query.query, options_for(64, **changes), **keywords)


def test_signatures_that_the_index_lacks_are_ignored() -> None:
    query, images = world(3, 64)
    bare = engine_of([replace(image, signatures=None) for image in images])
    options = options_for(0)
    expected = found(bare, replace(query, signatures=None).query, options)
    assert found(bare, query.query, options) == expected


@pytest.mark.parametrize("verify, top", [(1, 1), (3, 2), (5, 40), (40, 3)])
def test_the_ranking_of_the_best_is_that_of_all_scores(verify: int, top: int) -> None:
    """Only the best are fetched; the scores of all images give the same ranking."""
    for seed, name in product(SEEDS, ("default", "best")):
        query, images = world(seed)
        engine = engine_of(images, 7)
        options = replace(preset(name, 64), verify=verify, top=top)
        ranked = engine.rank(score_all(engine, query.query, options), engine.images(), top)
        hits = search(engine, query.query, options)
        assert [(hit.ref, hit.image, hit.score) for hit in hits] == [(one.ref, one.image, one.score) for one in ranked]


@pytest.mark.parametrize(
    "sizes, bits, code_bits",
    [((30, 20), 0, 0), ((30, 20), 64, 0), ((30, 20), 128, 0), ((30, 20), 0, 128), ((30,), 64, 64), ((), 0, 128)],
)
def test_warm_up_runs(sizes: tuple[int, ...], bits: int, code_bits: int) -> None:
    warm_up(sizes, bits, code_bits)


# -- by codes


def coded_world(seed: int) -> tuple[CodedPicture, list[CodedPicture]]:
    """Return a query and a collection: one image shows it anew, four have its features elsewhere, others some of them."""
    rng = np.random.default_rng([13, seed])
    query = coded_picture(rng, 40)
    images = [coded_joined(coded_scrambled(rng, query), coded_picture(rng, int(rng.integers(20)))) for _ in range(4)]
    images.insert(RIGHT, coded_joined(coded_again(rng, query), coded_picture(rng, 15)))
    for _ in range(30):
        some = rng.permutation(40)[: int(rng.integers(1, 12))]
        images.append(coded_joined(coded_scrambled(rng, query.chosen(some)), coded_picture(rng, 20)))
    return query, images


def found_by_codes(
    engine: Engine, query: CodedPicture, options: SearchOptions, threads: int | None = None
) -> list[tuple[Any, ...]]:
    return values(search(engine, query.query, options, threads=threads, coder=coder_of()))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_image_with_a_consistent_transform_comes_first_by_codes(seed: int) -> None:
    query, images = coded_world(seed)
    engine, options = coded_engine(images, 7), SearchOptions(top=100)
    before, after = (np.concatenate(score_all(engine, query.query, replace(options, verify=verify))) for verify in (0, 100))
    assert before.argmax() != RIGHT == after.argmax()
    assert (after >= before).all() and np.count_nonzero(before) > 20
    hits = search(engine, query.query, options)
    assert hits[0].image == RIGHT and hits[0].inliers > 20 and hits[0].transform is not None
    moved = query.shown.xy @ hits[0].transform[:, :2].T + hits[0].transform[:, 2]
    assert np.abs(moved - images[RIGHT].shown.xy[:40]).max() < 0.03 * SIDE
    for hit in hits:
        assert hit.score == after[hit.image] and (hit.transform is None) == (hit.inliers == 0) == (hit.weight == 0)
        assert (after[hit.image] > before[hit.image]) == (hit.inliers > 0)


@pytest.mark.parametrize("expand", [0, 5])
def test_segments_and_threads_do_not_matter_by_codes(expand: int) -> None:
    query, images = coded_world(0)
    options = SearchOptions(verify=20, expand=expand, top=100)
    expected = found_by_codes(coded_engine(images), query, options, threads=1)
    assert expected[0][0] == RIGHT
    for segment_images in (1, 6, len(images)):
        engine = coded_engine(images, segment_images)
        for threads in (1, 2, None):
            assert found_by_codes(engine, query, options, threads) == expected


def test_loaded_segments_give_the_same_by_codes(tmp_path: Path) -> None:
    query, images = coded_world(1)
    made = coded_engine(images, 20)
    for number, segment in enumerate(made.segments):
        segment.save(tmp_path / str(number))
    loaded = Engine([Segment.open(tmp_path / str(number)) for number in range(len(made.segments))], SIZES)
    for name in ("fast", "default", "best"):
        options = preset(name, 0, 128)
        assert found_by_codes(loaded, query, options) == found_by_codes(made, query, options) != []


def test_deleted_images_are_no_candidates_by_codes() -> None:
    query, images = coded_world(2)
    left = [number for number in range(len(images)) if number not in (RIGHT, 0)]
    engine = Engine([coded_engine(images).segments[0].without([RIGHT, 0])], SIZES)
    anew = coded_engine([images[number] for number in left])
    for name in ("fast", "default", "best"):
        options = replace(preset(name, 0, 128), top=100)
        wanted = [(left[image], *rest) for image, *rest in found_by_codes(anew, query, options)]
        assert found_by_codes(engine, query, options) == wanted != []


def test_a_query_by_codes_needs_its_codes_and_keypoints() -> None:
    query, images = coded_world(0)
    engine, options = coded_engine(images), SearchOptions()
    with pytest.raises(OptionError, match="merge='codes' needs the codes of the query"):
        search(engine, replace(query.query, codes=None), options)
    with pytest.raises(OptionError, match="verify needs the keypoints"):
        search(engine, replace(query.query, keypoints=None), options)
    with pytest.raises(OptionError, match="merge='b1' needs the words of the query"):
        search(engine, replace(query.query, words=None), replace(options, merge="b1"))
    other = Coder(train(descriptors(np.random.default_rng(0), 1000), TrainOptions(size=WORDS + 50, rounds=1)))
    for codes in (other.query(query.descriptors, 1, CODE_CUT), query.coded(bits=64)):
        with pytest.raises(OptionError, match=f"do not fit codes of 128 bits relative to {WORDS} words"):
            search(engine, replace(query.query, codes=codes), options)


@pytest.mark.parametrize("name", ["fast", "default", "best"])
def test_an_empty_collection_by_codes(name: str) -> None:
    query, images = coded_world(0)
    options = preset(name, 0, 128)
    first: list[list[Candidate]] = []
    for engine in (Engine([], ()), Engine([], SIZES), Engine([coded_engine(images[:1]).segments[0].without([0])], SIZES)):
        assert search(engine, query.query, options, coder=coder_of(), on_first=first.append) == []
    assert first == ([] if name == "fast" else [[]] * 3)
