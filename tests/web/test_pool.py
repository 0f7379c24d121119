"""The queue before the processors: bounded, honest, and left by those who leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from polyvoc.web.pool import BusyError, Pool

PATIENCE = 60


class Gate:
    """Work that waits until it may go on, and says that it has begun."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.order: list[int] = []

    def work(self, number: int = 0) -> Callable[[], int]:
        def wait() -> int:
            self.begun.release()
            assert self.open.wait(PATIENCE)
            self.order.append(number)
            return number

        return wait

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE)


def test_work_is_done_and_its_failure_told() -> None:
    async def main() -> None:
        pool = Pool("test", 2, 2)
        assert await pool.submit(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await pool.submit(lambda: 1 // 0)
        assert (pool.running, pool.waiting) == (0, 0)
        pool.close()

    asyncio.run(main())


def test_a_full_queue_refuses_and_the_others_finish() -> None:
    async def main() -> None:
        pool, gate = Pool("test", 2, 3), Gate()
        held = [pool.submit(gate.work(number)) for number in range(5)]
        for _ in range(2):
            await gate.has_begun()
        assert (pool.running, pool.waiting) == (2, 3)
        for _ in range(3):
            with pytest.raises(BusyError, match=r"try again in [1-9]") as refused:
                pool.submit(lambda: 0)
            assert refused.value.seconds >= 1
        gate.open.set()
        assert await asyncio.gather(*held) == [0, 1, 2, 3, 4]
        assert await pool.submit(lambda: 9) == 9  # there is room again
        pool.close()

    asyncio.run(main())


def test_who_leaves_while_waiting_makes_room() -> None:
    async def main() -> None:
        pool, gate = Pool("test", 1, 1), Gate()
        running = pool.submit(gate.work(0))
        await gate.has_begun()
        waiting = pool.submit(gate.work(1))
        with pytest.raises(BusyError):
            pool.submit(gate.work(2))
        waiting.cancel()
        await asyncio.sleep(0)  # the loop passes the cancellation on
        assert pool.waiting == 0
        other = pool.submit(gate.work(3))
        gate.open.set()
        assert (await running, await other) == (0, 3)
        assert gate.order == [0, 3]  # the one that left was never begun
        pool.close()

    asyncio.run(main())


def test_who_leaves_while_it_runs_harms_nobody() -> None:
    async def main() -> None:
        pool, gate = Pool("test", 1, 1), Gate()
        running = pool.submit(gate.work(0))
        await gate.has_begun()
        running.cancel()
        other = pool.submit(gate.work(1))
        gate.open.set()
        assert await other == 1
        assert (pool.running, pool.waiting) == (0, 0)
        pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(("running", "share"), [(1, 4), (2, 2), (3, 1), (4, 1)])
def test_those_who_run_share_the_cores(running: int, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    async def main() -> Any:
        pool, gate = Pool("test", 5, 0), Gate()
        assert pool.share() == 4
        held = [pool.submit(gate.work()) for _ in range(running)]
        for _ in range(running):
            await gate.has_begun()
        found = pool.share()
        gate.open.set()
        await asyncio.gather(*held)
        pool.close()
        return found

    assert asyncio.run(main()) == share
