"""`polyvoc serve` under 64 clients that search, upload, add, remove and misbehave, over a long time.

    python benchmarks/soak.py PHOTOGRAPHS --work FOLDER [--minutes 60] [--clients 64]

Every client has an address of its own on loopback (127.0.1.N; Linux). Half of them search and browse, a quarter adds and removes
photographs, a quarter misbehaves: slow headers, slow bodies, broken framing, hang-ups, batches of progressive JPEGs, floods of
silent connections, responses that are not read. The server has its default settings and `--write`. A run is a piece: its
counts, and the memory and descriptors over time, are appended to results/soak.json; the plot shows all pieces in a row.
At the end the images of the index must be those that were added and not removed, and `check` must find nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from machine import RESULTS, machine, write_result
from polyvoc.experiments.datasets.readers import list_images
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.plots import save_svg
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter

PLOT = Path(__file__).parent.parent / "docs" / "soak.svg"
RESULT = RESULTS / "soak.json"
IMAGES = 150  # of the index at the start
QUERIES = 24
SAMPLE_SECONDS = 5.0
START_SECONDS = 300.0
TIMEOUT = 400.0  # of a client: longer than the deadline of the server
FLOOD = 300  # silent connections at a time
KEPT = 3  # images that an editor keeps before it removes some
FAILED = {"500", "507"}  # statuses that no client may cause
HOST = "Host: 127.0.0.1\r\n"
FORM = "Content-Type: multipart/form-data; boundary=x\r\n"
BROKEN = (
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "Content-Length: 0\n\r\n",
    "X: y\r\n Content-Length: 3\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
)


def log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@dataclass
class Ledger:
    """What the clients did, shared by them."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind of request, status or how it ended)
    wrong: list[str] = field(default_factory=list)  # responses that are not as they should be
    present: dict[int, str] = field(
        default_factory=dict
    )  # images that were added and not removed, with the names of their files
    doubtful: set[str] = field(default_factory=set)  # added by requests without a response: they may be there or not
    added: int = 0
    removed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, outcome: str) -> None:
        with self.lock:
            self.outcomes[kind, outcome] += 1

    def fail(self, text: str) -> None:
        with self.lock:
            self.wrong.append(text[:300])


# --- clients


class Client:
    """One client: its address, its random numbers, and the photographs that it sends."""

    def __init__(
        self, number: int, address: tuple[str, int], photos: list[bytes], ledger: Ledger, stop: threading.Event
    ) -> None:
        self.own = f"127.0.1.{number + 1}"
        self.address = address
        self.photos = photos
        self.ledger = ledger
        self.stop = stop
        self.draw = random.Random(number)
        self.mine: list[int] = []  # images that it has added
        self.http = self._connect()

    def _connect(self) -> httpx.Client:
        base = "http://{}:{}".format(*self.address)
        return httpx.Client(base_url=base, timeout=TIMEOUT, transport=httpx.HTTPTransport(local_address=self.own))

    def run(self, kinds: list[tuple[int, Callable[[Client], None]]]) -> None:
        """Send requests of some kinds, with these weights, until the end."""
        while not self.stop.is_set():
            (action,) = self.draw.choices([action for _, action in kinds], [weight for weight, _ in kinds])
            try:
                action(self)
            except httpx.TransportError as error:
                self.ledger.count(action.__name__, type(error).__name__)
                self.http.close()
                self.http = self._connect()
            except OSError as error:
                self.ledger.count(action.__name__, type(error).__name__)
            except Exception as error:  # noqa: BLE001 - a client that ends would hide what the server did
                self.ledger.fail(f"{action.__name__}: {error!r}")
        self.http.close()

    def send(self, kind: str, method: str, path: str, **extra: Any) -> httpx.Response:
        """Send a request; wait as told if the server is busy."""
        response = self.http.request(method, path, **extra)
        self.ledger.count(kind, str(response.status_code))
        if str(response.status_code) in FAILED:
            self.ledger.fail(f"{kind}: {response.status_code} {response.text}")
        if response.status_code == 503:
            self.stop.wait(min(5.0, float(response.headers.get("retry-after", 1))))
        return response

    def photo(self) -> bytes:
        return self.draw.choice(self.photos)

    @contextmanager
    def raw(self) -> Iterator[socket.socket]:
        with socket.create_connection(self.address, TIMEOUT, (self.own, 0)) as connection:
            yield connection

    def read(self, kind: str, connection: socket.socket) -> None:
        """Read until the server closes the connection; count the status."""
        received = b""
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                received += part
        self.ledger.count(kind, received.split(b" ", 2)[1].decode() if received.startswith(b"HTTP/") else "closed")
        if received.count(b"HTTP/1.1 ") > 1:
            self.ledger.fail(f"{kind}: more than one response: {received[:200]!r}")

    def drip(self, kind: str, connection: socket.socket, content: bytes) -> None:
        """Send a byte every now and then until the server closes the connection."""
        connection.settimeout(1.0)
        with suppress(ConnectionError):
            while not self.stop.is_set():
                connection.sendall(content)
                with suppress(TimeoutError):
                    if not connection.recv(65536, socket.MSG_PEEK):
                        break
                    break
        connection.settimeout(TIMEOUT)
        if not self.stop.is_set():
            self.read(kind, connection)


