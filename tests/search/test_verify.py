"""Matches are those of a loop; planted transforms are found among outliers; degenerate and mirrored ones are not."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.errors import OptionError
from polyvoc.index.segment import Batch, Segment
from polyvoc.kernels.verification import (
    MAX_SUPPORT,
    find_matches,
    find_shared,
    half,
    image_extent,
    list_words,
    one_to_one,
    order_matches,
)
from polyvoc.search.verify import (
    MAX_PER_WORD,
    TOLERANCE,
    VerificationQuery,
    _ranks,
    default_match_table,
    inlier_pairs,
    outline,
    verify_images,
)
from polyvoc.types import ImageFeatures, Keypoints, with_planes

SIDE = 1000.0
SIZE = 1000  # words of each vocabulary
FEW = 12  # inliers: fewer confirm nothing without labels
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Case:
    """Two images. The word of a feature is its number, by which it matches; the first `inliers` follow the transform."""

    query: ImageFeatures
    image: ImageFeatures
    transform: Array  # [2, 3]
    inliers: int


@dataclass(frozen=True, eq=False)
class Result:
    """The result of verification for one image."""

    count: int
    weight: float
    transform: Array  # [2, 3], NaN: none
    pairs: Array  # [count, 2]
    numbers: Array  # [count] of the inliers

    @property
    def is_empty(self) -> bool:
        return self.count == self.weight == len(self.pairs) == 0 and bool(np.isnan(self.transform).all())


def segment_of(*images: ImageFeatures) -> Segment:
    n_vocabularies = images[0].words.shape[1]
    signed = [image.signatures for image in images] if images[0].signatures.shape[1] else None
    batch = Batch.of_words([image.words for image in images], n_vocabularies, signed)
    xy, scale, angle = (
        np.concatenate([getattr(image.keypoints, name) for image in images]) for name in ("xy", "scale", "angle")
    )
    shape = np.column_stack([scale, angle % 360]).astype(np.float16)
    return Segment.build(replace(batch, xy=xy.astype(np.float32), shape=shape), (SIZE,) * n_vocabularies)


def table_of(segment: Segment) -> Array:
    return default_match_table(segment.n_vocabularies, 64 * segment.planes)


def prepared(query: ImageFeatures, segment: Segment) -> VerificationQuery:
    return VerificationQuery.of(query, table_of(segment))


def verified(query: ImageFeatures, image: ImageFeatures, tolerance: float = TOLERANCE) -> Result:
    segment = segment_of(image)
    found = verify_images(prepared(query, segment), segment, np.array([0]), tolerance)
    pairs = inlier_pairs(prepared(query, segment), segment, 0, tolerance)
    assert len(pairs) == found.counts[0]
    return Result(int(found.counts[0]), float(found.weights[0]), found.transforms[0], pairs, query.words[pairs[:, 0], 0])


def rotation(degrees: float, scale: float = 1.0) -> Array:
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    return np.array([[c, -s], [s, c]])


def numbered(keypoints: Keypoints, order: Array) -> ImageFeatures:
    """Return the features of an image in another order; their words are their numbers."""
    turned = Keypoints(keypoints.xy[order], keypoints.scale[order], keypoints.angle[order])
    return ImageFeatures(order[:, None].astype(np.int32), np.empty((len(order), 0), np.uint64), turned)


def reframed(image: ImageFeatures, **changed: Any) -> ImageFeatures:
    return replace(image, keypoints=replace(image.keypoints, **changed))


def plant(
    turned: Array, inliers: int = 40, outliers: int = 60, seed: int = 0, noise: float = 2.0, shift: Any = (80.0, -40.0)
) -> Case:
    """Return two images whose first features match under a transform, and the others by chance."""
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
    query = numbered(Keypoints(xy, scale, angle), rng.permutation(n))
    return Case(query, numbered(Keypoints(places, scales, angles), rng.permutation(n)), transform, inliers)


def exact(count: int, scaled: bool = True) -> Case:
    """Return matches that a similarity maps exactly; their scales and angles are such that float16 keeps them."""
    case = plant(rotation(30, 0.5), inliers=count, outliers=0, noise=0.0)
    rank = case.query.words[:, 0]
    scale = 2.0 ** (rank % 4 + 1) * scaled
    query = reframed(case.query, scale=scale, angle=8.0 * rank)
    rank = case.image.words[:, 0]
    scale = 2.0 ** (rank % 4) * scaled
    return replace(case, query=query, image=reframed(case.image, scale=scale, angle=8.0 * rank + 30))


def assert_found(case: Case, found: Result, share: float = 0.9, error: float = 0.02) -> None:
    """The transform is the one that was planted, and its inliers are those that follow it."""
    width = height = int(SIDE)
    wrong = np.array(outline((0, 0, width, height), found.transform)) - outline((0, 0, width, height), case.transform)
    assert np.abs(wrong).max() < error * np.ptp(case.image.keypoints.xy, axis=0).max()
    np.testing.assert_array_equal(found.numbers, case.image.words[found.pairs[:, 1], 0])
    assert (found.numbers < case.inliers).sum() > share * case.inliers
    assert (found.numbers >= case.inliers).sum() < 0.1 * (len(case.query.words) - case.inliers) + 1


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
def test_a_planted_transform_is_found(turned: Array) -> None:
    case = plant(turned)
    found = verified(case.query, case.image)
    assert_found(case, found)
    assert found.weight == found.count  # each match weighs 1 and is unique


def test_most_matches_may_be_wrong() -> None:
    case = plant(rotation(50, 0.7), inliers=25, outliers=225)
    assert_found(case, verified(case.query, case.image))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), degrees=st.floats(-180, 180), octaves=st.floats(-2, 2), stretch=st.floats(0.7, 1.4))
def test_any_plausible_transform_is_found(seed: int, degrees: float, octaves: float, stretch: float) -> None:
    turned = rotation(degrees, 2**octaves) @ np.diag([stretch, 1 / stretch])
    case = plant(turned, seed=seed, noise=0.002 * SIDE * 2**octaves)
    assert_found(case, verified(case.query, case.image), share=0.8, error=0.03)


def test_transforms_that_stretch_much_are_found() -> None:
    """A similarity, which every hypothesis is, then holds for a small part of the image only."""
    for seed in range(60):
        case = plant(rotation(6 * seed) @ np.diag([1.6, 1 / 1.6]), seed=seed)
        assert_found(case, verified(case.query, case.image), share=0.8, error=0.03)


def test_chance_matches_have_few_inliers_and_little_weight() -> None:
    cases = [plant(np.eye(2), inliers=0, outliers=100, seed=seed) for seed in range(50)]
    found = [verified(case.query, case.image) for case in cases]
    assert max(one.count for one in found) < FEW
    assert max(one.weight for one in found) < FEW
    assert np.mean([one.weight for one in found]) < FEW / 2


def test_the_result_is_deterministic() -> None:
    cases = [plant(rotation(20 * seed, 0.8), inliers=12, outliers=60, seed=seed) for seed in range(12)]
    first = [verified(case.query, case.image) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda case: verified(case.query, case.image), cases * 3))
    for one, other in zip(first * 3, again, strict=True):
        assert (one.count, one.weight) == (other.count, other.weight)
        np.testing.assert_array_equal(one.pairs, other.pairs)
        np.testing.assert_array_equal(one.transform, other.transform)


def test_images_verified_together_give_the_same_as_alone() -> None:
    images = [plant(rotation(15 * n), inliers=10 * n, outliers=60 - 10 * n, seed=1).image for n in range(6)]
    images.insert(2, numbered(Keypoints(np.empty((0, 2)), np.empty(0), np.empty(0)), np.empty(0, np.int64)))
    query = plant(np.eye(2), inliers=60, outliers=0, seed=1).query  # the same features
    segment = segment_of(*images)
    positions = np.array([6, 2, 0, 5, 6, 1, 3])
    found = verify_images(prepared(query, segment), segment, positions)
    for row, position in enumerate(positions):
        alone = verified(query, images[position])
        assert (found.counts[row], found.weights[row]) == (alone.count, alone.weight)
        np.testing.assert_array_equal(found.transforms[row], alone.transform)
        np.testing.assert_array_equal(inlier_pairs(prepared(query, segment), segment, int(position)), alone.pairs)
    assert (found.counts >= FEW).tolist() == [True, False, False, True, True, False, True]


def test_inputs_are_not_modified() -> None:
    case = plant(rotation(30))
    segment, positions = segment_of(case.image), np.array([0])
    table, at = table_of(segment), case.query.keypoints
    arrays = [case.query.words, case.query.signatures, at.xy, at.scale, at.angle, table, positions]
    arrays += segment.arrays.values()
    before = [array.copy() for array in arrays]
    query = VerificationQuery.of(case.query, table)
    assert verify_images(query, segment, positions).counts[0] == len(inlier_pairs(query, segment, 0)) > 0
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


# -- one-to-one


def test_each_feature_is_used_once() -> None:
    case = plant(rotation(15), outliers=0)

    def crowded(image: ImageFeatures) -> ImageFeatures:  # every feature also shares a word of the third vocabulary with others
        number = image.words[:, 0]
        return replace(image, words=np.column_stack([number, number, number % 10]))

    found = verified(crowded(case.query), crowded(case.image))
    assert_found(case, found)
    for column in found.pairs.T:
        assert len(np.unique(column)) == found.count
    assert found.weight == pytest.approx(found.count * 3 / 4)  # 3 words, and 4 features on either side: 1 / sqrt(4 * 4)


@pytest.mark.parametrize("nearer", [0, 1], ids=["first", "last"])
def test_of_two_matches_the_heavier_is_kept(nearer: int) -> None:
    case = exact(20)
    bits = [np.uint64(0b11), np.uint64(0b111111)]
    order = bits if nearer == 0 else bits[::-1]
    keypoints = case.image.keypoints
    twice = ImageFeatures(
        np.concatenate([case.image.words] * 2),
        np.repeat(order, 20)[:, None],
        Keypoints(np.concatenate([keypoints.xy] * 2), np.tile(keypoints.scale, 2), np.tile(keypoints.angle, 2)),
    )
    found = verified(replace(case.query, signatures=np.zeros((20, 1), np.uint64)), twice)
    assert found.count == 20
    assert (found.pairs[:, 1] // 20 == nearer).all()
    assert found.weight == pytest.approx(20 * np.exp(-((2 / 16) ** 2)) / np.sqrt(2))


def test_inliers_come_heaviest_first() -> None:
    case = exact(20)
    rng = np.random.default_rng(4)
    ones = rng.permutation(20)  # bits of each signature, by the number of the feature
    image = replace(case.image, signatures=((np.uint64(1) << ones.astype(np.uint64)) - np.uint64(1))[case.image.words])
    found = verified(replace(case.query, signatures=np.zeros((20, 1), np.uint64)), image)
    assert ones[found.numbers].tolist() == list(range(20))
    assert found.weight == pytest.approx(np.exp(-((np.arange(20) / 16) ** 2)).sum())


def test_of_a_texture_in_the_query_the_first_are_matched() -> None:
    case = exact(MAX_PER_WORD + 30)
    same = [replace(one, words=np.zeros_like(one.words)) for one in (case.query, case.image)]
    segment = segment_of(same[1])
    pairs = inlier_pairs(prepared(same[0], segment), segment, 0)
    assert len(pairs) <= MAX_PER_WORD
    assert (pairs[:, 0] < MAX_PER_WORD).all()


# -- scale and rotation


def test_matches_with_another_rotation_or_scale_are_outliers() -> None:
    case = plant(np.eye(2), inliers=40, outliers=0, noise=0.0)
    number, keypoints = case.image.words[:, 0], case.image.keypoints
    angle = np.where(number < 10, keypoints.angle + 90, keypoints.angle)
    scale = np.where((number >= 10) & (number < 20), keypoints.scale * 4, keypoints.scale)
    found = verified(case.query, reframed(case.image, angle=angle, scale=scale))
    assert sorted(found.numbers) == list(range(20, 40))


@pytest.mark.parametrize("known", [0, 1, 2], ids=["none known", "half of the query", "half of either"])
def test_unknown_scales(known: int) -> None:
    case = plant(rotation(60, 1.5), outliers=20)
    query, image = (
        reframed(one, scale=np.where(one.words[:, 0] % 2 < part, one.keypoints.scale, 0))
        for one, part in ((case.query, min(known, 1)), (case.image, [0, 2, 1][known]))
    )
    assert_found(case, verified(query, image))


def test_angles_are_cyclic() -> None:
    case = exact(40)
    angle = case.query.keypoints.angle + np.where(np.arange(40) % 2, 355, -715)
    found = verified(reframed(case.query, angle=angle), case.image)
    assert found.count == 40


def with_shape(segment: Segment, shape: Array) -> Segment:
    return replace(segment, arrays=segment.arrays | {"shape": shape.astype(np.float16)})


def test_angles_may_be_negative() -> None:
    case = exact(40)
    segment = segment_of(case.image)
    shape = segment.arrays["shape"] - np.array([0, 360])
    assert (shape[:, 1] < 0).all()
    assert verify_images(prepared(case.query, segment), with_shape(segment, shape), [0]).counts[0] == 40


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_shapes_that_are_not_finite_are_unknown(value: float) -> None:
    case = exact(40)
    segment = segment_of(case.image)
    shape = segment.arrays["shape"].copy()
    shape[:5, 0] = shape[5:10, 1] = value
    assert verify_images(prepared(case.query, segment), with_shape(segment, shape), [0]).counts[0] == 40


def test_a_shape_is_read_as_float16() -> None:
    bits = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    values = bits.view(np.float16).astype(np.float64)
    np.testing.assert_array_equal([half(one) for one in bits], np.where(np.isfinite(values), values, np.nan))


# -- nothing to find


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_matches_give_nothing(count: int) -> None:
    case = exact(10)
    assert verified(replace(case.query, words=np.where(case.query.words < count, case.query.words, 99)), case.image).is_empty


@pytest.mark.parametrize("count", [3, 4, 5])
def test_few_matches_give_a_similarity(count: int) -> None:
    case = exact(10)
    found = verified(replace(case.query, words=np.where(case.query.words < count, case.query.words, 99)), case.image)
    assert sorted(found.numbers) == list(range(count))
    np.testing.assert_allclose(found.transform, case.transform, atol=1e-3)


def test_without_scales_one_match_more_is_needed() -> None:
    three, four = (exact(count, scaled=False) for count in (3, 4))
    assert verified(three.query, three.image).is_empty
    found = verified(four.query, four.image)
    assert found.count == 4
    np.testing.assert_allclose(found.transform, four.transform, atol=1e-3)


def test_images_without_features() -> None:
    empty = numbered(Keypoints(np.empty((0, 2)), np.empty(0), np.empty(0)), np.empty(0, np.int64))
    case = exact(10)
    for query, image in ((empty, empty), (empty, case.image), (case.query, empty)):
        assert verified(query, image).is_empty


def test_no_images_give_nothing() -> None:
    case = exact(10)
    segment = segment_of(case.image)
    found = verify_images(prepared(case.query, segment), segment, [])
    assert (len(found.counts), len(found.weights), found.transforms.shape) == (0, 0, (0, 2, 3))


def test_matches_without_weight_give_nothing() -> None:
    case = exact(10)
    segment = segment_of(case.image)
    for table in (np.zeros((2, 1)), np.full((2, 1), -1.0)):
        found = verify_images(VerificationQuery.of(case.query, table), segment, [0])
        assert (found.counts[0], found.weights[0]) == (0, 0)
        assert np.isnan(found.transforms).all()


def test_a_mirror_image_is_not_confirmed() -> None:
    case = plant(np.diag([-1.0, 1.0]), outliers=0, shift=(SIDE, 0.0))
    assert verified(case.query, case.image).count < FEW


@pytest.mark.parametrize("turned", [rotation(0, 0.05), rotation(0, 15.0), np.diag([3.0, 0.3])], ids=["tiny", "huge", "flat"])
def test_extreme_transforms_are_not_confirmed(turned: Array) -> None:
    case = plant(turned, outliers=0, noise=0.0)
    assert verified(case.query, case.image).count < FEW


def test_positions_on_one_line() -> None:
    along = np.random.default_rng(0).uniform(0, SIDE, 30)
    xy = np.column_stack([along, 0.5 * along + 20])
    query, image = (numbered(Keypoints(places, np.full(30, 4.0), np.zeros(30)), np.arange(30)) for places in (xy, xy + 7))
    found = verified(query, image)
    assert found.count == 30
    np.testing.assert_allclose(found.transform, [[1, 0, 7], [0, 1, 7]], atol=1e-3)  # nothing stretches across the line


@pytest.mark.parametrize("which", ["query", "image", "both"])
def test_equal_positions(which: str) -> None:
    case = plant(np.eye(2), inliers=30, outliers=0)
    same = np.full((30, 2), 100.0)
    query = reframed(case.query, xy=same) if which != "image" else case.query
    image = reframed(case.image, xy=same) if which != "query" else case.image
    found = verified(query, image)
    assert found.is_empty or (found.count < FEW and np.isfinite(found.transform).all())


def test_a_heap_of_matches_counts_only_if_each_is_at_its_position() -> None:
    """Within a heap as small as the tolerance any position fits; outliers that fit by chance do not make it larger."""
    case = plant(np.eye(2), inliers=60, outliers=0)
    rng = np.random.default_rng(0)
    heaps = [np.vstack([rng.uniform(480, 520, (40, 2)), rng.uniform(0, SIDE, (20, 2))]) for _ in range(2)]
    query, anywhere, same = (
        reframed(one, xy=xy[one.words[:, 0]])
        for one, xy in ((case.query, heaps[0]), (case.image, heaps[1]), (case.image, heaps[0]))
    )
    assert verified(query, anywhere).count < FEW
    assert verified(query, same).count == 60


def test_near_copies_keep_all_their_inliers() -> None:
    """More matches than are used to compare hypotheses."""
    count = MAX_SUPPORT + 200
    case = plant(rotation(20, 0.9), inliers=count, outliers=50)
    assert_found(case, verified(case.query, case.image))


# -- errors


@pytest.mark.parametrize("name", ["xy", "scale", "angle"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_keypoints_that_are_not_finite_raise(name: str, value: float) -> None:
    keypoints = plant(np.eye(2)).query.keypoints
    values = getattr(keypoints, name).copy()
    values[3] = value
    with pytest.raises(OptionError, match=f"{name} holds values that are not finite"):
        replace(keypoints, **{name: values})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"scale": np.ones(5)}, "do not fit"),
        ({"xy": np.ones((10, 1))}, "do not fit"),
        ({"scale": -np.ones(10)}, "negative"),
    ],
)
def test_keypoints_that_do_not_fit_raise(changes: dict[str, Array], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        replace(exact(10).query.keypoints, **changes)


def error_of(query: ImageFeatures, segment: Segment, table: Array, tolerance: float = TOLERANCE) -> str:
    """Return the one line that both functions raise."""
    lines = []
    for call in (lambda: verify_images(VerificationQuery.of(query, table), segment, [0], tolerance),
                 lambda: inlier_pairs(VerificationQuery.of(query, table), segment, 0, tolerance)):  # fmt: skip
        with pytest.raises(OptionError) as raised:
            call()
        lines.append(str(raised.value))
    assert lines[0] == lines[1] and "\n" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("tolerance", [0.0, 1.0, -0.1, math.nan])
def test_an_impossible_tolerance_raises(tolerance: float) -> None:
    case = exact(10)
    segment = segment_of(case.image)
    assert f"tolerance={tolerance!r} should be between 0 and 1" in error_of(case.query, segment, table_of(segment), tolerance)


@pytest.mark.parametrize(
    "name, message", [("words", "9 words, 10 signatures, 10"), ("signatures", "10 words, 9 signatures, 10")]
)
def test_parts_of_different_length_raise(name: str, message: str) -> None:
    case = exact(10)
    segment = segment_of(case.image)
    short = replace(case.query, **{name: getattr(case.query, name)[:9]})
    assert f"{message} keypoints" in error_of(short, segment, table_of(segment))


@pytest.mark.parametrize(("given", "stored"), [(0, 1), (0, 2), (1, 2), (2, 1)])
def test_signatures_of_another_length_raise(given: int, stored: int) -> None:
    rng = np.random.default_rng(0)
    segment = segment_of(random_image(rng, 10, 2, stored))
    line = error_of(random_image(rng, 10, 2, given), segment, table_of(segment))
    assert f"the query has signatures of {64 * given} bits, the images of {64 * stored}" in line


@pytest.mark.parametrize("shape", [(2, 65), (4, 65), (3, 1), (3, 129)])
def test_a_table_of_another_shape_raises(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    query, segment = random_image(rng, 10, 2, 1), segment_of(random_image(rng, 10, 2, 1))
    assert "should be (3, 65)" in error_of(query, segment, np.ones(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_table_that_is_not_finite_raises(value: float) -> None:
    case = exact(10)
    assert "not finite" in error_of(case.query, segment_of(case.image), np.array([[0.0], [value]]))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_another_number_of_vocabularies_raises(count: int) -> None:
    rng = np.random.default_rng(0)
    segment = segment_of(random_image(rng, 10, 3, 0))
    assert "vocabularies" in error_of(random_image(rng, 10, count, 0), segment, default_match_table(3, 0))


@pytest.mark.parametrize("position", [-1, 1])
def test_a_position_beyond_the_segment_raises(position: int) -> None:
    image = random_image(np.random.default_rng(0), 10, 2, 0)
    segment = segment_of(image)
    with pytest.raises(OptionError, match="the segment has 1 images"):
        verify_images(prepared(image, segment), segment, [position])


# -- which features match


def random_image(rng: np.random.Generator, count: int, k: int, planes: int, size: int = 6) -> ImageFeatures:
    """Return an image of few words, whose signatures differ in some of their bits."""
    places = rng.integers(0, 64, (count, k, planes, 14)).astype(np.uint64)
    ones = rng.integers(0, 2, places.shape).astype(np.uint64)  # an even or an odd number
    bits = np.bitwise_xor.reduce(ones << places, axis=3)
    signatures = bits[:, :, 0] if planes == 1 else bits if planes else np.empty((count, 0), np.uint64)
    keypoints = Keypoints(rng.uniform(0, 9, (count, 2)), np.ones(count), np.zeros(count))
    return ImageFeatures(rng.integers(0, size, (count, k)), signatures, keypoints)


Match = tuple[int, int, float]


def matches_of_a_loop(query: ImageFeatures, image: ImageFeatures, table: Array, most: int) -> list[Match]:
    """Return all matches, heaviest first: query feature, feature, weight."""
    given, stored = (with_planes(one.signatures, 2).tolist() for one in (query, image))
    shared: dict[tuple[int, int], list[int]] = {}  # distances of the words that a pair shares, in the order of the image
    for f, words in enumerate(image.words.tolist()):
        for k, word in enumerate(words):
            for q in [q for q, own in enumerate(query.words[:, k].tolist()) if own == word][:most]:
                signed = len(stored[f]) > 0
                distance = sum((a ^ b).bit_count() for a, b in zip(given[q][k], stored[f][k], strict=True)) if signed else 0
                shared.setdefault((q, f), []).append(distance)
    weighed = [(q, f, float(table[len(d), math.floor(sum(d) / len(d) + 0.5)])) for (q, f), d in shared.items()]
    return sorted((match for match in weighed if match[2] > 0), key=lambda match: -match[2])


def kept_of_a_loop(matches: list[Match]) -> list[Match]:
    """Keep the heaviest that use each feature once; their weights are divided by the root of how often both match."""
    kept: list[Match] = []
    for q, f, weight in matches:
        if all(q != other and f != another for other, another, _ in kept):
            uses = sum(m[0] == q for m in matches) * sum(m[1] == f for m in matches)
            kept.append((q, f, weight / math.sqrt(uses)))
    return kept


def matches_of_the_kernels(query: ImageFeatures, segment: Segment, table: Array, most: int) -> tuple[list[Match], list[Match]]:
    """Return all matches and those that are kept, by the kernels that `verify_images` calls."""
    words = query.words.astype(np.int64)
    bases = np.concatenate([[0], np.cumsum(words.max(axis=0) + 2)]).astype(np.int64)
    slots, starts, features = list_words(words, bases, most)
    ranks, weights = _ranks(table)
    a, n_features = segment.arrays, segment.n_features
    hits = np.empty((a["words"].size + 1, 4), np.uint32)
    n = find_shared(a["words"], a["places"], a["signatures"], bases, slots, hits)
    pairs = np.empty((a["words"].size * len(words), 4), np.uint32)
    met = np.random.default_rng(0).integers(0, max(len(pairs), 1), len(words)).astype(np.uint32)  # left by other images
    signed = np.ascontiguousarray(with_planes(query.signatures, 2)[:, :, : segment.planes])
    n = find_matches(hits[:n], a["signatures"], signed, starts, features, ranks, met, pairs)
    order = np.empty(n, np.int64)
    order_matches(pairs[:n], len(weights), order)
    uses = np.zeros(len(words), np.int64), np.zeros(n_features, np.int64)
    kept, shares = np.empty(min(len(words), n_features), np.int64), np.empty(min(len(words), n_features))
    n = one_to_one(order, pairs[:, 0], pairs[:, 1], *uses, kept, shares)
    assert not uses[0].any()
    assert not uses[1].any()
    every = [(int(q), int(f), float(weights[rank])) for q, f, rank, _ in pairs[order]]
    return every, [(int(q), int(f), float(weights[r] * s)) for (q, f, r, _), s in zip(pairs[kept[:n]], shares, strict=False)]


@pytest.mark.parametrize("planes", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("counts", [(20, 30), (9, 0), (1, 1), (40, 5)])
def test_matches_are_those_that_a_loop_finds(counts: tuple[int, int], k: int, planes: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng([7, seed, k, planes])
        query, image = (random_image(rng, count, k, planes) for count in counts)
        query = replace(query, words=np.where(rng.random(query.words.shape) < 0.1, -1, query.words))  # without a word
        few = rng.choice([-1.0, 0.0, 0.25, 0.5, 1.0, 3.0], (k + 1, 64 * planes + 1)).astype(np.float32)  # many are equal
        for table in (few, default_match_table(k, 64 * planes)):
            for most in (MAX_PER_WORD, 2):
                every, kept = matches_of_the_kernels(query, segment_of(image), table, most)
                expected = matches_of_a_loop(query, image, table, most)
                assert every == expected
                once = kept_of_a_loop(expected)
                assert [match[:2] for match in kept] == [match[:2] for match in once]
                assert [match[2] for match in kept] == pytest.approx([match[2] for match in once])


def test_the_mean_distance_is_rounded_halves_up() -> None:
    word, keypoints = np.zeros((1, 2), np.int64), Keypoints(np.zeros((1, 2)), np.ones(1), np.zeros(1))
    table = np.arange(1, 196, dtype=np.float32).reshape(3, 65)
    for bits, h in (((0b1, 0b111), 2), ((0b1, 0b11), 2), ((0b0, 0b1), 1), ((0b111, 0b1111), 4), ((2**64 - 1, 2**64 - 1), 64)):
        query = ImageFeatures(word, np.zeros((1, 2), np.uint64), keypoints)
        segment = segment_of(ImageFeatures(word, np.array([bits], np.uint64), keypoints))
        assert matches_of_the_kernels(query, segment, table, MAX_PER_WORD)[1] == [(0, 0, float(table[2, h]))]


# -- tables, outlines, imagees


def test_the_default_table_is_a_gaussian_within_its_limit() -> None:
    for k, bits, limit, sigma in ((3, 64, 24, 16), (2, 128, 52, 26)):
        table = default_match_table(k, bits)
        assert (table.shape, table.dtype) == ((k + 1, bits + 1), np.float32)
        assert table[1, 0] == 1
        assert table[1, sigma] == pytest.approx(1 / math.e)
        assert table[1, limit] > 0
        assert not table[:, limit + 1 :].any()
        for shared in range(k + 1):
            np.testing.assert_allclose(table[shared], shared * table[1], rtol=1e-6)
    np.testing.assert_array_equal(default_match_table(3, 0), [[0], [1], [2], [3]])


def test_an_outline_goes_clockwise_from_the_upper_left() -> None:
    assert outline((0, 0, 4, 2), np.array([[1.0, 0.0, 5.0], [0.0, 1.0, 7.0]])) == ((5, 7), (9, 7), (9, 9), (5, 9))
    assert outline((0, 0, 4, 2), np.array([[0.0, -2.0, 10.0], [2.0, 0.0, 0.0]])) == ((10, 0), (10, 8), (6, 8), (6, 0))


def test_the_extent_is_the_long_side() -> None:
    keypoints = Keypoints(np.array([[3, 5], [7, 20], [4, 6]]), np.ones(3), np.zeros(3))
    assert image_extent(keypoints.xy.astype(np.float32)) == 15


@pytest.mark.parametrize("planes", [0, 1, 2])
def test_image_words_are_those_of_the_segment(planes: int) -> None:
    rng = np.random.default_rng(0)
    made = [random_image(rng, 12, 3, planes) for _ in range(3)]
    made = [reframed(one, scale=np.arange(12) / 2, angle=np.arange(12) * 8) for one in made]
    read = segment_of(*made).image_features(1)
    np.testing.assert_array_equal(read.words, made[1].words)
    np.testing.assert_array_equal(read.signatures, made[1].signatures)
    np.testing.assert_array_equal(read.keypoints.xy, made[1].keypoints.xy.astype(np.float32))
    np.testing.assert_array_equal(read.keypoints.scale, made[1].keypoints.scale)
    np.testing.assert_array_equal(read.keypoints.angle, made[1].keypoints.angle)
