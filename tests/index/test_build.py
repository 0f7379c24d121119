"""Photographs become pending images, and these a batch, as they were read, whenever they are quantised."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from polyvoc.errors import ImageError, UnreachableError
from polyvoc.features.decode import shared_decoders
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import extract
from polyvoc.index.build import (
    BuildItem,
    BuildPlan,
    BuildResult,
    CommitLimits,
    LocalWorkers,
    MergeResult,
    PendingImages,
    SegmentBuilder,
    read_image,
)
from polyvoc.index.catalogue import ImageRow
from polyvoc.index.folder import IndexFolder, Models
from polyvoc.index.segment import Geometry
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.storage.files import checksum
from polyvoc.storage.folders import FileState, file_state
from polyvoc.types import Features
from samples import coded, features, photograph, unflushed, vocabularies

__all__ = ["unflushed"]

SMALL = FeatureOptions(long_side=160, max_features=30)
GEOMETRY = ("xy", "scale", "angle")


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(coded())


def row(image: int, found: Features) -> ImageRow:
    return ImageRow(image, f"image {image}", FileState(None, None), None, found.width, found.height, len(found), 0, 0)


def item(path: Path) -> BuildItem:
    return BuildItem(1, str(path), file_state(os.fspath(path)))


# --- pending images ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [1, 25, 10_000])
def test_pending_images_come_out_as_they_were_added(models: Models, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.index.build.QUANTISE_FEATURES", together)
    images = [features(seed, count) for seed, count in enumerate((12, 0, 7, 20))]
    vectors = [np.array([0.6, 0.8], np.float32), None, np.array([1, 0], np.float32), None]
    pending = PendingImages(lambda: models, 2)
    for number, (image, vector) in enumerate(zip(images, vectors, strict=True), start=5):
        pending.add(row(number, image), image, vector)
    assert len(pending) == 4
    batch = pending.batch()
    assert batch.ids.tolist() == [one.image for one in pending.rows] == [5, 6, 7, 8]
    assert len(pending) == 4 and pending.n_features == 39 and np.diff(batch.feature_starts).tolist() == [12, 0, 7, 20]
    joined = {name: np.concatenate([getattr(image, name) for image in images]) for name in GEOMETRY}
    assert all(map(np.array_equal, batch.geometry, Geometry.of(**joined, feature_starts=batch.feature_starts)))
    words, signatures, codes = models.quantise(np.concatenate([image.descriptors for image in images]))
    assert np.array_equal(batch.words, words) and np.array_equal(batch.signatures, signatures)
    assert codes is not None and batch.codes is not None and all(map(np.array_equal, batch.codes, codes))
    assert batch.embeddings is not None and batch.embeddings.dtype == np.float16
    assert np.allclose(batch.embeddings, [[0.6, 0.8], [0, 0], [1, 0], [0, 0]], atol=1e-3)


def test_the_vocabularies_are_loaded_for_the_first_image_only() -> None:
    pending = PendingImages(lambda: pytest.fail("not needed"), 0)
    assert len(pending) == 0 and pending.n_features == 0 and pending.rows == []


def test_without_a_model_there_are_no_vectors(models: Models) -> None:
    pending = PendingImages(lambda: models, 0)
    pending.add(row(1, features(1)), features(1))
    assert pending.batch().embeddings is None


# --- reading ----------------------------------------------------------------------------------------------------


def test_a_photograph_is_read_with_and_without_a_model(tmp_path: Path) -> None:
    path = photograph(tmp_path / "a.png", 1)
    model = Embedder.of(lambda pixels: pixels.mean(axis=(0, 1)) + 1, "mean colour", side=64)
    for given in (None, model):
        read = read_image(item(path), SMALL, given, shared_decoders())
        assert isinstance(read.features, Features) and not read.is_missing
        assert np.array_equal(read.features.descriptors, extract(path, SMALL).descriptors)
        assert (read.vector is None) == (given is None) and read.digest == checksum(path)
        assert (read.row.n_features, read.row.width, read.row.height) == (len(read.features), 160, 120)
        assert read.vector is None or np.array_equal(read.vector, model.embed(path))


def test_a_file_that_cannot_be_used_is_broken_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"no photograph")
    listed = item(path)
    broken = read_image(listed, SMALL, None, shared_decoders())
    assert isinstance(broken.features, ImageError) and not broken.is_missing
    path.write_bytes(b"another one, written since it was listed")
    assert read_image(listed, SMALL, None, shared_decoders()).is_missing
    path.unlink()
    assert read_image(listed, SMALL, None, shared_decoders()).is_missing


@pytest.mark.parametrize("error, kept", [(UnreachableError, False), (ImageError, True)])
def test_a_model_that_fails(tmp_path: Path, error: type[ImageError], kept: bool) -> None:
    """Unreachable for the model: not used at all. Otherwise indexed without a vector."""

    class Failing(Embedder):
        def embed_pixels(self, *pixels: object) -> np.ndarray:
            raise error("a.png: fails")

    model = Failing(lambda pixels: [1.0], 64, 1, "0123456789abcdef")
    read = read_image(item(photograph(tmp_path / "a.png", 1)), SMALL, model, shared_decoders())
    assert isinstance(read.features, Features if kept else UnreachableError) and read.vector is None


# --- workers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def builder(tmp_path: Path) -> SegmentBuilder:
    with IndexWriter.open(tmp_path / "index", vocabularies(2, size=20, dimension=128), SMALL) as writer:
        (writer.folder.path / "staging").mkdir()
        return SegmentBuilder.of(IndexFolder(tmp_path / "index"))


def results_of(builder: SegmentBuilder, paths: list[Path], limits: CommitLimits) -> list[BuildResult | MergeResult]:
    plan = BuildPlan(11, [(str(path), file_state(os.fspath(path))) for path in paths])
    workers = LocalWorkers(lambda: builder.folder.models, None, limits, threads=2)
    return list(workers.work(builder, plan, lambda busy: (), lambda stage, done, total: None))


@pytest.mark.parametrize(
    "limits, sizes", [(CommitLimits(), [3]), (CommitLimits(images=2), [2, 1]), (CommitLimits(seconds=0), [1, 0, 1, 1, 0])]
)
def test_ids_follow_the_files_and_results_the_limits(
    builder: SegmentBuilder, tmp_path: Path, limits: CommitLimits, sizes: list[int]
) -> None:
    """A broken photograph leaves a gap in the ids; the other way, by a machine of a cluster, gives the same rows."""
    paths = [photograph(tmp_path / f"{name}.png", seed) for seed, name in enumerate("abcd")]
    paths[1].write_bytes(b"broken")
    results = [result for result in results_of(builder, paths, limits) if isinstance(result, BuildResult)]
    assert [len(result.rows) for result in results] == sizes
    rows = [one for result in results for one in result.rows]
    assert [(one.image, Path(one.path).name) for one in rows] == [(11, "a.png"), (13, "c.png"), (14, "d.png")]
    assert [Path(problem.path).name for result in results for _, problem in result.broken] == ["b.png"]
    for result in results:
        assert (result.saved is None) == (not result.rows)
        assert result.saved is None or result.saved.row.n_images == len(result.rows)
    plan = BuildPlan(11, [(str(path), file_state(os.fspath(path))) for path in paths])
    alone = builder.build_segment(plan.items(range(4)))
    assert list(alone.rows) == rows and alone.broken == tuple(one for result in results for one in result.broken)


def test_a_plan_without_files_gives_nothing(builder: SegmentBuilder) -> None:
    assert [result.rows for result in results_of(builder, [], CommitLimits()) if isinstance(result, BuildResult)] in ([], [()])


def test_can_read(builder: SegmentBuilder, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"x")
    assert builder.can_read(str(photograph(tmp_path / "a.png", 1)))
    assert not builder.can_read(str(tmp_path / "broken.png")) and not builder.can_read(str(tmp_path / "missing.png"))
