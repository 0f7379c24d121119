"""Thread pools with a bounded queue that clients share; stores that do not respond delay only requests for their files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import pytest

from polyvoc.errors import ImageError, UnreachableError
from polyvoc.features.decode import read_rgb
from polyvoc.index.writer import IndexWriter
from polyvoc.vocabulary.vocabulary import Vocabulary
from polyvoc.web.pool import BusyError, Pool, StoreRequests
from servers import PATIENCE, Gate, refused, serving, wait_until

URL = "https://host/a.jpg?signature"


def with_pool(
    threads: int, queue: int, spare: int = 0
) -> Callable[[Callable[[Pool, Gate], Awaitable[None]]], Callable[[], None]]:
    """Run an asynchronous test with a pool, which is idle at the end, and a closed gate."""

    async def run(test: Callable[[Pool, Gate], Awaitable[None]]) -> None:
        pool = Pool("test", threads, queue, spare)
        await test(pool, Gate())
        assert (pool.running, pool.waiting) == (0, 0)
        pool.close()

    return lambda test: lambda: asyncio.run(run(test))


@with_pool(2, 2)
async def test_results_and_errors_are_returned(pool: Pool, _: Gate) -> None:
    assert await pool.submit(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await pool.submit(lambda: 1 // 0)


@with_pool(2, 3)
async def test_a_full_queue_raises_and_the_queued_tasks_finish(pool: Pool, gate: Gate) -> None:
    futures = [pool.submit(gate.before(partial(int, number))) for number in range(5)]
    gate.wait_for(2)
    assert (pool.running, pool.waiting) == (2, 3)
    for _ in range(3):
        with pytest.raises(BusyError, match=r"try again in [1-9]") as caught:
            pool.submit(lambda: 0)
        assert caught.value.seconds >= 1
    gate.open.set()
    assert await asyncio.gather(*futures) == [0, 1, 2, 3, 4]
    assert await pool.submit(lambda: 9) == 9  # there is room again


@with_pool(1, 1)
async def test_a_waiting_task_that_is_cancelled_never_starts(pool: Pool, gate: Gate) -> None:
    order: list[int] = []
    tasks = [gate.before(partial(order.append, number)) for number in range(4)]
    running = pool.submit(tasks[0])
    gate.wait_for()
    waiting = pool.submit(tasks[1])
    with pytest.raises(BusyError):
        pool.submit(tasks[2])
    waiting.cancel()
    await asyncio.sleep(0)  # the loop passes the cancellation on
    assert pool.waiting == 0
    other = pool.submit(tasks[3])
    gate.open.set()
    await asyncio.gather(running, other)
    assert order == [0, 3]


@with_pool(1, 1)
async def test_a_running_task_that_is_cancelled_does_not_affect_others(pool: Pool, gate: Gate) -> None:
    running = pool.submit(gate.before(lambda: 0))
    gate.wait_for()
    running.cancel()
    other = pool.submit(gate.before(lambda: 1))
    gate.open.set()
    assert await other == 1


@with_pool(5, 0)
async def test_running_tasks_share_the_cores(pool: Pool, gate: Gate) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 4)
        futures = []
        for cores in (4, 4, 2, 1, 1):  # with none, one, two, ... of them
            assert pool.cores_per_task() == cores
            futures.append(pool.submit(gate.before(lambda: 0)))
            gate.wait_for()
        gate.open.set()
        await asyncio.gather(*futures)


def recorder(order: list[str], name: str, gate: Gate | None = None) -> Callable[[], object]:
    """Return a task that notes its name, behind a gate if there is one."""
    return partial(order.append, name) if gate is None else gate.before(partial(order.append, name))


@with_pool(1, 10)
async def test_clients_take_turns(pool: Pool, gate: Gate) -> None:
    order: list[str] = []
    futures = [pool.submit(recorder(order, "a", gate), "a")]
    gate.wait_for()
    futures += [pool.submit(recorder(order, name), name) for name in "aaabbc"]
    gate.open.set()
    await asyncio.gather(*futures)
    assert "".join(order) == "a" + "abc" + "ab" + "a"


@with_pool(2, 10)
async def test_a_client_with_fewer_running_tasks_comes_first(pool: Pool, gate: Gate) -> None:
    order: list[str] = []
    other = Gate()
    long = pool.submit(recorder(order, "a", gate), "a")
    short = pool.submit(recorder(order, "b", other), "b")
    gate.wait_for()
    other.wait_for()
    waiting = [pool.submit(recorder(order, name), name) for name in "aac"]
    other.open.set()
    await asyncio.gather(short, *waiting)
    assert order == ["b", "c", "a", "a"]
    gate.open.set()
    await long


@with_pool(2, 1, spare=1)
async def test_a_spare_thread_is_for_clients_without_a_running_task(pool: Pool, gate: Gate) -> None:
    long = [pool.submit(gate.before(lambda: 0), "greedy") for _ in range(3)]
    gate.wait_for(2)
    assert (pool.running, pool.waiting) == (2, 1)
    for client in ("a", "b"):
        assert await pool.submit(lambda: 1, client) == 1  # although the queue is full
    with pytest.raises(BusyError):
        pool.submit(lambda: 1, "greedy")
    gate.open.set()
    await asyncio.gather(*long)


@with_pool(1, 4)
async def test_a_full_queue_is_shared(pool: Pool, gate: Gate) -> None:
    long = [pool.submit(gate.before(partial(int, number)), "greedy") for number in range(5)]
    gate.wait_for()
    fair = [pool.submit(lambda: 7, "a") for _ in range(2)]
    for number in (4, 3):
        with pytest.raises(BusyError, match="try again in"):
            await long[number]
    for client in ("a", "greedy"):
        with pytest.raises(BusyError):
            pool.submit(lambda: 7, client)
    admitted = pool.submit(lambda: 8, "greedy", admitted=True)
    assert pool.waiting == 5
    gate.open.set()
    assert await asyncio.gather(*fair, *long[:3], admitted) == [7, 7, 0, 1, 2, 8]


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


def test_a_store_that_does_not_respond_is_an_error_in_time(gate: Gate) -> None:
    stores = StoreRequests(2, 0.01)
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"^https://host/a.jpg\?...: .* within 0.01 s; try again later$"):
            stores.run(URL, gate.before(lambda: 0))
    started: list[int] = []
    with pytest.raises(UnreachableError, match="too many open requests to stores; try again later"):
        stores.run(URL, lambda: started.append(1))
    assert started == []


def test_an_abandoned_request_frees_its_slot_when_it_ends(gate: Gate) -> None:
    stores = StoreRequests(1, 0.01)
    threads: list[threading.Thread] = []
    with pytest.raises(UnreachableError):
        stores.run(URL, gate.before(lambda: threads.append(threading.current_thread())))
    gate.open.set()
    wait_until(lambda: threads)
    threads[0].join(PATIENCE)
    stores.seconds = PATIENCE
    assert stores.run(URL, lambda: 3) == 3


@pytest.fixture
def index(tmp_path: Path, photographs: Path, vocabularies: tuple[Vocabulary, ...]) -> Path:
    with IndexWriter.open(tmp_path / "index", vocabularies) as writer:
        writer.update([f"file://{photographs}/{name}-a.jpg" for name in ("bridge", "tower", "wall")])
    return tmp_path / "index"


READ, STATE = "polyvoc.web.pool.read_url", "polyvoc.storage.folders.file_state"


@pytest.mark.parametrize("function", [READ, STATE])
def test_a_server_whose_store_does_not_respond(
    function: str, index: Path, photographs: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, gate.before(resolve_name(function)))
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
        gate.open.set()
        served.service.stores.seconds = PATIENCE
        assert read_rgb(served.get("/images/1/thumbnail").content, 320).shape == (240, 320, 3)
        assert served.get("/images/1/file").content == (photographs / "bridge-a.jpg").read_bytes()
        assert served.search(query=1, assignments=2).json()["hits"][0]["image"] == 1


def test_lookups_do_not_wait_for_a_store(index: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when all threads for pictures wait for it, and more requests for them."""
    monkeypatch.setattr(READ, gate.before(resolve_name(READ)))
    with serving(index, workers=1, decode_seconds=PATIENCE) as served, ThreadPoolExecutor(4) as browsers:
        responses = [browsers.submit(served.get, f"/images/{image}/thumbnail") for image in (1, 2, 3, 1)]
        wait_until(lambda: served.service.pictures.running == 2 and served.service.pictures.waiting == 2)
        assert not any(one.done() for one in responses)
        assert served.get("/images").json()["total"] == 3
        assert served.get("/about").json()["images"] == 3
        gate.open.set()
        assert [one.result().status_code for one in responses] == [200] * 4
