"""The server process: its flags, its bounded queue, its start and stop, and its log."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from commands import refuse, run
from conftest import draw_scene
from polyvoc.cli.search import _token
from polyvoc.web.service import Service
from polyvoc.web.settings import Settings
from servers import BEARER, PATIENCE, TOKEN, Gate, Served, children_of, has_ended, jpeg, refused, running, serving, wait_until

PHOTO = jpeg(draw_scene(1, (160, 120)))


def test_every_setting_but_five_describes_its_flag() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", run("serve", "--help").stdout)
    assert "--open" in text and "--token-file" in text and "Example: polyvoc serve" in text
    for field in fields(Settings):
        flag = field.metadata
        assert bool(flag) == (field.name not in ("index", "others", "token", "cluster", "beside"))
        assert not flag or (flag["help"].endswith(".") and ("metavar" in flag) == (field.type != "bool"))
        assert not flag or f"--{field.name.replace('_', '-')}" in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--port", "-1"], "port=-1 should be from 0 to 65535"),
        (["--port", "http"], "Invalid value for '--port'"),
        (["--workers", "-1"], "workers=-1 should be at least 0"),
        (["--queue", "-1"], "queue=-1 should be at least 0"),
        (["--max-upload", "0"], "max_upload=0 should be at least 1"),
        (["--max-pixels", "0"], "max_pixels=0 should be at least 1"),
        (["--nonsense"], "No such option: --nonsense"),
        (["--private"], "POLYVOC_TOKEN"),
        (["--write", "--host", "0.0.0.0"], "POLYVOC_TOKEN"),
        (["--token-file", "/nowhere/token"], "/nowhere/token: cannot be read (No such file or directory)"),
        (["--allow-host", "photos.example", "--port", "0"], "does not exist"),
        (["--root", "/nowhere", "--port", "0"], "/nowhere is not a folder; give another --root"),
        (["--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid"),
    ],
)
def test_invalid_flags_are_rejected_in_one_line(tmp_path: Path, arguments: list[str], line: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.delenv("POLYVOC_TOKEN", raising=False)
    assert line in refuse("serve", tmp_path / "none.polyvoc", *arguments)


def test_a_port_in_use_is_an_error_of_one_line(_session_index: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert refuse("serve", _session_index, "--port", taken.getsockname()[1]).endswith("choose another --port")


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, index = tmp_path / "token", tmp_path / "none.polyvoc"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("POLYVOC_TOKEN", "of-the-environment")
    assert _token(file) == TOKEN and _token(None) == "of-the-environment"
    monkeypatch.setenv("POLYVOC_TOKEN", "short")
    line = refuse("serve", index)
    assert "at least 8" in line and "short" not in line
    monkeypatch.delenv("POLYVOC_TOKEN")
    assert _token(None) is None
    for content in (b"", b"\n", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff"):
        file.write_bytes(content)
        refuse("serve", index, "--token-file", file)


def test_a_terminal_shows_a_generated_token(_session_index: Path) -> None:
    """In the fragment of the URL, which browsers do not send."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "POLYVOC_TOKEN"}
    arguments = ["serve", str(_session_index), "--private", "--port", "0", "--workers", "1"]
    popen = subprocess.Popen([sys.executable, "-m", "polyvoc", *arguments], stderr=theirs, env=environment)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as terminal:
            link = re.search(r"(http://\S+/)#token=(\S+)", terminal.readline().decode())
            assert link is not None
            address, token = link.groups()
            assert httpx.get(f"{address}images", timeout=PATIENCE).status_code == 401
            bearer = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{address}images", headers=bearer, timeout=PATIENCE).status_code == 200
            popen.send_signal(signal.SIGINT)
            assert popen.wait(PATIENCE) == 0
    finally:
        popen.kill()
        popen.wait()