def search_by_id(client: Client) -> None:
    image = client.draw.randint(1, IMAGES)
    response = client.send("search by id", "POST", f"/search?query={image}")
    if response.status_code == 200 and response.json()["hits"][0]["image"] != image:
        client.ledger.fail(f"search by id {image}: {response.text[:200]}")


def search_upload(client: Client) -> None:
    client.send("search with an upload", "POST", "/search", files={"photo": ("q.jpg", client.photo())})


def search_stream(client: Client) -> None:
    headers = {"Accept": "application/x-ndjson"}
    image = client.draw.randint(1, IMAGES)
    response = client.send("search in lines", "POST", f"/search?query={image}", headers=headers)
    if response.status_code == 200 and json.loads(response.text.splitlines()[-1])["stage"] != "done":
        client.ledger.fail(f"search in lines: {response.text[-200:]}")


def search_batch(client: Client) -> None:
    files = [("photos", (f"{number}.jpg", client.photo())) for number in range(2)]
    client.send("batch of two", "POST", "/search/batch", files=files)


def store(client: Client) -> None:
    response = client.send("store a query", "POST", "/queries", files={"photo": ("q.jpg", client.photo())})
    if response.status_code == 201:
        name = response.json()["query"]
        client.send("picture of a query", "GET", f"/queries/{name}/picture")
        client.send("search with a stored query", "POST", f"/search?query={name}&region=10,10,300,300")


def browse(client: Client) -> None:
    client.send("list", "GET", f"/images?page={client.draw.randint(0, 5)}")
    for _ in range(4):
        client.send("thumbnail", "GET", f"/images/{client.draw.randint(1, IMAGES)}/thumbnail")
    client.send("explain", "GET", f"/explain?query={client.draw.randint(1, IMAGES)}&image={client.draw.randint(1, IMAGES)}")


def look(client: Client) -> None:
    for path in ("/health", "/metrics", "/about", "/statistics", "/"):
        client.send("state", "GET", path)


def add(client: Client) -> None:
    """Add a photograph under a name and with bytes of its own."""
    name = secrets.token_hex(8)
    with client.ledger.lock:
        client.ledger.doubtful.add(name)
    response = client.send("add", "POST", "/images", files={"photos": (f"{name}.jpg", client.photo() + name.encode())})
    with client.ledger.lock:
        if response.status_code == 201:
            client.ledger.doubtful.discard(name)
            for one in response.json()["added"]:
                client.ledger.present[one["image"]] = one["name"]
                client.mine.append(one["image"])
                client.ledger.added += 1
    if response.status_code == 201 and not response.json()["added"]:
        client.ledger.fail(f"add: {response.text}")


def remove(client: Client) -> None:
    if len(client.mine) < KEPT:
        add(client)
        return
    image = client.mine.pop(client.draw.randrange(len(client.mine)))
    name = client.ledger.present[image]
    with client.ledger.lock:
        client.ledger.doubtful.add(name.split("-")[0])
        del client.ledger.present[image]
    response = client.send("remove", "DELETE", f"/images/{image}")
    with client.ledger.lock:
        if response.status_code == 200:
            client.ledger.doubtful.discard(name.split("-")[0])
            client.ledger.removed += 1
        elif "not done within" not in response.text:
            client.ledger.doubtful.discard(name.split("-")[0])
            client.ledger.present[image] = name
            client.mine.append(image)


# --- misbehaviour


def slow_headers(client: Client) -> None:
    with client.raw() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        client.drip("slow headers", connection, b"y")


def slow_body(client: Client) -> None:
    with client.raw() as connection:
        connection.sendall(f"POST /search HTTP/1.1\r\n{HOST}{FORM}Content-Length: 500000\r\n\r\n--x\r\n".encode())
        client.drip("slow body", connection, b"X")


def broken_framing(client: Client) -> None:
    with client.raw() as connection:
        smuggled = f"DELETE /images/{client.draw.randint(1, IMAGES)} HTTP/1.1\r\n{HOST}\r\n"
        head = f"POST /search?query=1 HTTP/1.1\r\n{HOST}{client.draw.choice(BROKEN)}"
        connection.sendall((head + smuggled).encode())
        client.read("broken framing", connection)
    client.stop.wait(0.2)


