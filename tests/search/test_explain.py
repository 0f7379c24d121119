"""An explanation shows the matches, weights and inliers that the search counted."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from coded_scenes import (
    CodedPicture,
    coded_again,
    coded_engine,
    coded_joined,
    coded_picture,
    coded_scrambled,
    coder_of,
)
from polyvoc.errors import OptionError
from polyvoc.options import Norm, SearchOptions, Sets, preset
from polyvoc.scoring.codes import default_code_table
from polyvoc.scoring.engine import Engine
from polyvoc.search.explain import Explanation, explain, name_set
from polyvoc.search.hits import Hit
from polyvoc.search.index import Index
from polyvoc.search.pipeline import score_all, search
from polyvoc.search.query import Query
from polyvoc.search.verify import TOLERANCE, outline
from polyvoc.types import ImageRef
from polyvoc.vocabulary.codes import unpack_signs
from random_collections import RULES, plain
from scenes import Picture, engine_of, joined, picture, scrambled, seen_again


def explained(engine: Engine, query: Picture, options: SearchOptions, ref: ImageRef) -> Explanation:
    return explain(engine, query.query, options, ref, Hit(0, "", 0.0))


@pytest.fixture(params=[0, 64, 128], ids="{} bits".format)
def world(request: pytest.FixtureRequest) -> tuple[int, Picture, Engine]:
    """A query, and images: seen again with clutter, its words elsewhere, something else, no features."""
    bits = request.param
    rng = np.random.default_rng(21)
    query = picture(rng, 40, bits)
    images = [
        joined(picture(rng, 15, bits), seen_again(rng, query, stray=0.2)),
        joined(scrambled(rng, query), seen_again(rng, query.chosen(slice(0, 9)))),
        scrambled(rng, query),
        picture(rng, 30, bits),
        picture(rng, 0, bits),
    ]
    return bits, query, engine_of(images, 2)


def test_inliers_are_those_that_the_search_counted(world: tuple[int, Picture, Engine]) -> None:
    bits, query, engine = world
    for name in ("default", "best"):
        options = preset(name, bits)
        for found in search(engine, query.query, options):
            explanation = explained(engine, query, options, found.ref)
            assert np.count_nonzero(explanation.inlier) == found.inliers
            assert explanation.inlier.dtype == bool and explanation.inlier.shape == explanation.weight.shape
            if found.transform is None:
                assert explanation.transform is None
            else:
                assert np.array_equal(explanation.transform, found.transform)


def test_inliers_are_where_the_transform_maps_them(world: tuple[int, Picture, Engine]) -> None:
    bits, query, engine = world
    explanation = explained(engine, query, preset("default", bits), (0, 0))
    q, f = explanation.query[explanation.inlier], explanation.feature[explanation.inlier]
    assert explanation.transform is not None
    assert explanation.transform.shape == (2, 3) and explanation.transform.dtype == np.float64
    assert len(q) == len(set(q.tolist())) == len(set(f.tolist())) > 20
    assert np.array_equal(f, q + 15)  # the clutter comes first
    stored = engine.segments[0].image_features(0).keypoints
    moved = explanation.query_xy @ explanation.transform[:, :2].T + explanation.transform[:, 2]
    off = np.linalg.norm(moved - explanation.feature_xy, axis=1)
    assert (off[explanation.inlier] <= 1.01 * TOLERANCE * np.ptp(stored.xy, axis=0).max()).all()


def test_verification_does_not_depend_on_the_rule(world: tuple[int, Picture, Engine]) -> None:
    """The transform is the same whatever rule weights the matches, and whether or not searches verify."""
    bits, query, engine = world
    expected = explained(engine, query, preset("default", bits), (0, 0))
    pairs = set(zip(expected.query[expected.inlier].tolist(), expected.feature[expected.inlier].tolist(), strict=True))
    for merge in ("posterior", "b1", "b0"):
        other = explained(engine, query, plain(merge=merge), (0, 0))
        marked = set(zip(other.query[other.inlier].tolist(), other.feature[other.inlier].tolist(), strict=True))
        assert marked <= pairs if merge == "b0" else marked == pairs  # b0 has the matches of one vocabulary only
        assert len(marked) > 15 and np.array_equal(other.transform, expected.transform)


@pytest.mark.parametrize("norm", get_args(Norm))
def test_weights_sum_to_the_score_before_verification(norm: Norm, world: tuple[int, Picture, Engine]) -> None:
    bits, query, engine = world
    for merge in RULES:
        if bits or merge != "likelihood":
            assert_weights_sum_to_scores(engine, query, plain(merge=merge, norm=norm))


@pytest.mark.parametrize("sets", get_args(Sets))
def test_weights_sum_to_the_score_by_either_kind_of_sets(sets: Sets, world: tuple[int, Picture, Engine]) -> None:
    bits, query, engine = world
    rules, limits = (RULES, (None, 24)) if bits else (tuple(rule for rule in RULES if rule != "likelihood"), (None,))
    for merge, vocabularies, power, hamming in product(rules, (None, 2, 1), (1, 2), limits):
        given: dict[str, Any] = {"merge": merge, "vocabularies": vocabularies, "idf_power": power, "hamming": hamming}
        assert_weights_sum_to_scores(engine, query, plain(sets=sets, norm="distinct", **given))


def test_the_set_of_an_image_is_that_of_all_its_features_in_the_lists(world: tuple[int, Picture, Engine]) -> None:
    _, query, engine = world
    images = explained(engine, query, plain(merge="bayes"), (0, 1))
    stored = engine.segments[0].image_features(1).words
    in_lists = (stored[None] == query.words[:, None]).any(axis=1)  # [Q, K] the lists that hold a feature of the image
    assert images.image_sets and np.array_equal(images.set_mask, (in_lists << np.arange(3)).sum(axis=1)[images.query])
    assert (images.mask & ~images.set_mask == 0).all() and (images.mask != images.set_mask).any()
    features = explained(engine, query, plain(merge="bayes", sets="feature"), (0, 1))
    assert not features.image_sets and np.array_equal(features.set_mask, features.mask)
    assert len(features.mask) == len(images.mask) and sorted(features.mask) == sorted(images.mask)


def test_ratios_of_image_sets_count_images(world: tuple[int, Picture, Engine]) -> None:
    _, query, engine = world
    stored = [part.image_features(at).words for part in engine.segments for at in range(part.n_images)]
    explanation = explained(engine, query, plain(merge="bayes"), (0, 0))
    for row, (q, mask) in enumerate(zip(explanation.query, explanation.set_mask.tolist(), strict=True)):
        lists = [k for k in range(3) if mask >> k & 1 or mask.bit_count() == 1]
        held = np.array([(words == query.words[q]).any(axis=0)[lists] for words in stored])  # [images, lists]
        assert np.isclose(explanation.ratio[row], held.all(axis=1).sum() / held.any(axis=1).sum())


def test_an_explanation_has_the_vocabularies_that_vote(world: tuple[int, Picture, Engine]) -> None:
    _, query, engine = world
    three, two = (explained(engine, query, plain(vocabularies=count), (0, 0)) for count in (None, 2))
    assert three.words.shape[1] == 3 and two.words.shape[1] == two.distance.shape[1] == 2
    assert two.mask.max() == two.set_mask.max() == 3 and three.mask.max() == 7
    without_third = {(q, f): mask & 3 for q, f, mask in zip(three.query, three.feature, three.mask, strict=True) if mask & 3}
    assert dict(zip(zip(two.query, two.feature, strict=True), two.mask, strict=True)) == without_third


def assert_weights_sum_to_scores(engine: Engine, query: Picture, options: SearchOptions) -> None:
    scores = score_all(engine, query.query, options)
    for segment, position in ((0, 0), (0, 1), (1, 0)):
        explanation = explained(engine, query, options, (segment, position))
        assert explanation.weight.sum() == pytest.approx(scores[segment][position], rel=1e-4)


def test_words_are_those_of_both_features(world: tuple[int, Picture, Engine]) -> None:
    _, query, engine = world
    twice, bits = np.stack([np.roll(query.words, 1, axis=0), query.words], axis=2), query.signatures
    several = replace(query.query, words=twice, signatures=None if bits is None else np.stack([bits, bits], axis=2))
    for given, options in (
        (query.query, plain()),
        (several, plain(assignments=2)),
        (query.query, plain(merge="b0")),
    ):
        explanation = explain(engine, given, options, (0, 0), Hit(0, "", 0.0))
        assert explanation.words.dtype == np.int32 and explanation.words.shape == explanation.distance.shape
        k = explanation.words.shape[1]
        theirs = engine.segments[0].image_features(0).words.astype(np.int64)[explanation.feature][:, :k]
        shared = explanation.mask[:, None] >> np.arange(k) & 1 == 1
        assert np.array_equal(explanation.words, np.where(shared, theirs, -1))
        ours = np.asarray(given.words).reshape(len(query), 3, -1)[explanation.query][:, :k]
        assert ((ours == explanation.words[:, :, None]).any(axis=2) == shared).all() and len(explanation.words) > 20


def test_images_without_a_match(world: tuple[int, Picture, Engine]) -> None:
    bits, query, engine = world
    options = preset("default", bits)
    for given, ref in ((query, (2, 0)), (query.chosen(slice(0, 0)), (0, 0))):
        explanation = explained(engine, given, options, ref)
        assert explanation.inlier.shape == (0,) and explanation.inlier.dtype == bool
        assert explanation.transform is None


def test_photographs_are_explained_as_they_were_found(views: Path, views_index: Path) -> None:
    with Index.open(views_index) as index:
        for options in (index.default_options, replace(index.preset("best"), assignments=2)):
            photograph = views / "2" / "0.jpg"
            size = index.features(photograph)
            confirmed = 0
            for hit in index.search(photograph, top=8, options=options):
                explanation = index.explain(photograph, hit, options)
                assert np.count_nonzero(explanation.inlier) == hit.inliers
                assert (explanation.transform is None) == (hit.outline is None)
                if explanation.transform is not None:
                    assert outline((0, 0, size.width, size.height), explanation.transform) == hit.outline
                    confirmed += hit.inliers > 20
                by_number = index.explain(photograph, hit.image, options)
                assert np.array_equal(by_number.inlier, explanation.inlier)
            assert confirmed >= 2  # itself and at least one other view


def test_ratios_do_not_depend_on_the_rule(world: tuple[int, Picture, Engine]) -> None:
    """How far lists overlap: of those that hold the match, or of all where only one does; counted by hand here."""
    bits, query, engine = world
    stored = [part.image_features(at) for part in engine.segments for at in range(part.n_images)]
    words = np.concatenate([image.words for image in stored])
    rules: list[SearchOptions] = [plain(merge="b1"), plain(merge="posterior"), preset("default", bits)]
    for options in rules:
        explanation = explained(engine, query, options, (0, 0))
        shared = words[None] == query.query.words[explanation.query][:, None]  # [m, features, K]
        for row in range(len(explanation.query)):
            mask = explanation.mask[row]
            lists = [k for k in range(words.shape[1]) if mask >> k & 1 or mask.bit_count() == 1]
            expected = shared[row][:, lists].all(axis=1).sum() / shared[row][:, lists].any(axis=1).sum()
            assert np.isclose(explanation.ratio[row], expected)


def test_explanations_as_json(views: Path, views_index: Path) -> None:
    photograph, region = views / "2" / "0.jpg", (60.0, 50.0, 300.0, 220.0)
    with Index.open(views_index) as index:
        hit = index.search(photograph, region=region)[0]
        explanation = index.explain(photograph, hit, region=region)
        values = json.loads(json.dumps(explanation.as_dict(region, {"width": 1, "height": 1}, 5)))
    assert len(values["matches"]) == 5 < values["n_matches"] <= len(explanation.weight)
    assert (values["inliers"], values["n_vocabularies"]) == (hit.inliers, 2)
    assert values["score"] == pytest.approx(explanation.weight.sum())
    assert np.allclose(values["outline"], hit.outline) and np.allclose(values["transform"], explanation.transform)
    weights = [match["weight"] for match in values["matches"]]
    assert weights == sorted(weights, reverse=True) and all(match["sets"] for match in values["matches"])


@pytest.mark.parametrize(
    "mask, n, name", [(3, 2, "intersection"), (1, 1, "intersection"), (2, 2, "vocabulary 2"), (5, 3, "vocabularies 1, 3")]
)
def test_names_of_sets(mask: int, n: int, name: str) -> None:
    assert name_set(mask, n) == name


# -- by codes


CodedWorld = tuple[CodedPicture, Engine, SearchOptions]


@pytest.fixture(params=[1, 10], ids="{} words".format)
def coded_world(request: pytest.FixtureRequest) -> CodedWorld:
    """A query, and images: seen again with clutter, its descriptors elsewhere and twice, something else, no features."""
    rng = np.random.default_rng(31)
    query = coded_picture(rng, 40)
    images = [
        coded_joined(coded_picture(rng, 15), coded_again(rng, query)),
        coded_joined(coded_scrambled(rng, query), coded_again(rng, query.chosen(slice(0, 9)))),
        coded_scrambled(rng, query),
        coded_picture(rng, 30),
        coded_picture(rng, 0),
        *(coded_picture(rng, 20) for _ in range(5)),
    ]
    return query, coded_engine(images, 2), SearchOptions(assignments=request.param, top=20)


def explained_by_codes(engine: Engine, query: CodedPicture, options: SearchOptions, ref: ImageRef) -> Explanation:
    return explain(engine, coded_query(query, options), options, ref, Hit(0, "", 0.0))


def coded_query(query: CodedPicture, options: SearchOptions) -> Query:
    return replace(query.query, codes=query.coded(options.n_assignments))


def test_weights_by_codes_sum_to_the_score(coded_world: CodedWorld) -> None:
    """Of each query feature the best match of an image counts."""
    query, engine, options = coded_world
    scores = score_all(engine, coded_query(query, options), replace(options, verify=0))
    several = 0
    for segment, part in enumerate(engine.images()):
        for position in part.live.tolist():
            explanation = explained_by_codes(engine, query, options, (segment, position))
            best = np.zeros(len(query))
            np.maximum.at(best, explanation.query, explanation.weight)
            assert best.sum() == pytest.approx(float(scores[segment][position]), rel=1e-3, abs=1e-3)  # votes are whole numbers
            several += np.count_nonzero(explanation.weight) > np.count_nonzero(best)
    assert scores[0].min() > 0 and several > 0


def test_explanations_by_codes_show_both_features(coded_world: CodedWorld) -> None:
    query, engine, options = coded_world
    codes = query.coded(options.n_assignments)
    for ref in ((0, 0), (0, 1), (1, 0)):
        found, image = explained_by_codes(engine, query, options, ref), engine.image_features([ref])[0]
        assert image.codes is not None and len(found.weight) > 12
        q, f, word = found.query, found.feature, found.words[:, 0]
        assert len(set(zip(q.tolist(), f.tolist(), strict=True))) == len(q)
        assert np.array_equal(word, image.codes.words[f]) and (codes.words[q] == word[:, None]).any(axis=1).all()
        assert np.array_equal(found.query_xy, query.shown.xy[q].astype(np.float32))
        assert np.array_equal(found.feature_xy, image.keypoints.xy[f].astype(np.float32))
        assert (np.diff(found.weight) <= 0).all() and (found.mask == 1).all() and (found.ratio == 1).all()
        at = (codes.words[q] == word[:, None]).argmax(axis=1)
        apart = unpack_signs(codes.codes[q, at] ^ image.codes.codes[f], 128) > 0  # [m, bits]
        assert apart.sum(axis=1).max() <= default_code_table(128).reach
        magnitudes = codes.magnitudes.reshape(*codes.words.shape, 128)[q, at]
        relative = 128 * (magnitudes * apart).sum(axis=1) / codes.totals[q, at]
        assert np.abs(found.distance[:, 0] - relative).max() <= 1
    exact = explained_by_codes(engine, query, options, (1, 0))
    itself = exact.query == exact.feature
    assert set(exact.query[itself].tolist()) == set(range(len(query))) and (exact.distance[itself] == 0).all()


def test_inliers_by_codes_are_those_that_the_search_counted(
    coded_world: CodedWorld,
) -> None:
    query, engine, options = coded_world
    for expand in (0, 5):
        for found in search(engine, coded_query(query, options), replace(options, expand=expand), coder=coder_of()):
            explanation = explained_by_codes(engine, query, options, found.ref)
            assert np.count_nonzero(explanation.inlier) == found.inliers
            if found.transform is None:
                assert explanation.transform is None
            else:
                assert np.array_equal(explanation.transform, found.transform)
    right = explained_by_codes(engine, query, options, (0, 0))
    q, f = right.query[right.inlier], right.feature[right.inlier]
    assert len(q) > (30 if options.assignments == 10 else 12) and np.array_equal(f, q + 15)  # the clutter comes first


def test_images_without_a_match_by_codes(coded_world: CodedWorld) -> None:
    query, engine, options = coded_world
    explanation = explained_by_codes(engine, query, options, (2, 0))
    assert explanation.inlier.shape == (0,) and explanation.inlier.dtype == bool and explanation.transform is None
    assert explanation.words.shape == explanation.distance.shape == (0, 1)


def test_words_with_codes_are_explained_by_words_and_verified_by_codes(
    coded_world: CodedWorld,
) -> None:
    query, engine, options = coded_world
    chosen = plain(merge="posterior", verify=20)
    by_words = explain(engine, query.query, chosen, (0, 0), Hit(0, "", 0.0))
    assert by_words.words.shape[1] == 3 and by_words.transform is not None
    score = score_all(engine, query.query, replace(chosen, verify=0))[0][0]
    assert by_words.weight.sum() == pytest.approx(float(score), rel=1e-4)
    by_codes = explained_by_codes(engine, query, replace(options, assignments=10), (0, 0))
    assert np.array_equal(by_words.transform, by_codes.transform)


def test_codes_are_needed_to_explain_by_them(world: tuple[int, Picture, Engine]) -> None:
    _, query, engine = world
    with pytest.raises(OptionError, match="merge='codes' needs an index with codes"):
        explained(engine, query, SearchOptions(), (0, 0))


def test_photographs_are_explained_by_codes_as_they_were_found(coded_index_path: Path, photographs: Path) -> None:
    with Index.open(coded_index_path) as index:
        assert index.default_options.merge == "codes"
        photograph, confirmed = photographs / "tower-b.jpg", 0
        size = index.features(photograph)
        fast = {hit.image: hit.score for hit in index.search(photograph, preset="fast", top=12)}
        for hit in index.search(photograph, top=12):
            explanation = index.explain(photograph, hit)
            assert np.count_nonzero(explanation.inlier) == hit.inliers
            best = np.zeros(len(size))
            np.maximum.at(best, explanation.query, explanation.weight)
            assert best.sum() == pytest.approx(fast[hit.image], rel=1e-3, abs=1e-3)
            if explanation.transform is not None:
                assert outline((0, 0, size.width, size.height), explanation.transform) == hit.outline
                confirmed += hit.inliers > 20
        assert confirmed >= 3
        values = json.loads(json.dumps(explanation.as_dict(None, {"width": 9, "height": 9}, 5)))
    assert values["n_vocabularies"] == 1 and values["inliers"] == hit.inliers and len(values["matches"]) <= 5
