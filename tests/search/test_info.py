"""What an index holds, and the distributions of its lists: counted by hand, one feature at a time."""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.search.info import _sample, disk_bytes, index_distributions, index_info, list_images
from samples import build, collection, unflushed, vocabularies

__all__ = ["unflushed"]


def live_words(index: Index) -> np.ndarray:
    """Return the words of all features [F, K]."""
    parts = [segment.live_batch().words for segment in index.engine.segments]
    return np.concatenate([np.empty((0, len(index.engine.sizes)), np.int64), *parts])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_distributions_count_every_list_and_ratio(k: int, tmp_path: Path) -> None:
    index = build(tmp_path / "a.polyvoc", collection(30), vocabularies(k), commits=3)
    with IndexWriter.open(index.folder.path) as writer:
        writer.remove(["image 2", "image 25"])
    index = Index.open(index.folder.path)
    assert any(len(segment.alive) for segment in index.engine.segments)
    found = index_distributions(index)
    words = live_words(index)
    assert json.loads(json.dumps(found)) == found
    assert found["sampled_features"] == len(words)  # few enough to take all
    for one, column, size in zip(found["list_lengths"], words.T, index.engine.sizes, strict=True):
        lengths = np.bincount(column, minlength=size)
        filled = lengths[lengths > 0]
        assert (one["longest"], one["empty"], one["median"]) == (filled.max(), size - len(filled), np.median(filled))
        assert one["edges"] == [2**i for i in range(len(one["edges"]))] and one["edges"][-2] <= filled.max() < one["edges"][-1]
        assert one["counts"] == [int(((filled >= low) & (filled < 2 * low)).sum()) for low in one["edges"][:-1]]
    wanted = [*combinations(range(k), 2), *([(0, 1, 2)] if k == 3 else [])]
    assert [one["vocabularies"] for one in found["ratios"]] == [[number + 1 for number in one] for one in wanted]
    for one, numbers in zip(found["ratios"], wanted, strict=True):
        same = words[:, None, numbers] == words[None, :, numbers]
        ratios = same.all(axis=2).sum(axis=1) / same.any(axis=2).sum(axis=1)
        assert one["edges"] == pytest.approx(np.arange(21) / 20)
        assert one["counts"] == np.histogram(ratios, 20, (0, 1))[0].tolist()
        assert one["mean"] == pytest.approx(ratios.mean(), abs=1e-6)


def test_a_sample_is_evenly_spaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "a.polyvoc", collection(30), commits=2)
    words = live_words(index)
    for limit in (1, 7, 50, len(words)):
        monkeypatch.setattr("polyvoc.search.info.SAMPLE", limit)
        found = index_distributions(index)
        assert found == index_distributions(index)
        assert found["sampled_features"] == limit == sum(found["ratios"][0]["counts"])
        assert np.array_equal(_sample(index.engine), words[np.arange(limit) * len(words) // limit])


def test_an_empty_index_has_empty_lists(tmp_path: Path) -> None:
    index = build(tmp_path / "a.polyvoc", {"nothing": collection(7)["image 6"]}, vocabularies(3))
    with IndexWriter.open(tmp_path / "b.polyvoc", vocabularies(3)):
        pass
    for opened in (index, Index.open(tmp_path / "b.polyvoc")):
        found = index_distributions(opened)
        assert found["sampled_features"] == 0
        for one, size in zip(found["list_lengths"], opened.engine.sizes, strict=True):
            assert one == {"edges": [1, 2], "counts": [0], "median": 0.0, "longest": 0, "empty": size}
        assert len(found["ratios"]) == 4
        assert all(one["mean"] is None and one["counts"] == [0] * 20 for one in found["ratios"])


def test_index_info(tmp_path: Path) -> None:
    index = build(tmp_path / "a.polyvoc", collection(10), commits=2)
    with IndexWriter.open(index.folder.path) as writer:
        writer.remove(["image 2"])
    index = Index.open(index.folder.path)
    info = index_info(index)
    assert json.loads(json.dumps(info)).keys() == info.keys()
    rows = list(index.images())
    expected = {"index": str(index.folder.path), "format": 3, "commit": index.commit, "images": 9, "segments": 2, "deleted": 1}
    assert {name: info[name] for name in expected} == expected
    assert info["features"] == sum(row.n_features for row in rows) and info["default_options"]["merge"] == "b1"
    assert [vocabulary["size"] for vocabulary in info["vocabularies"]] == list(index.engine.sizes)
    sizes = dict(info["bytes"])
    assert sizes.pop("total") == sum(sizes.values()) and {"catalogue", "vocabularies", "segments/words"} <= set(sizes)
    assert [(one["image"], one["path"], one["name"]) for one in list_images(index)] == [(r.image, r.path, r.path) for r in rows]


def test_bytes_are_counted_while_a_writer_deletes_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "a.polyvoc", collection(30), commits=2)
    whole, gone = disk_bytes(index.folder), max((tmp_path / "a.polyvoc/segments").iterdir())
    scan = os.scandir

    def deleted(folder: str | os.PathLike[str]) -> object:
        if Path(folder) == gone:
            raise FileNotFoundError(folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", deleted)
    assert 0 < sum(disk_bytes(index.folder).values()) < sum(whole.values())
