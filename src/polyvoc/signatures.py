"""Hamming Embedding: a binary signature that tells where in the cell of its word a descriptor lies.

Jégou, Douze, Schmid, ECCV 2008: descriptors are turned by a random rotation, and bit i says on which side of the
word's median, learnt from independent photographs, the i-th coordinate falls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.kernels.vocabulary import sign_words
from polyvoc.records import Descriptors, Floats, Signatures
from polyvoc.vocabulary import MAX_BITS, Vocabulary

_ROTATION_SEED = 2008  # one for all vocabularies, so that the projection of a descriptor serves every one of them


def random_rotation(dimension: int, bits: int, skip: int = 0) -> Floats:
    """Give axes of a random rotation, after the first `skip`: float32 [bits, dimension]; the same for every vocabulary."""
    most = min(MAX_BITS, dimension - skip)
    if not 1 <= bits <= most:
        raise OptionError(f"bits={bits!r} should be 1 to {most} for descriptors of {dimension} numbers")
    gauss = np.random.default_rng(_ROTATION_SEED).standard_normal((dimension, dimension))
    axes, triangle = np.linalg.qr(gauss)
    # Signs are LAPACK's choice; a positive diagonal makes the decomposition unique.
    return np.ascontiguousarray((axes * np.sign(np.diag(triangle)))[skip : skip + bits], dtype=np.float32)


def fitting_bits(bits: int, dimension: int) -> int:
    """Give how many of at most `bits` bits a signature has, for descriptors of a dimension: there is one axis for each.

    A whole uint64 where all do not fit: such signatures are compared fastest, and there are tables of evidence for them.
    """
    return bits if bits <= dimension else min(64, dimension)


def shared_rotation(vocabularies: Sequence[Vocabulary]) -> Floats:
    """Give the rotation that all `vocabularies` have in common, float32 [bits, dimension]."""
    first = vocabularies[0].rotation
    for number, vocabulary in enumerate(vocabularies):
        if vocabulary.rotation is None or first is None:
            raise VocabularyError(f"vocabulary {number} has no signatures: train it with bits=128, or search without Hamming")
        if vocabulary.rotation.shape != first.shape or not np.allclose(vocabulary.rotation, first, atol=1e-5):
            raise VocabularyError(f"vocabulary {number} has another rotation than the first: train all with the same bits")
    assert first is not None
    return first


def project(descriptors: Descriptors, rotation: Floats) -> Floats:
    """Give the coordinates [n, bits] of `descriptors` [n, dimension] along the axes of the rotation."""
    table = np.asarray(descriptors, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] != rotation.shape[1]:
        raise OptionError(f"descriptors of shape {table.shape} do not fit a rotation of {rotation.shape[1]} numbers")
    return table @ rotation.T


def sign(z: Floats, words: npt.NDArray[np.integer], vocabularies: Sequence[Vocabulary]) -> Signatures:
    """Give the signatures of descriptors with coordinates `z` [n, bits]: uint64, one for each word, or two beyond 64 bits.

    `words` is [n, K] or [n, K, assignments], for K vocabularies; two uint64 are one more axis at the end. Bit i is set if z_i
    lies strictly above the word's median. The word -1 (none) has the signature 0.
    """
    if words.ndim not in (2, 3) or words.shape[:2] != (len(z), len(vocabularies)):
        raise OptionError(f"words {words.shape} do not fit {len(z)} descriptors and {len(vocabularies)} vocabularies")
    every = words if words.ndim == 3 else words[:, :, None]  # [n, K, assignments]
    points = np.ascontiguousarray(z, dtype=np.float32)
    planes = (z.shape[1] + 63) // 64
    signatures: Signatures = np.empty((*every.shape, planes), dtype=np.uint64)
    for k, vocabulary in enumerate(vocabularies):
        thresholds = vocabulary.thresholds
        if thresholds is None or thresholds.shape[1] != z.shape[1]:
            raise VocabularyError(
                f"vocabulary {k} has signatures of {vocabulary.bits} bits, not {z.shape[1]}: train all with the same bits"
            )
        of_k = np.ascontiguousarray(every[:, k], dtype=np.int32)
        if of_k.size and not -1 <= of_k.min() <= of_k.max() < vocabulary.size:
            raise OptionError(f"words of vocabulary {k} should be -1 to {vocabulary.size - 1}")
        signed = np.empty((*of_k.shape, planes), dtype=np.uint64)
        sign_words(points, of_k, thresholds, signed)
        signatures[:, k] = signed
    return signatures.reshape(words.shape if planes == 1 else (*words.shape, planes))
