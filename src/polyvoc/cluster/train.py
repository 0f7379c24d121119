"""Training on many machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from polyvoc.cluster.connect import TIMEOUT, WorkerCheck, connect, count_cores
from polyvoc.errors import ClusterError, PolyvocError
from polyvoc.kernels.vectors import WordTable
from polyvoc.options import FeatureOptions
from polyvoc.storage.folders import absolute_path
from polyvoc.types import Floats32, Location, Problem, Words
from polyvoc.vocabulary.assign import Assigner, Cells
from polyvoc.vocabulary.train import KeyedSample, LocalPointSet, PointSet, draw_descriptors
from polyvoc.vocabulary.vocabulary import Vocabulary

_PHOTOGRAPHS = 16  # of one task: seconds of work, and at most 25 MB of descriptors to send
_DESCRIPTORS = 32_768  # of one task of the last assignment, 16 MB
_TRIES = 3  # of a photograph alone before it is reported, and of descriptors: Ray itself would try for ever if memory is short
_TRIES_TOGETHER = 2  # of several photographs before they are halved
_RESTARTS = 20  # of a part of the crowd: machines may come and go, but a part that fits on none should be told
T = TypeVar("T")


class RayTrainWorkers:
    """Workers: the cores of a Ray cluster."""

    def __init__(self, address: str, count: int | None = None, patience: float = TIMEOUT) -> None:
        """Connect to a cluster, as `machines.connect` does, and take `count` workers of it, or one per core.

        A process that reads the same photograph for longer than `patience` seconds ends.
        """
        self._ray = connect(address)
        self._count = count or count_cores(self._ray)
        self._terms = WorkerCheck(patience)
        work = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        self._draw, self._assign = work(_draw), work(_assign)

    def draw(
        self, paths: Sequence[Location], options: FeatureOptions, seed: int, max_key: Callable[[], float]
    ) -> Iterator[KeyedSample | Problem]:
        """Give what is drawn from each photograph, in their order; descriptors with keys above the max_key are left out."""

        def send(numbers: range) -> Any:
            some = [_found_anywhere(paths[number]) for number in numbers]
            return self._draw.remote(some, options, seed, numbers.start, max_key(), self._terms)

        starts = range(0, len(paths), _PHOTOGRAPHS)
        parts = [range(start, min(start + _PHOTOGRAPHS, len(paths))) for start in starts]
        for numbers, answer in self._ahead(send, parts):
            yield from self._drawn(send, numbers, answer, paths)

    def assign_points(self, points: Floats32, cells: Cells) -> PointSet:
        """Let points [n, padded], in the coordinates of the cells, look for words, a part of them on each worker."""
        return _Spread(self._ray, np.array_split(points, min(self._count, len(points))), cells)

    def assign(self, vocabulary: Vocabulary, descriptors: Floats32) -> Words:
        """Give the nearest word of each of descriptors [n, dimension], as an `Assigner` does: int32 [n]."""
        shared = self._ray.put(Assigner([vocabulary], threads=1))  # made once, so that all have the same
        parts = np.array_split(descriptors, -(-len(descriptors) // _DESCRIPTORS))

        def send(rows: Floats32) -> Any:
            return self._assign.remote(shared, rows)

        return np.concatenate([self._get(send, rows, answer, _TRIES) for rows, answer in self._ahead(send, parts)])

    def _ahead(self, send: Callable[[T], Any], items: Iterable[T]) -> Iterator[tuple[T, Any]]:
        """Send items to workers, a few ahead of whoever asks; give each with the reference to its answer, in their order."""
        sent: deque[tuple[T, Any]] = deque()
        for item in items:
            sent.append((item, send(item)))
            if len(sent) >= 2 * self._count:
                yield sent.popleft()
        while sent:
            yield sent.popleft()

    def _drawn(
        self, send: Callable[[range], Any], numbers: range, answer: Any, paths: Sequence[Location]
    ) -> list[KeyedSample | Problem]:
        """Give what was drawn from some photographs; one that ends every process which reads it is found and reported."""
        try:
            found: list[KeyedSample | Problem] = self._get(
                send, numbers, answer, _TRIES if len(numbers) == 1 else _TRIES_TOGETHER
            )
            return found
        except _Lost:
            if len(numbers) == 1:
                path = paths[numbers.start]
                return [Problem(str(path), f"{path}: every process that reads it dies; remove it")]
        halves = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        again = [(half, send(half)) for half in halves]
        return [drawn for half, answer in again for drawn in self._drawn(send, half, answer, paths)]

    def _get(self, send: Callable[[T], Any], item: T, answer: Any, tries: int) -> Any:
        """Give the answer to an item, which is sent again whenever the process that works on it is lost."""
        for left in reversed(range(tries)):
            try:
                with _one_line(self._ray):
                    return self._ray.get(answer)
            except _Lost:
                if not left:
                    raise
                answer = send(item)


def _found_anywhere(path: Location) -> Location:
    """Give a path that does not depend on the folder where a process works."""
    return path.absolute() if isinstance(path, Path) else absolute_path(path)


class _Spread:
    """A crowd in parts, each in an actor of its own; one that dies starts anew elsewhere and is asked again."""

    def __init__(self, ray: Any, parts: Sequence[Floats32], cells: Cells) -> None:
        self._ray = ray
        self._ends = np.cumsum([len(rows) for rows in parts])[:-1]
        shared = ray.put(cells)
        # Held here, and named in every call: Ray may lose what is given to the constructor of an actor before it starts anew.
        self._parts = [(ray.put(rows), shared) for rows in parts]
        # To be placed an actor needs a free core, but it keeps none: one that has to move may share a core with others.
        part = ray.remote(max_restarts=_RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD")(_Part)
        self.actors = [part.remote() for _ in parts]

    def assign(self, table: WordTable, centroids: Floats32, words: Words) -> tuple[Floats32, Words]:
        """Give the score and word of each point."""
        shared = self._ray.put((table, centroids))  # once to each machine, not to each actor
        jobs = zip(self.actors, self._parts, np.split(words, self._ends), strict=True)
        answers = [actor.assign.remote(part, shared, old) for actor, part, old in jobs]
        with _one_line(self._ray):
            done = self._ray.get(answers)
        return np.concatenate([scores for scores, _ in done]), np.concatenate([found for _, found in done])


class _Part:
    """One part of a crowd, which is fetched when it is first asked for, also by an actor that has started anew."""

    def __init__(self) -> None:
        self._batches: LocalPointSet | None = None

    def assign(self, part: tuple[Any, Any], shared: tuple[WordTable, Floats32], words: Words) -> tuple[Floats32, Words]:
        """Give the score and word of each point; `part` refers to the points and the cells."""
        if self._batches is None:
            points, cells = connect("auto").get(list(part))
            self._batches = LocalPointSet(points.copy(), deepcopy(cells), threads=1)
        table, centroids = deepcopy(shared)
        return self._batches.assign(table, centroids, words.copy())


def _draw(
    paths: Sequence[Location], options: FeatureOptions, seed: int, first: int, max_key: float, terms: WorkerCheck
) -> list[KeyedSample | Problem]:
    terms.check()
    drawn = draw_descriptors(paths, options, seed, first, threads=1)
    found: list[KeyedSample | Problem] = []
    for _ in paths:
        with terms.reading():
            one = next(drawn)
        found.append(one if isinstance(one, Problem) else one.below(max_key))
    return found


def _assign(assigner: Assigner, descriptors: Floats32) -> Words:
    words: Words = deepcopy(assigner).assign(descriptors.copy())[:, 0]
    return words


class _Lost(ClusterError):
    """A process or a machine is gone, and with it what it worked on."""


@contextmanager
def _one_line(ray: Any) -> Iterator[None]:
    """Say in one line what went wrong on other machines."""
    try:
        yield
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)  # raised by the work itself
        if isinstance(cause, PolyvocError):
            raise cause from None
        kind = ClusterError if isinstance(error, ray.exceptions.RayTaskError) else _Lost
        reason = " ".join(f"{type(cause or error).__name__}: {cause or error}".split())[:160]
        raise kind(f"the cluster gave up ({reason}); see that each machine has this polyvoc and memory left") from error
