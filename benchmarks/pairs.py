"""Recall and time of `polyvoc pairs`, beside COLMAP's vocabulary tree.

    pip install pycolmap
    python benchmarks/pairs.py DATA TRAINING [--tree FILE] [--large INDEX] [--cache FOLDER] [--out FILE] [--figure FILE]

DATA holds the folders holidays150, ukbench500 and photos1200: groups of photographs that show one thing (a true pair is two of one
group), hidden among others. Both sides get the same rootSIFT features and two threads.

- polyvoc: its index made of these features, and `Index.pairs`: the best of each image by codes, with the shipped table of codes (both
  sets are in the collection, and the table was fitted on both). "verified": the same candidates, ranked by the log-likelihood ratio of their
  inliers.
- pycolmap: `VocabTreePairGenerator` over a database with these features, its defaults but for the number of images; once without,
  once with spatial verification. Its vocabulary, if none is given as `--tree`, is trained on the photographs of TRAINING, as
  in `peers.py`: as many words, and the photographs that the shipped vocabularies come from. (COLMAP's own file is larger.)
- one by one: a search with every image by its id, on the same index; and on `--large`, with some images.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from machine import RESULTS, write_result
from peermethods import THREADS, WORDS, Training, colmap_database, colmap_vocabulary
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.datasets.readers import list_images
from polyvoc.experiments.workbench import Workbench
from polyvoc.features.decode import read_grey
from polyvoc.index.writer import IndexWriter
from polyvoc.options import PairOptions
from polyvoc.search.index import Index
from polyvoc.search.pairs import Candidates, Pairs, RatedCandidates, find_candidates, find_pairs, join_pairs, verify_pairs
from polyvoc.types import Features

FOLDERS = ("holidays150", "ukbench500", "photos1200")
RANKS = (1, 2, 3, 5, 10, 20, 50)
SEARCHES = 200  # of the large index, one by one
Lists = list[list[int]]  # other images of every image, best first
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Photographs:
    """The photographs and their features, by number."""

    store: FeatureStore

    @cached_property
    def features(self) -> list[Features]:
        return [self._features(number) for number in range(len(self.store))]

    def _features(self, number: int) -> Features:
        geometry, shown = self.store.geometry(number), read_grey(self.store.files[number], 256)
        keypoints = geometry[:, :2], geometry[:, 2], geometry[:, 3]
        return Features(*keypoints, self.store.descriptors(number), shown.width, shown.height)

    @property
    def true_pairs(self) -> set[tuple[int, int]]:
        groups: dict[tuple[str, int], list[int]] = {}
        for number, file in enumerate(map(Path, self.store.files)):
            digits = int("".join(filter(str.isdigit, file.stem)))
            if file.parent.name == "holidays150":
                groups.setdefault(("holidays", digits // 100), []).append(number)
            elif file.parent.name == "ukbench500":
                groups.setdefault(("ukbench", digits // 4), []).append(number)
        return {pair for members in groups.values() for pair in combinations(members, 2)}


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    begin = time.perf_counter()
    return work(), time.perf_counter() - begin


def recalls(lists: Lists, true_pairs: set[tuple[int, int]]) -> list[float]:
    """Return the share of true pairs among those that the first k of all lists make, for every k."""
    shares = []
    for k in RANKS:
        found = {(min(a, b), max(a, b)) for a, others in enumerate(lists) for b in others[:k]}
        shares.append(len(found & true_pairs) / len(true_pairs))
    return shares


# ------------------------------------------------------------------------------------------------ polyvoc


def polyvoc_index(photographs: Photographs, folder: Path) -> Index:
    with IndexWriter.open(folder) as writer:
        for number, features in enumerate(photographs.features):
            writer.add(str(number), features)
    return Index.open(folder)


def ranked(index: Index, pairs: Pairs, values: np.ndarray) -> Lists:
    """Return the lists that pairs make, in falling order of some value."""
    numbers = {row.image: int(row.path) for row in index.images()}
    lists: Lists = [[] for _ in numbers]
    for row in np.argsort(-values, kind="stable"):
        first, second = (numbers[int(pairs[name][row])] for name in ("first", "second"))
        lists[first].append(second)
        lists[second].append(first)
    return lists


def listed(index: Index, best: Candidates) -> Lists:
    numbers = {row.image: int(row.path) for row in index.images()}
    lists: Lists = [[] for _ in numbers]
    for image, others in zip(best.images.tolist(), best.others.tolist(), strict=True):
        lists[numbers[image]] = [numbers[other] for other in others if other >= 0]
    return lists


def measure_polyvoc(photographs: Photographs, work: Path) -> tuple[dict[str, Any], Index]:
    """Return recall and seconds of the batch, without and with verification."""
    true_pairs, most, _ = photographs.true_pairs, max(RANKS), photographs.features  # read before timing
    index, index_seconds = timed(lambda: polyvoc_index(photographs, work / "photos.polyvoc"))
    quantise, source = index.folder.models.quantise, index.stored_queries
    # one photograph at a time, as queries are; an index quantises many together
    _, quantise_seconds = timed(lambda: [quantise(features.descriptors) for features in photographs.features])
    find_pairs(source, PairOptions(verify=True), [row.image for row in index.images()][:4])  # compiles
    best, seconds = timed(lambda: find_candidates(source, most))
    pairs, _ = join_pairs(RatedCandidates.of(best, best.others.shape[1], len(best.images)))
    verified, verify_seconds = timed(lambda: verify_pairs(source, pairs))
    kept, kept_seconds = timed(lambda: index.pairs(PairOptions(verify=True)))
    numbers = {row.image: int(row.path) for row in index.images()}
    named = {
        tuple(sorted((numbers[a], numbers[b]))) for a, b in zip(kept["first"].tolist(), kept["second"].tolist(), strict=True)
    }
    shared = {"index_seconds": index_seconds, "quantise_seconds": quantise_seconds}
    return {
        "polyvoc": {"recall": recalls(listed(index, best), true_pairs), "pairs_seconds": seconds, **shared},
        "polyvoc, verified": {"recall": recalls(ranked(index, verified, verified["weight"] + verified["score"]), true_pairs),
                              "pairs_seconds": seconds + verify_seconds, **shared},
        "polyvoc pairs --verify": {"recall": len(named & true_pairs) / len(true_pairs), "pairs": len(named),
                                   "precision": len(named & true_pairs) / max(len(named), 1), "pairs_seconds": kept_seconds},
    }, index  # fmt: skip


# ------------------------------------------------------------------------------------------------ pycolmap


def measure_colmap(photographs: Photographs, tree: Path, work: Path) -> dict[str, Any]:
    """Return recall and seconds of COLMAP's generator of pairs; making it reads the database and indexes it."""
    import pycolmap

    pycolmap.logging.minloglevel = pycolmap.logging.Level.ERROR.value
    database = colmap_database(photographs, work / "database.db")  # type: ignore[arg-type]  # only `features` is used
    found = {}
    for name, verified in {"pycolmap": 0, "pycolmap, verified": max(RANKS) + 1}.items():
        options = pycolmap.VocabTreePairingOptions(vocab_tree_path=tree, num_threads=THREADS, num_images=max(RANKS) + 1,
                                                   num_images_after_verification=verified)  # fmt: skip
        generator, index_seconds = timed(lambda options=options: pycolmap.VocabTreePairGenerator(options, database))
        lists: Lists = [[] for _ in photographs.features]
        begin = time.perf_counter()
        while not generator.has_finished():
            for query, image in generator.next():
                if query != image:
                    lists[query - 1].append(image - 1)
        seconds = time.perf_counter() - begin
        found[name] = {
            "recall": recalls(lists, photographs.true_pairs),
            "index_seconds": index_seconds,
            "pairs_seconds": seconds,
        }
        print(name, found[name], flush=True)
    database.close()
    return found


