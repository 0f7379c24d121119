"""Distributed training: sampling of descriptors and k-means on the cores of a Ray cluster, with the results of one machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from polyvoc.cluster.connect import (
    AUTO,
    Attempt,
    LostTaskError,
    WorkerCheck,
    connect,
    count_cores,
    get_result,
    report_failing_image,
)
from polyvoc.kernels.vectors import WordTable
from polyvoc.options import FeatureOptions
from polyvoc.storage.folders import absolute_path
from polyvoc.types import Floats32, Location, Problem, Words
from polyvoc.vocabulary.assign import Assigner, Cells
from polyvoc.vocabulary.train import KeyedSample, LocalPointSet, MaxKey, PointSet, Samples, draw_descriptors
from polyvoc.vocabulary.vocabulary import Vocabulary

_IMAGES = 16  # of one task: seconds of work, and at most 25 MB of descriptors to send
_DESCRIPTORS = 32_768  # of one task of the last assignment, 16 MB
_RESTARTS = 20  # of an actor: machines may come and go, but points that fit on none are an error
Item = TypeVar("Item")
Result = TypeVar("Result")


class RayTrainWorkers:
    """Workers of training on the cores of a Ray cluster."""

    def __init__(self, address: str, count: int | None = None, check: WorkerCheck | None = None) -> None:
        """Connect to the cluster at an address; use `count` workers, or one per core."""
        self._ray = connect(address)
        self._count = count or count_cores(self._ray)
        self._check = check or WorkerCheck()
        # Without retries by Ray: it would retry for ever if memory is short.
        remote = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        self._draw_task, self._assign_task = remote(_draw), remote(_assign)

    def draw(self, paths: Sequence[Location], options: FeatureOptions, seed: int, max_key: MaxKey) -> Samples:
        """Yield the sample of each image, in their order, without descriptors whose keys are above `max_key()`."""

        def send(numbers: Sequence[int]) -> Any:
            batch = [_absolute(paths[number]) for number in numbers]
            return self._draw_task.remote(batch, options, seed, numbers[0], max_key(), self._check)

        def fail(number: int, _: LostTaskError) -> Problem:
            return report_failing_image(paths[number])

        starts = range(0, len(paths), _IMAGES)
        yield from self._map(send, fail, (Attempt(range(start, min(start + _IMAGES, len(paths)))) for start in starts))

    def assign_points(self, points: Floats32, cells: Cells) -> PointSet:
        """Return points [n, padded], in the coordinates of the cells, spread over the workers."""
        return _RayPoints(self._ray, np.array_split(points, min(self._count, len(points))), cells)

    def assign(self, vocabulary: Vocabulary, descriptors: Floats32) -> Words:
        """Return the nearest word of each of descriptors [n, dimension], as an `Assigner` does: int32 [n]."""
        shared = self._ray.put(Assigner([vocabulary], threads=1))  # made once, so that all use the same
        parts = np.array_split(descriptors, -(-len(descriptors) // _DESCRIPTORS))

        def fail(_: Floats32, error: LostTaskError) -> NoReturn:
            raise error

        attempts = (Attempt([rows], halved=True) for rows in parts)
        return np.concatenate(list(self._map(lambda rows: self._assign_task.remote(shared, rows[0]), fail, attempts)))

    def _map(self, send: Callable[[Sequence[Item]], Any], fail: Callable[[Item, LostTaskError], Result],
             attempts: Iterable[Attempt[Item]]) -> Iterator[Result]:  # fmt: skip
        """Yield the result of each item, in order, a few tasks ahead; `fail` replaces that of an item that crashes workers."""
        sent: deque[tuple[Attempt[Item], Any]] = deque()
        for attempt in attempts:
            sent.append((attempt, send(attempt.items)))
            if len(sent) >= 2 * self._count:
                yield from self._results(send, fail, *sent.popleft())
        while sent:
            yield from self._results(send, fail, *sent.popleft())

    def _results(self, send: Callable[[Sequence[Item]], Any], fail: Callable[[Item, LostTaskError], Result],
                 attempt: Attempt[Item], reference: Any) -> list[Result]:  # fmt: skip
        """Return the results of the items of a task; if it is lost, repeat it or its halves."""
        try:
            return list(get_result(self._ray, reference))
        except LostTaskError as error:
            again = [(retry, send(retry.items)) for retry in attempt.after_loss()]
            if not again:
                return [fail(attempt.items[0], error)]
        return [result for retry, reference in again for result in self._results(send, fail, retry, reference)]


class _RayPoints:
    """Points in parts, each in an actor; an actor that dies is restarted elsewhere, and its call is repeated."""

    def __init__(self, ray: Any, parts: Sequence[Floats32], cells: Cells) -> None:
        self._ray = ray
        self._ends = np.cumsum([len(rows) for rows in parts])[:-1]
        shared = ray.put(cells)
        # Held here and passed in every call: Ray may lose the arguments of an actor's constructor before it is restarted.
        self._parts = [(ray.put(rows), shared) for rows in parts]
        # To be placed an actor needs a free core, but it keeps none: one that has to move may share a core with others.
        actor = ray.remote(max_restarts=_RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD")(_PointActor)
        self.actors = [actor.remote() for _ in parts]

    def assign(self, table: WordTable, centroids: Floats32, words: Words) -> tuple[Floats32, Words]:
        """Return the score and word of each point."""
        shared = self._ray.put((table, centroids))  # once to each machine, not to each actor
        calls = zip(self.actors, self._parts, np.split(words, self._ends), strict=True)
        results = get_result(self._ray, [actor.assign.remote(part, shared, old) for actor, part, old in calls])
        return np.concatenate([scores for scores, _ in results]), np.concatenate([new for _, new in results])


class _PointActor:
    """One part of the points, fetched by the first call, also after a restart."""

    def __init__(self) -> None:
        self._points: LocalPointSet | None = None

    def assign(self, part: tuple[Any, Any], shared: tuple[WordTable, Floats32], words: Words) -> tuple[Floats32, Words]:
        """Return the score and word of each point; `part` refers to the points and the cells."""
        if self._points is None:
            points, cells = connect(AUTO).get(list(part))
            self._points = LocalPointSet(points.copy(), deepcopy(cells), threads=1)
        table, centroids = deepcopy(shared)
        return self._points.assign(table, centroids, words.copy())


def _draw(
    paths: Sequence[Location], options: FeatureOptions, seed: int, first: int, max_key: float, check: WorkerCheck
) -> list[KeyedSample | Problem]:
    check.check()
    samples = draw_descriptors(paths, options, seed, first, threads=1)
    results: list[KeyedSample | Problem] = []
    for _ in paths:
        with check.limit_time():
            sample = next(samples)
        results.append(sample if isinstance(sample, Problem) else sample.below(max_key))
    return results


def _assign(assigner: Assigner, descriptors: Floats32) -> list[Words]:
    return [deepcopy(assigner).assign(descriptors.copy())[:, 0]]


def _absolute(path: Location) -> Location:
    """Return a path that does not depend on the working folder of a process."""
    return path.absolute() if isinstance(path, Path) else absolute_path(path)
