"""Vectors on the command line: `index --embedding`, `search --fuse`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commands import answer, refuse, run, searched, vocabulary_flags
from onnxfiles import chain
from polyvoc.vocabulary.vocabulary import Vocabulary
from samples import unflushed

__all__ = ["unflushed"]

pytest.importorskip("onnxruntime", reason="models need onnxruntime: pip install 'polyvoc[embedding]'")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that gives the mean of each colour."""
    path = tmp_path / "models/colours.onnx"
    path.parent.mkdir()
    path.write_bytes(chain("GlobalAveragePool", "Flatten", output=(1, 3)))
    return path


@pytest.fixture
def folder(photographs: Path, tmp_path: Path) -> Path:
    """Photographs that may be changed."""
    return Path(shutil.copytree(photographs, tmp_path / "pictures"))


@pytest.fixture
def index(folder: Path, model: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> Path:
    path, words = tmp_path / "seen.polyvoc", vocabulary_flags(vocabularies, tmp_path)
    assert answer("index", folder, "--index", path, "--embedding", model, *words)["added"] == 12
    return path


def names(result: dict) -> list[str]:
    return [Path(hit["path"]).name for hit in result["hits"]]


def test_info_shows_the_model(index: Path, index_path: Path, model: Path) -> None:
    result = answer("info", "--index", index)["embedding"]
    assert (result["dimension"], result["file"], len(result["fingerprint"])) == (3, str(model), 16)
    assert f"embedding     3 numbers by {model} (" in run("info", "--index", index, "--verbose").stdout
    assert "embedding     none" in run("info", "--index", index_path, "--verbose").stdout


def test_searches_use_it_only_with_the_flag(index: Path, folder: Path) -> None:
    query = folder / "tower-b.jpg"
    local, fused = (searched(query, "--index", index, *typed) for typed in ([], ["--fuse"]))
    assert (local["options"]["fuse"], fused["options"]["fuse"]) == (False, True)
    assert names(fused)[0] == "tower-b.jpg"
    assert {"tower-a.jpg", "tower-b.jpg", "tower-c.jpg"} <= set(names(fused)[:4])
    assert [hit["score"] for hit in local["hits"]] != [hit["score"] for hit in fused["hits"]]
    assert "embed" in fused["seconds"] and "embed" not in local["seconds"]


def test_an_index_without_vectors_is_not_fused(index_path: Path, photographs: Path, model: Path) -> None:
    line = refuse("search", photographs / "wall-a.jpg", "--index", index_path, "--fuse")
    assert "holds no vectors; index again, with --embedding" in line
    line = refuse("index", photographs, "--index", index_path, "--embedding", model)
    assert "holds images without vectors; index them again" in line


def test_later_runs_use_the_model_from_where_it_was(index: Path, folder: Path, model: Path) -> None:
    shutil.copy(folder / "wall-a.jpg", folder / "copy.jpg")
    assert answer("index", folder, "--index", index)["added"] == 1
    assert {"copy.jpg", "wall-a.jpg"} == set(names(searched(folder / "wall-a.jpg", "--index", index, "--fuse"))[:2])


def test_a_model_that_moved(index: Path, folder: Path, model: Path) -> None:
    moved = model.rename(model.with_name("moved.onnx"))
    assert answer("index", folder, "--index", index)["unchanged"] == 12  # nothing to embed
    shutil.copy(folder / "wall-a.jpg", folder / "copy.jpg")
    for line in (refuse("index", folder, "--index", index), refuse("search", folder / "copy.jpg", "--index", index, "--fuse")):
        assert f"{model}, the model of {index}, is missing; give its new path" in line
    assert answer("remove", folder / "wall-c.jpg", "--index", index)["removed"] == 1  # removing needs none
    assert answer("index", folder, "--index", index, "--embedding", moved)["added"] == 2
    assert answer("info", "--index", index)["embedding"]["file"] == str(moved)
    assert searched(folder / "copy.jpg", "--index", index, "--fuse")["hits"]
    assert answer("check", "--index", index)["ok"]


def test_another_model_is_an_error(index: Path, folder: Path, model: Path) -> None:
    other = model.with_name("other.onnx")
    other.write_bytes(chain("GlobalMaxPool", "Flatten", output=(1, 3)))
    assert "holds vectors of another model" in refuse("index", folder, "--index", index, "--embedding", other)
    other.replace(model)
    shutil.copy(folder / "wall-a.jpg", folder / "copy.jpg")
    for line in (refuse("index", folder, "--index", index), refuse("search", folder / "copy.jpg", "--index", index, "--fuse")):
        assert f"{model} is not the model of {index}" in line


def test_what_is_no_model_makes_no_index(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.onnx").write_bytes(b"no model")
    for given, expected in (("missing.onnx", "no such file"), ("wrong.onnx", "not a model that onnxruntime can run")):
        line = refuse("index", folder, "--index", tmp_path / "new.polyvoc", "--embedding", tmp_path / given)
        assert expected in line
    assert not (tmp_path / "new.polyvoc").exists()
