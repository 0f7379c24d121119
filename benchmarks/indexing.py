"""Where the time of indexing goes: core-seconds of each stage; with --command, photographs per second of the whole command.

    python benchmarks/indexing.py PHOTOGRAPHS --work FOLDER [--every 5] [--rounds 3] [--against SOURCE] [--command]

Every stage runs on one thread, after another has warmed it up, on every fifth photograph. SOURCE is the `src` folder of another
version of polyvoc: both versions run alternately, each in processes of their own. A stage's time is the median of all rounds.
Agreement is the share of descriptors whose word is the exact nearest one, in each vocabulary of words and in the fine one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics as st
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import polyvoc
from machine import write_result
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import detect, single_cv2_thread
from polyvoc.index.folder import Models
from polyvoc.index.segment import Batch, Geometry, Segment
from polyvoc.options import FeatureOptions
from polyvoc.storage.folders import read_with_digest
from polyvoc.types import FeatureCodes
from polyvoc.vocabulary.vocabulary import VocabularySet

T = TypeVar("T")
TOGETHER = 20_000  # features quantised together, as the writer does
SAMPLE = 8_000  # descriptors that are compared with all words
SOURCE = Path(polyvoc.__file__).parents[1]
STAGES = {
    "decode": "reading, decoding",
    "sift": "SIFT",
    "words": "words of two vocabularies",
    "codes": "fine word, code, rest",
    "sort": "sorting into lists",
    "write": "checksums, writing",
}
EXTRACTION = ("decode", "sift")


class Clock:
    """Core-seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, work: Callable[[], T]) -> T:
        begin = time.process_time()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - begin
        return result


def photographs(folder: Path, every: int) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg", ".png"})[::every]


def measure(paths: list[Path], work: Path) -> dict[str, Any]:
    """Return the core-seconds of each stage for photographs."""
    run_stages(paths[:20], work, Clock())
    clock = Clock()
    descriptors, found = run_stages(paths, work, clock)
    some = np.random.default_rng(0).choice(len(descriptors), min(SAMPLE, len(descriptors)), replace=False)
    return {
        "photographs": len(paths),
        "features": len(descriptors),
        "seconds": clock.seconds,
        "agreement": agreement(descriptors[some], found[some]),
    }


def agreement(descriptors: np.ndarray, found: np.ndarray) -> list[float]:
    """Return the share of words [n, K + 1], the fine one last, that are the nearest to descriptors [n, dimension]."""
    vocabularies, shares = VocabularySet.default(), []
    assert vocabularies.fine is not None
    for words, column in zip([*vocabularies.words, vocabularies.fine], found.T, strict=True):
        half = np.einsum("ij,ij->i", words.centroids, words.centroids) / 2
        nearest = [(part @ words.centroids.T - half).argmax(axis=1) for part in np.array_split(descriptors, 16)]
        shares.append(float(np.mean(np.concatenate(nearest) == column)))
    return shares


