"""A photograph is recognised by its content wherever it is; what patterns leave out is as if it were not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyvoc.errors import OptionError
from polyvoc.index.catalogue import FILE
from polyvoc.index.changes import FollowedFolder, check_new_folders
from polyvoc.index.check import check
from polyvoc.index.folder import EXCLUDE, FOLDERS, IndexFolder
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.types import IndexReport
from samples import features, photograph, unflushed, vocabularies

__all__ = ["unflushed"]

SMALL = FeatureOptions(long_side=160, max_features=30)
NAMES = ("a.png", "b.png", "sub/c.png", "sub/d.png")


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of four photographs, with their folder beside it, to be copied."""
    root = tmp_path_factory.mktemp("indexed")
    for seed, name in enumerate(NAMES):
        photograph(root / "photos" / name, seed)
    with IndexWriter.open(root / "index", vocabularies(2, size=20, dimension=128), SMALL) as writer:
        writer.add("a name", features(9, dimension=128))
        writer.update([root / "photos"])
    return root


@pytest.fixture
def root(indexed: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy whose catalogue names the copied photographs; whatever a test does, the index has no errors in the end."""
    shutil.copytree(indexed, tmp_path / "copy")
    (tmp_path / "copy/photos").rename(tmp_path / "photos")
    (tmp_path / "copy/index").rename(tmp_path / "index")
    # The paths of the fixture are not those of the copy: as if the folder had been moved.
    hidden = indexed.rename(indexed.with_name("hidden"))
    try:
        assert update(tmp_path, tmp_path / "photos").moved == 4
    finally:
        hidden.rename(indexed)
    yield tmp_path
    if (tmp_path / "index" / FILE).exists():
        assert list(check(tmp_path / "index")) == []


def update(root: Path, *folders: Path, **options: object) -> IndexReport:
    with IndexWriter.open(root / "index") as writer:
        return writer.update(folders, **options)  # type: ignore[arg-type]


def counts(report: IndexReport) -> dict[str, int]:
    """Return what is not 0."""
    names = ("added", "replaced", "removed", "moved", "unchanged")
    return {name: count for name in names if (count := getattr(report, name))}


def images(root: Path) -> dict[str, int]:
    """Return the ids of the photographs by their paths below the root."""
    with Index.open(root / "index") as index:
        return {os.path.relpath(row.path, root): row.image for row in index.images() if row.path != "a name"}


def followed(root: Path) -> list[str]:
    with Index.open(root / "index") as index:
        found = FollowedFolder.all_of(index.folder.catalogue.settings().get(FOLDERS))
    return [os.path.relpath(one.path, root) for one in found]


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.index.build.read_image", lambda *_: pytest.fail("a photograph was read again"))


def rename(*pairs: tuple[str, str]) -> Callable[[Path], None]:
    """Return what renames files all at once: a name may be that of another one before."""

    def run(photos: Path) -> None:
        for old, _ in pairs:
            (photos / old).rename(photos / f"{old}.aside")
        for old, new in pairs:
            (photos / new).parent.mkdir(exist_ok=True)
            (photos / f"{old}.aside").rename(photos / new)

    return run


@pytest.mark.parametrize(
    "pairs",
    [
        [("a.png", "z.png")],
        [("a.png", "sub/a.png"), ("sub/c.png", "c.png")],
        [("sub", "other")],
        [("a.png", "b.png"), ("b.png", "a.png")],
        [("a.png", "b.png"), ("b.png", "sub/c.png"), ("sub/c.png", "sub/d.png"), ("sub/d.png", "new/e.png")],
    ],
    ids=["renamed", "to another folder", "a folder", "exchanged", "counted on"],
)
@pytest.mark.usefixtures("nothing_is_read")
def test_what_was_moved_keeps_its_id_and_nothing_is_read(root: Path, pairs: list[tuple[str, str]]) -> None:
    before, changes = images(root), dict(pairs)
    rename(*pairs)(root / "photos")
    report = update(root)
    expected = {}
    for path, image in before.items():
        name = os.path.relpath(path, "photos")
        folder, _, rest = name.partition("/")
        new = changes.get(name) or (f"{changes[folder]}/{rest}" if folder in changes else name)
        expected[f"photos/{new}"] = image
    assert images(root) == expected
    moved = len(before.items() - expected.items())
    assert counts(report) == {"moved": moved} | ({"unchanged": 4 - moved} if moved < 4 else {})
    assert counts(update(root)) == {"unchanged": 4}


@pytest.mark.usefixtures("nothing_is_read")
def test_a_renamed_root_is_recognised_and_followed_from_then_on(root: Path) -> None:
    before = images(root)
    (root / "photos").rename(root / "pictures")
    assert counts(update(root, root / "pictures")) == {"moved": 4}
    assert images(root) == {path.replace("photos", "pictures"): image for path, image in before.items()}
    assert followed(root) == ["pictures"]
    report = update(root)
    assert (counts(report), report.absent) == ({"unchanged": 4}, {})


def test_of_a_renamed_root_the_rest_is_kept_and_named(root: Path) -> None:
    (root / "photos").rename(root / "pictures")
    (root / "pictures/a.png").unlink()
    report = update(root, root / "pictures")
    assert (counts(report), report.absent) == ({"moved": 3}, {})  # the old folder was not given
    report = update(root)
    assert (counts(report), report.absent) == ({"unchanged": 3}, {str(root / "photos"): 1})
    assert "photos/a.png" in images(root)


def test_a_moved_photograph_replaces_what_was_there(root: Path) -> None:
    before = images(root)
    (root / "photos/a.png").replace(root / "photos/b.png")
    assert counts(update(root)) == {"moved": 1, "removed": 1, "unchanged": 2}
    assert images(root) == {"photos/b.png": before["photos/a.png"], **{p: n for p, n in before.items() if "sub" in p}}


def test_what_replaces_a_moved_photograph_is_new(root: Path) -> None:
    before = images(root)
    (root / "photos/a.png").rename(root / "photos/z.png")
    photograph(root / "photos/a.png", 20)
    assert counts(update(root)) == {"added": 1, "moved": 1, "unchanged": 3}
    assert images(root)["photos/z.png"] == before["photos/a.png"]
    with Index.open(root / "index") as index:
        assert index.search(root / "photos/a.png")[0].path == str(root / "photos/a.png")
        assert index.search(root / "photos/z.png")[0].path == str(root / "photos/z.png")


def test_a_copy_is_no_move(root: Path) -> None:
    before = images(root)
    shutil.copy(root / "photos/a.png", root / "photos/copy.png")
    assert counts(update(root)) == {"added": 1, "unchanged": 4}
    assert before.items() <= images(root).items()
    (root / "photos/a.png").rename(root / "photos/sub/a.png")
    (root / "photos/copy.png").rename(root / "photos/sub/copy.png")
    names = images(root)
    assert counts(update(root)) == {"moved": 2, "unchanged": 3}
    assert images(root)["photos/sub/a.png"] == names["photos/a.png"], "of several with the same content that of the same name"


def test_other_content_of_the_same_size_is_no_move(root: Path) -> None:
    content = (root / "photos/a.png").read_bytes()
    (root / "photos/a.png").unlink()
    (root / "photos/z.png").write_bytes(content[:-40] + bytes(40))
    report = update(root)
    assert counts(report) == {"removed": 1, "unchanged": 3} and len(report.problems) == 1


@pytest.mark.usefixtures("nothing_is_read")
def test_a_move_counts_as_a_commit(root: Path) -> None:
    with Index.open(root / "index") as index:
        (root / "photos/a.png").rename(root / "photos/z.png")
        update(root)
        assert index.reopened() is not index
        assert {Path(row.path).name for row in index.reopened().images()} >= {"z.png"}


def test_without_folders_an_update_needs_an_index_that_follows_some(tmp_path: Path) -> None:
    new = IndexWriter.open(tmp_path / "index", vocabularies(2, dimension=128))
    with new as writer, pytest.raises(OptionError, match="follows no folder yet; give one: polyvoc index FOLDER"):
        writer.update()


def test_given_folders_exist_or_have_been_indexed(root: Path) -> None:
    photograph(root / "more/e.png", 30)
    update(root, root / "more")
    for name in ("photos", "more"):
        (root / name).rename(root / f"{name} away")
    folder, gone = IndexFolder(root / "index"), [root / "photos", root / "more"]
    check_new_folders(folder, gone)
    with pytest.raises(OptionError, match="nowhere does not exist; give a folder of photographs"):
        check_new_folders(folder, [*gone, root / "nowhere"])
    assert update(root, *gone).absent == {str(root / "photos"): 4, str(root / "more"): 1}


def test_single_files_are_followed_and_dropped_when_they_are_gone(root: Path) -> None:
    """Unless their disk is not there."""
    for seed, name in enumerate(("e.png", "f.png")):
        photograph(root / "more" / name, 30 + seed)
    assert counts(update(root, *(root / "more").iterdir())) == {"added": 2}
    assert sorted(followed(root)) == ["more/e.png", "more/f.png", "photos"]
    (root / "more").rename(root / "away")
    assert update(root).absent == {str(root / "more/e.png"): 1, str(root / "more/f.png"): 1}
    (root / "more").mkdir()
    assert len(update(root).absent) == 2
    (root / "more").rmdir()
    (root / "away").rename(root / "more")
    (root / "more/e.png").unlink()
    report = update(root)
    assert (counts(report), report.absent) == ({"removed": 1, "unchanged": 5}, {})
    assert sorted(followed(root)) == ["more/f.png", "photos"]


def test_folders_below_others_are_followed_with_them(root: Path) -> None:
    photograph(root / "more/e.png", 30)
    update(root, root / "photos/sub", root / "more")
    assert sorted(followed(root)) == ["more", "photos"]
    update(root, root)
    assert followed(root) == ["."]


def test_a_folder_that_was_removed_is_not_followed(root: Path) -> None:
    """Whether or not it holds a photograph, and whether its files are there or gone for good."""
    photograph(root / "more/e.png", 30)
    update(root, root / "more")
    with IndexWriter.open(root / "index") as writer:
        assert writer.remove([root / "photos/sub"]) == 2
    assert sorted(followed(root)) == ["more", "photos"], "the folder is above what was removed"
    (root / "photos").rename(root / "away")
    with IndexWriter.open(root / "index") as writer:
        assert writer.remove([root / "photos"]) == 2
    assert (counts(update(root)), followed(root)) == ({"unchanged": 1}, ["more"])
    (root / "more/e.png").unlink()
    photograph(root / "more/sub/f.png", 31)
    assert counts(update(root, exclude=["sub"])) == {"removed": 1}
    with IndexWriter.open(root / "index") as writer:
        assert writer.remove([root / "more"]) == 0
        with pytest.raises(OptionError, match="follows no folder yet"):
            writer.update()
        with pytest.raises(OptionError, match="more is not in the index"):
            writer.remove([root / "more"])


def test_an_index_from_before_folders_were_recorded_follows_its_roots(root: Path) -> None:
    with IndexWriter.open(root / "index") as writer:
        with writer.catalogue.transaction():
            writer.catalogue.write("DELETE FROM settings WHERE name = 'folders'")
        assert writer.followed_folders() == [str(root / "photos")]
    assert counts(update(root)) == {"unchanged": 4}
    assert followed(root) == ["photos"]


# -- what is left out


def test_patterns_are_remembered_and_replaced(root: Path) -> None:
    everything = images(root)
    assert counts(update(root, exclude=["a.*", "sub/"])) == {"removed": 3, "unchanged": 1}
    report = update(root)
    assert (counts(report), report.skipped) == ({"unchanged": 1}, {"excluded": 2})
    assert counts(update(root, exclude=["sub/"])) == {"added": 1, "unchanged": 1}
    assert counts(update(root, exclude=[""])) == {"added": 2, "unchanged": 2}
    assert images(root).keys() == everything.keys()
    with Index.open(root / "index") as index:
        assert index.folder.catalogue.settings().get(EXCLUDE) == []


@pytest.mark.parametrize("left", ["an empty folder", "nothing"])
@pytest.mark.usefixtures("nothing_is_read")
def test_a_disk_below_a_folder_that_is_unplugged_loses_nothing(root: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    disk = root / "photos/sub"
    mounted = [str(disk)]
    monkeypatch.setattr("os.path.ismount", lambda path: os.fspath(path) in mounted)
    before = images(root)
    assert (counts(report := update(root)), report.absent) == ({"unchanged": 4}, {})
    disk.rename(root / "away")
    mounted.clear()
    if left == "an empty folder":
        disk.mkdir()
    for _ in range(2):
        report = update(root)
        assert (counts(report), report.absent) == ({"unchanged": 2}, {str(disk): 2})
        assert images(root) == before
    shutil.rmtree(disk, ignore_errors=True)
    (root / "away").rename(disk)
    mounted.append(str(disk))
    assert (counts(report := update(root)), report.absent) == ({"unchanged": 4}, {})
    (disk / "c.png").unlink()  # of a disk that is there, what is gone is gone
    assert (counts(report := update(root)), report.absent) == ({"removed": 1, "unchanged": 3}, {})


def test_a_disk_that_is_gone_for_good_is_forgotten(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = root / "photos/sub"
    monkeypatch.setattr("os.path.ismount", lambda path: os.fspath(path) == str(disk))
    update(root)
    monkeypatch.undo()
    shutil.rmtree(disk)
    assert update(root).absent == {str(disk): 2}
    with IndexWriter.open(root / "index") as writer:
        assert writer.remove([disk]) == 2
    assert (counts(report := update(root)), report.absent) == ({"unchanged": 2}, {})
    photograph(disk / "e.png", 7)
    update(root)
    (disk / "e.png").unlink()
    assert (counts(report := update(root)), report.absent) == ({"removed": 1, "unchanged": 2}, {})


def test_a_pattern_that_is_none_changes_nothing(root: Path) -> None:
    with pytest.raises(OptionError, match="'!' is not a pattern"):
        update(root, exclude=["sub/", "!"])
    assert counts(update(root)) == {"unchanged": 4}


def test_a_folder_of_which_everything_is_left_out_is_there(root: Path) -> None:
    report = update(root, exclude=["*.png"])
    assert (counts(report), report.absent) == ({"removed": 4}, {})


def test_ignore_files(root: Path) -> None:
    (root / "photos/.polyvocignore").write_text("# comment\n*.png\n!d.png\n")
    assert counts(update(root)) == {"removed": 3, "unchanged": 1}
    assert images(root).keys() == {"photos/sub/d.png"}
    (root / "photos/sub/.polyvocignore").write_text("/d.png\n!c.png\n")  # relative to its own folder, and after the other
    assert counts(update(root)) == {"added": 1, "removed": 1}
    (root / "photos/.polyvocignore").unlink()
    (root / "photos/sub/.polyvocignore").write_bytes(b"\xef\xbb\xbf/d.png\r\n")  # as an editor of Windows writes it
    assert counts(update(root)) == {"added": 2, "unchanged": 1}
    (root / "photos/sub/.polyvocignore").unlink()
    assert counts(update(root)) == {"added": 1, "unchanged": 3}


@pytest.mark.parametrize("content", [b"!\n", b"x" * (2 << 20)])
def test_an_unusable_ignore_file_is_named_and_changes_nothing(root: Path, content: bytes) -> None:
    (root / "photos/sub/.polyvocignore").write_bytes(content)
    report = update(root)
    assert counts(report) == {"unchanged": 4}
    (problem,) = report.problems
    assert problem.reason.startswith(f"{root / 'photos/sub/.polyvocignore'}: ") and "\n" not in problem.reason


def test_skipped_files_are_counted_by_kind(root: Path) -> None:
    for name in ("x.mp4", "sub/y.MP4", "sub/z.xcf", "README", "notes.a long suffix", ".hidden.mp4", "._a.png", "._b.jpg"):
        (root / "photos" / name).write_bytes(b"x")
    (root / "photos/.folder").mkdir()
    (root / "photos/.folder/c.mp4").write_bytes(b"x")
    assert update(root).skipped == {"MP4": 2, "XCF": 1, "others": 2}
    with Index.open(root / "index") as index:
        (one,) = FollowedFolder.all_of(index.folder.catalogue.settings().get(FOLDERS))
    assert dict(one.skipped) == {"MP4": 2, "XCF": 1, "others": 2}
