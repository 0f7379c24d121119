"""Datasets and benches to experiment with: of random worlds, of photographs, of descriptors drawn on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.datasets.descriptor_files import SiftFeatures, write_siftgeo
from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.datasets.readers import Dataset, Question
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.workbench import Quantised, QuantisedDataset
from polyvoc.types import FeatureKind
from random_collections import World
from samples import vocabularies


def never(*arguments: Any, **options: Any) -> Any:
    """Replaces what must not be called again."""
    raise AssertionError("done before")


class BareStore(FeatureStore):
    """A store of files that have features, without keypoints."""

    def geometry(self, file: int) -> npt.NDArray[np.float32]:
        return np.zeros((int(self.starts[file + 1] - self.starts[file]), 4), np.float32)


def world_bench(world: World) -> QuantisedDataset:
    """Return the bench of a world: its images are the database, its query asks from outside."""
    n_images = len(world.images)
    counts = [len(words) for words in (*world.images, world.words)]
    files = tuple(Path(str(number)) for number in range(n_images + 1))
    store = BareStore(files, "world", (), np.array([0]), np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), ())
    question = Question("query", files[-1], None)
    truths = {"": (Truth(frozenset({0})),)}
    dataset = Dataset("world", Path(), "photographs", files[:-1], (question,), truths, "mAP")
    signatures = np.concatenate([*world.image_signatures, world.query_signatures])
    bits = 64 * (signatures.shape[2] if signatures.ndim == 3 else 1)
    vocabularies: Any = tuple(SimpleNamespace(size=size, bits=bits, kind=FeatureKind()) for size in world.sizes)
    quantised = Quantised(store, np.concatenate([*world.images, world.words]), signatures, vocabularies)
    return QuantisedDataset(dataset, tuple(world.sizes), "world", lambda: quantised)


def bench_of(
    images: list[Any], signatures: list[Any] | None, questions: list[Question], truths: dict[str, tuple[Truth, ...]]
) -> QuantisedDataset:
    """Return a bench of bare words; images beyond those that questions name in the database come last."""
    outside = sum(question.image is None for question in questions)
    files = tuple(Path(f"{number}.jpg") for number in range(len(images)))
    starts = np.concatenate([[0], np.cumsum([len(words) for words in images])]).astype(np.int64)
    dataset = Dataset("test", Path(), "photographs", files[: len(files) - outside], tuple(questions), truths, "mAP")
    store = BareStore(files, "", (), np.array([0]), starts, ())
    bits = None if signatures is None else np.concatenate(signatures)
    words = tuple(vocabularies(images[0].shape[1], size=40))
    quantised = Quantised(store, np.concatenate(images), bits, words)
    return QuantisedDataset(dataset, tuple(one.size for one in words), "test", lambda: quantised)


def unsigned(bench: QuantisedDataset) -> QuantisedDataset:
    """Return a bench without signatures."""
    return replace(bench, load=lambda: bench.load()._replace(signatures=None))


def described(n: int, seed: int = 0, dimension: int = 128) -> SiftFeatures:
    """Return n random features of a picture of 100 x 100 pixels."""
    rng = np.random.default_rng([4, seed])
    xy, scale, angle = rng.uniform(0, 100, (n, 2)), rng.uniform(1, 9, n), rng.uniform(0, 359, n)
    values = rng.integers(0, 256, (n, dimension))
    return SiftFeatures(xy.astype(np.float32), scale.astype(np.float32), angle.astype(np.float32), values.astype(np.uint8))


def write_descriptors(folder: Path, counts: Sequence[int]) -> list[Path]:
    """Write a `.siftgeo` file of random features for each count."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:04d}.siftgeo" for number in range(len(counts))]
    for number, (file, count) in enumerate(zip(files, counts, strict=True)):
        write_siftgeo(file, described(count, number))
    return files
