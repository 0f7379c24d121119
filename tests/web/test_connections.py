"""Connections of slow, greedy and deceptive clients: each is closed, and others are served meanwhile."""

from __future__ import annotations

import re
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from uvicorn.server import ServerState

from conftest import draw_scene
from http_requests import BAD, requests_of_h11
from polyvoc.errors import OptionError
from polyvoc.web.connections import REASONS, Connections
from polyvoc.web.service import Service
from polyvoc.web.settings import Settings
from servers import PATIENCE, Gate, Served, jpeg, refused, running, serving, wait_until

SETTINGS = {"write": True, "workers": 1}
PHOTO = jpeg(draw_scene(5, (160, 120)))
HOST = "Host: 127.0.0.1\r\n"
HEALTH = f"GET /health HTTP/1.1\r\n{HOST}\r\n".encode()
DELETE = f"DELETE /images/1 HTTP/1.1\r\n{HOST}\r\n".encode()
FORM = "Content-Type: multipart/form-data; boundary=x\r\n"
UPLOAD = f"POST /search HTTP/1.1\r\n{HOST}{FORM}Content-Length: 5000\r\n\r\n".encode()
PART = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a"\r\n\r\n'


@contextmanager
def connected(served: Served, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Open a connection from an address of this machine."""
    with socket.create_connection(served.address[:2], PATIENCE, (source, 0)) as connection:
        yield connection


def read_to_end(connection: socket.socket) -> bytes:
    """Return what arrives until the server closes the connection."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionError:
        pass
    return received


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def drip(connection: socket.socket, content: bytes = b"x") -> bytes:
    """Send a byte from time to time until the server closes the connection; return what it has sent."""
    connection.settimeout(0.02)
    received = b""
    for _ in range(PATIENCE * 50):
        try:
            part = connection.recv(65536)
            if not part:
                return received
            received += part
        except TimeoutError:
            try:
                connection.sendall(content)
            except ConnectionError:
                return received + read_to_end(connection)
        except ConnectionError:
            return received
    raise AssertionError("the connection is still open")


def is_healthy(connection: socket.socket) -> bool:
    """Send a request; return whether it is responded to and the connection kept."""
    received = b""
    connection.sendall(HEALTH)
    while b"commit" not in received:
        part = connection.recv(65536)
        if not part:
            return False
        received += part
    return statuses(received) == [200]


def other_client(served: Served, address: str = "127.0.0.2") -> httpx.Client:
    return httpx.Client(base_url=served.client.base_url, timeout=PATIENCE, transport=httpx.HTTPTransport(local_address=address))


def rejected(served: Served) -> dict[str, float]:
    """Return the counters of closed connections by reason."""
    families = text_string_to_metric_families(served.service.metrics.text().decode())
    return {s.labels["reason"]: s.value for family in families for s in family.samples if s.name.endswith("connections_total")}


# -- framing

SMUGGLING = {
    "length and chunks": b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(DELETE)),
    "a length twice": b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "bare line feed": b"Content-Length: 0\n\r\n",
    "bare line feeds": b"Content-Length: 0\n\n",
    "folded header": b"X: y\r\n Content-Length: %d\r\n\r\n" % len(DELETE),
    "bare line feed after the last chunk": b"Transfer-Encoding: chunked\r\n\r\n0\r\n\n",
    "fields after the last chunk": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_a_smuggled_request_is_never_served(served: Served, name: str) -> None:
    """It would be, were the connection left to h11: the test can notice it."""
    deceptive = b"POST /search?query=1 HTTP/1.1\r\n" + HOST.encode() + SMUGGLING[name] + DELETE
    assert requests_of_h11(deceptive) == 2
    before = rejected(served)["framing"]
    with connected(served) as connection:  # kept alive
        assert is_healthy(connection)
        connection.sendall(deceptive)
        assert statuses(read_to_end(connection)) == [400]
    assert served.get("/images/1").status_code == 200
    assert rejected(served)["framing"] == before + 1


@pytest.mark.parametrize("name", [name for name in BAD if "endless" not in name])
def test_a_request_that_is_not_framed_strictly_is_rejected(served: Served, name: str) -> None:
    with connected(served) as connection:
        connection.sendall(BAD[name] + DELETE)
        received = read_to_end(connection)
    assert statuses(received) in ([400], [])  # []: the system drops the response if not all was read
    assert received or len(BAD[name]) > 30_000
    assert served.get("/images/1").status_code == 200


def test_a_chunk_that_is_wrong_ends_a_request_that_is_being_read(served: Served) -> None:
    head = UPLOAD.replace(b"Content-Length: 5000", b"Transfer-Encoding: chunked")
    with connected(served) as connection:
        connection.sendall(head + b"3\r\n--x\r\n")
        connection.sendall(b"nonsense\r\n")
        received = read_to_end(connection)
    assert statuses(received) == [400] and b"invalid chunk size" in received


def test_requests_in_a_row_are_served_and_a_wrong_one_after_them_is_not(
    served: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = f"POST /search?query=1 HTTP/1.1\r\n{HOST}\r\n".encode()
    with connected(served) as connection:
        connection.sendall(HEALTH + search + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert statuses(read_to_end(connection)) == [200, 200, 200]
    monkeypatch.setattr(Service, "search", gate.before(Service.search))
    with connected(served) as connection:
        connection.sendall(search)
        gate.wait_for()
        connection.sendall(BAD["a length twice"] + DELETE)
        wait_until(lambda: rejected(served)["framing"] > 0)
        gate.open.set()
        assert statuses(read_to_end(connection)) == [200]  # of the first request
    assert served.get("/images/1").status_code == 200


# -- time


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of time count although the machine may be busy with something else."""
    monkeypatch.setattr("polyvoc.web.connections.STALL", PATIENCE)


def test_silent_connections_and_slow_headers_are_closed(copied_index: Path) -> None:
    with serving(copied_index, workers=1, header_seconds=0.3) as served:
        with connected(served) as silent, connected(served) as slow, connected(served) as partial:
            partial.sendall(HEALTH[:-2])
            received = drip(slow)
            assert statuses(received) == [408] and b"headers of the request did not arrive within 0.3 s" in received
            assert statuses(read_to_end(silent)) == [408]
            assert statuses(read_to_end(partial)) == [408]
        assert rejected(served)["headers"] == 3


def test_slow_headers_of_a_second_request_are_noticed(copied_index: Path) -> None:
    with serving(copied_index, workers=1, header_seconds=0.3) as served:
        for _ in range(100):  # this process may be too slow itself
            with connected(served) as connection:
                if is_healthy(connection):
                    assert statuses(drip(connection)) == [408]
                    return
    raise AssertionError("no first request was served")


def test_a_slow_upload_is_closed(copied_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.web.connections.BODY_GRACE", 0.1)
    with serving(copied_index, workers=1) as served:
        with connected(served) as stopped, connected(served) as slow:
            stopped.sendall(UPLOAD)
            slow.sendall(UPLOAD + PART)
            received = drip(slow)
            assert statuses(received) == [408] and b"less than 10 kilobytes per second" in received
            assert statuses(read_to_end(stopped)) == [408]
        assert rejected(served)["body"] == 2
        with connected(served) as refused_already:
            refused_already.sendall(UPLOAD + b"no form")
            assert len(statuses(drip(refused_already))) == 1  # not 408 after 400: one response to one request


def test_a_request_has_a_deadline(copied_index: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.web.routes.DISCONNECT_SECONDS", 0.01)
    monkeypatch.setattr(Service, "search", gate.before(Service.search))
    with serving(copied_index, workers=1, request_seconds=0.5) as served:
        with connected(served) as first, connected(served) as second:
            for connection in (first, second):
                connection.sendall(f"POST /search?query=1 HTTP/1.1\r\n{HOST}\r\n".encode())
            for connection in (first, second):
                received = read_to_end(connection)
                assert statuses(received) == [503] and b"not done within 0.5 s" in received and b"retry-after" in received
        assert rejected(served)["deadline"] == 2
        wait_until(lambda: served.service.searches.waiting == 0)  # one never starts
        gate.open.set()
        wait_until(lambda: served.service.searches.running == 0)


class Clock:
    """A clock that stands still, and a connection that uses it."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.closed: list[str] = []
        self.shared = Connections(Settings(Path("x"), **settings), self.closed.append, lambda: self.now)

    def connect(self, host: str = "127.0.0.1") -> Any:
        config = uvicorn.Config(Mock(), log_config=None, ws="none", lifespan="off")
        connection = self.shared.protocol(config=config, server_state=ServerState(), app_state={}, _loop=Mock())
        transport = Mock()
        transport.get_extra_info.side_effect = lambda name: (host, 1) if name == "peername" else None
        transport.get_write_buffer_size.return_value = 0
        transport.is_closing.return_value = False
        connection.connection_made(transport)
        return connection

    def sweep(self, seconds: int) -> None:
        """Let time pass while the server looks at it."""
        for _ in range(seconds):
            self.now += 1
            self.shared.sweep()


def test_a_client_that_does_not_read_the_response_is_closed() -> None:
    clock = Clock(request_seconds=30)
    connection = clock.connect()
    connection._is_first = False
    connection.transport.get_write_buffer_size.return_value = 5_000_000
    clock.sweep(29)
    assert not connection.transport.abort.called
    clock.sweep(2)
    assert connection.transport.abort.called and "deadline" in clock.closed


def test_a_server_that_was_blocked_does_not_blame_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.web.connections.STALL", 1.0)
    clock = Clock(header_seconds=5)
    clock.connect()
    clock.now += 60
    clock.shared.sweep()
    assert clock.closed == []
    clock.sweep(1)
    assert clock.closed == ["headers"]


# -- number


def test_connections_of_one_address_are_limited(copied_index: Path) -> None:
    with serving(copied_index, workers=1, max_per_address=3) as served, ExitStack() as opened:
        served.client.close()
        kept = [opened.enter_context(connected(served)) for _ in range(3)]
        with connected(served) as fourth:
            assert statuses(read_to_end(fourth)) == [503]
        with other_client(served) as other:
            assert other.get("/health").status_code == 200
        kept[0].close()
        again = httpx.Client(base_url=served.client.base_url, timeout=PATIENCE)
        wait_until(lambda: _status(again) == 200)
        again.close()


def _status(client: httpx.Client) -> int:
    try:
        return client.get("/health").status_code
    except httpx.TransportError:
        return 0


def test_proxies_are_no_client(copied_index: Path) -> None:
    with serving(copied_index, workers=1, max_per_address=2, forwarded_by=("127.0.0.1",)) as served, ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(connected(served)).sendall(HEALTH)
        assert served.get("/health").status_code == 200
        assert rejected(served)["address"] == 0


def test_idle_connections_make_room_for_others(copied_index: Path) -> None:
    with serving(copied_index, workers=1, max_connections=4, header_seconds=PATIENCE) as served, ExitStack() as opened:
        served.client.close()
        idle = [opened.enter_context(connected(served)) for _ in range(4)]
        with other_client(served) as other:
            assert other.get("/health").status_code == 200
            assert read_to_end(idle[0]) == b""  # the one that has waited longest
            text = other.get("/metrics").text
            assert 'polyvoc_rejected_connections_total{reason="idle"} 1.0' in text and "polyvoc_connections 4.0" in text


def test_busy_connections_do_not(copied_index: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "search", gate.before(Service.search))
    with serving(copied_index, workers=1, max_connections=1) as served:
        served.client.close()
        with connected(served) as busy:
            busy.sendall(f"POST /search?query=1 HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n".encode())
            gate.wait_for()
            with other_client(served) as other:
                assert "too many connections" in refused(other.get("/health"), 503)
            gate.open.set()
            assert statuses(read_to_end(busy)) == [200]


def test_many_silent_connections_do_not_stop_a_server(_session_index: Path) -> None:
    """Not even if it has no descriptors left, and its log stays short."""
    with running(_session_index, "--workers", "1") as server, ExitStack() as opened:
        _, most = resource.prlimit(server.popen.pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{server.popen.pid}/fd").iterdir()))
        resource.prlimit(server.popen.pid, resource.RLIMIT_NOFILE, (used + 5, most))
        url = httpx.URL(server.url)
        for _ in range(60):
            opened.enter_context(socket.create_connection((url.host, url.port)))
        wait_until(lambda: any("out of system resource" in line for line in server.log))
        resource.prlimit(server.popen.pid, resource.RLIMIT_NOFILE, (most, most))
        assert httpx.get(f"{server.url}health", timeout=PATIENCE).status_code == 200
        assert len("".join(server.log)) < 20_000


# -- fair places


@pytest.fixture
def slow_first(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate before searches with image 1; others are not delayed."""
    original = Service.search
    slow = gate.before(original)
    monkeypatch.setattr(Service, "search", lambda self, photo, *rest: (slow if photo == "1" else original)(self, photo, *rest))
    return gate


def test_a_search_does_not_wait_for_the_batches_of_another_client(copied_index: Path, slow_first: Gate) -> None:
    batch = "/search/batch?" + "&".join(["query=1"] * 8)
    with serving(copied_index, workers=2) as served, other_client(served) as other, ThreadPoolExecutor(3) as greedy:
        batches = [greedy.submit(httpx.post, f"{served.client.base_url}{batch[1:]}", timeout=PATIENCE) for _ in range(3)]
        slow_first.wait_for(2)  # on all threads
        for image in (2, 3):
            assert other.post(f"/search?query={image}").status_code == 200
        assert not any(one.done() for one in batches)
        slow_first.open.set()
        assert [len(one.result().json()) for one in batches] == [8, 8, 8]


def test_a_full_queue_is_shared(copied_index: Path, slow_first: Gate) -> None:
    with serving(copied_index, workers=1, queue=2) as served, ThreadPoolExecutor(8) as clients:
        search = f"{served.client.base_url}search?query=1"
        greedy = [clients.submit(httpx.post, search, timeout=PATIENCE) for _ in range(3)]
        with other_client(served) as other, other_client(served, "127.0.0.3") as third:
            slow_first.wait_for()
            wait_until(lambda: served.service.searches.waiting == 2)
            spare = clients.submit(other.post, "/search?query=1")
            slow_first.wait_for()  # in the place for clients without a running search
            late = clients.submit(third.post, "/search?query=2")
            wait_until(lambda: any(one.done() for one in greedy))
            slow_first.open.set()
            assert sorted(one.result().status_code for one in greedy) == [200, 200, 503]
            assert spare.result().status_code == late.result().status_code == 200


def test_slow_uploads_of_one_client_leave_room_for_others(copied_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.web.security.EXTRA_UPLOADS", 0)
    with serving(copied_index, workers=2, queue=4) as served, ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(connected(served)).sendall(UPLOAD)
        photo = {"photo": ("x.jpg", PHOTO)}
        wait_until(lambda: served.search(PHOTO).status_code == 503)
        assert served.search(query=1).status_code == 200  # without an upload
        with other_client(served) as other:
            assert other.post("/search", files=photo).status_code == 200


# -- names of clients


def test_clients_are_addresses_and_networks() -> None:
    settings = Settings(Path("x"), forwarded_by=("127.0.0.1", "::1"))
    assert settings.client("10.0.0.7", "9.9.9.9") == "10.0.0.7"  # no proxy
    assert settings.client("127.0.0.1", "1.1.1.1, 9.9.9.9") == "9.9.9.9"
    assert settings.client("::1", "2001:db8:1:2:3::4") == settings.client("2001:db8:1:2::9") == "2001:db8:1:2::"
    assert settings.client("127.0.0.1", "nonsense") == settings.client("::ffff:127.0.0.1") == "127.0.0.1"
    assert settings.client(None) == "unknown"
    assert settings.is_proxy("::1") and not settings.is_proxy("10.0.0.7") and not settings.is_proxy(None)
    with pytest.raises(OptionError, match="forwarded_by='proxy' should be an IP address"):
        replace(settings, forwarded_by=("proxy",))


def test_all_reasons_are_counted_from_the_start(served: Served) -> None:
    assert set(rejected(served)) == set(REASONS)
