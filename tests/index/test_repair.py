"""A repaired index is sound, keeps all that was not damaged, and is complete again after the next update."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from polyvoc.errors import DamagedError, LockedError
from polyvoc.index.catalogue import FILE
from polyvoc.index.check import check
from polyvoc.index.folder import LINKS, lock_folder
from polyvoc.index.repair import repair
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.search.links import link
from polyvoc.vocabulary.vocabulary import VocabularySet
from samples import build, coded, collection, features, unflushed

__all__ = ["unflushed"]

N = 12


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments, one removed image, links."""
    path = tmp_path_factory.mktemp("healthy") / "healthy.polyvoc"
    build(path, collection(N), coded(2), commits=3).close()
    with IndexWriter.open(path) as writer:
        writer.remove(["image 3"])
    with IndexWriter.open(path) as writer, Index.open(path) as opened:
        link(writer, opened.stored_queries, 5)
    return path


@pytest.fixture
def index(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "index.polyvoc"))


def names(path: Path) -> set[str]:
    with Index.open(path) as opened:
        return {row.path for row in opened.images()}


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def edit(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path / FILE)) as connection, connection:
        connection.execute(sql)


def test_nothing_is_done_to_a_sound_index(index: Path) -> None:
    with Index.open(index) as opened:
        commit = opened.commit
    report = repair(index)
    assert report.lines == [] and report.images == 0 and list(check(index)) == []
    with Index.open(index) as opened:
        assert opened.commit == commit


@pytest.mark.parametrize("name", ["arrays", "meta.json"])
@pytest.mark.parametrize("how", [flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_segment_is_dropped_with_its_images(index: Path, name: str, how: Callable[[Path], None]) -> None:
    before = names(index)
    with Index.open(index) as opened:
        lost = {row.path for row in opened.folder.catalogue.images_in(2)}
    how(index / "segments/000002" / name)
    report = repair(index)
    assert report.images == len(lost) > 0 and any("dropped segment 2" in line for line in report.lines)
    assert list(check(index)) == [] and names(index) == before - lost
    assert not (index / "segments/000002").exists()
    with IndexWriter.open(index) as writer:
        for image in lost:
            writer.add(image, features(int(image.split()[1])))
    assert names(index) == before and list(check(index)) == []


@pytest.mark.parametrize(
    ("sql", "lost"),
    [
        ("UPDATE images SET path = CAST('elsewhere' AS BLOB) WHERE image = 5", 1),
        ("UPDATE images SET n_features = n_features + 1 WHERE image = 5", 1),
        ("UPDATE images SET position = 77 WHERE image = 5", 1),
        ("DELETE FROM images WHERE image = 5", 0),
        ("DELETE FROM deleted", 0),
        ("INSERT OR IGNORE INTO deleted SELECT segment, position FROM images WHERE image = 5", 0),
        ("UPDATE segments SET n_images = 9 WHERE segment = 2", 4),
        ("UPDATE settings SET value = '{}' WHERE name = 'links'", 0),
        ("DELETE FROM settings WHERE name = 'links'", 0),
    ],
)
def test_a_damaged_catalogue_keeps_what_is_sound(index: Path, sql: str, lost: int) -> None:
    before = names(index)
    edit(index, sql)
    report = repair(index)
    assert report.images == lost and list(check(index)) == []
    gone = 1 if sql.startswith("DELETE FROM images") else lost
    assert len(names(index)) == len(before) - gone and names(index) <= before


def test_a_damaged_side_file_is_dropped(index: Path) -> None:
    flip(next((index / LINKS).iterdir()))
    (line,) = repair(index).lines
    assert "dropped" in line and "polyvoc link" in line
    assert list(check(index)) == [] and len(names(index)) == N - 1


def test_a_vocabulary_of_others_cannot_be_restored(index: Path) -> None:
    flip(index / "vocabularies/0/words.npy")
    with pytest.raises(DamagedError, match=r"words\.npy.*restore it"):
        repair(index)


def test_a_shipped_vocabulary_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "index.polyvoc"
    with IndexWriter.open(path, VocabularySet.default()):
        pass
    for name in ("fine", "1"):
        flip(path / "vocabularies" / name / "words.npy")
    (path / "vocabularies/0/meta.json").unlink()
    assert len(repair(path).lines) == 3
    assert list(check(path)) == []


def test_a_lost_catalogue_is_one_line(index: Path) -> None:
    edit(index, "UPDATE settings SET value = '7' WHERE name = 'kind'")
    with pytest.raises(DamagedError, match=r"'kind'.*damaged"):
        repair(index)
    (index / FILE).write_bytes(b"nothing" * 1000)
    with pytest.raises(DamagedError):
        repair(index)


def test_an_index_that_is_written_is_not_repaired(index: Path) -> None:
    lock = lock_folder(index)
    try:
        with pytest.raises(LockedError):
            repair(index)
    finally:
        lock.release()
