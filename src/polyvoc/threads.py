"""How many threads; maps over them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from polyvoc.errors import OptionError

Item = TypeVar("Item")
Result = TypeVar("Result")


def count_threads(threads: int | None) -> int:
    """Give a number of threads: as asked, or one per core."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} should be at least 1, or None for all cores")
    return threads or os.cpu_count() or 1


def ordered_map(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, name: str
) -> Generator[tuple[Item, Result], None, None]:
    """Give (item, result of the work on it), in the order of the items; `name` is that of the threads.

    Memory does not grow with the number of items. Closing the generator early waits for those in work and begins no other.
    """
    waiting = iter(items)
    ahead: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(threads, name) as pool:
        try:
            while True:
                for item in islice(waiting, 2 * threads - len(ahead)):
                    ahead.append((item, pool.submit(work, item)))
                if not ahead:
                    return
                item, result = ahead.popleft()
                yield item, result.result()
        finally:
            for _, unwanted in ahead:
                unwanted.cancel()


@contextmanager
def thread_map(parts: Sequence[Any], threads: int | None) -> Iterator[Callable[..., Any]]:
    """Give a `map` over segments or other parts of the work: on all cores unless told, in their order."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} should be at least 1, or None for all cores")
    threads = min(len(parts), threads or os.cpu_count() or 1)
    yield map if threads <= 1 else _pool(os.getpid(), threads).map


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Give threads that stay: starting them would take longer than many a search. A process that was forked has none."""
    return ThreadPoolExecutor(threads, "polyvoc-segments")


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int | None = None) -> list[Result]:
    """Apply a function that releases the GIL to each item, on all cores unless told; the results keep their order."""
    count = threads or _cores()
    if len(items) == 1 or count == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(count, "polyvoc-assign") as pool:
        return list(pool.map(function, items))


def _cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
