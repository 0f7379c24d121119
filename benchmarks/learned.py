"""Features by a network, XFeat at one and at several scales, beside SIFT: accuracy, geometry, time and bytes.

    python benchmarks/learned.py DATA --xfeat xfeat.onnx --work FOLDER [--train PHOTOGRAPHS] [--questions N] [--quick]

DATA holds the folders holidays150 and ukbench500. With --train every kind has a fine vocabulary of equal size, trained on the same
photographs in the same way; without it, the one that comes with polyvoc. The tables of weights are fitted on the other of the two
sets. What is done is kept in the work folder. Times are processor time of one thread, the median of some photographs: other programs
may run beside.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc.errors import ImageError
from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.fit.code_table import NOT_COUNTED, RELATED, UNRELATED, fit_code_table, tally_query
from polyvoc.experiments.fit.true_matches import relevant_images
from polyvoc.experiments.measures import MEASURES
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import detect, extract_many
from polyvoc.features.learned import resolved
from polyvoc.index.writer import IndexWriter
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, FeatureOptions, SearchOptions, TrainOptions
from polyvoc.search.index import Index
from polyvoc.types import CodeTable, Features
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet

SETS = {"holidays": "holidays150", "ukbench": "ukbench500"}
PYRAMIDS = {"xfeat": [1.0], "xfeat, 2 scales": [1.0, 0.5], "xfeat, 4 scales": [1.0, 0.7071, 0.5, 0.3536]}
TIMED = 8  # photographs
CONFIRMED = 0.99  # of the best wrong images have fewer inliers than what counts as confirmed


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    photographs: int = 2500  # that vocabularies are trained on
    descriptors: int = 1_200_000
    words: int = 16_384
    rounds: int = 5
    questions: int | None = None  # of each set, the first ones; None: all


QUICK = Plan(photographs=60, descriptors=60_000, words=1024, rounds=3, questions=15)


@dataclass(frozen=True)
class Way:
    """A kind of features, and the folder of what is made of it."""

    name: str
    options: FeatureOptions
    bits: int
    vocabulary: str  # of ways that share one
    work: Path

    def trained(self, paths: list[Path], plan: Plan) -> Vocabulary:
        """Return its vocabulary; train it if it is missing."""
        if not paths:
            shipped = VocabularySet.default(resolved(self.options).kind).fine
            assert shipped is not None
            return shipped
        folder = self.work / f"words-{self.vocabulary}-{self.bits}"
        if not folder.is_dir():
            sample = sample_descriptors(paths, self.options, plan.descriptors)
            options = TrainOptions(size=plan.words, rounds=plan.rounds, bits=self.bits, max_descriptors=plan.descriptors)
            replace(train(sample, options, source="Flickr8k"), medians=None).save(folder)
            print("trained", folder.name, flush=True)
        return Vocabulary.load(folder)

    def features(self, dataset: Dataset) -> dict[str, Features]:
        """Return the features of a dataset by path; extract those that are missing."""
        file = self.work / f"{dataset.name}-{self.name}.pkl"  # of all images, or of the part that was measured before
        if not file.is_file():
            found = dict(extract_many(dataset.images, self.options))
            for error in found.values():
                if isinstance(error, ImageError):
                    print(error, flush=True)
            kept = {str(path): one for path, one in found.items() if isinstance(one, Features)}
            file.write_bytes(pickle.dumps(kept))
        stored: dict[str, Features] = pickle.loads(file.read_bytes())  # noqa: S301 - of this script
        wanted = set(map(str, dataset.images))
        return {path: one for path, one in stored.items() if path in wanted}

    def index(self, dataset: Dataset, words: Vocabulary, found: dict[str, Features]) -> Index:
        """Return the index of a dataset; make it if it is missing or incomplete."""
        path = self.work / f"{dataset.name}-{self.name}-{self.bits}.polyvoc"
        if not path.is_dir() or len(Index.open(path)) < len(found):
            shutil.rmtree(path, ignore_errors=True)
            with IndexWriter.open(path, VocabularySet((), words)) as writer:
                for name, one in found.items():
                    writer.add(name, one)
        return Index.open(path)

    def milliseconds(self, dataset: Dataset) -> float:
        """Return the processor time of the features of a photograph."""
        spent = []
        for path in dataset.images[:: max(len(dataset.images) // TIMED, 1)][:TIMED]:
            grey = read_grey(path, self.options.long_side)
            detect(grey, self.options)
            begin = time.process_time()
            detect(grey, self.options)
            spent.append(1000 * (time.process_time() - begin))
        return float(np.median(spent))


def ways(xfeat: Path, work: Path, lengths: tuple[int, ...]) -> list[Way]:
    """Return what is compared, with codes of some lengths. Each pyramid is a copy of the network with another description."""
    found = [Way("sift", FeatureOptions(), 128, "sift", work)]
    for name, scales in PYRAMIDS.items():
        copy = work / "networks" / name.replace(", ", "-").replace(" ", "-") / xfeat.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(xfeat, copy)
        described = json.loads(xfeat.with_suffix(".json").read_text(encoding="utf-8"))
        copy.with_suffix(".json").write_text(json.dumps({**described, "scales": scales}), encoding="utf-8")
        for bits in lengths:
            found.append(Way(name, FeatureOptions(detector=str(copy)), bits, "xfeat", work))
    return found


def part_of(dataset: Dataset, questions: int | None) -> Dataset:
    """Return a dataset of its first questions; its database ends with the last image that one of them is about."""
    if questions is None:
        return dataset
    level = dataset.main_level
    asked, truths = dataset.questions[:questions], dataset.truths[level][:questions]
    about = [{*relevant_images(truth, None), one.image or 0} for one, truth in zip(asked, truths, strict=True)]
    return replace(dataset, images=dataset.images[: max(set.union(*about)) + 1], questions=asked, truths={level: truths})


def numbers_of(index: Index, dataset: Dataset) -> dict[int, int]:
    """Return the numbers of images in a dataset by their ids in an index."""
    by_path = {str(path): number for number, path in enumerate(dataset.images)}
    return {row.image: by_path[row.path] for row in index.images()}


def fitted_table(index: Index, dataset: Dataset, found: dict[str, Features]) -> CodeTable:
    """Return the table of weights by the ground truth of a dataset."""
    numbers, counts, coder = numbers_of(index, dataset), [], index.folder.models.coder
    assert coder is not None
    order = [np.array([numbers[int(image)] for image in segment.ids]) for segment in index.engine.segments]
    for question, truth in zip(dataset.questions, dataset.truths[dataset.main_level], strict=True):
        assert question.image is not None
        kinds = np.full(len(dataset.images), UNRELATED)
        kinds[relevant_images(truth, question.image)] = RELATED
        kinds[[*truth.junk, question.image]] = NOT_COUNTED
        path = str(dataset.images[question.image])
        if path in found:
            query = coder.query(found[path].descriptors, CODE_ASSIGNMENTS, CODE_CUT)
            counts.append(tally_query(index.engine.segments, query, [kinds[own] for own in order]))
    return fit_code_table(np.sum(counts, axis=0), dataset.name)


def judge(index: Index, dataset: Dataset, found: dict[str, Features], options: SearchOptions) -> dict[str, Any]:
    """Return the mean of the usual measure, and the inliers of right images and of the best wrong one of each question."""
    judged, numbers = MEASURES[dataset.measure], numbers_of(index, dataset)
    values, right, wrong, seconds = [], [], [], []
    for question, truth in zip(dataset.questions, dataset.truths[dataset.main_level], strict=True):
        assert question.image is not None
        one = found.get(str(dataset.images[question.image]))
        begin = time.process_time()
        hits = [] if one is None else index.search(one, replace(options, top=1000), threads=1)
        seconds.append(time.process_time() - begin)
        ranked = [numbers[hit.image] for hit in hits]
        rest = np.setdiff1d(np.arange(len(dataset.images)), ranked)
        values.append(judged(np.array([*ranked, *rest], np.int64), truth) or 0.0)
        inliers = dict.fromkeys(range(len(dataset.images)), 0) | {numbers[hit.image]: hit.inliers for hit in hits}
        related = {int(image) for image in relevant_images(truth, question.image)}
        right += [inliers[image] for image in related]
        wrong.append(max(n for image, n in inliers.items() if image not in related and image != question.image))
    limit = float(np.quantile(wrong, CONFIRMED))
    return {
        "score": judged.scale * float(np.mean(values)), "values": [round(value, 4) for value in values],
        "wrong_inliers": {"median": float(np.median(wrong)), "limit": limit, "most": int(max(wrong))},
        "confirmed": float(np.mean(np.array(right) > limit)), "search_ms": 1000 * float(np.median(seconds)),
    }  # fmt: skip


def measure(way: Way, sets: dict[str, Dataset], paths: list[Path], plan: Plan) -> dict[str, Any]:
    """Return the results of one way."""
    words = way.trained(paths, plan)
    found = {name: way.features(dataset) for name, dataset in sets.items()}
    indexes = {name: way.index(dataset, words, found[name]) for name, dataset in sets.items()}
    tables = {name: fitted_table(indexes[name], dataset, found[name]) for name, dataset in sets.items()}
    result: dict[str, Any] = {"bits": way.bits}
    for name, dataset in sets.items():
        (other,) = (table for key, table in tables.items() if key != name)
        every = found[name].values()
        size = sum(file.stat().st_size for file in (indexes[name].folder.path / "segments").rglob("*") if file.is_file())
        features = sum(len(one) for one in every)
        result[name] = {
            "fast": judge(indexes[name], dataset, found[name], SearchOptions(verify=0, code_table=other)),
            "default": judge(indexes[name], dataset, found[name], SearchOptions(code_table=other)),
            "features": features / len(every),
            "bytes_per_feature": size / features,
            "milliseconds": way.milliseconds(dataset),
        }
        short = {step: (round(result[name][step]["score"], 3), result[name][step]["wrong_inliers"], round(result[name][step]["confirmed"], 3))
                 for step in ("fast", "default")}  # fmt: skip
        print(way.name, way.bits, name, short, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    for name in ("xfeat", "work"):  # a folder for each part
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument(
        "--train", type=Path, help="photographs to train vocabularies on; default: those that come with polyvoc"
    )
    parser.add_argument("--questions", type=int, help="of each set, the first ones; default: all")
    parser.add_argument("--quick", action="store_true", help="a few groups and a small vocabulary; nothing is written")
    parser.add_argument("--only", nargs="*", help="ways to measure now, such as 'sift 128'; the others keep their last results")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else Plan(questions=arguments.questions)
    work = arguments.work / ("quick" if arguments.quick else "full")
    work.mkdir(parents=True, exist_ok=True)
    sets = {name: part_of(READERS[name](arguments.data / folder), plan.questions) for name, folder in SETS.items()}
    paths = sorted(arguments.train.glob("*.jpg")) if arguments.train else []
    paths = paths[:: max(len(paths) // plan.photographs, 1)][: plan.photographs]
    known: dict[str, Any] = {}
    for way in ways(arguments.xfeat, work, (64, 128) if paths else (128,)):
        name = f"{way.name} {way.bits}"
        file = work / f"{name}.json"
        wanted = arguments.only is None or name in arguments.only
        if wanted and (arguments.only is not None or not file.is_file()):
            file.write_text(json.dumps(measure(way, sets, paths, plan)), encoding="utf-8")
        if file.is_file():
            known[name] = json.loads(file.read_text(encoding="utf-8"))
    if not arguments.quick:
        images = {name: len(dataset.images) for name, dataset in sets.items()}
        print(
            write_result(
                "learned",
                {"plan": vars(plan), "trained": bool(paths), "images": images, "ways": known, "cores": os.cpu_count()},
            )
        )


if __name__ == "__main__":
    main()
