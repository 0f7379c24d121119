"""An index from elsewhere can be searched; nothing that it names is read before this user allows it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from commands import answer, refuse, run, searched
from polyvoc.duplicates.compare import compare
from polyvoc.errors import DamagedError, NotAllowedError
from polyvoc.index.catalogue import Catalogue
from polyvoc.index.folder import ROOTS, UUID, IndexFolder
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.storage.trust import new_identity
from samples import unflushed  # noqa: F401
from strangers import opened_files


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is noted for this user: what the fixtures made was made by somebody else."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))


def change_settings(index: Path, **settings: Any) -> None:
    catalogue = Catalogue.open(index, writable=True)
    with catalogue.transaction():
        catalogue.put_settings(settings)
    catalogue.close()


def test_a_search_reads_nothing_that_the_index_names(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    query = Path(shutil.copy(photographs / "wall-b.jpg", tmp_path / "query.jpg"))
    with opened_files(photographs) as opened:
        hits = searched(query, "--index", index_path, "--top", "3")["hits"]
        assert searched("--image", "1", "--index", index_path)["hits"]
        answer("info", "--index", index_path, "--images")
        answer("pairs", "--index", index_path)
        page = tmp_path / "page.html"
        shown = run("search", query, "--index", index_path, "--html", page)
    assert opened == []
    assert {Path(hit["path"]).name for hit in hits} == {"wall-a.jpg", "wall-b.jpg", "wall-c.jpg"}
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/jpeg;base64,") == 1, "the query alone, which was typed"
    assert f"polyvoc trust {photographs} --index {index_path}" in shown.stderr and shown.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["duplicates"], ["duplicates", "--no-mirror"], ["duplicates", "--move", "TARGET"]])
def test_duplicates_name_the_next_step(index_path: Path, photographs: Path, tmp_path: Path, command: list[str]) -> None:
    with opened_files(photographs) as opened:
        line = refuse(*(word.replace("TARGET", str(tmp_path / "target")) for word in command), "--index", index_path)
    assert opened == [] and line.endswith(f"if you trust it: polyvoc trust {photographs} --index {index_path}")


def test_what_is_allowed_is_read(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    listed = answer("trust", "--index", index_path)
    assert (listed["named"], listed["allowed"]) == ([str(photographs)], [])
    assert run("trust", "--index", index_path).stdout == f"not allowed   {photographs}\n"
    with Index.open(index_path) as index:
        with pytest.raises(NotAllowedError):
            index.features(1)
        assert answer("trust", photographs, "--index", index_path)["allowed"] == [str(photographs)]
        assert len(index.features(1)) > 0, "also by an index that is open"
    moved = index_path.rename(tmp_path / "elsewhere.polyvoc")
    assert run("trust", "--index", moved).stdout == f"allowed       {photographs}\n"
    run("search", photographs / "wall-b.jpg", "--index", moved, "--top", "3", "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("data:image/jpeg;base64,") == 4


def test_what_this_user_indexes_is_allowed(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(photographs, own)
    answer("index", own / "wall-a.jpg", "--index", index_path)
    assert answer("trust", "--index", index_path) == {
        "index": str(index_path), "named": sorted([str(photographs), str(own)]), "allowed": [str(own)],
    }  # fmt: skip
    with Index.open(index_path) as index, opened_files(photographs) as opened:
        rows = {row.path: row.image for row in index.images()}
        assert len(index.features(rows[str(own / "wall-a.jpg")])) > 0
        with pytest.raises(NotAllowedError):
            index.features(rows[str(photographs / "wall-a.jpg")])
    assert opened == []


def test_roots_that_the_index_names_do_not_count(index_path: Path, photographs: Path) -> None:
    """A stranger may write any root, and the identity of another index that this user knows."""
    mine = new_identity()
    change_settings(index_path, **{ROOTS: ["/"], UUID: mine})
    with opened_files(photographs) as opened, Index.open(index_path) as index, pytest.raises(NotAllowedError):
        index.features(1)
    answer("trust", photographs / "sub", "--index", index_path)
    with opened_files(photographs) as more, Index.open(index_path) as index, pytest.raises(NotAllowedError):
        index.features(1)
    assert opened == more == []


@pytest.mark.parametrize("settings", [{UUID: "../../x"}, {UUID: 7}, {UUID: None, ROOTS: None}, {ROOTS: "/"}, {ROOTS: [7]}])
def test_odd_settings_allow_nothing(index_path: Path, photographs: Path, settings: dict[str, Any]) -> None:
    change_settings(index_path, **settings)
    with opened_files(photographs) as opened, Index.open(index_path) as index, pytest.raises(NotAllowedError):
        index.features(1)
    assert opened == []


def test_folders_that_an_index_follows_are_not_read(index_path: Path, photographs: Path) -> None:
    """They are data of its maker: neither read nor allowed by an update without folders, nor watched."""
    for command in (["index"], ["index", "--watch"]):
        with opened_files(photographs) as opened:
            line = refuse(*command, "--index", index_path)
        assert opened == [] and line.endswith(f"if you trust it: polyvoc trust {photographs} --index {index_path}")
    assert answer("trust", "--index", index_path)["allowed"] == []
    change_settings(index_path, folders={"/etc/../root": {"skipped": {}, "available": True}})
    with IndexWriter.open(index_path) as writer, pytest.raises(NotAllowedError):
        writer.update()
    change_settings(index_path, folders={str(photographs): {"skipped": {}, "available": True}})
    run("trust", photographs, "--index", index_path)
    assert answer("index", "--index", index_path)["added"] == 0


def test_an_older_index_gets_an_identity(index_path: Path, photographs: Path) -> None:
    change_settings(index_path, **{UUID: None, ROOTS: None})
    assert "polyvoc index FOLDER" in refuse("trust", photographs, "--index", index_path)
    with Index.open(index_path) as before, IndexWriter.open(index_path) as writer:
        writer.update([photographs])
        assert len(before.reopened().features(1)) > 0


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_an_index_from_elsewhere_holds_plain_files(index_path: Path, tmp_path: Path, photographs: Path, kind: str) -> None:
    segment = next((index_path / "segments").iterdir())
    file = segment if kind == "folder" else segment / "meta.json"
    outside = file.rename(tmp_path / "outside")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(outside)
    with pytest.raises(DamagedError, match="is a link or no regular file"):
        Index.open(index_path)
    if kind != "pipe":
        assert run("trust", photographs, "--index", index_path).exit_code == 0
        Index.open(index_path).close()


def test_a_model_elsewhere_is_not_read(index_path: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"something")
    change_settings(index_path, embedding={"fingerprint": "x", "dimension": 3, "file": str(model)})
    folder = IndexFolder(index_path)
    with opened_files(tmp_path / "model.onnx") as opened, pytest.raises(NotAllowedError, match="polyvoc trust"):
        _ = folder.embedder
    folder.close()
    assert opened == []


def test_features_with_paths_are_those_of_this_user(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    with Index.open(index_path) as index:
        features = index.features(photographs / "wall-a.jpg")
    with IndexWriter.open(index_path) as writer:
        writer.add(str(tmp_path / "sub" / "a.jpg"), features)
        writer.add("a name", features)
    assert answer("trust", "--index", index_path)["allowed"] == [str(tmp_path / "sub")]


def test_compare_needs_the_roots(index_path: Path, photographs: Path) -> None:
    with IndexWriter.open(index_path) as writer, opened_files(photographs) as opened, pytest.raises(NotAllowedError):
        compare(writer)
    assert opened == []


def test_an_index_is_opened_while_a_writer_deletes_segments(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index_path / "segments/deleted").mkdir()
    scan, seen = os.scandir, []

    def deleted(folder: Any) -> Any:
        if Path(folder).name == "deleted":
            seen.append(folder)
            if len(seen) > 1:  # the walk has seen it
                raise FileNotFoundError(folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", deleted)
    IndexFolder(index_path).require_plain_files()
    assert len(seen) == 2
