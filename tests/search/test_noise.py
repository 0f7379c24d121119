"""Laws of joining witnesses, and values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polyvoc.errors import OptionError
from polyvoc.search.fuse import cosine_evidence, cosine_similarity, fuse

Array = np.ndarray
levels = st.integers(0, 50).map(float)  # few values: many ties and zeros
rows = hnp.arrays(np.float64, st.integers(1, 60), elements=levels)
pairs = st.integers(1, 60).flatmap(lambda n: st.tuples(*[hnp.arrays(np.float64, n, elements=levels)] * 2))


def noise(n: int = 400, seed: int = 0) -> Array:
    """The scores of images that merely resemble the query."""
    return np.random.default_rng(seed).exponential(size=n) + 0.1


def power_law(n: int, exponent: float = 0.5) -> Array:
    """A curve that is straight in a log-log plot."""
    return np.arange(1, n + 1) ** -exponent


def order(scores: Array) -> list[int]:
    return np.argsort(-scores, kind="stable").tolist()


# --- one witness --------------------------------------------------------------------------------------------


def test_on_a_straight_curve_every_image_stands_at_its_own_rank() -> None:
    ranks = np.arange(1, 401)
    assert np.allclose(cosine_evidence(power_law(400)), np.log(400 / ranks))


def test_an_outstanding_score_stands_where_the_line_says() -> None:
    scores = power_law(400)  # rank r has r ** -0.5: a score of 100 is that of rank 0.0001
    scores[0] = 100.0
    assert cosine_evidence(scores)[0] == pytest.approx(math.log(400 / 1e-4))
    assert np.array_equal(cosine_evidence(scores)[1:], cosine_evidence(power_law(400))[1:])


def test_worked_by_hand() -> None:
    # n = 8: depth 2, half 1; the line goes through rank 1 (8) and rank 2 (4), rank = 2 * 4 / s; below: counted
    found = cosine_evidence([8.0, 4.0, 3.0, 2.0, 2.0, 1.0, 0.0, 0.0])
    assert np.allclose(found, np.log([8 / 1, 8 / 2, 8 / 3, 8 / 5, 8 / 5, 8 / 6, 8 / 8, 8 / 8]))


@given(rows)
def test_the_order_of_one_witness_stays(scores: Array) -> None:
    found = cosine_evidence(scores)
    assert np.isfinite(found).all()
    assert (np.sign(np.subtract.outer(found, found)) == np.sign(np.subtract.outer(scores, scores))).all()


@given(rows, st.floats(0.001, 1000), st.floats(0.2, 5))
def test_unit_and_power_of_scores_do_not_matter(scores: Array, unit: float, power: float) -> None:
    assert np.allclose(cosine_evidence(unit * scores**power), cosine_evidence(scores))


@pytest.mark.parametrize("scores", [np.zeros(50), np.full(50, 3.0), np.array([7.0]), np.empty(0)])
def test_all_alike_say_nothing(scores: Array) -> None:
    assert cosine_evidence(scores).tolist() == [0.0] * len(scores)


def test_the_highest_score_does_not_set_the_scale() -> None:
    """The query itself may be among the images: its score must not change what the others tell."""
    scores = noise()
    with_query = np.append(scores, 1e6)
    moved = cosine_evidence(with_query)[:-1] - cosine_evidence(scores)
    assert np.abs(moved[scores > np.sort(scores)[-100]]).max() < 0.2


def test_few_matches_are_no_reason_for_certainty() -> None:
    scores = np.zeros(1000)
    scores[:3] = 5.0, 4.0, 0.001
    assert cosine_evidence(scores).max() < 10
    assert cosine_evidence([0.0] * 999 + [5.0]).max() == pytest.approx(math.log(1000))


def test_extreme_scores_stay_finite() -> None:
    scores = np.concatenate([[1e300, 1e-300, 5e-324], noise(), noise() * 1e-12 + 1])
    assert np.isfinite(cosine_evidence(scores)).all()
    assert np.isfinite(cosine_evidence(1 + noise() * 1e-17)).all()


# --- several ------------------------------------------------------------------------------------------------


@given(pairs, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_images_and_of_witnesses_does_not_matter(scores: tuple[Array, Array], random) -> None:
    shuffled = list(range(len(scores[0])))
    random.shuffle(shuffled)
    joint = fuse(*scores)
    assert np.allclose(fuse(scores[0][shuffled], scores[1][shuffled]), joint[shuffled])
    assert np.allclose(fuse(scores[1], scores[0]), joint)


@given(rows, st.floats(0, 10))
def test_a_silent_witness_leaves_the_other_alone(scores: Array, silence: float) -> None:
    assert order(fuse(scores, np.full(len(scores), silence))) == order(scores)
    assert np.array_equal(fuse(scores, np.full(len(scores), silence)), cosine_evidence(scores))


@given(pairs)
def test_an_image_that_both_prefer_wins(scores: tuple[Array, Array]) -> None:
    joint = fuse(*scores)
    both = np.greater_equal.outer(scores[0], scores[0]) & np.greater_equal.outer(scores[1], scores[1])
    assert (np.greater_equal.outer(joint, joint) | np.isclose(np.subtract.outer(joint, joint), 0))[both].all()


def test_who_sees_nothing_is_overruled_by_who_sees_something() -> None:
    """The best of mere noise, however large its numbers, gives way to one image that stands out elsewhere."""
    first, second = noise(seed=1), noise(seed=2)
    first[5] = first.max() * 6
    for unit in (1e-6, 1.0, 1e6):
        assert order(fuse(first, unit * second))[0] == 5
        assert order(fuse(unit * second, first))[0] == 5
    flat = 1 + noise(seed=3) * 1e-6  # a curve that hardly falls, read in its own measure
    assert order(fuse(first, flat))[0] == 5


def test_two_that_hesitate_find_together_what_neither_finds_alone() -> None:
    wins = [0, 0, 0]
    for seed in range(40):
        first, second = noise(seed=2 * seed), noise(seed=2 * seed + 1)
        first[0], second[0] = 6.0, 6.0  # about as good as the best of the noise
        wins = [w + (order(s)[0] == 0) for w, s in zip(wins, (first, second, fuse(first, second)), strict=True)]
    assert wins[2] > 1.5 * max(wins[:2])


@given(pairs, st.randoms(use_true_random=False))
def test_some_images_alone_get_what_they_get_among_all(scores: tuple[Array, Array], random) -> None:
    n = len(scores[0])
    some = np.array(random.sample(range(n), random.randint(0, n)), np.int64)
    assert np.array_equal(fuse(*scores, at=some), fuse(*scores)[some])


def test_scores_are_not_changed() -> None:
    first, second = noise(seed=1), noise(seed=2)
    copies = first.copy(), second.copy()
    fuse(first, second)
    assert np.array_equal(first, copies[0])
    assert np.array_equal(second, copies[1])


def test_refusals_are_one_line() -> None:
    for wrong in ([[1.0, 2.0]], [1.0, math.nan], [1.0, -0.5], [math.inf, 1.0]):
        with pytest.raises(OptionError, match="a row of numbers from 0 up") as refused:
            fuse([1.0, 2.0], wrong)
        assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(OptionError, match=r"\[2, 3\] images cannot be fused"):
        fuse([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(OptionError, match="no scores to fuse"):
        fuse()


# --- vectors ------------------------------------------------------------------------------------------------


def test_nearness_is_one_over_the_distance() -> None:
    assert np.allclose(cosine_similarity([0.75, 0.5, 0.0, -1.0]), [4.0, 2.0, 1.0, 0.5])
    assert cosine_similarity([1.0, 1.0000001, 0.99999]).tolist() == [1000.0] * 3  # rounding does not rank copies
