"""Fuzz targets for some seconds, several at a time, and report what was found: see `scripts/fuzz --help`."""

from __future__ import annotations

import argparse
import base64
import json
import os
import pkgutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz import targets

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "benchmarks" / "results" / "fuzz.json"
PATHS = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])  # of every process: the sources of this tree
NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(targets.__path__)))
MAX_STARTS = 20  # of a target whose process ends: each end is kept as a finding
MAX_SEED = 2**31
SHOWN_LINES = 12  # of a traceback
SHOWN_BYTES = 8192  # of an input: it may be all that is left of a machine that ran this


@dataclass(frozen=True)
class Outcome:
    """What one run of a target did."""

    target: str
    inputs: int
    seconds: int
    findings: tuple[str, ...]  # names of files


def main() -> int:
    """Run the command; return 1 if anything was found."""
    options = _options()
    names = options.target or NAMES
    if old := [path for name in names if (path := options.folder / name / "findings").is_dir() and any(path.iterdir())]:
        print(f"{old[0]} holds findings of an earlier run; mend what they show, move them to tests/fuzz/cases, or delete them")
        return 1
    each = max(options.seconds * options.processes // len(names), 1)
    with ThreadPoolExecutor(options.processes) as pool:
        outcomes = list(pool.map(lambda name: fuzz(f"fuzz.targets.{name}", options.folder / name, each, options.seed), names))
    for one in outcomes:
        print(f"{one.target:<18}{one.inputs:>10} inputs in {one.seconds} s, {len(one.findings)} findings", flush=True)
    for one in outcomes:
        for finding in one.findings:
            print(f"\n{described(options.folder / one.target / 'findings' / finding)}")
    if options.result:
        add_result(RESULT, options.folder, outcomes)
    return 1 if any(one.findings for one in outcomes) else 0


def fuzz(module: str, folder: Path, seconds: int, seed: int = 0, starts: int = MAX_STARTS) -> Outcome:
    """Fuzz the target of a module in processes of its own; one that ends too early is started again, with the next seed."""
    folder.mkdir(parents=True, exist_ok=True)
    before, started = _count(folder), time.monotonic()
    for start in range(starts):
        left = seconds - int(time.monotonic() - started)
        if left <= 0 or _worker(module, folder, left, (seed + start) % MAX_SEED if seed else 0) == 0:
            break
        if not _findings(folder):  # the target itself does not start
            raise SystemExit((folder / "log").read_text(encoding="utf-8", errors="replace"))
    inputs, duration = _count(folder) - before, round(time.monotonic() - started)
    return Outcome(module.rpartition(".")[2], inputs, duration, tuple(sorted(_findings(folder))))


def _worker(module: str, folder: Path, seconds: int, seed: int) -> int:
    """Run one process; return its exit code."""
    environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "fuzz.worker", module, str(folder), str(seconds), str(seed)]
    with (folder / "log").open("w", encoding="utf-8") as log:
        return subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode


def _count(folder: Path, name: str = "count") -> int:
    path = folder / name
    return int.from_bytes(path.read_bytes(), sys.byteorder) if path.exists() else 0


def _findings(folder: Path) -> set[str]:
    return {path.name for path in (folder / "findings").glob("*") if path.suffix != ".txt"}


def described(path: Path) -> str:
    """Return what there is to print of a finding: its file, and the end of its traceback, or else its input."""
    trace = path.with_suffix(".txt")
    if trace.exists():
        lines = trace.read_text(encoding="utf-8").splitlines()[-SHOWN_LINES:]
    elif (size := path.stat().st_size) < SHOWN_BYTES:
        lines = [f"{size} bytes, in base64:", base64.b64encode(path.read_bytes()).decode("ascii")]
    else:
        lines = [f"{size} bytes, too many to print"]
    return "\n".join((f"found: {path}", *lines))


def add_result(path: Path, folder: Path, outcomes: list[Outcome]) -> None:
    """Add inputs and findings to the result file: pieces, and the sums by target.

    A piece has the inputs of all runs in the folder since the last piece, also of runs that were interrupted; its commit is the
    one at which it was added.
    """
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from machine import machine, write_result

    sys.path.remove(str(ROOT / "benchmarks"))  # a file there has the name of a library

    pieces: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["pieces"] if path.exists() else []
    piece = []
    for one in outcomes:
        total, recorded = _count(folder / one.target), _count(folder / one.target, "recorded")
        piece.append({"target": one.target, "inputs": total - recorded, "findings": one.findings})
        (folder / one.target / "recorded").write_bytes(total.to_bytes(8, sys.byteorder))
    pieces.append({"machine": machine(), "targets": piece})
    sums: dict[str, int] = {}
    for one in (one for piece in pieces for one in piece["targets"]):
        sums[one["target"]] = sums.get(one["target"], 0) + one["inputs"]
    result = {"inputs": sum(sums.values()), "inputs_by_target": dict(sorted(sums.items())), "pieces": pieces}
    write_result(path.stem, result, path.parent)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/fuzz", description="Look for inputs that end in another way than they should.")
    parser.add_argument("--seconds", type=int, default=60, help="time in all, divided among the targets (default: 60)")
    parser.add_argument("--target", action="append", choices=NAMES, help="fuzz this target only; repeatable")
    parser.add_argument("--processes", type=int, default=2, help="targets at a time (default: 2)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="draw the same inputs as an earlier run with N, as far as time allows; 0: others in each run (default)",
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="inputs that the next run continues from")
    parser.add_argument("--result", action="store_true", help="add the counts to benchmarks/results/fuzz.json")
    options = parser.parse_args()
    if not 0 <= options.seed < MAX_SEED:
        parser.error(f"--seed {options.seed} should be 0 to {MAX_SEED - 1}")
    return options


if __name__ == "__main__":
    sys.exit(main())
