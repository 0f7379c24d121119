"""External features in an index: found by photographs, updated with their file, rejected if of another kind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from commands import answer, refuse, run
from feature_samples import COLMAP_NAMES, HLOC_FILE, add_hloc_image, colmap_database, colmap_photographs
from polyvoc.errors import ExchangeError
from polyvoc.features.feature_files import features_digest, largest_features, open_features
from polyvoc.features.hloc import write_features
from polyvoc.index.writer import absolute_name
from polyvoc.options import TrainOptions
from polyvoc.search.index import Index
from polyvoc.types import FeatureKind, Features
from polyvoc.vocabulary.train import sample_features, train
from samples import unflushed

__all__ = ["colmap_photographs", "unflushed"]


def write(path: Path, images: dict[str, Features]) -> Path:
    path.unlink(missing_ok=True)
    write_features(path, images.items())
    return path


@pytest.fixture
def words(tmp_path: Path) -> Iterator[list[object]]:
    """Flags that name small vocabularies, for the features of `samples`."""
    given: list[object] = []
    for number, vocabulary in enumerate(samples.vocabularies()):
        vocabulary.save(tmp_path / "words" / str(number))
        given += ["--vocabulary", tmp_path / "words" / str(number)]
    yield given


@pytest.fixture
def images() -> dict[str, Features]:
    return {f"a/{n}.jpg": samples.features(n) for n in range(6)}


# -- COLMAP


def test_photographs_find_themselves_in_an_index_of_colmap_features(colmap_photographs: Path, tmp_path: Path) -> None:
    photographs = colmap_photographs
    database, index = colmap_database(photographs, tmp_path / "database.db"), tmp_path / "x.polyvoc"
    report = answer("index", "--features", database, "--images", photographs, "--index", index)
    assert (report["added"], report["problems"]) == (len(COLMAP_NAMES), [])
    again = answer("index", "--features", database, "--images", photographs, "--index", index)
    assert (again["unchanged"], again["added"], again["replaced"], again["removed"]) == (len(COLMAP_NAMES), 0, 0, 0)
    with Index.open(index) as opened:
        assert {row.path for row in opened.images()} == {str(photographs / name) for name in COLMAP_NAMES}
        for name in COLMAP_NAMES:
            hits = opened.search(photographs / name)  # OpenCV's features
            assert hits[0].path == str(photographs / name)
            assert hits[0].inliers > 50
            if "stereo" in name:
                assert Path(hits[1].path).parent.name == "stereo"
                assert hits[1].inliers > 20
                assert hits[2].inliers < 12
    assert run("check", "--index", index).exit_code == 0


# -- updates


def test_an_index_follows_its_file(tmp_path: Path, words: list[object], images: dict[str, Features]) -> None:
    path, index = write(tmp_path / "feats-sift.h5", images), tmp_path / "x.polyvoc"
    command: list[object] = ["index", "--features", path, "--index", index, *words]
    assert answer(*command)["added"] == 6
    images["a/2.jpg"], images["new.jpg"] = samples.features(50), samples.features(51)
    del images["a/4.jpg"]
    write(path, images)
    report = answer(*command)
    assert {key: report[key] for key in ("added", "replaced", "removed", "unchanged")} == {
        "added": 1, "replaced": 1, "removed": 1, "unchanged": 4,
    }  # fmt: skip
    with Index.open(index) as opened:
        assert {row.path for row in opened.images()} == set(images)
        for name, found in images.items():
            assert opened.search(found, top=1)[0].path == name
    del images["a/0.jpg"]
    write(path, images)
    assert answer(*command, "--keep-missing")["removed"] == 0


def test_the_largest_features_are_taken(tmp_path: Path, words: list[object], images: dict[str, Features]) -> None:
    path, index = write(tmp_path / "feats-sift.h5", images), tmp_path / "x.polyvoc"
    report = answer("index", "--features", path, "--index", index, "--max-features", "10", *words)
    assert report["features"] == 10 * len(images)
    found = images["a/0.jpg"]
    kept = largest_features(found, 10)
    assert kept.scale.min() >= np.sort(found.scale)[-10] and len(kept) == 10 and kept.kind == found.kind
    assert largest_features(found, len(found)) is found
    level = replace(found, scale=np.ones(len(found)))
    assert np.array_equal(largest_features(level, 7).xy, found.xy[:7])


def test_images_of_other_files_are_kept(tmp_path: Path, words: list[object], images: dict[str, Features]) -> None:
    index = tmp_path / "x.polyvoc"
    one, other = dict(list(images.items())[:3]), dict(list(images.items())[3:])
    for name, held in (("feats-sift-1.h5", one), ("feats-sift-2.h5", other)):
        report = answer("index", "--features", write(tmp_path / name, held), "--index", index, *words)
        assert (report["added"], report["removed"]) == (3, 0)
    with Index.open(index) as opened:
        assert len(list(opened.images())) == 6


@given(st.sampled_from(["xy", "scale", "angle", "descriptors", "width", "height", "name"]), st.integers(0, 30))
def test_the_digest_changes_with_every_part(part: str, seed: int) -> None:
    found = samples.features(seed)
    values = {name: getattr(found, name) for name in ("xy", "scale", "angle", "descriptors", "width", "height", "name")}
    assert features_digest(Features(**values)) == features_digest(found)
    old = values[part]
    values[part] = old + "2" if part == "name" else old + 1 if isinstance(old, int) else np.nextafter(old, np.float32(9))
    assert features_digest(Features(**values)) != features_digest(found)


def test_broken_images_are_reported(tmp_path: Path, words: list[object], images: dict[str, Features]) -> None:
    path = write(tmp_path / "feats-sift.h5", images)
    with h5py.File(path, "a") as file:
        del file["a/1.jpg/descriptors"]
        file["a/2.jpg/keypoints"][0, 0] = np.nan
        del file["a/3.jpg/image_size"]
        file["a/3.jpg/image_size"] = np.array([1e30, 480])
    report = answer("index", "--features", path, "--index", tmp_path / "x.polyvoc", *words)
    assert report["added"] == 3
    assert [problem["path"] for problem in report["problems"]] == ["a/1.jpg", "a/2.jpg", "a/3.jpg"]
    assert "no descriptors" in report["problems"][0]["reason"]
    assert "not finite" in report["problems"][1]["reason"]
    assert "true size" in report["problems"][2]["reason"]


# -- names


@pytest.mark.parametrize(
    "name", ["../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "", "a\0b", "s3://bucket/x.jpg", "https://h/x.jpg"]
)
def test_names_that_lead_out_of_the_folder_raise(name: str, tmp_path: Path) -> None:
    for folder in (None, str(tmp_path), "s3://bucket"):
        with pytest.raises(ExchangeError, match="not the name of an image"):
            absolute_name(name, folder)


def test_names_become_paths_below_the_folder(tmp_path: Path) -> None:
    assert absolute_name("a/b.jpg", None) == "a/b.jpg"
    assert absolute_name("a/./b.jpg", str(tmp_path)) == str(tmp_path / "a" / "b.jpg")
    assert absolute_name("a/b.jpg", "s3://bucket/photos/") == "s3://bucket/photos/a/b.jpg"


def test_hostile_names_are_problems(tmp_path: Path, words: list[object], colmap_photographs: Path) -> None:
    path = colmap_database(colmap_photographs, tmp_path / "database.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        opened.execute("UPDATE images SET name = '../../etc/passwd' WHERE image_id = 1")
        opened.execute("UPDATE images SET name = 'https://example.org/x.jpg' WHERE image_id = 2")
    report = answer("index", "--features", path, "--index", tmp_path / "x.polyvoc")
    assert report["added"] == len(COLMAP_NAMES) - 2
    assert [problem["path"] for problem in report["problems"]] == ["../../etc/passwd", "https://example.org/x.jpg"]


# -- kinds


def test_features_of_another_kind_need_their_own_vocabulary(tmp_path: Path) -> None:
    path, index = tmp_path / HLOC_FILE, tmp_path / "x.polyvoc"
    for number in range(8):
        add_hloc_image(path, f"{number}.jpg", n=60 + number)
    line = refuse("index", "--features", path, "--index", index)
    assert "holds superpoint (256 numbers), but the vocabularies are for sift (128 numbers)" in line
    assert not index.exists()
    trained = answer("train", "--features", path, "--out", tmp_path / "words", "--size", 20, "--bits", 64)
    assert trained["problems"] == []
    report = answer("index", "--features", path, "--index", index, "--vocabulary", tmp_path / "words")
    assert report["added"] == 8
    with Index.open(index) as opened, closing(open_features(path)) as file:
        assert opened.folder.kind == FeatureKind("superpoint", 256)
        for name, found in file.read():
            assert isinstance(found, Features)
            assert opened.search(found, top=1)[0].path == name
    line = refuse("index", "--features", add_hloc_image(tmp_path / "feats-disk.h5"), "--index", index)
    assert "disk" in line
    assert "superpoint" in line


def test_bits_are_indexed(tmp_path: Path) -> None:
    path, rng = tmp_path / "feats-orb.h5", np.random.default_rng(0)
    for number in range(5):
        add_hloc_image(path, f"{number}.jpg", n=40, descriptors=rng.integers(0, 256, (32, 40), dtype=np.uint8))
    flags = ("--features", path, "--binary")
    answer("train", *flags, "--out", tmp_path / "words", "--size", 20, "--bits", 64)
    report = answer("index", *flags, "--index", tmp_path / "x.polyvoc", "--vocabulary", tmp_path / "words")
    assert report["added"] == 5
    with Index.open(tmp_path / "x.polyvoc") as opened:
        assert opened.folder.kind == FeatureKind("orb", 256, binary=True)


def test_a_sample_holds_the_features_of_the_file(tmp_path: Path, images: dict[str, Features]) -> None:
    with closing(open_features(write(tmp_path / "feats-disk.h5", images))) as file:
        sample = sample_features(file, TrainOptions(size=10, bits=8))
        some = sample_features(file, TrainOptions(size=10, bits=8, max_descriptors=30))
    everything = np.concatenate([images[name].descriptors for name in sorted(images)])
    assert np.array_equal(sample.descriptors, everything)
    assert len(some.descriptors) == 30
    vocabulary = train(sample, TrainOptions(size=10, bits=8))
    assert (vocabulary.kind, vocabulary.provenance["photographs"]) == (FeatureKind("disk", samples.DIMENSION), 6)


def test_a_sample_omits_broken_images(tmp_path: Path, images: dict[str, Features]) -> None:
    path = write(tmp_path / "feats-disk.h5", images)
    with h5py.File(path, "a") as file:
        file["a/1.jpg/descriptors"][0, 0] = np.nan
        file["a/4.jpg/descriptors"][0, 0] = np.inf
    add_hloc_image(path, "b.jpg")  # of 256 numbers
    with closing(open_features(path)) as opened:
        sample = sample_features(opened, TrainOptions(size=10, bits=8))
    assert np.array_equal(sample.descriptors, np.concatenate([images[f"a/{n}.jpg"].descriptors for n in (0, 2, 3, 5)]))
    assert [problem.path for problem in sample.problems] == ["a/1.jpg", "a/4.jpg", "b.jpg"]
    assert all(str(path) in problem.reason and "\n" not in problem.reason for problem in sample.problems)
    assert "the sample holds disk" in sample.problems[2].reason


# -- errors


def test_other_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("neither")
    assert "neither a COLMAP database nor" in refuse(
        "index", "--features", tmp_path / "x.txt", "--index", tmp_path / "i.polyvoc"
    )
    assert "cannot be read" in refuse("index", "--features", tmp_path / "absent.db", "--index", tmp_path / "i.polyvoc")
    assert "cannot be read" in refuse("train", "--features", tmp_path / "absent.db", "--out", tmp_path / "words")
    assert not (tmp_path / "i.polyvoc").exists()


def test_folders_and_files_exclude_each_other(tmp_path: Path) -> None:
    path = add_hloc_image(tmp_path / HLOC_FILE)
    assert "replaces folders" in refuse("index", tmp_path, "--features", path)
    assert "nothing to read" in refuse("index")
    assert "nothing to read" in refuse("train", "--out", tmp_path / "words")
    assert "--feature-kind is for use with --features" in refuse("index", tmp_path, "--feature-kind", "sift")
    assert "--long-side is for use without --features" in refuse("index", "--features", path, "--long-side", 500)
    assert "--binary is for use with --features" in refuse("train", tmp_path, "--binary", "--out", tmp_path / "words")


def test_a_folder_without_the_photographs_raises(tmp_path: Path, words: list[object], images: dict[str, Features]) -> None:
    path, index = write(tmp_path / "feats-sift.h5", images), tmp_path / "x.polyvoc"
    assert "holds no photograph that" in refuse("index", "--features", path, "--images", tmp_path, "--index", index, *words)
    assert "does not exist" in refuse("index", "--features", path, "--images", tmp_path / "no", "--index", index, *words)
    assert not index.exists()
