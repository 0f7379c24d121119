"""Work on many items: in order, a few ahead, and nothing left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from polyvoc.errors import OptionError
from polyvoc.threads import count_threads, ordered_map


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


def test_closing_early_begins_no_other_and_leaves_no_thread() -> None:
    alive, begun = threading.active_count(), []

    def work(item: int) -> None:
        begun.append(item)
        time.sleep(0.01)

    results = ordered_map(work, range(100), 2, "test")
    next(results)
    results.close()
    assert len(begun) <= 5
    assert threading.active_count() == alive


def test_what_goes_wrong_is_raised_in_its_place() -> None:
    results = ordered_map(lambda item: 1 / item, [2, 1, 0, 4], 2, "test")
    assert [next(results), next(results)] == [(2, 0.5), (1, 1.0)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_numbers_of_threads() -> None:
    assert count_threads(3) == 3
    assert count_threads(None) >= 1
    for wrong in (0, -2):
        with pytest.raises(OptionError, match=f"threads={wrong}"):
            count_threads(wrong)