def hang_up(client: Client) -> None:
    photo = client.photo()
    with client.raw() as connection:
        path = client.draw.choice(("/search", "/queries"))
        head = f"POST {path} HTTP/1.1\r\n{HOST}{FORM}Content-Length: {len(photo) + 200}\r\n\r\n--x\r\n"
        part = 'Content-Disposition: form-data; name="photo"; filename="a.jpg"\r\n\r\n'
        connection.sendall((head + part).encode() + photo[: client.draw.randint(1, len(photo))])
    with client.raw() as connection:
        connection.sendall(f"POST /search?query={client.draw.randint(1, IMAGES)} HTTP/1.1\r\n{HOST}\r\n".encode())
        client.stop.wait(client.draw.random() / 4)
    client.ledger.count("hang-up", "left")


def greedy_batch(client: Client) -> None:
    files = [("photos", (f"{number}.jpg", client.photos[-1])) for number in range(8)]  # the last one is progressive
    client.send("batch of eight progressive", "POST", "/search/batch", files=files)


def flood(client: Client) -> None:
    """Many silent connections at once; they are left open for a while."""
    opened, refused = 0, 0
    with ExitStack() as connections:
        for _ in range(FLOOD):
            try:
                connections.enter_context(client.raw())
                opened += 1
            except OSError:
                refused += 1
        client.stop.wait(3.0)
    client.ledger.count("silent connections", "opened")


def unread(client: Client) -> None:
    """Send many requests in a row and read nothing."""
    with client.raw() as connection:
        connection.settimeout(1.0)
        with suppress(OSError):
            for _ in range(200):
                connection.sendall(f"GET /images?size=200 HTTP/1.1\r\n{HOST}\r\n".encode())
        client.stop.wait(5.0)
    client.ledger.count("unread responses", "left")


def garbage(client: Client) -> None:
    photo = bytearray(client.photo())
    for _ in range(20):
        photo[client.draw.randrange(len(photo))] = client.draw.randrange(256)
    client.send("damaged photograph", "POST", "/search", files={"photo": ("q.jpg", bytes(photo))})


SEARCHERS = [(10, search_by_id), (4, search_upload), (2, search_stream), (1, search_batch), (2, store), (4, browse), (1, look)]
EDITORS = [(2, add), (2, remove), (1, search_by_id)]
MISBEHAVED = [(2, slow_headers), (2, slow_body), (4, broken_framing), (4, hang_up), (1, greedy_batch), (1, flood), (1, unread),
              (2, garbage)]  # fmt: skip
ROLES = [SEARCHERS, EDITORS, SEARCHERS, MISBEHAVED]  # of every four clients


# --- the server


def make_index(path: Path, photographs: list[Path]) -> None:
    if not path.exists():
        log("indexing")
        with IndexWriter.open(path) as writer:
            writer.update(photographs[:IMAGES])


def small(path: Path, **extra: Any) -> bytes:
    """Return a photograph of 640 pixels: the limits are tried, not the speed of SIFT."""
    out = io.BytesIO()
    image = Image.open(path).convert("RGB")
    image.thumbnail((640, 640))
    image.save(out, "JPEG", quality=85, **extra)
    return out.getvalue()


