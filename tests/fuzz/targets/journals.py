"""Journals of `duplicates --move`, undone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fuzz.laws import check_line, one_line_errors, scratch
from polyvoc.duplicates.move import JOURNAL, undo

MAX_BYTES = 4096
PLACE = b"$"  # in an input, the folder of the trial


def target(data: bytes) -> None:
    """Undo a journal; whatever it holds, no file is lost or changed, and every problem is one line.

    Relative paths start from the folder of the trial. A path that leads out of it is not tried: it might be followed.
    """
    folder = _folder()
    if not _stays_within(data, folder):
        return
    moved = folder / "moved"
    (moved / JOURNAL).write_bytes(data.replace(PLACE, os.fsencode(folder)))
    before = os.getcwd()
    os.chdir(moved)
    try:
        with one_line_errors():
            for problem in undo(moved).problems:
                check_line(problem.reason)
    finally:
        os.chdir(before)
    contents = sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != JOURNAL)
    assert contents == [b"one", b"other", b"two"], contents


def _folder() -> Path:
    """Return a folder with a file at its place, and two that were moved."""
    folder = scratch("journals") / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "moved").mkdir(parents=True)
    (folder / "other").write_bytes(b"other")
    for name in ("one", "two"):
        (folder / "moved" / name).write_bytes(name.encode())
    return folder


def _stays_within(data: bytes, folder: Path) -> bool:
    """Return whether every path of a journal, as JSON, is below the folder of the trial."""
    for line in data.replace(PLACE, os.fsencode(folder)).splitlines():
        try:
            entry = json.loads(line)
            paths = [entry["from"], entry["to"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        for path in paths:
            joined = os.path.normpath(os.path.join(folder / "moved", path)) if isinstance(path, str) else ""
            if joined and not joined.startswith(str(folder) + os.sep):
                return False
    return True


def seeds() -> Iterator[bytes]:
    """Yield a journal of two moves, one of relative paths, one of a name that is taken, and one that a crash cut off."""
    for origins in (("$/one", "$/sub/two"), ("../one", "../two"), ("$/other", "$/two")):
        moves = zip(origins, ("$/moved/one", "$/moved/two"), strict=True)
        yield b"".join(json.dumps({"from": origin, "to": target}).encode() + b"\n" for origin, target in moves)
    yield b'{"from": "$/one", "to": "$/moved/one"}\n{"from": "$/tw'
