"""COLMAP databases: what pycolmap writes is read, in the conventions of polyvoc; an error is one line."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feature_samples import COLMAP_NAMES, LEFT, RIGHT, colmap_database, colmap_photographs
from polyvoc.errors import ExchangeError, LockedError, OptionError
from polyvoc.features.colmap import ColmapFeatures, match_pairs, quiet, read_pairs, write_pairs
from polyvoc.features.extract import extract
from polyvoc.options import FeatureOptions
from polyvoc.types import Features

import pycolmap  # isort: skip - after Pillow: see examples/reconstruct.py

__all__ = ["colmap_photographs"]


@pytest.fixture(scope="module")
def database(colmap_photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colmap_database(colmap_photographs, tmp_path_factory.mktemp("colmap") / "database.db")


def read(path: Path, kind: str | None = None) -> dict[str, Features | ExchangeError]:
    with closing(ColmapFeatures(path, kind)) as found:
        return dict(found.read())


def read_all(path: Path, kind: str | None = None) -> dict[str, Features]:
    found = read(path, kind)
    assert all(isinstance(one, Features) for one in found.values()), found
    return found  # type: ignore[return-value]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[Path, pycolmap.Database, int]]:
    """A database of one image without features, open for writing."""
    path = tmp_path / "written.db"
    opened = pycolmap.Database.open(path)
    camera = opened.write_camera(
        pycolmap.Camera.create_from_model_id(0, pycolmap.CameraModelId.SIMPLE_PINHOLE, 500.0, 640, 480)
    )
    image = opened.write_image(pycolmap.Image(name="a/b.jpg", camera_id=camera))
    yield path, opened, image
    opened.close()


# -- conventions


def test_features_agree_with_those_of_opencv(database: Path, colmap_photographs: Path) -> None:
    for name, theirs in read_all(database).items():
        ours = extract(colmap_photographs / name, FeatureOptions(max_features=3000))
        assert (theirs.width, theirs.height, theirs.name) == (ours.width, ours.height, "sift")
        apart = np.linalg.norm(theirs.xy[:, None] - ours.xy, axis=2)
        turned = (theirs.angle[:, None] - ours.angle + 180) % 360 - 180
        ratio = theirs.scale[:, None] / ours.scale
        a, b = np.nonzero((apart < 1) & (np.abs(turned) < 10) & (ratio > 0.8) & (ratio < 1.25))
        assert len(a) > 0.25 * len(theirs)
        # Features that both found: half a pixel, a factor of two or other bins would show.
        assert np.abs(np.median(theirs.xy[a] - ours.xy[b], axis=0)).max() < 0.05
        assert np.median(ratio[a, b]) == pytest.approx(1, abs=0.02)
        assert np.median(turned[a, b]) == pytest.approx(0, abs=1)
        assert np.median((theirs.descriptors[a] * ours.descriptors[b]).sum(axis=1)) > 0.98


def test_plain_sift_is_recognised(database: Path, colmap_photographs: Path, tmp_path: Path) -> None:
    plain = read_all(colmap_database(colmap_photographs, tmp_path / "plain.db", "L2"))
    for name, root in read_all(database).items():
        assert np.linalg.norm(plain[name].descriptors, axis=1) == pytest.approx(1, abs=1e-5)
        assert np.linalg.norm(root.descriptors, axis=1) == pytest.approx(1, abs=1e-5)
        places = {tuple(xy): row for row, xy in enumerate(np.column_stack([root.xy, root.angle]))}
        same = [(row, places[key]) for row, key in enumerate(map(tuple, np.column_stack([plain[name].xy, plain[name].angle])))]
        a, b = np.array(same).T
        # Bytes of plain SIFT are coarser where values are small, whose roots are not.
        assert np.median((plain[name].descriptors[a] * root.descriptors[b]).sum(axis=1)) > 0.99


@pytest.mark.parametrize("columns", [2, 4, 6])
def test_what_pycolmap_writes_is_read(written: tuple[Path, pycolmap.Database, int], columns: int) -> None:
    path, opened, image = written
    rng = np.random.default_rng(columns)
    xy, scale, angle = rng.random((9, 2)) * 400, rng.random(9) * 5 + 1, rng.random(9) * 2 * np.pi
    matrix = np.stack([scale * np.cos(angle), -scale * np.sin(angle), scale * np.sin(angle), scale * np.cos(angle)], axis=1)
    shapes = {2: np.empty((9, 0)), 4: np.column_stack([scale, angle]), 6: matrix}
    opened.write_keypoints(image, np.hstack([xy, shapes[columns]]).astype(np.float32))
    numbers = rng.normal(size=(9, 128)).astype(np.float32)
    aliked = pycolmap.FeatureDescriptorsFloat(pycolmap.FeatureExtractorType.ALIKED_N32, numbers)
    opened.write_descriptors(image, pycolmap.FeatureDescriptors.from_float(aliked))
    found = read_all(path)["a/b.jpg"]  # while COLMAP has it open
    assert np.array_equal(found.descriptors, numbers)
    assert found.xy == pytest.approx(xy - 0.5, abs=1e-4)
    assert found.scale == pytest.approx(2 * scale if columns > 2 else 1, rel=1e-5)
    assert found.angle == pytest.approx(np.degrees(angle) if columns > 2 else 0, abs=1e-3)
    assert (found.width, found.height, found.name) == (640, 480, "aliked-n32")
    assert read_all(path, "mine")["a/b.jpg"].name == "mine"


def test_a_database_of_colmap_3_has_no_types(database: Path, tmp_path: Path) -> None:
    old = _copy(database, tmp_path / "old.db")
    _change(old, "ALTER TABLE descriptors DROP COLUMN type")
    for name, found in read_all(database).items():
        assert np.array_equal(found.descriptors, read_all(old)[name].descriptors)


def test_nothing_is_written(database: Path) -> None:
    before = database.read_bytes()
    assert [name for name, _ in ColmapFeatures(database).read()] == ColmapFeatures(database).names()
    assert sorted(ColmapFeatures(database).names()) == sorted(COLMAP_NAMES)
    assert database.read_bytes() == before


def test_a_locked_database_raises(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.storage.sqlite.BUSY_SECONDS", 0.05)
    path = _copy(database, tmp_path / "locked.db")
    _change(path, "PRAGMA journal_mode = DELETE")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LockedError, match="locked by another process"):
            ColmapFeatures(path)


def test_the_journal_is_read(database: Path, tmp_path: Path) -> None:
    path = _copy(database, tmp_path / "journal.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("UPDATE images SET name = 'new.jpg' WHERE image_id = 1")
        assert ColmapFeatures(path).names()[0] == "new.jpg"


# -- damage


def _copy(database: Path, to: Path) -> Path:
    shutil.copy(database, to)
    return to


def _change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        for statement in statements:
            opened.execute(statement)


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("DELETE FROM descriptors WHERE image_id = 1", "no descriptors"),
        ("DELETE FROM keypoints WHERE image_id = 1", "no keypoints"),
        ("UPDATE keypoints SET data = substr(data, 2) WHERE image_id = 1", "bytes, not"),
        ("UPDATE descriptors SET rows = 1 << 40 WHERE image_id = 1", "bytes, not"),
        ("UPDATE descriptors SET rows = -1, data = NULL WHERE image_id = 1", "damaged"),
        ("UPDATE keypoints SET rows = 'x' WHERE image_id = 1", "damaged"),
        ("UPDATE keypoints SET cols = 3, rows = 2 * rows WHERE image_id = 1", "not 2, 4 or 6"),
        ("UPDATE keypoints SET cols = 2, rows = 3 * rows WHERE image_id = 1", "keypoints but"),
        ("UPDATE descriptors SET type = 77 WHERE image_id = 1", "unknown type 77"),
        ("UPDATE images SET camera_id = 99 WHERE image_id = 1", "no size"),
        ("UPDATE cameras SET width = 0", "no size"),
    ],
)
def test_a_damaged_image_is_reported_among_the_others(database: Path, tmp_path: Path, statement: str, wrong: str) -> None:
    path = _copy(database, tmp_path / "damaged.db")
    _change(path, statement)
    found = list(read(path).values())
    assert isinstance(found[0], ExchangeError) and len(str(found[0]).splitlines()) == 1
    assert wrong in str(found[0]) and str(path) in str(found[0])
    if "WHERE" in statement:
        assert all(isinstance(one, Features) for one in found[1:])


def test_other_databases_raise(database: Path, tmp_path: Path) -> None:
    _change(tmp_path / "foreign.db", "CREATE TABLE images (id INTEGER)")
    _change(_copy(database, tmp_path / "lacking.db"), "DROP TABLE keypoints")
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked at by SQLite")
    lines = {"foreign": "not a COLMAP database", "lacking": "no table 'keypoints'", "text": r"text\.db"}
    for name, line in {**lines, "absent": "does not exist"}.items():
        with pytest.raises(ExchangeError, match=line):
            ColmapFeatures(tmp_path / f"{name}.db")


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=30))
def test_damage_anywhere_is_one_line(database: Path, tmp_path: Path, cut: float, flips: list[tuple[float, int]]) -> None:
    stored = bytearray(database.read_bytes())
    for place, value in flips:
        stored[int(place * (len(stored) if len(flips) % 2 else 8192))] = value  # anywhere, or in the table of contents
    path = tmp_path / "hurt.db"
    path.write_bytes(bytes(stored[: int(len(stored) * (1 if flips else cut))]))
    for suffix in ("wal", "shm"):
        path.with_name(f"hurt.db-{suffix}").unlink(missing_ok=True)
    try:
        for _, one in read(path).items():
            assert isinstance(one, Features) or len(str(one).splitlines()) == 1
    except (ExchangeError, LockedError) as error:
        assert len(str(error).splitlines()) == 1


# -- pairs


def test_colmap_matches_the_given_pairs(database: Path, tmp_path: Path) -> None:
    path = _copy(database, tmp_path / "matched.db")
    assert match_pairs(path, [(LEFT, RIGHT), (LEFT, "chelsea.jpg")]) == 1
    opened = pycolmap.Database.open(path)
    ids = {image.name: image.image_id for image in opened.read_all_images()}
    geometry = opened.read_two_view_geometry(ids[LEFT], ids[RIGHT])
    camera = opened.read_all_cameras()[0]
    places = [opened.read_keypoints(ids[name])[:, :2].astype(np.float64) for name in (LEFT, RIGHT)]
    assert not opened.exists_matches(ids[RIGHT], ids["chelsea.jpg"])
    opened.close()
    # Two views of a real scene: the second camera is to the right of the first, with the same direction.
    assert len(geometry.inlier_matches) > 200
    with quiet(pycolmap):
        assert pycolmap.estimate_two_view_geometry_pose(camera, places[0], camera, places[1], geometry)
    moved = geometry.cam2_from_cam1
    assert moved.translation[0] < -0.97 and np.degrees(moved.rotation.angle()) < 3


def test_pairs_that_cannot_be_matched(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExchangeError, match=r"has no image none\.jpg"):
        match_pairs(database, [(LEFT, "none.jpg")])
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(OptionError, match=r"pip install 'polyvoc\[colmap\]'"):
        match_pairs(database, [(LEFT, RIGHT)])
    assert len(read_all(database)) == len(COLMAP_NAMES)  # reading does not need it


NAME = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8).map(lambda name: "n" + name)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(NAME, NAME)))
def test_lists_of_pairs_are_read_back(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    assert write_pairs(tmp_path / "pairs.txt", pairs) == len(pairs)
    assert read_pairs(tmp_path / "pairs.txt") == pairs


def test_pairs_that_could_not_be_read_back_raise(tmp_path: Path) -> None:
    for name in ("two words", "", "#1.jpg", "a\nb"):
        with pytest.raises(OptionError, match="cannot be in a list of pairs"):
            write_pairs(tmp_path / "pairs.txt", [("a", name)])
    assert not (tmp_path / "pairs.txt").exists()
    (tmp_path / "three.txt").write_text("# pairs\n\na b\na b c\n")
    for name, line in (("three", "line 4 holds 3 names"), ("absent", "cannot be read")):
        with pytest.raises(ExchangeError, match=line):
            read_pairs(tmp_path / f"{name}.txt")
