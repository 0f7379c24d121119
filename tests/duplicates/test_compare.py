"""Which images are compared, what the index stores of it, and mirrored features. For the pairs found see test_duplicates.py."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from polyvoc.duplicates.compare import (
    EVIDENCE_VERSION,
    MIRROR_ORDER,
    PAIR,
    PairTask,
    can_mirror,
    check_pairs,
    compare,
    list_tasks,
    mirror_features,
    mirror_transform,
    pending_tasks,
    read_pairs,
)
from polyvoc.duplicates.overlap import apply
from polyvoc.errors import OptionError
from polyvoc.features.extract import detect, extract
from polyvoc.index.folder import DUPLICATE_PAIRS
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.types import Features, GreyImage
from samples import build, coded, features, photograph, vocabularies

SIFT = 128  # numbers of a descriptor


@pytest.fixture(params=["codes", "words"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    images = {f"image {number}": features(number, 0 if number == 6 else 8 + number, SIFT) for number in range(8)}
    made_with = coded(dimension=SIFT) if request.param == "codes" else vocabularies(dimension=SIFT)
    build(tmp_path / "index", images, made_with).close()
    return tmp_path / "index"


@pytest.mark.parametrize(
    ("compared", "mirror_compared", "tasks"),
    [
        (0, 0, [(1, True, True), (2, True, True), (3, True, True)]),
        (0, None, [(1, True, False), (2, True, False), (3, True, False)]),
        (1, 1, [(2, True, True), (3, True, True)]),
        (3, 1, [(2, False, True), (3, False, True)]),
        (2, None, [(3, True, False)]),
        (3, 3, []),
    ],
)
def test_each_image_is_compared_once(compared: int, mirror_compared: int | None, tasks: list[tuple[int, bool, bool]]) -> None:
    assert list_tasks([1, 2, 3], compared, mirror_compared) == [PairTask(*task) for task in tasks]


def test_images_without_files_are_compared_without_mirrors(index: Path) -> None:
    """External features have no file to read again: one problem each, and no second attempt."""
    with IndexWriter.open(index) as writer:
        assert compare(writer, mirror=False) == []
        before = writer.folder.side_file(DUPLICATE_PAIRS)
        assert read_pairs(writer.folder)[1:] == (8, 0)
        compare(writer, mirror=False)
        assert writer.folder.side_file(DUPLICATE_PAIRS) == before, "nothing new, nothing saved"
        problems = compare(writer)
        assert read_pairs(writer.folder)[1:] == (8, 8)
    assert [problem.path for problem in problems] == [f"image {number}" for number in range(8)]
    assert all("no such file" in problem.reason for problem in problems)
    with Index.open(index) as opened:
        assert pending_tasks(opened) == []
    assert len(list((index / "duplicate_pairs").iterdir())) == 1, "old files are deleted"


def test_only_sift_is_mirrored(index: Path) -> None:
    with IndexWriter.open(index) as writer:
        with writer.catalogue.transaction():
            writer.catalogue.put_settings({"kind": {"name": "orb", "dimension": 256, "binary": True}})
        with Index.open(index) as opened:
            assert not can_mirror(opened)
        assert compare(writer) == []
    other = features(1)
    superpoint = Features(other.xy, other.scale, other.angle, np.zeros((len(other), SIFT)), 100, 100, name="superpoint")
    for wrong, name in ((other, r"sift \(12 numbers\)"), (superpoint, "superpoint")):
        with pytest.raises(OptionError, match=f"{name}.* cannot be mirrored.*--no-mirror"):
            mirror_features(wrong)


def test_unreadable_store_is_a_problem_of_each_image(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OptionError("s3://bucket/a.jpg needs s3fs")

    monkeypatch.setattr(Index, "features", fail)
    with IndexWriter.open(index) as writer:
        assert [problem.reason for problem in compare(writer)] == ["s3://bucket/a.jpg needs s3fs"] * 8


def test_damaged_pairs_are_reported(index: Path) -> None:
    pairs = np.zeros(1, PAIR)
    pairs["later"], pairs["earlier"], pairs["evidence"] = 2, 1, 5
    compared = {"compared": 2, "mirror_compared": 0}
    version = {"evidence": EVIDENCE_VERSION}
    with IndexWriter.open(index) as writer:
        for valid in (pairs, pairs[:0]):
            writer.save_side_file(DUPLICATE_PAIRS, valid, compared | version)
            assert list(check_pairs(writer.folder)) == []
        for name, value in (("later", 1), ("transform", np.nan), ("evidence", 0), ("compared", -1)):
            wrong = pairs.copy()
            if name in compared:
                compared[name] = value
            else:
                wrong[name] = value
            writer.save_side_file(DUPLICATE_PAIRS, wrong, compared | version)
            assert len(list(check_pairs(writer.folder))) == 1, name


def test_pairs_of_an_older_polyvoc_are_compared_again(index: Path) -> None:
    with IndexWriter.open(index) as writer:
        old = np.zeros(3, [("later", np.int64), ("earlier", np.int64), ("evidence", np.float32, (11,))])
        writer.save_side_file(DUPLICATE_PAIRS, old, {"compared": 8, "mirror_compared": 8})
        assert list(check_pairs(writer.folder)) == [] and read_pairs(writer.folder)[1:] == (0, 0)
        compare(writer, mirror=False)
        assert read_pairs(writer.folder)[1:] == (8, 0)
        assert writer.folder.map_side_file(writer.folder.side_file(DUPLICATE_PAIRS), PAIR).dtype == PAIR


# -- mirrored features are those of the mirrored image, as OpenCV finds them


def noise(seed: int) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (151, 200), np.uint8)
    return cv2.normalize(cv2.GaussianBlur(pixels, (0, 0), 2.0), None, 0, 255, cv2.NORM_MINMAX)


def test_descriptors_are_those_of_the_mirrored_pixels() -> None:
    """OpenCV describes the same keypoints of mirrored pixels by the permuted numbers, but for rounding at the edges of bins."""
    pixels = noise(0)
    sift = cv2.SIFT.create(enable_precise_upscale=True)
    keypoints, descriptors = sift.detectAndCompute(pixels, None)
    width = pixels.shape[1]
    mirrored = [
        cv2.KeyPoint(width - 1 - p.pt[0], p.pt[1], p.size, (180 - p.angle) % 360, p.response, p.octave, p.class_id)
        for p in keypoints
    ]
    _, again = sift.compute(np.ascontiguousarray(pixels[:, ::-1]), mirrored)
    differences = np.abs(descriptors[:, MIRROR_ORDER] - again).max(axis=1)
    assert len(differences) > 100
    assert (differences <= 1).mean() > 0.5
    assert np.median(np.abs(descriptors - again).max(axis=1)) > 50


def test_extraction_of_mirrored_pixels_gives_mirrored_features() -> None:
    pixels = noise(1)
    height, width = pixels.shape
    options = FeatureOptions(max_features=500, long_side=width)  # enlarged, the octaves of both would sample other pixels
    plain = mirror_features(detect(GreyImage(pixels, width, height), options))
    other = detect(GreyImage(np.ascontiguousarray(pixels[:, ::-1]), width, height), options)
    distance = np.linalg.norm(plain.xy[:, None] - other.xy[None], axis=2)
    rotation = np.abs((plain.angle[:, None] - other.angle[None] + 180) % 360 - 180)
    same = (distance < 0.5) & (rotation < 3)
    assert same.any(axis=1).mean() > 0.9
    difference = np.linalg.norm(plain.descriptors[:, None] - other.descriptors[None], axis=2)
    assert np.median(np.where(same, difference, np.inf).min(axis=1)) < 1e-3


def test_mirroring_twice_changes_nothing_and_agrees_with_its_transform(tmp_path: Path) -> None:
    original = extract(photograph(tmp_path / "a.png", 1))
    mirrored = mirror_features(original)
    np.testing.assert_allclose(apply(mirror_transform(original.width), original.xy), mirrored.xy, atol=1e-3)
    again = mirror_features(mirrored)
    for name in ("xy", "scale", "descriptors", "width", "height"):
        np.testing.assert_allclose(getattr(again, name), getattr(original, name), atol=1e-4)
    np.testing.assert_allclose((again.angle - original.angle + 180) % 360 - 180, 0, atol=1e-3)
