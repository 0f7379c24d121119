"""Time of each stage of a search (decode, SIFT, quantise, score) in a warm process, and of the whole command.

    python benchmarks/search.py PHOTOGRAPHS QUERY... --work FOLDER

Indexes PHOTOGRAPHS (twice: the second run must find nothing to do), then searches for each QUERY, enlarged or reduced to a long
side of 1024 pixels.
"""

from __future__ import annotations

import argparse
import json
import statistics as st
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

import polyvoc
from machine import write_result
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import detect
from polyvoc.options import CODE_CUT
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.threads import count_threads


def run(*arguments: str) -> tuple[float, dict[str, Any]]:
    """Return the seconds and the JSON of one command in a new process."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "polyvoc", *arguments, "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    answer.pop("index", None)  # a path of this machine
    return time.perf_counter() - begin, answer


def at_1024(path: Path, work: Path) -> Path:
    with Image.open(path) as picture:
        factor = 1024 / max(picture.size)
        resized = picture.convert("RGB").resize([round(side * factor) for side in picture.size], Image.Resampling.LANCZOS)
    out = work / f"query-{path.stem}.jpg"
    resized.save(out, quality=92)
    return out


def warm(index: polyvoc.Index, query: Path) -> dict[str, float]:
    """Return the seconds of each stage, with the index open and the kernels compiled."""
    options, coder = index.default_options, index.coder
    assert coder is not None
    marks = [time.perf_counter()]
    grey = read_grey(query, index.folder.feature_options.long_side)
    marks.append(time.perf_counter())
    found = detect(grey, index.folder.feature_options, threads=count_threads())
    marks.append(time.perf_counter())
    codes = coder.query(found.descriptors, options.n_assignments, CODE_CUT)
    marks.append(time.perf_counter())
    search(index.engine, Query(codes, keypoints=found.keypoints), options, index.probability, coder=coder)
    marks.append(time.perf_counter())
    names = ("decode", "sift", "quantise", "score")  # the last one verifies, too
    stages = {name: after - before for name, before, after in zip(names, marks, marks[1:], strict=False)}
    return {**stages, "all": marks[-1] - marks[0], "features": float(len(found))}


def sift(index: polyvoc.Index, query: Path) -> dict[str, float]:
    """Return the seconds of SIFT: OpenCV's, ours on one thread, and on all, as in a search."""
    options = index.folder.feature_options
    grey, spent = read_grey(query, options.long_side), {}
    ways = {
        "opencv": (replace(options, detector="opencv-sift"), 1),
        "one thread": (options, 1),
        "all": (options, count_threads()),
    }
    for name, (chosen, threads) in ways.items():
        begin = time.perf_counter()
        detect(grey, chosen, threads=threads)
        spent[name] = time.perf_counter() - begin
    return spent


def unchanged_run(folder: Path, index: Path) -> dict[str, Any]:
    """Index an unchanged folder again; return the seconds, and the files of the index that changed."""
    state = lambda: {str(p.relative_to(index)): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(index.rglob("*"))}  # noqa: E731
    before = state()
    seconds, report = run("index", str(folder), "--index", str(index))
    start_up = min(run_help() for _ in range(3))
    begin = time.perf_counter()
    with polyvoc.IndexWriter.open(index) as writer:
        writer.update([folder])
    return {"seconds_whole_command": seconds, "seconds_start_up": start_up, "seconds_in_process": time.perf_counter() - begin,
            "report": report, "written": [name for name, value in state().items() if before.get(name) != value]}  # fmt: skip


def run_help() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "polyvoc", "--help"], capture_output=True, check=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("queries", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    path = arguments.work / "search.polyvoc"
    seconds, report = run("index", str(arguments.photographs), "--index", str(path))
    built = {"seconds": seconds, "report": report, "photographs_per_second": report["added"] / seconds}
    again = unchanged_run(arguments.photographs, path)
    queries = [at_1024(query, arguments.work) for query in arguments.queries]
    commands = [run("search", str(query), "--index", str(path)) for _ in range(arguments.repeats) for query in queries]
    index = polyvoc.open(path)
    warm(index, queries[0])
    stages = [warm(index, query) for _ in range(arguments.repeats) for query in queries]
    threads = [sift(index, query) for _ in range(arguments.repeats) for query in queries]
    result = {
        "index": {"images": len(index), **built},
        "second_run": again,
        "warm_median_seconds": {name: st.median(stage[name] for stage in stages) for name in stages[0]},
        "sift_median_seconds": {name: st.median(row[name] for row in threads) for name in threads[0]},
        "command_median_seconds": st.median(seconds for seconds, _ in commands),
        "command_stages": [answer["results"][0]["seconds"] for _, answer in commands],
        "warm": stages,
        "sift": threads,
        "commands": [seconds for seconds, _ in commands],
    }
    print(json.dumps({k: v for k, v in result.items() if k not in ("warm", "sift", "commands", "command_stages")}, indent=1))
    print(write_result("search", result))


if __name__ == "__main__":
    main()
