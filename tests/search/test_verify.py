"""Matches, by words and by codes, are those of a loop; planted transforms are found among outliers, impossible ones are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coded_scenes import (
    NOISE,
    WORDS,
    coded_again,
    coded_batch,
    coded_engine,
    coded_joined,
    coded_picture,
    coded_scrambled,
    coder_of,
    descriptors,
    noisy,
)
from polyvoc.errors import OptionError
from polyvoc.index.segment import OCTAVE, STEPS, Batch, Geometry, Segment, unpack_keypoints
from polyvoc.index.segment import TURN as TURN_STEPS
from polyvoc.kernels.verification import (
    MAX_SUPPORT,
    OCTAVES,
    TURN,
    WEIGHT,
    U,
    V,
    X,
    Y,
    find_matches,
    find_shared,
    image_extent,
    list_words,
    one_to_one,
    order_matches,
    write_pairs,
)
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, SearchOptions
from polyvoc.scoring.codes import default_code_table
from polyvoc.scoring.engine import Engine
from polyvoc.search.verify import (
    MAX_PER_WORD,
    MIN_INLIERS,
    MIN_LLR,
    TOLERANCE,
    UNTURNED,
    CodedVerification,
    WordVerification,
    _ranks,
    default_match_table,
    inlier_pairs,
    is_reliable,
    outline,
    prepare_verification,
    verify,
    verify_images,
)
from polyvoc.types import CodeTable, FeatureCodes, ImageFeatures, Keypoints, with_planes
from polyvoc.vocabulary.codes import CodedQuery
from scenes import SIZES

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
    geometry = Geometry.of(xy, scale, angle, batch.feature_starts)
    return Segment.build(replace(batch, geometry=geometry), (SIZE,) * n_vocabularies)


def table_of(segment: Segment) -> Array:
    return default_match_table(segment.n_vocabularies, 64 * segment.planes)


def prepared(query: ImageFeatures, segment: Segment) -> WordVerification:
    return WordVerification.of(query, table_of(segment))


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
    """Return matches that a similarity maps exactly; an index keeps their scales, and their angles nearly."""
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


def assert_near(found: Array, expected: Array) -> None:
    """The transforms are the same but for the rounding of positions, 1 / 131,070 of the side of an image."""
    np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=2e-4)
    np.testing.assert_allclose(found[:, 2], expected[:, 2], atol=0.05)


TURNED = {
    "shift": np.eye(2),
    "quarter turn": rotation(90),
    "turned and smaller": rotation(-170, 0.4),
    "turned and larger": rotation(35, 2.5),
    "stretched": rotation(10) @ np.array([[1.3, 0.2], [0.0, 0.8]]),
    "sheared": np.array([[1.0, 0.0], [0.3, 0.6]]),
}


@pytest.mark.parametrize("turned", TURNED.values(), ids=TURNED)
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
    query = WordVerification.of(case.query, table)
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


def unturned(image: ImageFeatures) -> ImageFeatures:
    """Return features whose angles are unknown, as those of a network."""
    return reframed(image, angle=np.full(len(image.words), np.nan))


def upright(turned: Array, **planted: Any) -> Case:
    case = plant(turned, **planted)
    return replace(case, query=unturned(case.query), image=unturned(case.image))


@pytest.mark.parametrize("turned", [np.eye(2), rotation(40), rotation(-55, 0.6), rotation(20, 3.0), TURNED["stretched"]])
def test_a_transform_is_found_without_angles(turned: Array) -> None:
    case = upright(turned, outliers=80)
    assert_found(case, verified(case.query, case.image), share=0.8)


def test_without_angles_scales_of_inliers_fit() -> None:
    case = upright(np.eye(2), inliers=40, outliers=0, noise=0.0)
    number, keypoints = case.image.words[:, 0], case.image.keypoints
    scale = np.where(number < 10, keypoints.scale * 4, keypoints.scale)
    assert sorted(verified(case.query, reframed(case.image, scale=scale)).numbers) == list(range(10, 40))


@pytest.mark.parametrize("turned", [rotation(90), rotation(180)])
def test_features_without_angles_are_not_confirmed_in_turned_photographs(turned: Array) -> None:
    """What a network matches there is chance."""
    case = upright(turned)
    assert verified(case.query, case.image).count < FEW


def test_chance_matches_without_angles_have_few_inliers() -> None:
    """Not more than those of features with angles, whose limits are `FEW`."""
    cases = [upright(np.eye(2), inliers=0, outliers=100, seed=seed) for seed in range(50)]
    found = [verified(case.query, case.image) for case in cases]
    assert max(one.count for one in found) < FEW


def test_angles_are_cyclic() -> None:
    case = exact(40)
    angle = case.query.keypoints.angle + np.where(np.arange(40) % 2, 355, -715)
    found = verified(reframed(case.query, angle=angle), case.image)
    assert found.count == 40


def with_shapes(segment: Segment, shapes: Array) -> Segment:
    return replace(segment, arrays=segment.arrays | {"shapes": shapes})


def test_angles_may_be_negative() -> None:
    case = exact(40)
    turned = [reframed(case.image, angle=case.image.keypoints.angle + turn) for turn in (0, -720)]
    assert (turned[1].keypoints.angle < 0).all()
    first, second = (verified(case.query, image) for image in turned)
    assert first.count == second.count == 40
    np.testing.assert_array_equal(first.transform, second.transform)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_shapes_that_are_not_finite_are_unknown(value: float) -> None:
    case = exact(40)
    segment, at = segment_of(case.image), case.image.keypoints
    scale, angle = at.scale.copy(), at.angle.copy()
    scale[:5] = angle[5:10] = value
    shapes = Geometry.of(at.xy, scale, angle, np.array([0, 40])).shapes
    assert not shapes[:5].any() and np.array_equal(shapes[10:], segment.arrays["shapes"][10:])
    assert not shapes[5:10, 0].any() and np.array_equal(shapes[5:10, 1], segment.arrays["shapes"][5:10, 0])
    assert verify_images(prepared(case.query, segment), with_shapes(segment, shapes), [0]).counts[0] == 40


def test_geometry_is_read_as_it_is_stored() -> None:
    """All scales and angles, the unknown one too, at some positions: what the kernel reads is what `image_features` returns."""
    shapes = np.stack(np.meshgrid(np.arange(256), np.arange(0, 256, 5)), axis=-1).reshape(-1, 2).astype(np.uint8)
    n = len(shapes)
    positions = np.random.default_rng(0).integers(0, 1 << 16, (n, 2)).astype(np.uint16)
    frame = np.array([-3.25, 17.5, 0.037], np.float32)
    query = np.tile([5.0, 6.0, 2.0, 10.0], (n, 1))
    rows = np.arange(n, dtype=np.uint32)
    pairs = np.empty((WEIGHT + 1, n))
    matches = np.column_stack([rows, rows, rows % 2, rows])
    write_pairs(matches, rows, np.full(n, 0.5), np.array([3.0, 7.0]), query, frame, positions, shapes, pairs)
    read = unpack_keypoints(frame, positions, shapes)
    np.testing.assert_allclose(pairs[[X, Y]], query[:, :2].T)
    np.testing.assert_allclose(pairs[[U, V]], read.xy.T)
    scaled, turned = read.scale > 0, ~np.isnan(read.angle) & (read.scale > 0)
    assert scaled.sum() == n - 1 and turned.sum() == n - 52
    assert np.isnan(pairs[OCTAVES, ~scaled]).all() and np.isnan(pairs[TURN, ~turned]).all()
    np.testing.assert_allclose(pairs[OCTAVES, scaled], np.log2(read.scale[scaled] / 2))
    np.testing.assert_allclose(pairs[TURN, turned], (read.angle[turned] - 10 + 180) % 360 - 180, atol=1e-9)
    query[:, 3] = np.nan
    write_pairs(matches, rows, np.full(n, 0.5), np.array([3.0, 7.0]), query, frame, positions, shapes, pairs)
    assert np.isnan(pairs[TURN]).all() and np.array_equal(~np.isnan(pairs[OCTAVES]), scaled)
    np.testing.assert_allclose(pairs[WEIGHT], np.where(rows % 2, 3.5, 1.5))


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
    assert_near(found.transform, case.transform)


def test_without_scales_one_match_more_is_needed() -> None:
    three, four = (exact(count, scaled=False) for count in (3, 4))
    assert verified(three.query, three.image).is_empty
    found = verified(four.query, four.image)
    assert found.count == 4
    assert_near(found.transform, four.transform)


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
        found = verify_images(WordVerification.of(case.query, table), segment, [0])
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
    assert_near(found.transform, np.array([[1, 0, 7], [0, 1, 7]]))  # nothing stretches across the line


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


@pytest.mark.parametrize(
    "name, value", [("xy", np.nan), ("xy", np.inf), ("scale", np.nan), ("scale", np.inf), ("angle", np.inf), ("angle", -np.inf)]
)
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
    for call in (lambda: verify_images(WordVerification.of(query, table), segment, [0], tolerance),
                 lambda: inlier_pairs(WordVerification.of(query, table), segment, 0, tolerance)):  # fmt: skip
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
    places = a["places"] if segment.planes else np.zeros_like(a["words"], np.uint32)
    n = find_shared(a["words"], places, a["signatures"], bases, slots, hits)
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


# -- tables, outlines, images


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
    geometry = Geometry.of(keypoints.xy, keypoints.scale, keypoints.angle, np.array([0, 3]))
    assert image_extent(geometry.frames[0], geometry.positions) == pytest.approx(15)
    assert (
        image_extent(geometry.frames[0], geometry.positions[:1])
        == image_extent(geometry.frames[0], geometry.positions[:0])
        == 0
    )


@pytest.mark.parametrize("planes", [0, 1, 2])
def test_image_features_are_those_of_the_segment(planes: int) -> None:
    rng = np.random.default_rng(0)
    made = [random_image(rng, 12, 3, planes) for _ in range(3)]
    made = [reframed(one, scale=np.arange(12) / 2, angle=np.arange(12) * 8) for one in made]
    read = segment_of(*made).image_features(1)
    np.testing.assert_array_equal(read.words, made[1].words)
    np.testing.assert_array_equal(read.signatures, made[1].signatures)
    assert read.codes is None
    side = np.ptp(made[1].keypoints.xy, axis=0).max()
    np.testing.assert_allclose(read.keypoints.xy, made[1].keypoints.xy, atol=0.51 * side / STEPS)
    assert read.keypoints.scale[0] == read.keypoints.angle[0] == 0  # unknown
    np.testing.assert_allclose(np.log2(read.keypoints.scale[1:] / made[1].keypoints.scale[1:]), 0, atol=0.51 / OCTAVE)
    np.testing.assert_allclose(read.keypoints.angle[1:], made[1].keypoints.angle[1:], atol=0.51 * 360 / TURN_STEPS)


# -- by codes


TABLE = default_code_table(128)


def by_codes(case: Case, noise: float = NOISE) -> tuple[CodedVerification, Segment]:
    """Return a case by codes: every feature has a descriptor of its own, which differs a little in the image."""
    rng = np.random.default_rng(21)
    known = descriptors(rng, len(case.query.words))
    query, image = case.query.words[:, 0], case.image.words[:, 0]
    coded = coder_of().query(known[query], CODE_ASSIGNMENTS, CODE_CUT)
    prepared = CodedVerification.of(coded, case.query.keypoints, TABLE, WORDS)
    return prepared, coded_segment([case.image.keypoints], [noisy(rng, known, noise)[image]])


def coded_segment(keypoints: Sequence[Keypoints], described: Sequence[Array], bits: int = 128) -> Segment:
    """Return a segment of images without words."""
    starts = np.cumsum([0, *map(len, described)])
    places = (np.concatenate([getattr(one, name) for one in keypoints]) for name in ("xy", "scale", "angle"))
    codes = coder_of(bits).encode(np.concatenate(described))
    nothing = np.empty((starts[-1], 0), np.int32)
    batch = Batch(np.arange(len(described)), starts, Geometry.of(*places, starts), nothing, None, codes)
    return Segment.build(batch, (), WORDS)


def verified_by_codes(case: Case, noise: float = NOISE) -> Result:
    query, segment = by_codes(case, noise)
    found, pairs = verify_images(query, segment, [0]), inlier_pairs(query, segment, 0)
    assert len(pairs) == found.counts[0]
    numbers = case.query.words[pairs[:, 0], 0]
    return Result(int(found.counts[0]), float(found.weights[0]), found.transforms[0], pairs, numbers)


@pytest.mark.parametrize("turned", TURNED.values(), ids=TURNED)
def test_a_planted_transform_is_found_by_codes(turned: Array) -> None:
    case = plant(turned)
    found = verified_by_codes(case)
    assert_found(case, found)
    assert found.weight > 3 * found.count  # nats


def test_most_matches_by_codes_may_be_wrong() -> None:
    case = plant(rotation(50, 0.7), inliers=25, outliers=225)
    assert_found(case, verified_by_codes(case))


def test_a_few_exact_matches_by_codes_give_the_transform() -> None:
    case = exact(10)
    found = verified_by_codes(case, noise=0.0)
    assert sorted(found.numbers) == list(range(10))
    assert_near(found.transform, case.transform)


def test_random_images_are_rejected_by_codes() -> None:
    """Neither other descriptors nor the same ones at random positions are confirmed."""
    rng = np.random.default_rng(23)
    query = coded_picture(rng, 100)
    others = [coded_picture(rng, 100) for _ in range(30)] + [coded_scrambled(rng, query) for _ in range(30)]
    segment = Segment.build(coded_batch(others), SIZES, WORDS)
    prepared = CodedVerification.of(query.coded(), query.keypoints, TABLE, WORDS)
    found = verify_images(prepared, segment, np.arange(60))
    assert found.counts[:30].max() < MIN_INLIERS and found.weights[:30].max() < MIN_LLR
    assert found.counts[30:].max() < FEW
    assert not any(np.isfinite(found.transforms[found.counts == 0]).ravel())
    engine = Engine([segment], SIZES)
    candidates = verify(engine, prepared, [(0, position) for position in range(60)])
    assert [candidates[0, position].inliers for position in range(60)] == found.counts.tolist()
    assert not any(is_reliable(candidates[0, position]) for position in range(30))


def code_matches_of_a_loop(query: CodedQuery, image: FeatureCodes, table: CodeTable, most: int) -> list[Match]:
    """Return all matches by codes, heaviest first: query feature, feature, weight."""
    columns, matches, visits = len(table.rows[0]) - 1, list[Match](), dict[int, list[tuple[int, int]]]()
    for q, words in enumerate(query.words.tolist()):
        for a, word in enumerate(words):
            visits.setdefault(word, []).append((q, a))
    magnitudes = query.magnitudes.reshape(*query.words.shape, -1).astype(np.int64)
    for f, word in enumerate(image.words.tolist()):
        for q, a in visits.get(word, [])[:most]:
            planes = [int(x ^ y) for x, y in zip(query.codes[q, a], image.codes[f], strict=True)]
            apart = [i for i in range(64 * len(planes)) if planes[i // 64] >> i % 64 & 1]
            total = int(query.totals[q, a])
            distance = int(magnitudes[q, a, apart].sum()) * ((columns << 32) // total if total else 0) >> 32
            row = sum(edge < query.ratios[q, a] for edge in table.edges)
            if len(apart) <= table.reach and table.rows[row][distance] > 0:
                matches.append((q, f, table.rows[row][distance]))
    return sorted(matches, key=lambda match: -match[2])


@pytest.mark.parametrize("bits", [64, 128])
def test_inliers_by_codes_are_matches_of_a_loop(bits: int) -> None:
    """Each is kept by the loop, and their weights sum to that of the image."""
    rng, table = np.random.default_rng(24), default_code_table(bits)
    query = coded_picture(rng, 60)
    images = [coded_joined(coded_again(rng, query), coded_picture(rng, 20)) for _ in range(3)]
    images += [coded_scrambled(rng, query), coded_joined(images[0], images[1])]  # two of each feature
    segment = Segment.build(coded_batch(images, bits=bits), SIZES, WORDS)
    coded = query.coded(bits=bits)
    prepared = CodedVerification.of(coded, query.keypoints, table, WORDS)
    found = verify_images(prepared, segment, np.arange(len(images)))
    for position in range(len(images)):
        stored = segment.image_features(position).codes
        assert stored is not None
        kept = {(q, f): weight for q, f, weight in kept_of_a_loop(code_matches_of_a_loop(coded, stored, table, MAX_PER_WORD))}
        pairs = [tuple(pair) for pair in inlier_pairs(prepared, segment, position).tolist()]
        assert len(pairs) == len(set(pairs)) == found.counts[position] and set(pairs) <= kept.keys()
        assert found.weights[position] == pytest.approx(sum(kept[pair] for pair in pairs))
    assert found.counts[[0, 1, 2]].min() > 30 < found.counts[4]


def test_weak_matches_without_angles_are_left_out() -> None:
    """Whatever the table is, its weights of up to UNTURNED nats are those of no match; with angles all above 0 are."""
    rng, table = np.random.default_rng(8), default_code_table(128)
    shown = coded_picture(rng, 60)
    unknown = replace(shown.keypoints, angle=np.full(60, np.nan))
    turned, unturned = (CodedVerification.of(shown.coded(), at, table, WORDS) for at in (shown.keypoints, unknown))
    rows = np.array(table.rows)
    assert np.array_equal(turned.ranks >= 0, rows > 0) and np.array_equal(unturned.ranks >= 0, rows > UNTURNED)
    assert unturned.weights.min() > UNTURNED and np.array_equal(turned.weights[: len(unturned.weights)], unturned.weights)


def test_visits_beyond_the_most_of_a_word_are_not_matched() -> None:
    """A texture: all features of the query visit the same words."""
    rng = np.random.default_rng(25)
    same = noisy(rng, np.tile(descriptors(rng, 1), (MAX_PER_WORD + 40, 1)), 0.001)
    at = exact(len(same))
    segment = coded_segment([at.image.keypoints], [same])
    query = CodedVerification.of(coder_of().query(same, 1, CODE_CUT), at.query.keypoints, TABLE, WORDS)
    assert (inlier_pairs(query, segment, 0)[:, 0] < MAX_PER_WORD).all()


def test_images_verified_together_by_codes_give_the_same_as_alone() -> None:
    rng = np.random.default_rng(26)
    query = coded_picture(rng, 50)
    images = [coded_again(rng, query.chosen(slice(0, n))) for n in (50, 30, 0, 12)]
    images += [coded_picture(rng, 300), coded_joined(*(coded_again(rng, query) for _ in range(3)))]
    segment = Segment.build(coded_batch(images), SIZES, WORDS)
    prepared = CodedVerification.of(query.coded(), query.keypoints, TABLE, WORDS)
    positions = np.array([5, 2, 0, 4, 3, 5, 1])
    found = verify_images(prepared, segment, positions)
    for row, position in enumerate(positions.tolist()):
        alone = verify_images(prepared, Segment.build(coded_batch([images[position]]), SIZES, WORDS), [0])
        assert (found.counts[row], found.weights[row]) == (alone.counts[0], alone.weights[0])
        np.testing.assert_array_equal(found.transforms[row], alone.transforms[0])
    assert (found.counts > 8).tolist() == [True, False, True, False, True, True, True]


def test_inputs_of_verification_by_codes_are_not_modified() -> None:
    case = plant(rotation(30))
    query, segment = by_codes(case)
    arrays = [query.features, *query.query[:-1], *query.visited, query.ranks, query.weights, *segment.arrays.values()]
    before = [array.copy() for array in arrays]
    assert verify_images(query, segment, [0]).counts[0] == len(inlier_pairs(query, segment, 0)) > 30
    assert len(query) == len(case.query.words) and np.array_equal(query.xy, case.query.keypoints.xy)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


def test_codes_that_do_not_fit_raise() -> None:
    case = exact(10)
    query, segment = by_codes(case)
    with pytest.raises(OptionError, match="codes of 10 features, 9 keypoints"):
        CodedVerification.of(coder_of().query(descriptors(np.random.default_rng(0), 10), 3, CODE_CUT), Keypoints(
            np.ones((9, 2)), np.ones(9), np.ones(9)), TABLE, WORDS)  # fmt: skip
    short = coded_segment([case.image.keypoints], [descriptors(np.random.default_rng(0), 10)], bits=64)
    with pytest.raises(
        OptionError, match=f"codes of 2 x 64 bits relative to {WORDS} words where 1 x 64 relative to {WORDS} are"
    ):
        verify_images(query, short, [0])
    with pytest.raises(OptionError, match=r"relative to word \d+ where 3 words are expected"):
        CodedVerification.of(coder_of().query(descriptors(np.random.default_rng(0), 10), 3, CODE_CUT), case.query.keypoints,
                             TABLE, 3)  # fmt: skip
    with pytest.raises(OptionError, match="where 0 x 64 relative to 0 are stored"):
        verify_images(query, segment_of(case.image), [0])
    with pytest.raises(OptionError, match="the segment has 1 images"):
        verify_images(query, segment, [1])
    with pytest.raises(OptionError, match="tolerance=2 should be between 0 and 1"):
        inlier_pairs(query, segment, 0, 2)


def test_a_query_is_verified_by_codes_where_it_has_them() -> None:
    rng = np.random.default_rng(27)
    shown = coded_picture(rng, 40)
    engine = coded_engine([coded_again(rng, shown), coded_picture(rng)])
    by_words = replace(shown.query, codes=None)
    assert isinstance(prepare_verification(engine, shown.query, SearchOptions()), CodedVerification)
    assert isinstance(prepare_verification(engine, by_words, SearchOptions()), WordVerification)
    rows = tuple((2.0,) * 129 for _ in TABLE.rows)  # every match weighs the same
    for options, most in ((SearchOptions(), 13.4), (SearchOptions(code_table=replace(TABLE, rows=rows)), 2.0)):
        prepared = prepare_verification(engine, shown.query, options)
        assert isinstance(prepared, CodedVerification) and prepared.weights.max() == pytest.approx(most, rel=0.1)
