"""The command `link`, and searches that use its links."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from commands import answer, refuse
from polyvoc.cli.main import app
from polyvoc.search.links import CANDIDATES
from samples import unflushed

__all__ = ["unflushed"]


@pytest.mark.parametrize("fixture", ["index_path", "coded_index_path"])
def test_link_and_smooth(fixture: str, photographs: Path, request: pytest.FixtureRequest) -> None:
    index_path = request.getfixturevalue(fixture)
    search = ("search", photographs / "wall-b.jpg", "--index", index_path)
    assert "polyvoc link" in refuse(*search, "--smooth", 1)
    result = answer("link", "--index", index_path)
    assert (result["index"], result["pairs"]) == (str(index_path), 12)  # of 4 scenes in 3 views
    smooth, without = (answer(*search, *typed)["results"][0] for typed in (["--smooth", 1], []))
    assert {hit["score"] for hit in smooth["hits"][:3]} != {hit["score"] for hit in without["hits"][:3]}
    assert answer("check", "--index", index_path)["errors"] == []


def test_damaged_links_are_built_again(index_path: Path) -> None:
    answer("link", "--index", index_path)
    (file,) = (index_path / "links").iterdir()
    file.unlink()
    assert "links" in refuse("search", "--image", 1, "--index", index_path)
    assert answer("link", "--index", index_path)["pairs"] == 12
    assert answer("check", "--index", index_path)["errors"] == []


def test_the_default_is_that_of_the_library() -> None:
    (option,) = (p for p in typer.main.get_command(app).commands["link"].params if p.name == "candidates")  # type: ignore[attr-defined]
    assert option.default == CANDIDATES


def test_errors(index_path: Path, tmp_path: Path) -> None:
    assert "candidates=0 should be at least 1" in refuse("link", "--candidates", 0, "--index", index_path)
    assert "polyvoc index FOLDER" in refuse("link", "--index", tmp_path / "none.polyvoc")
    assert not (tmp_path / "none.polyvoc").exists()
