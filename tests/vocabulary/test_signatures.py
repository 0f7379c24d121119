"""Hamming Embedding by hand: which bit is set, for which word."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.vocabulary.vocabulary import Vocabulary, project, random_rotation, shared_rotation, sign

# Thresholds 0 and 255 in both columns: stored without rounding.
BY_HAND = Vocabulary.create(np.eye(2), [[0, 255], [255, 0]], np.eye(2))


def test_bits_by_hand() -> None:
    z = np.array([[1, 1], [1, 256], [0, 255], [300, 300]], dtype=np.float32)
    words = np.array([[0], [0], [0], [1]])
    # word 0 has the thresholds (0, 255): 1 > 0 sets bit 0, 256 > 255 sets bit 1, equality sets nothing
    assert sign(z, words, [BY_HAND]).tolist() == [[0b01], [0b11], [0b00], [0b11]]


def test_the_word_decides_and_none_gives_zero() -> None:
    z = np.array([[100, 100]], dtype=np.float32)
    words = np.array([[[0, 1, -1], [1, 1, 0]]])  # [1, K=2, assignments=3]
    signatures = sign(z, words, [BY_HAND, BY_HAND])
    assert signatures.dtype == np.uint64
    assert signatures.tolist() == [[[0b01, 0b10, 0], [0b10, 0b10, 0b01]]]


def test_the_same_as_written_in_numpy() -> None:
    random = np.random.default_rng(0)
    rotation = random_rotation(70, 64)
    vocabularies = [Vocabulary.create(random.random((9, 70)), random.normal(size=(9, 64)), rotation) for _ in range(3)]
    z = project(random.normal(size=(50, 70)).astype(np.float32), rotation)
    words = random.integers(0, 9, (50, 3)).astype(np.int32)
    expected = np.zeros((50, 3), dtype=np.uint64)
    for k, vocabulary in enumerate(vocabularies):
        assert vocabulary.thresholds is not None
        bits = z > vocabulary.thresholds[words[:, k]]
        expected[:, k] = (bits.astype(np.uint64) << np.arange(64, dtype=np.uint64)).sum(axis=1)
    assert np.array_equal(sign(z, words, vocabularies), expected)
    assert (expected >> np.uint64(63)).any()  # the last bit is used


@pytest.mark.parametrize("shape", [(0, 1), (0, 1, 4)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    signatures = sign(np.empty((0, 2), np.float32), np.empty(shape, np.int32), [BY_HAND])
    assert signatures.shape == shape


@pytest.mark.parametrize(("dimension", "bits"), [(128, 64), (64, 64), (8, 3)])
def test_rotation_keeps_lengths(dimension: int, bits: int) -> None:
    rotation = random_rotation(dimension, bits)
    assert rotation.shape == (bits, dimension) and rotation.dtype == np.float32
    assert np.allclose(rotation @ rotation.T, np.eye(bits), atol=1e-6)
    assert np.array_equal(rotation, random_rotation(dimension, bits))


def test_fewer_bits_are_the_first_of_more() -> None:
    assert np.array_equal(random_rotation(32, 5), random_rotation(32, 20)[:5])


def test_axes_after_the_first_are_orthogonal_to_them() -> None:
    first, others = random_rotation(128, 64), random_rotation(128, 64, skip=64)
    assert np.allclose(first @ others.T, 0, atol=1e-6)
    assert np.allclose(others @ others.T, np.eye(64), atol=1e-6)
    assert np.array_equal(random_rotation(128, 10, skip=5), first[5:15])


@pytest.mark.parametrize(("bits", "skip"), [(1, 8), (5, 4), (0, 2)])
def test_axes_that_are_not_there(bits: int, skip: int) -> None:
    with pytest.raises(OptionError, match=f"bits={bits} should be 1 to {8 - skip}"):
        random_rotation(8, bits, skip)


@pytest.mark.parametrize("bits", [0, 9, 65])
def test_impossible_bits(bits: int) -> None:
    with pytest.raises(OptionError, match="bits="):
        random_rotation(8, bits)


def test_one_rotation_for_all() -> None:
    assert shared_rotation([BY_HAND, BY_HAND]) is BY_HAND.rotation
    plain = Vocabulary.create(np.eye(2))
    turned = Vocabulary.create(np.eye(2), np.zeros((2, 2)), [[0, 1], [1, 0]])
    with pytest.raises(VocabularyError, match="vocabulary 0 has no signatures"):
        shared_rotation([plain])
    with pytest.raises(VocabularyError, match="vocabulary 1 has another rotation"):
        shared_rotation([BY_HAND, turned])


def test_what_does_not_fit_is_refused() -> None:
    z = np.zeros((1, 2), np.float32)
    with pytest.raises(OptionError, match="do not fit a rotation"):
        project(np.zeros((1, 3), np.float32), np.eye(2, dtype=np.float32))
    with pytest.raises(OptionError, match="do not fit 1 descriptors and 1 vocabularies"):
        sign(z, np.zeros((1, 2), np.int32), [BY_HAND])
    with pytest.raises(OptionError, match="should be -1 to 1"):
        sign(z, np.array([[2]]), [BY_HAND])
    with pytest.raises(VocabularyError, match="0 bits, not 2"):
        sign(z, np.array([[0]]), [Vocabulary.create(np.eye(2))])
