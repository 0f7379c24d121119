"""Who asks when copies are looked for, and what an index keeps of it. What is found: see test_duplicates.py."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from polyvoc.duplicates.compare import PAIR, PairsRecord, PairTask, can_mirror, images_to_compare, pairs_errors
from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from samples import build, features, unflushed, vocabularies

__all__ = ["unflushed"]

SIFT = 128  # numbers of a descriptor: only those of SIFT are mirrored


@pytest.fixture
def index(tmp_path: Path) -> Path:
    images = {f"image {number}": features(number, 0 if number == 6 else 8 + number, SIFT) for number in range(8)}
    build(tmp_path / "index", images, vocabularies(dimension=SIFT)).close()
    return tmp_path / "index"


def test_everybody_asks_once(index: Path) -> None:
    with Index.open(index) as opened:
        assert images_to_compare(opened) == [PairTask(image, True, True) for image in range(1, 9)]
        assert images_to_compare(opened, mirrored=None) == [PairTask(image, True, False) for image in range(1, 9)]
        assert images_to_compare(opened, 6, 6) == [PairTask(7, True, True), PairTask(8, True, True)]
        assert images_to_compare(opened, 8, 6) == [PairTask(7, False, True), PairTask(8, False, True)]
        assert images_to_compare(opened, 7, None) == [PairTask(8, True, False)]
        assert images_to_compare(opened, 8, 8) == []


def test_images_without_files_ask_as_they_are(index: Path) -> None:
    """Features made elsewhere have none to be read once more: nobody tries again, and all is said."""
    with IndexWriter.open(index) as writer:
        problems = writer.find_copies(mirror=False)
        assert problems == []
        record = writer.home.read_copies()
        assert record is not None
        assert (record.asked, record.mirrored) == (8, 0)
        problems = writer.find_copies(mirror=True)
    assert [problem.path for problem in problems] == [f"image {number}" for number in range(8)]
    assert all("no such file" in problem.reason for problem in problems)
    with Index.open(index) as opened:
        assert images_to_compare(opened, 8, 8) == []
        found = opened.home.read_copies()
        assert found is not None
        assert (found.asked, found.mirrored) == (8, 8)
        assert found.serial == record.serial + 1


def test_asking_again_changes_nothing(index: Path) -> None:
    with IndexWriter.open(index) as writer:
        writer.find_copies(mirror=False)
        before = writer.home.read_copies()
        writer.find_copies(mirror=False)
        assert writer.home.read_copies() == before


def test_only_sift_is_mirrored(index: Path) -> None:
    with IndexWriter.open(index) as writer:
        with writer.catalogue.transaction():
            writer.catalogue.put_facts({"kind": {"name": "orb", "dimension": 256, "binary": True}})
        with Index.open(index) as opened:
            assert not can_mirror(opened)
        assert writer.find_copies(mirror=True) == []


def test_a_store_that_cannot_be_read_ends_nothing(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OptionError("s3://bucket/a.jpg needs s3fs")

    monkeypatch.setattr(Index, "features", refuse)
    with IndexWriter.open(index) as writer:
        assert [problem.reason for problem in writer.find_copies()] == ["s3://bucket/a.jpg needs s3fs"] * 8


KEPT = asdict(PairsRecord(1, 0, "", 0, 0))


@pytest.mark.parametrize("fact", [1, {}, {"serial": 1}, {**KEPT, "asked": -1}, {**KEPT, "pairs": "x"}, {**KEPT, "more": 1}])
def test_damaged_facts_are_refused(fact: object) -> None:
    with pytest.raises(DamagedError, match="the fact 'copies'"):
        PairsRecord.of(fact, Path("catalogue"))


def test_nobody_has_looked() -> None:
    assert PairsRecord.of(None, Path("catalogue")) is None


def test_damaged_pairs_are_found() -> None:
    pairs = np.zeros(1, PAIR)
    pairs["later"], pairs["earlier"], pairs["evidence"] = 2, 1, 5
    assert pairs_errors(pairs) is None
    assert pairs_errors(np.zeros(0, PAIR)) is None
    for name, value in (("later", 1), ("transform", np.nan), ("evidence", 0)):
        wrong = pairs.copy()
        wrong[name] = value
        assert pairs_errors(wrong) is not None, name
