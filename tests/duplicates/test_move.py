"""Moved files come back byte for byte, whatever happens meanwhile; nothing is overwritten."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import processes
from disk import contents
from polyvoc.duplicates import move as move_module
from polyvoc.duplicates.move import JOURNAL, move, undo
from polyvoc.errors import OptionError, WriteError
from polyvoc.index.writer import IndexWriter
from processes import dying, in_child
from writing_jobs import (
    assert_back,
    assert_files_of_images,
    assert_moved,
    assert_no_photo_lost,
    move_copies,
    prepare_copies,
    undo_moves,
    update,
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(["a.jpg", "sub/a.jpg", "sub/=b.jpg", "sub/c\n<d>.jpg"]):
        (folder / name).write_bytes(bytes([number]) * (number + 1))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def paths_of(folder: Path) -> list[str]:
    return sorted(str(folder / name) for name in contents(folder))


# -- move


def test_relative_paths_are_kept_and_files_come_back(photos: Path, target: Path) -> None:
    before = contents(photos)
    moves = move(paths_of(photos), str(photos), target)
    assert (len(moves.done), moves.problems) == (4, [])
    assert (contents(photos), contents(target)) == ({}, before)
    back = undo(target)
    assert (len(back.done), back.problems) == (4, [])
    assert (contents(photos), contents(target)) == (before, {})
    again = undo(target / JOURNAL)
    assert (again.done, again.problems, contents(photos)) == ([], [], before)
    moves = move([str(photos / "a.jpg")] * 2, str(photos), target)
    assert (len(moves.done), len(moves.problems)) == (1, 1)  # a path given twice is moved once
    assert contents(target) == {"a.jpg": b"\0"}
    assert undo(target).problems == [], "the move that failed is no loss"
    assert contents(photos) == before


def test_names_that_are_taken_get_a_number(photos: Path, target: Path) -> None:
    target.mkdir()
    (target / "a.jpg").write_bytes(b"mine")
    for name, content in (("a (2).jpg", b"first"), ("a (3).jpg", b"second")):
        (photos / "a.jpg").write_bytes(content)
        move([str(photos / "a.jpg")], str(photos), target)
        assert contents(target)[name] == content
    assert contents(target)["a.jpg"] == b"mine"
    for name in ("x.jpg", "X.JPG"):  # one name to some disks
        (photos / name).write_bytes(b"x")
    moves = move([str(photos / "x.jpg"), str(photos / "X.JPG")], str(photos), target)
    assert [Path(name).name for _, name in moves.done] == ["x.jpg", "X (2).JPG"]


def test_links_missing_files_and_files_outside_the_root_are_not_moved(photos: Path, target: Path, tmp_path: Path) -> None:
    outside, link = tmp_path / "outside.jpg", photos / "link.jpg"
    outside.write_bytes(b"outside")
    link.symlink_to(photos / "a.jpg")
    before = contents(tmp_path)
    moves = move([str(link), str(photos / "none.jpg"), str(outside)], str(photos), target / "deep")
    assert moves.done == []
    for problem, reason in zip(moves.problems, ("a symbolic link", "No such file", "not below"), strict=True):
        assert reason in problem.reason and problem.reason.endswith("; it was not moved")
    assert contents(tmp_path) == before
    assert link.is_symlink() and not (target / "deep" / JOURNAL).exists()


def test_files_on_another_disk_are_not_moved(photos: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, elsewhere = os.stat, SimpleNamespace(st_dev=-1)
    monkeypatch.setattr(os, "stat", lambda path: elsewhere if str(path).endswith("target") else real(path))
    moves = move([str(photos / "a.jpg")], str(photos), target)
    assert moves.done == []
    assert "on another disk" in moves.problems[0].reason


def test_folder_without_write_permission_keeps_its_files(photos: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = contents(photos), os.unlink

    def fail(path: str) -> None:
        if str(path).startswith(str(photos)):
            raise PermissionError(13, "Permission denied")
        real(path)

    monkeypatch.setattr(os, "unlink", fail)
    moves = move(paths_of(photos), str(photos), target)
    assert (len(moves.done), len(moves.problems)) == (0, 4)
    assert (contents(photos), contents(target)) == (before, {}), "no file keeps two names"
    assert all("\n" not in problem.reason for problem in moves.problems)


def test_disks_without_hard_links(photos: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    before = contents(photos)
    move(paths_of(photos), str(photos), target)
    assert contents(target) == before
    (photos / "a.jpg").write_bytes(b"new")
    assert len(undo(target).problems) == 1
    assert contents(photos) == {**before, "a.jpg": b"new"}


def test_unusable_targets_raise(photos: Path, tmp_path: Path) -> None:
    before = contents(photos)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="nothing was moved"):
        move(paths_of(photos), str(photos), tmp_path / "file" / "target")
    with pytest.raises(OptionError, match="give a path on a disk"):
        move([], str(tmp_path), Path("s3://bucket/target"))
    assert contents(photos) == before


# -- undo


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_undo_never_removes_the_only_name_of_a_file(photos: Path, target: Path, tmp_path: Path, linked: str) -> None:
    """A link was put where the file was, so that albums still find it: both paths lead to one file."""
    move([str(photos / "sub" / "a.jpg")], str(photos), target)
    if linked == "file":
        (photos / "sub" / "a.jpg").symlink_to(target / "sub" / "a.jpg")
    else:
        (photos / "sub").rename(tmp_path / "aside")
        (photos / "sub").symlink_to(target / "sub")
    back = undo(target)
    assert back.done == []
    assert "is not overwritten" in back.problems[0].reason
    assert contents(target) == {"sub/a.jpg": bytes([1]) * 2}


def test_undo_overwrites_neither_files_nor_broken_links(photos: Path, target: Path, tmp_path: Path) -> None:
    move([str(photos / "a.jpg"), str(photos / "sub" / "a.jpg"), str(photos / "sub" / "=b.jpg")], str(photos), target)
    (photos / "a.jpg").write_bytes(b"new")
    (photos / "sub" / "a.jpg").symlink_to(tmp_path / "nothing")
    back = undo(target)
    assert len(back.done) == 1
    assert ["is not overwritten" in problem.reason for problem in back.problems] == [True, True]
    assert (photos / "a.jpg").read_bytes() == b"new"
    assert contents(target) == {"a.jpg": b"\0", "sub/a.jpg": bytes([1]) * 2}


def test_the_last_file_moved_to_a_path_goes_back_where_it_was(photos: Path, target: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    move([str(photos / "a.jpg")], str(photos), target)
    undo(target)
    (photos / "a.jpg").rename(other / "a.jpg")  # by hand
    move([str(other / "a.jpg")], str(other), target)
    (other / "a.jpg").write_bytes(b"new")
    back = undo(target)
    assert (back.done, len(back.problems)) == ([], 1)
    assert not (photos / "a.jpg").exists()
    (other / "a.jpg").unlink()
    assert [name for _, name in undo(target).done] == [str(other / "a.jpg")]


def test_lost_files_are_reported(photos: Path, target: Path) -> None:
    move([str(photos / "a.jpg")], str(photos), target)
    (target / "a.jpg").unlink()
    assert ["missing" in problem.reason for problem in undo(target).problems] == [True]


# -- journal


@pytest.mark.parametrize("text", ["no json\n", "[]\n", '{"from": 1, "to": "x"}\n', '{"from": "x"}\n', "\xff\n", None])
def test_missing_and_foreign_journals_raise(tmp_path: Path, text: str | None) -> None:
    journal = tmp_path / "moves.jsonl"
    if text is not None:
        journal.write_text(text, encoding="latin-1")
    with pytest.raises(OptionError, match=r"moves\.jsonl: .*give the folder that files were moved to"):
        undo(journal)


def test_torn_lines_are_skipped(photos: Path, target: Path) -> None:
    move([str(photos / "a.jpg")], str(photos), target)
    journal = target / JOURNAL
    with journal.open("a") as file:
        file.write('{"from": "')
    move([str(photos / "sub" / "a.jpg")], str(photos), target)
    lines = journal.read_text().splitlines()
    back = undo(journal)
    assert len(back.done) == 2, "all else comes back"
    assert ["line 2 is not a move" in problem.reason for problem in back.problems] == [True]
    journal.write_text("\n".join([lines[0], lines[2], lines[1]]))  # torn at its end, as a crash leaves it
    assert undo(journal).problems == []


def test_the_journal_is_written_before_the_first_move(photos: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(path: str, name: str) -> None:
        seen.append([json.loads(line)["to"] for line in (target / JOURNAL).read_text().splitlines()])

    monkeypatch.setattr("polyvoc.duplicates.move._rename", look)
    move(paths_of(photos), str(photos), target)
    assert [len(lines) for lines in seen] == [4] * 4


@pytest.mark.parametrize("verb", ["move", "undo"])
def test_killed_at_any_moment_everything_comes_back(
    photos: Path, target: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child process is killed before and after every disk operation in turn."""
    monkeypatch.setattr(processes, "DISK", processes.DISK | {"link", "fsync", "write"})
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # matters in a power cut only
    before, paths = contents(photos), paths_of(photos)
    for fatal in range(1, 1000):
        if verb == "undo":
            move(paths, str(photos), target)

        def work(verb: str = verb, fatal: int = fatal) -> None:
            with dying(fatal):
                undo(target) if verb == "undo" else move(paths, str(photos), target)

        status = in_child(work)
        everything = [*contents(photos).values(), *contents(target).values()]
        assert set(everything) == set(before.values())  # no byte is lost, wherever it is
        if (target / JOURNAL).exists():
            assert undo(target).problems == []
        assert (contents(photos), contents(target)) == (before, {})
        if status >= 0:
            break
        (target / JOURNAL).unlink(missing_ok=True)  # else each kill would make the next one's work longer
    assert status == 0 and fatal > 10


