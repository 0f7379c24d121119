"""Merging ends with few segments and few rewrites; the work of others becomes part of the index completely or not at all."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvoc.index.build import MergeResult, SegmentBuilder
from polyvoc.index.catalogue import Catalogue, SegmentSize
from polyvoc.index.check import check
from polyvoc.index.commit import FAN_IN, MAX_DELETED, MAX_FEATURES, SMALLEST, Commits, next_merge
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import MAX_IMAGES
from polyvoc.search.index import Index
from random_collections import plain
from samples import build, collection, features, scores, unflushed

__all__ = ["unflushed"]

# --- which segments to merge ------------------------------------------------------------------------------------

FEATURES = 100  # per image


def size(segment: int, n_images: int, n_deleted: int = 0, n_features: int | None = None) -> SegmentSize:
    return SegmentSize(segment, n_images, n_images * FEATURES if n_features is None else n_features, n_deleted)


def merge_all(sizes: list[SegmentSize]) -> tuple[list[SegmentSize], int]:
    """Merge until there is nothing to gain; return what is left, and how many images were rewritten."""
    rewritten = 0
    while numbers := next_merge(sizes):
        merged = [s for s in sizes if s.segment in numbers]
        assert len(merged) == len(numbers) == len(set(numbers))
        n_images = sum(s.n_live for s in merged)
        n_features = sum(s.n_features for s in merged)
        assert n_images <= MAX_IMAGES
        assert n_features <= MAX_FEATURES or len(merged) == 1
        rewritten += n_images
        sizes = [s for s in sizes if s.segment not in numbers]
        if n_images:
            sizes.append(size(1 + max([0, *numbers, *(s.segment for s in sizes)]), n_images, n_features=n_features))
    return sizes, rewritten


def most(n_images: int) -> float:
    """Return how many segments a collection may have: fewer than FAN_IN of each tier, and those at least half full."""
    tiers = 1 + math.ceil(math.log(MAX_IMAGES / SMALLEST, FAN_IN))
    return (FAN_IN - 1) * tiers + n_images / (MAX_IMAGES / 2)


sizes_of_segments = st.lists(st.tuples(st.integers(0, MAX_IMAGES), st.floats(0, 1)), max_size=40).map(
    lambda drawn: [size(n, images, int(images * share)) for n, (images, share) in enumerate(drawn, start=1)]
)


@given(sizes_of_segments)
def test_merging_ends_with_few_segments_and_loses_nothing(sizes: list[SegmentSize]) -> None:
    left, _ = merge_all(sizes)
    n_live = sum(s.n_live for s in left)
    assert n_live == sum(s.n_live for s in sizes)
    assert len([s for s in left if s.n_images]) <= most(n_live) + sum(s.n_images == 0 for s in sizes)
    assert all(s.n_deleted <= MAX_DELETED * s.n_images for s in left)


@pytest.mark.parametrize("typical", [30, 300, 3000, 20_000])
def test_a_growing_collection_has_few_segments_and_few_rewrites(typical: int) -> None:
    sizes: list[SegmentSize] = []
    total = rewritten = 0
    for commit in np.random.default_rng(typical).geometric(1 / typical, 600).clip(max=MAX_IMAGES).tolist():
        total += commit
        sizes, again = merge_all([*sizes, size(1 + max([0, *(s.segment for s in sizes)]), commit)])
        rewritten += again
        assert len(sizes) <= most(total)
    tiers = 2 + math.log(max(total, SMALLEST) / SMALLEST, FAN_IN)
    assert rewritten <= total * (tiers + 2)


def test_single_images_make_few_segments() -> None:
    sizes: list[SegmentSize] = []
    for number in range(1, 2000):
        sizes, _ = merge_all([*sizes, size(number * 10_000, 1)])
        assert len(sizes) < 3 * FAN_IN
    assert sum(s.n_live for s in sizes) == 1999


def test_segments_of_many_features_are_not_overfilled() -> None:
    rng = np.random.default_rng(0)
    sizes = [size(n, 500, n_features=int(f)) for n, f in enumerate(rng.integers(1, MAX_FEATURES // 2, 60), start=1)]
    left, _ = merge_all(sizes)
    assert max(s.n_features for s in left) <= MAX_FEATURES
    assert sum(s.n_features for s in left) == sum(s.n_features for s in sizes)
    full = [size(n, 500, n_features=MAX_FEATURES) for n in range(1, 20)]
    assert next_merge(full) == []


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ([], []),
        ([size(1, 10)], []),
        ([size(n, 10) for n in range(1, FAN_IN)], []),
        ([size(n, 10) for n in range(1, FAN_IN + 1)], list(range(1, FAN_IN + 1))),
        ([size(1, 100, 25)], []),
        ([size(1, 100, 26)], [1]),
        ([size(1, 40, 40)], [1]),
        ([size(n, MAX_IMAGES) for n in range(1, 50)], []),
        ([size(n, MAX_IMAGES // 2) for n in range(1, 10)], [1, 2]),
        # Nine of one tier with one of another: the other stays.
        ([size(1, 20_000), *(size(n, 10) for n in range(2, 11))], list(range(2, 11))),
    ],
)
def test_choices_worked_by_hand(sizes: list[SegmentSize], expected: list[int]) -> None:
    assert next_merge(sizes) == expected


def test_live_images_are_counted() -> None:
    assert size(1, 10, n_deleted=3).n_live == 7


# --- commits ----------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index of twelve images in six segments."""
    build(tmp_path / "index", collection(12), commits=6).close()
    return tmp_path / "index"


