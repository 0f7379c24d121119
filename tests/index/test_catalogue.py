"""What was committed is read back; what was not, never was; whoever killed a writer, the last commit can be read."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from polyvoc.errors import DamagedError, LockedError, NotAnIndexError, VersionError, WriteError
from polyvoc.index.catalogue import FILE, UNFINISHED, Catalogue, ImageRow, SegmentRow, SegmentSize
from polyvoc.storage.folders import FileState
from polyvoc.types import Problem
from processes import as_nobody, in_child, is_root
from samples import unflushed

__all__ = ["unflushed"]

FACTS = {"sizes": [3, 4], "text": 'ä "quoted"'}
ODD_PATHS = ("a.jpg", "dir/ü.jpg", os.fsdecode(b"/x/\xff\xfe.jpg"), "new\nline", "", "'; DROP TABLE images; --")


def row(image: int, path: str, segment: int = 1, position: int | None = None) -> ImageRow:
    state = FileState(100 + image, 1_700_000_000_000_000_000 + image)
    return ImageRow(image, path, state, f"{image:032x}", 640, 480, image, segment, image if position is None else position)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    """One segment of six images with odd names, one of them deleted."""
    made = Catalogue.create(tmp_path, FACTS)
    with made.transaction():
        made.add_segment(1, SegmentRow(7, 21, "abc"))
        made.add_images([row(image, path) for image, path in enumerate((*ODD_PATHS, "gone"))])
        made.delete_images([6])
    return made


# --- rows -------------------------------------------------------------------------------------------------------


def test_facts_come_back(catalogue: Catalogue) -> None:
    assert {name: catalogue.fact(name) for name in FACTS} == FACTS
    assert (catalogue.fact("commit"), catalogue.fact("norms")) == (0, None)
    with catalogue.transaction():
        catalogue.put_facts({"text": [1, None]})
        catalogue.count_commit()
    assert (catalogue.fact("text"), catalogue.fact("commit")) == ([1, None], 1)
    with pytest.raises(DamagedError, match="'nothing' is missing"):
        catalogue.fact("nothing")


def test_images_come_back(catalogue: Catalogue) -> None:
    expected = [row(image, path) for image, path in enumerate(ODD_PATHS)]
    assert list(catalogue.images()) == expected == catalogue.images_in(1)
    assert [catalogue.image_at(path) for path in ODD_PATHS] == expected
    assert catalogue.image(3) == expected[3]
    assert catalogue.image(6) is None and catalogue.image_at("gone") is None
    assert catalogue.count_images() == len(ODD_PATHS)


def test_images_are_read_in_pages(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(catalogue.images())
    monkeypatch.setattr("polyvoc.storage.sqlite.PAGE", 2)
    assert list(catalogue.images()) == whole


def test_numbers_are_never_given_twice(catalogue: Catalogue) -> None:
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
    assert list(catalogue.damage()) == []


def test_a_touched_image_keeps_the_rest(catalogue: Catalogue) -> None:
    before = catalogue.image(1)
    assert before is not None
    with catalogue.transaction():
        catalogue.touch(before, FileState(1, 2))
    after = catalogue.image(1)
    assert after is not None and after.state == FileState(1, 2)
    assert (after.path, after.digest, after.position) == (before.path, before.digest, before.position)
    assert list(catalogue.damage()) == []


def test_problems_come_back(catalogue: Catalogue) -> None:
    problems = [(FileState(1, 2), Problem(path, "broken: ä")) for path in ODD_PATHS]
    with catalogue.transaction():
        catalogue.put_problems(problems)
        catalogue.put_problems(problems[:1])
        catalogue.drop_problems([ODD_PATHS[1], "unknown"])
    assert catalogue.problems() == {
        problem.path: (state, problem) for state, problem in problems if problem.path != ODD_PATHS[1]
    }
    assert list(catalogue.damage()) == []


# --- transactions -----------------------------------------------------------------------------------------------


def test_a_transaction_that_fails_leaves_nothing(catalogue: Catalogue) -> None:
    with pytest.raises(KeyboardInterrupt), catalogue.transaction():
        catalogue.delete_images([1])
        catalogue.put_facts({"text": "other"})
        raise KeyboardInterrupt
    assert catalogue.fact("text") == FACTS["text"] and catalogue.image(1) is not None
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
        catalogue.put_facts({"text": "new"})
        assert reader.fact("text") == FACTS["text"]
    assert reader.fact("text") == "new"
    with pytest.raises(WriteError, match="no permission"), reader.transaction():
        reader.put_facts({"text": "never"})


def test_a_snapshot_is_one_commit(catalogue: Catalogue, tmp_path: Path) -> None:
    reader = Catalogue.open(tmp_path)

    def write() -> None:
        other = Catalogue.open(tmp_path, writable=True)
        with other.transaction():
            other.put_facts({"text": "new"})

    with reader.snapshot():
        writer = threading.Thread(target=write)
        writer.start()
        writer.join(0.3)  # it waits for the reader
        assert reader.fact("text") == FACTS["text"]
    writer.join()
    assert reader.fact("text") == "new"


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


def test_a_catalogue_kept_locked_is_one_line(catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.storage.sqlite.BUSY_SECONDS", 0.01)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LockedError, match="another process"):
        Catalogue.open(tmp_path)
    other.close()
    Catalogue.open(tmp_path)


# --- opening ----------------------------------------------------------------------------------------------------


def test_what_is_no_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match="does not exist"):
        Catalogue.open(tmp_path / "nowhere")
    with pytest.raises(NotAnIndexError, match=f"has no {FILE}"):
        Catalogue.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(NotAnIndexError, match="is not the catalogue"):
        Catalogue.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"some text, long enough to be more than a header" * 100)
    with pytest.raises(DamagedError, match="not a database"):
        Catalogue.open(tmp_path)
    (tmp_path / FILE).unlink()
    sqlite3.connect(tmp_path / FILE).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(NotAnIndexError, match="is not the catalogue"):
        Catalogue.open(tmp_path)


def test_another_version_is_refused(catalogue: Catalogue, tmp_path: Path) -> None:
    for version, error in ((2, VersionError), (0, DamagedError), (-1, DamagedError)):
        sqlite3.connect(tmp_path / FILE).execute(f"PRAGMA user_version = {version}").connection.close()
        with pytest.raises(error):
            Catalogue.open(tmp_path)


def test_changed_tables_are_refused(catalogue: Catalogue, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / FILE)
    other.execute("ALTER TABLE deleted RENAME TO dropped")
    other.close()
    with pytest.raises(DamagedError, match="tables"):
        Catalogue.open(tmp_path)


def test_a_place_that_cannot_hold_a_catalogue_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot be written"):
        Catalogue.create(tmp_path / "nowhere", FACTS)


def test_odd_folder_names(tmp_path: Path) -> None:
    for name in (os.fsdecode(b"\xff\xfe"), "a?mode=rwc", "100%", "#1", "ü ö", "a\nb"):
        folder = tmp_path / name
        folder.mkdir()
        Catalogue.create(folder, FACTS).close()
        assert Catalogue.open(folder).fact("sizes") == FACTS["sizes"]
        assert [entry.name for entry in folder.iterdir()] == [FILE]


# --- killed writers ---------------------------------------------------------------------------------------------


def kill_in_commit(folder: Path) -> None:
    """Leave a half-written transaction behind, as a writer does that is killed in its commit."""

    def work() -> None:
        writer = sqlite3.connect(folder / FILE, isolation_level=None)
        writer.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE images SET path = path || zeroblob(3000)")
        writer.execute("UPDATE facts SET value = '\"half\"' WHERE name = 'text'")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    assert (folder / f"{FILE}-journal").stat().st_size > 0


def test_a_hot_journal_is_undone_by_a_reader(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.close()
    kill_in_commit(tmp_path)
    reader = Catalogue.open(tmp_path)
    assert [r.path for r in reader.images()] == list(ODD_PATHS)
    assert reader.fact("text") == FACTS["text"]
    assert not (tmp_path / f"{FILE}-journal").exists()


def test_a_hot_journal_is_undone_by_a_reader_that_is_open(catalogue: Catalogue, tmp_path: Path) -> None:
    reader = Catalogue.open(tmp_path)
    assert reader.fact("text") == FACTS["text"]
    kill_in_commit(tmp_path)
    assert [r.path for r in reader.images()] == list(ODD_PATHS)
    kill_in_commit(tmp_path)
    with reader.snapshot():
        assert reader.fact("text") == FACTS["text"]


def test_a_hot_journal_is_undone_by_a_writer(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.close()
    kill_in_commit(tmp_path)
    writer = Catalogue.open(tmp_path, writable=True)
    assert [r.path for r in writer.images()] == list(ODD_PATHS)
    assert list(writer.damage()) == []


@pytest.mark.skipif(not is_root(), reason="only root can become another user")
def test_a_hot_journal_that_may_not_be_undone_is_one_line(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.close()
    kill_in_commit(tmp_path)

    def read() -> None:
        with pytest.raises(WriteError, match="killed in its commit") as caught:
            Catalogue.open(tmp_path)
        assert "\n" not in str(caught.value)

    for mode in (0o644, 0o666):  # the file itself may be writable where the folder is not
        (tmp_path / FILE).chmod(mode)
        assert as_nobody(tmp_path, read) == 0
    assert Catalogue.open(tmp_path).fact("text") == FACTS["text"]


def test_a_creation_killed_half_way_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).write_bytes(b"half a database")
    (tmp_path / f"{UNFINISHED}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7 half a journal")
    assert Catalogue.create(tmp_path, FACTS).fact("sizes") == FACTS["sizes"]
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE]


def test_a_copy_is_a_catalogue(catalogue: Catalogue, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / FILE, tmp_path / "copy")
    assert list(Catalogue.open(tmp_path / "copy").images()) == list(catalogue.images())
