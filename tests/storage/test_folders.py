"""Every photograph below the folders is listed once, and every change since the last run is found."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvoc.errors import ImageError, OptionError
from polyvoc.index.catalogue import ImageRow
from polyvoc.index.changes import compare_folders
from polyvoc.storage.folders import (
    FileState,
    check_folders,
    file_digest,
    file_state,
    is_below,
    list_photographs,
    read_with_digest,
    roots_above,
)
from polyvoc.storage.stores import is_url
from polyvoc.types import Problem


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(folders: list[Path], root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path, _ in list_photographs(folders)]


def rows(root: Path) -> list[ImageRow]:
    """Return the catalogue rows of everything below a folder."""
    found = enumerate(list_photographs([root]))
    return [ImageRow(number, path, state, "", 1, 1, 1, 1, number) for number, (path, state) in found]


# --- photographs


def test_photographs_are_found_in_order(tmp_path: Path) -> None:
    touch(*(tmp_path / name for name in ("b.JPG", "a.png", "z/c.webp", "z/y/d.tiff", "m/e.gif")))
    touch(*(tmp_path / name for name in ("notes.txt", "jpg", "a.jpg.part", ".hidden/f.jpg", "x.polyvoc/g.jpg", "z/.git/h.jpg")))
    assert names([tmp_path], tmp_path) == ["a.png", "b.JPG", "m/e.gif", "z/c.webp", "z/y/d.tiff"]
    path, state = next(list_photographs([tmp_path]))
    assert state == FileState(1, os.stat(path).st_mtime_ns) == file_state(path)


def test_single_files_and_links(tmp_path: Path) -> None:
    touch(tmp_path / "real/a.jpg", tmp_path / "elsewhere/b.jpg")
    (tmp_path / "real/link.jpg").symlink_to(tmp_path / "elsewhere/b.jpg")
    (tmp_path / "real/folder").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "real/folder.jpg").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "real/broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "real/loop.jpg").symlink_to(tmp_path / "real/loop.jpg")
    os.mkfifo(tmp_path / "real/pipe.jpg")
    assert names([tmp_path / "real"], tmp_path) == ["real/a.jpg", "real/link.jpg"]
    assert names([tmp_path / "elsewhere/b.jpg"], tmp_path) == ["elsewhere/b.jpg"]


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "a/b.jpg")
    monkeypatch.chdir(tmp_path / "a")
    assert [path for path, _ in list_photographs([Path("."), Path("../a")])] == [str(tmp_path / "a/b.jpg")] * 2


def test_names_that_are_not_text(tmp_path: Path) -> None:
    touch(tmp_path / os.fsdecode(b"caf\xe9.jpg"))
    assert [os.fsencode(path) for path, _ in list_photographs([tmp_path])] == [os.fsencode(tmp_path) + b"/caf\xe9.jpg"]


def test_deep_folders(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 1100)  # deeper than Python recurses
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (deep / "a.jpg").write_bytes(b"x")
    assert [path for path, _ in list_photographs([tmp_path])] == [str(deep / "a.jpg")]
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="does not exist; give a folder"):
        list(list_photographs([tmp_path / "nowhere"]))
    for use in (check_folders, lambda folders: list(list_photographs(folders))):
        with pytest.raises(OptionError, match=r"^no/where does not exist"):  # as it was typed
            use(["no/where"])


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "a.jpg", tmp_path / "secret/b.jpg", tmp_path / "z/c.jpg")
    known = rows(tmp_path)
    scandir = os.scandir

    def fail(path: str) -> object:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OptionError, match="secret: cannot be read"):
        list(list_photographs([tmp_path]))
    broken = str(tmp_path / "secret/broken.jpg")
    changes = compare_folders([tmp_path], known, {broken: (FileState(1, 1), Problem(broken, "broken"))})
    assert [problem.path for problem in changes.unreadable] == [str(tmp_path / "secret")]
    assert (changes.unchanged, changes.missing, changes.resolved, changes.absent) == (3, [], [], {})
    assert compare_folders([tmp_path / "secret"], known, {}).absent == {}


# --- changes


def test_nothing_changed(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg", tmp_path / "b/c.jpg")
    changes = compare_folders([tmp_path, tmp_path / "b", tmp_path], rows(tmp_path), {})
    assert changes.unchanged == 2
    assert not (changes.new or changes.changed or changes.missing or changes.resolved or changes.absent)


def test_every_change_is_found(tmp_path: Path) -> None:
    touch(*(tmp_path / f"{name}.jpg" for name in ("same", "touched", "longer", "gone", "broken", "repaired", "lost")))
    known = [row for row in rows(tmp_path) if Path(row.path).stem in ("same", "touched", "longer", "gone")]
    problems = {}
    for name in ("broken", "repaired", "lost"):
        path = str(tmp_path / f"{name}.jpg")
        problems[path] = (file_state(path), Problem(path, "broken"))
    touch(tmp_path / "new.jpg")
    os.utime(tmp_path / "touched.jpg", ns=(1, 1))
    (tmp_path / "longer.jpg").write_bytes(b"xx")
    (tmp_path / "repaired.jpg").write_bytes(b"xx")
    (tmp_path / "gone.jpg").unlink()
    (tmp_path / "lost.jpg").unlink()
    changes = compare_folders([tmp_path], known, problems)
    assert changes.unchanged == 1
    assert [Path(path).stem for path, _ in changes.new] == ["new", "repaired"]
    assert [Path(row.path).stem for row, _ in changes.changed] == ["longer", "touched"]
    assert [Path(row.path).stem for row in changes.missing] == ["gone"]
    assert [Path(problem.path).stem for problem in changes.known_unusable] == ["broken"]
    assert sorted(Path(path).stem for path in changes.resolved) == ["lost", "repaired"]
    assert changes.absent == {}


def test_other_folders_do_not_matter(tmp_path: Path) -> None:
    touch(tmp_path / "a/1.jpg", tmp_path / "ab/2.jpg")
    known = rows(tmp_path)
    (tmp_path / "ab/2.jpg").unlink()
    changes = compare_folders([tmp_path / "a"], known, {str(tmp_path / "ab/3.jpg"): (FileState(1, 1), Problem("", ""))})
    assert (changes.unchanged, changes.missing, changes.resolved) == (1, [], [])


def test_an_empty_folder_is_reported(tmp_path: Path) -> None:
    touch(tmp_path / "a/1.jpg", tmp_path / "b/2.jpg", tmp_path / "b/3.jpg")
    known = rows(tmp_path)
    for path in (tmp_path / "b").iterdir():
        path.unlink()
    assert compare_folders([tmp_path / "a", tmp_path / "b"], known, {}).absent == {str(tmp_path / "b"): 2}
    assert compare_folders([tmp_path], known, {}).absent == {}
    assert compare_folders([tmp_path / "b"], [], {}).absent == {}


def test_a_large_file_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(bytes(100))
    content, digest = read_with_digest(path)
    assert content == bytes(100) and digest == file_digest(str(path), file_state(str(path)))
    monkeypatch.setattr("polyvoc.storage.folders.STREAM_BYTES", 99)
    assert read_with_digest(path) == (path, digest)
    with pytest.raises(ImageError, match=r"missing\.jpg: no such file"):
        read_with_digest(tmp_path / "missing.jpg")


PATHS = st.one_of(
    st.lists(st.sampled_from(("a", "b", "a b", "..")), max_size=4).map(lambda parts: "/" + "/".join(parts)),
    st.sampled_from(("a name", "", "s3://bucket/a", "s3://bucket/a/b.jpg", "zip://a::s3://bucket/a")),
)


@given(PATHS, st.frozensets(PATHS))
def test_roots_above_are_those_that_a_path_is_below(path: str, roots: frozenset[str]) -> None:
    wanted = {root for root in roots if root and is_below(path, [root]) and is_url(root) == is_url(path)}
    assert list(roots_above("", roots)) == [] and sorted(roots_above(path, roots)) == sorted(wanted)


def test_is_below() -> None:
    assert is_below("/a/b", ["/a"]) and is_below("/a", ["/a"]) and is_below("/a/b", ["/"]) and is_below("/a/b", ["/x", "/a/"])
    assert not is_below("/ab", ["/a"]) and not is_below("/a", ["/a/b"]) and not is_below("/a", [])
