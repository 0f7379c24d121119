"""Power cuts at every moment of everything that writes, replayed from recorded system calls.

    python benchmarks/powerloss.py [JOB ...] [--random 3] [--every 1] [--work FOLDER]

Needs strace (Linux). Each job of `tests/writing_jobs.py` runs once; then every prefix of its log is a power cut, with the states of
`tests/power_cuts.py`: everything unsynced lost, everything kept, each name alone lost or kept, and random ones with torn writes. Each
state must open, be without errors, and hold what was reported before the cut; in every 16th the work is done again. Equal states of a
job are checked once. Two runs of different jobs add up: the result of a job replaces its earlier one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from machine import RESULTS, write_result
from polyvoc.storage import sqlite
from power_cuts import power_cuts
from power_replay import record_jobs, replay
from writing_jobs import JOBS

NAME = "powerloss"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--random", type=int, default=3, help="random states of each cut")
    parser.add_argument("--every", type=int, default=1, help="replay every so many-th cut")
    parser.add_argument("--work", type=Path, help="folder for states; best in memory")
    given = parser.parse_args()
    os.fsync, sqlite.FLUSH = lambda descriptor: None, "OFF"  # of this process; the recorded one syncs
    with tempfile.TemporaryDirectory(dir=given.work) as place:
        for recording in record_jobs(given.jobs, Path(place).resolve()):
            started, calls = time.perf_counter(), len(recording.log.calls)
            done = replay(recording, power_cuts(recording.log, range(0, calls + 1, given.every), given.random))
            row = {
                "calls": calls,
                "prefixes": len(range(0, calls + 1, given.every)),
                "reports": len(recording.marks),
                "states": done.states,
                "continued": done.continued,
                "failures": len(done.failures),
                "seconds": round(time.perf_counter() - started, 1),
            }
            print(recording.name, row, *done.failures[:5], sep="\n  ", flush=True)
            save(recording.name, row)


def save(job: str, row: dict[str, Any]) -> None:
    """Put the result of a job into the file."""
    path = RESULTS / f"{NAME}.json"
    jobs = {**(json.loads(path.read_text())["jobs"] if path.exists() else {}), job: row}
    total = {name: sum(one[name] for one in jobs.values()) for name in ("calls", "prefixes", "states", "continued", "failures")}
    write_result(NAME, {"total": total, "jobs": {name: jobs[name] for name in JOBS if name in jobs}})


if __name__ == "__main__":
    main()
