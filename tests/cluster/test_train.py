"""Training on a cluster is training on one machine: the same sample, the same words, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import clusters
import commands
from polyvoc.cluster.connect import WorkerCheck, versions
from polyvoc.cluster.train import RayTrainWorkers
from polyvoc.errors import ClusterError
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.types import Floats32
from polyvoc.vocabulary.assign import Cells
from polyvoc.vocabulary.train import PointSet, Sample, sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary

pytestmark = clusters.quiet
FEATURES = FeatureOptions(max_features=60)
CELLS = TrainOptions(size=2500, bits=8, rounds=3, max_descriptors=5000)  # so many words that cells are needed


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of two machines."""
    with clusters.cluster(2):
        yield clusters.ray


@pytest.fixture(scope="module")
def cluster(ray: Any) -> RayTrainWorkers:
    return RayTrainWorkers("auto")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """More than one task takes, with a broken one among them."""
    folder = tmp_path_factory.mktemp("photographs")
    random = np.random.default_rng(0)
    for number in range(37):
        small = random.integers(0, 255, (12, 16), dtype=np.uint8)
        Image.fromarray(small).resize((160, 120)).save(folder / f"{number:02}.png")
    (folder / "20.png").write_bytes(b"not a photograph")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def descriptors() -> Floats32:
    random = np.random.default_rng(0)
    centres = random.normal(0, 10, (40, 16))
    return (centres[random.integers(0, 40, 6000)] + random.normal(0, 1, (6000, 16))).astype(np.float32)


def assert_equal(one: Vocabulary, other: Vocabulary) -> None:
    assert one.fingerprint == other.fingerprint
    assert np.array_equal(one.centroids, other.centroids)
    assert one.thresholds is not None and other.thresholds is not None
    assert np.array_equal(one.thresholds, other.thresholds)
    assert one.provenance == other.provenance


@pytest.mark.parametrize("limit", [1, 100, 700, 100_000])  # pruned often, seldom, at the end, not at all
def test_the_sample_is_that_of_one_machine(cluster: RayTrainWorkers, photographs: list[Path], limit: int) -> None:
    steps: list[tuple[int, int]] = []
    here = sample_descriptors(photographs, FEATURES, limit, seed=3)
    there = sample_descriptors(photographs, FEATURES, limit, 3, lambda *step: steps.append(step), cluster)
    assert np.array_equal(here.descriptors, there.descriptors)
    assert here.provenance == there.provenance
    assert here.problems == there.problems
    assert [Path(problem.path).name for problem in there.problems] == ["20.png"]
    assert steps == [(done, 37) for done in range(1, 38)]


def test_a_photograph_that_kills_is_found_and_reported(ray: Any, photographs: list[Path]) -> None:
    class Deadly(type(Path())):  # type: ignore[misc]
        def __fspath__(self) -> str:
            os.kill(os.getpid(), signal.SIGKILL)
            return ""

    paths = [photographs[0], Deadly("/deadly.png"), *photographs[1:4]]
    there = sample_descriptors(paths, FEATURES, 100, workers=RayTrainWorkers("auto", 2))
    assert [problem.path for problem in there.problems] == ["/deadly.png"]
    assert there.problems[0].reason == "/deadly.png: every process that reads it dies; remove it"
    paths[1] = Path("/no/such.png")  # a broken photograph in its place
    assert np.array_equal(there.descriptors, sample_descriptors(paths, FEATURES, 100).descriptors)


def test_a_photograph_that_never_ends_or_dies_is_tried_a_few_times(ray: Any, photographs: list[Path], tmp_path: Path) -> None:
    """Not as often as Ray likes: it never stops if what a photograph takes is memory."""
    tried = tmp_path / "tried"

    class Endless(type(Path())):  # type: ignore[misc]
        def __fspath__(self) -> str:
            with tried.open("a") as told:
                told.write("!")
            time.sleep(1000)
            return ""

    workers = RayTrainWorkers("auto", 2, patience=2.0)
    there = sample_descriptors([photographs[0], Endless("/endless.png")], FEATURES, 100, workers=workers)
    assert [problem.path for problem in there.problems] == ["/endless.png"]
    assert len(tried.read_text()) == 2 + 3  # with another one, alone
    assert {task._default_options["max_retries"] for task in (workers._draw, workers._assign)} == {0}


def test_a_machine_with_another_version_ends_it(ray: Any, photographs: list[Path]) -> None:
    workers = RayTrainWorkers("auto", 2)
    workers._terms = WorkerCheck(versions={**versions(), "polyvoc": "0.0.0"})
    with pytest.raises(ClusterError, match=r"has polyvoc .*, not 0.0.0; install the same version on all$"):
        sample_descriptors(photographs, FEATURES, 100, workers=workers)


@pytest.mark.parametrize(
    ("options", "count"),
    [(TrainOptions(size=50, bits=16, rounds=5, seed=2), 3), (CELLS, 1), (CELLS, 3)],
    ids=["one cell, 3 workers", "cells, 1 worker", "cells, 3 workers"],
)
def test_the_words_are_those_of_one_machine(ray: Any, descriptors: Floats32, options: TrainOptions, count: int) -> None:
    sample = Sample(descriptors, {"photographs": 7})
    here: list[Any] = []
    there: list[Any] = []
    alone = train(sample, options, lambda *step: here.append(step), "blobs")
    spread = train(sample, options, lambda *step: there.append(step), "blobs", RayTrainWorkers("auto", count))
    assert_equal(alone, spread)
    assert here == there


class Watched(RayTrainWorkers):
    """Shows its actors."""

    def assign_points(self, points: Floats32, cells: Cells) -> PointSet:
        crowd = super().assign_points(points, cells)
        self.actors = crowd.actors  # type: ignore[attr-defined]
        return crowd


def test_a_worker_that_dies_changes_nothing(ray: Any, descriptors: Floats32) -> None:
    workers = Watched("auto", 2)
    killed: list[int] = []

    def kill(number: int, *_: object) -> None:
        ray.kill(workers.actors[number % 2], no_restart=False)
        killed.append(number)

    assert_equal(train(descriptors, CELLS, kill, workers=workers), train(descriptors, CELLS))
    assert killed[:2] == [1, 2]


def test_a_worker_that_is_gone_is_told_in_one_line(ray: Any, descriptors: Floats32) -> None:
    workers = Watched("auto", 2)
    with pytest.raises(ClusterError, match=r"^the cluster gave up \(ActorDiedError: .*memory left$"):
        train(descriptors, CELLS, lambda *_: ray.kill(workers.actors[0]), workers=workers)


def test_the_command(ray: Any, photographs: list[Path], tmp_path: Path) -> None:
    arguments = ["train", photographs[0].parent, "--size", 40, "--rounds", 2, "--bits", 32, "--max-descriptors", 900]
    here = commands.answer(*arguments, "--out", tmp_path / "here")
    there = commands.answer(*arguments, "--out", tmp_path / "there", "--ray", "auto")
    assert here["fingerprint"] == there["fingerprint"] and here["problems"] == there["problems"]
    for file in (tmp_path / "here").iterdir():
        assert file.read_bytes() == (tmp_path / "there" / file.name).read_bytes()
