"""The probability of a hit rises with its evidence, is None where no model was fitted, and `min_probability` uses it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import run, searched
from conftest import draw_scene
from polyvoc.errors import DamagedError, OptionError
from polyvoc.options import Preset, preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.hits import Hits, SearchResult
from polyvoc.search.index import Index
from polyvoc.search.pipeline import search
from polyvoc.search.probability import (
    HitProbability,
    NoiseRanks,
    default_hit_probability,
    hit_probability_of,
    nothing_found_text,
    probability_text,
)
from polyvoc.search.query import Query
from polyvoc.types import FeatureKind
from polyvoc.web.html import search_page
from random_collections import plain
from scenes import RIGHT, SIZES, engine_of, picture, world

SHIPPED = default_hit_probability()
NAMES: tuple[Preset, ...] = ("fast", "default", "best")


# -- the model


def test_more_votes_and_more_nats_never_make_a_hit_less_probable() -> None:
    ranks, weights = np.linspace(-12, 60, 37), np.concatenate([[0], np.geomspace(0.1, 5000, 40)])
    by_words = [SHIPPED.of(rank) for rank in ranks]
    verified = np.array([[SHIPPED.of(rank, weight) for weight in weights] for rank in ranks])
    assert by_words == sorted(by_words) and by_words[0] < 0.01 and by_words[-1] > 0.99
    assert (np.diff(verified, axis=0) >= 0).all() and (np.diff(verified, axis=1) >= 0).all()
    assert 0 <= verified.min() < 0.01 and 0.99 < verified.max() <= 1
    assert SHIPPED.of(-1e6) == 0 and SHIPPED.of(1e6, 1e9) == 1  # no overflow


def test_no_consistent_transform_is_evidence_against_a_hit() -> None:
    assert SHIPPED.of(2.0, 0.0) < SHIPPED.of(2.0) < SHIPPED.of(2.0, 100.0)


def test_the_formula() -> None:
    model = HitProbability((-1.0, 0.5), (-2.0, 0.25, 3.0))
    odds = math.log(0.8 / 0.2)
    assert model.of(2 * (odds + 1)) == pytest.approx(0.8)
    assert model.of(4.0, 20 * (math.exp((odds + 1) / 3) - 1)) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "votes, verified", [((0.0, -1.0), (0.0, 1.0, 1.0)), ((0.0, 1.0), (0.0, 1.0, -0.1)), ((0.0, math.nan), (0.0, 1.0, 1.0))]
)
def test_impossible_coefficients_raise(votes: tuple[float, float], verified: tuple[float, float, float]) -> None:
    with pytest.raises(OptionError, match="coefficients"):
        HitProbability(votes, verified)
    with pytest.raises(OptionError, match=r"share=-0\.1 should be a number"):
        HitProbability((0.0, 1.0), (0.0, 1.0, 1.0), share=-0.1)


def test_orb_has_coefficients_of_its_own() -> None:
    orb = hit_probability_of(orb_kind(), 128, 0)
    assert orb is not None and orb == default_hit_probability("orb") != SHIPPED == hit_probability_of(FeatureKind(), 128, 0)
    assert orb.of(-5.0, 0.0) < 0.1 and orb.of(5.0, 200.0) > 0.9
    for kind, bits in ((FeatureKind("orb", 128, True), 128), (FeatureKind("akaze", 486, True), 128), (orb_kind(), 32)):
        assert hit_probability_of(kind, bits, 0) is None


def test_xfeat_has_coefficients_of_its_own() -> None:
    kind = FeatureKind("xfeat", 64)
    xfeat = hit_probability_of(kind, 128, 0)
    assert xfeat is not None and xfeat == default_hit_probability("xfeat") not in (SHIPPED, default_hit_probability("orb"))
    assert xfeat.of(-5.0, 0.0) < 0.1 and xfeat.of(5.0, 200.0) > 0.9
    assert 0 < xfeat.share < 1 == SHIPPED.share
    for other, bits in ((FeatureKind("xfeat", 128), 128), (FeatureKind("aliked", 64), 128), (kind, 32)):
        assert hit_probability_of(other, bits, 0) is None


def orb_kind() -> FeatureKind:
    return FeatureKind("orb", 256, True)


def test_coefficients_are_read_as_they_were_written() -> None:
    assert HitProbability.from_dict(SHIPPED.as_dict(), "") == SHIPPED and SHIPPED.source
    for broken in (None, {}, {**SHIPPED.as_dict(), "format": "x"}, {**SHIPPED.as_dict(), "votes": [1]},
                   {**SHIPPED.as_dict(), "share": None}):  # fmt: skip
        with pytest.raises(DamagedError, match=r"there\.json: not a table of hit probabilities"):
            HitProbability.from_dict(broken, "there.json")


def test_texts() -> None:
    texts = [probability_text(p) for p in (0, 0.004, 0.005, 0.5, 0.966, 0.994, 0.9951, 1)]
    assert texts == ["< 1 %", "< 1 %", "1 %", "50 %", "97 %", "99 %", "> 99 %", "> 99 %"]
    assert nothing_found_text(0.9, any_hits=True) == "nothing found that is likely to show the same thing"
    assert nothing_found_text().startswith("nothing found: no photograph of the index shares a feature")
    assert nothing_found_text(0.9) == "nothing found that shows the same thing with a probability of 90 % or more"


# -- noise ranks


def test_noise_ranks_do_not_depend_on_the_scale_or_power_of_scores() -> None:
    rng = np.random.default_rng(3)
    scores = np.sort(rng.pareto(4, 300) + 0.1)[::-1]
    one, other = NoiseRanks.of(scores.tolist(), 300), NoiseRanks.of((7 * scores**2.5).tolist(), 300)
    for rank, score in enumerate(scores, start=1):
        assert other.noise_rank(7 * score**2.5, rank) == pytest.approx(one.noise_rank(score, rank))


def test_a_noise_rank_is_the_number_of_unrelated_images_that_would_score_as_much() -> None:
    rng = np.random.default_rng(4)
    for n in (200, 1000, 20_000):
        ranks = []
        for _ in range(300):
            scores = np.sort(rng.pareto(4, n) + 1)[::-1]
            ranks.append(NoiseRanks.of(scores[:100].tolist(), n).noise_rank(3.0 * n**0.25, 1))
        assert np.median(ranks) == pytest.approx(math.log(81), abs=0.5)  # P(score > s) = s^-4: 1 / 81 of an image


def test_a_higher_score_never_has_a_lower_noise_rank_though_many_are_equal() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        scores = np.sort(rng.integers(1, 8, 120) + rng.pareto(3, 120).round(1))[::-1].tolist()
        noise = NoiseRanks.of(scores, 480)
        ranks = [noise.noise_rank(score, rank) for rank, score in enumerate(scores, start=1)]
        assert ranks == sorted(ranks, reverse=True)


def test_a_hit_that_is_not_among_the_best_by_words_has_the_lowest_rank() -> None:
    noise = NoiseRanks.of([5.0, 4.0, 3.0], 3)
    assert noise.noise_rank(None, 0) == -math.log(4) < noise.noise_rank(3.0, 3) < noise.noise_rank(5.0, 1)


# -- searches


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_segments_make_no_difference(seed: int, bits: int) -> None:
    query, images = world(seed, bits)
    found = []
    for size in (100, 7):
        for name in NAMES:
            candidates = search(engine_of(images, size), query.query, replace(preset(name, bits), top=12), SHIPPED)
            found.append([(one.image, one.probability) for one in candidates])
            assert all(one.probability == SHIPPED.of(one.noise_rank or 0.0, one.weight) for one in candidates)
    assert found[:3] == found[3:]
    assert found[1][0][0] == RIGHT and found[1][0][1] is not None and found[1][0][1] > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_min_probability_drops_exactly_what_is_less_probable(name: Preset) -> None:
    query, images = world(1)
    engine, options = engine_of(images, 9), replace(preset(name, 64), top=30)
    every = search(engine, query.query, options, SHIPPED)
    values = sorted({one.probability or 0.0 for one in every})
    assert len(every) > 5 and all(0 <= value <= 1 for value in values)
    for limit in (values[0], values[len(values) // 2], values[-1], min(1.0, values[-1] + 1e-9)):
        kept = search(engine, query.query, replace(options, min_probability=limit), SHIPPED)
        assert [one.image for one in kept] == [one.image for one in every if (one.probability or 0.0) >= limit]


@pytest.mark.parametrize("name", NAMES)
def test_ranking_and_scores_are_the_same_with_and_without_probabilities(name: Preset) -> None:
    query, images = world(2)
    engine = engine_of(images, 9)
    without, rated = (search(engine, query.query, preset(name, 64), model) for model in (None, SHIPPED))
    assert [(one.image, one.score) for one in without] == [(one.image, one.score) for one in rated]
    assert {one.probability for one in without} == {None} and None not in {one.probability for one in rated}


def test_first_hits_have_the_probability_by_words() -> None:
    query, images = world(0)
    engine, first = engine_of(images), []
    search(engine, query.query, preset("default", 64), SHIPPED, on_first=first.extend)
    fast = search(engine, query.query, preset("fast", 64), SHIPPED)
    assert [(one.image, one.probability) for one in first] == [(one.image, one.probability) for one in fast] != []


@pytest.mark.parametrize("k", [1, 2, 3])
def test_any_number_of_vocabularies_has_probabilities(k: int) -> None:
    rng = np.random.default_rng(k)
    images = [picture(rng) for _ in range(20)]
    engine = Engine.from_words([one.words[:, :k] for one in images], SIZES[:k], [one.signatures[:, :k] for one in images])
    query = Query(None, images[4].words[:, :k], images[4].signatures[:, :k])
    first = search(engine, query, preset("fast", 64), SHIPPED)[0]
    assert first.image == 4 and first.probability is not None and 0 < first.probability <= 1


# -- an index


def test_an_index_without_a_fitted_model_has_no_probabilities(index_path: Path) -> None:
    words = Index.from_words([np.array([[1, 2]]), np.array([[3, 4]])], (5, 5))
    assert words.probability is None
    with pytest.raises(OptionError, match=r"min_probability=0\.5: no probability model .* leave min_probability out"):
        search(words.engine, Query(words=np.array([[1, 2]])), plain(min_probability=0.5), words.probability)
    with Index.open(index_path) as index:
        vars(index.folder)["kind"] = FeatureKind("superpoint", 256)
        assert index.probability is None and {hit.probability for hit in index.search(1)} == {None}


def test_a_photograph_finds_itself_with_a_high_probability(index_path: Path, photographs: Path) -> None:
    path = min(photographs.glob("*.jpg"))
    with Index.open(index_path) as index:
        assert index.probability == SHIPPED
        hits = index.search(path, min_probability=0.9)
        assert hits[0].path == str(path) and all(hit.probability is not None and hit.probability >= 0.9 for hit in hits)


def test_commands_show_probabilities_and_what_is_not_found(index_path: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.png"
    draw_scene(977).save(unknown)
    hits = searched(unknown, "--index", index_path)["hits"]
    assert all(0 <= hit["probability"] <= 1 for hit in hits)
    limit = min(1.0, max((hit["probability"] for hit in hits), default=0.0) + 1e-6)
    result = searched(unknown, "--index", index_path, "--min-probability", limit)
    assert result["hits"] == [] and result["options"]["min_probability"] == limit
    shown = run("search", unknown, "--index", index_path, "--min-probability", limit)
    assert shown.exit_code == 0 and shown.stderr == ""
    assert shown.stdout.count("\n") == 1 and ": nothing found that shows the same thing with a probability of" in shown.stdout
    listed = run("search", "--image", 1, "--index", index_path)
    assert listed.exit_code == 0 and " > 99 % " in listed.stdout.splitlines()[2]
    empty = SearchResult("a.jpg", replace(preset("default"), min_probability=1.0), Hits())
    assert "Nothing found that shows the same thing with a probability of 100 % or more" in search_page(
        [empty], lambda path: True
    )
