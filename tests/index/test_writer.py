"""The index follows the folders, one writer at a time; what was committed stays, whatever goes wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import DamagedError, LockedError, NotAnIndexError, OptionError, PolyvocError, VocabularyError, WriteError
from polyvoc.features.extract import extract as features_extract
from polyvoc.index.build import BuildPlan, SegmentBuilder, read_photographs
from polyvoc.index.catalogue import FILE, UNFINISHED, Catalogue
from polyvoc.index.check import check_index
from polyvoc.index.folder import lock_folder
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.storage.files import checksum
from polyvoc.storage.folders import FileState
from polyvoc.types import Features, IndexReport
from polyvoc.vocabulary.vocabulary import Vocabulary
from processes import in_child
from random_collections import plain
from samples import build, collection, features, photograph, unflushed, vocabularies

__all__ = ["unflushed"]

SMALL = FeatureOptions(long_side=160, max_features=30)


@pytest.fixture(scope="module")
def words() -> list[Vocabulary]:
    """Vocabularies for descriptors of photographs."""
    return vocabularies(2, size=20, dimension=128)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four photographs in two folders."""
    for seed, name in enumerate(("a.png", "b.png", "sub/c.png", "sub/d.png")):
        photograph(tmp_path / "photos" / name, seed)
    return tmp_path / "photos"


@pytest.fixture
def update(folder: Path, words: list[Vocabulary], tmp_path: Path) -> Callable[..., IndexReport]:
    """Bring the index up to date with the folder."""

    def run(*folders: Path, keep_missing: bool = False) -> IndexReport:
        with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
            return opened.update(folders or [folder], keep_missing=keep_missing)

    return run


@pytest.fixture
def index(folder: Path, update: Callable[..., IndexReport], tmp_path: Path) -> Path:
    """An index of the four photographs."""
    assert update().added == 4
    return tmp_path / "index"


def names(index: Path) -> list[str]:
    with Index.open(index) as opened:
        return sorted(Path(row.path).name for row in opened.images())