# -- with an index


def killed_after_a_link() -> None:
    """Die when the second file has both names."""
    second = iter([False, True])

    def remove_old_name(path: str, target: str, remove: Callable[[str, str], None] = move_module._remove_old_name) -> None:
        if next(second):
            os.kill(os.getpid(), signal.SIGKILL)
        remove(path, target)

    move_module._remove_old_name = remove_old_name


def killed_before_the_commit() -> None:
    """Die when all files are moved and the index names them still."""
    IndexWriter.remove = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("deadly", [killed_after_a_link, killed_before_the_commit])
@pytest.mark.parametrize("following", ["move", "undo", "index"])
def test_the_run_after_a_killed_move_brings_index_and_files_to_agreement(
    tmp_path: Path, deadly: Callable[[], None], following: str
) -> None:
    prepare_copies(tmp_path)

    def die() -> None:
        deadly()
        move_copies(tmp_path)

    assert in_child(die) == -signal.SIGKILL
    assert_no_photo_lost(tmp_path, {})
    if following == "move":
        move_copies(tmp_path)
        assert_moved(tmp_path)
    elif following == "undo":
        undo_moves(tmp_path)
        assert_back(tmp_path)
    else:
        update(tmp_path)
        assert_no_photo_lost(tmp_path, {})
        assert_files_of_images(tmp_path)


