"""Codes of descriptors: as written in NumPy, decoded again, and as a query; the order of words."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from polyvoc.errors import VocabularyError
from polyvoc.options import TrainOptions
from polyvoc.types import FeatureCodes
from polyvoc.vocabulary.codes import CodedQuery, Coder, neighbour_order, quantise_parts, unpack_signs
from polyvoc.vocabulary.train import train
from polyvoc.vocabulary.vocabulary import code_axes

SIZES = [(16, 16), (64, 64), (80, 70), (128, 128), (40, 80), (64, 128)]  # of descriptors and codes: of one and two planes


def blobs(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    """Return vectors of length 1 around 40 centres."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(42).normal(0, 1, (40, dimension))
    rows = centres[random.integers(0, 40, count)] + random.normal(0, 0.8, (count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@cache
def coder_of(dimension: int, bits: int) -> Coder:
    return Coder(train(blobs(3000, dimension), TrainOptions(size=60, bits=bits, rounds=5)))


def coordinates(coder: Coder, rows: np.ndarray) -> np.ndarray:
    return rows @ code_axes(coder.vocabulary.dimension, coder.bits).T


def differences(coder: Coder, descriptors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the coordinates of descriptors less those of words, as far as codes have bits."""
    z = coordinates(coder, descriptors)
    while z.ndim < words.ndim + 1:
        z = z[:, None]
    return (z - coordinates(coder, coder.vocabulary.centroids)[words])[..., : coder.bits]


def errors(given: np.ndarray, found: np.ndarray) -> float:
    return float(np.mean(np.sum((given - found) ** 2, axis=1)))


# -- codes


@pytest.mark.parametrize(("dimension", "bits"), SIZES)
def test_codes_as_written_in_numpy(dimension: int, bits: int) -> None:
    coder, descriptors = coder_of(dimension, bits), blobs(300, dimension, seed=1)
    words, codes, rest = coder.encode(descriptors)
    assert words.dtype == np.uint32 and codes.shape == (300, -(-bits // 64)) and rest.shape == (300, 8)
    assert np.array_equal(unpack_signs(codes, bits) > 0, differences(coder, descriptors, words) > 0)
    distances = np.linalg.norm(descriptors[:, None] - coder.vocabulary.centroids, axis=2)
    assert np.mean(words == distances.argmin(axis=1)) > 0.99


@pytest.mark.parametrize(("dimension", "bits"), SIZES)
def test_decoding_errs_less_than_the_word_alone(dimension: int, bits: int) -> None:
    coder, descriptors = coder_of(dimension, bits), blobs(1000, dimension, seed=1)
    stored = coder.encode(descriptors)
    word = errors(descriptors, coder.vocabulary.centroids[stored.words])
    centres = coordinates(coder, coder.vocabulary.centroids)[stored.words, :dimension]
    signs = centres + unpack_signs(stored.codes, bits) @ coder.decoder.matrix.T
    code = errors(coordinates(coder, descriptors)[:, :dimension], signs)
    assert errors(descriptors, coder.decode(stored)) < 0.8 * code < 0.8 * 0.6 * word


def test_twice_as_many_bits_as_numbers_tell_more() -> None:
    descriptors = blobs(1000, 64, seed=1)
    short, long = ((coder := coder_of(64, bits)).decode(coder.encode(descriptors)) for bits in (64, 128))
    assert errors(descriptors, long) < 0.9 * errors(descriptors, short)
    assert np.array_equal(coder_of(64, 128).encode(descriptors).codes[:, 0], coder_of(64, 64).encode(descriptors).codes[:, 0])


def test_bits_are_unpacked_and_parts_are_the_nearest() -> None:
    codes = np.array([[0b101, 1], [0, 0]], np.uint64)
    assert unpack_signs(codes, 66)[:, [0, 1, 2, 63, 64, 65]].tolist() == [[1, -1, 1, -1, 1, -1], [-1] * 6]
    random = np.random.default_rng(0)
    rows, parts = random.normal(size=(50, 5)).astype(np.float32), random.normal(size=(3, 7, 2)).astype(np.float32)
    parts[2, :, 1] = 0  # the last part of five numbers has one
    padded = np.pad(rows, ((0, 0), (0, 1))).reshape(50, 3, 1, 2)
    assert np.array_equal(quantise_parts(rows, parts), ((padded - parts) ** 2).sum(axis=3).argmin(axis=2))


def test_a_vocabulary_without_a_decoder_raises() -> None:
    for bits in (0, 4):
        plain = train(blobs(100, 8), TrainOptions(size=5, bits=bits), codes=False)
        with pytest.raises(VocabularyError, match="no decoder for codes; train it again: polyvoc train --bits 128"):
            Coder(plain)


@pytest.mark.parametrize("dimension", [1, 3, 10, 70])
def test_descriptors_may_have_any_length_and_be_few(dimension: int) -> None:
    descriptors = np.random.default_rng(dimension).random((20, dimension)).astype(np.float32)
    coder = Coder(train(descriptors, TrainOptions(size=4)))
    stored = coder.encode(descriptors)
    assert errors(descriptors, coder.decode(stored)) < 0.2 * errors(descriptors, coder.vocabulary.centroids[stored.words])


def test_binary_descriptors_have_codes() -> None:
    random = np.random.default_rng(5)
    descriptors = (random.random((10, 96)) < 0.5)[random.integers(0, 10, 400)] ^ (random.random((400, 96)) < 0.1)
    coder = Coder(train(descriptors, TrainOptions(size=10)))
    assert np.mean((coder.decode(coder.encode(descriptors)) > 0.5) == descriptors) > 0.95


# -- queries


@pytest.mark.parametrize(("dimension", "bits"), SIZES)
def test_queries_visit_the_nearest_words(dimension: int, bits: int) -> None:
    coder, descriptors = coder_of(dimension, bits), blobs(300, dimension, seed=2)
    distances = np.linalg.norm(descriptors[:, None].astype(np.float64) - coder.vocabulary.centroids, axis=2)
    order = distances.argsort(axis=1)[:, :6]
    expected = np.take_along_axis(distances, order, axis=1)
    expected /= expected[:, :1]
    query = coder.query(descriptors, 6, 1.3)
    within = expected <= 1.3
    assert query.words.shape == (300, 6) and 0.05 < within[:, 1:].mean() < 0.95
    assert np.mean(query.words == np.where(within, order, -1)) > 0.99
    found = (query.words >= 0) & (query.words == order)
    assert np.allclose(query.ratios[found], expected[found], atol=1e-4)
    assert (query.words[:, 0] >= 0).all() and (query.ratios[:, 0] == 1).all()
    assert (query.ratios[query.words >= 0] <= 1.3).all()
    wide = coder.query(descriptors, 1000, 100.0)  # no more words than there are
    assert wide.words.shape == (300, 60) and (np.sort(wide.words, axis=1) == np.arange(60)).all()


@pytest.mark.parametrize(("dimension", "bits"), SIZES)
def test_queries_are_signed_relative_to_each_word(dimension: int, bits: int) -> None:
    coder, descriptors = coder_of(dimension, bits), blobs(200, dimension, seed=3)
    query = coder.query(descriptors, 4, 1.3)
    apart = differences(coder, descriptors, query.words)
    present = query.words >= 0
    codes = query.codes[present]
    assert np.array_equal(unpack_signs(codes, bits) > 0, apart[present] > 0)
    magnitudes = query.magnitudes.reshape(200, 4, -1)
    scaled = np.abs(apart) / np.abs(apart).max(axis=2, keepdims=True) * 255
    assert np.abs(magnitudes[..., :bits] - scaled)[present].max() <= 0.51
    assert (magnitudes[present].max(axis=1) == 255).all() and not magnitudes[..., bits:].any()
    assert np.array_equal(query.totals, magnitudes.sum(axis=2, dtype=np.int64))
    assert not query.codes[~present].any() and not magnitudes[~present].any()


@pytest.mark.parametrize(("dimension", "bits"), SIZES)
def test_a_query_has_the_codes_that_are_stored(dimension: int, bits: int) -> None:
    coder, descriptors = coder_of(dimension, bits), blobs(300, dimension, seed=4)
    stored, query = coder.encode(descriptors), coder.query(descriptors, 3, 1.2)
    same = query.words[:, 0] == stored.words
    assert same.mean() > 0.99
    assert np.array_equal(query.codes[same, 0], stored.codes[same])


def test_a_stored_image_is_nearly_the_same_query() -> None:
    coder, descriptors = coder_of(128, 128), blobs(300, 128, seed=4)
    direct, stored = coder.query(descriptors, 3, 1.2), coder.query_stored(coder.encode(descriptors), 3, 1.2)
    same = direct.words[:, 0] == stored.words[:, 0]
    assert same.mean() > 0.95
    differing = np.bitwise_count(direct.codes[same, 0] ^ stored.codes[same, 0]).sum(axis=1)
    assert differing.mean() < 8  # of 128 bits


def test_a_descriptor_at_a_word_visits_this_word_only() -> None:
    coder = coder_of(16, 16)
    query = coder.query(coder.vocabulary.centroids, 3, 1.2)
    exact = query.totals[:, 0] == 0
    assert np.array_equal(query.words[:, 0], np.arange(60)) and (query.ratios[exact] == 1).all()
    assert (query.words[exact, 1:] == -1).all()


def test_threads_and_batches_change_nothing() -> None:
    vocabulary, descriptors = coder_of(64, 64).vocabulary, blobs(3000, 64, seed=5)
    one, three = Coder(vocabulary, threads=1), Coder(vocabulary, threads=3)
    assert all(map(np.array_equal, one.encode(descriptors), three.encode(descriptors)))
    assert_same(one.query(descriptors, 4, 1.2), three.query(descriptors, 4, 1.2))
    parts = CodedQuery.concatenate([one.query(part, 4, 1.2) for part in np.array_split(descriptors, 7)])
    assert_same(parts, one.query(descriptors, 4, 1.2))


def assert_same(one: CodedQuery, other: CodedQuery) -> None:
    for name, values in vars(one).items():
        if name == "ratios":
            assert np.allclose(values, getattr(other, name), rtol=1e-6)
        else:
            assert np.array_equal(values, getattr(other, name)), name


def test_no_descriptors() -> None:
    coder, none = coder_of(80, 70), np.empty((0, 80), np.float32)
    stored, query = coder.encode(none), coder.query(none, 3, 1.2)
    assert [array.shape for array in stored] == [(0,), (0, 2), (0, 8)]
    assert query.words.shape == (0, 3) and query.codes.shape == (0, 3, 2) and query.magnitudes.shape == (0, 128)
    assert coder.decode(stored).shape == (0, 80)
    empty = FeatureCodes(*(array[:0] for array in coder.encode(blobs(2, 80))))
    assert coder.query_stored(empty, 3, 1.2).words.shape == (0, 3)


# -- the order of words


def test_neighbours_are_near_each_other() -> None:
    words = blobs(1000, 32)
    order = neighbour_order(words)
    assert sorted(order.tolist()) == list(range(1000))
    near = np.linalg.norm(np.diff(words[order], axis=0), axis=1).mean()
    assert near < 0.7 * np.linalg.norm(np.diff(words, axis=0), axis=1).mean()
    trained = coder_of(128, 128).vocabulary.centroids
    shuffled = np.random.default_rng(0).permutation(trained)
    steps = [np.linalg.norm(np.diff(rows, axis=0), axis=1).mean() for rows in (trained, shuffled)]
    assert steps[0] < 0.9 * steps[1]


@pytest.mark.parametrize("words", [np.empty((0, 3)), np.zeros((1, 3)), np.zeros((2, 3)), np.zeros((9, 3)), np.eye(5)])
def test_few_or_equal_words_have_an_order(words: np.ndarray) -> None:
    assert sorted(neighbour_order(words.astype(np.float32)).tolist()) == list(range(len(words)))
