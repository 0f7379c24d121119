"""Addresses of clusters, and how an item that crashes its worker is isolated."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from polyvoc.cluster.connect import Attempt, connect
from polyvoc.errors import ClusterError, OptionError, PolyvocError
from polyvoc.options import ClusterOptions


@pytest.mark.parametrize(
    "address, kind, text",
    [
        ("127.0.0.1:1", ClusterError, "no Ray cluster at '127.0.0.1:1': .*refused"),
        ("nonsense", ClusterError, "no Ray cluster at 'nonsense'"),
        ("host:many", ClusterError, "no Ray cluster at 'host:many'"),
        ("127.0.0.1:99999", ClusterError, "no Ray cluster at '127.0.0.1:99999'"),
        ("ray://127.0.0.1:10001", OptionError, "should be HOST:PORT of the cluster itself"),
    ],
)
def test_a_wrong_address_is_one_line(address: str, kind: type[PolyvocError], text: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(kind, match=text) as caught:
        connect(address)
    assert "\n" not in str(caught.value)


def test_without_ray_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def fail(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(OptionError, match=r"pip install 'polyvoc\[cluster\]'"):
        connect("auto")


@pytest.mark.parametrize("values", [("",), ("auto", -1), ("auto", 1, 0), ("auto", 1, 1, 0.0)])
def test_wrong_options(values: tuple[Any, ...]) -> None:
    with pytest.raises(OptionError, match=f"={values[-1]!r} "):
        ClusterOptions(*values)


def run_to_the_end(count: int, fails: set[int], counts: bool = True, tasks: int = 1000) -> tuple[list[int], dict[int, int]]:
    """Run attempts on some items, of which some crash their task; return those read, and how often each failing one was."""
    pending, read, crashes, failed = [Attempt(range(count))], [], dict.fromkeys(fails, 0), set()
    while pending and (tasks := tasks - 1):
        attempt = pending.pop(0)
        if not fails.intersection(attempt.items):
            read += attempt.items
            continue
        for item in fails.intersection(attempt.items):
            crashes[item] += 1
        retries = attempt.after_loss(tries=3, counts=counts)
        assert [item for retry in retries for item in retry.items] == ([*attempt.items] if retries else [])
        if not retries:
            assert attempt.isolated is not None and attempt.items[0] in fails
            failed.add(attempt.items[0])
        pending = [*retries, *pending]
    assert failed == (fails if counts else set())
    return read, crashes


# How often each failing item crashes a task: twice in its batch, once in each half, three times alone.
@pytest.mark.parametrize(
    "count, fails", [(1, {0: 1 + 3}), (2, {1: 2 + 3}), (16, {5: 2 + 3 + 3}), (13, {0: 2 + 2 + 3, 12: 2 + 3 + 3}), (3, {})]
)
def test_failing_items_are_isolated_and_the_others_read(count: int, fails: dict[int, int]) -> None:
    read, crashes = run_to_the_end(count, {*fails})
    assert read == [item for item in range(count) if item not in fails]
    assert crashes == fails


def test_losses_that_do_not_count_are_repeated_for_ever() -> None:
    read, crashes = run_to_the_end(4, {2}, counts=False)
    assert read == [0, 1] and crashes[2] > 900
