"""ASMK* against its formula written out, and the laws of a normalised kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.errors import OptionError
from polyvoc.experiments.baselines.asmk import Asmk, AsmkOptions
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.vocabulary import Vocabulary

Codes = dict[int, np.ndarray]  # word -> signs


def make_vocabulary(size: int, dimension: int, seed: int = 0) -> Vocabulary:
    return Vocabulary.create(np.random.default_rng([seed, size, dimension]).random((size, dimension)))


VOCABULARY = make_vocabulary(30, 128)


def draw(seed: int, count: int, vocabulary: Vocabulary = VOCABULARY) -> list[np.ndarray]:
    """Return images of descriptors, read-only, near to some words; with parts of other images, and some without any."""
    rng = np.random.default_rng(seed)
    images: list[np.ndarray] = []
    for number in range(count):
        length = 0 if number % 5 == 3 else int(rng.integers(1, 25))
        near = vocabulary.centroids[rng.integers(0, max(1, vocabulary.size * 3 // 4), length)]
        image = near + rng.normal(0, 0.2, near.shape)
        if images and len(images[-1]):
            image = np.concatenate([image, images[-1][::2] + rng.normal(0, 0.05, images[-1][::2].shape)])
        images.append(image.astype(np.float32))
        images[-1].setflags(write=False)
    return images


def codes_of(vocabulary: Vocabulary, descriptors: np.ndarray, words: np.ndarray) -> Codes:
    """Aggregate one image by the definition; words: [n, assignments]."""
    sums: dict[int, list[np.ndarray]] = {}
    for descriptor, near in zip(descriptors.astype(np.float64), words, strict=True):
        for word in near.tolist():
            sums.setdefault(word, []).append(descriptor - vocabulary.centroids[word].astype(np.float64))
    return {word: np.where(np.sum(residuals, axis=0) > 0, 1, -1) for word, residuals in sums.items()}


def compare(query: Codes, image: Codes, squares: dict[int, float], options: AsmkOptions) -> float:
    """Return K(query, image): u of two vectors of signs is their inner product over their length."""
    total = 0.0
    for word in query.keys() & image.keys():
        u = float(query[word] @ image[word]) / len(query[word])
        if u > options.threshold:
            total += squares[word] * math.copysign(abs(u) ** options.alpha, u)
    norm = math.sqrt(sum(squares[word] for word in query) * sum(squares[word] for word in image))
    return total / norm if norm > 0 else 0.0


def reference(
    vocabulary: Vocabulary, images: list[np.ndarray], queries: list[np.ndarray], options: AsmkOptions
) -> list[list[float]]:
    assigner = Assigner([vocabulary])
    database = [codes_of(vocabulary, image, assigner.assign(image)) for image in images]
    squares = {}
    for word in range(vocabulary.size):
        holders = sum(word in codes for codes in database)
        idf = math.log(len(images) / holders) ** 2 if holders else 0.0
        squares[word] = 1.0 if options.idf == "none" else idf
    asked = [assigner.assign(query, options.assignments).reshape(len(query), options.assignments) for query in queries]
    codes = [codes_of(vocabulary, query, words) for query, words in zip(queries, asked, strict=True)]
    return [[compare(query, image, squares, options) for image in database] for query in codes]


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(3, 40),
    dimension=st.sampled_from([1, 7, 64, 65, 128]),
    idf=st.sampled_from(["none", "idf"]),
    assignments=st.integers(1, 3),
    alpha=st.sampled_from([1.0, 3.0]),
    threshold=st.sampled_from([-1.0, 0.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_equals_the_formula(
    size: int, dimension: int, idf: Any, assignments: int, alpha: float, threshold: float, seed: int
) -> None:
    vocabulary = make_vocabulary(size, dimension)
    options = AsmkOptions(alpha, threshold, idf, assignments)
    *images, query = draw(seed, 9, vocabulary)
    index = Asmk(vocabulary, options).index(images)
    queries = [query, images[0], images[3]]  # the last one is empty
    for asked, expected in zip(queries, reference(vocabulary, images, queries, options), strict=True):
        scores = index.scores(asked)
        assert scores.dtype == np.float32 and len(scores) == len(index) == 8
        assert scores.tolist() == pytest.approx(expected, abs=1e-6)


def test_by_hand() -> None:
    vocabulary = Vocabulary.create([[0.0, 0.0, 0.0, 0.0], [10.0, 10.0, 10.0, 10.0]])
    first = [[1.0, 1.0, 1.0, 1.0], [1.0, -3.0, 1.0, 1.0]]  # both of word 0: the sum is + - + +
    second = [[1.0, 1.0, 1.0, 1.0], [11.0, 11.0, 9.0, 9.0]]  # word 0: + + + +, word 1: + + - -
    index = Asmk(vocabulary, AsmkOptions(idf="none", assignments=1)).index([first, second])
    assert index.starts.tolist() == [0, 2, 3]
    assert index.images.tolist() == [0, 1, 1]
    assert index.codes[:, 0].tolist() == [0b1101, 0b1111, 0b0011]
    assert Asmk(vocabulary).index([np.zeros((1, 4))]).codes.tolist() == [[0]]  # the word itself: no sign is above 0
    half_cubed = (1 - 2 * 1 / 4) ** 3
    assert index.scores(first).tolist() == pytest.approx([1, half_cubed / math.sqrt(2)])
    assert index.scores(second).tolist() == pytest.approx([half_cubed / math.sqrt(2), 1])
    weighted = Asmk(vocabulary, AsmkOptions(assignments=1)).index([first, second])
    assert weighted.idf_squared.tolist() == pytest.approx([0, math.log(2) ** 2])  # a word of all images weighs nothing
    assert weighted.scores(second).tolist() == pytest.approx([0, 1])


@pytest.mark.parametrize("idf", ["none", "idf"])
def test_an_image_resembles_itself_most(idf: Any) -> None:
    images = draw(1, 25)
    index = Asmk(VOCABULARY, AsmkOptions(idf=idf, assignments=1)).index(images)
    table = np.array([index.scores(image) for image in images])
    full = [len(image) > 0 for image in images]
    assert np.allclose(np.diag(table)[full], 1, atol=1e-6)
    assert not table[np.logical_not(full)].any() and not table[:, np.logical_not(full)].any()
    assert np.allclose(table, table.T, atol=1e-6)
    assert 0 <= table.min() <= table.max() <= 1 + 1e-6


def test_a_burst_counts_once() -> None:
    images = draw(2, 10)
    index = Asmk(VOCABULARY).index(images)
    burst = Asmk(VOCABULARY).index([np.repeat(image, 7, axis=0) for image in images])
    assert np.array_equal(index.codes, burst.codes)
    assert np.array_equal(index.scores(images[1]), burst.scores(np.repeat(images[1], 3, axis=0)))


def test_the_order_of_features_and_images_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    images = draw(3, 12)
    order = rng.permutation(len(images))
    index = Asmk(VOCABULARY).index(images)
    other = Asmk(VOCABULARY).index(rng.permutation(images[number]) for number in order)
    assert np.allclose(other.scores(rng.permutation(images[1])), index.scores(images[1])[order], atol=1e-6)


def test_without_idf_other_images_change_nothing() -> None:
    images = draw(4, 12)
    method = Asmk(VOCABULARY, AsmkOptions(idf="none"))
    assert np.allclose(method.index(images[:5]).scores(images[7]), method.index(images).scores(images[7])[:5], atol=1e-6)


def test_known_words_are_not_sought_again() -> None:
    images = draw(5, 8)
    assigner = Assigner([VOCABULARY])
    method = Asmk(VOCABULARY, AsmkOptions(assignments=3))
    index = method.index(images, (assigner.assign(image)[:, 0] for image in images))
    sought = method.index(images)
    assert np.array_equal(index.codes, sought.codes) and np.array_equal(index.images, sought.images)
    near = assigner.assign(images[2], 3)[:, 0]
    assert np.array_equal(index.scores(images[2], near), sought.scores(images[2]))
    once = Asmk(VOCABULARY, AsmkOptions(assignments=1)).index(images)
    assert np.array_equal(index.scores(images[2], near[:, 0]), once.scores(images[2]))


def test_nothing_resembles_nothing() -> None:
    image, nothing = draw(6, 1)[0], np.empty((0, 128), np.float32)
    method = Asmk(VOCABULARY)
    assert method.index([]).scores(image).shape == (0,)
    assert method.index([nothing]).scores(image).tolist() == [0]
    assert method.index([image, nothing]).scores(nothing).tolist() == [0, 0]
    assert method.index([image, nothing], [np.zeros(len(image), int), []]).scores(nothing, []).tolist() == [0, 0]
    assert method.index([image]).scores(image).tolist() == [0]  # every word is held by every image
    only_word_0 = method.index([image[:1], nothing], [[0], []])
    assert only_word_0.scores(image[:1], [29]).tolist() == [0, 0]


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0}, {"alpha": math.nan}, {"threshold": 1}, {"threshold": -2}, {"idf": "plain"}, {"assignments": 0}]
)
def test_options_out_of_range_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        AsmkOptions(**wrong)


TWO = np.zeros((2, 8), np.float32)


@pytest.mark.parametrize(
    ("images", "words", "message"),
    [
        ([np.zeros((2, 7))], None, r"\[features, 8\]"),
        ([np.full((2, 8), np.nan)], None, "not finite"),
        *(([TWO], [words], "do not fit 2 descriptors") for words in ([0], [[[0]], [[1]]], np.zeros((2, 0), int), [0.5, 1.0])),
        *(([TWO], [words], "should be 0 to 3") for words in ([0, 4], [-1, 0])),
        *(([TWO] * n, [[0, 1]] * (3 - n), "image 1: descriptors or words are missing") for n in (1, 2)),
    ],
)
def test_what_does_not_fit_is_an_error(images: list[Any], words: list[Any] | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Asmk(make_vocabulary(4, 8)).index(images, words)


def test_more_assignments_than_words_are_an_error() -> None:
    with pytest.raises(OptionError, match="assignments=5 should be 1 to 4"):
        Asmk(make_vocabulary(4, 8)).index([TWO]).scores(TWO)
