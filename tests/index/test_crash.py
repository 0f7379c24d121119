"""Kill the writer at any moment: the index opens at its last commit without errors, and the next writer finishes the work."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from polyvoc.errors import NotAnIndexError
from polyvoc.index.build import CommitLimits
from polyvoc.index.catalogue import FILE, UNFINISHED
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.storage import sqlite
from polyvoc.types import Features
from processes import ForkServer, Run, watched
from random_collections import plain
from samples import build, coded, features, photograph, quantised, scores, unflushed

__all__ = ["unflushed"]

KILLED = -9
SMALL = FeatureOptions(long_side=96, max_features=20)
OFTEN = CommitLimits(images=1)
Step = tuple[str, str, int]  # verb, name, seed of its features
State = dict[str, int]  # seed of the features of each name


# --- the work that is killed ------------------------------------------------------------------------------------


def plan(length: int) -> list[Step]:
    """Return work of all kinds: add, replace, remove; no two of its states are the same."""
    steps: list[Step] = []
    for number in range(length):
        steps.append(("add", f"image {number}", number))
        if number % 5 == 4:
            steps.append(("add", f"image {number - 3}", 100 + number))
        if number % 11 == 10:
            steps.append(("remove", f"image {number - 6}", 0))
    return [*steps, ("remove", "image 0", 0), ("remove", "image 2", 0)]


def states_of(length: int) -> list[State]:
    """Return the state before and after each step of a plan."""
    states: list[State] = [{}]
    for verb, name, seed in plan(length):
        before = {other: known for other, known in states[-1].items() if other != name}
        states.append({**before, name: seed} if verb == "add" else before)
    return states


def work(path: str, length: str) -> None:
    """Do a plan from its beginning; images that exist are replaced, and those that were removed stay so."""
    with IndexWriter.open(path, coded(), limits=OFTEN) as writer:
        for verb, name, seed in plan(int(length)):
            if verb == "add":
                writer.add(name, features(seed, 6))
            elif writer.catalogue.image_at(name):
                writer.remove([name])


def follow(path: str, folder: str) -> None:
    """Bring an index up to date with a folder."""
    with IndexWriter.open(path, coded(dimension=128), SMALL, limits=OFTEN) as writer:
        writer.update([folder])


def warm() -> None:
    """Load everything that the jobs need; leave out flushing, which matters only in a power cut."""
    cv2.setNumThreads(1)
    os.fsync, sqlite.FLUSH = lambda descriptor: None, "OFF"
    images = {"image": features(1), "other": features(2)}
    with tempfile.TemporaryDirectory() as folder, build(Path(folder) / "index", images, coded()) as index:
        scores(index, features(1), plain())
        index.engine.segments[0].without([1]).live_batch()


JOBS = {"work": work, "follow": follow}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder, in memory if possible: a killed process, unlike a power cut, loses nothing that was written."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def process() -> Iterator[ForkServer]:
    with ForkServer(__file__) as started:
        yield started


# --- what must be true afterwards ----------------------------------------------------------------------------------


def assert_unfinished(path: Path) -> None:
    """The process died before there was a catalogue: the folder does not exist, or is marked as unfinished."""
    assert not (path / FILE).exists()
    with pytest.raises(NotAnIndexError):
        Index.open(path)
    if path.exists():
        assert {entry.name for entry in path.iterdir()} <= {"lock"} or (path / UNFINISHED).exists()


def assert_committed(path: Path, allowed: list[State]) -> int:
    """The index has no errors and is in one of the states, with the right words and scores; return which."""
    with Index.open(path) as index:
        assert list(check(path)) == []
        names = {row.path for row in index.images()}
        matching = [number for number, state in enumerate(allowed) if state.keys() == names]
        assert matching, names
        for number in matching:
            if not names or has_content(index, allowed[number]):
                return number
    raise AssertionError(f"{names} with other features")


def has_content(index: Index, state: State) -> bool:
    """Return whether it equals an index of the same images that is built at once, in memory."""
    images = {row.path: quantised(index, features(state[row.path], 6), plain()) for row in index.images()}
    bits = [signatures for _, signatures in images.values() if signatures is not None]
    anew = Index.from_words([words for words, _ in images.values()], index.engine.sizes, bits)
    for options in (plain(), plain(merge="bayes", hamming=3)):
        query = features(3, 6)
        words, signatures = quantised(index, query, options)
        expected = anew.score_words(words, signatures, options).tolist()
        if list(scores(index, query, options).values()) != expected:
            return False
    return all(has_features(index, name, features(state[name], 6)) for name in images)


def has_features(index: Index, name: str, expected: Features) -> bool:
    """Return whether the words and codes that are stored of an image are those of some features."""
    row = index.folder.catalogue.image_at(name)
    assert row is not None
    segment, position = index.find(row.image)
    stored = index.engine.segments[segment].image_features(position)
    words, _, codes = index.folder.models.quantise(expected.descriptors)
    assert stored.codes is not None and codes is not None
    return np.array_equal(stored.words, words) and all(map(np.array_equal, stored.codes, codes))


def assert_no_garbage(path: Path) -> None:
    """Nothing is left that no commit refers to."""
    with Index.open(path) as index:
        segments = {f"{number:06d}" for number in index.folder.catalogue.segments()}
    assert {entry.name for entry in path.iterdir()} <= {"lock", FILE, "segments", "vocabularies"}
    assert {entry.name for entry in (path / "segments").iterdir()} == segments
    assert {entry.name for entry in (path / "vocabularies").iterdir()} == {"0", "1", "fine"}


def assert_survived(path: Path, length: int) -> int:
    """After a kill: the last commit is there, and doing the work again ends as if nothing had happened."""
    states = states_of(length)
    reached = 0
    if (path / FILE).exists():
        reached = assert_committed(path, states)
    else:
        assert_unfinished(path)
    work(str(path), str(length))
    assert_committed(path, [states[-1]])
    assert_no_garbage(path)
    return reached


# --- killing -----------------------------------------------------------------------------------------------------


def test_every_state_of_the_disk_is_a_commit(place: Path) -> None:
    """Copy the index before and after every operation on the disk: a process killed there leaves just this behind."""
    length = 7
    states = states_of(length)
    reached = []
    for number, copy in enumerate(copies_of_every_state(place / "index", length, place)):
        if not (copy / FILE).exists():
            assert_unfinished(copy)
        else:
            reached.append(assert_committed(copy, states))
        if number % 16 == 0:
            assert_survived(copy, length)
        shutil.rmtree(copy)
    assert reached == sorted(reached) and len(reached) > 60
    assert len(set(reached)) >= length
    assert_committed(place / "index", [states[-1]])
    assert_no_garbage(place / "index")


def copies_of_every_state(path: Path, length: int, place: Path) -> list[Path]:
    copies: list[Path] = []
    last: list[tuple[str, int, int]] = []

    def copy(name: str) -> None:
        nonlocal last
        # One state of a folder that is being filled is enough: nothing reads in it.
        files = [file for file in path.rglob("*") if not file.parent.name.endswith(".partial") and file.is_file()]
        state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
        if state != last and path.exists():
            last = state
            copies.append(place / f"{len(copies)} {name}")
            # By another process: SQLite would lose its locks if this one opened and closed its files.
            subprocess.run(["cp", "-r", path, copies[-1]], check=True)

    with watched(copy):
        work(str(path), str(length))
    return copies


def test_killed_at_every_kind_of_step(process: ForkServer, place: Path) -> None:
    """Before or after an operation on the disk, all over a run with merges."""
    length = 12
    complete = process.run("work", str(place / "complete"), str(length))
    assert complete.status == 0
    assert_survived(place / "complete", length)
    reached = []
    for step in np.linspace(1, complete.steps, 20).astype(int).tolist():
        path = place / str(step)
        assert process.run("work", str(path), str(length), step=step).status == KILLED
        reached.append(assert_survived(path, length))
        shutil.rmtree(path)
    assert reached[0] == 0 and len(set(reached)) > 5


def test_killed_at_random_moments(process: ForkServer, place: Path) -> None:
    rng = np.random.default_rng(9)
    length = 12
    seconds = process.run("work", str(place / "complete"), str(length)).seconds
    killed = 0
    while killed < 30:
        path = place / "killed"
        run = process.run("work", str(path), str(length), seconds=seconds * rng.random())
        killed += run.status == KILLED
        seconds *= 1 if run.status == KILLED else 0.9  # it ended before its time: the machine was busier at first
        assert_survived(path, length)
        shutil.rmtree(path, ignore_errors=True)


def test_killed_again_and_again(process: ForkServer, place: Path) -> None:
    """Each run is killed a little later than the one before, in the same index."""
    length = 20
    states = states_of(length)
    path = place / "index"
    run = Run(KILLED, 0, 0)
    fatal = 40
    while run.status == KILLED:
        run = process.run("work", str(path), str(length), step=fatal)
        fatal = int(fatal * 1.5)
        if (path / FILE).exists():
            assert list(check(path)) == []
            assert len(Index.open(path)) <= length
    assert run.status == 0 and fatal > 500
    assert_committed(path, [states[-1]])
    assert_no_garbage(path)


def test_killed_while_following_a_folder(process: ForkServer, place: Path) -> None:
    folder = place / "photos"
    paths = [str(photograph(folder / f"{number}.png", number, (96, 72))) for number in range(12)]
    complete = process.run("follow", str(place / "complete"), str(folder))
    assert complete.status == 0
    expected = Index.open(place / "complete")
    query = expected.features(paths[3])
    for number in range(8):
        path = place / str(number)
        process.run("follow", str(path), str(folder), seconds=complete.seconds * number / 8)
        if (path / FILE).exists():
            with Index.open(path) as index:
                assert list(check(path)) == []
                names = [row.path for row in index.images()]
                assert names == sorted(paths)[: len(names)]
        else:
            assert_unfinished(path)
        follow(str(path), str(folder))
        with Index.open(path) as index:
            for options in (plain(), plain(merge="bayes", hamming=3)):
                assert scores(index, query, options) == scores(expected, query, options)
        assert list(check(path)) == []
        assert_no_garbage(path)
