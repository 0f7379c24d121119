"""An index of the present format opens with the rankings it had; those of other formats are refused in one clear line.

`tests/make_golden_index.py` made it. Do not make it again because a test fails: an index of a user would fail likewise.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from make_golden_index import make, rankings
from polyvoc.duplicates.compare import check_pairs, read_pairs
from polyvoc.errors import DamagedError, UnusableIndexError, VersionError
from polyvoc.index.catalogue import FILE, FORMAT
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.scoring.rules import check_table
from polyvoc.search.index import Index
from polyvoc.search.links import check_links
from samples import features, unflushed

__all__ = ["unflushed"]

DATA = Path(__file__).parent.parent / "data"
GOLDEN = DATA / f"index_v{FORMAT}"
EXPECTED = json.loads(GOLDEN.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "index"))


def test_rankings_are_those_of_the_version_that_made_it() -> None:
    found = json.loads(json.dumps(rankings(GOLDEN)))
    assert [one["search"] for one in found] == [one["search"] for one in EXPECTED]
    for one, expected in zip(found, EXPECTED, strict=True):
        hits, wanted = one["hits"], expected["hits"]
        assert [(image, inliers) for image, _, inliers in hits] == [(image, inliers) for image, _, inliers in wanted], expected
        assert [score for _, score, _ in hits] == pytest.approx([score for _, score, _ in wanted], rel=1e-4), expected


def test_everything_in_it_can_be_read(copy: Path) -> None:
    assert list(check(copy, more=[check_table, check_links, check_pairs])) == []
    with Index.open(copy) as index:
        assert [row.path for row in index.images()] == [
            f"scene-{scene}{view}.png" for scene in range(6) for view in "ab" if f"{scene}{view}" not in ("2b", "5b")
        ]
        assert [problem.path for problem in index.problems()] == ["broken.png"]
        assert (index.default_options.merge, index.folder.code_bits, index.folder.bits) == ("codes", 128, 16)
        assert index.options(merge="posterior").line == (0.5, 0.3)
        assert index.default_options.code_table is not None and index.default_options.code_table.source == "the golden index"
        assert index.links is not None and len(index.links.links) == 1
        assert read_pairs(index.folder)[1:] == (0, 0), "its pairs have older evidence: they are compared again"


def test_it_can_be_written(copy: Path) -> None:
    with IndexWriter.open(copy) as writer:
        assert writer.add("one more", features(1, dimension=128)) == 13  # ids are never used again
        assert writer.remove(["scene-0a.png"]) == 1
    with Index.open(copy) as index:
        assert len(index) == 10 and index.image(13).path == "one more" and index.search(3)[0].image == 3
    assert list(check(copy)) == []


@pytest.mark.parametrize("number, error", [(FORMAT + 1, VersionError), (FORMAT + 99, VersionError), (0, DamagedError)])
def test_another_format_is_refused_in_one_line(copy: Path, number: int, error: type[UnusableIndexError]) -> None:
    sqlite3.connect(copy / FILE).execute(f"PRAGMA user_version = {number}").connection.close()
    for use in (Index.open, IndexWriter.open):
        with pytest.raises(error) as raised:
            use(copy)
        line = str(raised.value)
        assert "\n" not in line and str(copy) in line
        assert error is DamagedError or f"format {number}, this polyvoc reads up to {FORMAT}: upgrade polyvoc" in line


@pytest.mark.parametrize("number", [1])
def test_an_index_of_an_older_version_is_refused_in_one_line(number: int, tmp_path: Path) -> None:
    path = Path(shutil.copytree(DATA / f"index_v{number}", tmp_path / "index"))
    for use in (Index.open, IndexWriter.open):
        with pytest.raises(VersionError) as raised:
            use(path)
        assert str(raised.value) == f"{path} has format {number}, made by an older polyvoc; index the photographs again"


def test_the_script_makes_such_an_index(tmp_path: Path) -> None:
    """Vectors of features may differ with the version of OpenCV, the kinds of files must not."""
    make(tmp_path / "index")
    names = [
        {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
        for path in (tmp_path / "index", GOLDEN)
    ]
    assert names[0] == names[1] and list(check(tmp_path / "index")) == []
