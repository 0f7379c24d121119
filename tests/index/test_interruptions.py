"""Temporary errors are tried again; an interrupt right after a commit does not commit twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyvoc.errors import UnreachableError
from polyvoc.features.decode import read_grey
from polyvoc.index.build import PendingImages
from polyvoc.index.check import check_index
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.types import Features, GreyImage, Source
from samples import photograph, unflushed, vocabularies

__all__ = ["unflushed"]

SMALL = FeatureOptions(long_side=160, max_features=30)


def test_a_photograph_that_cannot_be_read_now_is_kept_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = vocabularies(2, size=20, dimension=128)
    for seed, name in enumerate(("a.png", "b.png")):
        photograph(tmp_path / "photos" / name, seed)

    def unreachable(source: Source, long_side: int, name: str | None = None) -> GreyImage:
        if str(name or source).endswith("b.png"):
            raise UnreachableError(f"{name or source}: cannot be opened (timeout)")
        return read_grey(source, long_side)

    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.features.extract.read_grey", unreachable)
        with IndexWriter.open(tmp_path / "index", words, SMALL) as writer:
            report = writer.update([tmp_path / "photos"])
    assert (report.added, len(report.problems)) == (1, 1)
    with IndexWriter.open(tmp_path / "index") as writer:
        assert writer.update([tmp_path / "photos"]).added == 1  # the file itself has not changed
    photograph(tmp_path / "photos" / "b.png", 7)
    monkeypatch.setattr("polyvoc.features.extract.read_grey", unreachable)
    with IndexWriter.open(tmp_path / "index") as writer:
        report = writer.update([tmp_path / "photos"])
    assert (report.removed, len(report.problems), len(Index.open(tmp_path / "index"))) == (0, 1, 2)


def test_an_interrupt_right_after_a_commit_does_not_commit_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: PendingImages) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(PendingImages, "forget", interrupt)
    rng = np.random.default_rng(0)
    found = Features(rng.random((9, 2)), np.ones(9), np.zeros(9), rng.random((9, 16)), np.int64(100), 80.0)  # type: ignore[arg-type]
    with (
        pytest.raises(KeyboardInterrupt),
        IndexWriter.open(tmp_path / "index", vocabularies(2, size=20, dimension=16)) as writer,
    ):
        writer.add("one", found)
        writer.commit()
    assert list(check_index(tmp_path / "index")) == []
    assert len(Index.open(tmp_path / "index")) == 1
