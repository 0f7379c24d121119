"""Joint PCA against a direct singular value decomposition; whitening; what must not change a code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.experiments.baselines.joint_pca import JointPca

SIZES = (30, 17, 24)
FEW = (5, 4)


def draw(seed: int, count: int, sizes: Sequence[int] = SIZES, longest: int = 40) -> list[np.ndarray]:
    """Return images of words; each image likes some words, and the vocabularies go together."""
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        liked = rng.random(max(sizes)) ** 4
        first = rng.choice(max(sizes), rng.integers(1, longest), p=liked / liked.sum())
        columns = [np.where(rng.random(len(first)) < 0.7, first % size, rng.integers(0, size, len(first))) for size in sizes]
        images.append(np.stack(columns, axis=1))
        images[-1].setflags(write=False)  # no image may be changed
    return images


def direct(train: list[np.ndarray], queries: list[np.ndarray], sizes: Sequence[int], dimensions: int, idf: bool) -> np.ndarray:
    """Return the codes [N, dimensions], without length 1, by the textbook: dense float64 and an SVD."""

    def dense(images: list[np.ndarray]) -> np.ndarray:
        parts = []
        for k, size in enumerate(sizes):
            counts = np.array([[(words[:, k] == word).sum() for word in range(size)] for words in images], float)
            if idf:
                holders = np.array([sum(word in words[:, k] for words in train) for word in range(size)])
                counts = counts * np.where(holders > 0, np.log(len(train) / np.maximum(holders, 1)), 0)
            roots = np.sqrt(counts)
            lengths = np.linalg.norm(roots, axis=1, keepdims=True)
            parts.append(roots / np.where(lengths > 0, lengths, 1))
        return np.hstack(parts)

    table = dense(train)
    _, values, axes = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    whitened = axes[:dimensions].T / (values[:dimensions] / np.sqrt(len(train)))
    return (dense(queries) - table.mean(axis=0)) @ whitened


@pytest.mark.parametrize("idf", [True, False])
@pytest.mark.parametrize("sizes, count, dimensions", [(SIZES, 40, 12), (FEW, 60, 5), (SIZES[:1], 25, 8)])
def test_equals_a_direct_decomposition(sizes: tuple[int, ...], count: int, dimensions: int, idf: bool) -> None:
    """Also with more images than words, where the covariance is decomposed instead of the Gram matrix."""
    train, queries = draw(1, count, sizes, 12), draw(2, 20, sizes, 12)
    model = JointPca.fit(train, sizes, dimensions, idf=idf)
    expected = direct(train, queries, sizes, dimensions, idf)
    signs = np.sign((model.project(queries) * expected).sum(axis=0))  # those of axes are free
    assert np.allclose(model.project(queries), expected * signs, atol=2e-3)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(model.encode(queries) @ model.encode(queries).T, expected @ expected.T, atol=2e-4)


@pytest.mark.parametrize("sizes, count, dimensions", [(SIZES, 50, 20), (FEW, 80, 5)])
def test_training_codes_are_white(sizes: tuple[int, ...], count: int, dimensions: int) -> None:
    train = draw(3, count, sizes)
    codes = JointPca.fit(train, sizes, dimensions).project(train)
    assert np.allclose(codes.mean(axis=0), 0, atol=1e-4)
    assert np.allclose(codes.T @ codes / count, np.eye(dimensions), atol=1e-3)


def test_axes_are_orthogonal_and_the_first_explain_most() -> None:
    axes = JointPca.fit(draw(4, 60), SIZES, 15).axes.astype(np.float64)
    product = axes.T @ axes  # diagonal: 1 / variance
    assert np.allclose(product, np.diag(np.diag(product)), atol=1e-3 * product.max())
    assert (np.diff(np.diag(product)) > 0).all()


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    train, queries = draw(5, 80, FEW), draw(6, 23, FEW)
    at_once = JointPca.fit(train, FEW, 4).encode(queries)
    monkeypatch.setattr("polyvoc.experiments.baselines.joint_pca._BLOCK", 7)
    parts = JointPca.fit(train, FEW, 4).encode(queries)
    assert np.allclose(at_once @ at_once.T, parts @ parts.T, atol=1e-4)


def test_orders_and_names_change_nothing() -> None:
    rng = np.random.default_rng(7)
    train, queries = draw(8, 40), draw(9, 10)
    codes = JointPca.fit(train, SIZES, 10).encode(queries)
    scores = codes @ codes.T
    names = [rng.permutation(size) for size in SIZES]

    def renamed(images: list[np.ndarray]) -> list[np.ndarray]:
        named = [np.stack([name[words[:, k]] for k, name in enumerate(names)], axis=1) for words in images]
        return [rng.permutation(words)[:, ::-1] for words in named]  # features and vocabularies in another order

    other = JointPca.fit(renamed(train)[::-1], SIZES[::-1], 10).encode(renamed(queries))
    assert np.allclose(other @ other.T, scores, atol=1e-3)


def test_what_a_code_is() -> None:
    train, queries = draw(10, 40), draw(11, 10)
    empty = np.empty((0, 3), np.int64)
    model = JointPca.fit(train, SIZES, 10)
    codes = model.encode([*queries, empty])
    assert codes.shape == (11, model.dimensions) and codes.dtype == np.float32
    assert np.allclose(np.linalg.norm(codes[:-1], axis=1), 1, atol=1e-5)
    assert not codes[-1].any()  # nothing resembles it
    twice = [np.concatenate([words, words]) for words in queries]
    assert np.allclose(model.encode(twice), codes[:-1], atol=1e-4)  # length does not count
    assert model.encode([]).shape == (0, 10)
    with_empty = JointPca.fit([words.astype(np.uint16) for words in (empty, *train, empty)], SIZES, 10)
    assert np.array_equal(with_empty.encode(queries), codes[:-1])


def test_a_query_finds_what_it_is_a_part_of() -> None:
    train, database = draw(12, 300), draw(13, 40)
    model = JointPca.fit(train, SIZES, 25)
    halves = [words[::2] for words in database if len(words) > 20]
    wanted = [number for number, words in enumerate(database) if len(words) > 20]
    best = (model.encode(database) @ model.encode(halves).T).argmax(axis=0)
    assert np.mean(best == wanted) > 0.9


TRAIN = draw(15, 20)


@pytest.mark.parametrize(
    ("images", "sizes", "dimensions", "message"),
    [
        *((TRAIN, SIZES, dimensions, "should be 1 to 19 for 20 training images") for dimensions in (0, 20, 128)),
        (draw(1, 60, FEW), FEW, 10, "should be 1 to 9 for 60 training images with features and 9 words"),
        ([], SIZES, 5, "should be 1 to 0 for 0 training images"),
        (TRAIN[:4] * 6, SIZES, 5, "differ in 3:"),
        (TRAIN[:1] * 6, SIZES, 1, "differ in 0:"),
        ([TRAIN[0], TRAIN[1][:, :2]], SIZES, 1, r"image 1: .* should be integer words"),
        ([TRAIN[0] * 0.5], SIZES, 1, "should be integer words"),
        *(([np.full((2, 3), stray)], SIZES, 1, "image 0: some words are outside") for stray in (-1, max(SIZES))),
        (TRAIN, (), 1, "sizes"),
    ],
)
def test_impossible_arguments_are_errors(
    images: list[np.ndarray], sizes: tuple[int, ...], dimensions: int, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        JointPca.fit(images, sizes, dimensions, idf=False)
    with pytest.raises(OptionError, match="power"):
        JointPca.fit(TRAIN, SIZES, 1, power=0)
