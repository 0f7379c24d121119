"""The search by codes with fine vocabularies of several sizes, and with several numbers of words per query feature.

    python benchmarks/words.py PHOTOGRAPHS DATA [--cache FOLDER] [--photographs 4096] [--rounds 8]
                               [--trials 20000:3,5,10 65536:5,10,20 262144:10,20,30]

The vocabularies of the trials are trained on all descriptors of some of PHOTOGRAPHS, drawn at random; the shipped one, which
all are compared with, on 8,091 of Flickr8k. DATA holds the folders holidays150, ukbench500 and photos1200. Every photograph
of a group is a query, among the 1,200 others; tables are fitted on the other set, anew for each vocabulary and number of
words. Each value is given for the groups with even and with odd numbers, too. Milliseconds are processor time of one thread,
of all trials in turn: of quantising, of scoring the 1,622 photographs of Holidays, and of scoring a collection that holds
each of them 20 times, whose lists are 20 times as long. Features, vocabularies and values are cached: an interrupted run goes
on where it was. 4,096 photographs need 10 GB of memory.
"""

from __future__ import annotations

import argparse
import statistics as st
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from codes import SETS, all_queries
from limits import Setting, entry, narrowed
from machine import write_result
from polyvoc.experiments.cache import default_cache, digest_of
from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.fit import code_table
from polyvoc.experiments.measures import MEASURES, rank
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.index.segment import Segment
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, TrainOptions, preset
from polyvoc.scoring.codes import score_codes, weigh_codes
from polyvoc.search.pipeline import score_all
from polyvoc.search.query import Query
from polyvoc.threads import thread_map
from polyvoc.types import CodeTable
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.codes import SAMPLE, CodedQuery, Coder
from polyvoc.vocabulary.train import Sample, train, with_decoder
from polyvoc.vocabulary.vocabulary import Vocabulary, default_fine_vocabulary, random_rotation

SHIPPED = "shipped"
TRIALS = ("20000:3,5,10", "65536:5,10,20", "262144:10,20,30")  # words: of them visited by a query feature, at most
BASE = (SHIPPED, CODE_ASSIGNMENTS)
STAGES = ("fast", "default")  # without and with geometry
COPIES, TIMED = 20, 48  # of the collection, queries
BITS = 128
Way = tuple[str, int]  # vocabulary, words visited
Values = dict[str, list[float]]  # by stage, of every question


