"""An index follows its folders, one writer at a time; what was committed stays, whatever fails."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import (
    LockedError,
    NotAnIndexError,
    OptionError,
    PolyvocError,
    UnreachableError,
    VocabularyError,
    WriteError,
)
from polyvoc.features.decode import MAX_PIXELS, Decoders, _Process
from polyvoc.features.extract import extract, extract_pixels
from polyvoc.features.sandbox import Request
from polyvoc.index.build import BuildPlan, CommitLimits, SegmentBuilder
from polyvoc.index.catalogue import FILE, UNFINISHED, Catalogue
from polyvoc.index.changes import FollowedFolder
from polyvoc.index.check import check
from polyvoc.index.commit import Commits
from polyvoc.index.folder import FOLDERS, lock_folder
from polyvoc.index.repair import repair
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.storage.files import checksum
from polyvoc.storage.folders import FileState
from polyvoc.types import Features, GreyImage, IndexReport, Source
from polyvoc.vocabulary.vocabulary import Vocabulary
from processes import in_child
from random_collections import plain
from samples import build, coded, collection, features, photograph, unflushed, vocabularies

__all__ = ["unflushed"]

SMALL = FeatureOptions(long_side=160, max_features=30)
Update = Callable[..., IndexReport]


@pytest.fixture(autouse=True)
def no_errors(tmp_path: Path) -> Iterator[None]:
    """Whatever a test does, its index has no errors in the end."""
    yield
    if (tmp_path / "index" / FILE).exists():
        assert list(check(tmp_path / "index")) == []


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
def update(folder: Path, words: list[Vocabulary], tmp_path: Path) -> Update:
    """Bring the index up to date with the folder."""

    def run(*folders: Path, keep_missing: bool = False) -> IndexReport:
        with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
            return opened.update(folders or [folder], keep_missing=keep_missing)

    return run


@pytest.fixture
def index(folder: Path, update: Update, tmp_path: Path) -> Path:
    """An index of the four photographs."""
    assert update().added == 4
    return tmp_path / "index"


def names(index: Path) -> list[str]:
    with Index.open(index) as opened:
        return sorted(Path(row.path).name for row in opened.images())


def states(index: Path) -> dict[str, tuple[str, int]]:
    """Return the content and time of every file but the lock."""
    files = [path for path in index.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): (hashlib.md5(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in files}


def followed(index: Path) -> dict[str, bool]:
    """Return the folders that an index follows, and whether each was there."""
    with Index.open(index) as opened:
        return {one.path: one.available for one in FollowedFolder.all_of(opened.folder.catalogue.settings().get(FOLDERS))}


def counts(report: IndexReport) -> tuple[int, int, int, int, int]:
    return report.added, report.replaced, report.removed, report.unchanged, len(report.problems)


# --- following folders ------------------------------------------------------------------------------------------


def test_the_first_update_adds_everything(index: Path, folder: Path) -> None:
    assert names(index) == ["a.png", "b.png", "c.png", "d.png"]
    with Index.open(index) as opened:
        for path in folder.rglob("*.png"):
            assert opened.search(path)[0].path == str(path)
        row = next(opened.images())
        assert (row.width, row.height) == (160, 120)
        assert row.n_features == len(extract(folder / "a.png", SMALL))
        assert row.digest == checksum(folder / "a.png")


def test_a_second_update_writes_nothing(index: Path, update: Update) -> None:
    before = states(index)
    assert counts(update()) == (0, 0, 0, 4, 0)
    assert states(index) == before


def change_several(folder: Path) -> None:
    photograph(folder / "new.png", 10)
    photograph(folder / "a.png", 11)
    (folder / "b.png").unlink()
    (folder / "notes.txt").write_text("no photograph")


@pytest.mark.parametrize(
    "change, expected, left",
    [
        (change_several, (1, 1, 1, 2, 0), ["a.png", "c.png", "d.png", "new.png"]),
        (lambda folder: (folder / "a.png").rename(folder / "sub/m.png"), (0, 0, 0, 3, 0), ["b.png", "c.png", "d.png", "m.png"]),
        (lambda folder: (folder / "a.png").write_bytes(b"broken now"), (0, 0, 0, 3, 1), ["b.png", "c.png", "d.png"]),
    ],
    ids=["new, changed and missing", "moved", "broken"],
)
def test_an_update_follows_the_folder(
    index: Path, folder: Path, update: Update, change: Callable[[Path], None], expected: tuple[int, ...], left: list[str]
) -> None:
    change(folder)
    assert counts(update()) == expected
    assert names(index) == left
    with Index.open(index) as opened:
        for path in folder.rglob("*.png"):
            assert path.name not in left or opened.search(path)[0].path == str(path)
    assert counts(update()) == (0, 0, 0, len(left), expected[-1])
    photograph(folder / "a.png", 0)
    assert "a.png" in names(index) or update().added == 1


def test_missing_photographs_may_be_kept(index: Path, folder: Path, update: Update) -> None:
    (folder / "a.png").unlink()
    assert counts(update(keep_missing=True)) == (0, 0, 0, 3, 0)
    assert "a.png" in names(index)
    assert counts(update()) == (0, 0, 1, 3, 0)
    assert "a.png" not in names(index)


def test_a_touched_photograph_is_not_read_again(
    index: Path, folder: Path, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(folder / "a.png", ns=(1_000_000_000, 1_000_000_000))
    monkeypatch.setattr("polyvoc.index.build.read_image", lambda *_: pytest.fail("read again"))
    assert counts(update()) == (0, 0, 0, 4, 0)
    before = states(index)
    assert counts(update()) == (0, 0, 0, 4, 0)
    assert states(index) == before


def test_broken_photographs_are_not_read_again(
    index: Path, folder: Path, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken.png").write_bytes(b"no photograph")
    (folder / "empty.jpg").write_bytes(b"")
    report = update()
    assert counts(report) == (0, 0, 0, 4, 2)
    assert [Path(problem.path).name for problem in report.problems] == ["broken.png", "empty.jpg"]
    before = states(index)
    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.index.build.read_image", lambda *_: pytest.fail("read again"))
        assert counts(update()) == (0, 0, 0, 4, 2)
    assert states(index) == before
    photograph(folder / "broken.png", 12)
    (folder / "empty.jpg").unlink()
    assert counts(update()) == (1, 0, 0, 4, 0)
    with Index.open(index) as opened:
        assert opened.folder.catalogue.problems() == {}


@pytest.mark.parametrize("empty", [True, False])
def test_a_folder_that_is_not_there_loses_nothing(
    index: Path, folder: Path, update: Update, tmp_path: Path, empty: bool
) -> None:
    """An empty one may be the mount point of a disk that is not connected."""
    photograph(tmp_path / "other/e.png", 20)
    assert update(folder, tmp_path / "other").added == 1
    folder.rename(tmp_path / "unmounted")
    if empty:
        folder.mkdir()
    for folders in ((folder,), (tmp_path / "other", folder), (folder, tmp_path / "other")):
        for keep_missing in (False, True):
            report = update(*folders, keep_missing=keep_missing)
            assert counts(report) == (0, 0, 0, len(folders) - 1, 0)
            assert report.absent == {str(folder): 4}
    assert names(index) == ["a.png", "b.png", "c.png", "d.png", "e.png"]
    assert followed(index) == {str(folder): False, str(tmp_path / "other"): True}
    before = states(index)
    assert update(folder).absent == {str(folder): 4}
    assert states(index) == before
    if empty:
        folder.rmdir()
    (tmp_path / "unmounted").rename(folder)
    report = update(folder)
    assert (counts(report), report.absent) == ((0, 0, 0, 4, 0), {})
    assert followed(index) == {str(folder): True, str(tmp_path / "other"): True}


def test_a_folder_that_is_gone_for_good_is_removed_by_name(index: Path, folder: Path, update: Update, tmp_path: Path) -> None:
    photograph(tmp_path / "other/e.png", 20)
    assert update(folder, tmp_path / "other").added == 1
    shutil.rmtree(folder)
    assert update(folder).absent == {str(folder): 4}
    with IndexWriter.open(index) as opened:
        assert opened.remove([folder]) == 4
    assert names(index) == ["e.png"]
    assert counts(update(tmp_path / "other")) == (0, 0, 0, 1, 0)
    assert followed(index) == {str(tmp_path / "other"): True}
    with pytest.raises(OptionError, match="photos does not exist; give a folder"):
        update(folder)


def test_a_photograph_changed_while_it_is_read_is_read_again(
    folder: Path, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_after_reading(image: GreyImage, options: FeatureOptions, name: str) -> Features:
        if name.endswith("a.png"):
            photograph(Path(name), 30)
            os.utime(name, ns=(5, 5))
        return extract_pixels(image, options, name)

    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.index.build.extract_pixels", change_after_reading)
        assert update().added == 4
    assert counts(update()) == (0, 1, 0, 3, 0)


def test_a_photograph_that_is_missing_while_it_is_read_stays(
    index: Path, folder: Path, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be absent for a while: what the index holds from there stays."""
    photograph(folder / "a.png", 10)
    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.index.writer.IndexWriter._touch_same", lambda *_: folder.rename(folder.with_name("aside")))
        assert counts(update()) == (0, 0, 0, 3, 1)
    folder.with_name("aside").rename(folder)
    assert names(index) == ["a.png", "b.png", "c.png", "d.png"]
    assert counts(update()) == (0, 1, 0, 3, 0)


