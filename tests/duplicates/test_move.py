"""Files that are moved come back byte for byte, whatever happens meanwhile; nothing is overwritten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import processes
from polyvoc.duplicates.move import JOURNAL, move, undo
from polyvoc.errors import OptionError, WriteError
from processes import dying, in_child


def state(folder: Path) -> dict[str, bytes]:
    """Give all files below a folder but journals."""
    found = {}
    for root, _, names in os.walk(os.fsencode(folder)):
        for name in names:
            path = os.path.join(root, name)
            if os.fsdecode(name) != JOURNAL:
                with open(path, "rb") as file:
                    found[os.fsdecode(os.path.relpath(path, os.fsencode(folder)))] = file.read()
    return found


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(["a.jpg", "sub/a.jpg", "sub/=b.jpg", "sub/c\n<d>.jpg"]):
        (folder / name).write_bytes(bytes([number]) * (number + 1))
    return folder


def paths_of(folder: Path) -> list[str]:
    return sorted(str(folder / name) for name in state(folder))


def test_moved_files_keep_their_relative_paths_and_come_back(photos: Path, tmp_path: Path) -> None:
    before, there = state(photos), tmp_path / "there"
    moves = move(paths_of(photos), str(photos), there)
    assert (len(moves.done), moves.problems) == (4, [])
    assert state(photos) == {}
    assert state(there) == before
    back = undo(there)
    assert (len(back.done), back.problems) == (4, [])
    assert (state(photos), state(there)) == (before, {})
    again = undo(there / JOURNAL)
    assert (again.done, again.problems, state(photos)) == ([], [], before)


def test_a_name_that_is_taken_gets_a_number(photos: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "a.jpg").write_bytes(b"mine")
    move([str(photos / "a.jpg")], str(photos), there)
    assert state(there) == {"a.jpg": b"mine", "a (2).jpg": b"\0"}
    (photos / "a.jpg").write_bytes(b"another")
    move([str(photos / "a.jpg")], str(photos), there)
    assert state(there) == {"a.jpg": b"mine", "a (2).jpg": b"\0", "a (3).jpg": b"another"}


def test_two_files_never_get_one_name(photos: Path, tmp_path: Path) -> None:
    before, there = state(photos), tmp_path / "there"
    moves = move([str(photos / "a.jpg"), str(photos / "a.jpg")], str(photos), there)
    assert len(moves.done) == 1
    assert len(moves.problems) == 1
    assert state(there) == {"a.jpg": b"\0"}
    assert undo(there).problems == [], "the move that failed is no loss"
    assert state(photos) == before


def test_names_that_differ_by_case_alone_get_a_number(photos: Path, tmp_path: Path) -> None:
    (photos / "A.JPG").write_bytes(b"large")
    moves = move([str(photos / "a.jpg"), str(photos / "A.JPG")], str(photos), tmp_path / "there")
    assert [Path(target).name for _, target in moves.done] == ["a.jpg", "A (2).JPG"]


def test_what_does_not_lie_below_the_root_stays(photos: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(b"outside")
    moves = move([str(outside)], str(photos), tmp_path / "there" / "deep")
    assert moves.done == []
    assert "would not come to lie in" in moves.problems[0].reason
    assert outside.read_bytes() == b"outside"


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_undo_never_takes_the_only_name_of_a_file(photos: Path, tmp_path: Path, linked: str) -> None:
    """Somebody put a link where the file was, so that albums still find it: both paths lead to one file."""
    there = tmp_path / "there"
    move([str(photos / "sub" / "a.jpg")], str(photos), there)
    if linked == "file":
        (photos / "sub" / "a.jpg").symlink_to(there / "sub" / "a.jpg")
    else:
        (photos / "sub").rename(tmp_path / "aside")
        (photos / "sub").symlink_to(there / "sub")
    back = undo(there)
    assert back.done == []
    assert "is not overwritten" in back.problems[0].reason
    assert state(there) == {"sub/a.jpg": bytes([1]) * 2}


def test_a_link_to_nothing_is_not_overwritten(photos: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    move([str(photos / "a.jpg")], str(photos), there)
    (photos / "a.jpg").symlink_to(tmp_path / "nothing")
    assert "is not overwritten" in undo(there).problems[0].reason
    assert state(there) == {"a.jpg": b"\0"}


def test_a_folder_that_is_not_to_be_written_keeps_its_files(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = state(photos), os.unlink

    def refuse(path: str) -> None:
        if str(path).startswith(str(photos)):
            raise PermissionError(13, "Permission denied")
        real(path)

    monkeypatch.setattr(os, "unlink", refuse)
    moves = move(paths_of(photos), str(photos), tmp_path / "there")
    assert (len(moves.done), len(moves.problems)) == (0, 4)
    assert (state(photos), state(tmp_path / "there")) == (before, {}), "no file stays with two names"
    assert all("\n" not in problem.reason for problem in moves.problems)


def test_what_came_to_a_place_last_goes_back_where_it_was(photos: Path, tmp_path: Path) -> None:
    there, other = tmp_path / "there", tmp_path / "other"
    other.mkdir()
    move([str(photos / "a.jpg")], str(photos), there)
    undo(there)
    (photos / "a.jpg").rename(other / "a.jpg")  # by hand
    move([str(other / "a.jpg")], str(other), there)
    (other / "a.jpg").write_bytes(b"new")
    back = undo(there)
    assert (back.done, len(back.problems)) == ([], 1)
    assert not (photos / "a.jpg").exists()
    (other / "a.jpg").unlink()
    assert [target for _, target in undo(there).done] == [str(other / "a.jpg")]


def test_a_folder_that_cannot_be_made_is_one_line(photos: Path, tmp_path: Path) -> None:
    before = state(photos)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="nothing was moved"):
        move(paths_of(photos), str(photos), tmp_path / "file" / "there")
    assert state(photos) == before


def test_undo_overwrites_nothing(photos: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    move([str(photos / "a.jpg"), str(photos / "sub" / "a.jpg")], str(photos), there)
    (photos / "a.jpg").write_bytes(b"new")
    back = undo(there)
    assert len(back.done) == 1
    (problem,) = back.problems
    assert "is not overwritten" in problem.reason
    assert state(photos)["a.jpg"] == b"new"
    assert state(there) == {"a.jpg": b"\0"}


def test_what_is_lost_is_said(photos: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    move([str(photos / "a.jpg")], str(photos), there)
    (there / "a.jpg").unlink()
    (problem,) = undo(there).problems
    assert "gone" in problem.reason


def test_links_and_absent_files_stay(photos: Path, tmp_path: Path) -> None:
    link = photos / "link.jpg"
    link.symlink_to(photos / "a.jpg")
    moves = move([str(link), str(photos / "none.jpg")], str(photos), tmp_path / "there")
    assert moves.done == []
    assert [problem.reason.rpartition("; ")[2] for problem in moves.problems] == ["it stays", "it stays"]
    assert link.is_symlink()
    assert not (tmp_path / "there" / JOURNAL).exists()


def test_another_disk_is_refused(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    class Elsewhere:
        st_dev = -1

    monkeypatch.setattr(os, "stat", lambda path: Elsewhere() if str(path).endswith("there") else real(path))
    moves = move([str(photos / "a.jpg")], str(photos), tmp_path / "there")
    assert moves.done == []
    assert "on another disk" in moves.problems[0].reason


def test_disks_without_second_names(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    before = state(photos)
    move(paths_of(photos), str(photos), tmp_path / "there")
    assert state(tmp_path / "there") == before
    (photos / "a.jpg").write_bytes(b"new")
    back = undo(tmp_path / "there")
    assert len(back.problems) == 1
    assert state(photos) == {**before, "a.jpg": b"new"}


@pytest.mark.parametrize("text", ["no json\n", "[]\n", '{"from": 1, "to": "x"}\n', '{"from": "x"}\n', "\xff\n"])
def test_foreign_journals_are_refused(tmp_path: Path, text: str) -> None:
    journal = tmp_path / "moves.jsonl"
    journal.write_text(text, encoding="latin-1")
    with pytest.raises(OptionError, match=r"moves\.jsonl"):
        undo(journal)


def test_no_journal_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="give the folder that files were moved to"):
        undo(tmp_path)


def test_a_torn_line_is_no_move(photos: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    move([str(photos / "a.jpg")], str(photos), there)
    journal = there / JOURNAL
    with journal.open("a") as file:
        file.write('{"from": "')
    move([str(photos / "sub" / "a.jpg")], str(photos), there)
    lines = journal.read_text().splitlines()
    back = undo(journal)
    assert len(back.done) == 2, "all else comes back"
    assert ["line 2 is not a move" in problem.reason for problem in back.problems] == [True]
    journal.write_text("\n".join([lines[0], lines[2], lines[1]]))  # torn at its end, as a crash leaves it
    assert undo(journal).problems == []


@pytest.mark.parametrize("verb", ["move", "undo"])
def test_killed_at_any_moment_everything_comes_back(
    photos: Path, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child is killed before and after every disk operation in turn."""
    monkeypatch.setattr(processes, "DISK", processes.DISK | {"link", "fsync", "write"})
    monkeypatch.setattr("polyvoc.storage.files._flush", lambda descriptor: None)  # what matters in a power cut only
    before, there = state(photos), tmp_path / "there"
    paths = paths_of(photos)
    for fatal in range(1, 1000):
        if verb == "undo":
            move(paths, str(photos), there)

        def work(verb: str = verb, fatal: int = fatal) -> None:
            with dying(fatal):
                undo(there) if verb == "undo" else move(paths, str(photos), there)

        status = in_child(work)
        held = [*state(photos).values(), *state(there).values()]
        assert set(held) == set(before.values())  # no byte is lost, wherever it lies
        if (there / JOURNAL).exists():
            assert undo(there).problems == []
        assert state(photos) == before
        assert state(there) == {}
        if status >= 0:
            assert status == 0
            break
    assert fatal > 10


def test_the_journal_is_there_before_the_first_move(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, seen = tmp_path / "there", []

    def look(path: str, target: str) -> None:
        seen.append([json.loads(line)["to"] for line in (there / JOURNAL).read_text().splitlines()])

    monkeypatch.setattr("polyvoc.duplicates.move._rename", look)
    move(paths_of(photos), str(photos), there)
    assert [len(lines) for lines in seen] == [4] * 4


def test_addresses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="give a path on a disk"):
        move([], str(tmp_path), Path("s3://bucket/there"))
