"""The folder of an index: side files, what a commit refers to, and options that are completed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import DamagedError, LockedError, OptionError
from polyvoc.index.catalogue import IndexSettings
from polyvoc.index.folder import (
    DUPLICATE_PAIRS,
    LINKS,
    IndexFolder,
    SideFile,
    complete_feature_options,
    lock_folder,
)
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.vocabulary.vocabulary import VocabularySet
from samples import build, collection, unflushed, vocabularies

__all__ = ["unflushed"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build(tmp_path / "index", collection(9), commits=3).close()
    return tmp_path / "index"


# -- side files


def test_a_side_file_is_replaced_and_read_back(path: Path) -> None:
    with IndexWriter.open(path) as writer:
        commit = writer.catalogue.setting("commit")
        for serial, values in enumerate((np.arange(5), np.arange(7), np.empty(0, np.int64)), start=1):
            writer.save_side_file(LINKS, values, {"number": serial})
            side = writer.folder.side_file(LINKS)
            assert side is not None and (side.serial, side.rows, side.extra) == (serial, len(values), {"number": serial})
            assert np.array_equal(writer.folder.map_side_file(side, np.int64), values)
            assert [file.name for file in (path / LINKS).iterdir()] == [f"{serial:06d}.npy"]
        assert writer.catalogue.setting("commit") == commit  # readers need not open the index again
        writer.save_side_file(LINKS, np.arange(3), new_snapshot=True)
        assert writer.catalogue.setting("commit") == commit + 1
        assert writer.folder.side_file(DUPLICATE_PAIRS) is None


@pytest.mark.parametrize("odd", [[], "text", -1, {"surprise": 1}, {"serial": 1, "rows": -1, "checksum": ""}])
def test_an_odd_setting_raises(odd: Any) -> None:
    settings = IndexSettings(Path("index/catalogue.sqlite"))
    settings[LINKS] = odd
    with pytest.raises(DamagedError, match=r"setting 'links' cannot be .* run 'polyvoc check'"):
        SideFile.of(LINKS, settings)


def test_a_damaged_setting_is_there_and_raises() -> None:
    settings = IndexSettings(Path("catalogue.sqlite"))
    assert LINKS not in settings and SideFile.of(LINKS, settings) is None
    settings.damaged.add(LINKS)
    assert LINKS in settings
    with pytest.raises(DamagedError, match="'links' is missing or damaged"):
        SideFile.of(LINKS, settings)


def test_a_side_file_comes_back_from_its_setting() -> None:
    side, settings = SideFile(LINKS, 3, 5, "abc", {"commit": 7}), IndexSettings(Path("catalogue.sqlite"))
    settings[LINKS] = side.as_setting()
    assert SideFile.of(LINKS, settings) == side
    settings[LINKS] = None
    assert SideFile.of(LINKS, settings) is SideFile.of(DUPLICATE_PAIRS, settings) is None


# -- what a commit refers to


def test_a_layout_is_that_of_the_last_commit(tmp_path: Path) -> None:
    folder = IndexFolder(tmp_path / "index")
    build(folder.path, collection(12), commits=2).close()
    before = folder.read_layout()
    assert [(part.n_images, part.deleted) for part in before.parts] == [(6, ())] * 2
    with IndexWriter.open(folder.path) as writer:
        writer.remove(["image 3"])
    after = folder.read_layout()
    assert after.commit > before.commit and after.kind == before.kind and after.kind.sizes == (30, 33)
    assert [(part.n_images, part.deleted) for part in after.parts] == [(6, (3,)), (6, ())]
    live = [segment.live_positions().tolist() for segment in folder.read_segments(after, lambda *_: pytest.fail("damage"))]
    assert live == [[0, 1, 2, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_loaded_models_are_shared_by_snapshots(path: Path) -> None:
    folder = IndexFolder(path)
    assert folder.again().models is folder.models and folder.again().catalogue is not folder.catalogue
    assert folder.exists and folder.identity == folder.again().identity
    assert not IndexFolder(path / "none").exists and IndexFolder(path / "none").identity is None


def test_a_locked_folder_raises(path: Path) -> None:
    lock = lock_folder(path)
    with pytest.raises(LockedError, match="another process"):
        lock_folder(path)
    lock.release()
    lock_folder(path).release()


# -- options


def test_feature_options_are_completed(path: Path) -> None:
    assert complete_feature_options({}, IndexFolder(path), None) is None
    assert complete_feature_options({"max_features": 7}, IndexFolder(path), None) == FeatureOptions(max_features=7)
    new = complete_feature_options({"max_features": 7}, IndexFolder(path / "new"), VocabularySet.of(vocabularies()))
    assert new == FeatureOptions(max_features=7)


def test_features_that_polyvoc_does_not_extract(path: Path) -> None:
    with pytest.raises(OptionError, match=r"holds sift \(12 numbers\), which polyvoc does not extract"):
        _ = IndexFolder(path).extraction