def test_a_photograph_that_is_unreachable_is_kept_and_tried_again(
    index: Path, folder: Path, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Decoders.grey

    def unreachable(
        decoders: Decoders, source: Source, long_side: int, max_pixels: int = MAX_PIXELS, name: str | None = None
    ) -> GreyImage:
        if str(name or source).endswith(("b.png", "new.png")):
            raise UnreachableError(f"{name or source}: cannot be opened (timeout)")
        return decode(decoders, source, long_side, max_pixels, name)

    for seed, name in enumerate(("a.png", "b.png", "new.png"), start=10):
        photograph(folder / name, seed)
    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.index.build.Decoders.grey", unreachable)
        assert counts(update()) == (0, 1, 0, 2, 2)
    assert names(index) == ["a.png", "b.png", "c.png", "d.png"]
    assert counts(update()) == (1, 1, 0, 3, 0)  # the files themselves have not changed


def deadly(patch: pytest.MonkeyPatch, content: bytes, number: signal.Signals) -> list[int]:
    """Have every process that decodes some bytes killed; return the list of these processes."""
    killed, ask = [], _Process._ask

    def kill(process: _Process, request: Request, file: io.BytesIO, deadline: float) -> object:
        if file.getvalue() == content:
            killed.append(process.pid)
            os.kill(process.pid, number)
        return ask(process, request, file, deadline)

    patch.setattr(_Process, "_ask", kill)
    return killed


def test_a_photograph_that_kills_its_process_is_a_problem(
    index: Path, folder: Path, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are indexed; it is not tried again before it changes."""
    for seed, name in enumerate(("a.png", "b.png", "new.png"), start=10):
        photograph(folder / name, seed)
    with monkeypatch.context() as patch:
        killed = deadly(patch, (folder / "new.png").read_bytes(), signal.SIGSEGV)
        report = update()
        assert counts(report) == (0, 2, 0, 2, 1) and len(set(killed)) == 2
        assert report.problems[0].reason == f"{folder / 'new.png'}: its decoder crashed twice (SIGSEGV); replace or remove it"
        assert counts(update()) == (0, 0, 0, 4, 1) and len(killed) == 2
    photograph(folder / "new.png", 20)
    assert counts(update()) == (1, 0, 0, 4, 0)


def test_a_photograph_whose_process_is_killed_is_tried_again_later(
    index: Path, folder: Path, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a system that is out of memory: what the index holds of it stays meanwhile."""
    photograph(folder / "b.png", 10)
    with monkeypatch.context() as patch:
        killed = deadly(patch, (folder / "b.png").read_bytes(), signal.SIGKILL)
        assert counts(update()) == (0, 0, 0, 3, 1) and len(set(killed)) == 2
    assert names(index) == ["a.png", "b.png", "c.png", "d.png"]
    assert counts(update()) == (0, 1, 0, 3, 0)


@pytest.mark.parametrize("time", [(1 << 63) + 5, 1 << 62, -(1 << 63) - 10**9])
def test_a_photograph_of_any_date_is_indexed(folder: Path, update: Update, time: int) -> None:
    """The catalogue has 64 bits for nanoseconds since 1970; disks may have more."""
    os.utime(folder / "a.png", ns=(time, time))
    assert counts(update()) == (4, 0, 0, 0, 0)
    assert counts(update()) == (0, 0, 0, 4, 0)
    os.utime(folder / "a.png", ns=(0, 0))
    assert counts(update()) == (0, 0, 0, 4, 0)  # the same content
    photograph(folder / "a.png", 30)
    os.utime(folder / "a.png", ns=(time, time))
    assert counts(update()) == (0, 1, 0, 3, 0)


def test_file_names_that_are_not_text(index: Path, folder: Path, update: Update) -> None:
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


def test_progress(folder: Path, words: list[Vocabulary], tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
        opened.update([folder], progress=lambda *values: calls.append(values))
    assert calls == [("indexing", done, 4) for done in range(1, 5)]


def test_only_broken_photographs(words: list[Vocabulary], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"x")
    for _ in range(2):
        with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
            assert counts(opened.update([tmp_path / "photos"])) == (0, 0, 0, 0, 1)
    with Index.open(tmp_path / "index") as read:
        assert len(read) == 0 and read.search(features(1, 3, dimension=128)) == []


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


def test_an_update_commits_pending_images_first(folder: Path, words: list[Vocabulary], tmp_path: Path) -> None:
    with IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
        opened.add(str(folder / "a.png"), features(1, dimension=128))
        assert counts(opened.update([folder])) == (3, 1, 0, 0, 0)
    assert names(tmp_path / "index") == ["a.png", "b.png", "c.png", "d.png"]


def test_removing(index: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with IndexWriter.open(index) as opened:
        with pytest.raises(OptionError, match=r"z\.png is not in the index"):
            opened.remove(["a.png", "z.png"])
        assert opened.remove(["a.png", folder / "a.png"]) == 1
        assert opened.remove(["sub"]) == 2
        opened.add("name", features(1, dimension=128))
        assert opened.remove(["name"]) == 1  # pending until now
    assert names(index) == ["b.png"]


@pytest.mark.parametrize(
    "name, image, message",
    [
        ("a", features(1, dimension=7), r"holds sift \(12 numbers\), not sift \(7 numbers\)"),
        ("a", replace(features(1), descriptors=features(1).descriptors * np.float32(np.nan)), "not finite"),
        ("\ud800", features(1), "name"),
        ("", features(1), "name"),
    ],
)
def test_features_that_cannot_be_stored_raise(tmp_path: Path, name: str, image: Features, message: str) -> None:
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        with pytest.raises(OptionError, match=message):
            opened.add(name, image)
        opened.add("b", features(1))
    assert names(tmp_path / "index") == ["b"]


@pytest.mark.parametrize(
    "limits, sizes",
    [
        (CommitLimits(images=5), [5, 5]),  # a commit is one segment, also of images without features
        (CommitLimits(features=15), [4, 4, 4]),
        (CommitLimits(seconds=0), [8, 1, 1, 1, 1]),  # every image at once; the first eight were merged
    ],
)
def test_commits_by_images_features_and_time(
    tmp_path: Path, limits: CommitLimits, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.index.build.QUANTISE_FEATURES", 4)
    with IndexWriter.open(tmp_path / "index", vocabularies(), limits=limits) as opened:
        for seed in range(12):
            opened.add(str(seed), features(seed, 10 * (seed % 2)))
        assert sorted(size.n_images for size in opened.catalogue.segment_sizes()) == sorted(sizes)
    assert len(Index.open(tmp_path / "index")) == 12


# --- one writer at a time ---------------------------------------------------------------------------------------


def test_a_second_writer_raises_at_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> None:
        raise AssertionError("it waits")

    def try_to_write() -> None:
        with pytest.raises(LockedError, match="being written by another process") as caught:
            IndexWriter.open(index)
        assert "\n" not in str(caught.value)

    with IndexWriter.open(index):
        monkeypatch.setattr("time.sleep", wait)
        try_to_write()
        assert in_child(try_to_write) == 0
        monkeypatch.undo()
        assert len(Index.open(index)) == 4  # readers may open it
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


def test_an_index_made_by_another_process_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made after this process has looked for one, and before it has the lock."""
    take = lock_folder

    def make_meanwhile(path: Path) -> object:
        monkeypatch.setattr("polyvoc.index.writer.lock_folder", take)
        build(path, collection(3)).close()
        return take(path)

    monkeypatch.setattr("polyvoc.index.writer.lock_folder", make_meanwhile)
    with IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        assert opened.catalogue.count_images() == 3


# --- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["file.txt", "vocabularies/0/words.npy", "segments/x", "catalogue.partial.txt"])
def test_a_folder_of_other_files_is_not_changed(tmp_path: Path, content: str) -> None:
    other = tmp_path / "folder"
    (other / content).parent.mkdir(parents=True)
    (other / content).write_text("mine")
    for path in (other, other / content):
        with pytest.raises(NotAnIndexError, match="is not a polyvoc index"):
            IndexWriter.open(path, vocabularies())
    assert (other / content).read_text() == "mine"
    assert [path for path in other.rglob("*") if path.is_file()] == [other / content]


def test_no_index_is_created_if_none_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match="polyvoc index FOLDER --index"):
        IndexWriter.open(tmp_path / "index", create=False)
    assert not (tmp_path / "index").exists()


def test_empty_and_unfinished_folders_become_indexes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    unfinished = tmp_path / "unfinished"
    for name in ("vocabularies/0", "vocabularies/.1.abc", "segments", "links"):
        (unfinished / name).mkdir(parents=True)
    for name in (UNFINISHED, f"{UNFINISHED}-journal", "lock", "vocabularies/0/words.npy"):
        (unfinished / name).write_bytes(b"half")
    for path in (tmp_path / "empty", unfinished, tmp_path / "new/deep"):
        with pytest.raises(NotAnIndexError):
            Index.open(path)
        build(path, collection(3)).close()
        left = {"links"} if path == unfinished else set()  # side files replace those of the same kind
        assert {entry.name for entry in path.iterdir()} - {"lock"} == {FILE, "segments", "vocabularies"} | left
        assert sorted(entry.name for entry in (path / "vocabularies").iterdir()) == ["0", "1"]
        assert list(check(path)) == []


def test_other_vocabularies_or_options_raise(index: Path, words: list[Vocabulary]) -> None:
    with pytest.raises(OptionError, match="other vocabularies"):
        IndexWriter.open(index, words[:1])
    with pytest.raises(OptionError, match="max_features=30"):
        IndexWriter.open(index, words, FeatureOptions())
    with IndexWriter.open(index) as opened:
        assert opened.folder.feature_options == SMALL


@pytest.mark.parametrize(
    "given, error",
    [
        (vocabularies(10), "at most 9 vocabularies, not 10"),
        ([*vocabularies(1), *vocabularies(1, dimension=20)], "do not go together"),
    ],
)
def test_vocabularies_must_fit_together(tmp_path: Path, given: list[Vocabulary], error: str) -> None:
    with pytest.raises((OptionError, VocabularyError), match=error):
        IndexWriter.open(tmp_path / "index", given)


def test_a_damaged_index_raises_one_line(index: Path) -> None:
    content = (index / FILE).read_bytes()
    (index / FILE).write_bytes(content[:3000])
    with pytest.raises(PolyvocError) as caught:
        IndexWriter.open(index)
    assert "\n" not in str(caught.value)
    (index / FILE).write_bytes(content)


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_an_error_keeps_the_last_commit(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        opened.add("a", features(1))
        opened.commit()
        opened.add("b", features(2))
        raise ZeroDivisionError
    assert names(tmp_path / "index") == ["a"]


def interrupt_once(patch: pytest.MonkeyPatch, owner: type, name: str, after: bool) -> None:
    """Raise KeyboardInterrupt in the first call of a method, before or after its work."""
    work, calls = getattr(owner, name), []

    def interrupted(*values: Any) -> Any:
        calls.append(name)
        if len(calls) == 1 and not after:
            raise KeyboardInterrupt
        result = work(*values)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return result

    patch.setattr(owner, name, interrupted)


def test_an_interrupt_keeps_what_was_read(folder: Path, words: list[Vocabulary], tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), IndexWriter.open(tmp_path / "index", words, SMALL) as opened:
        opened.update([folder], progress=interrupt)
    assert names(tmp_path / "index") == ["a.png", "b.png"]


@pytest.mark.parametrize(
    "owner, name, after",
    [
        (Commits, "add", False),
        (Commits, "add", True),
        (Commits, "_place", True),
        (Catalogue, "add_images", False),
        (SegmentBuilder, "stage", False),
        (SegmentBuilder, "stage", True),
    ],
)
def test_an_interrupted_commit_is_made_once(
    folder: Path, words: list[Vocabulary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    """Of photographs that were read, and of features that were added."""
    limits = CommitLimits(images=2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_once(patch, owner, name, after)
        with IndexWriter.open(tmp_path / "read", words, SMALL, limits=limits) as opened:
            opened.update([folder])
    assert names(tmp_path / "read") == ["a.png", "b.png"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_once(patch, owner, name, after)
        with IndexWriter.open(tmp_path / "added", vocabularies(), limits=limits) as opened:
            opened.add("one", features(1))
            opened.add("two", features(2))
    assert names(tmp_path / "added") == ["one", "two"]
    for path in (tmp_path / "read", tmp_path / "added"):
        assert list(check(path)) == []


def test_an_interrupt_right_after_a_commit_does_not_commit_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), IndexWriter.open(tmp_path / "index", vocabularies()) as opened:
        opened.add("one", features(1))
        interrupt_once(monkeypatch, IndexWriter, "_start_pending", after=False)
        opened.commit()
    assert names(tmp_path / "index") == ["one"]


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


def test_damaged_segments_are_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, collection(7), commits=7).close()
    damaged = path / "segments/000003/arrays"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with IndexWriter.open(path) as opened:
        for number in range(9):
            opened.add(f"more {number}", features(number))
            opened.commit()
        assert opened.remove(["more 8"]) == 1
        segments = opened.catalogue.segments()
    assert 3 in segments and len(segments) < 16 - 7  # the others were merged
    assert any(str(damaged) in line for line in check(path))
    damaged.write_bytes(data)
    assert "more 7" in names(path) and list(check(path)) == []


def test_a_damaged_segment_is_reported_and_the_rest_is_updated(tmp_path: Path) -> None:
    path, folder = tmp_path / "index", tmp_path / "photographs"
    folder.mkdir()
    for number in range(9):
        photograph(folder / f"{number}.png", number)
        with IndexWriter.open(path, coded(dimension=128), SMALL) as opened:
            report = opened.update([folder])
        assert report.added == 1 and len(report.problems) == (number > 6)
        if number == 6:
            damaged = path / "segments/000003/arrays"
            damaged.write_bytes(damaged.read_bytes()[:-1])
    assert report.problems[0].path == str(damaged.parent) and "--repair" in report.problems[0].reason
    assert repair(path).images == 1
    with IndexWriter.open(path) as opened:
        assert opened.update([folder]).added == 1


def test_a_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
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
    index.close()
    with IndexWriter.open(path) as opened:  # makes room
        opened.remove([str(seed) for seed in range(len(committed) - 1)])
        opened.add("new", features(7))
    assert "new" in names(path)


@pytest.mark.parametrize("free", [0, 20, 60, 90, 110, 130])
def test_a_disk_too_small_for_an_index_raises_one_line(small_disk: Path, free: int) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (700 - free) * 1024)
    with pytest.raises(PolyvocError) as caught, IndexWriter.open(small_disk / "index", vocabularies()) as opened:
        for seed in range(1000):
            opened.add(str(seed), features(seed, 30))
            opened.commit()
    assert "\n" not in str(caught.value)
    filler.unlink()
    build(small_disk / "index", collection(3), vocabularies()).close()
    assert list(check(small_disk / "index")) == []


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
    assert {"image 0", "image 1", "image 2"} <= set(names(path))


def test_files_that_no_commit_refers_to_are_removed(index: Path) -> None:
    before = states(index)
    for name in ("segments/000099", "segments/000099.partial", "segments/000001.partial"):
        shutil.copytree(index / "segments/000001", index / name)
    (index / "links").mkdir()
    (index / "links/000099.npy").write_bytes(b"old")
    shutil.copytree(index / "segments/000001", index / "staging/abc")
    with IndexWriter.open(index):
        assert states(index) == before


def test_a_reader_that_never_ends_raises(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.storage.sqlite.BUSY_SECONDS", 0.05)
    reader = sqlite3.connect(index / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM settings").fetchall()
    with pytest.raises(LockedError, match="another process"), IndexWriter.open(index) as opened:
        opened.add("a", features(1, dimension=128))
    reader.close()


# --- workers ----------------------------------------------------------------------------------------------------


class Idle:
    """Workers that look at what they are given, and build nothing."""

    def __init__(self, look: Callable[[SegmentBuilder, BuildPlan], None]) -> None:
        self.look = look

    def work(self, builder: SegmentBuilder, plan: BuildPlan, *_: object) -> Generator[Any, None, None]:
        self.look(builder, plan)
        yield from ()


def test_the_writer_makes_the_staging_folder(index: Path, folder: Path) -> None:
    """Over a network, a folder that another machine creates may be invisible here for a while."""
    seen: list[bool] = []
    photograph(folder / "new.png", 10)
    with IndexWriter.open(index) as opened:
        idle = Idle(lambda builder, plan: seen.append((builder.folder.path / "staging").is_dir()))
        opened.update([folder], workers=idle)
    assert seen == [True] and not (index / "staging").exists()


def test_workers_get_the_photographs_and_one_that_is_unchanged(index: Path, folder: Path) -> None:
    plans: list[BuildPlan] = []
    for name in ("new.png", "b.png"):
        photograph(folder / name, 10)
    with IndexWriter.open(index) as opened:
        opened.update([folder], workers=Idle(lambda _, plan: plans.append(plan)))
    (plan,) = plans
    assert [(item.image, Path(item.path).name) for item in plan.items(range(2))] == [(5, "new.png"), (6, "b.png")]
    assert len(plan) == 2 and plan.sample_row is not None and Path(plan.sample_row.path).name == "d.png"


def test_a_plan_of_millions_of_photographs_takes_little_memory() -> None:
    files = [(str(number), FileState(number, number)) for number in range(100_000)]
    tracemalloc.start()
    plan = BuildPlan(1, files)
    for first in range(0, len(plan), 500):
        assert plan.items(range(first, first + 500))[0].image == first + 1
    assert tracemalloc.get_traced_memory()[1] < 2 * len(files)  # bytes
    tracemalloc.stop()
