"""The nearest words, against a search of all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.kernels.compiler import WORDS
from polyvoc.vocabulary.assign import Assigner, Cells, PrincipalAxes, prepare_cells
from polyvoc.vocabulary.vocabulary import Vocabulary


def clustered(count: int, seed: int, dimension: int = 128) -> np.ndarray:
    """Return vectors like rootSIFT: not negative, of length 1, around 300 centres in a space of few dimensions."""
    shape = np.random.default_rng(99)
    centres, axes = shape.normal(size=(300, 24)), shape.normal(size=(24, dimension))
    random = np.random.default_rng(seed)
    near = centres[random.integers(0, len(centres), count)] + 0.5 * random.normal(size=(count, 24))
    values = np.abs(near @ axes + 1.5 * random.normal(size=(count, dimension)))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def exact(descriptors: np.ndarray, vocabulary: Vocabulary, assignments: int = 1) -> np.ndarray:
    words = vocabulary.centroids.astype(np.float64)
    squares = (words**2).sum(axis=1) - 2 * descriptors.astype(np.float64) @ words.T
    some = np.argpartition(squares, assignments - 1, axis=1)[:, :assignments]
    return np.take_along_axis(some, np.take_along_axis(squares, some, axis=1).argsort(axis=1), axis=1)


def test_by_hand() -> None:
    first = Vocabulary.create([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    second = Vocabulary.create([[9.0, 9.0], [0.0, 0.0]])
    descriptors = [[1.0, 2.0], [9.0, 1.0], [2.0, 9.0]]
    assigner = Assigner([first, second])
    assert assigner.assign(descriptors).tolist() == [[0, 1], [1, 0], [2, 0]]
    assert assigner.assign(descriptors, 2).tolist() == [[[0, 2], [1, 0]], [[1, 0], [0, 1]], [[2, 0], [0, 1]]]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 40), st.integers(1, 3), st.integers(0, 2**16))
def test_small_vocabularies_are_exact(size: int, dimension: int, count: int, n_vocabularies: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vocabularies = [Vocabulary.create(random.normal(3, 50, (size + k, dimension))) for k in range(n_vocabularies)]
    descriptors = random.normal(3, 50, (count, dimension)).astype(np.float32)
    words = Assigner(vocabularies).assign(descriptors)
    assert words.shape == (count, n_vocabularies) and words.dtype == np.int32
    for k, vocabulary in enumerate(vocabularies):
        best = exact(descriptors, vocabulary)[:, 0]
        gap = np.linalg.norm(descriptors - vocabulary.centroids[words[:, k]], axis=1) - np.linalg.norm(
            descriptors - vocabulary.centroids[best], axis=1
        )
        assert (gap < 1e-2).all()  # as near as the nearest, up to rounding


def test_large_vocabularies_agree_and_may_differ_in_size() -> None:
    vocabularies = [Vocabulary.create(clustered(size, seed)) for seed, size in enumerate((6000, 1000, 5500, 9000))]
    descriptors = clustered(1000, 7)
    assigner = Assigner(vocabularies)
    words = assigner.assign(descriptors)
    three = assigner.assign(descriptors, 3)
    assert three.shape == (1000, 4, 3)
    assert np.array_equal(three[:, :, 0], words)
    for k, vocabulary in enumerate(vocabularies):
        truth = exact(descriptors, vocabulary, 3)
        assert np.mean(words[:, k] == truth[:, 0]) >= 0.99
        assert np.mean(three[:, k] == truth) >= 0.97
    assert np.mean(words[:, 1] == exact(descriptors, vocabularies[1])[:, 0]) == 1  # searched exhaustively


def test_less_effort_finds_most_nearest_words() -> None:
    vocabulary, descriptors = Vocabulary.create(clustered(9000, 3)), clustered(1000, 7)
    words = Assigner([vocabulary]).assign(descriptors, effort=0.5)[:, 0]
    assert np.mean(words == exact(descriptors, vocabulary)[:, 0]) >= 0.95


def test_stored_cells_change_nothing(tmp_path: Path) -> None:
    vocabulary, descriptors = Vocabulary.create(clustered(5000, 0)), clustered(1000, 7)
    prepared = replace(vocabulary, cells=prepare_cells(vocabulary))
    prepared.save(tmp_path / "v")
    loaded = Vocabulary.load(tmp_path / "v")
    assert prepared.cells is not None and loaded.cells is not None and loaded.fingerprint == vocabulary.fingerprint
    assert all(np.array_equal(one, vars(loaded.cells)[name]) for name, one in vars(prepared.cells).items())
    expected = Assigner([vocabulary]).assign(descriptors, 3)
    for other in (prepared, loaded):
        assert np.array_equal(Assigner([other]).assign(descriptors, 3), expected)
    assert prepare_cells(Vocabulary.create(clustered(100, 0))) is None  # searched exhaustively


def test_a_word_is_nearest_to_itself() -> None:
    vocabulary = Vocabulary.create(clustered(5000, 0))
    words = Assigner([vocabulary]).assign(vocabulary.centroids)[:, 0]
    assert np.allclose(vocabulary.centroids[words], vocabulary.centroids)


def test_words_in_cells_that_are_not_probed_are_found() -> None:
    # All words but one lie together: the cells that most descriptors probe hold no word of the second vocabulary.
    random = np.random.default_rng(0)
    first = Vocabulary.create(random.normal(0, 1, (4000, 8)))
    second = Vocabulary.create(np.vstack([random.normal(1000, 1e-3, (3999, 8)), np.zeros((1, 8))]))
    descriptors = random.normal(0, 1, (300, 8)).astype(np.float32)
    words = Assigner([first, second]).assign(descriptors, 3)
    assert (words >= 0).all()
    assert (words[:, 1, 0] == 3999).all()
    assert all(len(set(row)) == 3 for row in words[:, 1].tolist())


def test_batches_and_threads_change_nothing() -> None:
    assigner = Assigner([Vocabulary.create(clustered(3000, s)) for s in range(2)])
    descriptors = clustered(5000, 5)
    together = assigner.assign(descriptors)
    parts = np.concatenate([assigner.assign(part) for part in np.array_split(descriptors, 37)])
    assert np.mean(together == parts) > 0.9999  # ties of rounding apart
    with ThreadPoolExecutor(4) as pool:
        for words in pool.map(lambda _: assigner.assign(descriptors), range(8)):
            assert np.array_equal(words, together)


def test_empty_and_read_only_inputs_and_equal_words() -> None:
    assigner = Assigner([Vocabulary.create(np.eye(4))])
    assert assigner.assign(np.empty((0, 4))).shape == (0, 1)
    assert assigner.assign(np.empty((0, 4)), 2).shape == (0, 1, 2)
    frozen = np.asfortranarray(np.eye(4, dtype=np.float32))
    frozen.setflags(write=False)
    assert assigner.assign(frozen)[:, 0].tolist() == [0, 1, 2, 3]
    equal = Assigner([Vocabulary.create(np.zeros((4, 3)))])
    assert sorted(equal.assign(np.ones((1, 3)), 4)[0, 0].tolist()) == [0, 1, 2, 3]


def test_invalid_arguments() -> None:
    assigner = Assigner([Vocabulary.create(np.eye(2))])
    with pytest.raises(OptionError, match="at least one"):
        Assigner([])
    with pytest.raises(VocabularyError, match="do not fit vocabularies of dimension 2"):
        assigner.assign(np.zeros((1, 3)))
    for descriptors, assignments, line in (([[np.nan, 0]], 1, "not finite"), ([[0, 0]], 0, "1 to 2"), ([[0, 0]], 3, "1 to 2")):
        with pytest.raises(OptionError, match=line):
            assigner.assign(descriptors, assignments)


@pytest.mark.parametrize("dimension", [32, 61, 64, 96, 256, 486, 512])
def test_descriptors_may_have_any_length(dimension: int) -> None:
    """A small vocabulary is searched exactly; of a large one, in cells, nearly all nearest words are found."""
    rng = np.random.default_rng(dimension)
    for size, share in ((200, 1.0), (2500, 0.99)):
        words = rng.random((size, dimension)).astype(np.float32)
        vocabulary = Vocabulary.create(words)
        near = words[rng.integers(size, size=300)] + rng.normal(0, 0.15, (300, dimension)).astype(np.float32)
        scores = near @ vocabulary.centroids.T - (vocabulary.centroids**2).sum(axis=1) / 2
        assert np.mean(Assigner([vocabulary]).assign(near)[:, 0] == scores.argmax(axis=1)) >= share


@pytest.mark.parametrize("dimension", [1, 7, 8, 40])
def test_principal_axes_keep_distances(dimension: int) -> None:
    rows = np.random.default_rng(0).normal(5, 2, (50, dimension)).astype(np.float32)
    axes = PrincipalAxes.of(rows)
    points = axes.points(axes.rotate(rows))
    assert np.allclose(
        np.linalg.norm(rows[1:] - rows[:-1], axis=1), np.linalg.norm(np.diff(points.rows, axis=0), axis=1), atol=1e-4
    )
    assert np.allclose(axes.unrotate(points.rows), rows, atol=1e-4)
    assert np.allclose(points.heads * points.units[:, None], points.rows[:, : axes.head], atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 150), st.floats(1e-3, 1e3), st.floats(1e-2, 1e2), st.integers(0, 2**16))
def test_bounds_are_never_below_the_scores(dimension: int, length: float, ratio: float, seed: int) -> None:
    """Heads are rounded to 16 bits; tails make up for it, and for little more."""
    random = np.random.default_rng(seed)
    words, descriptors = (random.normal(0, size, (40, dimension)).astype(np.float32) for size in (length, length * ratio))
    axes = PrincipalAxes.of(words)
    table, points = Cells(axes.rotate(words[:1]), axes).word_table(axes.rotate(words)), axes.points(axes.rotate(descriptors))
    heads = table.heads.values.reshape(-1, axes.head // 2, WORDS, 2).transpose(0, 2, 1, 3).reshape(-1, axes.head)
    products = (points.heads.astype(np.int64) @ heads.T) * (points.units[:, None].astype(np.float64) * table.heads.unit)
    assert abs(points.heads.astype(np.int64) @ heads.T).max() < 1 << 31
    scores = points.rows.astype(np.float64) @ table.rows.T
    slack, allowed = products + np.outer(points.tail, table.tail) - scores, length * length * ratio * dimension
    assert (slack > -1e-6 * allowed).all()
    if dimension <= axes.head:  # nothing behind the heads
        assert slack.max() < 0.02 * allowed


def test_descriptors_between_equal_cells_get_a_word() -> None:
    """A point that is as near to every cell has no cell above the others."""
    rows = np.eye(2500, 16, dtype=np.float32)
    axes = PrincipalAxes.of(rows)
    cells = Cells(np.tile(axes.rotate(rows[:1]), (64, 1)), axes)
    points = axes.points(axes.rotate(rows[:5]))
    own, others = cells.probe(points, effort=0.1)
    assert len(own.members) == 5 and own.start[-1] == 5 and others.start[-1] == len(others.members)
