"""polyvoc beside asmk, COLMAP's visual index, plain B0 and a perceptual hash, in one run.

    pip install asmk pycolmap imagehash
    python benchmarks/peers.py DATA TRAINING [--embedding FILE] [--cache FOLDER] [--name peers]

DATA holds the folders holidays150 and ukbench500. All but the hash get the same rootSIFT descriptors, and words trained on the
photographs of TRAINING, from which the shipped vocabularies come. At every query the methods run in random order, so that
other load on the machine affects all alike; a query's time is that of quantisation and search, with two threads, without features.

- asmk: the 20,000 words of the first shipped vocabulary and, in the rows "asmk 65K", the 65,536 of the fine one, which polyvoc's codes refer
  to (the package's own exact k-means would take most of an hour for 20,000 words and two million descriptors). "default" is what the
  package's examples configure; the others change its two switches.
- pycolmap: its own vocabulary of as many words, one round of ten iterations on 800,000 descriptors (its defaults, three rounds of a
  hundred, would take a day); descriptors as COLMAP stores them, bytes of 512 x. Its `VisualIndex.query` loses the
  result in the binding, so that it is only timed; the ranking comes from its `VocabTreePairGenerator`, over an index of the same features.
- polyvoc: the presets, by codes, with a table of codes fitted on the other set. Bytes are those of all that an index keeps by default: codes,
  what an image needs to be a query, geometry, and words of two vocabularies.
- embedding: the vector of an ONNX model for each photograph, as `examples/efficientnet_lite.py` makes one (`--embedding`; without its own
  time), compared with those of all others; alone, and joined with the scores of `--best` as by the option `fuse`.
- plain B0: one vocabulary, its words alone.
- perceptual hash: 64 bits of a DCT (`imagehash.phash`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import random
import statistics as st
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import write_result
from peermethods import (
    FINE_WORDS,
    PRESETS,
    THREADS,
    WORDS,
    Collection,
    Method,
    Training,
    asmk_methods,
    colmap_methods,
    hash_methods,
    polyvoc_methods,
)
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS, first_questions
from polyvoc.experiments.evaluate import gain, mean_of
from polyvoc.experiments.fit.code_table import fit_code_table, tally_dataset
from polyvoc.experiments.measures import MEASURES, Interval
from polyvoc.experiments.workbench import Workbench
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary

SETS = {"holidays": "holidays150", "ukbench": "ukbench500"}
PACKAGES = ("asmk", "pycolmap", "imagehash")
MAKERS = {"polyvoc": polyvoc_methods, "asmk": asmk_methods, "pycolmap": colmap_methods, "imagehash": hash_methods}


def all_methods(collection: Collection, training: Training, work: Path) -> tuple[dict[str, Method], dict[str, str]]:
    """Return all methods whose packages are installed, and how to install the missing ones."""
    methods: dict[str, Method] = {}
    missing = {}
    for package, make in MAKERS.items():
        try:
            methods |= make(collection, training, work)
        except ModuleNotFoundError as error:
            missing[package] = f"missing ({error.name}): pip install {package}"
            print(f"{package}: {missing[package]}")
    return methods, missing


def run(collection: Collection, methods: dict[str, Method]) -> dict[str, dict[str, list[float]]]:
    """Return value and seconds of every query by method, the methods in random order."""
    truths = collection.dataset.truths[""]
    judge = MEASURES[collection.dataset.measure]
    measured: dict[str, dict[str, list[float]]] = {name: {"values": [], "seconds": []} for name in methods}
    turns = random.Random(0)
    for method in methods.values():
        for query in collection.queries[:2]:  # compiles, and fills caches
            method.search(query)
    for number, query in enumerate(collection.queries):
        for name in turns.sample(list(methods), len(methods)):
            found = None
            if number % methods[name].costs.every == 0:
                begin = time.perf_counter()
                found = methods[name].search(query)
                measured[name]["seconds"].append(round(time.perf_counter() - begin, 6))
            value = judge(methods[name].ranking(query, found), truths[number])
            measured[name]["values"].append(float(value or 0.0))
    return measured


def entry(collection: Collection, method: Method, measured: dict[str, list[float]], best: list[float]) -> dict[str, Any]:
    """Return the results of one method; `difference` is the best preset's lead over it."""
    dataset = collection.dataset
    scale = MEASURES[dataset.measure].scale

    def scaled(interval: Interval) -> dict[str, float]:
        return {name: scale * value for name, value in asdict(interval).items()}

    return {
        "value": scaled(mean_of(dataset, measured["values"])),
        "difference": scaled(gain(dataset, best, measured["values"])),
        "median_milliseconds": 1000 * st.median(measured["seconds"]),
        "bytes_per_feature": method.costs.bytes_per_feature,
        "queries": measured["values"],
        "seconds": measured["seconds"],
    }


def show(name: str, collection: Collection, entries: dict[str, Any]) -> None:
    digits = 1 if collection.dataset.measure == "mAP" else 3
    print(f"\n{name}: {collection.dataset.measure}; lead of {list(PRESETS)[-1]}; ms per query; bytes per feature")
    for method, row in entries.items():
        value, lead = (
            "{mean:.{d}f} [{low:.{d}f}, {high:.{d}f}]".format(**row[key], d=digits) for key in ("value", "difference")
        )
        costs = f"{row['median_milliseconds']:9.1f} {row['bytes_per_feature']:8.2f}"
        print(f"{method:28} {value:24} {lead:24} {costs}", flush=True)


def versions() -> dict[str, str]:
    installed = {
        distribution.metadata["Name"].lower(): distribution.version for distribution in importlib.metadata.distributions()
    }
    return {name: installed.get(name, "not installed") for name in PACKAGES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("training", type=Path)
    parser.add_argument("--embedding", type=Path, help="ONNX file of a global embedding")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--name", default="peers", help="of the result")
    parser.add_argument("--questions", type=int, help="of each set, at most: for a trial")
    arguments = parser.parse_args()
    training = Training(Workbench(arguments.cache), arguments.training)
    result: dict[str, Any] = {"packages": versions(), "threads": THREADS, "words": [WORDS, FINE_WORDS], "sets": {}}
    read = {name: READERS[name](arguments.data / folder) for name, folder in SETS.items()}
    for name, whole in read.items():
        dataset = first_questions(whole, arguments.questions or len(whole.questions))
        others = next(other for key, other in read.items() if key != name)
        counted = tally_dataset(training.workbench.bench(others, (), default_fine_vocabulary()))
        collection = Collection(
            dataset, training.workbench.store(dataset.images), fit_code_table(counted, others.name), arguments.embedding
        )
        with tempfile.TemporaryDirectory() as work:
            methods, missing = all_methods(collection, training, Path(work))
            measured = run(collection, methods)
        best = measured[list(PRESETS)[-1]]["values"]
        entries = {method: entry(collection, methods[method], measured[method], best) for method in methods}
        show(name, collection, entries)
        result["sets"][name] = {"images": len(dataset.images), "queries": len(dataset.questions), "measure": dataset.measure,
                                "features": collection.store.n_features, "methods": entries, "missing": missing}  # fmt: skip
        path = write_result(arguments.name, result)
    print(path)


if __name__ == "__main__":
    main()
