"""The fit of probabilities finds those of a synthetic world, and its calibration is measured as a loop measures it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benches import bench_of
from polyvoc.errors import OptionError
from polyvoc.experiments.datasets.readers import Question
from polyvoc.experiments.fit.hit_probability import (
    Samples,
    collect,
    fit_hit_probability,
    measure_calibration,
    nothing_found,
    predicted,
    reliability_figure,
    without,
)
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import SearchOptions, preset
from polyvoc.search.probability import HitProbability
from polyvoc.vocabulary.vocabulary import Vocabulary
from scenes import engine_of, picture, seen_again, world

TRUE = HitProbability((-1.5, 1.2), (-4.0, 0.9, 7.0))


def drawn(seed: int, n: int = 20_000) -> Samples:
    """Return hits of a world in which TRUE is the truth; half of them verified."""
    rng = np.random.default_rng(seed)
    noise_rank = rng.gamma(1.0, 3.0, n) - 4
    weight = np.where(rng.random(n) < 0.5, np.nan, rng.gamma(0.5, 20.0, n))
    number = np.arange(n)
    samples = Samples(noise_rank, weight, number < 0, number % 10, number % 20 < 10, number // 10, number // 20)
    return replace(samples, right=rng.random(n) < predicted(TRUE, samples))


def test_the_fit_recovers_known_probabilities() -> None:
    fitted = fit_hit_probability(drawn(1), "a world")
    assert fitted.source == "a world"
    assert np.allclose(fitted.votes, TRUE.votes, atol=0.15)
    assert np.allclose(fitted.verified, TRUE.verified, rtol=0.1, atol=0.3)
    other = drawn(2)
    result = measure_calibration(predicted(fitted, other), other)
    assert result.error < 0.01 and result.error_interval[0] <= result.error_interval[1] < 0.02
    right = measure_calibration(predicted(TRUE, other), other)
    assert result.log_loss == pytest.approx(right.log_loss, abs=1e-3)
    too_high = measure_calibration(np.sqrt(predicted(TRUE, other)), other)
    assert too_high.error_interval[0] > 0.05 and too_high.log_loss > right.log_loss


def test_the_judge_counts_as_a_loop_counts() -> None:
    samples = drawn(3, 500)
    chances = predicted(TRUE, samples)
    result = measure_calibration(chances, samples)
    bins: dict[int, list[int]] = {}
    for i, chance in enumerate(chances):
        bins.setdefault(min(int(10 * chance), 9), []).append(i)
    rows = [(float(np.mean(chances[own])), float(np.mean(samples.right[own])), len(own)) for _, own in sorted(bins.items())]
    assert np.allclose(result.bins, rows)
    assert result.error == pytest.approx(sum(n * abs(p - y) for p, y, n in rows) / 500)
    assert result.brier == pytest.approx(np.mean([(p - y) ** 2 for p, y in zip(chances, samples.right, strict=True)]))
    assert result.as_dict()["hits"] == 500 and len(result.as_dict()["bins"]) == len(rows)


def test_nothing_is_found_as_a_loop_finds_it() -> None:
    samples = drawn(5, 400)
    chances = predicted(TRUE, samples)
    result = nothing_found(chances, samples, (0.0, 0.5, 1.0))
    assert result["0"]["empty"] == 0 and result["0"]["kept"] == 1
    left = {int(s) for s, chance in zip(samples.search, chances, strict=True) if chance >= 0.5}
    for flag, name in ((False, "empty"), (True, "lost")):
        asked = {int(s) for s, one in zip(samples.search, samples.answerable, strict=True) if one == flag}
        assert result["0.5"][name] == pytest.approx(len(asked - left) / len(asked), abs=1e-4)
    assert result["0.5"]["precision"] == pytest.approx(samples.right[chances >= 0.5].mean(), abs=1e-4)


def test_a_fit_needs_both_kinds() -> None:
    samples = drawn(6, 200)
    for few in (samples.by_words, samples.verified, samples.chosen(samples.right)):
        with pytest.raises(OptionError, match="right and wrong hits"):
            fit_hit_probability(few)


def test_joined_searches_stay_apart() -> None:
    both = Samples.joined([drawn(7, 100), drawn(8, 60)])
    assert len(both) == 160 and len(np.unique(both.search)) == 16 and len(both.first) == 16


def test_an_engine_without_images_is_as_if_they_had_never_been_there() -> None:
    query, images = world(3)
    engine, gone = engine_of(images), [0, 3, 20]
    left = without(engine, gone)
    assert left.statistics.n_images == len(images) - 3
    options = preset("fast", 64)
    plan = left.plan(options)
    found, _ = left.best(left.query(query.words, query.signatures, plan), plan, depth=100)
    assert found and not {one.image for one in found} & set(gone)


def test_a_figure_has_a_line_per_kind() -> None:
    samples = drawn(9, 2000)
    drawing = reliability_figure({"a": {"words": measure_calibration(predicted(TRUE, samples), samples)}}, "title")
    assert [one.name for one in drawing.panels[0].series] == ["as predicted", "words"]


def test_questions_are_asked_with_and_without_their_answers() -> None:
    rng = np.random.default_rng(11)
    pictures = [picture(rng) for _ in range(24)]  # fewer show no noise
    pictures[1] = seen_again(rng, pictures[0])
    images, bits = [one.words % 40 for one in pictures], [one.signatures for one in pictures]
    question = Question("0", Path("0.jpg"), 0, group="a")
    bench = bench_of(images, bits, [question], {"": (Truth(frozenset({1}), frozenset({0})),)})
    samples = collect(bench, preset("fast", 64))
    assert samples.first.right.tolist() == [True, False] and samples.first.answerable.tolist() == [True, False]
    assert samples.right.sum() == 1 and np.isnan(samples.weight).all() and (np.diff(samples.search) >= 0).all()
    assert samples.noise_rank[0] > samples.noise_rank[1:].max() + 1


def test_questions_are_asked_by_codes(workbench: Workbench, bench: QuantisedDataset, fine: Vocabulary) -> None:
    coded = workbench.bench(bench.dataset, bench.vocabularies, fine)
    samples = collect(coded, SearchOptions(verify=6, expand=2, top=4))
    n = len(bench.dataset.questions)
    final = samples.verified.first
    assert final.search.tolist() == list(range(2 * n)) and final.answerable.tolist() == [True, False] * n
    assert final.right.tolist() == [True, False] * n  # three views of each scene: the others are found, if they are there
    assert final.weight[final.right].min() > 20 > final.weight[~final.right].max()
    assert len(samples.by_words) > 0 and np.array_equal(np.unique(samples.by_words.search), np.arange(2 * n))
