"""The kernels against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.index.segment import Batch, Segment
from polyvoc.index.words import word_offsets
from polyvoc.kernels.compiler import (
    LANES,
    above_lanes,
    equal_lanes,
    kernel,
    lowest_bit,
    near_lanes,
    near_long_lanes,
    popcount,
    sum_lanes,
    sum_long_lanes,
)
from polyvoc.kernels.images import add_shared, vote_images
from polyvoc.kernels.matches import KEEP_ALL
from polyvoc.kernels.postings import (
    LONGEST_RUN,
    count_repeats,
    find_runs,
    gather,
    list_starts,
    read_ahead,
    sort_by_word,
    sort_codes,
    unsort_codes,
)
from polyvoc.scoring.query import QueryWords
from polyvoc.scoring.segments import shared_images

call_bits = kernel(lambda value: (popcount(value), lowest_bit(value)))


@kernel
def call_near_lanes(signatures, position, signature, threshold):  # type: ignore[no-untyped-def]
    return near_lanes(signatures, position, signature, threshold)


@kernel
def call_near_long_lanes(one, two, position, first, other, threshold):  # type: ignore[no-untyped-def]
    return near_long_lanes(one, two, position, first, other, threshold)


@kernel
def call_sums(short, long, row, bits, other):  # type: ignore[no-untyped-def]
    return sum_lanes(short, row, bits), sum_long_lanes(long, row, bits, other)


@kernel
def call_above_lanes(values, row, limits, other, first):  # type: ignore[no-untyped-def]
    return above_lanes(values, row, limits, other, first)


@kernel
def call_equal_lanes(words, position, word):  # type: ignore[no-untyped-def]
    return equal_lanes(words, position, word)


def bits(mask: int) -> list[bool]:
    return [bool(int(mask) >> i & 1) for i in range(LANES)]


def test_bit_instructions() -> None:
    for value in (1, 2, 3 << 40, 1 << 63, (1 << 64) - 1):
        assert call_bits(np.uint64(value)) == (value.bit_count(), (value & -value).bit_length() - 1)
    assert call_bits(np.uint64(0))[0] == 0


@pytest.mark.parametrize("threshold", [0, 20, 32, 64])
def test_near_lanes_compares_distances(threshold: int) -> None:
    rng = np.random.default_rng(threshold)
    signatures = rng.integers(0, 1 << 64, size=200, dtype=np.uint64)
    signatures[70] = signatures[0]
    for position in (0, 7, 200 - LANES):
        expected = np.bitwise_count(signatures[position : position + LANES] ^ signatures[0]) <= threshold
        assert bits(call_near_lanes(signatures, position, signatures[0], threshold)) == expected.tolist()


@pytest.mark.parametrize("threshold", [0, 52, 64, 128])
def test_near_long_lanes_compares_distances(threshold: int) -> None:
    rng = np.random.default_rng(threshold)
    one, two = rng.integers(0, 1 << 64, size=(2, 200), dtype=np.uint64)
    one[70], two[70] = one[0], two[0]
    for position in (0, 7, 200 - LANES):
        distances = np.bitwise_count(one ^ one[0]).astype(int) + np.bitwise_count(two ^ two[0])
        expected = distances[position : position + LANES] <= threshold
        assert bits(call_near_long_lanes(one, two, position, one[0], two[0], threshold)) == expected.tolist()


def test_sums_of_chosen_bytes() -> None:
    """Also of all bytes at their largest: no partial sum overflows."""
    rng = np.random.default_rng(3)
    short, long = rng.integers(0, 256, (5, LANES)).astype(np.uint8), rng.integers(0, 256, (5, 2 * LANES)).astype(np.uint8)
    short[4], long[4] = 255, 255
    for row in range(5):
        for first, other in [(0, 0), (2**64 - 1, 2**64 - 1), *rng.integers(0, 1 << 64, (20, 2), dtype=np.uint64).tolist()]:
            chosen = np.array([*bits(first), *bits(other)])
            expected = int(short[row][chosen[:LANES]].sum(dtype=int)), int(long[row][chosen].sum(dtype=int))
            assert call_sums(short, long, row, np.uint64(first), np.uint64(other)) == expected


def test_above_lanes_compares_rows() -> None:
    """Equal numbers are not above; rows may be parts of longer ones."""
    rng = np.random.default_rng(4)
    values, limits = rng.integers(-3, 4, (2, 6, 150)).astype(np.float32)
    for table in (values, values[:, 3:140], values[::2]):
        for row, other, first in ((0, 0, 0), (2, 5, 64), (1, 3, table.shape[1] - LANES)):
            expected = table[row, first : first + LANES] > limits[other, first : first + LANES]
            assert bits(call_above_lanes(table, row, limits, other, first)) == expected.tolist()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_equal_lanes_compares_words(dtype: type) -> None:
    words = np.random.default_rng(0).integers(0, 5, size=150).astype(dtype)
    for position in (0, 3, 150 - LANES):
        assert bits(call_equal_lanes(words, position, 3)) == (words[position : position + LANES] == 3).tolist()


def test_sort_by_word_is_stable() -> None:
    rng = np.random.default_rng(1)
    words = rng.integers(0, 9, size=500).astype(np.uint16)
    order = rng.permutation(500).astype(np.uint32)
    sorted_order, starts = sort_by_word(order, words, 9)
    assert np.array_equal(sorted_order, order[np.argsort(words[order], kind="stable")])
    assert np.array_equal(starts, np.searchsorted(words[sorted_order], np.arange(10)))


def test_gather_takes_what_an_order_names() -> None:
    values, order = np.arange(100, dtype=np.uint16) * 3, np.random.default_rng(2).permutation(100).astype(np.uint32)
    found = gather(values, order)
    assert found.dtype == values.dtype and np.array_equal(found, values[order])


def test_codes_sorted_into_lists_come_back() -> None:
    rng = np.random.default_rng(3)
    words, codes = rng.integers(0, 9, 300).astype(np.uint16), rng.integers(0, 1 << 63, (300, 2), dtype=np.uint64)
    starts, feature_starts = list_starts(words, 9), np.array([0, 100, 100, 250, 300])
    planes, images, alive = np.empty((2, 300), np.uint64), np.empty(300, np.uint16), np.array([1, 1, 0, 1], np.uint8)
    sort_codes(words, codes, feature_starts, starts, planes, images)
    order = np.argsort(words, kind="stable")
    assert np.array_equal(planes, codes[order].T)
    assert np.array_equal(images, np.repeat([0, 2, 3], [100, 150, 50])[order])
    for kept, rows in ((alive[:0], np.arange(300)), (alive, np.r_[0:100, 250:300])):
        found = np.zeros((len(rows), 2), np.uint64)
        unsort_codes(words, planes, feature_starts, starts, kept, found)
        assert np.array_equal(found, codes[rows])


def test_lists_that_lie_together_are_read_as_one() -> None:
    """Lists of 1000 elements: each is read with the LANES that follow it."""
    starts, values = np.arange(0, 21_000, 1000).astype(np.uint32), np.zeros(20_000, np.uint16)
    for numbers, gap, pieces in (
        ([], 0, 0), ([0], 0, 1), ([19], 0, 1), ([3, 4, 5], 0, 1), ([3, 5], 0, 2), ([3, 5], 1000 - LANES, 1), ([3, 5], 900, 2),
        ([0, 2, 9, 19], 2000, 3), (range(20), 0, 1),
    ):  # fmt: skip
        assert read_ahead(np.array(numbers, np.int64), starts, values, gap) == pieces, (numbers, gap)
    assert read_ahead(np.arange(20), np.zeros(21, np.uint32), values[:0], 0) == 0
    assert not values.any()


def find(words: np.ndarray, sizes: tuple[int, ...], queries: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the arrays of a segment of ten images with these words, and the lengths of the queries' runs [Q, K]."""
    arrays = Segment.build(Batch.of_words(np.array_split(words, 10), len(sizes)), sizes).arrays
    directory = [arrays[name] for name in ("starts", "run_starts", "run_words", "run_lengths")]
    order = np.random.default_rng(0).permutation(len(queries))
    begins, ends = find_runs(queries.astype(np.int64), order, word_offsets(sizes), *directory, 0)
    return arrays, ends - begins


