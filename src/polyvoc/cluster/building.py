"""Building on many machines: who reads which photographs, what if a machine is lost, and what if a photograph kills?

Photographs are cut into batches; a batch is one task of Ray, which reads them and leaves a segment in the folder `incoming`.
The driver commits what is finished, in any order, and holds no arrays. It starts lost tasks again itself, where Ray would try
for ever if one takes too much memory. A batch that is lost twice is halved, until the photograph that kills is alone.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from polyvoc.cluster import machines
from polyvoc.errors import ClusterError, PolyvocError
from polyvoc.images import describe
from polyvoc.records import Problem, Progress
from polyvoc.workshop import Delivery, Merger, NextMerge, Part, Photograph, Workshop

SMALLEST, LARGEST = 16, 512  # photographs of a batch
BATCHES = 4  # per core, so that the last ones to finish are not far behind the others
AHEAD = 2  # tasks per core that run or wait in Ray
TRIES = 3  # of a merge, and of a photograph alone, before it is blamed
PATIENCE = 120.0  # seconds for one photograph
PAUSE = 0.5  # seconds between two looks at what is done
ALL_DIE = 8  # photographs at which processes died while none was read: it is not their fault


@dataclass(frozen=True)
class RayWorkers:
    """The machines of a Ray cluster, as workers of an index writer. Each sees index and photographs under the same paths."""

    address: str  # of the cluster, "auto", or "local" for one of this machine alone
    patience: float = PATIENCE  # seconds after which a process that still reads the same photograph ends

    def work(
        self, workshop: Workshop, photographs: Sequence[Photograph], merges: NextMerge, progress: Progress
    ) -> Generator[Delivery | Merger, None, None]:
        """Give what is made as it is finished: every photograph is in one delivery."""
        return _Run(machines.connect(self.address), workshop, self.patience).results(photographs, merges, progress)


@dataclass(frozen=True)
class _Batch:
    """Photographs that one task reads."""

    number: int
    photographs: tuple[Photograph, ...]
    part: bool = False  # of a batch that was lost
    tries: int = 0  # before this one

    def again(self, number: int) -> list[_Batch]:
        """Give what to try after it was lost: all of it, or halves with numbers from this one on.

        Nothing if it is a photograph alone that was tried often enough.
        """
        middle = len(self.photographs) // 2
        most = (1 if self.part else 2) if middle else TRIES  # a machine may be lost; for a part that costs little
        if self.tries + 1 < most:
            return [replace(self, tries=self.tries + 1)]
        halves = (self.photographs[:middle], self.photographs[middle:]) if middle else ()
        return [_Batch(number + n, half, part=True) for n, half in enumerate(halves)]


@dataclass(frozen=True)
class _Merge:
    """Segments that one task merges."""

    parts: tuple[Part, ...]
    tries: int = 0


def cut(photographs: Sequence[Photograph], cores: int) -> list[tuple[Photograph, ...]]:
    """Cut photographs into batches, in order: some for each core, none very small or large."""
    size = min(max(-(-len(photographs) // (BATCHES * cores)), SMALLEST), LARGEST)
    return [tuple(photographs[first : first + size]) for first in range(0, len(photographs), size)]


class _Run:
    """One update of an index: what waits, what runs, and how far it has come."""

    def __init__(self, ray: Any, workshop: Workshop, patience: float) -> None:
        self._ray = ray
        self._workshop = workshop
        self._patience = patience
        self._assemble = ray.remote(num_cpus=1, max_retries=0)(_assemble)
        self._merge = ray.remote(num_cpus=1, max_retries=0)(_merge)
        self._tally = ray.remote(num_cpus=0, max_restarts=-1)(Tally).remote()
        self._waiting: deque[_Batch | _Merge] = deque()
        self._running: dict[Any, _Batch | _Merge] = {}
        self._last = 0  # number of a batch
        self._done = 0  # photographs
        self._blamed: list[Delivery] = []  # until one that is read shows that the machines are well

    def results(
        self, photographs: Sequence[Photograph], merges: NextMerge, progress: Progress
    ) -> Generator[Delivery | Merger, None, None]:
        """Give deliveries and mergers as they are finished."""
        batches = cut(photographs, machines.count_cores(self._ray))
        self._waiting.extend(_Batch(number, batch) for number, batch in enumerate(batches))
        self._last = len(batches)
        told, looked = 0, time.monotonic()
        try:
            while self._submit(merges):
                for finished in self._finished(PAUSE):
                    yield from self._settle(finished)
                if photographs and (time.monotonic() - looked >= PAUSE or self._done == len(photographs) > told):
                    told, looked = max(told, self._done + self._under_way()), time.monotonic()
                    progress("indexing", told, len(photographs))
            yield from self._blamed
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

    def _submit(self, merges: NextMerge) -> bool:
        """Let as much run as there are cores for; tell whether anything does."""
        jobs = [*self._running.values(), *self._waiting]
        busy = {part.number for job in jobs if isinstance(job, _Merge) for part in job.parts}
        while parts := merges(busy):
            self._waiting.appendleft(_Merge(parts))
            busy |= {part.number for part in parts}
        most = AHEAD * machines.count_cores(self._ray)
        while self._waiting and len(self._running) < most:
            job = self._waiting.popleft()
            if isinstance(job, _Merge):
                task = self._merge.remote(self._workshop, job.parts)
            else:
                task = self._assemble.remote(self._workshop, job.photographs, _Report(self._tally, job.number), self._patience)
            self._running[task] = job
        return bool(self._running)

    def _finished(self, seconds: float) -> list[Any]:
        """Wait for a task to finish; gives all that have."""
        running = list(self._running)
        if not running or not self._ray.wait(running, timeout=seconds)[0]:
            return []
        ready: list[Any] = self._ray.wait(running, num_returns=len(running), timeout=0)[0]
        return ready

    def _settle(self, task: Any) -> Iterator[Delivery | Merger]:
        """Give what a finished task made; what was lost waits again."""
        job = self._running.pop(task)
        try:
            made = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            self._again(job, error)
            return
        yield made
        if isinstance(job, _Batch):
            self._done += len(job.photographs)
            if made.rows:
                yield from self._blamed
                self._blamed = []

    def _again(self, job: _Batch | _Merge, error: Exception) -> None:
        """Say what becomes of a task that failed: what is wrong with the index or a machine ends the run."""
        cause = getattr(error, "cause", None)  # raised by the task itself
        if isinstance(cause, PolyvocError):
            raise cause from None
        if isinstance(cause, ImportError) or "failed to import" in str(error):
            raise ClusterError(
                "a machine of the cluster lacks polyvoc, or a part of it; install the same version on all"
            ) from None
        if isinstance(job, _Merge):
            if job.tries + 1 == TRIES:
                raise ClusterError(f"merging segments fails ({_kind(error)}); are there machines with enough memory?") from None
            self._waiting.append(_Merge(job.parts, job.tries + 1))
            return
        again = job.again(self._last)
        self._last += len(again)
        self._waiting.extend(again)
        if not again:
            self._blame(*job.photographs)

    def _blame(self, photograph: Photograph) -> None:
        """Note a photograph at which one process after the other died: it is not tried again before it changes."""
        name = describe(photograph.path)
        problem = Problem(photograph.path, f"{name}: the process that reads it dies; remove it")
        self._blamed.append(Delivery((), None, ((photograph.state, problem),)))
        self._done += 1
        if len(self._blamed) >= ALL_DIE and self._done == len(self._blamed):
            raise ClusterError(f"processes die whatever they read, last {name}; look at the logs of Ray on its machines")

    def _under_way(self) -> int:
        """Count the photographs that were read by tasks which still run."""
        sizes = {job.number: len(job.photographs) for job in self._running.values() if isinstance(job, _Batch)}
        try:
            counts: dict[int, int] = self._ray.get(self._tally.counts.remote(list(sizes)), timeout=PAUSE)
        except self._ray.exceptions.RayError:  # its machine was lost, and it starts again on another one
            return 0
        return sum(min(done, sizes[number]) for number, done in counts.items())


def _kind(error: Exception) -> str:
    return type(getattr(error, "cause", None) or error).__name__


# --- in the processes of the cluster ------------------------------------------------------------------------------------------


class Tally:
    """How many photographs each batch has behind it. An actor: tasks tell it, the driver asks."""

    def __init__(self) -> None:
        """Begin with none."""
        self._done: dict[int, int] = {}

    def note(self, batch: int, done: int) -> None:
        """Hear how far a batch is; one that begins again counts anew."""
        self._done[batch] = done

    def counts(self, batches: Sequence[int]) -> dict[int, int]:
        """Give how far some batches are."""
        return {batch: self._done.get(batch, 0) for batch in batches}


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


def _assemble(workshop: Workshop, photographs: Sequence[Photograph], report: _Report, patience: float) -> Delivery:
    """Read photographs and leave a segment; a process that takes too long over one of them ends."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:

        @contextmanager
        def reading() -> Iterator[None]:
            # The system's timer: neither a decoder nor a disk without answer can hold it up.
            faulthandler.dump_traceback_later(patience, exit=True, file=nowhere)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
            report.count()

        return _kept(workshop).assemble(photographs, reading)


def _merge(workshop: Workshop, parts: Sequence[Part]) -> Merger:
    return _kept(workshop).merge(parts)


@lru_cache(maxsize=1)
def _kept(workshop: Workshop) -> Workshop:
    """Give a workshop as it was when this process first saw it: its vocabularies are loaded once."""
    return workshop
