"""Power cuts in everything that writes: after each the index opens without errors at its last commit, and work goes on.

A sample of the states: `benchmarks/powerloss.py` replays them all.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_log import ROOT, Link, Log, Mark, Rename, Sync, Tree, Unlink, Write, is_possible
from power_cuts import power_cuts
from power_replay import Recording, record_jobs, replay
from samples import unflushed
from writing_jobs import FAULTY, JOBS

__all__ = ["unflushed"]

CUTS, STATES = 12, 16  # of each job
REQUIRED = "POLYVOC_STRACE"  # of the environment: where nothing can be recorded, tests fail instead of being skipped

# --- the model of a disk


def states(log: Log, calls: int) -> list[dict[str, bytes]]:
    """Return the files after a power cut, in all states."""
    cuts = power_cuts(log, [calls], n_random=300)
    return [{path: cut.tree.contents.get(inode, b"") for path, inode in cut.tree.files().items()} for cut in cuts]


def test_what_is_not_synced_may_be_lost_torn_or_reordered() -> None:
    calls = [Link(ROOT, "a", 1), Write(1, 0, b"first"), Write(1, 5, b"second"), Sync(1, 3), Mark("x"), Sync(ROOT, 5)]
    log = Log(Path("/"), Tree(), [*calls, Write(1, 0, b"third"), Link(ROOT, "b", 1), Unlink(ROOT, "a")])
    unsynced = states(log, 3)
    assert {} in unsynced and {"a": b"firstsecond"} in unsynced and {"a": b""} in unsynced
    assert any(b"\0" in state.get("a", b"") for state in unsynced), "the second write without the first"
    assert any(state.get("a") in (b"f", b"fi", b"fir", b"firs") for state in unsynced), "a part of a write"
    assert states(log, 4) == [{}, {"a": b"firstsecond"}], "the content lasts, its name does not"
    assert states(log, 6) == [{"a": b"firstsecond"}]
    assert {frozenset(state) for state in states(log, 9)} == {frozenset("a"), frozenset("b"), frozenset("ab"), frozenset()}


def test_a_rename_is_atomic_and_lasts_when_its_new_folder_is_synced() -> None:
    before = Tree({ROOT: {"from": 1, "to": 2}, 1: {"x": 3}, 2: {}}, {3: b"content"})
    log = Log(Path("/"), before, [Rename(1, "x", 2, "y", 3), Sync(1, 1), Sync(2, 2)])
    assert {frozenset(state) for state in states(log, 2)} == {frozenset({"from/x", "to/"}), frozenset({"from/", "to/y"})}
    assert {frozenset(state) for state in states(log, 3)} == {frozenset({"from/", "to/y"})}


# --- recorded jobs


@pytest.fixture(scope="module")
def recordings(unflushed: None) -> Iterator[dict[str, Recording]]:
    """The logs of all jobs; their states are written to memory if possible, a real disk would not show more."""
    if not is_possible() and REQUIRED not in os.environ:
        pytest.skip("strace is missing, or this process may not use it")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as place:
        yield {one.name: one for one in record_jobs([*JOBS, *FAULTY], Path(place).resolve())}


@pytest.mark.parametrize("name", JOBS)
def test_nothing_that_was_reported_is_lost(recordings: dict[str, Recording], name: str) -> None:
    recording, draw = recordings[name], random.Random(name)
    assert any(isinstance(call, Sync) for call in recording.log.calls) and recording.marks
    chosen = draw.sample(range(len(recording.log.calls)), CUTS)
    cuts = list(power_cuts(recording.log, [*chosen, len(recording.log.calls)]))
    cuts = draw.sample(cuts, min(STATES, len(cuts)))
    result = replay(recording, cuts, continue_every=len(cuts) // 4)
    assert result.failures == [] and result.states >= 8 and result.continued >= 4


def test_a_journal_that_comes_back_is_found(recordings: dict[str, Recording]) -> None:
    """Without the sync after SQLite deletes its journal, a merge that was reported is undone and its segments are gone."""
    recording = recordings["merge, journal unsynced"]
    result = replay(recording, power_cuts(recording.log, [len(recording.log.calls)]))
    assert any("another commit" in failure for failure in result.failures)
    assert any("is missing" in failure for failure in result.failures)


@pytest.mark.parametrize("name", JOBS)
def test_a_folder_that_is_not_synced_is_found(recordings: dict[str, Recording], name: str) -> None:
    recording = recordings[name]
    log = recording.log.without_syncs(recording.log.before.folders)
    cut = next(iter(power_cuts(log, [len(log.calls)])))
    assert cut.kind == "lost" and len(replay(recording, [cut]).failures) == 1


@pytest.mark.parametrize("name", [name for name in JOBS if name != "undo"])  # which writes no bytes
def test_a_file_that_is_not_synced_is_found(recordings: dict[str, Recording], name: str) -> None:
    recording = recordings[name]
    written = {call.inode for call in recording.log.calls if isinstance(call, Write)}
    log = recording.log.without_syncs(written)
    cut = next(iter(power_cuts(log, [len(log.calls)])))
    assert cut.kind == "lost" and len(replay(recording, [cut]).failures) == 1
