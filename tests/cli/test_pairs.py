"""Pairs of photographs on the command line: names as COLMAP reads them, and one line where they cannot be."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import pytest

from commands import answer, refuse, run
from polyvoc.cli.pairs import names_of
from polyvoc.errors import OptionError
from polyvoc.features.colmap import read_pairs
from polyvoc.search.index import Index
from samples import unflushed

__all__ = ["unflushed"]


def scene(name: str) -> str:
    return Path(name).name.partition("-")[0]


@pytest.mark.parametrize("fixture", ["index_path", "coded_index_path"])
def test_verified_pairs_show_one_scene(fixture: str, photographs: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    index_path = request.getfixturevalue(fixture)
    out = tmp_path / "pairs.txt"
    result = answer("pairs", "--index", index_path, "--verify", "--out", out)
    pairs = read_pairs(out)
    names = sorted(path.name for path in photographs.iterdir())
    assert set(map(frozenset, pairs)) == {
        frozenset(pair) for pair in combinations(names, 2) if scene(pair[0]) == scene(pair[1])
    }
    assert (result["pairs"], result["images"], result["out"]) == (len(pairs), 12, str(out))


def test_without_a_file_pairs_are_printed(index_path: Path) -> None:
    shown = run("pairs", "--index", index_path, "--top", 2, "--mutual")
    assert shown.exit_code == 0
    lines = [tuple(line.split(" ")) for line in shown.stdout.splitlines()]
    result = answer("pairs", "--index", index_path, "--top", 2, "--mutual")
    assert lines == [(pair["first"], pair["second"]) for pair in result["list"]]
    assert all(scene(first) == scene(second) for first, second in lines)
    assert all(0 < pair["probability"] < 1 for pair in result["list"])
    assert "12 photographs" in shown.stderr
    with Index.open(index_path) as index:
        assert [pair["images"][0] for pair in result["list"]] == sorted(pair["images"][0] for pair in result["list"])
        assert {Path(index.image(pair["images"][1]).path).name for pair in result["list"]} == {second for _, second in lines}


def test_new_photographs_against_all(index_path: Path) -> None:
    every = answer("pairs", "--index", index_path, "--verify")["list"]
    new = {pair["images"][0] for pair in every[:1]}
    result = answer("pairs", "--index", index_path, "--verify", "--image", *new)["list"]
    assert result == [pair for pair in every if new & set(pair["images"])]
    assert "image 99 is not in the index" in refuse("pairs", "--index", index_path, "--image", 99)


def test_a_root_is_left_out_of_names(index_path: Path, photographs: Path) -> None:
    above = photographs.parent
    result = answer("pairs", "--index", index_path, "--root", above)["list"]
    assert all(pair["first"].startswith(f"{photographs.name}/") for pair in result)
    assert "is not below" in refuse("pairs", "--index", index_path, "--root", above / "elsewhere")


def test_names(tmp_path: Path) -> None:
    assert names_of([(1, "/a/b/c.jpg"), (2, "/a/d.jpg")], None) == {1: "b/c.jpg", 2: "d.jpg"}
    assert names_of([(1, "/a/b.jpg"), (2, "/a/bc/d.jpg")], None) == {1: "b.jpg", 2: "bc/d.jpg"}
    assert names_of([(1, "/a/bc/d.jpg"), (2, "/a/bd/d.jpg")], "/a/") == {1: "bc/d.jpg", 2: "bd/d.jpg"}
    assert names_of([(1, "s3://x/a/c.jpg"), (2, "s3://x/b/c.jpg")], None) == {1: "a/c.jpg", 2: "b/c.jpg"}
    assert names_of([(1, "in/a.jpg"), (2, "in/b.jpg")], None) == {
        1: "in/a.jpg",
        2: "in/b.jpg",
    }  # as a file of features has them
    assert names_of([], None) == {}
    with pytest.raises(OptionError, match=r"/b/c\.jpg is not below /a"):
        names_of([(1, "/a/c.jpg"), (2, "/b/c.jpg")], "/a")
    with pytest.raises(OptionError, match=r"s3://x/c\.jpg is not below /;"):
        names_of([(1, "s3://x/c.jpg"), (2, "/b/c.jpg")], None)
    with pytest.raises(OptionError, match=r"two images would have the name 'c\.jpg'"):
        names_of([(1, "/b/c.jpg"), (2, "c.jpg")], None)
    assert names_of([(1, "/b/c.jpg"), (2, "c.jpg")], "/") == {1: "b/c.jpg", 2: "c.jpg"}


def test_a_space_in_a_name_is_one_line(photographs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(photographs, tmp_path / "odd")
    (folder / "wall-a.jpg").rename(folder / "wall a.jpg")
    index, out = tmp_path / "odd.polyvoc", tmp_path / "pairs.txt"
    assert run("index", folder, "--index", index).exit_code == 0
    assert "'wall a.jpg' cannot be in a list of pairs" in refuse("pairs", "--index", index, "--out", out)
    assert not out.exists()
    database = ("--database", tmp_path / "none.db")  # COLMAP, too, reads a list
    assert "'wall a.jpg' cannot be" in refuse("pairs", "--index", index, "--json", *database)
    assert "wall a.jpg" in {pair["first"] for pair in answer("pairs", "--index", index)["list"]}


def test_what_is_not_there_is_one_line(index_path: Path, tmp_path: Path) -> None:
    assert "does not exist" in refuse("pairs", "--index", tmp_path / "none.polyvoc")
    assert "none.db does not exist" in refuse("pairs", "--index", index_path, "--database", tmp_path / "none.db")
    assert "top=0 should be at least 1" in refuse("pairs", "--index", index_path, "--top", 0)


def test_colmap_matches_the_pairs(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    database = tmp_path / "database.db"
    pycolmap.logging.minloglevel = int(pycolmap.logging.ERROR)
    opened = pycolmap.Database.open(database)
    opened.close()
    assert "has no image 'bridge-a.jpg'" in refuse("pairs", "--index", index_path, "--database", database)
    names = sorted(path.name for path in photographs.iterdir())
    options = pycolmap.FeatureExtractionOptions(use_gpu=False)
    pycolmap.extract_features(database, photographs, image_names=names, extraction_options=options)
    result = answer("pairs", "--index", index_path, "--verify", "--database", database)
    assert 0 < result["matched"] <= result["pairs"]
