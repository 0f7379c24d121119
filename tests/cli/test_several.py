"""`polyvoc search` with several indexes prints the same as the library returns; one index is searched as before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import polyvoc
from commands import answer, refuse, run, searched
from polyvoc.index.writer import IndexWriter
from polyvoc.web.settings import Settings


@pytest.fixture
def parts(coded_index_path: Path, photographs: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two indexes that share some photographs: one has all of them, the other three."""
    other = Path(shutil.copytree(coded_index_path, tmp_path / "other.polyvoc"))
    with IndexWriter.open(other) as writer:
        writer.remove([path for path in photographs.iterdir() if not path.name.startswith("tower")])
    return coded_index_path, other


def test_several_indexes_are_searched_as_one(parts: tuple[Path, Path], photographs: Path, tmp_path: Path) -> None:
    photo, flags = photographs / "tower-b.jpg", ["--index", parts[0], "--index", parts[1]]
    with polyvoc.open(parts) as both:
        expected = both.search(str(photo))
        found = searched(photo, *flags)
        assert found["hits"] == json.loads(json.dumps(expected.to_dict()["hits"])) and found["complete"]
        assert [len(hit["parts"]) for hit in found["hits"]].count(2) == 3
        shown = run("search", photo, *flags, "--scores", "--timings")
        assert shown.exit_code == 0 and "tower-a.jpg" in shown.stdout and "3 likely" in shown.stdout
        many = answer("search", photo, photographs / "wall-a.jpg", *flags)["results"]
        assert many[0]["hits"] == found["hits"] and len(many) == 2
        stored = searched("--image", found["hits"][0]["image"], *flags)
        assert stored["query"] == expected[0].path
        page = tmp_path / "page.html"
        run("search", photo, *flags, "--html", page)
        assert page.read_text(encoding="utf-8").count("data:image/jpeg") > len(expected.found)


def test_one_index_and_the_environment(parts: tuple[Path, Path], photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = photographs / "tower-b.jpg"
    found = searched(photo, "--index", parts[1])
    assert "parts" not in found["hits"][0]
    monkeypatch.setenv("POLYVOC_INDEX", str(parts[1]))
    assert searched(photo)["hits"] == found["hits"]
    monkeypatch.setenv("POLYVOC_INDEX", "")
    assert "photos.polyvoc" in refuse("search", photo)


def test_what_cannot_be_joined_is_one_line(parts: tuple[Path, Path], photographs: Path, tmp_path: Path) -> None:
    photo, flags = photographs / "tower-b.jpg", ["--index", parts[0], "--index", parts[1]]
    assert "leave it out, or search one index" in refuse("search", photo, *flags, "--fuse")
    assert "each index counts its own commits" in refuse("search", photo, *flags, "--since", 1)
    assert "missing" in refuse("search", photo, *flags, "--index", tmp_path / "missing")


def test_serve_takes_several_indexes(parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("polyvoc.web.server.serve", lambda settings, ready: served.append(settings))
    monkeypatch.setenv("POLYVOC_INDEX", str(tmp_path / "not this one"))
    first, second = parts
    for arguments in (["--index", first, "--index", second], [first, "--index", second]):
        assert run("serve", *arguments).exit_code == 0
        assert served.pop().indexes == parts
    assert run("serve", "--index", second).exit_code == 0
    assert served[-1].indexes == (second,) and not served[-1].sets_up
    assert run("serve").exit_code == 0
    assert served[-1].index == tmp_path / "not this one" and served[-1].sets_up and not served[-1].beside
    missing = tmp_path / "missing"
    assert run("serve", first, "--index", missing).exit_code == 0
    assert not served[-1].sets_up, "the page begins with the choice of a folder for one index only"
    assert "serve one of them" in refuse("serve", first, "--index", second, "--write")
    assert "only photographs may be in a store" in refuse("serve", "--index", "s3://bucket/photos.polyvoc")


def test_an_agent_has_one_index(parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    served: list[Path] = []
    monkeypatch.setattr("polyvoc.agent.server.serve_tools", lambda index, roots: served.append(index))
    for arguments in ([parts[1]], ["--index", parts[1]]):
        assert run("mcp", *arguments).exit_code == 0 and served.pop() == parts[1]
    assert "an agent has the tools of one index" in refuse("mcp", "--index", parts[0], "--index", parts[1])
