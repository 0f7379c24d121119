"""How well do other features rank, and what do they cost? SIFT, affine regions, ORB, and SIFT of 64 numbers given as arrays.

    python benchmarks/features.py --holidays FOLDER --ukbench FOLDER --train FOLDER --work FOLDER

Every kind has vocabularies trained on the same photographs in the same way; affine regions have those of SIFT, as a user of the
shipped ones would. Tables of evidence: the one that comes with polyvoc, which was fitted on SIFT of both sets; and one that an index of the other set learns from itself, as `polyvoc calibrate --index` does.
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
from polyvoc.vocabulary.vocabulary import Vocabulary

TRAINING = 1000  # photographs
DESCRIPTORS = 400_000  # of them
VOCABULARIES = 2
WORDS = 20_000
ROUNDS = 10
TIMED = 8  # photographs, on one thread
SHORT = 64  # numbers of "sift-64"


@dataclass(frozen=True, eq=False)
class Turn:
    """Principal axes of descriptors: the first few numbers along them."""

    mean: Floats32  # [dimension]
    axes: Floats32  # [dimension, SHORT]

    @classmethod
    def of(cls, descriptors: Floats32) -> Turn:
        mean = descriptors.mean(axis=0)
        _, axes = np.linalg.eigh(np.cov((descriptors - mean).T))
        return cls(mean, axes[:, ::-1][:, :SHORT].astype(np.float32))

    def __call__(self, descriptors: npt.NDArray[Any]) -> Floats32:
        return (descriptors - self.mean) @ self.axes


@dataclass(frozen=True, eq=False)
class Feature:
    """A kind of feature: what finds it, and what is done to its descriptors."""

    name: str
    options: FeatureOptions
    words: str  # whose vocabularies it has
    turn: Callable[[], Turn] | None = None

    def made(self, found: Features) -> Features:
        return found if self.turn is None else replace(found, descriptors=self.turn()(found.descriptors), name=self.name)

    def vocabularies(self, paths: list[Path], work: Path) -> list[Vocabulary]:
        """Train what is not trained yet."""
        folders = [work / f"{self.words}-words-{seed}" for seed in range(VOCABULARIES)]
        if not all(folder.is_dir() for folder in folders):
            sample = sample_descriptors(paths, self.options, limit=DESCRIPTORS)
            if self.turn is not None:
                sample = Sample(self.turn()(sample.descriptors), sample.provenance, name=self.name)
            for seed, folder in enumerate(folders):
                if not folder.is_dir():
                    train(sample, TrainOptions(size=WORDS, seed=seed, rounds=ROUNDS), source="Flickr8k").save(folder)
                    print("trained", folder.name, flush=True)
        return [Vocabulary.load(folder) for folder in folders]

    def index(self, dataset: Dataset, words: list[Vocabulary], work: Path) -> Index:
        """Index a dataset, unless it is there, whole."""
        place = work / f"{self.name}-{dataset.name}.polyvoc"
        if not place.is_dir() or len(Index.open(place)) < len(dataset.images):
            with IndexWriter.open(place, words) as writer:
                for path, found in extract_many(dataset.images, self.options):
                    if isinstance(found, ImageError):
                        print(found, flush=True)
                    else:
                        writer.add(str(path), self.made(found))
        return Index.open(place)

    def seconds(self, dataset: Dataset) -> float:
        """Seconds to extract one photograph, on one thread: the median of some."""
        spent = []
        for path in dataset.images[:: len(dataset.images) // TIMED][:TIMED]:
            begin = time.perf_counter()
            self.made(extract(path, self.options))
            spent.append(time.perf_counter() - begin)
        return float(np.median(spent))


def features(paths: list[Path]) -> Iterator[Feature]:
    yield Feature("sift", FeatureOptions(), "sift")
    yield Feature("affine", FeatureOptions(detector="affine"), "sift")
    turn = cache(lambda: Turn.of(sample_descriptors(paths[:200], limit=DESCRIPTORS).descriptors))
    yield Feature(f"sift-{SHORT}", FeatureOptions(), f"sift-{SHORT}", turn)
    yield Feature("orb", FeatureOptions(detector="orb"), "orb")


def learnt(index: Index) -> LikelihoodTable | None:
    """Fit a table to what an index shows of itself, if it shows enough."""
    try:
        return fit_table_pairs(index, find_pairs(index))
    except OptionError as error:
        print("no table:", error, flush=True)
        return None


def ways(bits: int, table: LikelihoodTable | None) -> dict[str, SearchOptions]:
    """What is compared; `table` was learnt on other photographs of the same kind of feature."""
    signed = SearchOptions(hamming=3 * bits // 8, sigma=bits / 4, burstiness="best")
    fast, default = preset("fast", bits), preset("default", bits)
    named = {
        "b1": SearchOptions(merge="b1"),
        "posterior": SearchOptions(merge="posterior"),
        "b1 + HE + best": replace(signed, merge="b1"),
        "posterior + HE + best": replace(signed, merge="posterior"),
        "fast, shipped table": fast,
        "default, shipped table": default,
    }
    if table is not None:
        named |= {"fast, own table": replace(fast, evidence=table), "default, own table": replace(default, evidence=table)}
    return named


def judge(index: Index, dataset: Dataset, options: SearchOptions) -> float:
    """Mean of the measure that the dataset is known by."""
    measure = MEASURES[dataset.measure]
    number_of = {str(path): number for number, path in enumerate(dataset.images)}
    image_of = {number_of[row.path]: row.image for row in index.images()}
    values = []
    for question, truth in zip(dataset.questions, dataset.truths[""], strict=True):
        assert question.image is not None
        asked = image_of.get(question.image)
        hits = [] if asked is None else index.search(asked, len(dataset.images), options)
        told = [number_of[hit.path] for hit in hits]
        rest = np.setdiff1d(np.arange(len(dataset.images)), told)
        values.append(measure(np.array([*told, *rest], np.int64), truth) or 0.0)
    return measure.scale * float(np.mean(values))


def measured(feature: Feature, sets: dict[str, Dataset], paths: list[Path], work: Path) -> dict[str, Any]:
    """All of one kind of feature."""
    words = feature.vocabularies(paths, work)
    indexes = {name: feature.index(dataset, words, work) for name, dataset in sets.items()}
    tables = {name: learnt(index) for name, index in indexes.items()}
    told: dict[str, Any] = {"kind": str(words[0].kind), "bits": words[0].bits}
    for name, dataset in sets.items():
        other = next(key for key in sets if key != name)
        counts = [row.n_features for row in indexes[name].images()]
        named = ways(words[0].bits, tables[other])
        ranked = {way: judge(indexes[name], dataset, options) for way, options in named.items()}
        table = tables[name]
        told[name] = {"features_per_photograph": float(np.mean(counts)), "photographs": len(counts), "ranked": ranked,
                      "seconds_per_photograph": feature.seconds(dataset), "table": table and table.source}  # fmt: skip
        print(feature.name, name, {way: round(value, 3) for way, value in ranked.items()}, flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("holidays", "ukbench", "train", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="kinds to measure now; the others are written as they were measured before")
    parser.add_argument(
        "--times", action="store_true", help="take the times of all kinds anew: on a quiet machine, with an empty --only"
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
            file.write_text(json.dumps(measured(feature, sets, paths, arguments.work)), encoding="utf-8")
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
