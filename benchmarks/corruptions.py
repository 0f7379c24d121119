"""What becomes of a search when files of the index are damaged: thousands of corruptions, and what verification costs.

    python benchmarks/corruptions.py PHOTOGRAPHS QUERY... --training FOLDER --work FOLDER [--count 2000] [--images 100000]

PHOTOGRAPHS are indexed, in several commits, some of them removed again, with links. Then one file of a copy of the index, any file, is changed at random (a bit, a
byte, a block of up to 4 KB of noise, zeros, ones or other content of the file; cut, or made longer), and a process of its own
opens the copy and searches for each QUERY, by the default search and by the paper's rules. "same": right answers; "incomplete": right for
the parts that were searched, and the answer says which images are missing; "refused": an error of one line. "wrong" and "died"
must not occur. What was damaged is then repaired and checked, for every tenth corruption. Further runs go on with other corruptions and
add to the counts in the result file; `--anew` starts again.

The cost of verification is that of opening an index, and of its first and later searches, with checksums and limits compared and
with both skipped, in turns; over IMAGES images of 786 features drawn from those of the photographs in the folder of `--training`.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import shutil
import statistics as st
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from machine import RESULTS, machine, write_result
from million import draw_batch, real_features, usual
from polyvoc.errors import PolyvocError
from polyvoc.features.extract import extract
from polyvoc.index.build import CommitLimits
from polyvoc.index.check import check
from polyvoc.index.repair import repair
from polyvoc.index.segment import Segment
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

NAME = "corruptions"
COMMIT_FEATURES = 20_000
REMOVED = 3  # photographs
SAVED_EVERY = 50  # corruptions
SEGMENT_IMAGES = 25_000  # of the measurement of cost: building a segment takes about 90 bytes of memory per feature
FEATURES = 786
REPEATS = 5


def make_index(photographs: Path, path: Path) -> None:
    with IndexWriter.open(path, limits=CommitLimits(features=COMMIT_FEATURES)) as writer:
        writer.update([photographs])
    with IndexWriter.open(path) as writer, Index.open(path) as index:
        writer.remove([row.path for row in index.images()][1 : 3 * REMOVED : 3])
    with IndexWriter.open(path) as writer, Index.open(path) as index:
        link(writer, index.stored_queries, 5)


def corrupt_all(index: Path, queries: list[Path], work: Path, count: int, result: dict[str, Any]) -> None:
    """Count outcomes by kind of corruption and by file, and outcomes of repairs; save them now and then."""
    expected = corruption.Answers.of(index, [extract(query, FeatureOptions()) for query in queries])
    first = result["corruptions"]
    for seed in range(first, first + count):
        copy = Path(shutil.copytree(index, work / "copy.polyvoc", copy_function=copy_or_link))
        what = corruption.corrupt(copy, np.random.default_rng(seed))
        outcome = expected.compare(copy)
        if outcome not in corruption.RIGHT:
            print(seed, what, outcome, flush=True)
        kind, _, rest = what.partition(" of ")
        for name in (kind, rest.partition(" at ")[0].split("/")[0], "all"):
            add_one(result["outcomes"].setdefault(name, {}), outcome)
        if seed % 10 == 0:
            add_one(result["repairs"], try_repair(copy))
        shutil.rmtree(copy)
        result["corruptions"] += 1
        if (seed + 1) % SAVED_EVERY == 0 or seed == first + count - 1:
            write_result(NAME, result)
            print(seed + 1, result["outcomes"]["all"], flush=True)


def add_one(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


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
    for first in range(0, n_images, SEGMENT_IMAGES):
        batch = draw_batch(real, first, min(SEGMENT_IMAGES, n_images - first), FEATURES)
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
    parser.add_argument("--anew", action="store_true", help="without the counts of earlier runs")
    parser.add_argument("--images", type=int, default=100_000, help="of the measurement of cost; 0: keep the earlier one")
    parser.add_argument("--training", type=Path, required=True, help="photographs whose features the cost is measured with")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    index, result = arguments.work / "index.polyvoc", earlier(arguments.anew)
    if arguments.count:
        make_index(arguments.photographs, index)
        result["files"] = sum(path.is_file() for path in index.rglob("*"))
        result["bytes"] = sum(path.stat().st_size for path in index.rglob("*"))
        corrupt_all(index, arguments.queries, arguments.work, arguments.count, result)
    if arguments.images:
        result["cost"] = cost(arguments.training, arguments.queries, arguments.work, arguments.images)
        result["cost"]["machine"] = machine()
        print(write_result(NAME, result))
    shutil.rmtree(arguments.work)


def earlier(anew: bool) -> dict[str, Any]:
    """Return the result of earlier runs; of the cost alone, if the counts are not wanted."""
    path = RESULTS / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found.pop("machine", None)
    counts = {"corruptions": 0, "outcomes": {}, "repairs": {}}
    return {**found, **counts} if anew else {**counts, **found}


if __name__ == "__main__":
    main()
