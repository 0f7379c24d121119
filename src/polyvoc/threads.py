"""How many threads to use, and two maps over them: lazy and bounded, or all at once on threads that stay."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from threading import current_thread
from typing import TypeVar

from polyvoc.errors import OptionError

Item = TypeVar("Item")
Result = TypeVar("Result")
_PREFIX = "polyvoc-map"  # of the names of the threads that stay


def count_threads(threads: int | None = None) -> int:
    """Return `threads`, or the number of cores that this process may use if None; raise OptionError below 1."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} should be at least 1, or None for all cores")
    return threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def ordered_map(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    name: str,
    stop: Callable[[], None] = lambda: None,
) -> Generator[tuple[Item, Result], None, None]:
    """Yield (item, work(item)) in the order of the items, a few items ahead; `name` is the prefix of the threads' names.

    Memory does not grow with the number of items. Closing the generator, or an error, calls `stop`, waits for running items and
    starts no other.
    """
    remaining = iter(items)
    ahead: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(threads, name) as pool:
        try:
            while True:
                for item in islice(remaining, 2 * threads - len(ahead)):
                    ahead.append((item, pool.submit(work, item)))
                if not ahead:
                    return
                item, result = ahead.popleft()
                yield item, result.result()
        except BaseException:
            stop()
            raise
        finally:
            for _, unused in ahead:
                unused.cancel()


def thread_map(work: Callable[[Item], Result], items: Sequence[Item], threads: int | None = None) -> list[Result]:
    """Return [work(item) for item in items], computed on at most `threads` threads (None: one per core).

    The work should release the GIL. A map within the work of another runs on its thread: waiting for the pool could deadlock.
    """
    count = min(len(items), count_threads(threads))
    if count <= 1 or current_thread().name.startswith(_PREFIX):
        return [work(item) for item in items]
    return list(_pool(os.getpid(), count).map(work, items))


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return threads that stay: starting them would take longer than many a search. A forked process makes its own."""
    return ThreadPoolExecutor(threads, _PREFIX)
