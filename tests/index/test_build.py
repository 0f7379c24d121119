"""What comes in waits for a commit, and comes out as it was, whenever it was quantised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyvoc.errors import ImageError, UnreachableError
from polyvoc.features.embedding import Embedder
from polyvoc.index.build import PendingImages, read_photographs
from polyvoc.index.catalogue import ImageRow
from polyvoc.options import FeatureOptions
from polyvoc.storage.folders import FileState
from polyvoc.types import Features
from polyvoc.vocabulary.assign import Quantiser
from samples import features, photograph, vocabularies

SMALL = FeatureOptions(long_side=160, max_features=30)


@pytest.fixture(scope="module")
def quantiser() -> Quantiser:
    return Quantiser(vocabularies())


def row(image: int, found: Features) -> ImageRow:
    return ImageRow(image, f"image {image}", FileState(None, None), None, found.width, found.height, len(found), 0, 0)


@pytest.mark.parametrize("together", [1, 25, 10_000])
def test_what_was_put_in_comes_out(quantiser: Quantiser, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.index.build.QUANTISE_FEATURES", together)
    images = [features(seed, count) for seed, count in enumerate((12, 0, 7, 20))]
    vectors = [np.array([0.6, 0.8], np.float32), None, np.array([1, 0], np.float32), None]
    waiting = PendingImages(lambda: quantiser, 2)
    for number, (found, vector) in enumerate(zip(images, vectors, strict=True), start=5):
        waiting.add(row(number, found), found, vector, row(number - 4, found) if number == 6 else None)
    assert waiting.names == {"image 5", "image 6", "image 7", "image 8"}
    waiting.quantise()
    batch = waiting.batch()
    assert batch.ids.tolist() == [one.image for one in waiting.rows] == [5, 6, 7, 8]
    assert waiting.replaced == [2]
    assert waiting.n_features == 39 and np.diff(batch.feature_starts).tolist() == [12, 0, 7, 20]
    words, signatures = quantiser.quantise(np.concatenate([found.descriptors for found in images]))
    assert np.array_equal(batch.words, words) and np.array_equal(batch.signatures, signatures)
    assert np.array_equal(batch.xy, np.concatenate([found.xy for found in images]))
    assert batch.embeddings is not None and batch.embeddings.dtype == np.float16
    assert np.allclose(batch.embeddings, [[0.6, 0.8], [0, 0], [1, 0], [0, 0]], atol=1e-3)
    waiting.forget()
    assert (waiting.rows, waiting.replaced, waiting.names, waiting.n_features) == ([], [], set(), 0)


def test_nothing_waits_for_a_quantiser_in_vain() -> None:
    waiting = PendingImages(lambda: pytest.fail("not needed"), 0)
    waiting.quantise()
    assert waiting.rows == []


def test_without_a_model_there_are_no_vectors(quantiser: Quantiser) -> None:
    waiting = PendingImages(lambda: quantiser, 0)
    waiting.add(row(1, features(1)), features(1), None, None)
    waiting.quantise()
    assert waiting.batch().embeddings is None


def test_photographs_are_read_with_and_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no photograph")
    paths = [photograph(tmp_path / "a.png", 1), tmp_path / "broken.png", photograph(tmp_path / "b.png", 2)]
    model = Embedder.of(lambda pixels: pixels.mean(axis=(0, 1)) + 1, "mean colour", side=64)
    plain, seen = list(read_photographs(paths, SMALL, None)), list(read_photographs(paths, SMALL, model))
    assert [path for path, _, _ in plain] == [path for path, _, _ in seen] == [str(path) for path in paths]
    assert [type(found) for _, found, _ in seen] == [Features, ImageError, Features]
    for path, (_, found, none), (_, same, vector) in zip(paths, plain, seen, strict=True):
        assert none is None
        if isinstance(found, Features):
            assert isinstance(same, Features) and np.array_equal(found.descriptors, same.descriptors)
            assert vector is not None and np.array_equal(vector, model.embed(path))
        else:
            assert str(found) == str(same) and vector is None


def test_who_cannot_be_reached_the_second_time_is_not_taken(tmp_path: Path) -> None:
    class Flaky(Embedder):
        def embed(self, source: object) -> np.ndarray:
            raise UnreachableError("a.png: no answer")

    model = Flaky(lambda pixels: [1.0], 64, 1, "0123456789abcdef")
    ((_, found, vector),) = read_photographs([photograph(tmp_path / "a.png", 1)], SMALL, model)
    assert isinstance(found, UnreachableError) and vector is None
