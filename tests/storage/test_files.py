"""Files and folders are read back as written, appear complete or not at all, and an error is one line."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import DamagedError, LockedError, WriteError
from polyvoc.storage.files import (
    META,
    checksum,
    flush_path,
    folder_errors,
    map_array,
    read_meta,
    remove_partial_files,
    remove_partial_folders,
    replace_file,
    write_errors,
    write_folder,
)  # fmt: skip
from processes import dying, in_child
from samples import unflushed

__all__ = ["unflushed"]

ARRAYS = {
    "words": np.arange(12, dtype=np.uint16).reshape(4, 3),
    "empty": np.empty((0, 3), np.uint32),
    "shape": np.linspace(0, 1, 6, dtype=np.float16),
    "strided": np.arange(20, dtype=np.int64)[::2],
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "folder", ARRAYS, {"answer": 42})
    return tmp_path / "folder"


# --- arrays and folders


def test_arrays_and_meta_are_read_back(folder: Path) -> None:
    for name, expected in ARRAYS.items():
        mapped = map_array(folder / f"{name}.npy", expected.dtype, expected.shape)
        assert np.array_equal(mapped, expected) and mapped.dtype == expected.dtype and not mapped.flags.writeable
        assert np.array_equal(np.load(folder / f"{name}.npy", allow_pickle=False), expected)  # a plain .npy file
    assert read_meta(folder)["answer"] == 42
    assert list(folder_errors(folder, checksum(folder / META))) == []
    assert [entry.name for entry in folder.parent.iterdir()] == ["folder"]


def test_an_unfinished_folder_is_removed(tmp_path: Path) -> None:
    def fail() -> Iterator[tuple[str, Any]]:
        yield from ARRAYS.items()
        raise KeyboardInterrupt

    class Broken(dict[str, Any]):
        def items(self) -> Any:
            return fail()

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "folder", Broken(), {})
    assert list(tmp_path.iterdir()) == []


def test_an_old_partial_folder_is_replaced(tmp_path: Path) -> None:
    partial = tmp_path / "folder.partial"
    partial.mkdir()
    (partial / "old.npy").write_bytes(b"old")
    write_folder(tmp_path / "folder", ARRAYS, {})
    assert not partial.exists() and not (tmp_path / "folder/old.npy").exists()


def test_what_killed_processes_left_is_removed_and_what_is_being_written_stays(tmp_path: Path) -> None:
    def die() -> None:
        class Fatal(dict[str, Any]):
            def items(self) -> Any:
                yield from ARRAYS.items()
                os.kill(os.getpid(), signal.SIGKILL)

        write_folder(tmp_path / "killed", Fatal(), {})

    assert in_child(die) == -signal.SIGKILL
    assert (tmp_path / "killed.partial/words.npy").exists()
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "mine.partial/photo.jpg").write_bytes(b"somebody's")

    class Watched(dict[str, Any]):
        def items(self) -> Any:
            remove_partial_folders(tmp_path)
            assert {entry.name for entry in tmp_path.iterdir()} == {"words.partial", "mine.partial"}
            with pytest.raises(LockedError, match="another process"):
                write_folder(tmp_path / "words", {}, {})
            return ARRAYS.items()

    write_folder(tmp_path / "words", Watched(), {"answer": 42})
    assert {entry.name for entry in tmp_path.iterdir()} == {"words", "mine.partial"}
    assert read_meta(tmp_path / "words")["answer"] == 42


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_that_is_replaced_is_never_lost(folder: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any step, with or without an exchange of names in the system: the next finds the old or the new one."""
    if not exchanges:
        monkeypatch.setattr("polyvoc.storage.files._exchange", lambda one, other: False)
    place, before, step, answers = folder.parent, folder.with_name("before"), 0, set()
    shutil.copytree(folder, before)
    status = -signal.SIGKILL
    while status == -signal.SIGKILL:
        step += 1
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)

        def replace_folder(fatal: int = step) -> None:
            with dying(fatal):
                write_folder(folder, ARRAYS, {"answer": 43}, replace=True)

        status = in_child(replace_folder)
        assert folder.exists() or not exchanges
        remove_partial_folders(place)
        answers.add(read_meta(folder)["answer"])
        assert {entry.name for entry in place.iterdir()} == {"folder", "before"}
    assert status == 0 and step > 20 and answers == {42, 43}


