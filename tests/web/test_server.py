"""Served well: a bounded queue, new commits without a restart, writers beside readers, and a clean stop."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from commands import refuse
from conftest import draw_scene
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.web.service import Service
from samples import unflushed
from servers import PATIENCE, TOKEN, Served, has_ended, jpeg, refused, running, serving

__all__ = ["unflushed"]

SIDE = (160, 120)


@pytest.fixture(autouse=True)
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for new commits, and for clients that have left, all the time."""
    monkeypatch.setattr("polyvoc.web.service.FRESH_SECONDS", 0.0)
    monkeypatch.setattr("polyvoc.web.routes.WATCH_SECONDS", 0.01)


class Gate:
    """Searches that have begun, and wait to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        answered = Service.answer

        def answer(*arguments: Any) -> Any:
            self.begun.release()
            assert self.open.wait(PATIENCE)
            return answered(*arguments)

        monkeypatch.setattr(Service, "answer", answer)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE)


@contextmanager
def asking(served: Served, count: int, **headers: str) -> Iterator[list[Any]]:
    """Ask several times at once; gives what will have been answered."""
    with ThreadPoolExecutor(count) as clients:
        url = str(served.client.base_url)
        yield [
            clients.submit(httpx.post, f"{url}search?query={n + 1}", timeout=PATIENCE, headers=headers) for n in range(count)
        ]


def wait_until(condition: Any) -> None:
    """Wait for something that another thread does."""
    for _ in range(PATIENCE * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came")


def add(path: Path, folder: Path, *seeds: int) -> None:
    """Add photographs to an index, as another process would."""
    made = [folder / f"{seed}.jpg" for seed in seeds]
    for seed, photo in zip(seeds, made, strict=True):
        photo.write_bytes(jpeg(draw_scene(seed, SIDE)))
    with IndexWriter.open(path) as writer:
        writer.update(made)


# --- the queue ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"Accept": "application/x-ndjson"}], ids=["plain", "lines"])
def test_a_full_queue_is_said_so_and_the_others_finish(
    _session_index: Path, monkeypatch: pytest.MonkeyPatch, headers: Any
) -> None:
    gate = Gate(monkeypatch)
    with serving(_session_index, workers=2, queue=3) as served, asking(served, 5, **headers) as held:
        gate.wait_for(2)
        wait_until(lambda: served.service.searches.waiting == 3)
        for _ in range(4):
            response = served.client.post("/search?query=1", headers=headers)
            assert "try again in" in refused(response, 503)
            assert int(response.headers["retry-after"]) >= 1
        refused(served.client.post("/search/batch?query=1"), 503)
        for path in ("/health", "/images", "/images/1/thumbnail", "/about", "/", "/metrics"):  # what does not search goes on
            assert served.get(path).status_code == 200
        gate.open.set()
        answers = [future.result() for future in held]
        assert [answer.status_code for answer in answers] == [200] * 5
        for number, answer in enumerate(answers):
            last = answer.text.splitlines()[-1]
            assert served.search(query=number + 1).json()["hits"] == httpx.Response(200, text=last).json()["hits"]


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_who_leaves_while_waiting_is_taken_out(_session_index: Path, monkeypatch: pytest.MonkeyPatch, accept: str) -> None:
    gate = Gate(monkeypatch)
    with serving(_session_index, workers=1, queue=1) as served, asking(served, 1) as held:
        gate.wait_for(1)
        leaving = socket.create_connection(served.address)
        leaving.sendall(f"POST /search?query=2 HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
        wait_until(lambda: served.service.searches.waiting == 1)
        refused(served.client.post("/search?query=1"), 503)
        leaving.close()
        wait_until(lambda: served.service.searches.waiting == 0)
        with asking(served, 1) as other:
            wait_until(lambda: served.service.searches.waiting == 1)
            gate.open.set()
            assert other[0].result().status_code == held[0].result().status_code == 200
        assert gate.begun.acquire(blocking=False)  # the other one; the one that left was never begun
        assert not gate.begun.acquire(blocking=False)


# --- new commits --------------------------------------------------------------------------------------------------------------


def test_a_new_commit_is_served_without_a_restart(index_path: Path, tmp_path: Path) -> None:
    photo = jpeg(draw_scene(50, SIDE))
    with serving(index_path, workers=1) as served:
        before = served.get("/health").json()
        old = served.service.index
        add(index_path, tmp_path, 50)
        after = served.get("/health").json()
        assert after["images"] == before["images"] + 1 and after["commit"] > before["commit"]
        hit = served.search(photo).json()["hits"][0]
        assert hit["path"].endswith("50.jpg")
        assert served.get(f"/images/{hit['image']}/thumbnail").status_code == 200
        assert len(old) == 12 and old.search(1)[0].image == 1  # whoever still holds it goes on with it
        with IndexWriter.open(index_path) as writer:
            writer.remove([tmp_path / "50.jpg"])
        assert served.get("/health").json()["images"] == 12
        assert hit["image"] not in [one["image"] for one in served.search(photo).json()["hits"]]


def test_an_answer_begun_before_a_commit_is_that_of_the_old_one(index_path: Path, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    begun, goes_on, found = threading.Event(), threading.Event(), Index.find

    def find(*arguments: Any) -> Any:
        begun.set()
        assert goes_on.wait(PATIENCE)
        return found(*arguments)

    with serving(index_path, workers=1) as served:
        wanted = served.search(query=1).json()["hits"]
        monkeypatch.setattr(Index, "find", find)
        with asking(served, 1) as held:
            assert begun.wait(PATIENCE)
            add(index_path, tmp_path, 50, 51, 52)
            assert served.get("/health").json()["images"] == 15
            goes_on.set()
            assert held[0].result().json()["hits"] == wanted
        assert served.search(query=1).json()["hits"] != wanted  # of more images a word says something else


def test_searches_beside_a_writer_give_the_answer_of_some_commit(index_path: Path, tmp_path: Path) -> None:
    photo = jpeg(draw_scene(1, SIDE))
    done, told = threading.Event(), []

    def ask(served: Served) -> None:
        while not done.is_set():
            response = httpx.post(f"{served.client.base_url}search?preset=fast", files={"photo": photo}, timeout=PATIENCE)
            assert response.status_code == 200, response.text
            told.append(tuple((hit["image"], hit["score"]) for hit in response.json()["hits"]))

    def now() -> tuple[tuple[int, float], ...]:
        with Index.open(index_path) as index:
            return tuple((hit.image, hit.score) for hit in index.search(photo, options=index.preset("fast")))

    with serving(index_path, write=True, workers=2) as served:
        known = [now()]
        with ThreadPoolExecutor(2) as clients:
            asked = [clients.submit(ask, served) for _ in range(2)]
            for seed in range(60, 62):
                add(index_path, tmp_path, seed)
                known.append(now())
                files = {"photos": (f"{seed}.jpg", jpeg(draw_scene(seed + 100, SIDE)))}
                (added,) = served.client.post("/images", files=files).json()["added"]
                known.append(now())
                assert served.client.delete(f"/images/{added['image']}").json() == {"removed": added["image"]}
                known.append(now())
            done.set()
            for future in asked:
                future.result()
    assert told
    assert [answer for answer in told if not any(is_of(answer, commit) for commit in known)] == []


def is_of(answer: tuple[tuple[int, float], ...], commit: tuple[tuple[int, float], ...]) -> bool:
    """Tell whether an answer is that of a commit, but for images that were removed before it could tell of them."""
    rest = iter(commit)
    return all(any(hit == other for other in rest) for hit in answer) and len(answer) >= len(commit) - 1


def test_an_index_that_cannot_be_opened_any_more_leaves_the_last_good_one(index_path: Path, tmp_path: Path) -> None:
    with serving(index_path, workers=1) as served:
        wanted = served.search(query=1).json()["hits"]
        known = {path.name for path in (index_path / "segments").iterdir()}
        add(index_path, tmp_path, 50)
        (fresh,) = [path for path in (index_path / "segments").iterdir() if path.name not in known] or [None]
        assert fresh is not None
        hidden = Path(shutil.move(fresh, tmp_path / "hidden"))
        health = served.get("/health").json()
        assert (health["status"], health["images"]) == ("stale", 12)
        assert served.search(query=1).json()["hits"] == wanted
        shutil.move(hidden, fresh)
        assert served.get("/health").json()["status"] == "ok"
        assert served.get("/health").json()["images"] == 13


def test_a_locked_index_is_read_but_not_written(index_path: Path) -> None:
    photo = jpeg(draw_scene(50, SIDE))
    with serving(index_path, write=True, workers=1) as served:
        with IndexWriter.open(index_path):
            added = served.client.post("/images", files={"photos": ("x.jpg", photo)})
            for response in (added, served.client.delete("/images/1")):
                assert "is being written by another process" in refused(response, 503)
                assert int(response.headers["retry-after"]) >= 1
            assert served.search(query=1).status_code == 200
        assert served.client.post("/images", files={"photos": ("x.jpg", photo)}).status_code == 201
        assert served.client.delete("/images/1").status_code == 200


def test_a_full_disk_is_said_so(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with serving(index_path, write=True, workers=1) as served:
        monkeypatch.setattr("polyvoc.storage.files.flush_path", full)
        response = served.client.post("/images", files={"photos": ("x.jpg", jpeg(draw_scene(50, SIDE)))})
        assert "the disk is full" in refused(response, 507)
        assert served.search(query=1).status_code == 200


# --- start and stop -----------------------------------------------------------------------------------------------------------


def test_a_missing_index_is_one_line(tmp_path: Path) -> None:
    assert "does not exist" in refuse("serve", tmp_path / "none.polyvoc", "--port", "0")


def test_a_port_in_use_is_one_line(_session_index: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refuse("serve", _session_index, "--port", port).endswith("choose another --port")


def test_a_host_that_is_none_is_one_line(_session_index: Path) -> None:
    assert "cannot listen at no.such.host.invalid" in refuse("serve", _session_index, "--host", "no.such.host.invalid")


SLOW = """
import sys, threading
from polyvoc.web.service import Service
answered = Service.answer
def answer(*arguments):
    print("begun", file=sys.stderr, flush=True)
    sys.stdin.readline()
    return answered(*arguments)