def report(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


# -- vocabularies


def training_photographs(folder: Path, count: int) -> list[Path]:
    """Return photographs of a folder, drawn at random; a smaller number of them begins the list of a larger one."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg", ".png"})
    return [paths[i] for i in np.random.default_rng(0).permutation(len(paths))[:count]]


def vocabulary(cache: Path, store: FeatureStore, size: int, rounds: int) -> Vocabulary:
    """Return the fine vocabulary of a size, trained on all descriptors of a store."""
    options = TrainOptions(size=size, rounds=rounds, bits=0, max_descriptors=store.n_features)  # the projected words serve
    folder = cache / "vocabularies" / f"{size}-{digest_of(store.digest, rounds)}"
    if folder.is_dir():
        return Vocabulary.load(folder)
    sample = Sample(store.sample(store.n_features, 0), {"photographs": len(store)})

    def show(number: int, rounds: int, distortion: float, moved: float) -> None:
        report(f"{size:,} words: round {number} of {rounds}, distortion {distortion:.5f}, {moved:.1%} moved")

    trained = train(sample, options, show)
    signed = replace(trained, rotation=random_rotation(trained.dimension, BITS))
    rows = sample.descriptors[:: max(1, len(sample.descriptors) // SAMPLE)]
    complete = with_decoder(signed, rows, Assigner([trained]).assign(rows)[:, 0])
    complete.save(folder)
    return complete


# -- accuracy


@dataclass(frozen=True)
class Trial:
    """A dataset with the codes of one vocabulary, and its queries with several numbers of words."""

    bench: QuantisedDataset
    words: tuple[int, ...]

    @property
    def coder(self) -> Coder:
        """Return what makes codes."""
        assert self.bench.coder is not None
        return self.bench.coder

    def queries(self, number: int) -> list[CodedQuery]:
        """Return a question with each number of words."""
        widest = self.coder.query(self.bench.descriptors(number), max(self.words), CODE_CUT)
        return [narrowed(widest, Setting(words=words)) for words in self.words]

    def tallies(self) -> list[list[Any]]:
        """Return the matches of all questions for each number of words."""
        return [total.tolist() for total in np.sum(thread_map(self._tally, range(len(self.bench.dataset.questions))), axis=0)]

    def _tally(self, number: int) -> np.ndarray:
        kinds, truth = np.full(self.bench.n_images, code_table.UNRELATED), self.bench.dataset.truths[""][number]
        kinds[sorted(truth.relevant)] = code_table.RELATED
        kinds[sorted(truth.junk)] = code_table.NOT_COUNTED
        segments = self.bench.engine.segments
        return np.stack([code_table.tally_query(segments, query, [kinds]) for query in self.queries(number)])

    def measure(self, tables: list[CodeTable]) -> list[dict[str, list[float]]]:
        """Return the measure of every question, and what its features visit, for each number of words."""
        found = thread_map(partial(self._measure, tables), range(len(self.bench.dataset.questions)))
        return [
            {key: [one[place][key] for one in found] for key in (*STAGES, "words", "postings")}
            for place in range(len(self.words))
        ]

    def _measure(self, tables: list[CodeTable], number: int) -> list[dict[str, float]]:
        judge, truth = MEASURES[self.bench.dataset.measure], self.bench.dataset.truths[""][number]
        keypoints = self.bench.query(number, preset("paper")).keypoints
        (segment,), found = self.bench.engine.segments, []
        for words, table, query in zip(self.words, tables, self.queries(number), strict=True):
            one = visits(segment, query)
            for stage in STAGES:
                options = replace(preset(stage, 0, BITS), assignments=words, code_table=table)
                asked = Query(query, keypoints=keypoints)
                scores = np.concatenate(score_all(self.bench.engine, asked, options, threads=1, coder=self.coder))
                one[stage] = float(judge(rank(scores), truth) or 0.0)
            found.append(one)
        return found


def visits(segment: Segment, query: CodedQuery) -> dict[str, float]:
    """Return the words that a feature of a query visits, and the codes in their lists, on average."""
    chosen, starts = query.words[query.words >= 0], segment.arrays["code_starts"].astype(np.int64)
    n_features = max(len(query.words), 1)
    return {"words": len(chosen) / n_features, "postings": float((starts[chosen + 1] - starts[chosen]).sum()) / n_features}


def accuracy(
    workbench: Workbench, datasets: dict[str, Dataset], fine: Vocabulary, words: tuple[int, ...]
) -> tuple[dict[str, list[CodeTable]], dict[str, list[Values]]]:
    """Return the table fitted on each set, and the values of each set by the table of the other, for each number of words."""
    trials = {name: Trial(workbench.bench(dataset, (), fine), words) for name, dataset in datasets.items()}
    tables = {}
    for name, trial in trials.items():
        counts = workbench.remember(f"words counts {name}", [trial.bench.name, words], trial.tallies)
        tables[name] = [code_table.fit_code_table(np.array(one)) for one in counts]
        report(f"{name}: table fitted")
    values = {}
    for name, trial in trials.items():
        own = tables[next(other for other in tables if other != name)]
        inputs = [trial.bench.name, words, [table.rows for table in own]]
        values[name] = workbench.remember(f"words values {name}", inputs, partial(trial.measure, own))
        report(f"{name}: measured")
    return tables, values


# -- time


def copied(segment: Segment, times: int) -> Segment:
    """Return what a scan reads of a segment with every image several times."""
    arrays, n_images = segment.arrays, segment.n_images
    starts = arrays["code_starts"].astype(np.int64)
    lengths = np.repeat(np.diff(starts), times * np.diff(starts))
    within = np.arange(times * starts[-1]) - np.repeat(times * starts[:-1], times * np.diff(starts))
    copy = (within // lengths).astype(np.uint16)
    within %= lengths
    within += np.repeat(starts[:-1], times * np.diff(starts))
    scanned = {
        "code_starts": (times * starts).astype(np.uint32),
        "codes": arrays["codes"][:, within],
        "code_images": arrays["code_images"][within] + copy * np.uint16(n_images),
        "code_norms": np.tile(arrays["code_norms"], times),
        "feature_starts": np.array([0, times * starts[-1]], np.uint32),
    }
    return Segment(segment.sizes, np.arange(times * n_images), scanned)


def milliseconds(benches: dict[str, QuantisedDataset], tables: dict[Way, CodeTable]) -> dict[Way, dict[str, float]]:
    """Return the median times of quantising and of scoring, of all ways in turn. benches: one dataset by vocabulary."""
    coders = {name: Coder(bench.coder.vocabulary, 1) for name, bench in benches.items() if bench.coder is not None}
    segments = {name: bench.engine.segments[0] for name, bench in benches.items()}
    copies = {name: copied(segment, COPIES) for name, segment in segments.items()}
    samples: dict[Way, list[list[float]]] = {way: [] for way in tables}
    one = next(iter(benches.values()))
    every = timed(one.dataset)
    for number in (every[0], *every):  # the first once more: it compiles
        descriptors = one.descriptors(number)
        for (name, words), table in tables.items():
            begin = time.thread_time()
            query = coders[name].query(descriptors, words, CODE_CUT)
            took = [time.thread_time() - begin]
            for segment in (segments[name], copies[name]):
                weights = weigh_codes(query, benches[name].engine.statistics, table, 1)
                begin = time.thread_time()
                score_codes(segment, query, weights)
                took.append(time.thread_time() - begin)
            samples[name, words].append(took)
    columns = ("quantise", "score", "score_copies")
    return {
        way: {column: 1000 * st.median(one[place] for one in took[1:]) for place, column in enumerate(columns)}
        for way, took in samples.items()
    }


def timed(dataset: Dataset) -> range:
    """Return the questions whose searches are timed."""
    return range(0, len(dataset.questions), len(dataset.questions) // TIMED)


def described(fine: Vocabulary) -> dict[str, Any]:
    """Return what a vocabulary was trained on, and its size."""
    facts = {name: fine.provenance[name] for name in ("descriptors", "rounds", "distortion")}
    return {"size": fine.size, "megabytes": fine.words.codes.nbytes / 1e6, **facts}


def outcome(dataset: Dataset, values: Values, base: Values) -> dict[str, Any]:
    """Return the measure of each stage beside that of the base, and what a feature of a query visits on average."""
    visited = {name: st.mean(values[name]) for name in ("words", "postings")}
    return {"visited": visited, **{stage: entry(dataset, values[stage], base[stage]) for stage in STAGES}}


def parsed(trials: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the numbers of words visited for each size of a vocabulary, from SIZE:WORDS,WORDS."""
    pairs = (trial.split(":") for trial in trials)
    return {size: tuple(map(int, words.split(","))) for size, words in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--photographs", dest="count", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--trials", nargs="+", default=TRIALS)
    arguments = parser.parse_args()
    workbench, trials = Workbench(arguments.cache), parsed(arguments.trials)
    store = workbench.store(training_photographs(arguments.photographs, arguments.count))
    report(f"{store.n_features:,} descriptors of {len(store):,} photographs")
    fines = {name: vocabulary(arguments.cache, store, int(name), arguments.rounds) for name in trials}
    fines, trials = {SHIPPED: default_fine_vocabulary(), **fines}, {SHIPPED: BASE[1:], **trials}
    datasets = {name: all_queries(READERS[name](arguments.data / folder), arguments.data / "photos1200", 1)
                for name, folder in SETS.items()}  # fmt: skip
    ways: dict[Way, dict[str, Values]] = {}
    tables: dict[Way, CodeTable] = {}
    for name, fine in fines.items():
        fitted, values = accuracy(workbench, datasets, fine, trials[name])
        for place, words in enumerate(trials[name]):
            ways[name, words] = {each: values[each][place] for each in datasets}
            tables[name, words] = fitted["ukbench"][place]
    holidays = {name: workbench.bench(datasets["holidays"], (), fine) for name, fine in fines.items()}
    times = milliseconds(holidays, tables)
    result = {
        "features": holidays[SHIPPED].n_features, "timed": len(timed(datasets["holidays"])), "copies": COPIES,
        "vocabularies": {name: described(fine) for name, fine in fines.items()},
        "ways": [
            {"vocabulary": name, "words": words, "milliseconds": times[name, words],
             "sets": {each: outcome(datasets[each], values, ways[BASE][each]) for each, values in way.items()}}
            for (name, words), way in ways.items()
        ],
    }  # fmt: skip
    print(write_result("words", result))


if __name__ == "__main__":
    main()
