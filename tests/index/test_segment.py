"""A segment returns what it was built from: in memory, from its folder, and after merging; geometry is rounded a little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.segment import MAX_IMAGES, STEPS, Batch, Geometry, Segment, join_live, unpack_keypoints
from polyvoc.index.words import word_offsets
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.types import Keypoints
from random_collections import World, plain, random_world
from samples import unflushed

__all__ = ["unflushed"]

Array = npt.NDArray[Any]


def batch_of(world: World, signed: bool = True, first_id: int = 0) -> Batch:
    """Return the images of a world with random geometry."""
    batch = Batch.of_words(world.images, len(world.sizes), world.image_signatures if signed else None, first_id)
    rng = np.random.default_rng(first_id)
    n = len(batch.words)
    vectors = rng.random((len(batch.ids), 3)).astype(np.float16) if first_id % 2 == 0 else None
    geometry = Geometry.of(rng.random((n, 2)), rng.random(n), 360 * rng.random(n), batch.feature_starts)
    return replace(batch, geometry=geometry, embeddings=vectors)


def assert_same_batch(a: Batch, b: Batch) -> None:
    for name in ("ids", "feature_starts", "words"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert all(map(np.array_equal, a.geometry, b.geometry))
    if a.signatures is None or b.signatures is None:
        assert a.signatures is b.signatures or not len(a.words)
    else:
        assert np.array_equal(a.signatures, b.signatures)
    if a.embeddings is None or b.embeddings is None:
        assert a.embeddings is b.embeddings
    else:
        assert a.embeddings.dtype == b.embeddings.dtype == np.float16 and np.array_equal(a.embeddings, b.embeddings)


def part_of(batch: Batch, positions: list[int]) -> Batch:
    """Return some images of a batch, row by row."""
    rows = [np.arange(batch.feature_starts[p], batch.feature_starts[p + 1]) for p in positions]
    chosen = np.concatenate([np.empty(0, np.int64), *rows])
    return Batch(
        ids=batch.ids[positions],
        feature_starts=np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64),
        geometry=Geometry(batch.geometry.frames[positions], *(part[chosen] for part in batch.geometry[1:])),
        words=batch.words[chosen],
        signatures=None if batch.signatures is None else batch.signatures[chosen],
        embeddings=None if batch.embeddings is None else batch.embeddings[positions],
    )


def scores_of(segments: list[Segment], world: World, options: SearchOptions) -> list[Array]:
    engine = Engine(segments, world.sizes)
    plan = engine.plan(options)
    return engine.scores(engine.query(world.words, world.query_signatures, plan), plan)


OPTIONS = [
    plain(merge=merge, hamming=hamming, burstiness=burstiness)
    for merge in ("b1", "bayes", "posterior")
    for hamming, burstiness in ((None, "none"), (20, "none"), (24, "intra"))
]


@pytest.mark.parametrize("seed", range(8))
def test_a_saved_segment_is_loaded_as_it_was(tmp_path: Path, seed: int) -> None:
    world = random_world(seed)
    segment = Segment.build(batch_of(world, signed=seed % 2 == 0, first_id=seed), world.sizes)
    segment.save(tmp_path / "segment")
    loaded = Segment.open(tmp_path / "segment")
    assert loaded.sizes == segment.sizes and np.array_equal(loaded.ids, segment.ids)
    assert loaded.arrays.keys() == segment.arrays.keys()
    for name, array in segment.arrays.items():
        assert loaded.arrays[name].dtype == array.dtype and np.array_equal(loaded.arrays[name], array), name
    for options in OPTIONS if seed % 2 == 0 else OPTIONS[::3]:
        (expected,), (scores,) = scores_of([segment], world, options), scores_of([loaded], world, options)
        assert np.array_equal(scores, expected), options


@pytest.mark.parametrize("seed", range(12))
def test_batch_and_images_come_back(tmp_path: Path, seed: int) -> None:
    world = random_world(seed)
    batch = batch_of(world, signed=seed % 3 != 0, first_id=7 + seed % 2)
    built = Segment.build(batch, world.sizes)
    built.save(tmp_path / "segment")
    for segment in (built, Segment.open(tmp_path / "segment")):
        assert_same_batch(segment.live_batch(), batch)
        for position in range(segment.n_images):
            image = segment.image_features(position)
            expected = part_of(batch, [position])
            assert np.array_equal(image.words, expected.words)
            found = image.keypoints
            again = Geometry.of(found.xy, found.scale, found.angle, expected.feature_starts)
            assert np.array_equal(again.positions, expected.geometry.positions)
            assert np.array_equal(again.shapes, expected.geometry.shapes)
            if expected.signatures is not None and len(expected.words):
                assert np.array_equal(image.signatures, expected.signatures)


@pytest.mark.parametrize("seed", range(12))
def test_deleted_images_leave_no_trace(seed: int) -> None:
    world = random_world(seed)
    batch = batch_of(world)
    rng = np.random.default_rng(seed)
    gone = np.flatnonzero(rng.random(len(world.images)) < 0.4).tolist()
    left = [p for p in range(len(world.images)) if p not in gone]
    marked = Segment.build(batch, world.sizes).without(gone)
    anew = Segment.build(part_of(batch, left), world.sizes)
    assert marked.live_positions().tolist() == left
    assert_same_batch(marked.live_batch(), part_of(batch, left))
    assert np.array_equal(marked.live_lengths, anew.live_lengths)
    assert np.array_equal(marked.documents(), anew.documents())
    for options in OPTIONS:
        (scores,), (expected,) = scores_of([marked], world, options), scores_of([anew], world, options)
        assert np.array_equal(scores[left], expected), options
        assert not scores[gone].any()


@pytest.mark.parametrize("seed", range(12))
def test_counts_of_mapped_segments_are_those_of_the_images_that_are_left(tmp_path: Path, seed: int) -> None:
    world = random_world(seed)
    batch, rng = batch_of(world), np.random.default_rng([seed, 1])
    Segment.build(batch, world.sizes).save(tmp_path / "segment")
    for share in (0.1, 0.5, 1.0):
        gone = np.flatnonzero(rng.random(len(world.images)) < share).tolist()
        left = [p for p in range(len(world.images)) if p not in gone]
        marked, anew = Segment.open(tmp_path / "segment").without(gone), Segment.build(part_of(batch, left), world.sizes)
        assert np.array_equal(marked.live_lengths, anew.live_lengths)
        assert np.array_equal(marked.documents(), anew.documents())


def test_words_that_do_not_exist_are_not_counted(tmp_path: Path) -> None:
    world = random_world(3, k=2)
    segment = Segment.build(batch_of(world), world.sizes)
    position = int(np.argmax([len(image) for image in world.images]))
    forged = segment.arrays["words"].copy()
    forged[segment.arrays["feature_starts"][position]] = 60_000
    replace(segment, arrays={**segment.arrays, "words": forged}).save(tmp_path / "segment")
    with pytest.raises(DamagedError, match="words holds a number beyond"):
        _ = Segment.open(tmp_path / "segment").without([position]).live_lengths


def test_deleting_twice_is_deleting_both() -> None:
    world = random_world(3, k=2)
    segment = Segment.build(batch_of(world), world.sizes)
    assert segment.without([]) is segment
    once = segment.without([0])
    twice = once.without([1])
    assert twice.live_positions().tolist() == list(range(2, len(world.images)))
    assert once.live_positions().tolist() == list(range(1, len(world.images)))


@pytest.mark.parametrize("seed", range(6))
def test_merging_equals_building_at_once(seed: int) -> None:
    world = random_world(seed)
    batch = batch_of(world)
    cut = len(world.images) // 2
    parts = [part_of(batch, list(range(cut))), part_of(batch, list(range(cut, len(world.images))))]
    merged = Segment.build(Batch.concatenate([Segment.build(p, world.sizes).live_batch() for p in parts]), world.sizes)
    at_once = Segment.build(batch, world.sizes)
    assert np.array_equal(merged.ids, at_once.ids)
    for name, array in at_once.arrays.items():
        assert np.array_equal(merged.arrays[name], array), name


@pytest.mark.parametrize("seed", range(8))
def test_merging_mapped_segments_equals_building_what_is_left(tmp_path: Path, seed: int) -> None:
    world, rng = random_world(seed), np.random.default_rng(seed)
    batch, segments = batch_of(world, signed=seed % 2 == 0), []
    gone = rng.random(len(world.images)) < 0.3
    for number, part in enumerate(np.array_split(np.arange(len(world.images)), 3)):
        Segment.build(part_of(batch, part.tolist()), world.sizes).save(tmp_path / str(number))
        segments.append(Segment.open(tmp_path / str(number)).without(np.flatnonzero(gone[part]).tolist()))
    merged = Segment.build(join_live(segments), world.sizes)
    expected = Segment.build(part_of(batch, np.flatnonzero(~gone).tolist()), world.sizes)
    assert np.array_equal(merged.ids, expected.ids) and merged.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert merged.arrays[name].dtype == array.dtype and np.array_equal(merged.arrays[name], array), name


def test_joined_batches_have_vectors_where_any_has() -> None:
    world = random_world(3, k=2)
    without, vectors = batch_of(world, first_id=1), batch_of(world, first_id=2)
    assert Batch.concatenate([without, without]).embeddings is None
    joined = Batch.concatenate([without, vectors, without]).embeddings
    assert joined is not None and vectors.embeddings is not None and joined.dtype == np.float16
    zeros = np.zeros_like(vectors.embeddings)
    assert np.array_equal(joined, np.concatenate([zeros, vectors.embeddings, zeros]))
    longer = replace(vectors, embeddings=np.ones((len(vectors.ids), 4), np.float16))
    with pytest.raises(OptionError, match=r"vectors of \[3, 4\] numbers"):
        Batch.concatenate([vectors, longer])


def test_lists_hold_every_feature_once() -> None:
    world = random_world(5, k=3)
    segment = Segment.build(batch_of(world), world.sizes)
    starts, postings, bases = segment.arrays["starts"], segment.arrays["postings"], word_offsets(world.sizes)
    for k, size in enumerate(world.sizes):
        for word in range(size):
            images = postings[starts[bases[k] + word] : starts[bases[k] + word + 1]]
            expected = [image for image, words in enumerate(world.images) for w in words[:, k] if w == word]
            assert sorted(images.tolist()) == expected


def test_large_vocabularies_and_no_images(tmp_path: Path) -> None:
    sizes = (70_000, 5)
    segment = Segment.build(Batch.of_words([np.array([[69_999, 4]])], 2), sizes)
    assert segment.arrays["words"].dtype == np.uint32
    empty = Segment.build(Batch.of_words([], 2), sizes)
    assert (empty.n_images, empty.n_features) == (0, 0)
    for number, made in enumerate((segment, empty)):
        made.save(tmp_path / str(number))
        assert_same_batch(Segment.open(tmp_path / str(number)).live_batch(), made.live_batch())


# -- geometry


def stored(xy: Array, scale: Array, angle: Array) -> Keypoints:
    """Return the keypoints of one image as they are stored."""
    geometry = Geometry.of(xy, scale, angle, np.array([0, len(xy)]))
    return unpack_keypoints(geometry.frames[0], geometry.positions, geometry.shapes)


@pytest.mark.parametrize("side", [1e-3, 1.0, 640.0, 1e5])
@pytest.mark.parametrize("corner", [0.0, -17.3, 2e4])
def test_geometry_is_rounded_a_little(side: float, corner: float) -> None:
    rng = np.random.default_rng(int(side))
    xy, angle = corner + rng.uniform(0, side, (500, 2)) * [1, 0.6], rng.uniform(-720, 720, 500)
    scale = 2 ** rng.uniform(-4, 12.9, 500)
    found = stored(xy, scale, angle)
    rounding = 4 * np.spacing(np.float32(np.abs(xy).max()))  # frames are float32
    assert np.abs(found.xy - xy).max() <= (xy.max(axis=0) - xy.min(axis=0)).max() / STEPS / 2 * 1.001 + rounding
    assert np.abs(np.log2(found.scale / scale)).max() <= 1 / 30 + 1e-9
    apart = (found.angle - angle) % 360
    assert np.minimum(apart, 360 - apart).max() <= 360 / 512 + 1e-9
    assert (found.angle >= 0).all() and (found.angle < 360).all()


def test_unknown_scales_and_extreme_ones() -> None:
    scale = np.array([0, 5, np.inf, np.nan, 1e-9, 1e9, 1.0])
    angle = np.array([90, np.nan, 90, 90, 90, 90, 359.9])
    found = stored(np.zeros((7, 2)), scale, angle)
    assert found.scale.tolist() == [0, pytest.approx(5, rel=0.03), 0, 0, 2**-4, pytest.approx(2 ** (254 / 15 - 4)), 1]
    assert np.isnan(found.angle[1]) and np.delete(found.angle, 1).tolist() == [0, 0, 0, 90, 90, 0]


def test_an_unknown_angle_leaves_the_scale() -> None:
    scale = 2 ** np.random.default_rng(1).uniform(-4, 12.9, 50)
    found = stored(np.zeros((50, 2)), scale, np.full(50, np.nan))
    assert np.isnan(found.angle).all() and np.abs(np.log2(found.scale / scale)).max() <= 1 / 30 + 1e-9
    again = stored(np.zeros((50, 2)), found.scale, found.angle)
    assert np.array_equal(again.scale, found.scale) and np.isnan(again.angle).all()


def test_images_are_rounded_apart() -> None:
    """One feature, or several at one place, keep it; an image without features has a frame, too."""
    rng = np.random.default_rng(3)
    counts = [0, 1, 20, 0, 3, 0]
    starts = np.cumsum([0, *counts])
    xy, scale, angle = rng.uniform(0, 900, (24, 2)), rng.uniform(1, 30, 24), rng.uniform(0, 360, 24)
    xy[21:] = xy[21]
    whole = Geometry.of(xy, scale, angle, starts)
    assert whole.frames[[0, 3, 5]].tolist() == [[0, 0, 1]] * 3
    for image, (first, last) in enumerate(pairwise(starts)):
        alone = Geometry.of(xy[first:last], scale[first:last], angle[first:last], np.array([0, last - first]))
        assert np.array_equal(whole.frames[image], alone.frames[0])
        assert np.array_equal(whole.positions[first:last], alone.positions)
        assert np.array_equal(whole.shapes[first:last], alone.shapes)
        if last - first in (1, 3):
            assert np.allclose(unpack_keypoints(alone.frames[0], alone.positions, alone.shapes).xy, xy[first:last], rtol=1e-6)


def test_features_without_positions() -> None:
    geometry = Geometry.unknown(2, 3)
    found = unpack_keypoints(geometry.frames[1], geometry.positions, geometry.shapes)
    assert not found.xy.any() and not found.scale.any() and not found.angle.any()


# -- what does not fit


NONE = np.empty((0, 2), int)


@pytest.mark.parametrize(
    "batch, message",
    [
        (lambda: Batch.of_words([NONE] * (MAX_IMAGES + 1), 2), "do not fit into one segment"),
        (lambda: Batch.of_words([np.zeros((1, 3), int)], 3), "3 vocabularies where 2"),
        (lambda: Batch.of_words([np.array([[0, -1]])], 2), "words of vocabulary 1 should be 0 to 4"),
        (lambda: Batch.of_words([np.array([[0, 5]])], 2), "words of vocabulary 1 should be 0 to 4"),
        (lambda: Batch.of_words([np.zeros((2, 2), int)], 2, [np.zeros((1, 2), np.uint64)]), "signatures"),
        *(
            (lambda bad=bad: replace(Batch.of_words([NONE], 2), embeddings=bad), r"should be float16 \[1, dimension\]")
            for bad in (np.zeros((2, 3), np.float16), np.zeros(1, np.float16), np.zeros((1, 3), np.float32))
        ),
    ],
)
def test_a_batch_that_does_not_fit_raises(batch: Callable[[], Batch], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Segment.build(batch(), (4, 5))


@pytest.mark.parametrize(
    "text", ["{}", '{"arrays": {}}', '{"arrays": {"a": 1}}', '{"arrays": {"a": ["no", [1]]}}', "[]", "nul"]
)
def test_a_damaged_description_is_one_line(tmp_path: Path, text: str) -> None:
    Segment.build(Batch.of_words([], 2), (4, 5)).save(tmp_path / "segment")
    (tmp_path / "segment/meta.json").write_text(text)
    with pytest.raises(DamagedError, match=r"meta\.json|missing"):
        Segment.open(tmp_path / "segment")


def test_any_byte_of_a_description_may_be_damaged(tmp_path: Path) -> None:
    Segment.build(batch_of(random_world(2, k=2)), random_world(2, k=2).sizes).save(tmp_path / "segment")
    path = tmp_path / "segment/meta.json"
    original = path.read_bytes()
    raised = 0
    for at in range(0, len(original), 3):
        for mask in (0x01, 0x20):
            path.write_bytes(original[:at] + bytes([original[at] ^ mask]) + original[at + 1 :])
            try:
                Segment.open(tmp_path / "segment")
            except DamagedError as error:
                assert "\n" not in str(error)
                raised += 1
    assert raised > 100


def test_positions_of_any_layout_are_stored_as_rows() -> None:
    xy = np.asfortranarray(np.random.default_rng(0).random((4, 2)))
    batch = Batch.of_words([np.zeros((4, 1), np.int32)], 1)
    segment = Segment.build(replace(batch, geometry=Geometry.of(xy, np.ones(4), np.ones(4), batch.feature_starts)), (2,))
    assert all(segment.arrays[name].flags.c_contiguous for name in ("positions", "shapes"))
