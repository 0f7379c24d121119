"""Hessian-affine features of real photographs, by pyhesaff itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyvoc.errors import ImageError, OptionError
from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.datasets.hessian_affine import HessianAffine, extract_hessian_affine, has_pyhesaff
from polyvoc.experiments.workbench import Workbench, no_progress
from polyvoc.options import TrainOptions
from polyvoc.vocabulary.vocabulary import default_vocabularies
from samples import photograph

pytestmark = pytest.mark.skipif(not has_pyhesaff(), reason="pyhesaff is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two photographs, the first one at half its size, and a file that is none."""
    folder = tmp_path_factory.mktemp("photographs")
    first = Path(photograph(folder / "0.png", 1))
    image = Image.open(first).resize((800, 600), Image.Resampling.LANCZOS)
    image.save(first)
    image.resize((400, 300), Image.Resampling.LANCZOS).save(folder / "1.png")
    (folder / "2.png").write_text("no photograph")
    return [first, folder / "1.png", folder / "2.png"]


def test_features_have_positions_scales_and_sift(files: list[Path]) -> None:
    (_, large), (_, small), (path, broken) = extract_hessian_affine(files, HessianAffine())
    assert isinstance(broken, ImageError) and path == files[2]
    assert not isinstance(large, ImageError) and not isinstance(small, ImageError)
    assert len(large) > len(small) > 20 and large.descriptors.shape == (len(large), 128)
    assert (large.xy > 0).all() and (large.xy < (800, 600)).all() and (large.scale > 0).all()
    lengths = np.linalg.norm(large.descriptors.astype(float), axis=1)
    assert np.abs(lengths - 512).max() < 20  # SIFT of length 1, 512 times as large


def test_a_reduced_photograph_has_the_positions_of_the_full_one(files: list[Path]) -> None:
    ((_, whole),) = extract_hessian_affine(files[:1], HessianAffine())
    ((_, reduced),) = extract_hessian_affine(files[:1], HessianAffine(long_side=400))
    assert not isinstance(whole, ImageError) and not isinstance(reduced, ImageError)
    assert len(reduced) < len(whole) and reduced.xy[:, 0].max() > 400  # in pixels of the full size
    assert np.median(reduced.scale) > np.median(whole.scale)


def test_a_store_keeps_them_apart_from_other_features(files: list[Path], tmp_path: Path) -> None:
    bench = Workbench(tmp_path, HessianAffine())
    store = bench.store(files)
    assert isinstance(store, FeatureStore) and [problem.path for problem in store.problems] == [str(files[2])]
    assert store.digest != Workbench(tmp_path).store(files).digest
    trained = bench.vocabulary(store, TrainOptions(20, rounds=2, bits=64))
    assert str(trained.kind) == "hessian-affine (128 numbers)"


def test_vocabularies_of_other_features_are_refused(files: list[Path], tmp_path: Path) -> None:
    from polyvoc.experiments.datasets.readers import Dataset, Question
    from polyvoc.experiments.measures import Truth

    question = Question("0", files[0], 0)
    dataset = Dataset("two", tmp_path, "photographs", tuple(files[:2]), (question,), {"": (Truth(frozenset({1})),)}, "mAP")
    with pytest.raises(OptionError, match="datasets are read as hessian-affine, the vocabulary is of sift"):
        Workbench(tmp_path, HessianAffine(), no_progress).bench(dataset, default_vocabularies(1))
