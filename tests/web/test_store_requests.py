"""A store that is silent costs those who ask it a few seconds, and nobody else anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from polyvoc.errors import ImageError, UnreachableError
from polyvoc.features.decode import read_rgb
from polyvoc.index.writer import IndexWriter
from polyvoc.vocabulary.vocabulary import Vocabulary
from polyvoc.web import pool
from polyvoc.web.pool import StoreRequests
from samples import unflushed  # noqa: F401
from servers import PATIENCE, refused, serving

URL = "https://host/a.jpg?signature"


@pytest.fixture
def awake() -> Iterator[threading.Event]:
    """Set at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def hold(awake: threading.Event) -> int:
    assert awake.wait(PATIENCE)
    return 3


def test_answers_and_failures_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"abc")
    asking = StoreRequests(1, PATIENCE)
    for _ in range(3):  # one at a time may ask
        assert asking.read(f"file://{tmp_path}/a.jpg") == b"abc"
        with pytest.raises(ImageError, match="no such file"):
            asking.read(f"file://{tmp_path}/b.jpg")
        with pytest.raises(ZeroDivisionError):
            asking.run(URL, lambda: 1 // 0)


def test_who_asks_a_silent_store_is_told_so(awake: threading.Event) -> None:
    asking = StoreRequests(2, 0.01)
    for _ in range(2):
        with pytest.raises(UnreachableError) as caught:
            asking.run(URL, lambda: hold(awake))
        assert str(caught.value) == "https://host/a.jpg?...: its store has not answered within 0.01 s; try again later"
    began = []
    with pytest.raises(UnreachableError, match="too many questions to stores have no answer yet; try again later"):
        asking.run(URL, lambda: began.append(1))
    assert began == []


def test_a_store_that_wakes_up_is_asked_again(awake: threading.Event) -> None:
    asking = StoreRequests(1, 0.01)
    left: list[threading.Thread] = []

    def question() -> int:
        left.append(threading.current_thread())
        return hold(awake)

    with pytest.raises(UnreachableError):
        asking.run(URL, question)
    awake.set()
    left[0].join(PATIENCE)
    asking._seconds = PATIENCE
    assert asking.run(URL, question) == 3


def test_large_files_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").write_bytes(bytes(101))
    monkeypatch.setattr("polyvoc.web.pool.MAX_BYTES", 100)
    with pytest.raises(ImageError, match="101 bytes, the limit is 100"):
        StoreRequests(1, PATIENCE).read(f"file://{tmp_path}/a.jpg")


# --- the server ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path, photographs: Path, vocabularies: tuple[Vocabulary, ...]) -> Path:
    with IndexWriter.open(tmp_path / "index", vocabularies) as writer:
        writer.update([f"file://{photographs}/{name}-a.jpg" for name in ("bridge", "tower", "wall")])
    return tmp_path / "index"


def silenced(monkeypatch: pytest.MonkeyPatch, name: str, awake: threading.Event) -> None:
    """Let a function of stores wait until they are awake."""
    original: Callable[..., Any] = getattr(pool, name)
    monkeypatch.setattr(pool, name, lambda *given: (hold(awake), original(*given))[1])


@pytest.mark.parametrize("function", ["file_state", "read_url"])
def test_a_silent_store(
    function: str, index: Path, photographs: Path, awake: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    silenced(monkeypatch, function, awake)
    with serving(index, originals=True, workers=1) as served:
        served.service.errands._seconds = 0.05
        for path in ("/images/1/thumbnail", "/images/1/file"):
            answer = served.get(path)
            assert "its store has not answered within 0.05 s" in refused(answer, 503)
            assert int(answer.headers["retry-after"]) > 0
        assert "has not answered" in refused(served.search(query=1, assignments=2), 503)
        assert served.search(query=1).json()["hits"][0]["image"] == 1  # by what is stored of it
        assert served.get("/images/1").json()["available"] is (function == "read")
        assert served.get("/images").json()["total"] == 3
        awake.set()
        served.service.errands._seconds = PATIENCE
        assert read_rgb(served.get("/images/1/thumbnail").content, 320).shape == (240, 320, 3)
        assert served.get("/images/1/file").content == (photographs / "bridge-a.jpg").read_bytes()
        assert served.search(query=1, assignments=2).json()["hits"][0]["image"] == 1


def test_a_silent_store_keeps_nobody_else_waiting(index: Path, awake: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads for pictures wait for it, and more requests for them."""
    silenced(monkeypatch, "read", awake)
    with serving(index, workers=1, decode_seconds=PATIENCE) as served, ThreadPoolExecutor(4) as browsers:
        waiting = [browsers.submit(served.get, f"/images/{image}/thumbnail") for image in (1, 2, 3, 1)]
        while served.service.pictures.running < 2 or served.service.pictures.waiting < 2:
            assert not any(one.done() for one in waiting)
            time.sleep(0.01)
        assert served.get("/images").json()["total"] == 3
        assert served.get("/about").json()["images"] == 3
        awake.set()
        assert [one.result().status_code for one in waiting] == [200] * 4
