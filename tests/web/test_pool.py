"""Thread pools with a bounded queue; stores that do not respond delay only requests for their files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from polyvoc.errors import ImageError, UnreachableError
from polyvoc.features.decode import read_rgb
from polyvoc.index.writer import IndexWriter
from polyvoc.vocabulary.vocabulary import Vocabulary
from polyvoc.web.pool import BusyError, Pool, StoreRequests
from samples import unflushed  # noqa: F401
from servers import PATIENCE, refused, serving, wait_until

URL = "https://host/a.jpg?signature"


class Gate:
    """Tasks that signal their start, and wait until they may go on."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.open = threading.Event()
        self.order: list[int] = []

    def task(self, number: int = 0) -> Callable[[], int]:
        def wait() -> int:
            self.started.release()
            assert self.open.wait(PATIENCE)
            self.order.append(number)
            return number

        return wait

    async def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.started.acquire, timeout=PATIENCE)


def run_with_pool(threads: int, queue: int, test: Callable[[Pool, Gate], Awaitable[None]]) -> None:
    async def main() -> None:
        pool = Pool("test", threads, queue)
        await test(pool, Gate())
        assert (pool.running, pool.waiting) == (0, 0)
        pool.close()

    asyncio.run(main())


def test_results_and_errors_are_returned() -> None:
    async def test(pool: Pool, _: Gate) -> None:
        assert await pool.submit(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await pool.submit(lambda: 1 // 0)

    run_with_pool(2, 2, test)


def test_a_full_queue_raises_and_the_queued_tasks_finish() -> None:
    async def test(pool: Pool, gate: Gate) -> None:
        futures = [pool.submit(gate.task(number)) for number in range(5)]
        await gate.wait_for(2)
        assert (pool.running, pool.waiting) == (2, 3)
        for _ in range(3):
            with pytest.raises(BusyError, match=r"try again in [1-9]") as caught:
                pool.submit(lambda: 0)
            assert caught.value.seconds >= 1
        gate.open.set()
        assert await asyncio.gather(*futures) == [0, 1, 2, 3, 4]
        assert await pool.submit(lambda: 9) == 9  # there is room again

    run_with_pool(2, 3, test)


def test_a_waiting_task_that_is_cancelled_never_starts() -> None:
    async def test(pool: Pool, gate: Gate) -> None:
        running = pool.submit(gate.task(0))
        await gate.wait_for(1)
        waiting = pool.submit(gate.task(1))
        with pytest.raises(BusyError):
            pool.submit(gate.task(2))
        waiting.cancel()
        await asyncio.sleep(0)  # the loop passes the cancellation on
        assert pool.waiting == 0
        other = pool.submit(gate.task(3))
        gate.open.set()
        assert (await running, await other) == (0, 3)
        assert gate.order == [0, 3]

    run_with_pool(1, 1, test)


def test_a_running_task_that_is_cancelled_does_not_affect_others() -> None:
    async def test(pool: Pool, gate: Gate) -> None:
        running = pool.submit(gate.task(0))
        await gate.wait_for(1)
        running.cancel()
        other = pool.submit(gate.task(1))
        gate.open.set()
        assert await other == 1

    run_with_pool(1, 1, test)


@pytest.mark.parametrize(("running", "cores"), [(1, 4), (2, 2), (3, 1), (4, 1)])
def test_running_tasks_share_the_cores(running: int, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    async def test(pool: Pool, gate: Gate) -> None:
        assert pool.cores_per_task() == 4
        futures = [pool.submit(gate.task()) for _ in range(running)]
        await gate.wait_for(running)
        assert pool.cores_per_task() == cores
        gate.open.set()
        await asyncio.gather(*futures)

    run_with_pool(5, 0, test)


# --- stores -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def awake() -> Iterator[threading.Event]:
    """Set at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def wait_for(awake: threading.Event) -> int:
    assert awake.wait(PATIENCE)
    return 3


def test_store_requests_return_results_and_errors(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"abc")
    stores = StoreRequests(1, PATIENCE)
    for _ in range(3):  # one at a time
        assert stores.read(f"file://{tmp_path}/a.jpg") == b"abc"
        with pytest.raises(ImageError, match="no such file"):
            stores.read(f"file://{tmp_path}/b.jpg")
        with pytest.raises(ZeroDivisionError):
            stores.run(URL, lambda: 1 // 0)
    with pytest.raises(ImageError, match="3 bytes, the limit is 2"):
        StoreRequests(1, PATIENCE, max_bytes=2).read(f"file://{tmp_path}/a.jpg")


def test_a_store_that_does_not_respond_is_an_error_in_time(awake: threading.Event) -> None:
    stores = StoreRequests(2, 0.01)
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"^https://host/a.jpg\?...: .* within 0.01 s; try again later$"):
            stores.run(URL, lambda: wait_for(awake))
    started: list[int] = []
    with pytest.raises(UnreachableError, match="too many open requests to stores; try again later"):
        stores.run(URL, lambda: started.append(1))
    assert started == []


def test_an_abandoned_request_frees_its_slot_when_it_ends(awake: threading.Event) -> None:
    stores = StoreRequests(1, 0.01)
    threads: list[threading.Thread] = []

    def request() -> int:
        threads.append(threading.current_thread())
        return wait_for(awake)

    with pytest.raises(UnreachableError):
        stores.run(URL, request)
    awake.set()
    threads[0].join(PATIENCE)
    stores.seconds = PATIENCE
    assert stores.run(URL, request) == 3


@pytest.fixture
def index(tmp_path: Path, photographs: Path, vocabularies: tuple[Vocabulary, ...]) -> Path:
    with IndexWriter.open(tmp_path / "index", vocabularies) as writer:
        writer.update([f"file://{photographs}/{name}-a.jpg" for name in ("bridge", "tower", "wall")])
    return tmp_path / "index"


def block(monkeypatch: pytest.MonkeyPatch, name: str, awake: threading.Event) -> None:
    """Make a function wait until the stores are awake."""
    module, function = name.rsplit(".", 1)
    original: Callable[..., Any] = getattr(__import__(module, fromlist=[function]), function)
    monkeypatch.setattr(name, lambda *given: (wait_for(awake), original(*given))[1])


READ, STATE = "polyvoc.web.pool.read_url", "polyvoc.web.service.file_state"


@pytest.mark.parametrize("function", [READ, STATE])
def test_a_server_whose_store_does_not_respond(
    function: str, index: Path, photographs: Path, awake: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(monkeypatch, function, awake)
    with serving(index, originals=True, workers=1) as served:
        served.service.stores.seconds = 0.05
        for path in ("/images/1/thumbnail", "/images/1/file"):
            response = served.get(path)
            assert "its store did not respond within 0.05 s" in refused(response, 503)
            assert int(response.headers["retry-after"]) > 0
        assert "did not respond" in refused(served.search(query=1, assignments=2), 503)
        assert served.search(query=1).json()["hits"][0]["image"] == 1  # the stored words suffice
        assert served.get("/images/1").json()["available"] is (function == READ)
        assert served.get("/images").json()["total"] == 3
        awake.set()
        served.service.stores.seconds = PATIENCE
        assert read_rgb(served.get("/images/1/thumbnail").content, 320).shape == (240, 320, 3)
        assert served.get("/images/1/file").content == (photographs / "bridge-a.jpg").read_bytes()
        assert served.search(query=1, assignments=2).json()["hits"][0]["image"] == 1


def test_lookups_do_not_wait_for_a_store(index: Path, awake: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when all threads for pictures wait for it, and more requests for them."""
    block(monkeypatch, READ, awake)
    with serving(index, workers=1, decode_seconds=PATIENCE) as served, ThreadPoolExecutor(4) as browsers:
        responses = [browsers.submit(served.get, f"/images/{image}/thumbnail") for image in (1, 2, 3, 1)]
        wait_until(lambda: served.service.pictures.running == 2 and served.service.pictures.waiting == 2)
        assert not any(one.done() for one in responses)
        assert served.get("/images").json()["total"] == 3
        assert served.get("/about").json()["images"] == 3
        awake.set()
        assert [one.result().status_code for one in responses] == [200] * 4