# -- journals of others


@pytest.fixture
def theirs(photos: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of copies of somebody else: nothing is noted for this user."""
    move(paths_of(photos), str(photos), target)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    return target


@pytest.mark.parametrize("identity", [None, 7, ["a"], {}, "../../x"])
def test_odd_identities_allow_nothing(theirs: Path, photos: Path, identity: object) -> None:
    line = {"from": str(photos / "a.jpg"), "to": str(theirs / "a.jpg"), "move": identity}
    (theirs / JOURNAL).write_text(json.dumps(line) + "\n")
    with pytest.raises(OptionError, match="nothing was moved"):
        undo(theirs)


def test_a_journal_from_elsewhere_needs_the_folder(theirs: Path, photos: Path) -> None:
    before = contents(theirs)
    with pytest.raises(OptionError, match=r"nothing was moved, if you trust it: polyvoc duplicates FOLDER --undo ") as error:
        undo(theirs)
    assert "\n" not in str(error.value) and contents(theirs) == before
    assert undo(theirs, [str(photos)]).problems == []
    assert contents(theirs) == {} and contents(photos) == before


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ("{other}/.ssh/authorized_keys", "{theirs}/a.jpg"),
        ("{photos}/../other/x.jpg", "{theirs}/a.jpg"),
        ("{photos}/link/x.jpg", "{theirs}/a.jpg"),
        ("x.jpg", "{theirs}/a.jpg"),
        ("", "{theirs}/a.jpg"),
        ("{photos}/x.jpg", "{other}/secret.jpg"),
        ("{photos}/x.jpg", "{theirs}/../other/secret.jpg"),
        ("{photos}/x.jpg", "{theirs}/link/secret.jpg"),
        ("{photos}/x.jpg", "{theirs}/linked.jpg"),
        ("{photos}/x.jpg", "secret.jpg"),
        ("{photos}/x.jpg", "{theirs}/\0/x.jpg"),
        ("{photos}/\0/x.jpg", "{theirs}/a.jpg"),
    ],
)
@pytest.mark.parametrize("own", [True, False], ids=["tampered with", "of a stranger"])
def test_a_line_that_leads_elsewhere_moves_nothing(
    theirs: Path, photos: Path, tmp_path: Path, origin: str, source: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.jpg").write_bytes(b"secret")
    for folder in (photos, theirs):
        (folder / "link").symlink_to(other)
    (theirs / "linked.jpg").symlink_to(other / "secret.jpg")
    monkeypatch.chdir(other)
    if own:
        monkeypatch.undo()  # the notes are there again
    places = {"other": other, "photos": photos, "theirs": theirs}
    with (theirs / JOURNAL).open("a") as file:
        identity = json.loads((theirs / JOURNAL).read_text().splitlines()[0])["move"]
        line = {"from": origin.format(**places), "to": source.format(**places), "move": identity}
        file.write(json.dumps(line) + "\n")
    before = contents(theirs), contents(photos), contents(other)
    with pytest.raises(OptionError, match="nothing was moved") as error:
        undo(theirs, [] if own else [str(photos)])
    assert "\n" not in str(error.value)
    assert (contents(theirs), contents(photos), contents(other)) == before
