"""The search by codes beside the search by words and signatures of three vocabularies, in one run.

    python benchmarks/codes.py DATA [--cache FOLDER] [--step 1]

DATA holds the folders holidays150, ukbench500 and photos1200. Every photograph of a group is a query (`--step 2`: every other), the
1,200 other photographs lie among them. Tables are fitted on the other set. Also: stored images as queries (what the index keeps of them,
instead of the descriptors). Milliseconds are of quantising and scoring on one thread. `limits.py` has the limits of the search by codes.
"""

from __future__ import annotations

import argparse
import statistics as st
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS, Dataset, Question, with_distractors
from polyvoc.experiments.evaluate import gain, mean_of
from polyvoc.experiments.fit.code_table import fit_code_table, tally_dataset
from polyvoc.experiments.fit.likelihood import fit_table, tally
from polyvoc.experiments.measures import MEASURES, Truth, rank
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import CODE_CUT, SearchOptions, preset
from polyvoc.search.pipeline import score_all
from polyvoc.search.query import Query, query_of_image
from polyvoc.threads import thread_map
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary, default_vocabularies

SETS = {"holidays": "holidays150", "ukbench": "ukbench500"}
PRESETS = ("fast", "default", "best")
BITS = 128
Score = Callable[[int], np.ndarray]  # question -> score of every image


def all_queries(read: Dataset, distractors: Path, step: int) -> Dataset:
    """Return a dataset in which every photograph of a group is a query; those of Ukbench are already."""
    questions, truths = list(read.questions), list(read.truths[""])
    if read.measure == "mAP":
        groups = [(q.group or q.name, t.relevant | {q.image or 0}) for q, t in zip(questions, truths, strict=True)]
        members = [(group, own, image) for group, own in groups for image in sorted(own)]
        questions = [Question(read.images[image].stem, read.images[image], image, group=group) for group, _, image in members]
        truths = [Truth(own - {image}, frozenset({image})) for _, own, image in members]
    chosen = replace(read, questions=tuple(questions[::step]), truths={"": tuple(truths[::step])})
    return with_distractors(chosen, distractors)


def values_of(bench: QuantisedDataset, score: Score) -> tuple[list[float], float]:
    """Return the measure of every question, and the median of the milliseconds of scoring."""
    dataset, judge = bench.dataset, MEASURES[bench.dataset.measure]

    def one(number: int) -> tuple[float, float]:
        begin = time.thread_time()
        scores = score(number)
        seconds = time.thread_time() - begin
        return float(judge(rank(scores), dataset.truths[""][number]) or 0.0), seconds

    values, seconds = zip(*thread_map(one, range(len(dataset.questions))), strict=True)
    return list(values), 1000 * st.median(seconds)


def by_words(bench: QuantisedDataset, options: SearchOptions) -> Score:
    def score(number: int) -> np.ndarray:
        asked = bench.query(number, options)
        return np.concatenate(score_all(bench.engine, replace(asked, codes=None), options, threads=1))

    return score


def by_codes(bench: QuantisedDataset, options: SearchOptions, stored: bool = False) -> Score:
    coder = bench.coder
    assert coder is not None

    def score(number: int) -> np.ndarray:
        if stored:
            image = bench.dataset.questions[number].image
            asked = query_of_image(bench.engine.segments[0].image_features(image or 0), options, coder)
        else:
            codes = coder.query(bench.descriptors(number), options.n_assignments, CODE_CUT)
            asked = Query(codes, keypoints=bench.query(number, replace(options, merge="b1", assignments=1)).keypoints)
        return np.concatenate(score_all(bench.engine, asked, options, threads=1, coder=coder))

    return score


def entry(bench: QuantisedDataset, values: list[float], base: list[float], milliseconds: float) -> dict[str, Any]:
    scale = MEASURES[bench.dataset.measure].scale
    parts = {"value": mean_of(bench.dataset, values), "difference": gain(bench.dataset, values, base)}
    scaled = {name: {key: scale * value for key, value in asdict(part).items()} for name, part in parts.items()}
    return {**scaled, "milliseconds": milliseconds, "queries": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--step", type=int, default=1)
    arguments = parser.parse_args()
    workbench, fine = Workbench(arguments.cache), default_fine_vocabulary()
    read = {name: READERS[name](arguments.data / folder) for name, folder in SETS.items()}
    benches = {
        name: workbench.bench(all_queries(one, arguments.data / "photos1200", arguments.step), default_vocabularies(3), fine)
        for name, one in read.items()
    }
    tables = {name: (fit_table(tally(bench)), fit_code_table(tally_dataset(bench))) for name, bench in benches.items()}
    result: dict[str, Any] = {"sets": {}, "step": arguments.step}
    for name, bench in benches.items():
        likelihood, codes = tables[next(other for other in SETS if other != name)]
        entries: dict[str, Any] = {}
        for kind in PRESETS:
            old, took = values_of(bench, by_words(bench, replace(preset(kind, BITS), likelihood_table=likelihood)))
            entries[f"{kind}, words"] = entry(bench, old, old, took)
            options = replace(preset(kind, 0, BITS), code_table=codes)
            for stored in (False, True):
                values, took = values_of(bench, by_codes(bench, options, stored))
                entries[f"{kind}, codes" + (", stored query" if stored else "")] = entry(bench, values, old, took)
                print(name, kind, stored, np.mean(values), np.mean(old), flush=True)
        result["sets"][name] = {"measure": bench.dataset.measure, "images": bench.n_images,
                                "queries": len(bench.dataset.questions), "ways": entries}  # fmt: skip
    print(write_result("codes", result))


if __name__ == "__main__":
    main()
