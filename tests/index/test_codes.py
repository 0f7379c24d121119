"""Codes of a segment come back as they were put in, and their lists hold every feature once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from polyvoc.index.codes import all_codes, build_codes, codes_at, word_norms
from polyvoc.index.segment import Batch, Segment, join_live
from polyvoc.types import FeatureCodes
from random_collections import CodedWorld, coded_engine, random_coded_world
from samples import unflushed

__all__ = ["unflushed"]

WORLDS = [(seed, bits) for seed in range(12) for bits in (64, 128)]


def joined(world: CodedWorld) -> FeatureCodes:
    return FeatureCodes(*map(np.concatenate, zip(*world.images, strict=True)))


def starts_of(world: CodedWorld) -> np.ndarray:
    return np.cumsum([0, *(len(image.words) for image in world.images)])


@pytest.mark.parametrize(("seed", "bits"), WORLDS)
def test_codes_come_back(tmp_path: Path, seed: int, bits: int) -> None:
    world = random_coded_world(seed, bits)
    (built,) = coded_engine(world).segments
    built.save(tmp_path / "segment")
    for segment in (built, Segment.open(tmp_path / "segment")):
        assert (segment.fine, segment.code_planes) == (world.size, bits // 64)
        assert all(map(np.array_equal, all_codes(segment.arrays), joined(world)))
        for position, image in enumerate(world.images):
            stored = segment.image_features(position)
            assert stored.codes is not None and all(map(np.array_equal, stored.codes, image))
            assert stored.words.shape == stored.signatures.shape == (len(image.words), 0)


def test_codes_of_repeated_words_come_back() -> None:
    """By bisection: those of one word and image follow one another in the order of the features."""
    words = np.array([3, 3, 1, 3, 3, 1, 3, 3], np.uint32)
    given = FeatureCodes(words, np.arange(8, dtype=np.uint64)[:, None], np.arange(8, dtype=np.uint8)[:, None])
    starts = np.array([0, 5, 5, 8])  # the second image has none
    arrays = build_codes(given, starts, 4)
    assert arrays["codes"].tolist() == [[2, 5, 0, 1, 3, 4, 6, 7]]
    assert arrays["code_starts"].tolist() == [0, 0, 2, 2, 8]
    assert arrays["code_images"].tolist() == [0, 2, 0, 0, 0, 0, 2, 2]
    for position, (first, last) in enumerate(pairwise(starts)):
        found = codes_at(arrays, position, first, last)
        assert all(map(np.array_equal, found, given.chosen(slice(first, last))))


@pytest.mark.parametrize(("seed", "bits"), WORLDS)
def test_lists_hold_every_feature_once_by_image(seed: int, bits: int) -> None:
    world = random_coded_world(seed, bits)
    (segment,) = coded_engine(world).segments
    starts, codes, images = (segment.arrays[name] for name in ("code_starts", "codes", "code_images"))
    for word in range(world.size):
        listed = slice(int(starts[word]), int(starts[word + 1]))
        found = [(int(image), *code) for image, code in zip(images[listed], codes[:, listed].T.tolist(), strict=True)]
        features = ((n, row, image) for n, image in enumerate(world.images) for row in np.flatnonzero(image.words == word))
        assert found == [(number, *image.codes[row].tolist()) for number, row, image in features]


@pytest.mark.parametrize(("seed", "bits"), WORLDS)
def test_deleted_images_leave_no_trace(seed: int, bits: int) -> None:
    world = random_coded_world(seed, bits)
    gone = np.flatnonzero(np.random.default_rng(seed).random(len(world.images)) < 0.4).tolist()
    marked = coded_engine(world).segments[0].without(gone)
    left = [image for position, image in enumerate(world.images) if position not in gone]
    counts = Counter(word for image in left for word in image.words.tolist())
    assert marked.live_code_lengths.tolist() == [counts[word] for word in range(world.size)]
    batch = marked.live_batch()
    assert batch.codes is not None and np.diff(batch.feature_starts).tolist() == [len(image.words) for image in left]
    for column, expected in zip(batch.codes, zip(*left, strict=True), strict=False):
        assert np.array_equal(column, np.concatenate(expected))


@pytest.mark.parametrize(("seed", "bits"), WORLDS)
def test_merging_equals_building_at_once(seed: int, bits: int) -> None:
    world = random_coded_world(seed, bits)
    (at_once,) = coded_engine(world).segments
    parts = [segment.live_batch() for segment in coded_engine(world, 4).segments]
    merged = Segment.build(Batch.concatenate(parts), (), world.size)
    for name, array in at_once.arrays.items():
        assert merged.arrays[name].dtype == array.dtype and np.array_equal(merged.arrays[name], array), name


@pytest.mark.parametrize(("seed", "bits"), WORLDS)
def test_merging_mapped_segments_equals_building_what_is_left(tmp_path: Path, seed: int, bits: int) -> None:
    world, segments = random_coded_world(seed, bits), []
    gone = np.random.default_rng(seed).random(len(world.images)) < 0.3
    for number, built in enumerate(coded_engine(world, 4).segments):
        built.save(tmp_path / str(number))
        at = np.flatnonzero(gone[4 * number : 4 * number + 4]).tolist()
        segments.append(Segment.open(tmp_path / str(number)).without(at))
    left = tuple(image for image, is_gone in zip(world.images, gone, strict=True) if not is_gone)
    if not left:
        return
    merged = Segment.build(join_live(segments), (), world.size)
    (expected,) = coded_engine(replace(world, images=left)).segments
    assert merged.ids.tolist() == np.flatnonzero(~gone).tolist()
    assert np.array_equal(sum(segment.live_code_lengths for segment in segments), expected.live_code_lengths)
    for name, array in expected.arrays.items():
        assert merged.arrays[name].dtype == array.dtype and np.array_equal(merged.arrays[name], array), name


@pytest.mark.parametrize(("seed", "bits"), WORLDS)
def test_norms_are_those_of_word_counts(seed: int, bits: int) -> None:
    world = random_coded_world(seed, bits)
    expected = [np.sqrt(sum(times**2 for times in Counter(image.words.tolist()).values())) for image in world.images]
    assert word_norms(joined(world).words, starts_of(world), world.size).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("size", "kind"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_words_take_two_bytes_if_possible(size: int, kind: type) -> None:
    given = FeatureCodes(np.array([size - 1], np.uint32), np.ones((1, 2), np.uint64), np.zeros((1, 8), np.uint8))
    arrays = build_codes(given, np.array([0, 1]), size)
    assert arrays["code_words"].dtype == kind and arrays["code_starts"][-2:].tolist() == [0, 1]
    assert all(map(np.array_equal, all_codes(arrays), given))


def test_no_features(tmp_path: Path) -> None:
    none = FeatureCodes(np.empty(0, np.uint32), np.empty((0, 2), np.uint64), np.empty((0, 8), np.uint8))
    for n_images in (0, 2):
        arrays = build_codes(none, np.zeros(n_images + 1, np.int64), 5)
        assert all(map(np.array_equal, all_codes(arrays), none)) and arrays["code_norms"].tolist() == [0] * n_images
