"""What becomes of a search when files of the index are damaged: thousands of corruptions, and what verification costs.

    python benchmarks/corruptions.py PHOTOGRAPHS QUERY... --work FOLDER [--count 2000] [--images 100000]

PHOTOGRAPHS are indexed, in several commits, with links. Then one file of a copy of the index, any file, is changed at random (a bit, a
byte, a block of up to 4 KB of noise, zeros, ones or other content of the file; cut, or made longer), and a process of its own
opens the copy and searches for each QUERY, by the default search and by the paper's rules. "same": right answers; "incomplete": right for
the parts that were searched, and the answer says which images are missing; "refused": an error of one line. "wrong" and "died"
must not occur. What was damaged is then repaired and checked, for every tenth corruption.

The cost of verification is that of opening an index, and of its first and later searches, with checksums and limits compared and
with both skipped, in turns; over IMAGES images of 786 features drawn from those of PHOTOGRAPHS.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import shutil
import statistics as st
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from machine import RESULTS, write_result
from million import draw_batch, real_features, usual
from polyvoc.errors import PolyvocError
from polyvoc.features.extract import extract
from polyvoc.index.build import CommitLimits
from polyvoc.index.check import check
from polyvoc.index.repair import repair
from polyvoc.index.segment import MAX_IMAGES, Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.options import CODE_CUT, FeatureOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.index import Index
from polyvoc.search.links import link
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.storage.blocks import ArrayFile
from polyvoc.vocabulary.codes import Coder
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary

sys.path.append(str(RESULTS.parent.parent / "tests"))

import corruption

COMMIT_FEATURES = 40_000
FEATURES = 786
REPEATS = 5


def make_index(photographs: Path, path: Path) -> None:
    with IndexWriter.open(path, limits=CommitLimits(features=COMMIT_FEATURES)) as writer:
        writer.update([photographs])
    with IndexWriter.open(path) as writer, Index.open(path) as index:
        link(writer, index.stored_queries, 5)


def corrupt_all(index: Path, queries: list[Path], work: Path, count: int, first: int) -> dict[str, Any]:
    """Return outcomes by kind of corruption and by file."""
    features = [extract(query, FeatureOptions()) for query in queries]
    expected = corruption.Answers.of(index, features)
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    repairs: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + count):
        copy = Path(shutil.copytree(index, work / "copy.polyvoc", copy_function=copy_or_link))
        what = corruption.corrupt(copy, np.random.default_rng(seed))
        outcome = expected.compare(copy)
        kind, _, rest = what.partition(" of ")
        outcomes[kind][outcome] += 1
        outcomes[rest.partition(" at ")[0].split("/")[0]][outcome] += 1
        outcomes["all"][outcome] += 1
        if outcome not in corruption.RIGHT:
            print(seed, what, outcome, flush=True)
        if seed % 10 == 0:
            repairs[try_repair(copy)] += 1
        shutil.rmtree(copy)
        if seed % 100 == 99:
            print(seed + 1, dict(outcomes["all"]), flush=True)
    return {"outcomes": {name: dict(counter) for name, counter in outcomes.items()}, "repairs": dict(repairs)}


def copy_or_link(source: str, target: str) -> None:
    """Copy a file; vocabularies, which are large and never written again, are linked."""
    (os.link if "vocabularies" in source else shutil.copy2)(source, target)


def try_repair(index: Path) -> str:
    """Return what `polyvoc check --repair` made of an index."""
    try:
        repair(index)
        return "no errors left" if not list(check(index)) else "errors left"
    except PolyvocError:
        return "must be restored or made again"


def cost(training: Path, queries: list[Path], work: Path, n_images: int) -> dict[str, Any]:
    """Return seconds of opening, first and later searches, verified and not, in turns."""
    coder = Coder(default_fine_vocabulary())
    real, folders = real_features(training, work, coder, FEATURES), []
    for first in range(0, n_images, MAX_IMAGES):
        batch = draw_batch(real, first, min(MAX_IMAGES, n_images - first), FEATURES)
        folders.append(work / f"cost-{first}")
        Segment.build(batch, (), coder.vocabulary.size).save(folders[-1])
    found = [extract(query, FeatureOptions()) for query in queries]
    made = [Query(coder.query(one.descriptors, 10, CODE_CUT), keypoints=one.keypoints) for one in found]
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    for _, verified in itertools.product(range(REPEATS + 1), (True, False)):
        with mock.patch.object(ArrayFile, "_verify", ArrayFile._verify if verified else lambda *_: None):
            begin = time.perf_counter()
            engine = Engine([Segment.open(folder) for folder in folders], ())
            marks = [("open", time.perf_counter() - begin)]
            for name, query in (("first search", made[0]), *(("later searches", query) for query in (*made[1:], *made))):
                begin = time.perf_counter()
                search(engine, query, usual(10))
                marks.append((name, time.perf_counter() - begin))
        for name, value in marks:
            seconds[f"{name}, {'verified' if verified else 'not verified'}"].append(value)
    median = {name: st.median(values[1:]) for name, values in seconds.items()}
    return {
        "images": n_images,
        "features_per_image": FEATURES,
        "bytes": sum(map(folder_bytes, folders)),
        "median_seconds": median,
    }


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("queries", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first corruption")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--training", type=Path, required=True, help="photographs whose features the cost is measured with")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    index = arguments.work / "index.polyvoc"
    make_index(arguments.photographs, index)
    result = {
        "files": sum(path.is_file() for path in index.rglob("*")),
        "bytes": sum(p.stat().st_size for p in index.rglob("*")),
    }
    result |= corrupt_all(index, arguments.queries, arguments.work, arguments.count, arguments.first)
    result["cost"] = cost(arguments.training, arguments.queries, arguments.work, arguments.images)
    print(write_result("corruptions", result))
    shutil.rmtree(arguments.work)


if __name__ == "__main__":
    main()