def test_runs_are_those_of_the_partners_words() -> None:
    """Also runs of more than 255 postings, which take several entries of the directory."""
    rng = np.random.default_rng(2)
    words = np.column_stack([rng.integers(0, n, size=3000) for n in (3, 2, 4)])
    queries = np.array([(a, b, c) for a in range(3) for b in range(5) for c in range(4)])
    arrays, lengths = find(words, (3, 5, 4), queries)
    assert arrays["run_lengths"].max() == LONGEST_RUN
    for k, partner in enumerate((1, 0, 0)):
        together = (words[:, k] == queries[:, [k]]) & (words[:, partner] == queries[:, [partner]])
        assert np.array_equal(lengths[:, k], together.sum(axis=1))


@pytest.mark.parametrize("size", [200, 5_000, 70_000])
def test_runs_in_long_directories_are_found(size: int) -> None:
    """Directories of hundreds of entries, where the place of a word is guessed by proportion; also skewed ones."""
    rng = np.random.default_rng(size)
    first = np.concatenate([size * rng.random(6000) ** 4, rng.integers(0, size, size=6000)]).astype(np.int64)
    words = np.column_stack([first, rng.integers(0, 3, size=12_000)])
    others = np.column_stack([rng.integers(0, size, 300), np.zeros(300, np.int64)])
    queries = np.concatenate([words[rng.integers(0, 12_000, 300)], others])
    arrays, lengths = find(words, (size, 3), queries)
    assert np.diff(arrays["run_starts"].astype(np.int64))[size:].max() > 2 * LANES or size == 200
    expected = [(words == query).all(axis=1).sum() for query in queries]
    assert lengths.tolist() == [[n, n] for n in expected]


