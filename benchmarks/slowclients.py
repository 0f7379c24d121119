"""What an ordinary client waits for while another one is slow or greedy: `polyvoc serve` with its default settings.

    python benchmarks/slowclients.py PHOTOGRAPHS --work FOLDER

The attacks, each from one address of loopback, and the searches beside them, from another: 1,100 silent connections; 98 uploads of
a byte per second; two batches of eight progressive JPEGs of many scans. Seconds are of searches by id, one after the other.
"""

from __future__ import annotations

import argparse
import io
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from machine import write_result
from polyvoc.experiments.datasets.readers import list_images
from soak import FORM, HOST, TIMEOUT, log, make_index, serving

SILENT, SLOW = 1100, 98
SEARCHES = 20
GREEDY, ORDINARY = "127.0.2.1", "127.0.2.2"
SIDE = 6000  # pixels of a progressive JPEG


def progressive(path: Path) -> bytes:
    """Return a large progressive JPEG, which takes long to decode."""
    out = io.BytesIO()
    Image.open(path).convert("RGB").resize((SIDE, SIDE)).save(out, "JPEG", quality=95, progressive=True)
    return out.getvalue()


def search(address: tuple[str, int], count: int) -> dict[str, Any]:
    """Search so many times; return the statuses and the seconds."""
    statuses: Counter[str] = Counter()
    seconds = []
    with client(address, ORDINARY) as ordinary:
        for number in range(count):
            begin = time.perf_counter()
            try:
                statuses[str(ordinary.post(f"/search?query={number + 1}").status_code)] += 1
            except httpx.TransportError as error:
                statuses[type(error).__name__] += 1
            seconds.append(round(time.perf_counter() - begin, 3))
    return {"statuses": dict(statuses), "seconds": seconds, "longest": max(seconds)}


def client(address: tuple[str, int], own: str) -> httpx.Client:
    base = "http://{}:{}".format(*address)
    return httpx.Client(base_url=base, timeout=TIMEOUT, transport=httpx.HTTPTransport(local_address=own))


@contextmanager
def silent(address: tuple[str, int], _: bytes) -> Iterator[None]:
    with ExitStack() as opened:
        for _ in range(SILENT):
            opened.enter_context(socket.create_connection(address, TIMEOUT, (GREEDY, 0)))
        yield


@contextmanager
def slow_uploads(address: tuple[str, int], _: bytes) -> Iterator[None]:
    stop = threading.Event()

    def upload() -> None:
        while not stop.is_set():  # again if it was rejected
            with suppress(OSError), socket.create_connection(address, TIMEOUT, (GREEDY, 0)) as connection:
                connection.sendall(f"POST /search HTTP/1.1\r\n{HOST}{FORM}Content-Length: 500000\r\n\r\n--x\r\n".encode())
                while not stop.wait(1.0):
                    connection.sendall(b"X")

    with _threads([upload] * SLOW, stop):
        yield


@contextmanager
def greedy_batches(address: tuple[str, int], photo: bytes) -> Iterator[None]:
    stop = threading.Event()

    def batches() -> None:
        files = [("photos", (f"{number}.jpg", photo)) for number in range(8)]
        with client(address, GREEDY) as greedy:
            while not stop.is_set():
                with suppress(httpx.TransportError):
                    greedy.post("/search/batch", files=files)

    with _threads([batches] * 2, stop):
        yield


@contextmanager
def _threads(targets: list[Callable[[], None]], stop: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    time.sleep(3.0)  # the attack has begun
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


ATTACKS = {"silent connections": silent, "slow uploads": slow_uploads, "batches of progressive JPEGs": greedy_batches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    files = [Path(path) for path in list_images(arguments.photographs)]
    arguments.work.mkdir(parents=True, exist_ok=True)
    index, photo = arguments.work / "original.polyvoc", progressive(files[0])
    make_index(index, files)
    result: dict[str, Any] = {"searches": SEARCHES, "silent": SILENT, "slow": SLOW, "photo_bytes": len(photo)}
    output = arguments.work / "slowclients.log"
    with serving(index, output) as (_, address):
        search(address, SEARCHES)  # compiles
        result["alone"] = search(address, SEARCHES)
        for name, attack in ATTACKS.items():
            before = output.stat().st_size
            with attack(address, photo):
                result[name] = search(address, SEARCHES)
            result[name]["log_bytes"] = output.stat().st_size - before
            log(f"{name}: {result[name]}")
    print(write_result("slowclients", result))


if __name__ == "__main__":
    main()
