"""Many items, several threads: results in the order of the items, and only a few of them ahead of whoever asks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from polyvoc.errors import OptionError

Item = TypeVar("Item")
Result = TypeVar("Result")


def count_threads(threads: int | None) -> int:
    """Give a number of threads: as asked, or one per core."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} should be at least 1, or None for all cores")
    return threads or os.cpu_count() or 1


def in_order(
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