def test_repeats_are_the_words_an_image_has_twice() -> None:
    words = np.array([1, 1, 2, 1, 0, 2, 2], np.uint16)  # image 0: 1 1 2 1; image 1: none; image 2: 0 2 2
    documents, repeats = count_repeats(words, np.array([0, 4, 4, 7]), 4)
    assert documents.tolist() == [1, 1, 2, 0]
    assert sorted(repeats.tolist()) == [[0, 1, 3], [2, 2, 2]]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("assignments", [1, 2])
@pytest.mark.parametrize("n_vocabularies", [2, 3, 4])
def test_sets_of_images(n_vocabularies: int, assignments: int, seed: int) -> None:
    rng = np.random.default_rng([seed, assignments, n_vocabularies])
    n_images = 3 + int(rng.integers(5000 if seed < 3 else 100))  # more than one block of a bitmap
    sizes = (7,) * n_vocabularies
    images = [rng.integers(0, 7, (rng.integers(0, 5), n_vocabularies)) for _ in range(n_images)]
    segment = Segment.build(Batch.of_words(images, n_vocabularies), sizes).without([1, n_images - 2])
    words = rng.integers(-1, 7, (6, n_vocabularies, assignments))
    words[:, :, 1:] = np.where(words[:, :, 1:] == words[:, :, :1], -1, words[:, :, 1:])
    words = words[[0, 1, 2, 3, 4, 5, 2, 2]]  # equal ones are counted once
    idf = rng.uniform(0.5, 2, (n_vocabularies, 8))[np.arange(n_vocabularies)[:, None], words]
    factors = rng.uniform(0, 2, (8, 1 << n_vocabularies))
    factors[:, 1 << np.arange(n_vocabularies)] = factors[:, 1:2]
    query = QueryWords(words, None, sizes)
    found = shared_images(segment, query, idf)
    corrected, voted = np.zeros(n_images), np.zeros(n_images)
    add_shared(found.images, found.masks, found.votes, found.ranges, factors - factors[:, 1:2], corrected)
    none = np.empty((0, 0), np.uint64), np.empty((*words.shape, 0), np.uint64)
    lists = (words, query.bases, segment.arrays["starts"], segment.arrays["postings"])
    shared = (found.images, found.masks, found.ranges)
    vote_images(*lists, *shared, *none, idf, factors, np.ones(1, np.float32), KEEP_ALL, voted)
    expected_counts, expected_sums, singles, expected = np.zeros_like(found.counts), *np.zeros((3, n_images))
    for image, own in enumerate(images):
        for q in range(len(words)):
            hits = own[:, :, None] == words[q]  # [features, K, A]
            mask = sum(1 << k for k in range(n_vocabularies) if hits[:, k].any())
            expected_counts[q, mask] += mask > 0 and segment.alive[image]
            weight = (hits * idf[q]).sum()
            expected_sums[image] += weight
            singles[image] += weight * factors[q, 1]
            expected[image] += weight * factors[q, mask]
    counted = np.array([assignments > 1 or mask.bit_count() > 1 for mask in range(1 << n_vocabularies)])
    assert np.array_equal(found.counts, expected_counts * counted) and np.allclose(found.sums, expected_sums)
    assert np.allclose(singles + corrected, expected, rtol=1e-5) and np.allclose(voted, expected, rtol=1e-5)
