"""Indexing on many machines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

from polyvoc.cluster.connect import AUTO, TIMEOUT, WorkerCheck, connect, count_cores
from polyvoc.errors import ClusterError, PolyvocError
from polyvoc.index.build import BuildItem, BuildPlan, BuildResult, MergeInput, MergeResult, NextMerge, SegmentBuilder
from polyvoc.index.catalogue import ImageRow
from polyvoc.storage.folders import is_unchanged
from polyvoc.storage.stores import display_name
from polyvoc.types import Problem, Progress

SMALLEST, LARGEST = 16, 512  # photographs of a batch
BATCHES = 4  # per core, so that the last ones to finish are not far behind the others
AHEAD = 2  # tasks per core that run or wait in Ray
TRIES = 3  # of a merge, and of a photograph alone, before it is blamed
PAUSE = 0.5  # seconds between two looks at what is done
ANSWER = 10.0  # seconds to wait for the tally
ALL_DIE = 8  # processes in a row that died over a photograph alone before any was read: it is not their fault


@dataclass(frozen=True)
class RayWorkers:
    """The machines of a Ray cluster, as workers of an index writer. Each sees index and photographs under the same paths."""

    address: str  # of the cluster, "auto", or "local" for one of this machine alone
    patience: float = TIMEOUT  # seconds after which a process that still reads the same photograph ends

    def __post_init__(self) -> None:
        """Connect: before anything is done to an index."""
        connect(self.address)

    def work(
        self, workshop: SegmentBuilder, photographs: BuildPlan, merges: NextMerge, progress: Progress
    ) -> Generator[BuildResult | MergeResult, None, None]:
        """Give what is made as it is finished: every photograph is in one delivery."""
        return _Run(connect(self.address), workshop, photographs, WorkerCheck(self.patience)).results(merges, progress)


@dataclass(frozen=True)
class _Batch:
    """Photographs that one task reads."""

    number: int
    photographs: tuple[BuildItem, ...]
    part: bool = False  # of a batch that was lost
    tries: int = 0  # before this one; of a photograph alone those that speak against it

    @property
    def suspect(self) -> BuildItem | None:
        """Give the photograph that is left of a batch that was lost."""
        return self.photographs[0] if self.part and len(self.photographs) == 1 else None

    def again(self, numbers: Iterator[int]) -> list[_Batch]:
        """Give what to try after it was lost: all of it once more, or halves."""
        middle = len(self.photographs) // 2
        if not middle:
            return [replace(self, number=next(numbers), part=True)]
        if not self.part and not self.tries:  # a machine may be lost; for a part that costs little
            return [replace(self, tries=1)]
        return [_Batch(next(numbers), half, part=True) for half in (self.photographs[:middle], self.photographs[middle:])]


@dataclass(frozen=True)
class _Merge:
    """Segments that one task merges."""

    parts: tuple[MergeInput, ...]
    tries: int = 0


def cut(photographs: int, cores: int) -> list[range]:
    """Cut photographs into batches, in order: some for each core, none very small or large."""
    size = min(max(-(-photographs // (BATCHES * cores)), SMALLEST), LARGEST)
    return [range(first, min(first + size, photographs)) for first in range(0, photographs, size)]


class _Run:
    """One update of an index: what waits, what runs, and how far it has come."""

    def __init__(self, ray: Any, workshop: SegmentBuilder, photographs: BuildPlan, terms: WorkerCheck) -> None:
        self._ray = ray
        self._workshop = workshop
        self._photographs = photographs
        self._terms = terms
        self._assemble = ray.remote(num_cpus=1, max_retries=0)(_assemble)
        self._merge = ray.remote(num_cpus=1, max_retries=0)(_merge)
        self._tally = ray.remote(num_cpus=0, max_restarts=-1)(ProgressActor).remote()
        self._numbers = count()  # of batches
        self._fresh = (self._batch(places) for places in cut(len(photographs), count_cores(ray)))
        self._waiting: deque[_Batch | _Merge] = deque()  # goes before the fresh ones
        self._running: dict[Any, _Batch | _Merge] = {}
        self._done = 0  # photographs
        self._known: ImageRow | None = photographs.known  # was read well
        self._deaths = 0  # of processes that nothing was read between

    def results(self, merges: NextMerge, progress: Progress) -> Generator[BuildResult | MergeResult, None, None]:
        """Give deliveries and mergers as they are finished."""
        total, told, looked = len(self._photographs), 0, time.monotonic()
        try:
            while self._submit(merges):
                for finished in self._finished(PAUSE):
                    yield from self._settle(finished)
                if total and (time.monotonic() - looked >= PAUSE or self._done == total > told):
                    told, looked = max(told, self._done + self._under_way()), time.monotonic()
                    progress("indexing", told, total)
        except KeyboardInterrupt:  # what is finished is kept
            for finished in self._finished(0):
                with suppress(PolyvocError):
                    yield from self._settle(finished)
            raise
        finally:
            with suppress(self._ray.exceptions.RayError):  # the cluster may be gone
                for task in self._running:
                    self._ray.cancel(task, force=True)
                self._ray.kill(self._tally)

    def _batch(self, places: range) -> _Batch:
        return _Batch(next(self._numbers), self._photographs.some(places))

    def _submit(self, merges: NextMerge) -> bool:
        """Let as much run as there are cores for; tell whether anything does."""
        jobs = [*self._running.values(), *self._waiting]
        busy = {part.number for job in jobs if isinstance(job, _Merge) for part in job.parts}
        while parts := merges(busy):
            self._waiting.appendleft(_Merge(parts))
            busy |= {part.number for part in parts}
        most = AHEAD * count_cores(self._ray)
        while len(self._running) < most:
            job = self._waiting.popleft() if self._waiting else next(self._fresh, None)
            if job is None:
                break
            self._running[self._start(job)] = job
        return bool(self._running)

    def _start(self, job: _Batch | _Merge) -> Any:
        if isinstance(job, _Merge):
            return self._merge.remote(self._workshop, job.parts, self._terms)
        control = self._known if job.suspect and self._known else None
        if control is not None and not is_unchanged(control.path, control.state):
            control = self._known = None
        report = _Report(self._tally, job.number)
        return self._assemble.remote(self._workshop, job.photographs, control and control.path, report, self._terms)

    def _finished(self, seconds: float) -> list[Any]:
        """Wait for a task to finish; gives all that have."""
        running = list(self._running)
        if not running or not self._ray.wait(running, timeout=seconds)[0]:
            return []
        ready: list[Any] = self._ray.wait(running, num_returns=len(running), timeout=0)[0]
        return ready

    def _settle(self, task: Any) -> Iterator[BuildResult | MergeResult]:
        """Give what a finished task made; what was lost waits again."""
        job = self._running.pop(task)
        try:
            made = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            _refuse_hopeless(error)
            yield from self._lost(job, error)
            return
        yield made
        if isinstance(job, _Batch):
            self._done += len(job.photographs)
            if made.rows:
                self._known, self._deaths = made.rows[-1], 0

    def _lost(self, job: _Batch | _Merge, error: Exception) -> Iterator[BuildResult]:
        """Let a task that was lost wait again, before all else; or give the photograph that is to blame."""
        if isinstance(job, _Merge):
            if job.tries + 1 == TRIES:
                raise ClusterError(f"merging segments fails ({_kind(error)}); are there machines with enough memory?") from None
            self._waiting.append(_Merge(job.parts, job.tries + 1))
            return
        if job.suspect is not None and self._was_well(job.number):
            job, self._deaths = replace(job, tries=job.tries + 1), 0
            if job.tries == TRIES:
                self._done += 1
                yield _blame(job.photographs[0])
                return
        elif job.suspect is not None:
            self._deaths += 1
            if self._deaths == ALL_DIE:
                name = display_name(job.suspect.path)
                raise ClusterError(f"processes die whatever they read, last {name}; look at the logs of Ray on its machines")
        self._waiting.extendleft(reversed(job.again(self._numbers)))

    def _was_well(self, batch: int) -> bool:
        """Tell whether the process that is lost had read a photograph that is known to be good."""
        try:
            return bool(self._ray.get(self._tally.was_well.remote(batch), timeout=ANSWER))
        except self._ray.exceptions.RayError:
            return False

    def _under_way(self) -> int:
        """Count the photographs that were read by tasks which still run."""
        sizes = {job.number: len(job.photographs) for job in self._running.values() if isinstance(job, _Batch)}
        try:
            counts: dict[int, int] = self._ray.get(self._tally.counts.remote(list(sizes)), timeout=PAUSE)
        except self._ray.exceptions.RayError:  # its machine was lost, and it starts again on another one
            return 0
        return sum(min(done, sizes[number]) for number, done in counts.items())


def _blame(photograph: BuildItem) -> BuildResult:
    """Note a photograph at which one process after the other died: it is not tried again before it changes."""
    problem = Problem(photograph.path, f"{display_name(photograph.path)}: the process that reads it dies; remove it")
    return BuildResult((), None, ((photograph.state, problem),))


def _refuse_hopeless(error: Exception) -> None:
    """End the run if a task failed because something is wrong with the index or a machine."""
    cause = getattr(error, "cause", None)  # raised by the task itself
    if isinstance(cause, PolyvocError):
        raise cause from None
    if isinstance(cause, ImportError) or "failed to import" in str(error):
        raise ClusterError("a machine of the cluster lacks polyvoc, or a part of it; install the same version on all") from None


def _kind(error: Exception) -> str:
    return type(getattr(error, "cause", None) or error).__name__


class ProgressActor:
    """How many photographs each batch has behind it, and which began well. An actor: tasks tell it, the driver asks."""

    def __init__(self) -> None:
        """Begin with none."""
        self._done: dict[int, int] = {}
        self._well: set[int] = set()

    def note(self, batch: int, done: int) -> None:
        """Hear how far a batch is; one that begins again counts anew."""
        self._done[batch] = done

    def note_well(self, batch: int) -> None:
        """Hear that the process of a batch has read a photograph that is known to be good."""
        self._well.add(batch)

    def counts(self, batches: Collection[int]) -> dict[int, int]:
        """Give how far some batches are."""
        return {batch: self._done.get(batch, 0) for batch in batches}

    def was_well(self, batch: int) -> bool:
        """Tell whether the process of a batch was well before it began."""
        return batch in self._well


@dataclass
class _Report:
    """What a task tells of its batch, twice a second at most."""

    tally: Any
    batch: int
    done: int = 0
    told: float = 0.0

    def count(self) -> None:
        self.done += 1
        if time.monotonic() - self.told >= PAUSE:
            self.tally.note.remote(self.batch, self.done)
            self.told = time.monotonic()

    def be_well(self) -> None:
        """Say so, and wait until it is heard: what comes next may end this process."""
        connect(AUTO).get(self.tally.note_well.remote(self.batch))


def _assemble(
    workshop: SegmentBuilder, photographs: Sequence[BuildItem], control: str | None, report: _Report, terms: WorkerCheck
) -> BuildResult:
    """Read photographs and leave a segment; first one that is known to be good, if there is reason for it."""
    terms.check()
    kept = _kept(workshop)

    @contextmanager
    def reading() -> Iterator[None]:
        with terms.reading():
            yield
        report.count()

    if control is not None:
        with terms.reading():
            well = kept.can_read(control)
        if well:
            report.be_well()
    return kept.assemble(photographs, reading)


def _merge(workshop: SegmentBuilder, parts: Sequence[MergeInput], terms: WorkerCheck) -> MergeResult:
    terms.check()
    return _kept(workshop).merge(parts)


@lru_cache(maxsize=1)
def _kept(workshop: SegmentBuilder) -> SegmentBuilder:
    """Give a workshop as it was when this process first saw it: its vocabularies are loaded once."""
    return workshop
