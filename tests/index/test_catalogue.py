"""What was committed is read back, and nothing else; after a writer was killed, the last commit can be read."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from polyvoc.errors import DamagedError, LockedError, NotAnIndexError, VersionError, WriteError
from polyvoc.index.catalogue import FILE, UNFINISHED, Catalogue, ImageRow, SegmentRow, SegmentSize
from polyvoc.storage.folders import FileState, is_below
from polyvoc.types import Problem
from processes import as_nobody, in_child, is_root
from samples import unflushed

__all__ = ["unflushed"]

SETTINGS = {"sizes": [3, 4], "text": 'ä "quoted"'}
ODD_PATHS = ("a.jpg", "dir/ü.jpg", os.fsdecode(b"/x/\xff\xfe.jpg"), "new\nline", "", "'; DROP TABLE images; --")


def row(image: int, path: str, segment: int = 1, position: int | None = None) -> ImageRow:
    state = FileState(100 + image, 1_700_000_000_000_000_000 + image)
    return ImageRow(image, path, state, f"{image:032x}", 640, 480, image, segment, image if position is None else position)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    """One segment of six images with odd names, one of them deleted."""
    made = Catalogue.create(tmp_path, SETTINGS)
    with made.transaction():
        made.add_segment(1, SegmentRow(7, 21, "abc"))
        made.add_images([row(image, path) for image, path in enumerate((*ODD_PATHS, "gone"))])
        made.delete_images([6])
    return made


# --- rows -------------------------------------------------------------------------------------------------------


def test_settings_come_back(catalogue: Catalogue) -> None:
    assert {name: catalogue.setting(name) for name in SETTINGS} == SETTINGS
    assert (catalogue.setting("commit"), catalogue.setting("norms", required=False)) == (0, None)
    with catalogue.transaction():
        catalogue.put_settings({"text": [1, None]})
        catalogue.count_commit()
    assert (catalogue.setting("text"), catalogue.setting("commit")) == ([1, None], 1)
    with pytest.raises(DamagedError, match="'nothing' is missing"):
        catalogue.setting("nothing")


def test_images_come_back(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [row(image, path) for image, path in enumerate(ODD_PATHS)]
    assert list(catalogue.images()) == expected == catalogue.images_in(1)
    assert [catalogue.image_at(path) for path in ODD_PATHS] == expected
    assert catalogue.image(3) == expected[3]
    assert catalogue.image(6) is None and catalogue.image_at("gone") is None
    assert catalogue.count_images() == len(ODD_PATHS)
    monkeypatch.setattr("polyvoc.index.catalogue.MAX_PARAMETERS", 2)
    assert catalogue.images_by_id([3, 6, 0, 99, 5]) == {image: expected[image] for image in (3, 0, 5)}


def test_images_are_read_in_pages(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(catalogue.images())
    monkeypatch.setattr("polyvoc.storage.sqlite.PAGE", 2)
    assert list(catalogue.images()) == expected


ROOTS = ("/", "/a", "/a/b", "/a/b/c.jpg", "/a.b", "a", "s3://bucket", "s3://bucket/", "s3://bucket/x", "zip://::/a/z.zip",
         "zip://in::/a/z.zip", "/none", "/a::b", os.fsdecode(b"/x/\xff"))  # fmt: skip
BELOW = ("/a", "/a/b", "/a/b/c.jpg", "/a/b/c.jpg.jpg", "/a/bc.jpg", "/a-b/c.jpg", "/a.b/c.jpg", "/a0.jpg", "/b.jpg", "a", "a/b",
         "ab", "s3://bucket/1.jpg", "s3://bucket/x/1.jpg", "s3://bucket/xy/1.jpg", "s3://bucket2/1.jpg", "zip://1.jpg::/a/z.zip",
         "zip://in/1.jpg::/a/z.zip", "zip://in/1.jpg::/a/other.zip", "/a::b/1.jpg", os.fsdecode(b"/x/\xff/\xfe.jpg"),
         os.fsdecode(b"/x/\xff\xff.jpg"), "/ä/1.jpg")  # fmt: skip


def test_images_below_a_folder_are_those_of_all(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    with catalogue.transaction():
        catalogue.add_segment(2, SegmentRow(len(BELOW), 0, "def"))
        catalogue.add_images([row(100 + number, path, 2, number) for number, path in enumerate(BELOW)])
    monkeypatch.setattr("polyvoc.storage.sqlite.PAGE", 3)
    for root in ROOTS:
        expected = {one.path for one in catalogue.images() if is_below(one.path, [root])}
        found = [one.path for one in catalogue.images_below([root])]
        assert len(found) == len(set(found)) and set(found) == expected, root
    assert {one.path for one in catalogue.images_below(["/a", "s3://bucket"])} >= {"/a/b", "s3://bucket/1.jpg"}
    assert list(catalogue.images_below([])) == []


def test_numbers_are_never_used_twice(catalogue: Catalogue) -> None:
    assert (catalogue.next_image(), catalogue.next_segment()) == (7, 2)
    with catalogue.transaction():
        catalogue.delete_images(range(6))
        catalogue.drop_segments([1])
    assert (catalogue.next_image(), catalogue.next_segment()) == (7, 2)


def test_deleting_and_moving(catalogue: Catalogue) -> None:
    assert catalogue.deleted(1) == [6]
    with catalogue.transaction():
        catalogue.delete_images([2, 0])
    assert catalogue.deleted(1) == [0, 2, 6]
    assert catalogue.segment_sizes() == [SegmentSize(1, 7, 21, 3)]
    with catalogue.transaction():
        catalogue.add_segment(2, SegmentRow(4, 9, "def"))
        catalogue.move_images([5, 1, 3, 4], 2)
        catalogue.drop_segments([1])
    assert [(r.image, r.position) for r in catalogue.images_in(2)] == [(5, 0), (1, 1), (3, 2), (4, 3)]
    assert catalogue.segments() == [2] and catalogue.segment(1) is None
    assert catalogue.segment(2) == SegmentRow(4, 9, "def")
    assert list(catalogue.errors()) == []


def test_a_touched_image_keeps_the_rest(catalogue: Catalogue) -> None:
    before = catalogue.image(1)
    assert before is not None
    with catalogue.transaction():
        catalogue.touch(before, FileState(1, 2))
    after = catalogue.image(1)
    assert after is not None and after.state == FileState(1, 2)
    assert (after.path, after.digest, after.position) == (before.path, before.digest, before.position)
    assert list(catalogue.errors()) == []


def test_problems_come_back(catalogue: Catalogue) -> None:
    problems = [(FileState(1, 2), Problem(path, "broken: ä")) for path in ODD_PATHS]
    with catalogue.transaction():
        catalogue.put_problems(problems)
        catalogue.put_problems(problems[:1])
        catalogue.drop_problems([ODD_PATHS[1], "unknown"])
    assert catalogue.problems() == {
        problem.path: (state, problem) for state, problem in problems if problem.path != ODD_PATHS[1]
    }
    assert list(catalogue.errors()) == []


# --- transactions -----------------------------------------------------------------------------------------------


def test_a_transaction_that_fails_leaves_nothing(catalogue: Catalogue) -> None:
    with pytest.raises(KeyboardInterrupt), catalogue.transaction():
        catalogue.delete_images([1])
        catalogue.put_settings({"text": "other"})
        raise KeyboardInterrupt
    assert catalogue.setting("text") == SETTINGS["text"] and catalogue.image(1) is not None
    with pytest.raises(DamagedError, match="UNIQUE"), catalogue.transaction():
        catalogue.delete_images([1])
        catalogue.add_images([row(9, ODD_PATHS[2], position=3)])
    assert catalogue.image(1) is not None
    with pytest.raises(DamagedError, match="FOREIGN KEY"), catalogue.transaction():
        catalogue.drop_segments([1])
    assert catalogue.segments() == [1]


def test_a_reader_sees_only_commits(catalogue: Catalogue, tmp_path: Path) -> None:
    reader = Catalogue.open(tmp_path)
    with catalogue.transaction():
        catalogue.put_settings({"text": "new"})
        assert reader.setting("text") == SETTINGS["text"]
    assert reader.setting("text") == "new"
    with pytest.raises(WriteError, match="no permission"), reader.transaction():
        reader.put_settings({"text": "never"})


def test_a_snapshot_is_one_commit(catalogue: Catalogue, tmp_path: Path) -> None:
    reader = Catalogue.open(tmp_path)

    def write() -> None:
        other = Catalogue.open(tmp_path, writable=True)
        with other.transaction():
            other.put_settings({"text": "new"})

    with reader.snapshot():
        writer = threading.Thread(target=write)
        writer.start()
        writer.join(0.3)  # it waits for the reader
        assert reader.setting("text") == SETTINGS["text"]
    writer.join()
    assert reader.setting("text") == "new"


def test_threads_may_share_a_reader(catalogue: Catalogue, tmp_path: Path) -> None:
    reader = Catalogue.open(tmp_path)
    wrong: list[object] = []

    def read(number: int) -> None:
        for step in range(200):
            image = (number + step) % len(ODD_PATHS)
            found = reader.image(image)
            if found is None or found.path != ODD_PATHS[image]:
                wrong.append((image, found))

    threads = [threading.Thread(target=read, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_locked_catalogue_raises(catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.storage.sqlite.BUSY_SECONDS", 0.01)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LockedError, match="another process"):
        Catalogue.open(tmp_path)
    other.close()
    Catalogue.open(tmp_path)


# --- opening ----------------------------------------------------------------------------------------------------


def other_database(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda path: path.parent.rmdir(), NotAnIndexError, "does not exist"),
        (lambda path: None, NotAnIndexError, f"has no {FILE}"),
        (lambda path: path.write_bytes(b""), NotAnIndexError, "is not the catalogue"),
        (other_database, NotAnIndexError, "is not the catalogue"),
        (lambda path: path.write_bytes(b"some text, longer than the header" * 100), DamagedError, "not a database"),
    ],
)
def test_anything_but_a_catalogue_raises(
    tmp_path: Path, make: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    (tmp_path / "index").mkdir()
    make(tmp_path / "index" / FILE)
    with pytest.raises(error, match=message):
        Catalogue.open(tmp_path / "index")


@pytest.mark.parametrize(
    "sql, error, message",
    [
        ("PRAGMA user_version = 4", VersionError, "format 4, this polyvoc reads up to 3: upgrade"),
        ("PRAGMA user_version = 2", VersionError, "format 2, made by an older polyvoc; index the photographs again"),
        ("PRAGMA user_version = 0", DamagedError, "tables"),
        ("PRAGMA user_version = -1", DamagedError, "tables"),
        ("ALTER TABLE deleted RENAME TO dropped", DamagedError, "tables"),
    ],
)
def test_another_format_raises(catalogue: Catalogue, tmp_path: Path, sql: str, error: type[Exception], message: str) -> None:
    sqlite3.connect(tmp_path / FILE).execute(sql).connection.close()
    with pytest.raises(error, match=message):
        Catalogue.open(tmp_path)


def test_a_folder_that_does_not_exist_raises(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot be written"):
        Catalogue.create(tmp_path / "nowhere", SETTINGS)


def test_odd_folder_names(tmp_path: Path) -> None:
    for name in (os.fsdecode(b"\xff\xfe"), "a?mode=rwc", "100%", "#1", "ü ö", "a\nb"):
        folder = tmp_path / name
        folder.mkdir()
        Catalogue.create(folder, SETTINGS).close()
        assert Catalogue.open(folder).setting("sizes") == SETTINGS["sizes"]
        assert [entry.name for entry in folder.iterdir()] == [FILE]


# --- killed writers ---------------------------------------------------------------------------------------------


def kill_in_commit(folder: Path) -> None:
    """Leave a half-written transaction, as a writer does that is killed in its commit."""

    def work() -> None:
        writer = sqlite3.connect(folder / FILE, isolation_level=None)
        writer.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE images SET path = path || zeroblob(3000)")
        writer.execute("UPDATE settings SET value = '\"half\"' WHERE name = 'text'")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    assert (folder / f"{FILE}-journal").stat().st_size > 0


@pytest.mark.parametrize("writable", [False, True])
def test_a_hot_journal_is_undone_when_opened(catalogue: Catalogue, tmp_path: Path, writable: bool) -> None:
    catalogue.close()
    kill_in_commit(tmp_path)
    opened = Catalogue.open(tmp_path, writable)
    assert [r.path for r in opened.images()] == list(ODD_PATHS)
    assert opened.setting("text") == SETTINGS["text"] and list(opened.errors()) == []
    assert not (tmp_path / f"{FILE}-journal").exists()


def test_a_hot_journal_is_undone_by_an_open_reader(catalogue: Catalogue, tmp_path: Path) -> None:
    reader = Catalogue.open(tmp_path)
    assert reader.setting("text") == SETTINGS["text"]
    kill_in_commit(tmp_path)
    assert [r.path for r in reader.images()] == list(ODD_PATHS)
    kill_in_commit(tmp_path)
    with reader.snapshot():
        assert reader.setting("text") == SETTINGS["text"]


@pytest.mark.skipif(not is_root(), reason="only root can become another user")
def test_a_hot_journal_that_cannot_be_undone_raises(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.close()
    kill_in_commit(tmp_path)

    def read() -> None:
        with pytest.raises(WriteError, match="killed in its commit") as caught:
            Catalogue.open(tmp_path)
        assert "\n" not in str(caught.value)

    for mode in (0o644, 0o666):  # the file itself may be writable where the folder is not
        (tmp_path / FILE).chmod(mode)
        assert as_nobody(tmp_path, read) == 0
    assert Catalogue.open(tmp_path).setting("text") == SETTINGS["text"]


def test_a_creation_killed_half_way_is_continued(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).write_bytes(b"half a database")
    (tmp_path / f"{UNFINISHED}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7 half a journal")
    assert Catalogue.create(tmp_path, SETTINGS).setting("sizes") == SETTINGS["sizes"]
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE]


def test_a_copied_file_is_a_catalogue(catalogue: Catalogue, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / FILE, tmp_path / "copy")
    assert list(Catalogue.open(tmp_path / "copy").images()) == list(catalogue.images())
