"""All pairs at once: the same candidates and scores as separate searches, whatever the segments and threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coded_scenes import CodedPicture, coded_again, coded_engine, coded_joined, coded_picture, coder_of
from polyvoc.errors import OptionError
from polyvoc.options import PairOptions, SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.index import Index
from polyvoc.search.pairs import (
    SMALL_COLLECTION,
    Candidates,
    Pairs,
    RatedCandidates,
    StoredQueries,
    can_compare_blocks,
    find_candidates,
    find_pairs,
    join_pairs,
)
from polyvoc.search.pipeline import search
from polyvoc.search.probability import default_hit_probability
from polyvoc.search.query import query_of_image
from polyvoc.search.verify import WordVerification, inlier_pairs, match_table
from random_collections import plain, random_evidence, random_world, with_long_signatures
from scenes import SIZES, Picture, engine_of, joined, picture, seen_again

SEEDS = range(16)
FAST = preset("fast")


def engine_of_world(seed: int, segment_images: int = 100, k: int | None = None) -> Engine:
    """Return an engine of a random world; every other one has signatures of 128 bits."""
    world = random_world(seed, k)
    world = with_long_signatures(world, seed) if seed % 2 else world
    return Engine.from_words(world.images, world.sizes, world.image_signatures, segment_images)


def options_of(engine: Engine) -> SearchOptions:
    return preset("fast", engine.bits)


def source_of(engine: Engine, options: SearchOptions | None = None) -> StoredQueries:
    return StoredQueries(engine, options or options_of(engine))


def by_searches(engine: Engine, search: SearchOptions, top: int) -> Candidates:
    """Return the same by one search after the other."""
    ids, others, scores = [], [], []
    for segment, part in enumerate(engine.images()):
        for position in part.live:
            (stored,) = engine.image_features([(segment, int(position))])
            plan, image = engine.plan(search), int(part.ids[position])
            query = engine.query(stored.words, stored.signatures if stored.signatures.shape[1] else None, plan)
            best = [one for one in engine.best(query, plan, top + 1)[0] if one.image != image][:top]
            ids.append(image)
            others.append([one.image for one in best] + [-1] * (top - len(best)))
            scores.append([one.score for one in best] + [0.0] * (top - len(best)))
    order = np.argsort(ids)
    shape = len(ids), top
    return Candidates(np.array(ids, np.int64)[order], np.array(others, np.int64).reshape(shape)[order],
                      np.array(scores, np.float32).reshape(shape)[order])  # fmt: skip


def assert_same(one: Candidates, other: Candidates) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("small", [0, SMALL_COLLECTION])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_at_once_equals_one_search_after_the_other(seed: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.search.pairs.SMALL_COLLECTION", small)
    engine = engine_of_world(seed)
    options = options_of(engine)
    assert can_compare_blocks(engine, engine.plan(options)) == (engine.bits > 0)
    assert_same(find_candidates(source_of(engine, options), 5), by_searches(engine, options, 5))


@pytest.mark.parametrize("seed", [3, 5, 8, 13])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_any_number_of_vocabularies(seed: int, k: int) -> None:
    engine = engine_of_world(seed, k=k)
    options = options_of(engine)
    assert_same(find_candidates(source_of(engine, options), 4), by_searches(engine, options, 4))


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_a_score_is_that_of_a_search_even_if_candidates_are_missed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.search.pairs.EXTRA_CANDIDATES", 0)  # as in a large collection, where many are candidates
    monkeypatch.setattr("polyvoc.search.pairs.SMALL_COLLECTION", 0)
    engine = engine_of_world(seed)
    options = options_of(engine)
    found, known = find_candidates(source_of(engine, options), 3), by_searches(engine, options, 12)
    for row in range(len(found.images)):
        scores = dict(zip(known.others[row].tolist(), known.scores[row].tolist(), strict=True))
        present = found.others[row] >= 0
        assert [scores[other] for other in found.others[row][present].tolist()] == found.scores[row][present].tolist()


def test_candidates_of_a_small_collection_do_not_depend_on_coarse_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.search.pairs.EXTRA_CANDIDATES", 0)
    # Only the best matches count: such coarse scores choose few candidates, and in the wrong order.
    monkeypatch.setattr("polyvoc.search.pairs.MIN_LLR_ROUGH", 100.0)
    rng = np.random.default_rng(1)
    images = [picture(rng, 40, 128) for _ in range(30)]
    engine = engine_of([*images, picture(rng, 0, 128), *(joined(one, other) for one, other in pairwise(images))], 20)
    options, n_images = options_of(engine), 60
    exact = by_searches(engine, options, 7)
    for small in (n_images, n_images - 1):
        monkeypatch.setattr("polyvoc.search.pairs.SMALL_COLLECTION", small)
        found = find_candidates(source_of(engine, options), 7)
        assert np.array_equal(found.others, exact.others) == (small == n_images)
    assert_same(find_candidates(source_of(engine, options), n_images - 1), by_searches(engine, options, n_images - 1))


@pytest.mark.parametrize("n_images", [1, 2, 3, 12])
def test_lists_longer_than_the_collection(n_images: int) -> None:
    engine = engine_of(scenes()[:n_images])
    options = options_of(engine)
    assert_same(find_candidates(source_of(engine, options), 9), by_searches(engine, options, 9))
    every, longest = (ends(find_pairs(source_of(engine, options), PairOptions(top=top))) for top in (n_images, 1 << 40))
    assert longest == every  # and takes no more memory
    assert bool(every) == (n_images > 2)  # with two images the idf of a shared word is 0


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_segments_and_threads_do_not_matter(seed: int) -> None:
    at_once = engine_of_world(seed)
    options = options_of(at_once)
    best = find_candidates(source_of(at_once, options), 4, threads=1)
    assert_same(find_candidates(source_of(engine_of_world(seed, 3), options), 4, threads=3), best)
    assert_same(find_candidates(source_of(engine_of_world(seed, 1), options), 4), best)


@pytest.mark.parametrize(
    "options", [plain(), plain(merge="b1", hamming=24), replace(FAST, sets="image"), replace(FAST, burstiness="intra")]
)
def test_other_rules_search_one_by_one(options: SearchOptions) -> None:
    engine = engine_of_world(4, 5)
    assert not can_compare_blocks(engine, engine.plan(options))
    assert_same(find_candidates(source_of(engine, options), 4), by_searches(engine, options, 4))


def test_tables_by_ratio_search_one_by_one() -> None:
    seeds = [seed for seed in range(20) if random_evidence(seed, 3, 64).edges]
    engine = engine_of_world(4, k=3)
    options = replace(FAST, likelihood_table=random_evidence(seeds[0], 3, 64))
    assert not can_compare_blocks(engine, engine.plan(options))
    assert_same(find_candidates(source_of(engine, options), 4), by_searches(engine, options, 4))


def test_an_index_without_signatures_searches_one_by_one() -> None:
    world = random_world(6)
    engine = Engine.from_words(world.images, world.sizes)
    options = preset("fast", 0)
    assert_same(find_candidates(source_of(engine, options), 4), by_searches(engine, options, 4))


# -- pairs


def scenes(bits: int = 128) -> list[Picture]:
    """Return twelve images: 0, 1 and 2 show one thing, 3 and 4 another, the rest nothing that others show."""
    rng = np.random.default_rng(29)
    one, other = picture(rng, 60, bits), picture(rng, 60, bits)
    again = [joined(seen_again(rng, shown), picture(rng, 10, bits)) for shown in (one, one, other)]
    return [one, again[0], again[1], other, again[2], *(picture(rng, 60, bits) for _ in range(7))]


def ends(pairs: Pairs) -> list[tuple[int, int]]:
    return list(zip(pairs["first"].tolist(), pairs["second"].tolist(), strict=True))


@pytest.mark.parametrize("bits", [64, 128])
def test_verified_pairs_show_the_same_thing(bits: int) -> None:
    engine = engine_of(scenes(bits), 5)
    pairs = find_pairs(source_of(engine), PairOptions(top=5, verify=True))
    assert ends(pairs) == [(0, 1), (0, 2), (1, 2), (3, 4)]
    assert pairs["inliers"].min() >= 6
    assert pairs["weight"].min() > 20
    assert np.isfinite(pairs["transform"]).all()
    unverified = find_pairs(source_of(engine), PairOptions(top=5))
    assert set(ends(pairs)) <= set(ends(unverified))
    assert np.isnan(unverified["transform"]).all()
    assert find_pairs(source_of(engine), PairOptions(top=5, verify=True, min_inliers=1000)).size == 0


def test_the_transform_maps_the_first_to_the_second() -> None:
    images = scenes()
    engine = engine_of(images)
    (pair,) = find_pairs(source_of(engine), PairOptions(top=5, verify=True), images=[3])
    query = WordVerification.of(images[3].query.image_features, match_table(engine, options_of(engine)))
    inliers = inlier_pairs(query, engine.segments[0], 4)
    mapped = images[3].xy[inliers[:, 0]] @ pair["transform"][:, :2].T + pair["transform"][:, 2]
    expected = images[4].xy[inliers[:, 1]]
    assert (pair["first"], pair["second"], pair["inliers"]) == (3, 4, len(inliers))
    assert np.abs(mapped - expected).max() < 0.05 * np.ptp(expected)


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_pairs_are_those_of_the_lists(seed: int) -> None:
    engine = engine_of_world(seed, 4)
    options = options_of(engine)
    best = find_candidates(source_of(engine, options), 3)
    lists = {(int(image), int(other)): float(score) for image, others, scores in zip(*best, strict=True)
             for other, score in zip(others, scores, strict=True) if other >= 0}  # fmt: skip
    wanted = {tuple(sorted(pair)) for pair in lists}
    pairs = find_pairs(source_of(engine, options), PairOptions(top=3))
    assert ends(pairs) == sorted(wanted)
    for first, second, score in zip(pairs["first"].tolist(), pairs["second"].tolist(), pairs["score"].tolist(), strict=True):
        assert score == max(lists.get((first, second), 0.0), lists.get((second, first), 0.0))
    both = {pair for pair in wanted if pair in lists and pair[::-1] in lists}
    assert set(ends(find_pairs(source_of(engine, options), PairOptions(top=3, mutual=True)))) == both
    least = float(np.median(pairs["score"])) if len(pairs) else 1.0
    kept = find_pairs(source_of(engine, options), PairOptions(top=3, min_score=least))
    assert ends(kept) == ends(pairs[pairs["score"] >= least])


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_new_against_old_is_a_part_of_all_against_all(seed: int) -> None:
    engine = engine_of_world(seed, 4)
    options = options_of(engine)
    best = find_candidates(source_of(engine, options), 3)
    new = best.images[::3].tolist()
    rows = np.isin(best.images, new)
    assert_same(find_candidates(source_of(engine, options), 3, new), Candidates(*(column[rows] for column in best)))
    for mutual in (False, True):
        every = set(ends(find_pairs(source_of(engine, options), PairOptions(top=3, mutual=mutual))))
        touching = {pair for pair in every if pair[0] in new or pair[1] in new}
        found = set(ends(find_pairs(source_of(engine, options), PairOptions(top=3, mutual=mutual), new)))
        assert found == touching if mutual else found <= touching


def test_deleted_images_are_not_paired() -> None:
    images = scenes()
    segments = engine_of(images, 5).segments
    engine = Engine([segments[0].without([1, 3]), *segments[1:]], segments[0].sizes)
    options = options_of(engine)
    best = find_candidates(source_of(engine, options), 12)
    assert set(best.images.tolist()) == {0, 2, *range(4, 12)}
    assert not np.isin(best.others, [1, 3]).any()
    assert_same(best, by_searches(engine, options, 12))
    assert ends(find_pairs(source_of(engine, options), PairOptions(verify=True))) == [(0, 2)]
    with pytest.raises(OptionError, match="image 1 is not in the index"):
        find_pairs(source_of(engine, options), PairOptions(), [0, 1])


def test_progress_and_an_empty_index() -> None:
    calls: list[tuple[str, int, int]] = []
    engine = engine_of(scenes(), 5)
    find_pairs(source_of(engine), PairOptions(verify=True), progress=lambda *step: calls.append(step), threads=2)
    for stage in ("comparing", "scoring"):
        assert [step for step in calls if step[0] == stage] == [(stage, 6, 12), (stage, 12, 12)]
    assert calls[-1][0] == "verifying"
    assert calls[-1][1] == calls[-1][2]
    assert find_pairs(source_of(Engine([], (5, 5)), FAST), PairOptions(verify=True, mutual=True)).size == 0


@pytest.mark.parametrize("made", ["index_path", "coded_index_path"])
def test_an_index_scores_pairs_by_the_preset_fast(made: str, request: pytest.FixtureRequest) -> None:
    with Index.open(request.getfixturevalue(made)) as index:
        pairs, options = index.pairs(top=3, verify=True), index.preset("fast")
        assert options.merge == ("codes" if made == "coded_index_path" else "likelihood")
        source = StoredQueries(index.engine, options, index.coder)
        assert np.array_equal(pairs, find_pairs(source, PairOptions(top=3, verify=True), probability=index.probability))
        for pair in pairs[::5]:
            both = [(pair["first"], pair["second"]), (pair["second"], pair["first"])]
            scores = [{hit.image: hit.score for hit in index.search(int(a), options, top=12)}.get(b, 0.0) for a, b in both]
            assert pair["score"] == max(scores)
        scene = {row.image: Path(row.path).name.split("-")[0] for row in index.images()}
    assert len(pairs) == 12 and all(scene[first] == scene[second] for first, second in ends(pairs))


# -- by codes


def coded_scenes() -> list[CodedPicture]:
    """Return twelve images: 0, 1 and 2 show one thing, 3 and 4 another, 6 nothing, the rest what no other shows."""
    rng = np.random.default_rng(31)
    one, other = coded_picture(rng, 60), coded_picture(rng, 60)
    again = [coded_joined(coded_again(rng, shown), coded_picture(rng, 10)) for shown in (one, one, other)]
    rest = [coded_picture(rng, 0 if number == 1 else 60) for number in range(7)]
    return [one, again[0], again[1], other, again[2], *rest]


def coded_source(engine: Engine, **changes: Any) -> StoredQueries:
    return StoredQueries(engine, SearchOptions(verify=0, **changes), coder_of())


def by_code_searches(source: StoredQueries, top: int) -> Candidates:
    """Return the best other images of every image, by a search with what is stored of it."""
    ids, others, scores = [], [], []
    for segment, part in enumerate(source.engine.images()):
        for position in part.live.tolist():
            (stored,) = source.engine.image_features([(segment, position)])
            query = query_of_image(stored, source.search, source.coder)
            hits = search(source.engine, query, replace(source.search, top=top + 1))
            ids.append(int(part.ids[position]))
            best = [hit for hit in hits if hit.image != ids[-1]][:top]
            others.append([hit.image for hit in best] + [-1] * (top - len(best)))
            scores.append([hit.score for hit in best] + [0.0] * (top - len(best)))
    return Candidates(np.array(ids), np.array(others), np.array(scores, np.float32))


@pytest.mark.parametrize("assignments", [1, 10])
def test_pairs_by_codes_are_those_of_searches(assignments: int) -> None:
    source = coded_source(coded_engine(coded_scenes(), 5), assignments=assignments)
    assert not can_compare_blocks(source.engine, source.engine.plan(source.search))
    best = find_candidates(source, 4)
    assert_same(best, by_code_searches(source, 4))
    assert best.others[6].tolist() == [-1] * 4 and not (best.others == 6).any()  # it has no feature
    assert best.others[3, 0] == 4 and best.others[4, 0] == 3
    lists = {(int(image), int(other)): float(score) for image, others, scores in zip(*best, strict=True)
             for other, score in zip(others, scores, strict=True) if other >= 0}  # fmt: skip
    pairs = find_pairs(source, PairOptions(top=4))
    assert ends(pairs) == sorted({tuple(sorted(pair)) for pair in lists})
    for (first, second), score in zip(ends(pairs), pairs["score"].tolist(), strict=True):
        assert score == max(lists.get((first, second), 0.0), lists.get((second, first), 0.0))


def test_segments_and_threads_do_not_matter_by_codes() -> None:
    images = coded_scenes()
    best = find_candidates(coded_source(coded_engine(images)), 4, threads=1)
    for size, threads in ((5, 3), (1, None)):
        assert_same(find_candidates(coded_source(coded_engine(images, size)), 4, threads=threads), best)
    rows = [3, 7]
    assert_same(find_candidates(coded_source(coded_engine(images, 5)), 4, rows), Candidates(*(part[rows] for part in best)))


def test_pairs_verified_by_codes_show_the_same_thing() -> None:
    images = coded_scenes()
    source = coded_source(coded_engine(images, 5))
    pairs = find_pairs(source, PairOptions(top=5, verify=True))
    assert ends(pairs) == [(0, 1), (0, 2), (1, 2), (3, 4)]
    assert pairs["inliers"].min() >= 20 and pairs["weight"].min() > 40
    for pair in pairs[[0, 3]]:  # whose first images are shown again as they are
        known, moved = images[pair["first"]].shown.xy, images[pair["second"]].shown.xy[:60]
        mapped = known @ pair["transform"][:, :2].T + pair["transform"][:, 2]
        assert np.median(np.abs(mapped - moved)) < 0.01 * np.ptp(moved)
    engine = Engine([part.without([1]) if number == 0 else part for number, part in enumerate(source.engine.segments)], SIZES)
    assert ends(find_pairs(coded_source(engine), PairOptions(top=5, verify=True))) == [(0, 2), (3, 4)]


# -- probabilities


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("mutual", [False, True])
def test_every_pair_has_the_probability_of_its_noise_rank_and_weight(verify: bool, mutual: bool) -> None:
    source, model = source_of(engine_of(scenes())), default_hit_probability()
    options = PairOptions(top=4, verify=verify, mutual=mutual, min_inliers=1)
    plain, rated = find_pairs(source, options), find_pairs(source, options, probability=model)
    assert len(rated) and np.isnan(plain["probability"]).all()
    assert ends(rated) == ends(plain) and np.array_equal(rated["score"], plain["score"])
    for pair in rated:
        expected = model.of(float(pair["noise_rank"]), float(pair["weight"]) if verify else None)
        assert pair["probability"] == pytest.approx(expected, rel=1e-5) and 0 < pair["probability"] < 1


def test_the_noise_rank_of_a_pair_is_the_higher_of_both_directions() -> None:
    source = source_of(engine_of(scenes()))
    every = find_candidates(source, 11)
    rated = RatedCandidates.of(every, 3, 11)
    assert np.array_equal(rated.others, every.others[:, :3]) and np.array_equal(rated.scores, every.scores[:, :3])
    assert (np.diff(np.where(rated.others >= 0, rated.noise_ranks, -np.inf)[:, :2]) <= 0).all(), "best first"
    pairs, _ = join_pairs(rated)
    rows = zip(rated.images.tolist(), rated.others.tolist(), rated.noise_ranks.tolist(), strict=True)
    known = {(image, other): rank for image, others, ranks in rows for other, rank in zip(others, ranks, strict=True)}
    for first, second, rank in pairs[["first", "second", "noise_rank"]].tolist():
        assert rank == max(known.get(one, -np.inf) for one in ((first, second), (second, first)))
