"""Accuracy and cost of other features: SIFT, affine regions, ORB, and SIFT of 64 numbers given as arrays.

    python benchmarks/features.py --holidays FOLDER --ukbench FOLDER --train FOLDER --work FOLDER

Every kind has vocabularies trained on the same photographs in the same way; affine regions have those of SIFT, as a user of the
shipped ones would. The search is by words and signatures. Likelihood tables: the one that comes with polyvoc, which was fitted on SIFT of both sets; and one fitted without
labels on an index of the other set, as by `polyvoc calibrate --index`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from machine import write_result
from polyvoc.errors import ImageError, OptionError
from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.fit.likelihood import fit_table_pairs
from polyvoc.experiments.fit.true_matches import find_pairs
from polyvoc.experiments.measures import MEASURES
from polyvoc.features.extract import extract, extract_many
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, SearchOptions, TrainOptions, preset
from polyvoc.search.index import Index
from polyvoc.types import Features, Floats32, LikelihoodTable
from polyvoc.vocabulary.train import Sample, sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet

TRAINING = 1000  # photographs
DESCRIPTORS = 400_000  # of them
VOCABULARIES = 2
WORDS = 20_000
ROUNDS = 10
TIMED = 8  # photographs, on one thread
SHORT = 64  # numbers of "sift-64"


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Projection of descriptors on their first principal axes."""

    mean: Floats32  # [dimension]
    axes: Floats32  # [dimension, SHORT]

    @classmethod
    def of(cls, descriptors: Floats32) -> PrincipalAxes:
        mean = descriptors.mean(axis=0)
        _, axes = np.linalg.eigh(np.cov((descriptors - mean).T))
        return cls(mean, axes[:, ::-1][:, :SHORT].astype(np.float32))

    def __call__(self, descriptors: npt.NDArray[Any]) -> Floats32:
        return (descriptors - self.mean) @ self.axes


