"""Merging ends, never overfills a segment, keeps segments few, and rewrites an image few times."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvoc.index.catalogue import SegmentSize
from polyvoc.index.commit import FAN_IN, MAX_DELETED, MAX_FEATURES, SMALLEST, next_merge
from polyvoc.index.segment import MAX_IMAGES

FEATURES = 100  # per image


def size(segment: int, n_images: int, n_deleted: int = 0, n_features: int | None = None) -> SegmentSize:
    return SegmentSize(segment, n_images, n_images * FEATURES if n_features is None else n_features, n_deleted)


def merge_all(sizes: list[SegmentSize]) -> tuple[list[SegmentSize], int]:
    """Do merges until there is nothing to gain; give what is left, and how many images were rewritten."""
    rewritten = 0
    while numbers := next_merge(sizes):
        merged = [s for s in sizes if s.segment in numbers]
        assert len(merged) == len(numbers) == len(set(numbers))
        n_images = sum(s.n_live for s in merged)
        n_features = sum(s.n_features for s in merged)
        assert n_images <= MAX_IMAGES
        assert n_features <= MAX_FEATURES or len(merged) == 1
        rewritten += n_images
        sizes = [s for s in sizes if s.segment not in numbers]
        if n_images:
            sizes.append(size(1 + max([0, *numbers, *(s.segment for s in sizes)]), n_images, n_features=n_features))
    return sizes, rewritten


def most(n_images: int) -> float:
    """Give how many segments a collection may have: fewer than FAN_IN of each tier, and those at least half full."""
    tiers = 1 + math.ceil(math.log(MAX_IMAGES / SMALLEST, FAN_IN))
    return (FAN_IN - 1) * tiers + n_images / (MAX_IMAGES / 2)


sizes_of_segments = st.lists(st.tuples(st.integers(0, MAX_IMAGES), st.floats(0, 1)), max_size=40).map(
    lambda drawn: [size(n, images, int(images * share)) for n, (images, share) in enumerate(drawn, start=1)]
)


@given(sizes_of_segments)
def test_merging_ends_with_few_segments_and_loses_nothing(sizes: list[SegmentSize]) -> None:
    left, _ = merge_all(sizes)
    n_live = sum(s.n_live for s in left)
    assert n_live == sum(s.n_live for s in sizes)
    assert len([s for s in left if s.n_images]) <= most(n_live) + sum(s.n_images == 0 for s in sizes)
    assert all(s.n_deleted <= MAX_DELETED * s.n_images for s in left)


@pytest.mark.parametrize("typical", [30, 300, 3000, 20_000])
def test_a_growing_collection_has_few_segments_and_few_rewrites(typical: int) -> None:
    sizes: list[SegmentSize] = []
    total = rewritten = 0
    for commit in np.random.default_rng(typical).geometric(1 / typical, 600).clip(max=MAX_IMAGES).tolist():
        total += commit
        sizes, again = merge_all([*sizes, size(1 + max([0, *(s.segment for s in sizes)]), commit)])
        rewritten += again
        assert len(sizes) <= most(total)
    tiers = 2 + math.log(max(total, SMALLEST) / SMALLEST, FAN_IN)
    assert rewritten <= total * (tiers + 2)


def test_single_images_make_few_segments() -> None:
    sizes: list[SegmentSize] = []
    for number in range(1, 2000):
        sizes, _ = merge_all([*sizes, size(number * 10_000, 1)])
        assert len(sizes) < 3 * FAN_IN
    assert sum(s.n_live for s in sizes) == 1999


def test_segments_of_many_features_are_not_overfilled() -> None:
    rng = np.random.default_rng(0)
    sizes = [size(n, 500, n_features=int(f)) for n, f in enumerate(rng.integers(1, MAX_FEATURES // 2, 60), start=1)]
    left, _ = merge_all(sizes)
    assert max(s.n_features for s in left) <= MAX_FEATURES
    assert sum(s.n_features for s in left) == sum(s.n_features for s in sizes)
    full = [size(n, 500, n_features=MAX_FEATURES) for n in range(1, 20)]
    assert next_merge(full) == []


def test_hand_worked_choices() -> None:
    assert next_merge([]) == []
    assert next_merge([size(1, 10)]) == []
    assert next_merge([size(n, 10) for n in range(1, FAN_IN)]) == []
    assert next_merge([size(n, 10) for n in range(1, FAN_IN + 1)]) == list(range(1, FAN_IN + 1))
    assert next_merge([size(1, 100, 25)]) == []
    assert next_merge([size(1, 100, 26)]) == [1]
    assert next_merge([size(1, 40, 40)]) == [1]
    assert next_merge([size(n, MAX_IMAGES) for n in range(1, 50)]) == []
    assert next_merge([size(n, MAX_IMAGES // 2) for n in range(1, 10)]) == [1, 2]
    # Nine of one tier with one of another: the other stays.
    assert next_merge([size(1, 20_000), *(size(n, 10) for n in range(2, 11))]) == list(range(2, 11))


def test_live_images_are_counted() -> None:
    assert replace(size(1, 10), n_deleted=3).n_live == 7
