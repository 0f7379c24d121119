"""Changes below folders are noticed, by events and without; those of the index are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest

from polyvoc.index.watch import _matters, wait_for_changes
from samples import photograph

PATIENCE = 120  # seconds, for a busy machine
SECONDS = 0.02


def next_of(found: Iterator[None]) -> Queue[None]:
    """Return a queue that gets an item when the iterator yields: the wait for events has begun by then, or soon will."""
    queue: Queue[None] = Queue()
    Thread(target=lambda: queue.put(next(found)), daemon=True).start()
    return queue


def assert_noticed(found: Iterator[None], folder: Path) -> None:
    """Change a photograph again and again until it is noticed: when the system begins to report is not known."""
    queue = next_of(found)
    for number in count():
        (folder / "a.jpg").write_bytes(b"x" * (number % 7 + 1))
        try:
            return queue.get(timeout=0.5)
        except Empty:
            assert number < 2 * PATIENCE, "not noticed"


@pytest.mark.parametrize("events", [True, False])
def test_changes_are_noticed(tmp_path: Path, events: bool) -> None:
    (tmp_path / "photos").mkdir()
    found = wait_for_changes([str(tmp_path / "photos")], tmp_path / "photos.polyvoc", (), SECONDS, events)
    next_of(found).get(timeout=PATIENCE)  # what has changed before
    for _ in range(2):
        assert_noticed(found, tmp_path / "photos")


@pytest.mark.parametrize("events", [True, False])
def test_a_disk_that_is_removed_and_connected_is_noticed(tmp_path: Path, events: bool) -> None:
    photograph(tmp_path / "photos/a.jpg", 1)
    (tmp_path / "other").mkdir()
    folders = [str(tmp_path / "photos"), str(tmp_path / "other")]
    found = wait_for_changes(folders, tmp_path / "photos.polyvoc", (), SECONDS, events)
    next_of(found).get(timeout=PATIENCE)
    for one, other in (("photos", "away"), ("away", "photos")):
        queue = next_of(found)
        (tmp_path / one).rename(tmp_path / other)
        queue.get(timeout=PATIENCE)


def test_what_matters() -> None:
    index = "/photos/my index"
    yes = ("/photos/a.jpg", "/photos/sub", "/photos/sub/b.HEIC", "/photos/.polyvocignore", "/photos/my index 2/a.jpg")
    no = (
        "/photos/my index",
        "/photos/my index/catalogue.sqlite",
        "/photos/x.polyvoc/lock",
        "/photos/._a.jpg",
        "/photos/.a.swp",
    )
    assert [path for path in (*yes, *no) if _matters(path, index)] == list(yes)


def test_an_index_is_kept_up_to_date_until_ctrl_c(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "watched"
    folder.mkdir()
    (folder / "wall-a.jpg").write_bytes((photographs / "wall-a.jpg").read_bytes())
    command = [sys.executable, "-m", "polyvoc", "index", str(folder), "--index", str(index_path), "--watch"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        lines: Queue[str] = Queue()
        Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()  # type: ignore[union-attr]
        try:
            assert lines.get(timeout=PATIENCE).startswith("1 added")
            assert process.stderr.readline().startswith(f"watching {folder}; Ctrl-C ends it")
            (folder / "new.jpg").write_bytes((photographs / "tower-b.jpg").read_bytes())
            assert "  1 added; commit " in lines.get(timeout=PATIENCE)
            (folder / "new.jpg").rename(folder / "renamed.jpg")
            assert "  1 moved; commit " in lines.get(timeout=PATIENCE)
            (folder / "renamed.jpg").unlink()
            assert "  1 removed; commit " in lines.get(timeout=PATIENCE)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
            assert process.stderr.read() == "stopped watching; the index is up to date with the last line\n"
        finally:
            process.kill()