@pytest.fixture
def commits(path: Path) -> Commits:
    return Commits(IndexFolder(path), Catalogue.open(path, writable=True))


def merged(commits: Commits, monkeypatch: pytest.MonkeyPatch, numbers: list[int]) -> MergeResult:
    """Merge segments as a worker does."""
    monkeypatch.setattr("polyvoc.index.commit.next_merge", lambda sizes: numbers)
    return SegmentBuilder.of(commits.folder).merge(commits.next_merge())


def scores_of(path: Path) -> dict[str, float]:
    with Index.open(path) as index:
        return scores(index, features(3), plain(merge="bayes", hamming=3))


def test_merging_changes_no_score(commits: Commits, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scores_of(path)
    result = merged(commits, monkeypatch, [2, 3, 5])
    assert scores_of(path) == before and list(check(path)) == []  # nothing refers to it yet
    commits.replace_merged(result)
    assert commits.catalogue.segments() == [1, 4, 6, 7]
    assert scores_of(path) == before and list(check(path)) == []
    assert list((path / "staging").iterdir()) == []


def test_an_image_removed_while_its_segment_is_merged_stays_removed(
    commits: Commits, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = merged(commits, monkeypatch, [1, 2])
    commits.add(None, [], [2, 3])
    expected = scores_of(path)
    assert len(expected) == 10
    commits.replace_merged(result)
    assert commits.catalogue.deleted(7) == [1, 2]
    assert scores_of(path) == expected and list(check(path)) == []


def test_segments_that_are_being_merged_are_not_merged_twice(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.index.commit.next_merge", lambda sizes: [size.segment for size in sizes])
    assert [part.number for part in commits.next_merge({2, 5})] == [1, 3, 4, 6]


def test_segments_without_a_live_image_are_dropped(commits: Commits, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits.add(None, [], [1, 2])
    result = merged(commits, monkeypatch, [1])
    assert (result.saved, result.ids) == (None, ())
    commits.replace_merged(result)
    assert commits.catalogue.segments() == [2, 3, 4, 5, 6]
    assert list(check(path)) == [] and not (path / "segments/000001").exists()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_commit_that_failed_after_its_segment_was_moved(
    commits: Commits, path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """It may be tried again, with the segment that was moved or with one that was built anew; or its files are deleted."""
    before, second = scores_of(path), merged(commits, monkeypatch, [1, 2])
    first = merged(commits, monkeypatch, [1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "add_segment", lambda *_: (_ for _ in ()).throw(error))
        for _ in range(2):
            with pytest.raises(error):
                commits.replace_merged(first)
    assert (path / "segments/000007").is_dir()
    assert scores_of(path) == before and list(check(path)) == []
    commits.remove_unreferenced()
    assert not (path / "segments/000007").exists()
    commits.replace_merged(second)
    assert scores_of(path) == before and list(check(path)) == []


def test_a_moved_segment_is_committed_in_a_second_attempt(
    commits: Commits, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, result = scores_of(path), merged(commits, monkeypatch, [1, 2])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Catalogue, "add_segment", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        commits.replace_merged(result)
    commits.replace_merged(result)
    assert commits.catalogue.segments() == [3, 4, 5, 6, 7]
    assert scores_of(path) == before and list(check(path)) == []
