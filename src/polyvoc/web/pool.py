"""Bounded thread pools, and requests to stores with a deadline."""

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
MAX_RETRY_SECONDS = 60
SMOOTHING = 0.9  # share of the past in the running mean of seconds per task
MAX_BYTES = 1 << 27  # of a photograph in a store: several of them are in memory at a time
ABANDONED = 8  # store requests past their deadline that may be open beside those of the worker threads


class BusyError(Exception):
    """The queue is full."""

    def __init__(self, seconds: int) -> None:
        """Set after how many seconds to try again."""
        super().__init__(f"too many requests are waiting; try again in {seconds} s")
        self.seconds = seconds


class Pool:
    """Threads that run one task each, and a queue of at most `queue` waiting tasks."""

    def __init__(self, name: str, threads: int, queue: int) -> None:
        """Create the pool; threads start with the first tasks."""
        self.name = name
        self.threads = threads
        self.queue = queue
        self._executor = ThreadPoolExecutor(threads, f"polyvoc-{name}")
        self._lock = threading.Lock()
        self._tasks = 0  # that run or wait
        self.running = 0  # tasks
        self._seconds = 0.1  # per task, running mean

    def submit(self, task: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a task; raise BusyError if the queue is full. Cancelling the future removes a waiting task."""
        with self._lock:
            if self._tasks >= self.threads + self.queue:
                seconds = math.ceil(self._tasks * self._seconds / self.threads)
                raise BusyError(min(MAX_RETRY_SECONDS, max(1, seconds)))
            self._tasks += 1
        future = self._executor.submit(self._run, task)
        future.add_done_callback(lambda _: self._remove())
        return asyncio.wrap_future(future)

    def cores_per_task(self) -> int:
        """Return how many cores a running task may use now: all of them if it is the only one."""
        with self._lock:
            return max(1, (os.cpu_count() or 1) // max(1, self.running))

    @property
    def waiting(self) -> int:
        """Return the number of waiting tasks."""
        with self._lock:
            return max(0, self._tasks - self.running)

    def close(self) -> None:
        """Finish the running tasks and drop the waiting ones."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: Callable[[], T]) -> T:
        started = time.perf_counter()
        with self._lock:
            self.running += 1
        try:
            return task()
        finally:
            with self._lock:
                self.running -= 1
                self._seconds = SMOOTHING * self._seconds + (1 - SMOOTHING) * (time.perf_counter() - started)

    def _remove(self) -> None:
        with self._lock:
            self._tasks -= 1


class StoreRequests:
    """Requests to stores, each in a thread of its own, which is abandoned if the store does not respond in time."""

    def __init__(self, limit: int, seconds: float, max_bytes: int = MAX_BYTES) -> None:
        """Allow `limit` requests at a time, abandoned ones included, and `seconds` for each."""
        self._free = threading.Semaphore(limit)
        self.seconds = seconds
        self.max_bytes = max_bytes

    def read(self, url: str) -> bytes:
        """Return the content of a file."""
        return self.run(url, lambda: read_url(url, self.max_bytes))

    def run(self, url: str, request: Callable[[], T]) -> T:
        """Return the result of a request about an address; raise UnreachableError if it does not come in time."""
        name = display_name(url)
        if not self._free.acquire(blocking=False):
            raise UnreachableError(f"{name}: too many open requests to stores; try again later")
        result: Future[T] = Future()

        def work() -> None:
            try:
                result.set_result(request())
            except BaseException as error:  # noqa: BLE001 - raised again where the result is read
                result.set_exception(error)
            finally:
                self._free.release()

        try:
            threading.Thread(target=work, name="polyvoc-store", daemon=True).start()  # daemon: the server may end before it
        except RuntimeError as error:
            self._free.release()
            raise UnreachableError(f"{name}: no thread left for a request to its store; try again later") from error
        if not wait([result], self.seconds).done:
            raise UnreachableError(f"{name}: its store did not respond within {self.seconds:g} s; try again later")
        return result.result()