def states(index: Path) -> dict[str, tuple[str, int]]:
    """Give the content and time of every file; the lock is no content."""
    files = [path for path in index.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): (hashlib.md5(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in files}


def counts(report: IndexReport) -> tuple[int, int, int, int, int]:
    return report.added, report.replaced, report.removed, report.unchanged, len(report.problems)


# --- following folders ------------------------------------------------------------------------------------------


def test_the_first_update_adds_everything(index: Path, folder: Path) -> None:
    assert names(index) == ["a.png", "b.png", "c.png", "d.png"]
    assert list(check_index(index)) == []
    with Index.open(index) as opened:
        for path in folder.rglob("*.png"):
            assert opened.search(path)[0].path == str(path)
        row = next(opened.images())
        assert (row.width, row.height) == (160, 120)
        assert row.n_features == len(features_extract(folder / "a.png", SMALL))
        assert row.digest == checksum(folder / "a.png")


def test_a_second_update_writes_nothing(index: Path, update: Callable[..., IndexReport]) -> None:
    before = states(index)
    assert counts(update()) == (0, 0, 0, 4, 0)
    assert states(index) == before


def test_new_changed_and_vanished_photographs(index: Path, folder: Path, update: Callable[..., IndexReport]) -> None:
    photograph(folder / "new.png", 10)
    photograph(folder / "a.png", 11)
    (folder / "b.png").unlink()
    (folder / "notes.txt").write_text("no photograph")
    assert counts(update()) == (1, 1, 1, 2, 0)
    assert names(index) == ["a.png", "c.png", "d.png", "new.png"]
    with Index.open(index) as opened:
        for path in folder.rglob("*.png"):
            assert opened.search(path)[0].path == str(path)
    assert list(check_index(index)) == []
    assert counts(update()) == (0, 0, 0, 4, 0)


def test_a_moved_photograph(index: Path, folder: Path, update: Callable[..., IndexReport]) -> None:
    (folder / "a.png").rename(folder / "sub/moved.png")
    assert counts(update()) == (1, 0, 1, 3, 0)
    assert names(index) == ["b.png", "c.png", "d.png", "moved.png"]


def test_vanished_photographs_may_be_kept(index: Path, folder: Path, update: Callable[..., IndexReport]) -> None:
    (folder / "a.png").unlink()
    assert counts(update(keep_missing=True)) == (0, 0, 0, 3, 0)
    assert "a.png" in names(index)
    assert counts(update()) == (0, 0, 1, 3, 0)
    assert "a.png" not in names(index)


def test_a_touched_photograph_is_not_read_again(
    index: Path, folder: Path, update: Callable[..., IndexReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(folder / "a.png", ns=(1_000_000_000, 1_000_000_000))
    monkeypatch.setattr("polyvoc.features.extract.extract", lambda *_: pytest.fail("read again"))
    assert counts(update()) == (0, 0, 0, 4, 0)
    before = states(index)
    assert counts(update()) == (0, 0, 0, 4, 0)
    assert states(index) == before and list(check_index(index)) == []


def test_broken_photographs_are_remembered(
    index: Path, folder: Path, update: Callable[..., IndexReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken.png").write_bytes(b"no photograph")
    (folder / "empty.jpg").write_bytes(b"")
    report = update()
    assert counts(report) == (0, 0, 0, 4, 2)
    assert [Path(problem.path).name for problem in report.problems] == ["broken.png", "empty.jpg"]
    before = states(index)
    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.features.extract.extract", lambda *_: pytest.fail("read again"))
        assert counts(update()) == (0, 0, 0, 4, 2)
    assert states(index) == before
    photograph(folder / "broken.png", 12)
    (folder / "empty.jpg").unlink()
    assert counts(update()) == (1, 0, 0, 4, 0)
    with Index.open(index) as opened:
        assert opened.folder.catalogue.problems() == {}
    assert list(check_index(index)) == []


def test_a_photograph_that_breaks_is_dropped(index: Path, folder: Path, update: Callable[..., IndexReport]) -> None:
    (folder / "a.png").write_bytes(b"broken now")
    assert counts(update()) == (0, 0, 0, 3, 1)
    assert names(index) == ["b.png", "c.png", "d.png"]
    photograph(folder / "a.png", 0)
    assert counts(update()) == (1, 0, 0, 3, 0)
    assert list(check_index(index)) == []


def test_an_emptied_folder_is_refused(index: Path, folder: Path, update: Callable[..., IndexReport], tmp_path: Path) -> None:
    photograph(tmp_path / "other/e.png", 20)
    assert update(folder, tmp_path / "other").added == 1
    shutil.move(folder, tmp_path / "unmounted")
    folder.mkdir()
    before = states(index)
    for folders in ((folder,), (tmp_path / "other", folder)):
        with pytest.raises(OptionError, match="is the disk mounted"):
            update(*folders)
    assert states(index) == before
    assert counts(update(folder, keep_missing=True)) == (0, 0, 0, 0, 0)
    shutil.rmtree(folder)
    with pytest.raises(OptionError, match="does not exist"):
        update()
    with IndexWriter.open(index) as opened:
        assert opened.remove([folder]) == 4
    assert names(index) == ["e.png"]


def test_a_photograph_changed_while_it_is_read_is_read_again(
    folder: Path, update: Callable[..., IndexReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    extract = features_extract

    def change_after_reading(path: str, options: FeatureOptions, root: bool) -> Features:
        found = extract(path, options, root)
        if path.endswith("a.png"):
            photograph(Path(path), 30)
            os.utime(path, ns=(5, 5))
        return found

    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.features.extract.extract", change_after_reading)
        assert update().added == 4
    assert counts(update()) == (0, 1, 0, 3, 0)


def test_a_photograph_that_is_gone_while_it_is_read_is_not_remembered(
    index: Path, folder: Path, update: Callable[..., IndexReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be gone for a while: what the index holds from there stays."""
    photograph(folder / "a.png", 10)
    aside, read = folder.with_name("aside"), read_photographs

    def unmounted(*arguments: Any) -> Any:
        folder.rename(aside)
        return read(*arguments)

    monkeypatch.setattr("polyvoc.index.writer.read_photographs", unmounted)
    assert counts(update()) == (0, 0, 0, 3, 1)
    aside.rename(folder)
    monkeypatch.undo()
    assert names(index) == ["a.png", "b.png", "c.png", "d.png"]
    assert counts(update()) == (0, 1, 0, 3, 0)


def test_names_that_are_no_text(index: Path, folder: Path, update: Callable[..., IndexReport]) -> None:
    photograph(folder / os.fsdecode(b"caf\xe9.png"), 40)
    (folder / os.fsdecode(b"broken\xff.png")).write_bytes(b"x")
    report = update()
    assert counts(report) == (1, 0, 0, 4, 1)
    assert "\n" not in report.problems[0].reason
    report.problems[0].reason.encode()
    with Index.open(index) as opened:
        hit = opened.search(folder / os.fsdecode(b"caf\xe9.png"))[0]
    assert os.fsencode(hit.path).endswith(b"caf\xe9.png")
    assert counts(update()) == (0, 0, 0, 5, 1)
    assert list(check_index(index)) == []


def test_progress_is_told(folder: Path, words: list[Vocabulary], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
        opened.update([folder], progress=lambda *values: told.append(values))
    assert told == [("indexing", done, 4) for done in range(1, 5)]


def test_nothing_but_problems(words: list[Vocabulary], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"x")
    for _ in range(2):
        with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
            assert counts(opened.update([tmp_path / "photos"])) == (0, 0, 0, 0, 1)
    with Index.open(tmp_path / "index") as read:
        assert len(read) == 0 and read.search(features(1, 3, dimension=128)) == []
    assert list(check_index(tmp_path / "index")) == []


# --- adding and removing by name --------------------------------------------------------------------------------


def test_adding_the_same_name_replaces(tmp_path: Path) -> None:
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        first = opened.add("a", features(1))
        second = opened.add("a", features(2))  # before any commit
        opened.commit()
        third = opened.add("a", features(3))
        opened.add("b", features(4))
    assert first < second < third
    with Index.open(tmp_path / "index") as index:
        assert [(row.image, row.path) for row in index.images()] == [(third, "a"), (third + 1, "b")]
        assert index.search(features(3))[0].image == third
    assert list(check_index(tmp_path / "index")) == []


def test_what_waits_is_seen_by_an_update(folder: Path, words: list[Vocabulary], tmp_path: Path) -> None:
    with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
        opened.add(str(folder / "a.png"), features(1, dimension=128))
        assert counts(opened.update([folder])) == (3, 1, 0, 0, 0)
    assert names(tmp_path / "index") == ["a.png", "b.png", "c.png", "d.png"]
    assert list(check_index(tmp_path / "index")) == []


def test_removing(index: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with IndexWriter.open(index) as opened:
        with pytest.raises(OptionError, match=r"z\.png is not in the index"):
            opened.remove(["a.png", "z.png"])
        assert opened.remove(["a.png", folder / "a.png"]) == 1
        assert opened.remove(["sub"]) == 2
        opened.add("name", features(1, dimension=128))
        assert opened.remove(["name"]) == 1  # what waits, too
    assert names(index) == ["b.png"]
    assert list(check_index(index)) == []


def test_features_that_would_harm_are_refused(tmp_path: Path) -> None:
    good = features(1)
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        with pytest.raises(OptionError, match=r"holds sift \(12 numbers\), not sift \(7 numbers\)"):
            opened.add("a", features(1, dimension=7))
        bad = Features(good.xy, good.scale, good.angle, good.descriptors * np.float32(np.nan), 1, 1)
        with pytest.raises(OptionError, match="not finite"):
            opened.add("a", bad)
        with pytest.raises(OptionError, match="name"):
            opened.add("\ud800", good)
        opened.add("a", good)
    assert len(Index.open(tmp_path / "index")) == 1


def test_a_commit_never_holds_more_images_than_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.index.writer.COMMIT_IMAGES", 5)
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        for seed in range(12):
            opened.add(str(seed), features(seed, seed % 2))
        assert [size.n_images for size in opened.catalogue.segment_sizes()] == [5, 5]
    assert len(Index.open(tmp_path / "index")) == 12


def test_commits_come_by_time_and_by_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.index.build.QUANTISE_FEATURES", 8)
    monkeypatch.setattr("polyvoc.index.writer.COMMIT_FEATURES", 30)
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        for seed in range(7):
            opened.add(str(seed), features(seed, 10))
        assert [size.n_images for size in opened.catalogue.segment_sizes()] == [3, 3]
        monkeypatch.setattr("polyvoc.index.writer.COMMIT_SECONDS", 0.0)
        opened.add("last", features(9, 1))
        assert [size.n_images for size in opened.catalogue.segment_sizes()] == [3, 3, 2]
    assert list(check_index(tmp_path / "index")) == []


# --- one writer at a time ---------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_at_once(index: Path) -> None:
    def try_to_write() -> None:
        with pytest.raises(LockedError, match="being written by another process") as caught:
            IndexWriter.open(index)
        assert "\n" not in str(caught.value)

    with IndexWriter.open(index):
        started = time.monotonic()
        try_to_write()
        assert in_child(try_to_write) == 0
        assert time.monotonic() - started < 10  # far less than a wait
        assert len(Index.open(index)) == 4  # readers are welcome
    with IndexWriter.open(index):
        pass


def test_a_dead_process_does_not_keep_the_lock(index: Path) -> None:
    def die() -> None:
        IndexWriter.open(index).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    with IndexWriter.open(index) as opened:
        opened.add("a", features(1, dimension=128))
    assert len(Index.open(index)) == 5


def test_an_index_made_meanwhile_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes the index after this one has looked, and before it has the lock."""
    take = lock_folder

    def make_meanwhile(path: Path) -> object:
        monkeypatch.setattr("polyvoc.index.writer.lock_folder", take)
        build(path, collection(3)).close()
        return take(path)

    monkeypatch.setattr("polyvoc.index.writer.lock_folder", make_meanwhile)
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        assert opened.catalogue.count_images() == 3


# --- opening ----------------------------------------------------------------------------------------------------


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    for content in ("file.txt", "vocabularies/0/words.npy", "segments/x", "catalogue.partial.txt"):
        foreign = tmp_path / content.replace("/", "-") / "folder"
        (foreign / content).parent.mkdir(parents=True)
        (foreign / content).write_text("mine")
        with pytest.raises(NotAnIndexError, match="is not a polyvoc index"):
            IndexWriter.open(foreign, vocabularies())
        assert (foreign / content).read_text() == "mine"
        assert [path for path in foreign.rglob("*") if path.is_file()] == [foreign / content]
    with pytest.raises(NotAnIndexError, match="is not a polyvoc index"):
        IndexWriter.open(tmp_path / "file.txt/folder/file.txt", vocabularies())


def test_empty_and_unfinished_folders_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    unfinished = tmp_path / "unfinished"
    for name in ("vocabularies/0", "vocabularies/.1.abc", "segments", "norms"):
        (unfinished / name).mkdir(parents=True)
    for name in (UNFINISHED, f"{UNFINISHED}-journal", "lock", "vocabularies/0/words.npy"):
        (unfinished / name).write_bytes(b"half")
    for path in (tmp_path / "empty", unfinished, tmp_path / "new/deep"):
        with pytest.raises(NotAnIndexError):
            Index.open(path)
        build(path, collection(3)).close()
        assert sorted(entry.name for entry in path.iterdir() if entry.name != "lock") == [
            FILE,
            "norms",
            "segments",
            "vocabularies",
        ]
        assert sorted(entry.name for entry in (path / "vocabularies").iterdir()) == ["0", "1"]
        assert list(check_index(path)) == []


def test_other_vocabularies_or_options_are_refused(index: Path, words: list[Vocabulary]) -> None:
    with pytest.raises(OptionError, match="other vocabularies"):
        IndexWriter.open(index, words[:1])
    with pytest.raises(OptionError, match="max_features=30"):
        IndexWriter.open(index, words, FeatureOptions())
    with IndexWriter.open(index) as opened:
        assert opened.folder.feature_options == SMALL


def test_vocabularies_must_go_together(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="1 to 9 vocabularies, not 10"):
        IndexWriter.open(tmp_path / "index", vocabularies(10))
    with pytest.raises(VocabularyError, match="do not go together"):
        IndexWriter.open(tmp_path / "index", [*vocabularies(1), *vocabularies(1, dimension=20)])


def test_a_damaged_index_is_one_line(index: Path) -> None:
    (index / FILE).write_bytes((index / FILE).read_bytes()[:3000])
    with pytest.raises(PolyvocError) as caught:
        IndexWriter.open(index)
    assert "\n" not in str(caught.value)


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_an_error_keeps_the_last_commit(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        opened.add("a", features(1))
        opened.commit()
        opened.add("b", features(2))
        raise ZeroDivisionError
    assert names(tmp_path / "index") == ["a"]
    assert list(check_index(tmp_path / "index")) == []


def test_an_interrupt_commits_what_waits(
    folder: Path, update: Callable[..., IndexReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(IndexWriter):
        def _add(self, *values: object) -> int:
            if len(self._intake.names) == 2:
                raise KeyboardInterrupt
            return super()._add(*values)  # type: ignore[arg-type]

    with (
        pytest.raises(KeyboardInterrupt),
        Interrupted.open(tmp_path / "index", vocabularies(2, 20, dimension=128), SMALL) as opened,
    ):
        opened.update([folder])
    assert names(tmp_path / "index") == ["a.png", "b.png"]
    assert list(check_index(tmp_path / "index")) == []


def test_a_failed_commit_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        opened.add("a", features(1))
        with monkeypatch.context() as patch:
            patch.setattr(Catalogue, "add_images", lambda *_: pytest.fail("no space"))
            with pytest.raises(pytest.fail.Exception):
                opened.commit()
        assert opened.catalogue.count_images() == 0
        opened.commit()
        assert opened.catalogue.count_images() == 1
    assert list(check_index(tmp_path / "index")) == []


def test_damaged_segments_are_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, collection(7), commits=7).close()
    damaged = path / "segments/000003/xy.npy"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedError, match=r"000003/xy\.npy is damaged"), IndexWriter.open(path) as opened:
        opened.add("more", features(1))
    assert any(str(damaged) in line for line in check_index(path))
    damaged.write_bytes(data)
    assert list(check_index(path)) == [] and "more" in names(path)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        IndexWriter.open(tmp_path / "file/index", vocabularies())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 700 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", disk], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("a small disk can be made by root on Linux only")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_keeps_the_last_commit(small_disk: Path) -> None:
    path = small_disk / "index"
    committed: list[str] = []
    with pytest.raises(WriteError, match="the disk is full") as caught, IndexWriter.open(path, vocabularies()) as opened:
        for seed in range(1000):
            opened.add(str(seed), features(seed, 30))
            opened.commit()
            committed.append(str(seed))
    assert "\n" not in str(caught.value)
    assert len(committed) > 5
    index = Index.open(path)
    found = {row.path for row in index.images()}
    assert found in (set(committed), {*committed, str(len(committed))})  # the last merge may have failed, not its commit
    assert index.search(features(3, 30), options=plain())[0].path == "3"
    assert list(check_index(path)) == []
    index.close()
    with IndexWriter.open(path) as opened:  # makes room
        opened.remove([str(seed) for seed in range(len(committed) - 1)])
        opened.add("new", features(7))
    assert "new" in names(path) and list(check_index(path)) == []


@pytest.mark.parametrize("free", [0, 20, 60, 90, 110, 130])
def test_a_disk_too_small_for_an_index_is_one_line(small_disk: Path, free: int) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (700 - free) * 1024)
    with pytest.raises(PolyvocError) as caught, IndexWriter.open(small_disk / "index", vocabularies()) as opened:
        for seed in range(1000):
            opened.add(str(seed), features(seed, 30))
            opened.commit()
    assert "\n" not in str(caught.value)
    filler.unlink()
    build(small_disk / "index", collection(3), vocabularies()).close()
    assert list(check_index(small_disk / "index")) == []


def test_a_limit_on_file_sizes_keeps_the_last_commit(tmp_path: Path) -> None:
    """Writing fails half way through a file, in segments and in the catalogue alike."""
    path = tmp_path / "index"
    build(path, collection(3)).close()

    def write_much() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        with pytest.raises(WriteError, match="cannot be written") as caught, IndexWriter.open(path) as opened:
            for seed in range(500):
                opened.add(f"{'long name ' * 30}{seed}", features(seed, 2))
                if seed % 20 == 0:
                    opened.commit()
        assert "\n" not in str(caught.value)

    assert in_child(write_much) == 0
    assert list(check_index(path)) == []
    assert {"image 0", "image 1", "image 2"} <= set(names(path))


def test_what_nobody_refers_to_is_swept(index: Path) -> None:
    before = states(index)
    for name in ("segments/000099", "segments/000099.partial", "segments/000001.partial"):
        shutil.copytree(index / "segments/000001", index / name)
    (index / "norms/000099.npy").write_bytes(b"old")
    shutil.copytree(index / "segments/000001", index / "incoming/abc")
    assert list(check_index(index)) == []
    with IndexWriter.open(index):
        assert states(index) == before


def test_locked_by_a_reader_that_never_ends_is_one_line(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.storage.sqlite.BUSY_SECONDS", 0.05)
    reader = sqlite3.connect(index / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM facts").fetchall()
    with pytest.raises(LockedError, match="another process"), IndexWriter.open(index) as opened:
        opened.add("a", features(1, dimension=128))
    reader.close()
    assert list(check_index(index)) == []


# --- workers ----------------------------------------------------------------------------------------------------


class Idle:
    """Workers who look at what they are given, and make nothing."""

    def __init__(self, look: Callable[[SegmentBuilder, BuildPlan], None]) -> None:
        self.look = look

    def work(self, workshop: SegmentBuilder, photographs: BuildPlan, *_: object) -> Generator[Any, None, None]:
        self.look(workshop, photographs)
        yield from ()


def test_workers_find_a_place_for_what_they_make(index: Path, folder: Path) -> None:
    """Made by the writer: over a network it might believe for a while that a folder of others is not there."""
    seen: list[bool] = []
    photograph(folder / "new.png", 10)
    with IndexWriter.open(index) as opened:
        idle = Idle(lambda workshop, photographs: seen.append((workshop.folder.path / "incoming").is_dir()))
        opened.update([folder], workers=idle)
    assert seen == [True] and not (index / "incoming").exists()


def test_workers_are_told_which_photographs_and_one_that_is_well(index: Path, folder: Path) -> None:
    given: list[BuildPlan] = []
    for name in ("new.png", "b.png"):
        photograph(folder / name, 10)
    with IndexWriter.open(index) as opened:
        opened.update([folder], workers=Idle(lambda _, photographs: given.append(photographs)))
    (wanted,) = given
    assert [(one.image, Path(one.path).name) for one in wanted.some(range(2))] == [(5, "new.png"), (6, "b.png")]
    assert len(wanted) == 2 and wanted.known is not None and Path(wanted.known.path).name == "d.png"


def test_millions_of_photographs_take_little_memory_while_workers_work() -> None:
    files = [(str(number), FileState(number, number)) for number in range(100_000)]
    tracemalloc.start()
    wanted = BuildPlan(1, files)
    for first in range(0, len(wanted), 500):
        assert wanted.some(range(first, first + 500))[0].image == first + 1
    assert tracemalloc.get_traced_memory()[1] < 2 * len(files)  # bytes
    tracemalloc.stop()
