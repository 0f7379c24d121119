"""Training on a cluster equals training on one machine: the same sample, the same words, also if processes fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clusters import PATIENCE, Nodes, quiet, ray
from commands import answer
from polyvoc.cluster.connect import WorkerCheck, versions
from polyvoc.cluster.train import RayTrainWorkers
from polyvoc.errors import ClusterError
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.types import Floats32
from polyvoc.vocabulary.assign import Cells
from polyvoc.vocabulary.train import PointSet, Sample, sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary

pytestmark = [*quiet, pytest.mark.usefixtures("nodes")]
FEATURES = FeatureOptions(max_features=60)
CELLS = TrainOptions(size=2500, bits=8, rounds=3, max_descriptors=5000)  # so many words that cells are needed


@pytest.fixture(scope="module")
def workers(nodes: Nodes) -> RayTrainWorkers:
    return RayTrainWorkers("auto")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """More than one task takes, with a broken one among them."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(37):
        small = rng.integers(0, 255, (12, 16), dtype=np.uint8)
        Image.fromarray(small).resize((160, 120)).save(folder / f"{number:02}.png")
    (folder / "20.png").write_bytes(b"not a photograph")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def descriptors() -> Floats32:
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 10, (40, 16))
    return (centres[rng.integers(0, 40, 6000)] + rng.normal(0, 1, (6000, 16))).astype(np.float32)


def assert_equal(one: Vocabulary, other: Vocabulary) -> None:
    assert one.fingerprint == other.fingerprint
    assert np.array_equal(one.centroids, other.centroids)
    assert one.thresholds is not None and other.thresholds is not None
    assert np.array_equal(one.thresholds, other.thresholds)
    assert one.provenance == other.provenance


@pytest.mark.parametrize("limit", [1, 100, 700, 100_000])  # pruned often, seldom, at the end, not at all
def test_the_sample_is_that_of_one_machine(workers: RayTrainWorkers, images: list[Path], limit: int) -> None:
    steps: list[tuple[int, int]] = []
    local = sample_descriptors(images, FEATURES, limit, seed=3)
    remote = sample_descriptors(images, FEATURES, limit, 3, lambda *step: steps.append(step), workers)
    assert np.array_equal(local.descriptors, remote.descriptors)
    assert local.provenance == remote.provenance
    assert local.problems == remote.problems
    assert [Path(problem.path).name for problem in remote.problems] == ["20.png"]
    assert steps == [(done, 37) for done in range(1, 38)]


@pytest.mark.parametrize("name", ["deadly.png", "endless.png"], ids=["crashes", "never ends"])
def test_a_failing_image_is_isolated_and_reported(name: str, images: list[Path], tmp_path: Path) -> None:
    paths = [images[0], tmp_path / name, *images[1:4]]
    paths[1].write_bytes(images[0].read_bytes())
    workers = RayTrainWorkers("auto", 2, WorkerCheck(timeout=PATIENCE))
    sample = sample_descriptors(paths, FEATURES, 100, workers=workers)
    assert [problem.path for problem in sample.problems] == [str(paths[1])]
    assert "remove it" in sample.problems[0].reason
    paths[1] = Path("/no/such.png")  # another image that cannot be read, in its place
    assert np.array_equal(sample.descriptors, sample_descriptors(paths, FEATURES, 100).descriptors)
    assert {task._default_options["max_retries"] for task in (workers._draw_task, workers._assign_task)} == {0}


def test_a_machine_with_another_version_ends_it(images: list[Path]) -> None:
    workers = RayTrainWorkers("auto", 2, WorkerCheck(versions={**versions(), "polyvoc": "0.0.0"}))
    with pytest.raises(ClusterError, match=r"has polyvoc .*, not 0.0.0; install the same version"):
        sample_descriptors(images, FEATURES, 100, workers=workers)


@pytest.mark.parametrize(
    ("options", "count"),
    [(TrainOptions(size=50, bits=16, rounds=5, seed=2), 3), (CELLS, 1), (CELLS, 3)],
    ids=["one cell, 3 workers", "cells, 1 worker", "cells, 3 workers"],
)
def test_the_words_are_those_of_one_machine(descriptors: Floats32, options: TrainOptions, count: int) -> None:
    sample = Sample(descriptors, {"photographs": 7})
    steps: tuple[list[Any], list[Any]] = [], []
    local = train(sample, options, lambda *step: steps[0].append(step), "blobs")
    remote = train(sample, options, lambda *step: steps[1].append(step), "blobs", RayTrainWorkers("auto", count))
    assert_equal(local, remote)
    assert steps[0] == steps[1]


class Watched(RayTrainWorkers):
    """Workers that give access to their actors."""

    def assign_points(self, points: Floats32, cells: Cells) -> PointSet:
        spread = super().assign_points(points, cells)
        self.actors = spread.actors  # type: ignore[attr-defined]
        return spread


def test_an_actor_that_dies_changes_nothing(descriptors: Floats32) -> None:
    workers = Watched("auto", 2)
    killed: list[int] = []

    def kill(number: int, *_: object) -> None:
        ray.kill(workers.actors[number % 2], no_restart=False)
        killed.append(number)

    assert_equal(train(descriptors, CELLS, kill, workers=workers), train(descriptors, CELLS))
    assert killed[:2] == [1, 2]


def test_an_actor_that_is_gone_is_one_line(descriptors: Floats32) -> None:
    workers = Watched("auto", 2)
    with pytest.raises(ClusterError, match=r"ActorDiedError.*see the Ray logs") as caught:
        train(descriptors, CELLS, lambda *_: ray.kill(workers.actors[0]), workers=workers)
    assert "\n" not in str(caught.value)


def test_the_command(images: list[Path], tmp_path: Path) -> None:
    arguments = ["train", images[0].parent, "--size", 40, "--rounds", 2, "--bits", 32, "--max-descriptors", 900]
    local = answer(*arguments, "--out", tmp_path / "local")
    remote = answer(*arguments, "--out", tmp_path / "remote", "--ray", "auto")
    assert local["fingerprint"] == remote["fingerprint"] and local["problems"] == remote["problems"]
    for file in (tmp_path / "local").iterdir():
        assert file.read_bytes() == (tmp_path / "remote" / file.name).read_bytes()
