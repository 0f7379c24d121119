"""Distributed indexing: batches of images as Ray tasks, retries, and isolation of images that crash their readers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from polyvoc.cluster.connect import (
    AUTO,
    TRIES,
    Attempt,
    TaskError,
    WorkerCheck,
    connect,
    count_cores,
    get_result,
    report_failing_image,
)
from polyvoc.errors import ClusterError, PolyvocError
from polyvoc.index.build import BuildItem, BuildPlan, BuildResult, MergeInput, MergeResult, NextMerge, SegmentBuilder
from polyvoc.index.catalogue import ImageRow
from polyvoc.storage.folders import is_unchanged
from polyvoc.storage.stores import display_name
from polyvoc.types import Progress

_BATCHES_PER_CORE = 4  # so that the last batches do not end long after the others
_TASKS_PER_CORE = 2  # running or queued in Ray
_POLL_SECONDS = 0.5  # between two reports of progress
_ACTOR_SECONDS = 60.0  # to wait for the progress actor


@dataclass(frozen=True)
class BuildLimits:
    """Sizes of batches, and the number of failures after which to give up."""

    min_batch: int = 16  # images
    max_batch: int = 512
    tries: int = TRIES  # of a merge, and of an isolated image before it is reported
    crashes: int = 8  # of isolated images in a row, with no image read in between: the machines are at fault


@dataclass(frozen=True)
class RayWorkers:
    """Workers of an index writer on a Ray cluster. All machines see index and images under the same paths."""

    address: str  # of the cluster, "auto", or "local" for one on this machine
    check: WorkerCheck = field(default_factory=WorkerCheck)
    limits: BuildLimits = BuildLimits()

    def __post_init__(self) -> None:
        """Connect, before anything is written."""
        connect(self.address)

    def work(
        self, builder: SegmentBuilder, plan: BuildPlan, next_merge: NextMerge, progress: Progress
    ) -> Generator[BuildResult | MergeResult, None, None]:
        """Yield results as they are finished; every image is in exactly one."""
        return _Run(connect(self.address), builder, plan, self).results(next_merge, progress)


class _Merge(NamedTuple):
    """Segments that one task merges."""

    parts: tuple[MergeInput, ...]
    losses: int = 0


def split_images(n_images: int, cores: int, limits: BuildLimits) -> list[range]:
    """Return batches of the positions 0 .. n_images - 1, in order: several per core, neither very small nor very large."""
    size = min(max(-(-n_images // (_BATCHES_PER_CORE * cores)), limits.min_batch), limits.max_batch)
    return [range(first, min(first + size, n_images)) for first in range(0, n_images, size)]


class _Run:
    """One update of an index: pending and running jobs, and progress."""

    def __init__(self, ray: Any, builder: SegmentBuilder, plan: BuildPlan, workers: RayWorkers) -> None:
        self._ray = ray
        self._builder = builder
        self._check, self._limits = workers.check, workers.limits
        self._build_task = ray.remote(num_cpus=1, max_retries=0)(_build)
        self._merge_task = ray.remote(num_cpus=1, max_retries=0)(_merge)
        self._actor = ray.remote(num_cpus=0, max_restarts=-1)(ProgressActor).remote()
        self._numbers = count()  # of tasks
        self._total = len(plan)
        self._new = (Attempt(plan.items(batch)) for batch in split_images(len(plan), count_cores(ray), self._limits))
        self._pending: deque[Attempt[BuildItem] | _Merge] = deque()  # before the new ones
        self._running: dict[Any, tuple[int, Attempt[BuildItem] | _Merge]] = {}  # number and job of a task, by reference
        self._done = 0  # images
        self._sample: ImageRow | None = plan.sample_row  # an image that was read without errors
        self._crashes = 0  # since an image was read

    def results(self, next_merge: NextMerge, progress: Progress) -> Generator[BuildResult | MergeResult, None, None]:
        """Yield results as they are finished."""
        reported, last = 0, time.monotonic()
        try:
            while self._start_jobs(next_merge):
                for reference in self._finished(_POLL_SECONDS):
                    yield from self._collect(reference)
                if self._total and (time.monotonic() - last >= _POLL_SECONDS or self._done == self._total > reported):
                    reported, last = max(reported, self._done + self._count_in_running()), time.monotonic()
                    progress("indexing", reported, self._total)
        except KeyboardInterrupt:  # finished tasks are kept
            for reference in self._finished(0):
                with suppress(PolyvocError):
                    yield from self._collect(reference)
            raise
        finally:
            with suppress(self._ray.exceptions.RayError):  # the cluster may be gone
                for reference in self._running:
                    self._ray.cancel(reference, force=True)
                self._ray.kill(self._actor)

    def _start_jobs(self, next_merge: NextMerge) -> bool:
        """Start jobs until all cores are busy; return whether any job is running."""
        jobs = [*(job for _, job in self._running.values()), *self._pending]
        busy = {part.number for job in jobs if isinstance(job, _Merge) for part in job.parts}
        while parts := next_merge(busy):
            self._pending.appendleft(_Merge(parts))
            busy |= {part.number for part in parts}
        most = _TASKS_PER_CORE * count_cores(self._ray)
        while len(self._running) < most and (job := self._pending.popleft() if self._pending else next(self._new, None)):
            self._start(job)
        return bool(self._running)

    def _start(self, job: Attempt[BuildItem] | _Merge) -> None:
        number = next(self._numbers)
        if isinstance(job, _Merge):
            reference = self._merge_task.remote(self._builder, job.parts, self._check)
        else:
            known = self._sample if job.isolated else None
            sample = known.path if known is not None and is_unchanged(known.path, known.state) else None
            reporter = _Reporter(self._actor, number)
            reference = self._build_task.remote(self._builder, job.items, sample, reporter, self._check)
        self._running[reference] = number, job

    def _finished(self, seconds: float) -> list[Any]:
        """Return the finished tasks; wait until there is one."""
        running = list(self._running)
        if not running or not self._ray.wait(running, timeout=seconds)[0]:
            return []
        return list(self._ray.wait(running, num_returns=len(running), timeout=0)[0])

    def _collect(self, reference: Any) -> Iterator[BuildResult | MergeResult]:
        """Yield the result of a finished task; if it was lost, plan its repetition."""
        number, job = self._running.pop(reference)
        try:
            result = get_result(self._ray, reference)
        except TaskError as error:
            if isinstance(job, Attempt):
                yield from self._repeat_build(number, job)
            elif job.losses + 1 == self._limits.tries:
                raise ClusterError(f"merging segments failed; is there a machine with enough memory? {error}") from None
            else:
                self._pending.append(job._replace(losses=job.losses + 1))
            return
        yield result
        if isinstance(job, Attempt):
            self._done += len(job.items)
            if result.rows:
                self._sample, self._crashes = result.rows[-1], 0

    def _repeat_build(self, number: int, job: Attempt[BuildItem]) -> Iterator[BuildResult]:
        """Plan the repetition of a lost batch before all else, or yield the failure of an isolated image."""
        image = job.isolated
        healthy = image is not None and self._was_healthy(number)
        if image is not None:
            self._crashes = 0 if healthy else self._crashes + 1
            if self._crashes == self._limits.crashes:
                name = display_name(image.path)
                raise ClusterError(f"{self._crashes} worker processes in a row crashed (last file: {name}); see the Ray logs")
        again = job.after_loss(self._limits.tries, counts=healthy)
        self._pending.extendleft(reversed(again))
        if not again and image is not None:
            self._done += 1
            yield BuildResult((), None, ((image.state, report_failing_image(image.path)),))

    def _was_healthy(self, number: int) -> bool:
        """Return whether the process of a lost task had read an image that is known to be good."""
        with suppress(self._ray.exceptions.RayError):
            return bool(self._ray.get(self._actor.was_healthy.remote(number), timeout=_ACTOR_SECONDS))
        return False

    def _count_in_running(self) -> int:
        """Return the number of images that running tasks have read."""
        sizes = {number: len(job.items) for number, job in self._running.values() if isinstance(job, Attempt)}
        with suppress(self._ray.exceptions.RayError):  # its machine was lost; it is restarted on another one
            counts: dict[int, int] = self._ray.get(self._actor.counts.remote(list(sizes)), timeout=_POLL_SECONDS)
            return sum(min(done, sizes[number]) for number, done in counts.items())
        return 0


class ProgressActor:
    """An actor that records for each task how many images it has read, and whether its process was healthy."""

    def __init__(self) -> None:
        """Start without tasks."""
        self._done: dict[int, int] = {}
        self._healthy: set[int] = set()

    def record(self, task: int, done: int) -> None:
        """Record how many images a task has read."""
        self._done[task] = done

    def mark_healthy(self, task: int) -> None:
        """Record that the process of a task has read an image that is known to be good."""
        self._healthy.add(task)

    def counts(self, tasks: Collection[int]) -> dict[int, int]:
        """Return how many images each of some tasks has read."""
        return {task: self._done.get(task, 0) for task in tasks}

    def was_healthy(self, task: int) -> bool:
        """Return whether the process of a task was healthy before it read its images."""
        return task in self._healthy


@dataclass
class _Reporter:
    """Sends the progress of a task, at most twice a second."""

    actor: Any
    task: int
    done: int = 0
    sent: float = 0.0

    def count(self) -> None:
        self.done += 1
        if time.monotonic() - self.sent >= _POLL_SECONDS:
            self.actor.record.remote(self.task, self.done)
            self.sent = time.monotonic()

    def report_healthy(self) -> None:
        """Wait until it is recorded: the next image may end this process."""
        connect(AUTO).get(self.actor.mark_healthy.remote(self.task))


def _build(
    builder: SegmentBuilder, items: Sequence[BuildItem], sample: str | None, reporter: _Reporter, check: WorkerCheck
) -> BuildResult:
    """Read images and save a segment; if given, first read a sample that is known to be good."""
    check.check()
    builder = _cached(builder)

    @contextmanager
    def guard() -> Iterator[None]:
        with check.limit_time():
            yield
        reporter.count()

    with check.limit_time():
        healthy = sample is not None and builder.can_read(sample)
    if healthy:
        reporter.report_healthy()
    return builder.build_segment(items, guard)


def _merge(builder: SegmentBuilder, parts: Sequence[MergeInput], check: WorkerCheck) -> MergeResult:
    check.check()
    return _cached(builder).merge(parts)


@lru_cache(maxsize=1)
def _cached(builder: SegmentBuilder) -> SegmentBuilder:
    """Return the first builder equal to this one in this process, which has loaded its vocabularies."""
    return builder