# ------------------------------------------------------------------------------------------------ one by one


def measure_searches(index: Index, count: int, top: int = 20) -> dict[str, Any]:
    """Return the seconds per image of separate searches and of the batch, and the share of equal lists."""
    images = [row.image for row in index.images()]
    some = random.Random(0).sample(images, min(count, len(images)))
    options = replace(index.preset("fast"), top=top + 1)
    index.search(some[0], options=options, threads=THREADS)
    source = index.stored_queries
    find_candidates(source, top, some[:2])
    found, seconds = timed(lambda: [index.search(image, options=options, threads=THREADS) for image in some])
    best, batch_seconds = timed(lambda: find_candidates(source, top))
    rows = {image: set(others) for image, others in zip(best.images.tolist(), best.others.tolist(), strict=True)}
    shares = [
        _share(rows[image], [hit.image for hit in hits if hit.image != image][:top])
        for image, hits in zip(some, found, strict=True)
    ]
    pairs, _ = join_pairs(RatedCandidates.of(best, best.others.shape[1], len(best.images)))
    some_pairs = pairs[np.sort(np.random.default_rng(0).choice(len(pairs), min(len(pairs), 20 * count), replace=False))]
    _, verify_seconds = timed(lambda: verify_pairs(source, some_pairs))
    each = {"search_ms": 1e3 * seconds / len(some), "batch_ms": 1e3 * batch_seconds / len(images)}
    return {
        "images": len(images), "features": index.engine.segments[0].n_features if len(index.engine.segments) == 1 else
        sum(segment.n_features for segment in index.engine.segments), **each, "ratio": each["search_ms"] / each["batch_ms"],
        "same_lists": float(np.mean(shares)), "verify_ms_per_pair": 1e3 * verify_seconds / len(some_pairs),
    }  # fmt: skip


