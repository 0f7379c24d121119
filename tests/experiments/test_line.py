"""Term 2: true matches are what a loop counts, the fitted line is the planted one, with labels and without."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benches import bench_of
from polyvoc.errors import OptionError
from polyvoc.experiments.datasets.readers import READERS, Question
from polyvoc.experiments.fit.line import Fit, fit_line, fit_line_pairs, line_figure, measure_line
from polyvoc.experiments.fit.true_matches import (
    Criterion,
    Observations,
    Pairs,
    Sampling,
    find_pairs,
    near,
    observe,
    observe_pairs,
)
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.workbench import Workbench
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.vocabulary.vocabulary import Vocabulary
from random_collections import World, random_world
from samples import unflushed
from views import SCENES, VIEWS

__all__ = ["unflushed"]

CRITERIA: tuple[Criterion, ...] = ("either", "both", "mean", "first")


def sorted_rows(seen: Observations) -> list[tuple[float, int, int]]:
    return sorted(zip(seen.ratio.round(12).tolist(), seen.inside.tolist(), seen.true.tolist(), strict=True))


def planted(a: float, b: float, seed: int = 0, groups: int = 60, features: int = 400) -> Observations:
    """Draw true matches of which each stands in the intersection with the probability a r + b, cut to [0, 1]."""
    rng = np.random.default_rng([7, seed])
    n = groups * features
    ratio = rng.beta(1, 4, n)
    true = rng.integers(1, 5, n)
    inside = rng.binomial(true, np.clip(a * ratio + b, 0, 1))
    return Observations(ratio, inside, true, np.repeat(np.arange(groups), features), groups, groups)


# -- true matches from ground truth


def test_a_hand_worked_example() -> None:
    """One query feature with words (1, 1): image 1 holds two true matches, one in both lists; image 2 is not relevant."""
    images = [
        np.array([[1, 1]], np.int32),  # the query
        np.array([[1, 1], [1, 2], [3, 1], [5, 5]], np.int32),
        np.array([[1, 1], [1, 7]], np.int32),
        np.array([[1, 1]], np.int32),  # junk
    ]
    zero, far = np.uint64(0), np.uint64(2**32 - 1)
    bits = [np.full(words.shape, zero) for words in images]
    bits[1][2] = far  # shares the second word, at distance 32
    bench = bench_of(images, bits, [Question("q", Path(), 0)], {"": (Truth(frozenset({0, 1, 3}), frozenset({3})),)})
    seen = observe(bench)
    # union: the query itself, three of image 1, two of image 2, one of the junk; intersection: one of each image
    assert sorted_rows(seen) == [(round(4 / 7, 12), 1, 2)]
    assert (seen.questions, seen.pairs, seen.share) == (1, 1, 0.5)
    assert sorted_rows(observe(bench, with_query=False)) == [(round(3 / 6, 12), 1, 2)]
    assert sorted_rows(observe(bench, distance=33)) == [(round(4 / 7, 12), 1, 3)]


def test_which_distance_decides() -> None:
    shared = np.array([[True, True], [True, True], [True, True], [True, False], [False, True], [False, True]])
    distance = np.array([[5, 30], [30, 5], [25, 10], [19, 255], [255, 19], [255, 20]])
    decided = {criterion: near(shared, distance, 20, criterion).tolist() for criterion in CRITERIA}
    assert decided == {
        "either": [True, True, True, True, True, False],
        "both": [False, False, False, True, True, False],
        "mean": [True, True, True, True, True, False],
        "first": [True, False, False, True, True, False],
    }
    assert near(shared[:1], np.array([[10, 30]]), 20, "mean").tolist() == [False]  # 20 is not below 20
    with pytest.raises(OptionError, match="criterion='all' should be one of either, both, mean, first"):
        near(shared, distance, 20, "all")  # type: ignore[arg-type]


def count_by_hand(
    world: World, asked: int, relevant: set[int], distance: int, criterion: Criterion, leave_out: set[int]
) -> list[tuple[float, int, int]]:
    """Count with loops what the features of one image observe."""
    rows = []
    for x, bits in zip(world.images[asked], world.image_signatures[asked], strict=True):
        both = union = inside = true = 0
        for number, (words, signatures) in enumerate(zip(world.images, world.image_signatures, strict=True)):
            for y, other in zip(words, signatures, strict=True):
                held = [k for k in range(len(x)) if x[k] == y[k]]
                if not held:
                    continue
                if number not in leave_out:
                    union += 1
                    both += len(held) == len(x)
                h = [int(bits[k] ^ other[k]).bit_count() for k in held]
                value = {"either": min(h), "both": max(h), "mean": sum(h) / len(h), "first": h[0]}[criterion]
                if number in relevant and value < distance:
                    true += 1
                    inside += len(held) == len(x)
        if true:
            rows.append((round(both / union, 12), inside, true))
    return rows


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("with_query", [True, False])
def test_a_loop_observes_the_same(criterion: Criterion, with_query: bool) -> None:
    observed = 0
    for seed in range(45):
        world = random_world(seed, k=2 + seed % 2)
        n = len(world.images)
        if n < 3:
            continue
        truth = Truth(frozenset({0, 1, 2, n - 1}), frozenset({2}))
        bench = bench_of(
            list(world.images),
            list(world.image_signatures),
            [Question(str(q), Path(), q) for q in (0, 1)],
            {"": (truth, truth)},
        )
        expected = []
        for asked in (0, 1):
            relevant = {0, 1, n - 1} - {2, asked}
            expected += count_by_hand(world, asked, relevant, 12, criterion, set() if with_query else {asked})
        seen = observe(bench, distance=12, criterion=criterion, with_query=with_query)
        assert sorted_rows(seen) == sorted(expected)
        observed += len(expected)
    assert observed > 100


def test_a_question_from_outside_and_one_of_several_levels() -> None:
    world = random_world(4, k=2)
    images, signatures = list(world.images), list(world.image_signatures)
    easy, hard = Truth(frozenset({0})), Truth(frozenset({1, 2}))
    outside = Question("q", Path(), None)
    bench = bench_of([*images, images[0]], [*signatures, signatures[0]], [outside], {"easy": (easy,), "hard": (hard,)})
    assert sorted_rows(observe(bench, "hard")) == sorted(count_by_hand(world, 0, {1, 2}, 20, "either", set()))
    assert sorted_rows(observe(bench)) == sorted(count_by_hand(world, 0, {0}, 20, "either", set()))
    assert sorted_rows(observe(bench, with_query=False)) == sorted_rows(observe(bench))
    with pytest.raises(OptionError, match="level='medium' should be one of 'easy', 'hard'"):
        observe(bench, "medium")
    judged = {"easy": (easy,), "medium": (hard,)}  # a rule is known by the medium level, so that is what it learns from
    revisited = bench_of([*images, images[0]], [*signatures, signatures[0]], [outside], judged)
    assert sorted_rows(observe(revisited)) == sorted_rows(observe(bench, "hard"))


def test_questions_of_one_group_are_grouped() -> None:
    images = [np.array([[1, 1]], np.int32)] * 4
    bits = [np.zeros((1, 2), np.uint64)] * 4
    truth = Truth(frozenset(range(4)))
    asked = [Question(str(q), Path(), q, group=group) for q, group in enumerate(("x", "y", "x", ""))]
    seen = observe(bench_of(images, bits, asked, {"": (truth,) * 4}))
    assert seen.group.tolist() == [0, 1, 0, 2]
    assert seen.pairs == 12


def test_two_vocabularies_with_signatures_are_needed() -> None:
    words = [np.array([[1, 1]], np.int32)] * 2
    truths = {"": (Truth(frozenset({1})),)}
    bits = [np.zeros((1, 2), np.uint64)] * 2
    with pytest.raises(OptionError, match="two vocabularies with signatures"):
        observe(bench_of(words, None, [Question("q", Path(), 0)], truths))
    with pytest.raises(OptionError, match="two vocabularies with signatures"):
        observe(bench_of(words, bits, [Question("q", Path(), 0)], truths).first(1))


# -- the line


def test_the_planted_line_is_found() -> None:
    for seed, (a, b) in enumerate([(0.7, 0.3), (0.4, 0.6), (0.9, 0.1)]):
        fitted = fit_line(planted(a, b, seed))
        assert fitted.free == pytest.approx((a, b), abs=0.03)
        assert fitted.tied == pytest.approx((a, b), abs=0.02)
        assert sum(fitted.tied) == pytest.approx(1)
        assert fitted.a.low < a < fitted.a.high
        assert fitted.b.low < b < fitted.b.high
        assert fitted.tied_b.low < b < fitted.tied_b.high
        assert fitted.tied_b.high - fitted.tied_b.low < 0.03


def test_the_free_line_is_the_least_squares_of_the_bins() -> None:
    seen = planted(1.2, 0.2)
    fitted = fit_line(seen)
    bins = fitted.bins
    assert fitted.free == pytest.approx(np.polyfit(bins.ratio, bins.share, 1, w=np.sqrt(bins.weight)))
    assert fitted.raw == pytest.approx(np.polyfit(seen.ratio, seen.inside / seen.true, 1))
    steps = np.linspace(0, 1, 100_001)
    errors = [(bins.weight * ((1 - b) * bins.ratio + b - bins.share) ** 2).sum() for b in steps]
    assert fitted.tied[1] == pytest.approx(steps[np.argmin(errors)], abs=2e-5)


def test_bins_by_hand() -> None:
    seen = Observations(
        ratio=np.array([0.0, 0.1, 0.2, 0.6, 0.7, 1.0]),
        inside=np.array([1, 0, 2, 3, 3, 4]),
        true=np.array([2, 1, 3, 4, 4, 4]),
        group=np.array([0, 0, 1, 1, 2, 2]),
        questions=3,
        pairs=3,
    )
    fitted = fit_line(seen, width=0.5, least=6)
    np.testing.assert_allclose(fitted.bins.ratio, [(0.1 + 3 * 0.2) / 6, (4 * 0.6 + 4 * 0.7 + 4) / 12])
    np.testing.assert_allclose(fitted.bins.share, [3 / 6, 10 / 12])
    np.testing.assert_allclose(fitted.bins.weight, [6, 12])
    with pytest.raises(OptionError, match=r"18 true matches of 3 pairs are too few to fit a line: 1 bins"):
        fit_line(seen, width=0.5, least=7)


def test_bins_with_few_true_matches_do_not_count() -> None:
    seen = planted(0.7, 0.3)
    stray = Observations(
        ratio=np.append(seen.ratio, 0.999),
        inside=np.append(seen.inside, 0),
        true=np.append(seen.true, 5),
        group=np.append(seen.group, 0),
        questions=seen.questions,
        pairs=seen.pairs,
    )
    assert fit_line(stray).free == pytest.approx(fit_line(seen).free)
    assert fit_line(stray, least=1).free != pytest.approx(fit_line(seen, least=1).free)


def test_the_fit_is_repeatable_and_json() -> None:
    seen = planted(0.7, 0.3)
    result = fit_line(seen).as_dict()
    assert json.loads(json.dumps(result, allow_nan=False)) == fit_line(seen).as_dict()
    assert result["true_matches"] == seen.true.sum()
    assert (result["features"], result["groups"], result["pairs"]) == (len(seen.ratio), 60, 60)
    assert len({len(result["bins"][name]) for name in ("ratio", "share", "weight", "low", "high")}) == 1


def test_one_group_has_no_interval() -> None:
    seen = replace(planted(0.7, 0.3), group=np.zeros(60 * 400, np.int64))
    fitted = fit_line(seen)
    assert fitted.free == pytest.approx(fit_line(planted(0.7, 0.3)).free)
    assert (fitted.b.low, fitted.b.high) == (-math.inf, math.inf)
    result = fitted.as_dict()
    assert result["intervals"]["tied_b"] == [None, None]
    assert json.dumps(result, allow_nan=False)


def test_features_of_one_group_are_not_independent() -> None:
    seen = planted(0.7, 0.3)
    shaken = replace(seen, inside=np.where(seen.group % 2, seen.true, seen.inside))  # half of the groups are another world
    mixed = np.random.default_rng(0).permutation(len(seen.group)) % 600
    assert _width(fit_line(shaken)) > 5 * _width(fit_line(replace(shaken, group=mixed)))


def _width(fitted: Fit) -> float:
    return fitted.tied_b.high - fitted.tied_b.low


def test_nothing_to_fit_and_impossible_bins() -> None:
    none = np.empty(0, np.int64)
    empty = Observations(np.empty(0), none, none, none, 5, 0)
    assert empty.share == 0
    with pytest.raises(OptionError, match="0 true matches of 0 pairs are too few"):
        fit_line(empty)
    with pytest.raises(OptionError, match="too few to test"):
        measure_line((0.6, 0.4), empty)
    for width, least in ((0.0, 20), (0.6, 20), (0.1, 0)):
        with pytest.raises(OptionError, match="width"):
            fit_line(planted(0.7, 0.3), width, least)


# -- fitted here, tested there


def test_a_prediction_by_hand() -> None:
    seen = Observations(np.array([0.1, 0.6]), np.array([5, 18]), np.array([20, 20]), np.array([0, 1]), 2, 2)
    judged = measure_line((0.5, 0.2), seen)
    chances = (0.25, 0.5)
    likelihood = (5 * math.log(0.25) + 15 * math.log(0.75) + 20 * math.log(0.5)) / 40
    assert judged.likelihood == pytest.approx(likelihood)
    assert judged.error == pytest.approx(math.sqrt(((chances[0] - 0.25) ** 2 + (chances[1] - 0.9) ** 2) / 2))
    share = 23 / 40
    assert judged.constant_likelihood == pytest.approx(share * math.log(share) + (1 - share) * math.log(1 - share))
    assert judged.gain == pytest.approx(likelihood - judged.constant_likelihood)
    assert judged.as_dict()["gain"] == judged.gain


def test_the_right_line_predicts_best() -> None:
    seen = planted(0.7, 0.3, seed=1)
    right, wrong = measure_line((0.7, 0.3), seen), measure_line((0.3, 0.7), seen)
    assert right.gain > 0 > wrong.gain
    assert right.error < 0.02 < wrong.error
    level = measure_line((0.0, seen.share), seen)
    assert level.gain == pytest.approx(0)
    assert measure_line(fit_line(planted(0.7, 0.3, seed=2)).tied, seen).gain == pytest.approx(right.gain, abs=1e-3)


def test_a_line_is_cut_as_the_rules_cut_it() -> None:
    seen = Observations(np.array([0.0, 1.0]), np.array([0, 30]), np.array([30, 30]), np.array([0, 1]), 2, 2)
    judged = measure_line((3.0, -1.0), seen)
    assert math.isfinite(judged.likelihood)
    assert judged.error == pytest.approx(0, abs=1e-5)


def test_the_figure() -> None:
    fits = {"one": fit_line(planted(0.7, 0.3)), "two": fit_line(planted(1.2, 0.2))}
    drawn = line_figure(fits)
    assert [panel.title for panel in drawn.panels] == ["one", "two"]
    for panel, fitted in zip(drawn.panels, fits.values(), strict=True):
        points, free, tied = panel.series
        assert points.y == pytest.approx(fitted.bins.share)
        assert all(low <= y <= high for low, y, high in zip(points.low, points.y, points.high, strict=True))
        assert (free.y[0], tied.y[-1]) == (pytest.approx(fitted.free[1]), pytest.approx(1))
        assert max(free.y) <= 1
    one = fit_line(replace(planted(0.7, 0.3), group=np.zeros(60 * 400, np.int64)))
    assert set(line_figure({"one": one}).panels[0].series[0].low) == {None}


# -- without labels


@pytest.fixture
def index(views_index: Path) -> Index:
    return Index.open(views_index)


def observe_verified(index: Index, sampling: Sampling = Sampling()) -> Observations:  # noqa: B008 (frozen)
    return observe_pairs(index, find_pairs(index, sampling))


def test_verified_pairs_observe_what_labels_do(
    index: Index, views: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path
) -> None:
    """All pairs of views are verified and no others, so that every feature observes the same as with ground truth."""
    steps: list[tuple[str, int, int]] = []
    without = observe_pairs(index, find_pairs(index, progress=lambda *step: steps.append(step)))
    dataset = READERS["groups"](views)
    labelled = observe(Workbench(tmp_path).bench(dataset, vocabularies), with_query=False)
    assert without.pairs == labelled.pairs == SCENES * VIEWS * (VIEWS - 1)
    assert without.questions == labelled.questions == SCENES * VIEWS
    assert sorted_rows(without) == sorted_rows(labelled)
    assert len(np.unique(without.group)) == SCENES
    assert fit_line(without).free == pytest.approx(fit_line(labelled).free)
    assert steps[-1] == ("verifying", SCENES * VIEWS, SCENES * VIEWS)


def test_a_sample_is_repeatable(index: Index) -> None:
    first, again, other = (observe_verified(index, Sampling(queries=5, seed=seed)) for seed in (0, 0, 1))
    assert first.questions == 5
    assert sorted_rows(first) == sorted_rows(again) != sorted_rows(other)


def test_any_two_vocabularies_can_be_compared(index: Index) -> None:
    assert sorted_rows(observe_verified(index, Sampling(pair=(1, 0)))) == sorted_rows(observe_verified(index))
    for pair in ((0, 2), (0, 0), (-1, 0)):
        with pytest.raises(OptionError, match="two vocabularies"):
            observe_verified(index, Sampling(pair=pair))


def test_removed_images_are_neither_queries_nor_hits(index: Index, views: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(index.home.path, tmp_path / "copy"))
    with IndexWriter.open(path) as writer:
        writer.remove([views / "0" / "0.jpg"])
    seen = observe_verified(Index.open(path))
    assert seen.questions == SCENES * VIEWS - 1
    assert seen.pairs == SCENES * VIEWS * (VIEWS - 1) - 4


def test_copies_are_left_out(index_path: Path) -> None:
    index = Index.open(index_path)  # of photographs that are turned, cropped and darkened without a loss
    assert observe_verified(index).pairs == 0
    assert observe_verified(index, Sampling(copy_bits=0.0)).pairs == 24


def test_too_few_pairs_are_an_error(index: Index, index_path: Path) -> None:
    copies = Index.open(index_path)
    with pytest.raises(
        OptionError, match=r"^12 queries .* 0 verified pairs, .* at least 20 are needed; index more photographs"
    ):
        fit_line_pairs(copies, find_pairs(copies))
    with pytest.raises(OptionError, match=r"^3 queries .* 6 verified pairs, .*; give a larger --queries, or index more"):
        fit_line_pairs(index, find_pairs(index, Sampling(queries=3)))
    assert fit_line_pairs(index, find_pairs(index)).tied == fit_line(observe_verified(index)).tied


def test_signatures_are_needed() -> None:
    words = [np.array([[1, 1], [2, 2]], np.int32)] * 3
    bits = [np.zeros((2, 2), np.uint64)] * 3
    with pytest.raises(OptionError, match="needs an index with signatures"):
        observe_verified(Index.from_words(words, (5, 5)))
    with pytest.raises(OptionError, match="of two vocabularies"):
        observe_verified(Index.from_words([w[:, :1] for w in words], (5,), [b[:, :1] for b in bits]))
    assert observe_verified(Index.from_words(words, (5, 5), bits)).pairs == 0  # nothing is known of places


def test_impossible_samples_are_errors() -> None:
    for name in ("queries", "candidates", "inliers"):
        with pytest.raises(OptionError, match=f"{name}=0 should be at least 1"):
            Sampling(**{name: 0})


def test_scenes_that_touch_are_one_group() -> None:
    a, b, c, d, e = ((0, n) for n in range(5))
    related: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {a: (b,), c: (d,), d: (e,), b: (a,)}
    groups = Pairs(Sampling(), (a, b, c, d, e), related, {}).groups
    assert groups == {a: groups[a], b: groups[a], c: groups[c], d: groups[c], e: groups[c]}
    assert groups[a] != groups[c]
