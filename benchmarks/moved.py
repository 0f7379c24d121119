"""A folder that lives: what an update takes after it was renamed, re-sorted, unplugged and plugged in again, or while it is watched.

    python benchmarks/moved.py PHOTOGRAPHS --work FOLDER

The photographs are copied to FOLDER, which may be deleted afterwards, and indexed by `polyvoc index`; then the copy is changed, and
the command runs again, each time in a process of its own: `seconds` by the clock of the whole command, `update` without
start and imports; `load` of the machine, above its cores where others compute, too. The files are in the page cache. After each step the ids of all photographs must be those of the first
index, and nothing may have been extracted. At last `polyvoc index --watch` runs, and a photograph is added, changed, renamed and
removed: the seconds until an index that is opened then holds the change.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import write_result
from polyvoc.search.index import Index
from polyvoc.storage.files import checksum
from polyvoc.storage.folders import list_photographs

PAUSE = 0.02  # seconds between two looks at the index
WATCHED = 5  # photographs that are added, changed, renamed and removed while the folder is watched
COUNTS = ("added", "replaced", "removed", "moved", "unchanged")


def update(index: Path, *folders: Path) -> dict[str, Any]:
    """Run `polyvoc index`, and return its counts and times."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "polyvoc", "index", *map(str, folders), "--index", str(index), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    return {
        "seconds": round(time.perf_counter() - started, 2),
        "update": report["seconds"],
        "load": round(os.getloadavg()[0], 1),
        **{name: report[name] for name in COUNTS},
        "features": report["features"],
        "kept of absent folders": sum(report["absent"].values()),
    }


def ids(index: Path) -> list[tuple[int, str | None]]:
    """Return id and digest of every photograph."""
    with Index.open(index) as opened:
        return [(row.image, row.digest) for row in opened.images()]


def digests(index: Path) -> dict[str, str | None]:
    """Return the digest of every photograph by its path."""
    with Index.open(index) as opened:
        return {row.path: row.digest for row in opened.images()}


def resort(folder: Path) -> None:
    """Sort the photographs into a hundred folders under other names."""
    for number, (path, _) in enumerate(list(list_photographs([folder]))):
        target = folder / f"{number % 100:02d}" / f"renamed-{number:05d}{Path(path).suffix}"
        target.parent.mkdir(exist_ok=True)
        os.rename(path, target)


def watch(index: Path, folder: Path, photographs: list[Path]) -> dict[str, list[float]]:
    """Return the seconds from each change below a watched folder until the index holds it."""
    seconds: dict[str, list[float]] = {name: [] for name in ("added", "changed", "renamed", "removed")}
    command = [sys.executable, "-m", "polyvoc", "index", str(folder), "--index", str(index), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "watching" not in process.stderr.readline():
            assert process.poll() is None, "polyvoc index --watch ended"
        new, moved = folder / "watched.jpg", folder / "watched-moved.jpg"
        for first, second in zip(photographs[::2], photographs[1::2], strict=False):
            seconds["added"].append(until_held(index, lambda first=first: shutil.copyfile(first, new), new, first))
            seconds["changed"].append(until_held(index, lambda second=second: shutil.copyfile(second, new), new, second))
            seconds["renamed"].append(until_held(index, lambda: new.rename(moved), moved, second))
            seconds["removed"].append(until_held(index, moved.unlink, moved, None))
        process.send_signal(signal.SIGINT)
        process.communicate()
    return seconds


def until_held(index: Path, change: Callable[[], object], path: Path, content: Path | None) -> float:
    """Change a folder; return the seconds until the index has the path with the digest of a file, or not at all."""
    expected = None if content is None else checksum(content)
    started = time.perf_counter()
    change()
    while digests(index).get(str(path)) != expected:
        time.sleep(PAUSE)
    return round(time.perf_counter() - started, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    shutil.rmtree(given.work, ignore_errors=True)
    photos, renamed, away = (given.work / name for name in ("photos", "renamed", "away"))
    given.work.mkdir(parents=True)
    shutil.copytree(given.photographs, photos)
    index = given.work / "index.polyvoc"
    size = sum(path.stat().st_size for path in photos.rglob("*") if path.is_file())

    steps: dict[str, dict[str, Any]] = {"indexed": update(index, photos), "unchanged": update(index)}
    before = ids(index)
    photos.rename(renamed)
    steps["folder renamed"] = update(index, renamed)
    resort(renamed)
    steps["re-sorted under other names"] = update(index)
    renamed.rename(away)
    steps["folder not there"] = update(index)
    renamed.mkdir()
    steps["an empty mount point"] = update(index)
    renamed.rmdir()
    away.rename(renamed)
    steps["there again"] = update(index)
    same = ids(index) == before
    seconds = watch(index, renamed, sorted(given.photographs.glob("*.jpg"))[: 2 * WATCHED])
    print("watched", seconds)
    for name, step in steps.items():
        print(f"{name:<30} {step}")
    assert same and not any(step["features"] for name, step in steps.items() if name != "indexed"), "something was extracted"
    result = {"photographs": len(before), "bytes": size, "same ids and digests": same, "steps": steps, "watched": seconds}
    print(write_result("moved", result))


if __name__ == "__main__":
    main()