def _share(others: set[int], wanted: Sequence[int]) -> float:
    return len(others & set(wanted)) / len(wanted) if wanted else 1.0


# ------------------------------------------------------------------------------------------------ all of it


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw recall against the length of the lists."""
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "pairs", "font.family": "DejaVu Sans"}):
        figure, axes = plt.subplots(figsize=(6.4, 4.0))
        for name, line in (
            ("polyvoc", "C0-o"),
            ("polyvoc, verified", "C0--s"),
            ("pycolmap", "C1-o"),
            ("pycolmap, verified", "C1--s"),
        ):
            if name in result["methods"]:
                axes.plot(RANKS, result["methods"][name]["recall"], line, label=name)
        axes.set(xscale="log", xlabel="photographs that each one is paired with", ylabel="share of the true pairs in the list")
        axes.set_xticks(RANKS, [str(k) for k in RANKS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("training", type=Path)
    parser.add_argument("--tree", type=Path, help="a vocabulary of COLMAP, as its VisualIndex writes it")
    parser.add_argument("--large", type=Path, help="a large index, to compare the batch with separate searches")
    parser.add_argument("--most", type=int, help="photographs of each folder, at most: to try it")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", default="pairs", help=f"name of the result in {RESULTS.name}/")
    parser.add_argument("--figure", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure, and write the result."""
    args = parsed()
    workbench = Workbench(args.cache or default_cache())
    files = [file for folder in FOLDERS for file in list_images(args.data / folder)[: args.most]]
    photographs = Photographs(workbench.store(files))
    tree = args.tree or colmap_vocabulary(Training(workbench, args.training))
    with tempfile.TemporaryDirectory() as work:
        methods, index = measure_polyvoc(photographs, Path(work))
        print(methods, flush=True)
        methods |= measure_colmap(photographs, tree, Path(work))
        searches = {"these photographs": measure_searches(index, len(files))}
        print(searches, flush=True)
        index.close()
    if args.large is not None:
        with Index.open(args.large) as large:
            searches["large"] = measure_searches(large, SEARCHES)
            print(searches["large"], flush=True)
    result = {"photographs": len(files), "features": photographs.store.n_features, "true_pairs": len(photographs.true_pairs),
              "threads": THREADS, "colmap_words": WORDS if args.tree is None else args.tree.name, "ranks": RANKS,
              "methods": methods, "searches": searches}  # fmt: skip
    print(write_result(args.out, result))
    if args.figure is not None:
        draw(result, args.figure)


if __name__ == "__main__":
    main()
