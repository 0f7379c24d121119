"""Measures against independent ones written from the protocols' descriptions, by hand, and by laws; the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvoc.errors import OptionError
from polyvoc.experiments.measures import (
    MEASURES,
    Truth,
    average_precision,
    bootstrap,
    difference,
    ns,
    positions,
    precision_at,
    rank,
    recall_at,
)

# --- Independent versions, in exact fractions, each in the manner of one protocol -------------------------------------


def oxford_ap(ranking: list[int], truth: Truth) -> Fraction:
    """Oxford: walk down the list, pass over junk, join the points of the precision-recall curve by straight lines."""
    old_recall, old_precision, area = Fraction(0), Fraction(1), Fraction(0)
    hits = seen = 0
    for image in ranking:
        if image in truth.junk:
            continue
        seen += 1
        hits += image in truth.relevant
        recall, precision = Fraction(hits, len(truth.relevant)), Fraction(hits, seen)
        area += (recall - old_recall) * (old_precision + precision) / 2
        old_recall, old_precision = recall, precision
    return area


def holidays_ap(ranking: list[int], query: int, relevant: frozenset[int]) -> Fraction:
    """Holidays: ranks of the true results, those behind the query moved up by one; each adds a strip of width 1 / R."""
    place = {image: number for number, image in enumerate(ranking)}
    shift = place.get(query, len(ranking))
    ranks = sorted(place[image] - (place[image] > shift) for image in relevant if image in place)
    total = Fraction(0)
    for found, at in enumerate(ranks):
        left = Fraction(found, at) if at else Fraction(1)
        total += (left + Fraction(found + 1, at + 1)) / 2 / len(relevant)
    return total


def revisited_ranks(ranking: list[int], truth: Truth) -> list[int]:
    """Revisited: 1-based ranks of the positives, each lowered by the junk before it."""
    places = [place for place, image in enumerate(ranking, 1) if image in truth.relevant]
    junk = [place for place, image in enumerate(ranking, 1) if image in truth.junk]
    return [place - sum(1 for other in junk if other < place) for place in places]


def revisited_precision(ranking: list[int], truth: Truth, k: int) -> Fraction:
    places = revisited_ranks(ranking, truth)
    depth = min(max(places), k)
    return Fraction(sum(1 for place in places if place <= depth), depth)


def random_cases(count: int, missing: bool = True) -> Iterator[tuple[list[int], Truth]]:
    """Rankings of scores with many ties, and truths with junk; now and then images are missing from the ranking."""
    rng = np.random.default_rng(20)
    for _ in range(count):
        n = int(rng.integers(1, 30))
        ranking = rank(rng.integers(0, rng.integers(1, 12), n)).tolist()
        if missing and rng.random() < 0.5:
            ranking = ranking[: int(rng.integers(0, n + 1))]
        kinds = rng.choice(3, n, p=[0.5, 0.3, 0.2])
        relevant, junk = np.flatnonzero(kinds == 1), np.flatnonzero(kinds == 2)
        if len(relevant):
            yield ranking, Truth(frozenset(relevant.tolist()), frozenset(junk.tolist()))


def test_rank_sorts_ties_by_number() -> None:
    assert rank([]).tolist() == []
    assert rank(np.array([1, 3, 2], np.uint8)).tolist() == [1, 2, 0]
    assert rank([0.0, -1.0, math.nan, 5.0]).tolist() == [3, 0, 1, 2]
    rng = np.random.default_rng(1)
    for _ in range(300):
        scores = rng.integers(0, 5, rng.integers(0, 40)) / 4
        assert rank(scores).tolist() == [number for _, number in sorted((-score, i) for i, score in enumerate(scores))]


def test_measures_are_those_of_the_protocols() -> None:
    rng, compared = np.random.default_rng(3), 0
    for ranking, truth in random_cases(4000):
        assert average_precision(ranking, truth) == pytest.approx(float(oxford_ap(ranking, truth)), abs=1e-14)
        query = int(rng.choice(sorted(set(range(30)) - truth.relevant)))
        expected = float(holidays_ap(ranking, query, truth.relevant))
        assert average_precision(ranking, Truth(truth.relevant, frozenset({query}))) == pytest.approx(expected, abs=1e-14)
        assert (positions(ranking, truth) + 1).tolist() == revisited_ranks(ranking, truth)
        kept = [image for image in ranking if image not in truth.junk]
        assert ns(ranking, truth) == len(set(kept[:4]) & truth.relevant)
        for k in (1, 3, 10):
            assert recall_at(ranking, truth, k) == len(set(kept[:k]) & truth.relevant) / len(truth.relevant)
        compared += 1
    assert compared > 3000


def test_precision_is_that_of_the_revisited_protocol_on_complete_rankings() -> None:
    for ranking, truth in random_cases(3000, missing=False):
        for k in (1, 2, 5, 10, 100):
            expected = float(revisited_precision(ranking, truth, k))
            assert precision_at(ranking, truth, k) == pytest.approx(expected, abs=1e-14)


def test_values_worked_by_hand() -> None:
    truth = Truth(frozenset({1, 2}), frozenset({9}))
    assert average_precision([1, 2, 3], truth) == 1.0
    # Second and third place: (0/1 + 1/2)/2 and (1/2 + 2/3)/2, each for half of the recall.
    assert average_precision([3, 1, 2], truth) == pytest.approx((0.25 + 7 / 12) / 2)
    assert average_precision([9, 3, 1, 9_000, 2], truth) == pytest.approx((0.25 + (1 / 3 + 2 / 4) / 2) / 2)
    assert average_precision([1], truth) == 0.5
    assert average_precision([], truth) == 0.0
    assert precision_at([3, 9, 1, 2], truth, 1) == 0.0
    assert precision_at([3, 9, 1, 2], truth, 2) == 0.5
    assert precision_at([3, 9, 1, 2, 4, 5], truth, 10) == pytest.approx(2 / 3)  # depth 3: the last relevant one
    assert precision_at([3, 1], truth, 5) == pytest.approx(1 / 5)  # image 2 is missing: the depth stays 5
    assert recall_at([3, 1, 2], truth, 2) == 0.5
    assert ns([0, 1, 2, 3, 4], Truth(frozenset({0, 1, 2, 4}))) == 3.0


def test_odd_truths() -> None:
    both = Truth(frozenset({1, 2}), frozenset({2}))  # an image both relevant and junk is never found
    assert average_precision([1, 2, 3], both) == float(oxford_ap([1, 2, 3], both)) == 0.5
    nothing = Truth(frozenset(), frozenset({1}))
    assert [entry([1, 2, 3], nothing) for entry in MEASURES.values()] == [None] * len(MEASURES)


CASES = st.integers(1, 25).flatmap(
    lambda n: st.tuples(st.permutations(range(n)), st.lists(st.sampled_from("rjo"), min_size=n, max_size=n))
)


def truth_of(kinds: list[str]) -> Truth:
    sets = {kind: frozenset(i for i, own in enumerate(kinds) if own == kind) for kind in "rj"}
    return Truth(sets["r"] or frozenset({0}), sets["j"] - ({0} if not sets["r"] else set()))


@given(CASES, st.data())
def test_moving_a_relevant_image_up_never_lowers_a_measure(case: tuple[list[int], list[str]], data: st.DataObject) -> None:
    ranking, truth = list(case[0]), truth_of(case[1])
    place = ranking.index(data.draw(st.sampled_from(sorted(truth.relevant))))
    target = data.draw(st.integers(0, place))
    moved = [*ranking[:target], ranking[place], *ranking[target:place], *ranking[place + 1 :]]
    for name in ("mAP", "N-S", "R@4"):
        before, after = MEASURES[name](ranking, truth), MEASURES[name](moved, truth)
        assert before is not None and after is not None and after >= before - 1e-12


@given(CASES, st.randoms())
def test_junk_has_no_effect_at_any_rank(case: tuple[list[int], list[str]], shuffle: Random) -> None:
    ranking, truth = list(case[0]), truth_of(case[1])
    kept = [image for image in ranking if image not in truth.junk]
    scattered = list(kept)
    for image in truth.junk:
        scattered.insert(shuffle.randint(0, len(scattered)), image)
    for entry in MEASURES.values():
        assert entry(ranking, truth) == entry(scattered, truth) == entry(kept, Truth(truth.relevant))


@given(CASES)
def test_values_lie_between_0_and_1_and_are_1_for_perfect_rankings_only(case: tuple[list[int], list[str]]) -> None:
    ranking, truth = list(case[0]), truth_of(case[1])
    value = average_precision(ranking, truth)
    assert value is not None and 0 <= value <= 1
    kept = [image for image in ranking if image not in truth.junk]
    perfect = set(kept[: len(truth.relevant)]) == truth.relevant
    assert (value == pytest.approx(1.0, abs=1e-12)) == perfect
    assert not perfect or all(precision_at(ranking, truth, k) == 1 for k in (1, 5, 100))


def test_measures_have_names_and_texts() -> None:
    ranking, truth = [3, 1, 2], Truth(frozenset({1, 2}))
    assert MEASURES["mP@5"](ranking, truth) == precision_at(ranking, truth, 5) and MEASURES["R@4"](ranking, truth) == 1
    assert all(name == entry.name for name, entry in MEASURES.items())
    assert [MEASURES[name].show(3.6149) for name in ("mAP", "N-S", "R@1")] == ["361.49", "3.615", "361.49"]


# --- Bootstrap --------------------------------------------------------------------------------------------------------


def test_the_interval_holds_its_mean_and_depends_on_the_seed_only() -> None:
    values = np.random.default_rng(5).random(50).tolist()
    interval = bootstrap(values)
    assert interval.mean == pytest.approx(np.mean(values))
    assert interval.low < interval.mean < interval.high
    assert bootstrap(values) == interval != bootstrap(values, seed=1)
    assert bootstrap(values, level=0.5).high < interval.high


def test_the_interval_is_that_of_the_normal_distribution_for_many_values() -> None:
    values = np.random.default_rng(6).normal(3.0, 2.0, 4000)
    interval = bootstrap(values)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_intervals_cover_the_true_mean_as_often_as_their_level() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        means = rng.exponential(1.0, 40)
        values, groups = np.repeat(means, 4) + rng.normal(0, 0.1, 160), np.repeat(np.arange(40), 4).tolist()
        interval = bootstrap(values, groups, samples=400)
        covered += interval.low <= 1.0 <= interval.high
    assert 0.89 < covered / 400 < 0.97  # percentile intervals of 40 skewed values fall a little short of 0.95


def test_copies_of_a_value_in_one_group_add_no_certainty() -> None:
    values = np.random.default_rng(8).random(60)
    once = bootstrap(values)
    fourfold = np.repeat(values, 4)
    grouped = bootstrap(fourfold, np.repeat(np.arange(60), 4).tolist())
    assert (grouped.mean, grouped.low, grouped.high) == pytest.approx((once.mean, once.low, once.high))
    alone = bootstrap(fourfold)
    assert alone.high - alone.low < 0.6 * (grouped.high - grouped.low)


def test_groups_weigh_by_their_questions_and_one_alone_has_no_bounds() -> None:
    interval = bootstrap([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"])
    assert (interval.mean, interval.low, interval.high) == (0.75, 0.0, 1.0)
    interval = bootstrap([1.0, 0.5], ["a", "a"])
    assert (interval.mean, interval.low, interval.high) == (0.75, -math.inf, math.inf)


def test_questions_left_out_do_not_count() -> None:
    values = [0.5, None, 1.0, None, 0.0]
    groups = ["a", "b", "a", "c", "d"]
    assert bootstrap(values) == bootstrap([0.5, 1.0, 0.0])
    assert bootstrap(values, groups) == bootstrap([0.5, 1.0, 0.0], ["a", "a", "d"])
    assert difference(values, [0.25, 1.0, None, None, 0.0]).mean == pytest.approx(0.125)


def test_the_difference_is_paired() -> None:
    rng = np.random.default_rng(9)
    hard = rng.random(200)  # questions differ far more than the two rules
    better = hard + 0.01 + rng.normal(0, 0.01, 200)
    paired = difference(better, hard)
    assert 0 < paired.low < 0.01 < paired.high
    assert bootstrap(better).low < bootstrap(hard).high
    assert difference(hard, better).mean == -paired.mean
    nothing = difference(hard, hard)
    assert (nothing.mean, nothing.low, nothing.high) == (0.0, 0.0, 0.0)


def test_chunks_do_not_change_the_draws_of_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(10).random(100)
    whole = bootstrap(values, samples=300)
    monkeypatch.setattr("polyvoc.experiments.measures._CHUNK", 700)
    parts = bootstrap(values, samples=300)
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: precision_at([1], Truth(frozenset({1})), 0), "k=0"),
        (lambda: recall_at([1], Truth(frozenset({1})), 0), "k=0"),
        (lambda: average_precision([4, 1, 1], Truth(frozenset({1}))), "twice"),
        (lambda: bootstrap([]), "no value"),
        (lambda: bootstrap([None, None]), "no value"),
        (lambda: bootstrap([1.0], ["a", "b"]), "1 values but 2 groups"),
        (lambda: difference([1.0], [1.0, 2.0]), "1 values and 2"),
        (lambda: bootstrap([1.0], samples=0), "samples=0"),
        (lambda: bootstrap([1.0], level=1.0), "level=1.0"),
    ],
)
def test_impossible_values_are_errors(call: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()  # type: ignore[operator]
