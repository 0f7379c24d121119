"""Work on an index that is killed half way: the jobs of `processes.WarmProcess`."""

from __future__ import annotations

import cv2
import numpy as np

from polyvoc.index.build import CommitLimits
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.storage import files, sqlite
from samples import features, vocabularies

SMALL = FeatureOptions(long_side=96, max_features=20)
OFTEN = CommitLimits(images=1)
Step = tuple[str, str, int]  # verb, name, seed of its features
State = dict[str, int]  # seed of the features of each name


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
    with IndexWriter.open(path, vocabularies(2), limits=OFTEN) as writer:
        for verb, name, seed in plan(int(length)):
            if verb == "add":
                writer.add(name, features(seed, 6))
            elif writer.catalogue.image_at(name):
                writer.remove([name])


def follow(path: str, folder: str) -> None:
    """Bring an index up to date with a folder."""
    with IndexWriter.open(path, vocabularies(2, size=20, dimension=128), SMALL, limits=OFTEN) as writer:
        writer.update([folder])


def warm() -> None:
    """Load everything that the jobs need; leave out flushing, which matters only in a power cut."""
    cv2.setNumThreads(1)
    files._flush, sqlite.FLUSH = lambda descriptor: None, "OFF"
    index = Index.from_words([np.zeros((2, 2), np.int32)] * 3, [3, 4], [np.zeros((2, 2), np.uint64)] * 3)
    index.score_words(np.zeros((1, 2), np.int32), merge="posterior", burstiness="none")
    index.engine.segments[0].without([1]).live_batch()


JOBS = {"work": work, "follow": follow}
