"""The probability of a hit rises with what speaks for it, is None where nobody knows it, and `sure` means what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_searching import RIGHT, world

from commands import answer, run
from conftest import draw_scene
from polyvoc.errors import DamagedError, OptionError
from polyvoc.options import preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.hits import Hits
from polyvoc.search.index import Index, Question, ask, open_index
from polyvoc.search.pipeline import search
from polyvoc.search.probability import HitProbability, NoiseRanks, probability_text, shipped_hit_probability
from polyvoc.search.query import Query
from polyvoc.types import FeatureKind
from polyvoc.web.html import search_page
from random_collections import plain
from scenes import SIZES, engine_of, picture

SHIPPED = shipped_hit_probability()


# -- the model


def test_more_votes_and_more_nats_never_make_a_hit_less_probable() -> None:
    standings, weights = np.linspace(-12, 60, 37), np.concatenate([[0], np.geomspace(0.1, 5000, 40)])
    by_words = [SHIPPED.probability(standing) for standing in standings]
    verified = np.array([[SHIPPED.probability(standing, weight) for weight in weights] for standing in standings])
    assert by_words == sorted(by_words) and by_words[0] < 0.01 and by_words[-1] > 0.99
    assert (np.diff(verified, axis=0) >= 0).all() and (np.diff(verified, axis=1) >= 0).all()
    assert 0 <= verified.min() < 0.01 and 0.99 < verified.max() <= 1
    assert SHIPPED.probability(-1e6) == 0 and SHIPPED.probability(1e6, 1e9) == 1  # no overflow


def test_an_arrangement_that_nothing_agrees_with_speaks_against_a_hit() -> None:
    assert SHIPPED.probability(2.0, 0.0) < SHIPPED.probability(2.0) < SHIPPED.probability(2.0, 100.0)


def test_the_formula() -> None:
    model = HitProbability((-1.0, 0.5), (-2.0, 0.25, 3.0))
    odds = math.log(0.8 / 0.2)
    assert model.probability(2 * (odds + 1)) == pytest.approx(0.8)
    assert model.probability(4.0, 20 * (math.exp((odds + 1) / 3) - 1)) == pytest.approx(0.8)


def test_coefficients_that_point_the_wrong_way_are_refused() -> None:
    for votes, verified in (((0.0, -1.0), (0.0, 1.0, 1.0)), ((0.0, 1.0), (0.0, 1.0, -0.1)), ((0.0, math.nan), (0.0, 1.0, 1.0))):
        with pytest.raises(OptionError, match="coefficients"):
            HitProbability(votes, verified)


def test_a_table_is_read_as_it_was_written_and_others_are_refused() -> None:
    assert HitProbability.from_dict(SHIPPED.as_dict(), "") == SHIPPED and SHIPPED.source
    for broken in (None, {}, {**SHIPPED.as_dict(), "format": "x"}, {**SHIPPED.as_dict(), "votes": [1]}):
        with pytest.raises(DamagedError, match=r"there\.json: not a table of confidence"):
            HitProbability.from_dict(broken, "there.json")


def test_percents_in_words() -> None:
    said = [probability_text(p) for p in (0, 0.004, 0.005, 0.5, 0.966, 0.994, 0.9951, 1)]
    assert said == ["< 1 %", "< 1 %", "1 %", "50 %", "97 %", "99 %", "> 99 %", "> 99 %"]


# -- standing


def test_standing_does_not_depend_on_the_scale_or_power_of_scores() -> None:
    rng = np.random.default_rng(3)
    scores = np.sort(rng.pareto(4, 300) + 0.1)[::-1]
    one = NoiseRanks.of(scores.tolist(), 300)
    other = NoiseRanks.of((7 * scores**2.5).tolist(), 300)
    for rank, score in enumerate(scores, start=1):
        assert other.standing(7 * score**2.5, rank) == pytest.approx(one.standing(score, rank))


def test_standing_is_the_number_of_unrelated_images_that_would_score_as_much() -> None:
    rng = np.random.default_rng(4)
    for n in (200, 1000, 20_000):
        found = []
        for _ in range(300):
            scores = np.sort(rng.pareto(4, n) + 1)[::-1]
            found.append(NoiseRanks.of(scores[:100].tolist(), n).standing(3.0 * n**0.25, 1))
        assert np.median(found) == pytest.approx(math.log(81), abs=0.5)  # P(score > s) = s^-4: 1 / 81 of an image


def test_more_votes_never_stand_lower_though_many_score_the_same() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        scores = np.sort(rng.integers(1, 8, 120) + rng.pareto(3, 120).round(1))[::-1].tolist()
        standings = NoiseRanks.of(scores, 480)
        found = [standings.standing(score, rank) for rank, score in enumerate(scores, start=1)]
        assert found == sorted(found, reverse=True)


def test_a_hit_that_words_do_not_name_stands_behind_all_that_they_do() -> None:
    standings = NoiseRanks.of([5.0, 4.0, 3.0], 3)
    assert standings.standing(None, 0) == -math.log(4) < standings.standing(3.0, 3) < standings.standing(5.0, 1)


# -- searches


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_segments_make_no_difference(seed: int, bits: int) -> None:
    query, images = world(seed, bits)
    told = []
    for size in (100, 7):
        for name in ("fast", "default", "best"):
            options = replace(preset(name, bits), top=12)
            found = search(engine_of(images, size), query.asked, options, confidence=SHIPPED)
            told.append([(one.image, one.probability) for one in found])
    assert told[:3] == told[3:]
    assert told[1][0][0] == RIGHT and told[1][0][1] is not None and told[1][0][1] > 0.9


def test_sure_leaves_out_exactly_what_is_less_probable() -> None:
    query, images = world(1)
    engine = engine_of(images, 9)
    for options in (replace(preset(name, 64), top=30) for name in ("fast", "default", "best")):
        every = search(engine, query.asked, options, confidence=SHIPPED)
        chances = sorted({one.probability or 0.0 for one in every})
        assert len(every) > 5 and all(0 <= chance <= 1 for chance in chances)
        for sure in (chances[0], chances[len(chances) // 2], chances[-1], min(1.0, chances[-1] + 1e-9)):
            found = search(engine, query.asked, replace(options, min_probability=sure), confidence=SHIPPED)
            assert [one.image for one in found] == [one.image for one in every if (one.probability or 0.0) >= sure]


def test_ranking_and_scores_are_the_same_with_and_without_probabilities() -> None:
    query, images = world(2)
    engine = engine_of(images, 9)
    for name in ("fast", "default", "best"):
        options = preset(name, 64)
        plain = search(engine, query.asked, options)
        known = search(engine, query.asked, options, confidence=SHIPPED)
        assert [(one.image, one.score) for one in plain] == [(one.image, one.score) for one in known]
        assert {one.probability for one in plain} == {None} and None not in {one.probability for one in known}


def test_early_hits_have_the_probability_that_words_give_them() -> None:
    query, images = world(0)
    engine, early = engine_of(images), []
    search(engine, query.asked, preset("default", 64), None, early.extend, SHIPPED)
    fast = search(engine, query.asked, preset("fast", 64), confidence=SHIPPED)
    assert [(one.image, one.probability) for one in early] == [(one.image, one.probability) for one in fast] != []


@pytest.mark.parametrize("k", [1, 2, 3])
def test_any_number_of_vocabularies_has_probabilities(k: int) -> None:
    rng = np.random.default_rng(k)
    images = [picture(rng) for _ in range(20)]
    engine = Engine.from_words([one.words[:, :k] for one in images], SIZES[:k], [one.signatures[:, :k] for one in images])
    asked = Query(images[4].words[:, :k], images[4].signatures[:, :k])
    first = search(engine, asked, preset("fast", 64), confidence=SHIPPED)[0]
    assert first.image == 4 and first.probability is not None and 0 < first.probability <= 1


# -- an index


def test_where_nobody_knows_there_is_none_and_sure_is_refused(index_path: Path) -> None:
    bare = Index.from_words([np.array([[1, 2]]), np.array([[3, 4]])], (5, 5))
    assert bare.confidence is None
    assert {hit.probability for hit in bare.search_words(np.array([[1, 2]]), None, plain())} == {None}
    with pytest.raises(OptionError, match=r"min_probability=0\.5 needs probabilities, .* leave it out"):
        bare.search_words(np.array([[1, 2]]), None, plain(min_probability=0.5))
    with Index.open(index_path) as index:
        assert index.confidence is SHIPPED
        vars(index.folder)["kind"] = FeatureKind("superpoint", 256)
        assert index.confidence is None and {hit.probability for hit in index.search(1)} == {None}


def test_a_photograph_finds_itself_and_a_page_says_when_nothing_is_left(index_path: Path, photographs: Path) -> None:
    opened, _ = open_index(index_path)
    path = min(photographs.glob("*.jpg"))
    with opened as index:
        found = index.search(str(path), options=replace(index.default_options, min_probability=0.9))
        assert found and all(hit.probability is not None and hit.probability >= 0.9 for hit in found)
        nothing = ask(index, Question(str(path)), replace(index.default_options, min_probability=1.0))
        empty = replace(nothing, hits=Hits())
        said = "Nothing found that shows the same thing with a probability of 100 % or more."
        assert said in search_page([empty]) and empty.as_dict()["hits"] == []


def test_the_command_line_tells_probabilities_and_finds_nothing(index_path: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.png"
    draw_scene(977).save(stranger)
    told = answer("search", stranger, "--index", index_path, "--json")
    assert all(0 <= hit["probability"] <= 1 for hit in told["hits"])
    least = max((hit["probability"] for hit in told["hits"]), default=0.0)
    sure = min(1.0, least + 1e-6)
    found = answer("search", stranger, "--index", index_path, "--sure", sure, "--json")
    assert found["hits"] == [] and found["options"]["sure"] == sure
    shown = run("search", stranger, "--index", index_path, "--sure", sure)
    assert shown.exit_code == 0 and shown.stdout == ""
    assert shown.stderr.count("\n") == 1 and shown.stderr.startswith("nothing found that shows the same thing")
    listed = run("search", "--image", 1, "--index", index_path)
    assert listed.exit_code == 0 and " > 99 % " in listed.stdout.splitlines()[0]


@pytest.mark.parametrize("sure", [-0.1, 1.1, math.nan])
def test_sure_is_a_probability(sure: float) -> None:
    with pytest.raises(OptionError, match="from 0 to 1"):
        plain(min_probability=sure)
