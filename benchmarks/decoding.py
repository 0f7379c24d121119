"""What decoding in separate processes costs: `polyvoc index` and `polyvoc search` of two versions of polyvoc, side by side.

    python benchmarks/decoding.py PHOTOGRAPHS QUERY... --before SOURCES --work FOLDER [--images 300] [--repeats 5]

SOURCES is the folder `src` of a version that decodes in its own process, such as that of commit c2e8464. The commands of both versions alternate;
wall-clock and processor time (with all child processes) are compared pair by pair, so that other work on the machine weighs on both.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import resource
import shutil
import statistics as st
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from machine import write_result
from polyvoc.features.decode import MAX_PIXELS, MIN_SIDE, Decoders
from polyvoc.features.pixels import PixelLimits, decode

SIDE = 1024  # pixels of the long side
OURS = Path(__file__).parent.parent / "src"
Times = tuple[float, float]  # seconds by the clock, and of the processors


def run(sources: Path, *arguments: object) -> Times:
    """Return the seconds of a command of one version."""
    command = [sys.executable, "-m", "polyvoc", *map(str, arguments), "--json"]
    begin = time.perf_counter()
    started = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(sources)}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {started.returncode}")
    return time.perf_counter() - begin, used.ru_utime + used.ru_stime


def compare(before: list[Times], after: list[Times]) -> dict[str, object]:
    """Return the medians of both versions, and of the ratios after / before of all pairs."""
    ratios = [[b / a for a, b in zip(one, two, strict=True)] for one, two in zip(before, after, strict=True)]
    return {
        "before": {"seconds": st.median(t[0] for t in before), "processor seconds": st.median(t[1] for t in before)},
        "after": {"seconds": st.median(t[0] for t in after), "processor seconds": st.median(t[1] for t in after)},
        "ratio of seconds": st.median(ratio[0] for ratio in ratios),
        "ratio of processor seconds": st.median(ratio[1] for ratio in ratios),
        "runs": {"before": before, "after": after},
    }


def index_of(sources: Path, work: Path) -> Path:
    """Return where the index of a version is: formats may differ."""
    return work / ("index" if sources == OURS else "index before")


def index_both(folder: Path, before: Path, work: Path, repeats: int) -> dict[str, object]:
    """Index a folder from scratch, with both versions in turn."""
    times: dict[Path, list[Times]] = {before: [], OURS: []}
    for number in range(repeats + 1):  # the first run compiles
        for sources in (before, OURS) if number % 2 else (OURS, before):
            shutil.rmtree(index_of(sources, work), ignore_errors=True)
            spent = run(sources, "index", folder, "--index", index_of(sources, work))
            times[sources] += [spent] if number else []
    return compare(times[before], times[OURS])


def search_both(queries: list[Path], before: Path, work: Path, repeats: int) -> dict[str, object]:
    """Search with photographs, with both versions in turn."""
    times: dict[Path, list[Times]] = {before: [], OURS: []}
    for number in range(repeats + 1):
        for sources in (before, OURS) if number % 2 else (OURS, before):
            spent = run(sources, "search", *queries, "--index", index_of(sources, work))
            times[sources] += [spent] if number else []
    return compare(times[before], times[OURS])


def used() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in both)


def per_photograph(files: list[bytes]) -> dict[str, float]:
    """Return processor milliseconds: to decode a photograph here and in another process, and to start that."""
    marks = [used()]
    for content in files:
        np.array(decode(io.BytesIO(content), "L", PixelLimits(SIDE, MIN_SIDE, MAX_PIXELS))[0])
    marks.append(used())
    for chosen in (files[:1], files):
        with Decoders(1) as decoders:
            for content in chosen:
                decoders.grey(content, SIDE)
        marks.append(used())
    here, start, there = (1000 * (after - before) for before, after in itertools.pairwise(marks))
    return {"here": here / len(files), "there": (there - start) / len(files), "start": start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("queries", type=Path, nargs="+")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    chosen = sorted(arguments.photographs.rglob("*.jpg"))[: arguments.images]
    folder = arguments.work / "photographs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, path in enumerate(chosen):
        (folder / f"{number:06d}.jpg").symlink_to(path.resolve())
    before, files = arguments.before.resolve(), [path.read_bytes() for path in chosen]
    single = [per_photograph(files) for _ in range(arguments.repeats)]
    result = {
        "images": len(chosen),
        "index": index_both(folder, before, arguments.work, arguments.repeats),
        "search": search_both(arguments.queries, before, arguments.work, 2 * arguments.repeats),
        "processor milliseconds": {name: st.median(one[name] for one in single) for name in single[0]},
    }
    print(write_result("decoding", result))


if __name__ == "__main__":
    main()
