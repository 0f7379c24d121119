"""Indexes that are made together equal those made alone, and each photograph is read once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import polyvoc.index.build
from commands import answer, refuse, run, searched
from onnxfiles import PATCHES, patches
from polyvoc.index.writer import IndexWriter, update_together
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.search.index import Index
from polyvoc.types import IndexReport
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from samples import unflushed

__all__ = ["unflushed"]

DETECTORS = ("sift", "orb")
OPTIONS = {name: FeatureOptions(long_side=320, max_features=200, detector=name) for name in DETECTORS}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def words(photographs: Path) -> dict[str, Vocabulary]:
    paths = sorted(photographs.iterdir())[:6]
    return {name: train(sample_descriptors(paths, one), TrainOptions(size=100, rounds=2)) for name, one in OPTIONS.items()}


@pytest.fixture
def folder(photographs: Path, tmp_path: Path) -> Path:
    """Some photographs, and a file that is none."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for name in ("bridge-a", "bridge-b", "tower-a", "wall-c"):
        shutil.copy(photographs / f"{name}.jpg", folder)
    (folder / "broken.jpg").write_bytes(b"nothing")
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files that were read."""
    found: list[str] = []
    read = polyvoc.index.build.read_with_digest

    def counted(path: str) -> Any:
        found.append(Path(path).name)
        return read(path)

    monkeypatch.setattr("polyvoc.index.build.read_with_digest", counted)
    yield found


def together(tmp_path: Path, words: dict[str, Vocabulary], *folders: Path, **more: Any) -> list[IndexReport]:
    with ExitStack() as opened:
        writers = [opened.enter_context(IndexWriter.open(tmp_path / name, VocabularySet((), words[name]), OPTIONS[name]))
                   for name in DETECTORS]  # fmt: skip
        return update_together(writers, folders, **more)


def contents(path: Path) -> list[tuple[Any, ...]]:
    with Index.open(path) as index:
        rows = [(row.image, row.path, row.digest, row.n_features, row.width, row.state) for row in index]
        found = index.engine.image_features([index.find(row[0]) for row in rows])
        problems = [(problem.path, problem.reason) for problem in index.problems()]
        return [*rows, *((one.codes.words.tolist(), one.codes.codes.tolist()) for one in found if one.codes), *problems]


def test_indexes_made_together_are_those_made_alone(folder: Path, words: dict[str, Vocabulary], tmp_path: Path,
                                                     reads: list[str]) -> None:  # fmt: skip
    done: list[tuple[str, int, int]] = []
    reports = together(tmp_path, words, folder, progress=lambda *step: done.append(step))
    assert sorted(reads) == sorted(path.name for path in folder.iterdir())
    assert [(one.added, len(one.problems)) for one in reports] == [(4, 1), (4, 1)] and done[-1] == ("indexing", 5, 5)
    for name in DETECTORS:
        with IndexWriter.open(tmp_path / f"{name} alone", VocabularySet((), words[name]), OPTIONS[name]) as writer:
            writer.update([folder])
        assert contents(tmp_path / name) == contents(tmp_path / f"{name} alone")


def test_each_index_reads_what_is_new_to_it(folder: Path, photographs: Path, words: dict[str, Vocabulary], tmp_path: Path,
                                            reads: list[str]) -> None:  # fmt: skip
    together(tmp_path, words, folder)
    commits = [Index.open(tmp_path / name).commit for name in DETECTORS]
    reads.clear()
    again = together(tmp_path, words)
    assert not reads and [(one.added, one.unchanged) for one in again] == [(0, 4), (0, 4)]
    assert [Index.open(tmp_path / name).commit for name in DETECTORS] == commits
    with IndexWriter.open(tmp_path / "orb") as writer:
        writer.remove([folder / "wall-c.jpg"])
    shutil.copy(photographs / "market-a.jpg", folder)
    (folder / "tower-a.jpg").unlink()
    reports = together(tmp_path, words)
    assert sorted(reads) == ["market-a.jpg", "wall-c.jpg"]
    assert [(one.added, one.removed, one.unchanged) for one in reports] == [(1, 1, 3), (2, 1, 2)]
    for name in DETECTORS:
        with Index.open(tmp_path / name) as index:
            assert {Path(row.path).name for row in index} == {path.name for path in folder.iterdir()} - {"broken.jpg"}


def test_what_was_read_before_an_interruption_is_kept(folder: Path, words: dict[str, Vocabulary], tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "indexing" and done == 4:  # one of them is broken
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together(tmp_path, words, folder, progress=interrupt)
    kept = [{Path(row.path).name for row in Index.open(tmp_path / name)} for name in DETECTORS]
    assert kept[0] == kept[1] and len(kept[0]) == 3
    assert [one.added for one in together(tmp_path, words, folder)] == [1, 1]


def test_the_command_makes_an_index_for_each_detector(folder: Path, words: dict[str, Vocabulary], tmp_path: Path) -> None:
    for name, one in words.items():
        one.save(tmp_path / f"{name}-words")
    flags = ["--detector", "sift", "--detector", "orb", "--index", tmp_path / "p.polyvoc"]
    own = [part for name in DETECTORS for part in ("--vocabulary", tmp_path / f"{name}-words")]
    result = answer("index", folder, *flags, *own, "--max-features", 200)
    paths = [tmp_path / "p.polyvoc", tmp_path / "p.orb.polyvoc"]
    assert [one["index"] for one in result["indexes"]] == list(map(str, paths)) and result["indexes"][1]["added"] == 4
    assert [Index.open(path).folder.kind.name for path in paths] == list(DETECTORS)
    again = run("index", *flags)
    assert again.exit_code == 0 and "p.orb.polyvoc:" in again.output
    assert len(answer("search", folder / "wall-c.jpg", "--index", paths[0])["results"][0]["hits"]) > 0


def test_what_does_not_go_together_is_one_line(folder: Path, words: dict[str, Vocabulary], tmp_path: Path) -> None:
    flags = ["--detector", "sift", "--detector", "orb", "--index", tmp_path / "p.polyvoc"]
    words["orb"].save(tmp_path / "words")
    assert "polyvoc train --detector orb" in refuse("index", folder, *flags)
    assert "--watch is for use with one --detector" in refuse("index", folder, *flags, "--watch")
    affine = ["--detector", "sift", "--detector", "affine", "--vocabulary", tmp_path / "words"]
    assert "none of the detectors makes" in refuse("index", folder, *affine)
    assert "detector='nothing' should be one of" in refuse("index", folder, *flags, "--detector", "nothing")
    assert "nothing to read" in refuse("index", *flags)
    assert not (tmp_path / "p.polyvoc").exists() and not (tmp_path / "p.orb.polyvoc").exists()
    (tmp_path / "empty").mkdir()
    nothing = run("index", tmp_path / "empty", *flags, "--vocabulary", tmp_path / "words")
    assert nothing.exit_code == 1 and "no photograph found" in nothing.stderr and nothing.stderr.count("\n") == 1


def test_the_index_of_a_network_has_its_name(folder: Path, words: dict[str, Vocabulary], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    words["sift"].save(tmp_path / "words")
    (tmp_path / "spots.onnx").write_bytes(patches())
    (tmp_path / "spots.json").write_text(json.dumps({**PATCHES, "name": "xfeat"}), encoding="utf-8")
    flags = ["--detector", "sift", "--detector", tmp_path / "spots.onnx", "--index", tmp_path / "p.polyvoc"]
    result = answer("index", folder, *flags, "--vocabulary", tmp_path / "words")
    paths = [tmp_path / "p.polyvoc", tmp_path / "p.xfeat.polyvoc"]
    assert [one["index"] for one in result["indexes"]] == list(map(str, paths)) and result["indexes"][1]["added"] == 4
    assert run("index", *flags).exit_code == 0
    found = searched(folder / "wall-c.jpg", "--index", paths[0], "--index", paths[1])["hits"]
    assert found[0]["path"] == str(folder / "wall-c.jpg") and {part["kind"] for part in found[0]["parts"]} == {"sift", "xfeat"}