@pytest.fixture
def search_gate(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate before every search; whether clients have disconnected is checked all the time."""
    monkeypatch.setattr("polyvoc.web.routes.DISCONNECT_SECONDS", 0.01)
    monkeypatch.setattr(Service, "search", gate.before(Service.search))
    return gate


@contextmanager
def searching(served: Served, count: int, **headers: str) -> Iterator[list[Any]]:
    """Send several searches at once; yield their future responses."""
    url = f"{served.client.base_url}search?query="
    with ThreadPoolExecutor(count) as clients:
        yield [clients.submit(httpx.post, f"{url}{n + 1}", timeout=PATIENCE, headers=headers) for n in range(count)]


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_full_queue_rejects_searches_and_the_waiting_ones_finish(
    _session_index: Path, search_gate: Gate, accept: str
) -> None:
    with serving(_session_index, workers=2, queue=3) as served, searching(served, 5, Accept=accept) as futures:
        search_gate.wait_for(2)
        wait_until(lambda: served.service.searches.waiting == 3)
        for _ in range(4):
            response = served.post("/search?query=1", headers={"Accept": accept})
            assert "try again in" in refused(response, 503)
            assert int(response.headers["retry-after"]) >= 1
        refused(served.post("/search/batch?query=1"), 503)
        for path in ("/health", "/images", "/images/1/thumbnail", "/about", "/", "/metrics"):  # no searches
            assert served.get(path).status_code == 200
        search_gate.open.set()
        responses = [future.result() for future in futures]
        assert [response.status_code for response in responses] == [200] * 5
        for number, response in enumerate(responses):
            last = response.text.splitlines()[-1]
            assert served.search(query=number + 1).json()["hits"] == httpx.Response(200, text=last).json()["hits"]


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_search_whose_client_disconnects_leaves_the_queue(_session_index: Path, search_gate: Gate, accept: str) -> None:
    with serving(_session_index, workers=1, queue=1) as served, searching(served, 1) as running_search:
        search_gate.wait_for()
        leaving = socket.create_connection(served.address)
        leaving.sendall(f"POST /search?query=2 HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
        wait_until(lambda: served.service.searches.waiting == 1)
        refused(served.post("/search?query=1"), 503)
        leaving.close()
        wait_until(lambda: served.service.searches.waiting == 0)
        with searching(served, 1) as other:
            wait_until(lambda: served.service.searches.waiting == 1)
            search_gate.open.set()
            assert other[0].result().status_code == running_search[0].result().status_code == 200
        search_gate.wait_for()  # the other one; the one that left never started
        assert not search_gate.started.acquire(blocking=False)


SLOW = """
import sys
from polyvoc.web.service import Service
original = Service.search
def search(*arguments):
    print("started", file=sys.stderr, flush=True)
    sys.stdin.readline()
    return original(*arguments)
Service.search = search
from polyvoc.cli.main import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_running_search_finishes_when_the_server_stops(_session_index: Path, number: int) -> None:
    command = [sys.executable, "-c", SLOW, "serve", str(_session_index), "--port", "0", "--workers", "1"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as popen, ThreadPoolExecutor(1) as clients:  # type: ignore[call-overload]
        url = popen.stderr.readline().split(" at ")[1].split()[0]
        decoders = children_of(popen.pid)
        response = clients.submit(httpx.post, f"{url}search?query=1", timeout=PATIENCE)
        assert popen.stderr.readline() == "started\n"
        popen.send_signal(number)
        address = (httpx.URL(url).host, httpx.URL(url).port)
        wait_until(lambda: not accepts(address))  # no new connections
        popen.stdin.write("go on\n")
        popen.stdin.flush()
        assert response.result().status_code == 200
        assert popen.wait(PATIENCE) == 0
        assert len(decoders) == 3 and all(map(has_ended, decoders))
        assert "Traceback" not in popen.stderr.read()


def accepts(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address):
            return True
    except ConnectionError:
        return False


def test_no_process_is_left_when_the_server_is_killed(_session_index: Path) -> None:
    with running(_session_index, "--workers", "1") as server:
        decoders = server.children()
        assert len(decoders) == 3
        assert httpx.get(f"{server.url}images/1/thumbnail", timeout=PATIENCE).status_code == 200
        code, log = server.end(signal.SIGKILL)
        assert code == -signal.SIGKILL and all(map(has_ended, decoders))
        assert "Traceback" not in log


def test_no_secret_is_in_the_log(_session_index: Path, tmp_path: Path) -> None:
    """Neither the token, nor query strings, nor names of stored uploads."""
    (tmp_path / "token").write_text(TOKEN)
    photo = {"photo": ("secretname.jpg", PHOTO)}
    wrong = "some-wrong-token"
    with running(_session_index, "--private", "--workers", "1", "--token-file", tmp_path / "token") as server:
        assert TOKEN not in server.url and "#" not in server.url  # a given token is not shown
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            assert client.get("/images", headers=BEARER).status_code == 200
            assert client.get("/images", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
            assert client.get(f"/images?token={TOKEN}").status_code == 401
            assert client.get(f"/images?token={TOKEN}&find=secretfind", headers=BEARER).status_code == 422
            assert client.get("/images?find=secretfind", headers=BEARER).status_code == 200
            stored = client.post("/queries", files=photo, headers=BEARER).json()["query"]
            for path in (f"/queries/{stored}", f"/queries/{stored}/picture", f"/explain?image=1&query={stored}"):
                assert client.get(path, headers=BEARER).status_code == 200
            assert client.post(f"/search?query={stored}", headers=BEARER).status_code == 200
            assert client.post("/session", headers=BEARER).status_code == 200
            (cookie,) = client.cookies.values()
            assert client.get(f"/{stored}/secretpath").status_code in (401, 404)
            client.request("SECRETMETHOD", "/images")
            assert client.post("/search", files={"photo": ("secretname.jpg", b"broken")}, headers=BEARER).status_code == 422
        code, log = server.end(signal.SIGTERM)
        assert code == 0 and server.popen.stdout is not None
    assert "POST /search 200" in log and "none 401" in log and "picture" not in log
    for secret in (TOKEN, wrong, stored, cookie, "secret", "SECRET", "?"):
        assert secret not in log, log
