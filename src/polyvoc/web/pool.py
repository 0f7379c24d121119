"""Bounded thread pools that clients share fairly, and requests to stores with a deadline."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

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


@dataclass(frozen=True, eq=False)
class _Task:
    """A task of a client, and its future result."""

    run: Callable[[], Any]
    client: str
    result: Future[Any]


class Pool:
    """Threads that run one task each, and a queue of at most `queue` waiting tasks, shared fairly by clients.

    The next task is of the client with the fewest running ones; clients with as many take turns. If the queue is full, a
    client that has fewer tasks in it takes the place of the last task of the client with the most. `spare` further threads
    are for clients that have no running task: one search of theirs does not wait for long ones of others.
    """

    def __init__(self, name: str, threads: int, queue: int, spare: int = 0) -> None:
        """Create the pool; threads start with the first tasks."""
        self.name = name
        self.threads = threads
        self.queue = queue
        self._spare = spare
        self._executor = ThreadPoolExecutor(threads + spare, f"polyvoc-{name}")
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Task]] = {}  # by client, whose turn comes in this order; none is empty
        self._running: Counter[str] = Counter()  # tasks by client
        self._closed = False
        self._seconds = 0.1  # per task, running mean

    def submit(self, run: Callable[[], T], client: str = "", admitted: bool = False) -> asyncio.Future[T]:
        """Queue a task; raise BusyError if the queue is full. Cancelling the future removes a waiting task.

        A task of a request that has been `admitted`, because a task of it has run before, is queued in any case.
        """
        task = _Task(run, client, Future())
        with self._lock:
            full = self._count_waiting() >= self.queue and not self._has_thread(client)
            dropped = self._drop_for(client) if full and not admitted else None
            self._waiting.setdefault(client, deque()).append(task)
            self._start_tasks()
            busy = self._busy()
        task.result.add_done_callback(lambda _: self._forget(task))
        if dropped is not None and dropped.result.set_running_or_notify_cancel():
            dropped.result.set_exception(busy)
        return asyncio.wrap_future(task.result)

    def cores_per_task(self) -> int:
        """Return how many cores a running task may use now: all of them if it is the only one."""
        return max(1, (os.cpu_count() or 1) // max(1, self.running))

    @property
    def running(self) -> int:
        """Return the number of running tasks."""
        with self._lock:
            return self._running.total()

    @property
    def waiting(self) -> int:
        """Return the number of waiting tasks."""
        with self._lock:
            return self._count_waiting()

    def close(self) -> None:
        """Finish the running tasks and drop the waiting ones."""
        with self._lock:
            self._closed = True
            waiting = [task for tasks in self._waiting.values() for task in tasks]
        for task in waiting:
            task.result.cancel()
        self._executor.shutdown(wait=True)

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _has_thread(self, client: str) -> bool:
        """Return whether a task of a client may start now."""
        spare = 0 if self._running[client] else self._spare
        return self._running.total() < self.threads + spare

    def _busy(self) -> BusyError:
        tasks = self._count_waiting() + self._running.total()
        return BusyError(min(MAX_RETRY_SECONDS, max(1, math.ceil(tasks * self._seconds / self.threads))))

    def _drop_for(self, client: str) -> _Task:
        """Remove and return the last task of the client with the most; raise BusyError if it would have fewer than this one."""
        greediest = max(self._waiting, key=lambda other: len(self._waiting[other]), default=client)
        if len(self._waiting.get(greediest, ())) <= len(self._waiting.get(client, ())) + 1:
            raise self._busy()
        return self._waiting[greediest].pop()  # it has another

    def _start_tasks(self) -> None:
        """Start waiting tasks while there are threads for them."""
        while not self._closed and self._waiting:
            client = min(self._waiting, key=lambda other: self._running[other])  # of equals the first
            if not self._has_thread(client):
                return
            tasks = self._waiting.pop(client)
            task = tasks.popleft()
            if tasks:
                self._waiting[client] = tasks  # the last in turn
            if task.result.set_running_or_notify_cancel():
                self._running[client] += 1
                self._executor.submit(self._run, task)

    def _run(self, task: _Task) -> None:
        started = time.perf_counter()
        try:
            result = task.run()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is read
            self._end(task, started)
            task.result.set_exception(error)
        else:
            self._end(task, started)
            task.result.set_result(result)

    def _end(self, task: _Task, started: float) -> None:
        with self._lock:
            self._running[task.client] -= 1
            self._running += Counter()  # drops clients without tasks
            self._seconds = SMOOTHING * self._seconds + (1 - SMOOTHING) * (time.perf_counter() - started)
            self._start_tasks()

    def _forget(self, task: _Task) -> None:
        """Remove a task that was cancelled from the queue."""
        with self._lock:
            tasks = self._waiting.get(task.client, deque())
            if task in tasks:
                tasks.remove(task)
            if not tasks:
                self._waiting.pop(task.client, None)


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
