"""Shared by the tests of experiments: a workbench and the photographs on it, and an index of views."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyvoc.experiments.datasets.readers import read_groups
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.vocabulary.vocabulary import Vocabulary
from samples import unflushed

__all__ = ["unflushed"]


@pytest.fixture(scope="module")
def workbench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    return Workbench(tmp_path_factory.mktemp("cache"), FeatureOptions(max_features=80))


@pytest.fixture(scope="module")
def bench(workbench: Workbench, photographs: Path, vocabularies: tuple[Vocabulary, ...]) -> QuantisedDataset:
    return workbench.bench(read_groups(photographs), vocabularies)


@pytest.fixture
def index(views_index: Path) -> Index:
    return Index.open(views_index)
