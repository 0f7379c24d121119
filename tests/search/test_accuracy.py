"""The accuracy of the shipped presets does not fall: on a synthetic world, and on photographs where there are any.

`POLYVOC_PHOTOGRAPHS` names a folder that holds `holidays150` (of INRIA Holidays: 100000.jpg, 100001.jpg, ...) and `ukbench500`
(of Ukbench: ukbench00000.jpg, ...); without it those tests are skipped. A floor is a little below what was measured: raise it
when a preset becomes better.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.datasets.synthetic import WorldOptions, read_world, training_images
from polyvoc.experiments.evaluate import measure_ranking
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import Preset, SearchOptions, TrainOptions, preset
from polyvoc.vocabulary.train import train
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary, default_vocabularies
from random_collections import plain
from samples import VARIABLE

GROUPS = 40  # of each set of photographs
B1 = plain(merge="b1")  # what the paper starts from: the lists of all vocabularies, added


def accuracy(bench: QuantisedDataset, options: SearchOptions) -> float:
    """Return the mean of the usual measure of a dataset."""
    values = measure_ranking(bench.dataset, lambda question: bench.scores(question, options))[bench.dataset.measure]
    return float(np.mean([value for value in values if value is not None]))


def first_groups(dataset: Dataset, count: int) -> Dataset:
    """Return the questions of the first groups, and the images up to the last relevant one; images are in order of groups."""
    groups = list(dict.fromkeys(question.group for question in dataset.questions))[:count]
    kept = [number for number, question in enumerate(dataset.questions) if question.group in groups]
    truths = tuple(dataset.truths[""][number] for number in kept)
    last = max(image for truth in truths for image in truth.relevant | truth.junk)
    questions = tuple(dataset.questions[number] for number in kept)
    return replace(dataset, images=dataset.images[: last + 1], questions=questions, truths={"": truths})


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[QuantisedDataset, QuantisedDataset]:
    """A hard world, quantised by three vocabularies of its own: words with signatures alone, and with codes."""
    folder = tmp_path_factory.mktemp("synthetic")
    hard = WorldOptions(groups=40, views=3, distractors=100, features=150, shown=0.3, noise=1.1)
    dataset = read_world(folder / "world", hard)
    workbench = Workbench(folder / "cache")
    training = workbench.store(training_images(folder / "world"), "siftgeo")
    options = TrainOptions(size=500, rounds=5)
    words = [workbench.vocabulary(training, replace(options, seed=seed)) for seed in range(3)]
    descriptors = np.concatenate([training.descriptors(number) for number in range(len(training))])
    fine = train(descriptors, replace(options, size=2000))
    return workbench.bench(dataset, words), workbench.bench(dataset, words, fine)


@pytest.mark.parametrize(
    "coded, floors",
    [
        (False, (0.48, 0.79, 0.84)),  # measured: fast 0.530, default 0.839, best 0.892
        # Measured: fast 0.623, default 0.910, best 0.947; other seeds of the fine vocabulary give up to 0.943 and 0.988.
        (True, (0.55, 0.87, 0.90)),
    ],
    ids=["words", "codes"],
)
def test_presets_keep_their_order_on_a_synthetic_world(
    coded: bool, floors: tuple[float, ...], synthetic: tuple[QuantisedDataset, QuantisedDataset]
) -> None:
    """Measured: b1 0.241."""
    bench = synthetic[coded]
    b1 = accuracy(bench, B1)
    reached = [accuracy(bench, preset(name, 128, 128 * coded)) for name in get_args(Preset)[:3]]
    assert [b1, *reached] == sorted([b1, *reached])
    assert all(value > floor for value, floor in zip(reached, floors, strict=True)), reached


@pytest.fixture(scope="module")
def photographs() -> Path:
    """The folder of the sets of photographs."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder with holidays150 and ukbench500")
    return Path(folder)


@pytest.mark.parametrize(
    "reader, name, floors",
    [
        # Measured: b1 0.686, fast 0.944, default 0.934, best 0.935 (mAP).
        ("holidays", "holidays150", {"fast": 0.92, "default": 0.91, "best": 0.915}),
        # Measured: b1 3.54, fast 3.95, default 3.93, best 3.97 (N-S).
        ("ukbench", "ukbench500", {"fast": 3.90, "default": 3.88, "best": 3.92}),
    ],
)
def test_presets_keep_their_accuracy_on_photographs(
    reader: str, name: str, floors: dict[str, float], photographs: Path, tmp_path: Path
) -> None:
    if not (photographs / name).is_dir():
        pytest.skip(f"{VARIABLE}={photographs} has no folder {name}")
    dataset = first_groups(READERS[reader](photographs / name), GROUPS)
    bench = Workbench(tmp_path).bench(dataset, default_vocabularies(), default_fine_vocabulary())
    reached = {name: accuracy(bench, preset(name, 0, 128)) for name in floors}
    assert all(reached[name] > floor for name, floor in floors.items()), reached
    assert min(reached.values()) > accuracy(bench, B1)
