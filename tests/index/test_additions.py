"""What was added since a commit: exactly the images that an index of that commit did not have, whatever happened meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvoc.errors import OptionError
from polyvoc.index import additions
from polyvoc.index.additions import Additions
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.search.probability import default_hit_probability
from samples import build, coded, collection, features, unflushed, vocabularies

__all__ = ["unflushed"]


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 6))
def test_ids_since_every_commit(counts: list[int], limit: int) -> None:
    """Of each commit: how many images it adds. 0: it removes or moves some."""
    recorded, next_image = Additions(), 1
    firsts = []  # the first id after each commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additions, "MAX_COMMITS", 2 * limit)
        for commit, count in enumerate(counts):
            firsts.append(next_image)
            if count:
                recorded = Additions.of(recorded.noted(commit, next_image).as_setting())
                next_image += count
    for commit in range(recorded.earliest, len(counts)):
        first = recorded.first_since(commit, len(counts))
        assert (next_image if first is None else first) == firsts[commit]
    assert recorded.first_since(len(counts), len(counts)) is None
    assert len(recorded.steps) <= 2 * limit and (len(counts) > 2 * limit or recorded.earliest == 0)
    with pytest.raises(OptionError, match="should be at most"):
        recorded.first_since(len(counts) + 1, len(counts))
    if recorded.earliest:
        with pytest.raises(OptionError, match="what was added before is not recorded"):
            recorded.first_since(recorded.earliest - 1, len(counts))


def test_of_workers_in_any_order_none_is_left_out() -> None:
    recorded = Additions().noted(3, 40).noted(4, 40).noted(5, 40).noted(6, 90)
    assert [recorded.first_since(commit, 7) for commit in (2, 3, 4, 5, 6)] == [40, 40, 40, 40, 90]


@pytest.mark.parametrize("with_codes", [False, True])
def test_a_search_since_a_commit_is_one_of_what_was_added(tmp_path: Path, with_codes: bool) -> None:
    """With the same scores: the other images stay in the statistics."""
    path, images = tmp_path / "index", collection(30)
    made_with = coded() if with_codes else vocabularies()
    with build(path, images, made_with, commits=5) as index:
        everything = index.search(features(3), top=100, verify=0)
        commits = [index.commit]
    with IndexWriter.open(path) as writer:
        writer.remove(["image 4"])
        writer.add("image 5", features(5))  # replaced, hence added
        writer.commit()
        writer.add("one more", features(3))
    with Index.open(path) as index:
        commits.append(index.commit)
        assert {hit.path for hit in index.search(features(3), top=100, since=commits[0])} == {"image 5", "one more"}
        assert index.search(features(3), top=100, since=commits[1]) == []
        assert {hit.path for hit in index.search(features(3), top=100, since=0)} >= {hit.path for hit in everything} - {
            "image 4"
        }
        whole = {hit.path: hit.score for hit in index.search(features(3), top=100, verify=0)}
        for commit in range(index.commit + 1):
            for options in ({}, {"verify": 100, "expand": 2}):
                found = index.search(features(3), top=100, since=commit, **{"verify": 0, **options})
                assert all(options or hit.score == pytest.approx(whole[hit.path]) for hit in found)
        with pytest.raises(OptionError, match=f"since={commits[1] + 1} should be at most {commits[1]}, the last commit"):
            index.search(features(3), since=commits[1] + 1)
    assert list(check(path)) == []


def test_what_was_added_has_the_probability_that_it_has_among_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few new images alone would show no noise: unrelated ones would seem to stand out."""
    monkeypatch.setattr(Index, "probability", default_hit_probability())  # whatever these features are
    with build(tmp_path / "index", collection(60), coded(), commits=6) as index:
        for options in ({}, {"verify": 0}):
            whole = {hit.path: hit.probability for hit in index.search(features(3), top=100, **options)}
            for commit in range(index.commit):
                found = index.search(features(3), top=100, since=commit, **options)
                assert found and {hit.path: hit.probability for hit in found}.items() <= whole.items()


def test_an_index_that_was_made_before_records_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, collection(5)).close()
    with IndexWriter.open(path) as writer, writer.catalogue.transaction():
        writer.catalogue.write("DELETE FROM settings WHERE name = 'additions'")
    with Index.open(path) as index:
        before = index.commit
        assert index.search(features(3), since=before) == []
        with pytest.raises(OptionError, match="what was added before is not recorded"):
            index.search(features(3), since=before - 1)
    with IndexWriter.open(path) as writer:
        writer.add("one more", features(3))
    with Index.open(path) as index:
        assert [hit.path for hit in index.search(features(3), since=before)] == ["one more"]
        with pytest.raises(OptionError, match="what was added before is not recorded"):
            index.search(features(3), since=before - 1)
