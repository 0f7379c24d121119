"""The accuracy of the shipped presets does not fall: on a synthetic world, and on photographs where there are any.

`POLYVOC_PHOTOGRAPHS` names a folder that holds `holidays150` (of INRIA Holidays: 100000.jpg, 100001.jpg, ...) and `ukbench500`
(of Ukbench: ukbench00000.jpg, ...); without it those tests are skipped. When a preset becomes better, measure again.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.datasets.synthetic import WorldOptions, read_world, training_images
from polyvoc.experiments.evaluate import measure_ranking
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import Merge, Preset, SearchOptions, TrainOptions, preset
from polyvoc.vocabulary.train import train
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary, default_vocabularies
from random_collections import plain
from samples import VARIABLE

FOLDERS = {"holidays": "holidays150", "ukbench": "ukbench500"}
GROUPS = {"holidays": 40, "ukbench": 30}  # the first ones: 113 and 120 photographs, without distractors
RULES: tuple[Merge, ...] = ("bayes", "b1", "b2")  # of the paper, with its options: the preset `paper`
SIGNED = {"": 0, " + HE": 128}  # bits of signatures
# What was measured, mAP and N-S, and how much less is still right: other processors round differently.
MEASURED: dict[str, dict[str, float]] = {
    "holidays": {"fast": 0.9443, "default": 0.9363, "best": 0.9356, "bayes": 0.6745, "b1": 0.6633, "b2": 0.5741,
                 "bayes + HE": 0.9604, "b1 + HE": 0.9517, "b2 + HE": 0.8682},
    "ukbench": {"fast": 3.967, "default": 3.967, "best": 4.0, "bayes": 3.558, "b1": 3.567, "b2": 3.433,
                "bayes + HE": 3.967, "b1 + HE": 3.95, "b2 + HE": 3.867},
}  # fmt: skip
MARGIN = {"holidays": 0.015, "ukbench": 0.04}
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


@pytest.fixture(scope="module", params=MEASURED)
def photographs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, float]]:
    """The name of a set of photographs, and what its first groups reach now."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder with holidays150 and ukbench500")
    place = Path(folder) / FOLDERS[request.param]
    if not place.is_dir():
        pytest.skip(f"{VARIABLE}={folder} has no folder {place.name}")
    dataset = first_groups(READERS[request.param](place), GROUPS[request.param])
    workbench = Workbench(tmp_path_factory.mktemp("photographs"))
    bench = workbench.bench(dataset, default_vocabularies(), default_fine_vocabulary())
    return request.param, {name: accuracy(bench, options) for name, options in searches().items()}


def searches() -> dict[str, SearchOptions]:
    """Return the presets, and the rules of the paper with and without Hamming Embedding and burstiness, by name."""
    rules = {f"{rule}{suffix}": replace(preset("paper", bits), merge=rule) for rule in RULES for suffix, bits in SIGNED.items()}
    return {name: preset(name, 0, 128) for name in get_args(Preset)[:3]} | rules


def test_presets_and_rules_keep_their_accuracy_on_photographs(photographs: tuple[str, dict[str, float]]) -> None:
    name, reached = photographs
    lost = {rule: value for rule, value in reached.items() if value < MEASURED[name][rule] - MARGIN[name]}
    assert not lost, f"measured {MEASURED[name]}"


def test_bayes_merging_is_above_the_sum_above_the_intersection(photographs: tuple[str, dict[str, float]]) -> None:
    """The order of the paper; at least half of each gain that was measured is left.

    On these few groups of Ukbench, Bayes merging without signatures gains nothing: there only the floor holds.
    """
    name, reached = photographs
    for better, worse in ((f"{one}{suffix}", f"{other}{suffix}") for one, other in pairwise(RULES) for suffix in SIGNED):
        measured, now = (values[better] - values[worse] for values in (MEASURED[name], reached))
        assert now >= measured / 2 or (name, better) == ("ukbench", "bayes"), (better, worse, measured, now)


def test_presets_are_above_the_sum_without_signatures(photographs: tuple[str, dict[str, float]]) -> None:
    _, reached = photographs
    assert min(reached[name] for name in get_args(Preset)[:3]) > reached["b1"]
