"""Work that others did becomes a part of the index, whole or not at all, whatever was committed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyvoc.index.build import SegmentBuilder
from polyvoc.index.catalogue import Catalogue
from polyvoc.index.check import check_index
from polyvoc.index.commit import Commits
from polyvoc.index.folder import IndexFolder
from polyvoc.search.index import Index
from random_collections import plain
from samples import build, collection, features, scores, unflushed

__all__ = ["unflushed"]

QUERY = features(3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index of twelve images in six segments."""
    build(tmp_path / "index", collection(12), commits=6).close()
    return tmp_path / "index"


def commits_of(path: Path) -> tuple[Commits, SegmentBuilder]:
    home = IndexFolder(path)
    catalogue = Catalogue.open(path, writable=True)
    return Commits(home, catalogue), SegmentBuilder.of(home, catalogue)


def parts_of(commits: Commits, monkeypatch: pytest.MonkeyPatch, numbers: list[int]) -> tuple[object, ...]:
    monkeypatch.setattr(
        "polyvoc.index.commit.next_merge", lambda sizes: [n for n in numbers if n in {s.segment for s in sizes}]
    )
    return commits.next_merge()


def scores_of(path: Path) -> dict[str, float]:
    with Index.open(path) as index:
        return scores(index, QUERY, plain(merge="bayes", hamming=3))


def test_merged_elsewhere_changes_no_score(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scores_of(path)
    commits, workshop = commits_of(path)
    made = workshop.merge(parts_of(commits, monkeypatch, [2, 3, 5]))  # type: ignore[arg-type]
    assert scores_of(path) == before and list(check_index(path)) == []  # nothing refers to it yet
    assert made.saved is not None
    commits.join(made.parts, commits.receive(made.saved), made.ids)
    assert commits.catalogue.segments() == [1, 4, 6, 7]
    assert scores_of(path) == before and list(check_index(path)) == []
    assert list((path / "incoming").iterdir()) == []


def test_an_image_dropped_while_its_segment_is_merged_stays_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, workshop = commits_of(path)
    made = workshop.merge(parts_of(commits, monkeypatch, [1, 2]))  # type: ignore[arg-type]
    commits.add(None, [], [2, 3])
    expected = scores_of(path)
    assert len(expected) == 10
    assert made.saved is not None
    commits.join(made.parts, commits.receive(made.saved), made.ids)
    assert commits.catalogue.deleted(7) == [1, 2]
    assert scores_of(path) == expected and list(check_index(path)) == []


def test_segments_that_are_being_merged_are_not_merged_twice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, _ = commits_of(path)
    monkeypatch.setattr("polyvoc.index.commit.next_merge", lambda sizes: [size.segment for size in sizes])
    assert [part.number for part in commits.next_merge({2, 5})] == [1, 3, 4, 6]


def test_segments_without_a_live_image_only_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, workshop = commits_of(path)
    commits.add(None, [], [1, 2])
    made = workshop.merge(parts_of(commits, monkeypatch, [1]))  # type: ignore[arg-type]
    assert (made.saved, made.ids) == (None, ())
    commits.join(made.parts, None, made.ids)
    assert commits.catalogue.segments() == [2, 3, 4, 5, 6]
    assert list(check_index(path)) == [] and not (path / "segments/000001").exists()


def test_work_that_was_received_but_not_committed_is_swept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scores_of(path)
    commits, workshop = commits_of(path)
    for _ in range(2):
        made = workshop.merge(parts_of(commits, monkeypatch, [1, 2]))  # type: ignore[arg-type]
        assert made.saved is not None
        assert commits.receive(made.saved)[0] == 7  # and again: the first one failed
    commits.sweep()
    assert not (path / "segments/000007").exists()
    assert scores_of(path) == before and list(check_index(path)) == []