@contextmanager
def serving(index: Path, output: Path) -> Iterator[tuple[subprocess.Popen[bytes], tuple[str, int]]]:
    """Serve an index in a process of its own."""
    with output.open("wb") as out:
        command = [sys.executable, "-m", "polyvoc", "serve", str(index), "--port", "0", "--write"]
        server = subprocess.Popen(command, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"at http://[^ ]*:(\d+)/", output.read_text())) is None:
            assert server.poll() is None and time.monotonic() < deadline, output.read_text()
            time.sleep(0.2)
        yield server, ("127.0.0.1", int(found[1]))
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def sample(pid: int, began: float, output: Path) -> dict[str, float]:
    """Return megabytes, descriptors and threads of the server, megabytes of its decoders, and bytes of its log."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            children += [int(child) for child in (task / "children").read_text().split()]
    return {
        "seconds": round(time.monotonic() - began, 1),
        "server_mb": resident(pid, "RssAnon"),
        "mapped_mb": resident(pid, "RssFile"),
        "decoders_mb": round(sum(resident(child, "VmRSS") for child in children), 1),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "log_bytes": output.stat().st_size,
    }


def resident(pid: int, name: str) -> float:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1000
    return 0.0


# --- a run


def soak(index: Path, photos: list[bytes], minutes: float, count: int, output: Path) -> dict[str, Any]:
    """Run all clients for some minutes; return what happened."""
    ledger, stop, samples = Ledger(), threading.Event(), []
    with serving(index, output) as (server, address):
        clients = [Client(number, address, photos, ledger, stop) for number in range(count)]
        threads = [
            threading.Thread(target=client.run, args=[ROLES[number % len(ROLES)]]) for number, client in enumerate(clients)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        while time.monotonic() - began < 60 * minutes and server.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            samples.append(sample(server.pid, began, output))
            if len(samples) % 12 == 0:
                log(f"{sum(ledger.outcomes.values())} requests, {samples[-1]}, wrong: {len(ledger.wrong)}")
        stop.set()
        for thread in threads:
            thread.join()
        alive = server.poll() is None
        listed = list_added(address) if alive else {}
        metrics = httpx.get("http://{}:{}/metrics".format(*address)).text if alive else ""
        server.send_signal(signal.SIGTERM)
        code = server.wait(120)
    return {
        "minutes": round((samples[-1]["seconds"] if samples else 0) / 60, 2),
        "clients": count,
        "requests": sum(ledger.outcomes.values()),
        "outcomes": by_kind(ledger.outcomes),
        "rejected_connections": {
            reason: int(float(number))
            for reason, number in re.findall(r'rejected_connections_total\{reason="(\w+)"\} (\S+)', metrics)
        },
        "added": ledger.added,
        "removed": ledger.removed,
        "inconsistent": inconsistent(ledger, listed),
        "wrong": ledger.wrong,
        "exit_code": code,
        "tracebacks": output.read_text(errors="replace").count("Traceback"),
        "damage": [str(one) for one in check(index)],
        "samples": samples,
    }


def by_kind(outcomes: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    kinds: dict[str, dict[str, int]] = {}
    for (kind, outcome), number in sorted(outcomes.items()):
        kinds.setdefault(kind, {})[outcome] = number
    return kinds


def list_added(address: tuple[str, int]) -> dict[int, str]:
    """Return all images of the index beyond those of the start, with the names of their files."""
    found: dict[int, str] = {}
    with httpx.Client(base_url="http://{}:{}".format(*address), timeout=TIMEOUT) as client:
        page, pages = 0, 1
        while page < pages:
            answer = client.get("/images", params={"page": page, "size": 200}).json()
            found |= {row["image"]: row["name"] for row in answer["images"]}
            page, pages = page + 1, answer["pages"]
    return found


def inconsistent(ledger: Ledger, listed: dict[int, str]) -> list[str]:
    """Return every image that is missing, and every one that nobody has added or that was removed."""
    missing = [f"original image {image} is missing" for image in range(1, IMAGES + 1) if image not in listed]
    missing += [f"added image {image} is missing" for image in ledger.present if image not in listed]
    extra = {image: name for image, name in listed.items() if image > IMAGES and image not in ledger.present}
    return missing + [f"image {image} is listed" for image, name in extra.items() if name.split("-")[0] not in ledger.doubtful]


# --- the result


def plot(pieces: list[dict[str, Any]]) -> Figure:
    """Memory and descriptors over time, all pieces in a row."""
    rows, before = [], 0.0
    for piece in pieces:
        rows += [{**one, "minutes": before + one["seconds"] / 60} for one in piece["samples"]]
        before = rows[-1]["minutes"]
    minutes = [row["minutes"] for row in rows]

    def series(name: str, key: str) -> Series:
        return Series(name, minutes, [row[key] for row in rows])

    return Figure(
        "A server under 64 clients",
        [
            Panel("minutes", "MB", [series("server", "server_mb"), series("its decoders", "decoders_mb")], "Memory"),
            Panel("minutes", "number", [series("descriptors", "descriptors"), series("threads", "threads")], "Descriptors and threads"),
        ],
        f"{len(pieces)} piece{'s' * (len(pieces) > 1)} in a row, each with a new server.",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--try", dest="trial", action="store_true", help="print the result, and append nothing")
    arguments = parser.parse_args()
    files = [Path(path) for path in list_images(arguments.photographs)]
    arguments.work.mkdir(parents=True, exist_ok=True)
    original, index = arguments.work / "original.polyvoc", arguments.work / "soak.polyvoc"
    make_index(original, files)
    shutil.rmtree(index, ignore_errors=True)
    shutil.rmtree(arguments.work / "soak-added", ignore_errors=True)
    shutil.copytree(original, index)
    photos = [small(path) for path in files[IMAGES : IMAGES + QUERIES]]
    photos.append(small(files[0], progressive=True))
    piece = soak(index, photos, arguments.minutes, arguments.clients, arguments.work / "serve.log")
    log(json.dumps({key: value for key, value in piece.items() if key != "samples"}, indent=1))
    if not arguments.trial:
        before = json.loads(RESULT.read_text())["pieces"] if RESULT.exists() else []
        pieces = [*before, {**piece, "machine": machine()}]
        write_result("soak", {"pieces": pieces})
        save_svg(plot(pieces), PLOT)
    passed = piece["exit_code"] == 0 and not (piece["wrong"] or piece["inconsistent"] or piece["damage"] or piece["tracebacks"])
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
