"""Bounded thread pool; calls to stores with a deadline."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from polyvoc.errors import UnreachableError
from polyvoc.storage.stores import display_name, read_url

T = TypeVar("T")
MAX_BYTES = 1 << 27  # of a photograph in a store that is served: several of them are in memory at a time
ABANDONED = 8  # questions nobody waits for any more, beside those of the threads that work


class StoreRequests:
    """Threads that ask stores. One that gets no answer in time is left to itself; it ends when the store gives up."""

    def __init__(self, most: int, seconds: float) -> None:
        """Allow so many questions at a time, those that were left included, and so many seconds for each."""
        self._free = threading.Semaphore(most)
        self._seconds = seconds

    def read(self, url: str) -> bytes:
        """Give what a file holds."""
        return self.run(url, lambda: read_url(url, MAX_BYTES))

    def run(self, url: str, ask: Callable[[], T]) -> T:
        """Give the answer to a question about an address; if there is none in time, that is an `UnreachableError`."""
        if not self._free.acquire(blocking=False):
            raise UnreachableError(f"{display_name(url)}: too many questions to stores have no answer yet; try again later")
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
                answer.set_exception(error)
            finally:
                self._free.release()

        try:
            threading.Thread(target=work, name="polyvoc-store", daemon=True).start()  # the server may end without it
        except RuntimeError as error:
            self._free.release()
            raise UnreachableError(f"{display_name(url)}: no thread is left to ask its store; try again later") from error
        if not wait([answer], self._seconds).done:
            raise UnreachableError(
                f"{display_name(url)}: its store has not answered within {self._seconds:g} s; try again later"
            )
        return answer.result()


LONGEST = 60  # seconds that somebody is told to wait
FORGET = 0.9  # share of the past in the running mean of seconds


class BusyError(Exception):
    """The queue is full; it says in how many seconds there may be room."""

    def __init__(self, seconds: int) -> None:
        """Remember when to come again."""
        super().__init__(f"too many requests wait already; try again in {seconds} s")
        self.seconds = seconds


class Pool:
    """Threads, each with one piece of work at a time, and at most `queue` pieces that wait."""

    def __init__(self, name: str, threads: int, queue: int) -> None:
        """Start none yet: threads come with the work."""
        self.name = name
        self.threads = threads
        self.queue = queue
        self._executor = ThreadPoolExecutor(threads, f"polyvoc-{name}")
        self._lock = threading.Lock()
        self._held = 0  # pieces of work that run or wait
        self._running = 0
        self._seconds = 0.1  # that a piece takes, about

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Take a piece of work, or refuse it at once. Cancelling what is given takes it out of the queue again."""
        with self._lock:
            if self._held >= self.threads + self.queue:
                raise BusyError(min(LONGEST, max(1, math.ceil(self._held * self._seconds / self.threads))))
            self._held += 1
        future = self._executor.submit(self._run, work)
        future.add_done_callback(lambda _: self._leave())
        return asyncio.wrap_future(future)

    def share(self) -> int:
        """Give how many cores a piece of work that runs may use now: all of them if it is alone."""
        with self._lock:
            return max(1, (os.cpu_count() or 1) // max(1, self._running))

    @property
    def running(self) -> int:
        """Count the pieces of work that run."""
        return self._running

    @property
    def waiting(self) -> int:
        """Count those that wait."""
        with self._lock:
            return max(0, self._held - self._running)

    def close(self) -> None:
        """Finish what runs, drop what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        with self._lock:
            self._running += 1
        try:
            return work()
        finally:
            with self._lock:
                self._running -= 1
                self._seconds = FORGET * self._seconds + (1 - FORGET) * (time.perf_counter() - started)

    def _leave(self) -> None:
        with self._lock:
            self._held -= 1
