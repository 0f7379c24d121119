"""Training by laws: the distortion falls, words lie at means, medians halve, the same seed gives the same words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.vocabulary.assign import Assigner, Cells, PrincipalAxes, project
from polyvoc.vocabulary.train import (
    KeyedSample,
    LocalPointSet,
    Sample,
    draw_descriptors,
    learn_thresholds,
    sample_descriptors,
    train,
)
from polyvoc.vocabulary.vocabulary import Vocabulary


def blobs(count: int = 3000, dimension: int = 16, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(42).normal(0, 10, (40, dimension))
    return (centres[random.integers(0, 40, count)] + random.normal(0, 1, (count, dimension))).astype(np.float32)


def test_two_words_by_hand() -> None:
    descriptors = np.array([[0.0, 0.0], [0.0, 2.0], [10.0, 0.0], [10.0, 2.0]], dtype=np.float32)
    vocabulary = train(descriptors, TrainOptions(size=2, bits=1, seed=1))
    assert sorted(vocabulary.centroids.tolist()) in ([[0.0, 1.0], [10.0, 1.0]], [[5.0, 0.0], [5.0, 2.0]])
    assert vocabulary.provenance["descriptors"] == 4


def test_distortion_falls_and_is_the_mean_squared_distance() -> None:
    descriptors = blobs()
    rounds: list[tuple[int, int, float, float]] = []
    vocabulary = train(descriptors, TrainOptions(size=60, bits=0, rounds=12), lambda *row: rounds.append(row))
    assert [row[0] for row in rounds] == list(range(1, len(rounds) + 1))
    assert all(row[1] == 12 and 0 <= row[3] <= 1 for row in rounds)
    assert all(after[2] <= before[2] * 1.02 for before, after in pairwise(rounds))  # a re-seeded word may cost a little
    assert rounds[-1][2] < rounds[0][2] / 2
    words = Assigner([vocabulary]).assign(descriptors)[:, 0]
    truth = np.mean(np.sum((descriptors - vocabulary.centroids[words]) ** 2, axis=1))
    assert vocabulary.provenance["distortion"] == pytest.approx(truth, rel=1e-3)
    assert vocabulary.provenance["rounds"] == len(rounds)


def test_words_lie_at_the_means_of_their_descriptors() -> None:
    descriptors = blobs()
    vocabulary = train(descriptors, TrainOptions(size=40, bits=0, rounds=50))
    words = Assigner([vocabulary]).assign(descriptors)[:, 0]
    assert len(np.unique(words)) == 40  # no word is left empty
    for word in np.unique(words):
        mean = descriptors[words == word].mean(axis=0)
        assert np.linalg.norm(mean - vocabulary.centroids[word]) < 0.6


@pytest.mark.parametrize("size", [50, 2500])  # without and with cells
def test_same_seed_same_words(size: int) -> None:
    descriptors = blobs(6000)
    options = TrainOptions(size=size, bits=8, rounds=4, max_descriptors=5000)
    first, again = train(descriptors, options), train(descriptors, options)
    other = train(descriptors, TrainOptions(size=size, bits=8, rounds=4, max_descriptors=5000, seed=1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.provenance["descriptors_clustered"] == 5000
    assert first.rotation is not None and other.rotation is not None
    assert np.array_equal(first.rotation, other.rotation)  # shared by all


@pytest.mark.parametrize("size", [50, 2500])  # without and with cells
@pytest.mark.parametrize("count", [2, 7, 900])
def test_points_in_parts_get_the_same_words(size: int, count: int) -> None:
    descriptors = blobs(20_000)
    axes = PrincipalAxes.of(descriptors[:size])
    points = axes.rotate(descriptors)
    centroids = points[:size]
    cells = Cells.among(centroids, axes)
    table = cells.word_table(centroids)
    before = np.random.default_rng(0).integers(0, size, len(points), dtype=np.int32)
    scores, words = LocalPointSet(points, cells).assign(table, centroids, before)
    parts = zip(np.array_split(points, count), np.array_split(before, count), strict=True)
    results = [LocalPointSet(rows, cells, threads=1).assign(table, centroids, old) for rows, old in parts]
    assert np.array_equal(scores, np.concatenate([part for part, _ in results]))  # to the last bit
    assert np.array_equal(words, np.concatenate([part for _, part in results]))


def test_medians_halve_the_descriptors_of_a_word() -> None:
    descriptors = blobs()
    vocabulary = train(descriptors, TrainOptions(size=30, bits=16))
    assert vocabulary.rotation is not None and vocabulary.thresholds is not None
    words = Assigner([vocabulary]).assign(descriptors)[:, 0]
    above = project(descriptors, vocabulary.rotation) > vocabulary.thresholds[words]
    assert np.abs(above.mean(axis=0) - 0.5).max() < 0.03


def test_a_vocabulary_serves_codes_unless_none_are_wanted() -> None:
    descriptors = blobs()
    options = TrainOptions(size=30, bits=16, rounds=3)
    coded, plain = train(descriptors, options), train(descriptors, options, codes=False)
    assert coded.decoder is not None and plain.decoder is None
    assert coded.decoder.matrix.shape == (16, 16) and coded.decoder.parts.shape == (8, 256, 2)
    # the same words in another order: as near as their rounding, which depends on the range of each column only
    assert np.array_equal(np.unique(coded.centroids, axis=0), np.unique(plain.centroids, axis=0))
    assert not np.array_equal(coded.centroids, plain.centroids)
    assert train(descriptors, TrainOptions(size=30, bits=0, rounds=3)).decoder is None


def test_thresholds_by_hand() -> None:
    descriptors = np.array([[1, 0], [2, 5], [9, 7], [4, 1], [6, 3]], dtype=np.float32)
    words = np.array([0, 0, 0, 2, 2], dtype=np.int32)
    centroids = np.array([[0, 0], [8, 8], [5, 5]], dtype=np.float32)
    thresholds = learn_thresholds(descriptors, words, centroids, np.eye(2, dtype=np.float32))
    # the middle one of three; an empty word's own projection; halfway between two
    assert thresholds.tolist() == [[2, 5], [8, 8], [5, 2]]


def test_a_trained_vocabulary_is_stored(tmp_path: Path) -> None:
    descriptors = blobs()
    vocabulary = train(Sample(descriptors, {"photographs": 7}), TrainOptions(size=20, bits=4), source="blobs")
    vocabulary.save(tmp_path / "v")
    loaded = Vocabulary.load(tmp_path / "v")
    assert np.array_equal(loaded.centroids, vocabulary.centroids) and np.array_equal(descriptors, blobs())  # not modified
    expected = {"photographs": 7, "source": "blobs", "seed": 0, "descriptors": 3000}
    assert {**loaded.provenance, **expected} == loaded.provenance


@pytest.mark.parametrize(
    ("dimension", "bits"), [(3, 3), (32, 32), (63, 63), (64, 128), (96, 64), (127, 64), (128, 128), (256, 128)]
)
def test_signatures_have_as_many_bits_as_descriptors_allow(dimension: int, bits: int) -> None:
    descriptors = np.random.default_rng(4).random((200, dimension))
    assert train(descriptors, TrainOptions(size=5)).bits == bits
    assert train(descriptors, TrainOptions(size=5, bits=0)).bits == 0
    assert train(descriptors, TrainOptions(size=5, bits=2)).bits == 2


def test_unusable_descriptors() -> None:
    for descriptors, kind, line in (
        (blobs(2), VocabularyError, "^2 descriptors, 3 words: give more photographs"),
        (np.ones((9, 4)), VocabularyError, "^1 distinct descriptors, 3 words"),
        (np.full((9, 4), np.inf), OptionError, "not finite"),
        (np.ones(4), OptionError, r"should be \(number, dimension\)"),
    ):
        with pytest.raises(kind, match=line):
            train(descriptors, TrainOptions(size=3, bits=2))


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"seed": -1}, {"rounds": 0}, {"bits": -1}, {"bits": 129}, {"max_descriptors": 0}]
)
def test_invalid_options(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        TrainOptions(**wrong)


@pytest.fixture
def photographs(tmp_path: Path) -> list[Path]:
    random = np.random.default_rng(0)
    paths = []
    for number in range(3):
        small = random.integers(0, 255, (24, 32), dtype=np.uint8)
        Image.fromarray(small).resize((256, 192)).save(tmp_path / f"{number}.png")
        paths.append(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"not a photograph")
    return [paths[0], tmp_path / "broken.png", *paths[1:]]


def test_sampling_photographs(photographs: list[Path]) -> None:
    steps: list[tuple[int, int]] = []
    options = FeatureOptions(max_features=100)
    every = sample_descriptors(photographs, options, progress=lambda *step: steps.append(step))
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [Path(problem.path).name for problem in every.problems] == ["broken.png"]
    assert every.provenance["photographs"] == 3
    assert every.provenance["features"] == {"long_side": 1024, "max_features": 100, "detector": "sift"}
    few = sample_descriptors(photographs, options, limit=50)
    assert few.descriptors.shape == (50, 128)
    rows = {row.tobytes() for row in every.descriptors}
    assert all(row.tobytes() in rows for row in few.descriptors)
    assert np.array_equal(few.descriptors, sample_descriptors(photographs, options, limit=50).descriptors)
    assert not np.array_equal(few.descriptors, sample_descriptors(photographs, options, limit=50, seed=1).descriptors)


def test_photographs_may_be_sampled_in_parts(photographs: list[Path]) -> None:
    options = FeatureOptions(max_features=100)
    together = list(draw_descriptors(photographs, options, seed=5))
    parts = [*draw_descriptors(photographs[:3], options, 5), *draw_descriptors(photographs[3:], options, 5, first=3, threads=1)]
    assert len(together) == 4 and together[1] == parts[1]  # the broken one
    for one, other in zip(together, parts, strict=True):
        if isinstance(one, KeyedSample) and isinstance(other, KeyedSample):
            assert np.array_equal(one.descriptors, other.descriptors) and np.array_equal(one.keys, other.keys)
            low = one.below(0.25)
            assert len(low.descriptors) == np.count_nonzero(one.keys < 0.25) and (low.keys < 0.25).all()


def test_no_photograph_can_be_used(photographs: list[Path]) -> None:
    with pytest.raises(OptionError, match="limit=0"):
        sample_descriptors(photographs, limit=0)
    with pytest.raises(VocabularyError, match="none of 1 photographs could be used"):
        sample_descriptors(photographs[1:2])
