"""Kill everything that writes at random moments, and count what is lost of what was committed.

    python benchmarks/kills.py [JOB ...] [--kills 200] [--work FOLDER]

Each job of `tests/writing_jobs.py` runs in a process that has loaded everything, and is killed (SIGKILL) after a random part of its
usual time. The index must then be without errors at the last commit that was reported, or at the one that was being made; then
the work is done again and must end as if nothing had happened. Further runs add to the counts in the result file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from disk_log import Tree
from machine import RESULTS, write_result
from polyvoc.index.catalogue import FILE, Catalogue
from writing_jobs import JOBS, Job, Marks, assert_committed, assert_finished, describe, reporting

NAME = "kills"
COUNTS = ("kills", "finished", "committed", "lost", "failures")


@dataclass
class Run:
    """What a child reported, how long it ran, and whether it was killed."""

    last: Marks
    following: Marks
    seconds: float
    killed: bool


def run(job: Job, root: Path, seconds: float | None = None) -> Run:
    """Do a job in a child, with its own children; kill all of them after some seconds, or never."""
    known = following = initial(job, root)
    receive, send = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        _work(job, root, send)
    os.close(send)
    if seconds is not None:
        _wait(child, seconds)
        _kill(child)
    with os.fdopen(receive, encoding="utf-8") as channel:
        lines = [line.partition(" ") for line in channel.read().splitlines(keepends=True) if line.endswith("\n")]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise SystemExit("a job failed without being killed")
    for kind, _, text in lines:
        following = {**known, **json.loads(text)}
        known = following if kind == "done" else known
    return Run(known, following, time.perf_counter() - started, status < 0)


def initial(job: Job, root: Path) -> Marks:
    """Return the commit that an index is at, nothing if there is none."""
    if job.index is None or not (root / job.index / FILE).exists():
        return {}
    catalogue = Catalogue.open(root / job.index)
    found = describe(catalogue)
    catalogue.close()
    return found


def _wait(child: int, seconds: float) -> None:
    """Wait for the end of a child, or for some seconds."""
    descriptor = os.pidfd_open(child)
    select.select([descriptor], [], [], seconds)
    os.close(descriptor)


def _kill(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it leads no group yet
        os.kill(child, signal.SIGKILL)


def _work(job: Job, root: Path, channel: int) -> NoReturn:
    status = 1
    try:
        os.setsid()

        def send(kind: str) -> Callable[[Marks], Any]:
            return lambda marks: os.write(channel, f"{kind} {json.dumps(marks)}\n".encode())

        with reporting(send("done"), send("begun")):
            job.run(root)
        status = 0
    except Exception:  # noqa: BLE001 - a child must not continue in its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def kill_once(job: Job, root: Path, before: Tree, seconds: float, final: Marks) -> tuple[dict[str, int], Run]:
    """Kill a job and check what it leaves; return what to count, and how it ended."""
    before.write(root)
    done = run(job, root, seconds)
    counts = {"kills": int(done.killed), "finished": int(not done.killed), "committed": len(done.last.get("images", {}))}
    counts |= {"lost": count_lost(job, root, done), "failures": 0}
    try:
        assert_committed(job, root, done.last, done.following)
        job.run(root)
        assert_finished(job, root, final)
    except Exception:  # noqa: BLE001 - every failure counts, whatever it is
        traceback.print_exc()
        counts["failures"] = 1
    return counts, done


def count_lost(job: Job, root: Path, done: Run) -> int:
    """Return how many images of the last commit are neither in the index nor removed by the commit being made."""
    kept = done.last.get("images", {}).keys() & done.following.get("images", {}).keys()
    return len(kept - initial(job, root).get("images", {}).keys())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--kills", type=int, default=200, help="of all jobs together")
    parser.add_argument("--work", type=Path, help="folder for the jobs")
    given = parser.parse_args()
    earlier = read_result()
    draw = random.Random(f"{earlier['pieces']} {given.jobs}")
    share = -(-given.kills // len(given.jobs))
    with tempfile.TemporaryDirectory(dir=given.work) as place:
        for name in given.jobs:
            job, root = JOBS[name], Path(place).resolve() / name
            root.mkdir()
            job.prepare(root)
            before = Tree.read(root)
            job.run(root)  # loads everything
            before.write(root)
            complete = run(job, root)
            usual, counts = complete.seconds, dict.fromkeys(COUNTS, 0)
            while counts["kills"] < share:
                one, done = kill_once(job, root, before, usual * draw.random(), complete.last)
                counts = {key: counts[key] + one[key] for key in COUNTS}
                usual = usual if done.killed else done.seconds  # other work on the machine comes and goes
            print(name, counts, flush=True)
            earlier["jobs"][name] = {key: earlier["jobs"].get(name, {}).get(key, 0) + counts[key] for key in COUNTS}
            total = {key: sum(one[key] for one in earlier["jobs"].values()) for key in COUNTS}
            write_result(NAME, {"pieces": earlier["pieces"] + 1, "total": total, "jobs": earlier["jobs"]})
            shutil.rmtree(root)


def read_result() -> dict[str, Any]:
    """Return the counts of earlier runs."""
    path = RESULTS / f"{NAME}.json"
    return json.loads(path.read_text()) if path.exists() else {"pieces": 0, "jobs": {}}


if __name__ == "__main__":
    main()