def run_stages(paths: list[Path], work: Path, clock: Clock) -> tuple[np.ndarray, np.ndarray]:
    """Index photographs on one thread; return the descriptors and their words, the fine one last."""
    options, found = FeatureOptions(), []
    with single_cv2_thread():
        for path in paths:
            source, _ = clock("decode", lambda path=path: read_with_digest(str(path)))
            grey = clock("decode", lambda source=source: read_grey(source, options.long_side))
            found.append(clock("sift", lambda grey=grey: detect(grey, options)))
    descriptors = np.concatenate([features.descriptors for features in found])
    vocabularies = VocabularySet.default()
    models = Models(vocabularies, threads=1)
    models.quantise(descriptors[:1000])
    quantised = [quantise(models, part, clock) for part in np.array_split(descriptors, -(-len(descriptors) // TOGETHER))]
    words, codes = zip(*quantised, strict=True)
    starts = np.concatenate([[0], np.cumsum([len(features) for features in found])]).astype(np.int64)
    places = [np.concatenate([getattr(one, name) for one in found]) for name in ("xy", "scale", "angle")]
    geometry = clock("sort", lambda: Geometry.of(*places, starts))
    coded = FeatureCodes(*map(np.concatenate, zip(*codes, strict=True)))
    joined = np.concatenate(words)
    batch = Batch(np.arange(len(paths)), starts, geometry, joined, None, coded)
    assert vocabularies.fine is not None
    fine = vocabularies.fine.size
    segment = clock("sort", lambda: Segment.build(batch, vocabularies.sizes, fine))
    folder = work / "segment"
    shutil.rmtree(folder, ignore_errors=True)
    clock("write", lambda: segment.save(folder))
    return descriptors, np.column_stack([joined, coded.words])


def quantise(models: Models, descriptors: np.ndarray, clock: Clock) -> tuple[np.ndarray, FeatureCodes]:
    """Return words and codes as the writer finds them; `words` is what remains beside the codes."""
    coder, inner = models.coder, Clock()
    assert coder is not None
    encode = coder.encode
    coder.encode = lambda *given: inner("codes", lambda: encode(*given))  # type: ignore[method-assign]
    result = clock("words", lambda: models.quantise(descriptors))
    coder.encode = encode  # type: ignore[method-assign]
    clock.seconds["words"] -= inner.seconds["codes"]
    clock.seconds["codes"] = clock.seconds.get("codes", 0.0) + inner.seconds["codes"]
    assert result.codes is not None
    return result.words, result.codes


def whole_command(folder: Path, work: Path, source: Path) -> float:
    """Return the photographs per second of `polyvoc index`, with all cores."""
    target = work / "whole.polyvoc"
    shutil.rmtree(target, ignore_errors=True)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "polyvoc", "index", str(folder), "--index", str(target), "--json"]
    done = subprocess.run(command, env=environment(source), capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["added"] / (time.perf_counter() - begin))


def environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).parent)])}


def in_process(arguments: argparse.Namespace, source: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, str(arguments.photographs), "--work", str(arguments.work), "--stages"]
    command += ["--every", str(arguments.every)]
    done = subprocess.run(command, env=environment(source), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def summary(rows: list[dict[str, Any]], speeds: list[float]) -> dict[str, Any]:
    """Return milliseconds per photograph and shares of each stage."""
    count = rows[0]["photographs"]
    spent = {stage: 1000 * st.median(row["seconds"][stage] for row in rows) / count for stage in STAGES}
    whole = sum(spent.values())
    return {
        "milliseconds_per_photograph": spent,
        "share": {stage: value / whole for stage, value in spent.items()},
        "agreement": rows[0]["agreement"],
        "share_beside_extraction": 1 - sum(spent[stage] for stage in EXTRACTION) / whole,
        "photographs_per_second": st.median(speeds) if speeds else None,
        "rounds": rows,
        "speeds": speeds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--command", action="store_true", help="time the whole command on all photographs, too")
    parser.add_argument("--stages", action="store_true", help="print the core-seconds of one round, for this script itself")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    paths = photographs(arguments.photographs, arguments.every)
    if arguments.stages:
        print(json.dumps(measure(paths, arguments.work)))
        return
    sources = {"this": SOURCE, **({"against": arguments.against.resolve()} if arguments.against else {})}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    speeds: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(arguments.rounds):
        for name, source in sources.items():
            rows[name].append(in_process(arguments, source))
            if arguments.command:
                speeds[name].append(whole_command(arguments.photographs, arguments.work, source))
    found = {name: summary(rows[name], speeds[name]) for name in sources}
    for stage, title in STAGES.items():
        values = [(one["milliseconds_per_photograph"][stage], 100 * one["share"][stage]) for one in found.values()]
        print(f"{title:28}", "   ".join(f"{spent:7.2f} ms {share:5.1f} %" for spent, share in values))
    for name, one in found.items():
        print(
            f"{name}: {100 * one['share_beside_extraction']:.1f} % beside extraction; {one['photographs_per_second']} per second"
        )
    print(write_result("indexing", found))


if __name__ == "__main__":
    main()
