"""Planted transforms are found among outliers; what is degenerate, mirrored or damaged is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.errors import OptionError
from polyvoc.geometry import Frames, Matches, Sketch, sharing, tentative, verify
from polyvoc.segment import Batch, Segment

SIDE = 1000.0
Case = tuple[Frames, Frames, Matches, np.ndarray, np.ndarray]


def rotation(degrees: float, scale: float = 1.0) -> np.ndarray:
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    return np.array([[c, -s], [s, c]])


def plant(
    turned: np.ndarray, inliers: int = 40, outliers: int = 60, seed: int = 0, noise: float = 2.0, shift: Any = (80.0, -40.0)
) -> Case:
    """Give two images whose first features match under a transform, and the others by chance; the transform; which agree."""
    rng = np.random.default_rng([3, seed])
    n = inliers + outliers
    xy, scale, angle = rng.uniform(0, SIDE, (n, 2)), rng.uniform(2, 30, n), rng.uniform(0, 360, n)
    transform = np.column_stack([turned, shift])
    places = xy @ turned.T + transform[:, 2] + rng.normal(0, noise, (n, 2))
    places[inliers:] = rng.uniform(places.min(axis=0), places.max(axis=0), (outliers, 2))
    degrees = np.degrees(np.arctan2(turned[1, 0] - turned[0, 1], turned[0, 0] + turned[1, 1]))
    factor = np.sqrt(abs(np.linalg.det(turned)))
    scales = np.where(np.arange(n) < inliers, scale * factor * rng.uniform(0.9, 1.1, n), rng.uniform(2, 30, n))
    angles = np.where(np.arange(n) < inliers, angle + degrees + rng.normal(0, 5, n), rng.uniform(0, 360, n))
    order = rng.permutation(n)
    matches = Matches(order, order, np.ones(n))
    return Frames(xy, scale, angle), Frames(places, scales, angles), matches, transform, order < inliers


def corners(transform: np.ndarray) -> np.ndarray:
    return np.array([[0, 0], [SIDE, 0], [0, SIDE], [SIDE, SIDE]]) @ transform[:, :2].T + transform[:, 2]


def pick(matches: Matches, rows: Any) -> Matches:
    return Matches(matches.query[rows], matches.feature[rows], matches.weight[rows])


@pytest.mark.parametrize(
    "turned",
    [
        np.eye(2),
        rotation(90),
        rotation(-170, 0.4),
        rotation(35, 2.5),
        rotation(10) @ np.array([[1.3, 0.2], [0.0, 0.8]]),
        np.array([[1.0, 0.0], [0.3, 0.6]]),
    ],
    ids=["shift", "quarter turn", "turned and smaller", "turned and larger", "stretched", "sheared"],
)
def test_a_planted_transform_is_found(turned: np.ndarray) -> None:
    query, image, matches, transform, agree = plant(turned)
    found = verify(query, image, matches)
    assert found.image_from_query is not None
    assert np.abs(corners(found.image_from_query) - corners(transform)).max() < 0.02 * image.extent
    assert found.inliers[agree].mean() > 0.9
    assert found.inliers[~agree].mean() < 0.1
    assert found.count == found.inliers.sum()


def test_most_matches_may_be_wrong() -> None:
    query, image, matches, transform, agree = plant(rotation(50, 0.7), inliers=25, outliers=225)
    found = verify(query, image, matches)
    assert found.image_from_query is not None
    assert np.abs(corners(found.image_from_query) - corners(transform)).max() < 0.02 * image.extent
    assert found.inliers[agree].mean() > 0.9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), degrees=st.floats(-180, 180), octaves=st.floats(-2, 2), stretch=st.floats(0.6, 1.6))
def test_any_plausible_transform_is_found(seed: int, degrees: float, octaves: float, stretch: float) -> None:
    turned = rotation(degrees, 2**octaves) @ np.diag([stretch, 1 / stretch])
    query, image, matches, transform, agree = plant(turned, seed=seed, noise=0.002 * SIDE * 2**octaves)
    found = verify(query, image, matches)
    assert found.image_from_query is not None
    assert np.abs(corners(found.image_from_query) - corners(transform)).max() < 0.03 * image.extent
    assert found.inliers[agree].mean() > 0.8


def test_chance_matches_have_few_inliers() -> None:
    counts = [verify(*plant(np.eye(2), inliers=0, outliers=100, seed=seed)[:3]).count for seed in range(50)]
    assert max(counts) < 12  # the threshold of the label-free calibration


def test_the_same_matches_always_give_the_same() -> None:
    cases = [plant(rotation(20 * seed, 0.8), inliers=12, outliers=60, seed=seed)[:3] for seed in range(12)]
    first = [verify(*case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda case: verify(*case), cases * 5))
    for one, other in zip(first * 5, again, strict=True):
        np.testing.assert_array_equal(one.inliers, other.inliers)
        np.testing.assert_array_equal(one.image_from_query, other.image_from_query)


def test_inputs_are_not_modified() -> None:
    query, image, matches, _, _ = plant(rotation(30))
    arrays = [query.xy, query.scale, query.angle, image.xy, image.scale, image.angle, *vars(matches).values()]
    before = [array.copy() for array in arrays]
    verify(query, image, matches)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


# -- one-to-one


def test_each_feature_is_used_once() -> None:
    query, image, matches, _, agree = plant(rotation(15), outliers=0)
    rng = np.random.default_rng(1)
    stray = rng.integers(0, len(query), (200, 2))  # every feature is also matched with others, with less weight
    more = Matches(
        np.concatenate([stray[:, 0], matches.query]),
        np.concatenate([stray[:, 1], matches.feature]),
        np.concatenate([np.full(200, 0.5), matches.weight]),
    )
    found = verify(query, image, more)
    used = np.flatnonzero(found.inliers)
    assert len(np.unique(more.query[used])) == len(np.unique(more.feature[used])) == len(used)
    assert found.inliers[200:][agree].mean() > 0.9
    assert not found.inliers[:200].any()  # what was heavier took both features


def test_of_two_matches_the_heavier_is_kept() -> None:
    query, image, matches, _, _ = plant(np.eye(2), inliers=20, outliers=0, noise=0.0)
    twice = Matches(
        np.concatenate([matches.query, matches.query]),
        np.concatenate([matches.feature, matches.feature]),
        np.concatenate([matches.weight, 2 * matches.weight]),
    )
    found = verify(query, image, twice)
    assert found.inliers[20:].all()
    assert not found.inliers[:20].any()


# -- scale and rotation


def test_matches_that_are_turned_another_way_do_not_agree() -> None:
    query, image, matches, _, agree = plant(np.eye(2), inliers=40, outliers=0, noise=0.0)
    angle = image.angle.copy()
    angle[:10] += 90
    scale = image.scale.copy()
    scale[10:20] *= 4
    found = verify(query, replace(image, angle=angle, scale=scale), matches)
    wrong = matches.query < 20
    assert agree.all()
    assert not found.inliers[wrong].any()
    assert found.inliers[~wrong].all()


def test_unknown_scales_are_no_obstacle() -> None:
    query, image, matches, transform, agree = plant(rotation(60, 1.5), outliers=20)
    zeros = np.zeros(len(query))
    found = verify(replace(query, scale=zeros, angle=zeros), replace(image, scale=zeros, angle=zeros), matches)
    assert found.image_from_query is not None
    assert np.abs(corners(found.image_from_query) - corners(transform)).max() < 0.02 * image.extent
    assert found.inliers[agree].mean() > 0.9


def test_angles_go_round() -> None:
    query, image, matches, _, _ = plant(np.eye(2), inliers=40, outliers=0)
    angle = np.where(np.arange(40) % 2, image.angle + 355, image.angle - 355)
    assert verify(query, replace(image, angle=angle), matches).count == 40


# -- what has no answer


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_matches_give_nothing(count: int) -> None:
    query, image, matches, _, _ = plant(np.eye(2), inliers=10, outliers=0)
    found = verify(query, image, pick(matches, slice(0, count)))
    assert found.image_from_query is None
    assert found.count == 0
    assert found.inliers.shape == (count,)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_few_matches_give_a_similarity(count: int) -> None:
    query, image, matches, transform, _ = plant(rotation(30, 0.5), inliers=10, outliers=0, noise=0.0)
    exact = replace(image, scale=query.scale * 0.5, angle=query.angle + 30)
    found = verify(query, exact, pick(matches, slice(0, count)))
    assert found.count == count
    np.testing.assert_allclose(found.image_from_query, transform, atol=1e-6)


def test_images_without_features() -> None:
    nothing = Frames(np.empty((0, 2)), np.empty(0), np.empty(0))
    none = np.empty(0, np.int64)
    found = verify(nothing, nothing, Matches(none, none, np.empty(0)))
    assert (found.count, found.image_from_query) == (0, None)
    assert nothing.extent == 0


def test_a_mirror_image_is_refused() -> None:
    query, image, matches, _, _ = plant(np.diag([-1.0, 1.0]), outliers=0, shift=(SIDE, 0.0))
    assert verify(query, image, matches).count < 12


@pytest.mark.parametrize("turned", [rotation(0, 0.05), rotation(0, 15.0), np.diag([3.0, 0.3])], ids=["tiny", "huge", "flat"])
def test_extreme_transforms_are_refused(turned: np.ndarray) -> None:
    query, image, matches, _, _ = plant(turned, outliers=0, noise=0.0)
    found = verify(query, image, matches)
    assert found.image_from_query is None or found.count < 12


def test_places_on_one_line() -> None:
    rng = np.random.default_rng(0)
    along = rng.uniform(0, SIDE, 30)
    xy = np.column_stack([along, 0.5 * along + 20])
    frames = Frames(xy, np.full(30, 5.0), np.zeros(30))
    rows = np.arange(30)
    found = verify(frames, Frames(xy + 7, frames.scale, frames.angle), Matches(rows, rows, np.ones(30)))
    if found.image_from_query is not None:  # nothing, or a transform that puts them where they are
        moved = xy @ found.image_from_query[:, :2].T + found.image_from_query[:, 2]
        assert np.abs(moved - xy - 7)[found.inliers].max() <= 0.02 * SIDE


@pytest.mark.parametrize("which", ["query", "image", "both"])
def test_places_that_coincide(which: str) -> None:
    query, image, matches, _, _ = plant(np.eye(2), inliers=30, outliers=0)
    same = np.full((30, 2), 100.0)
    query = replace(query, xy=same) if which != "image" else query
    image = replace(image, xy=same) if which != "query" else image
    found = verify(query, image, matches)
    assert found.image_from_query is None or np.isfinite(found.image_from_query).all()
    assert which == "both" or found.count < 12


# -- what is refused


@pytest.mark.parametrize("name", ["xy", "scale", "angle"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(name: str, value: float) -> None:
    query, _, _, _, _ = plant(np.eye(2))
    values = getattr(query, name).copy()
    values[3] = value
    with pytest.raises(OptionError, match=f"{name} holds values that are not finite"):
        replace(query, **{name: values})


def test_what_does_not_fit_is_refused() -> None:
    query, image, matches, _, _ = plant(np.eye(2), inliers=10, outliers=0)
    with pytest.raises(OptionError, match="do not fit"):
        Frames(query.xy, query.scale[:5], query.angle)
    with pytest.raises(OptionError, match="negative"):
        replace(query, scale=-query.scale)
    with pytest.raises(OptionError, match="rows"):
        verify(query, image, replace(matches, weight=matches.weight[:5]))
    with pytest.raises(OptionError, match="weights of matches are not finite"):
        verify(query, image, replace(matches, weight=matches.weight * np.nan))
    with pytest.raises(OptionError, match="features that the image has not; it has 10"):
        verify(query, image, replace(matches, feature=matches.feature + 5))
    with pytest.raises(OptionError, match="features that the query has not"):
        verify(query, image, replace(matches, query=matches.query - 5))
    for tolerance in (0.0, 1.0, -0.1):
        with pytest.raises(OptionError, match="tolerance"):
            verify(query, image, matches, tolerance)


# -- tentative matches


def sketch(seed: int, count: int, k: int = 3, size: int = 6, signed: bool = True) -> Sketch:
    rng = np.random.default_rng([5, seed])
    words = rng.integers(0, size, (count, k)).astype(np.uint16)
    base = np.random.default_rng(9).integers(0, 2**63, dtype=np.uint64)
    flips = rng.integers(0, 64, (count, k, 14))
    bits = base ^ np.bitwise_xor.reduce(np.uint64(1) << flips.astype(np.uint64), axis=2)
    signatures = bits if signed else np.empty((count, 0), np.uint64)
    return Sketch(words, signatures, Frames(rng.uniform(0, 9, (count, 2)), np.ones(count), np.zeros(count)))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("counts", [(20, 30), (0, 30), (20, 0), (1, 1)])
def test_tentative_matches_are_those_that_a_loop_finds(signed: bool, counts: tuple[int, int]) -> None:
    query, image = (sketch(seed, count, signed=signed) for seed, count in enumerate(counts))
    expected = {}
    for q in range(counts[0]):
        for f in range(counts[1]):
            weight = 0.0
            for k in range(3):
                if query.words[q, k] != image.words[f, k]:
                    continue
                h = int(query.signatures[q, k] ^ image.signatures[f, k]).bit_count() if signed else 0
                weight += float(np.exp(-((h / 16) ** 2))) if h <= 24 else 0.0
            if weight > 0:
                expected[q, f] = weight
    found = tentative(query, image)
    pairs = list(zip(found.query.tolist(), found.feature.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) == len(expected)
    assert dict(zip(pairs, found.weight.tolist(), strict=True)) == pytest.approx(expected)


def test_the_limit_of_the_distance_counts() -> None:
    query, image = sketch(1, 30), sketch(2, 30)
    counts = [len(tentative(query, image, hamming)) for hamming in (0, 8, 24, 64)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    every = {pair for k in range(3) for pair in zip(*(column.tolist() for column in sharing(query, image, k)), strict=True)}
    assert counts[-1] == len(every)


def test_a_sketch_is_what_the_segment_holds() -> None:
    made = [sketch(seed, 12) for seed in range(3)]
    batch = Batch.of_words([one.words for one in made], 3, [one.signatures for one in made])
    rng = np.random.default_rng(0)
    batch = replace(
        batch, xy=rng.uniform(0, 9, (36, 2)).astype(np.float32), shape=rng.uniform(1, 9, (36, 2)).astype(np.float16)
    )
    read = Sketch.of(Segment.build(batch, (6, 6, 6)), 1)
    np.testing.assert_array_equal(read.words, made[1].words)
    np.testing.assert_array_equal(read.signatures, made[1].signatures)
    np.testing.assert_array_equal(read.frames.xy, batch.xy[12:24])
    np.testing.assert_array_equal(read.frames.scale, batch.shape[12:24, 0])
    np.testing.assert_array_equal(read.frames.angle, batch.shape[12:24, 1])