def test_a_folder_is_replaced_only_if_wanted(folder: Path) -> None:
    with pytest.raises(WriteError, match="cannot be written"):
        write_folder(folder, {}, {})
    assert read_meta(folder)["answer"] == 42
    write_folder(folder, {"words": ARRAYS["words"]}, {"answer": 43}, replace=True)
    assert read_meta(folder)["answer"] == 43 and not (folder / "empty.npy").exists()
    assert [entry.name for entry in folder.parent.iterdir()] == ["folder"]


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in ("old", "new"):
        with replace_file(path) as partial:
            partial.write_text(content)
            assert partial != path and partial.parent == tmp_path
        assert path.read_text() == content
    with pytest.raises(KeyboardInterrupt), replace_file(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
    path.unlink()
    path.mkdir()
    with pytest.raises(WriteError, match=str(path)), replace_file(path) as partial:
        partial.write_text("in the way")
    assert list(tmp_path.iterdir()) == [path]


# --- damage


def test_files_that_killed_processes_left_are_removed(tmp_path: Path) -> None:
    old, young, other, folder = (
        tmp_path / name for name in ("a.jpg.12.partial", "b.jpg.13.partial", "c.partial", "d.14.partial")
    )
    for file in (old, young, other):
        file.touch()
    folder.mkdir()
    for path in (old, other, folder):
        os.utime(path, (0, 0))
    remove_partial_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == [young, other, folder]
    remove_partial_files(tmp_path / "missing")


def test_a_flush_reaches_the_disk_where_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, by a call of `fcntl`; a file system that lacks it gets the usual flush."""
    calls, answers = [], [0, OSError(errno.ENOTSUP, "not supported")]

    def call(descriptor: int, command: int) -> int:
        calls.append(command)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("polyvoc.storage.files._FULL_FLUSH", 51)
    monkeypatch.setattr("fcntl.fcntl", call)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    for _ in range(2):
        flush_path(tmp_path)
    assert calls == [51, 51, "fsync"]


def test_another_type_or_shape_raises(folder: Path) -> None:
    for dtype, shape in ((np.uint16, (4, 4)), (np.int16, (4, 3)), (np.uint16, (12,))):
        with pytest.raises(DamagedError, match=r"words\.npy holds uint16\[4, 3\] where"):
            map_array(folder / "words.npy", dtype, shape)


def test_every_damaged_header_is_one_line(folder: Path) -> None:
    path = folder / "words.npy"
    original = path.read_bytes()
    refused = 0
    for at in range(128):
        for mask in (0x01, 0x02, 0x10, 0x20, 0x7F, 0x80, 0xFF):
            path.write_bytes(original[:at] + bytes([original[at] ^ mask]) + original[at + 1 :])
            try:
                assert map_array(path, np.uint16, (4, 3)).shape == (4, 3)
            except DamagedError as error:
                assert str(path) in str(error) and "\n" not in str(error)
                refused += 1
    assert refused > 500
    for length in range(len(original)):
        path.write_bytes(original[:length])
        with pytest.raises(DamagedError):
            map_array(path, np.uint16, (4, 3))
    path.write_bytes(b"PK\x03\x04" + original[4:])
    np.save(folder / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for pickled in (path, folder / "evil.npy"):
        with pytest.raises(DamagedError, match=pickled.name):
            map_array(pickled, np.uint16, (4, 3))


def test_missing_and_unreadable_files_are_one_line(folder: Path) -> None:
    with pytest.raises(DamagedError, match="is missing"):
        map_array(folder / "other.npy", np.uint16, (1,))
    with pytest.raises(DamagedError, match="cannot be read"):
        map_array(folder, np.uint16, (1,))
    with pytest.raises(DamagedError, match="is missing"):
        read_meta(folder.parent)
    for text in ("{", "[1, 2]", "\ud800".encode(errors="surrogatepass")):
        (folder / META).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(DamagedError, match=r"meta\.json"):
            read_meta(folder)


def test_damage_names_every_file(folder: Path) -> None:
    recorded = checksum(folder / META)
    (folder / "empty.npy").unlink()
    (folder / "words.npy").write_bytes((folder / "words.npy").read_bytes()[:-1])
    (folder / "shape.npy").unlink()
    (folder / "shape.npy").mkdir()
    lines = folder_errors(folder, recorded)
    assert all(name in line for name, line in zip(("empty", "shape", "words"), lines, strict=True))
    (folder / META).write_text(json.dumps({**read_meta(folder), "answer": 43}))
    assert ["meta.json is damaged" in line for line in folder_errors(folder, recorded)] == [True]
    (folder / META).write_text("{}")
    assert ["no checksums" in line for line in folder_errors(folder, checksum(folder / META))] == [True]


# --- paths that cannot be written


def test_system_errors_become_one_line(tmp_path: Path) -> None:
    full, denied = "the disk is full; free some space", "no permission"
    lines = {errno.ENOSPC: full, errno.EDQUOT: full, errno.EACCES: denied, errno.EROFS: denied, errno.EIO: "Input/output error"}
    for code, words in lines.items():
        with pytest.raises(WriteError, match=words), write_errors(tmp_path / "path"):
            raise OSError(code, os.strerror(code))
    with pytest.raises(KeyError), write_errors(tmp_path):
        raise KeyError("x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="cannot be written"):
        write_folder(tmp_path / "file/folder", ARRAYS, {})


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("a small disk can be made by root on Linux only")
    try:
        with pytest.raises(WriteError, match="the disk is full"):
            write_folder(disk / "folder", {**ARRAYS, "large": np.zeros(100_000)}, {})
        assert list(disk.iterdir()) == []
        write_folder(disk / "folder", ARRAYS, {})
    finally:
        subprocess.run(["umount", disk], check=True)


def test_every_file_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    write_folder(tmp_path / "folder", ARRAYS, {})
    written = [tmp_path, tmp_path / "folder", *(tmp_path / "folder").iterdir()]
    assert {path.stat().st_ino for path in written} == set(flushed)
