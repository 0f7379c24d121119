"""Maps over threads: in order, a few items ahead, nothing left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from polyvoc.errors import OptionError
from polyvoc.threads import count_threads, ordered_map, thread_map


def test_results_come_in_the_order_of_the_items() -> None:
    def slow_at_first(item: int) -> int:
        time.sleep(0.02 if item % 3 == 0 else 0)
        return item * item

    for threads in (1, 2, 5):
        assert list(ordered_map(slow_at_first, range(20), threads, "test")) == [(item, item * item) for item in range(20)]
    assert list(ordered_map(slow_at_first, [], 2, "test")) == []


def test_only_a_few_items_are_taken_ahead() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = ordered_map(str, endless(), 3, "test")
    for done in range(1, 8):
        next(results)
        assert taken <= done + 6
    results.close()
    assert taken <= 13


def test_closing_early_starts_no_other_item_and_leaves_no_thread() -> None:
    alive, started = threading.active_count(), []

    def work(item: int) -> None:
        started.append(item)
        time.sleep(0.01)

    results = ordered_map(work, range(100), 2, "test")
    next(results)
    results.close()
    assert len(started) <= 5
    assert threading.active_count() == alive


def test_an_error_is_raised_in_the_place_of_its_result() -> None:
    results = ordered_map(lambda item: 1 / item, [2, 1, 0, 4], 2, "test")
    assert [next(results), next(results)] == [(2, 0.5), (1, 1.0)]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_thread_map_keeps_the_order_and_raises(threads: int | None) -> None:
    assert thread_map(lambda item: item * item, range(20), threads) == [item * item for item in range(20)]
    assert thread_map(str, [], threads) == []
    with pytest.raises(ZeroDivisionError):
        thread_map(lambda item: 1 / item, [2, 1, 0], threads)


def test_thread_map_uses_threads_that_stay_and_may_be_nested() -> None:
    both = threading.Barrier(2, timeout=300)

    def thread(_: int) -> int:
        both.wait()  # until the other thread has an item, too
        return threading.get_ident()

    first, again = (set(thread_map(thread, range(8), 2)) for _ in range(2))
    assert len(first) == 2 and first == again and threading.get_ident() not in first
    assert thread_map(lambda n: sum(thread_map(int, range(n), 2)), [9] * 8, 2) == [36] * 8


def test_numbers_of_threads() -> None:
    assert count_threads(3) == 3
    assert count_threads(None) >= 1
    for wrong in (0, -2):
        with pytest.raises(OptionError, match=f"threads={wrong}"):
            count_threads(wrong)
        with pytest.raises(OptionError, match=f"threads={wrong}"):
            thread_map(str, [1, 2], wrong)