Service.answer = answer
from polyvoc.cli.main import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_search_that_runs_is_finished_when_the_server_stops(_session_index: Path, number: int) -> None:
    command = [sys.executable, "-c", SLOW, "serve", str(_session_index), "--port", "0", "--workers", "1"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as popen, ThreadPoolExecutor(1) as clients:  # type: ignore[call-overload]
        url = popen.stderr.readline().split(" at ")[1].split()[0]
        decoders = [int(child) for child in Path(f"/proc/{popen.pid}/task/{popen.pid}/children").read_text().split()]
        asked = clients.submit(httpx.post, f"{url}search?query=1", timeout=PATIENCE)
        assert popen.stderr.readline() == "begun\n"
        popen.send_signal(number)
        address = (httpx.URL(url).host, httpx.URL(url).port)
        wait_until(lambda: not accepts(address))  # it takes no new ones
        popen.stdin.write("go on\n")
        popen.stdin.flush()
        assert asked.result().status_code == 200
        assert popen.wait(PATIENCE) == 0
        assert len(decoders) == 3 and all(map(has_ended, decoders))
        assert "Traceback" not in popen.stderr.read()


def accepts(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address):
            return True
    except ConnectionError:
        return False


def test_nothing_is_left_when_the_server_is_killed(_session_index: Path) -> None:
    with running(_session_index, "--workers", "1") as server:
        decoders = server.children()
        assert len(decoders) == 3
        assert httpx.get(f"{server.url}images/1/thumbnail").status_code == 200
        code, told = server.end(signal.SIGKILL)
        assert code == -signal.SIGKILL and all(map(has_ended, decoders))
        assert "Traceback" not in told


def test_a_decoder_that_is_killed_costs_one_request(_session_index: Path) -> None:
    with serving(_session_index, workers=1) as served:
        for process in list(served.service.decoders._idle.queue):
            os.kill(process._popen.pid, signal.SIGKILL)
        photo = jpeg(draw_scene(1, SIDE))
        statuses = [served.search(photo).status_code for _ in range(4)]
        assert statuses.count(422) <= 3 and statuses[-1] == 200


def test_no_secret_is_in_the_log(_session_index: Path) -> None:
    """Neither the token nor what follows a question mark nor the names of kept photographs."""
    photo = {"photo": ("secretname.jpg", jpeg(draw_scene(1, SIDE)))}
    wrong = "wrong-token-of-somebody"
    with running(_session_index, "--private", "--workers", "1", environment={"POLYVOC_TOKEN": TOKEN}) as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            assert client.get("/images", headers=bearer).status_code == 200
            assert client.get("/images", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
            assert client.get(f"/images?token={TOKEN}").status_code == 401
            assert client.get(f"/images?token={TOKEN}&find=secretfind", headers=bearer).status_code == 422
            assert client.get("/images?find=secretfind", headers=bearer).status_code == 200
            kept = client.post("/queries", files=photo, headers=bearer).json()["query"]
            for path in (f"/queries/{kept}", f"/queries/{kept}/picture", f"/explain?image=1&query={kept}"):
                assert client.get(path, headers=bearer).status_code == 200
            assert client.post(f"/search?query={kept}", headers=bearer).status_code == 200
            assert client.post("/session", headers=bearer).status_code == 200
            (cookie,) = client.cookies.values()
            assert client.get(f"/{kept}/secretpath").status_code in (401, 404)
            client.request("SECRETMETHOD", "/images")
            assert client.post("/search", files={"photo": ("secretname.jpg", b"broken")}, headers=bearer).status_code == 422
        code, told = server.end(signal.SIGTERM)
        assert code == 0 and server.popen.stdout is not None
    assert "GET /images 200" in told and "/queries/{query}" in told
    for secret in (TOKEN, wrong, kept, cookie, "secret", "SECRET", "?"):
        assert secret not in told, told