@dataclass(frozen=True, eq=False)
class Feature:
    """A kind of feature: its detector, and a projection of its descriptors."""

    name: str
    options: FeatureOptions
    words: str  # the kind whose vocabularies it uses
    axes: Callable[[], PrincipalAxes] | None = None

    def project(self, features: Features) -> Features:
        return (
            features if self.axes is None else replace(features, descriptors=self.axes()(features.descriptors), name=self.name)
        )

    def vocabularies(self, paths: list[Path], work: Path) -> list[Vocabulary]:
        """Return the vocabularies; train those that are missing."""
        folders = [work / f"{self.words}-words-{seed}" for seed in range(VOCABULARIES)]
        if not all(folder.is_dir() for folder in folders):
            sample = sample_descriptors(paths, self.options, limit=DESCRIPTORS)
            if self.axes is not None:
                sample = Sample(self.axes()(sample.descriptors), sample.provenance, name=self.name)
            for seed, folder in enumerate(folders):
                if not folder.is_dir():
                    options = TrainOptions(size=WORDS, seed=seed, rounds=ROUNDS)
                    train(sample, options, source="Flickr8k", codes=False).save(folder)
                    print("trained", folder.name, flush=True)
        return [Vocabulary.load(folder) for folder in folders]

    def index(self, dataset: Dataset, words: list[Vocabulary], work: Path) -> Index:
        """Return the index of a dataset; make it if it is missing or incomplete."""
        path = work / f"{self.name}-{dataset.name}.polyvoc"
        if not path.is_dir() or len(Index.open(path)) < len(dataset.images):
            with IndexWriter.open(path, VocabularySet.of(words, signed=True, codes=False)) as writer:
                for name, found in extract_many(dataset.images, self.options):
                    if isinstance(found, ImageError):
                        print(found, flush=True)
                    else:
                        writer.add(str(name), self.project(found))
        return Index.open(path)

    def seconds(self, dataset: Dataset) -> float:
        """Return the seconds to extract one photograph, on one thread: the median of some."""
        spent = []
        for path in dataset.images[:: len(dataset.images) // TIMED][:TIMED]:
            begin = time.perf_counter()
            self.project(extract(path, self.options))
            spent.append(time.perf_counter() - begin)
        return float(np.median(spent))


def features(paths: list[Path]) -> Iterator[Feature]:
    yield Feature("sift", FeatureOptions(), "sift")
    yield Feature("affine", FeatureOptions(detector="affine"), "sift")
    axes = cache(lambda: PrincipalAxes.of(sample_descriptors(paths[:200], limit=DESCRIPTORS).descriptors))
    yield Feature(f"sift-{SHORT}", FeatureOptions(), f"sift-{SHORT}", axes)
    yield Feature("orb", FeatureOptions(detector="orb"), "orb")


def fit_own_table(index: Index) -> LikelihoodTable | None:
    """Fit a likelihood table to verified pairs of an index; None if there are too few."""
    try:
        return fit_table_pairs(index, find_pairs(index))
    except OptionError as error:
        print("no table:", error, flush=True)
        return None


def ways(bits: int, table: LikelihoodTable | None) -> dict[str, SearchOptions]:
    """Return the ways of searching; `table` was fitted on other photographs of the same kind of feature."""
    plain = SearchOptions(merge="b1", burstiness="none", verify=0)
    signed = replace(plain, hamming=3 * bits // 8, sigma=bits / 4, burstiness="best")
    fast, default = preset("fast", bits), preset("default", bits)
    named = {
        "b1": plain,
        "posterior": replace(plain, merge="posterior"),
        "b1 + HE + best": signed,
        "posterior + HE + best": replace(signed, merge="posterior"),
        "fast, shipped table": fast,
        "default, shipped table": default,
    }
    if table is not None:
        named |= {
            "fast, own table": replace(fast, likelihood_table=table),
            "default, own table": replace(default, likelihood_table=table),
        }
    return named


def judge(index: Index, dataset: Dataset, options: SearchOptions) -> float:
    """Return the mean of the dataset's usual measure."""
    judged = MEASURES[dataset.measure]
    number_of = {str(path): number for number, path in enumerate(dataset.images)}
    image_of = {number_of[row.path]: row.image for row in index.images()}
    values = []
    for question, truth in zip(dataset.questions, dataset.truths[""], strict=True):
        assert question.image is not None
        image = image_of.get(question.image)
        hits = [] if image is None else index.search(image, replace(options, top=len(dataset.images)))
        ranked = [number_of[hit.path] for hit in hits]
        rest = np.setdiff1d(np.arange(len(dataset.images)), ranked)
        values.append(judged(np.array([*ranked, *rest], np.int64), truth) or 0.0)
    return judged.scale * float(np.mean(values))


def measure(feature: Feature, sets: dict[str, Dataset], paths: list[Path], work: Path) -> dict[str, Any]:
    """Return the results of one kind of feature."""
    words = feature.vocabularies(paths, work)
    indexes = {name: feature.index(dataset, words, work) for name, dataset in sets.items()}
    tables = {name: fit_own_table(index) for name, index in indexes.items()}
    result: dict[str, Any] = {"kind": str(words[0].kind), "bits": words[0].bits}
    for name, dataset in sets.items():
        other = next(key for key in sets if key != name)
        counts = [row.n_features for row in indexes[name].images()]
        named = ways(words[0].bits, tables[other])
        ranked = {way: judge(indexes[name], dataset, options) for way, options in named.items()}
        table = tables[name]
        result[name] = {"features_per_photograph": float(np.mean(counts)), "photographs": len(counts), "ranked": ranked,
                      "seconds_per_photograph": feature.seconds(dataset), "table": table and table.source}  # fmt: skip
        print(feature.name, name, {way: round(value, 3) for way, value in ranked.items()}, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("holidays", "ukbench", "train", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="kinds to measure now; the others keep their last results")
    parser.add_argument(
        "--times", action="store_true", help="measure the times of all kinds again: on a quiet machine, with an empty --only"
    )
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    sets = {name: READERS[name](getattr(arguments, name)) for name in ("holidays", "ukbench")}
    paths = sorted(arguments.train.glob("*.jpg"))
    paths = paths[:: len(paths) // TRAINING][:TRAINING]
    known: dict[str, Any] = {}
    for feature in features(paths):
        file = arguments.work / f"{feature.name}.json"
        if arguments.only is None or feature.name in arguments.only:
            file.write_text(json.dumps(measure(feature, sets, paths, arguments.work)), encoding="utf-8")
        if file.is_file():
            known[feature.name] = json.loads(file.read_text(encoding="utf-8"))
            for name in sets if arguments.times else ():
                known[feature.name][name]["seconds_per_photograph"] = feature.seconds(sets[name])
    training = {
        "photographs": TRAINING,
        "descriptors": DESCRIPTORS,
        "words": WORDS,
        "vocabularies": VOCABULARIES,
        "rounds": ROUNDS,
    }
    print(
        write_result("features", {"training": training, "sets": {n: len(d.images) for n, d in sets.items()}, "features": known})
    )


if __name__ == "__main__":
    main()
