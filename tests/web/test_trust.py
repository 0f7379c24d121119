"""A server fetches and shows only what this user allows, whatever paths and addresses its index names."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import answer
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.storage.trust import note_roots
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from servers import refused, serving
from strangers import opened_files

requests: list[str] = []


class Private(http.server.BaseHTTPRequestHandler):
    """A server that only this machine reaches."""

    def do_GET(self) -> None:
        requests.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"secret")

    do_HEAD = do_GET

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def private() -> Iterator[str]:
    requests.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Private)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_index_of_a_stranger(
    index_path: Path, photographs: Path, private: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    pytest.importorskip("aiohttp")
    with Index.open(index_path) as index, IndexWriter.open(index_path) as writer:
        address = writer.add(f"{private}/latest/meta-data", index.features(photographs / "wall-a.jpg"))
        passwords = writer.add("/etc/passwd", index.features(photographs / "wall-a.jpg"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    with serving(index_path, originals=True) as served, opened_files(photographs) as opened:
        assert "polyvoc trust " in caplog.text and str(photographs) in caplog.text, "the log names the next step"
        for image in (1, address, passwords):
            for path in (f"/images/{image}/thumbnail", f"/images/{image}/file"):
                assert "may not read" in refused(served.get(path), 403)
            assert served.get(f"/images/{image}").json()["available"] is False
            several = served.post("/search", params={"query": image, "merge": "bayes", "assignments": 2})
            assert "may not read" in refused(several, 403)
        found = served.post("/search", params={"query": 1}).json()["hits"]
        assert found[0]["image"] == 1, "a search reads no photograph"
        assert (requests, opened) == ([], [])
        answer("trust", photographs, "--index", index_path)
        assert served.get("/images/1/thumbnail").status_code == 200, "without a restart"
        assert served.get("/images/1/file").content == (photographs / "bridge-a.jpg").read_bytes()
        refused(served.get(f"/images/{passwords}/file"), 403)
        refused(served.get(f"/images/{address}/file"), 403)
    assert requests == []


def test_added_photographs_are_those_of_the_server(
    index_path: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    with serving(index_path, write=True) as served:
        (added,) = served.add((photographs / "wall-a.jpg").read_bytes(), "mine.jpg").json()["added"]
        assert served.get(f"/images/{added['image']}/thumbnail").status_code == 200
        refused(served.get("/images/1/thumbnail"), 403)
    assert answer("trust", "--index", index_path)["allowed"] == [str(index_path.with_name("photos-added"))]


def test_a_note_for_another_index_allows_nothing(
    index_path: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    note_roots("0" * 32, tmp_path, [str(photographs)])
    with serving(index_path) as served:
        refused(served.get("/images/1/thumbnail"), 403)


def test_an_index_of_a_stranger_beside_an_own_one(
    photographs: Path, fine: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the own index may have read is no permission for what the other one alone names."""
    folder = tmp_path / "mine"
    folder.mkdir()
    names = ("tower-a.jpg", "wall-a.jpg")
    for name in names:
        shutil.copy(photographs / name, folder)
    own, other = (tmp_path / name for name in ("own.polyvoc", "strange.polyvoc"))
    for path, files in ((own, [folder / names[0]]), (other, [folder])):
        with IndexWriter.open(path, VocabularySet((), fine)) as writer:
            writer.update(files)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    answer("trust", folder, "--index", own)
    with serving(other, others=(own,), originals=True) as served, opened_files(folder) as opened:
        rows = {row["name"]: row["image"] for row in served.get("/images").json()["images"]}
        assert rows.keys() == set(names)
        for path in (f"/images/{rows[names[1]]}/thumbnail", f"/images/{rows[names[1]]}/file"):
            assert "may not read" in refused(served.get(path), 403)
        assert names[1] in served.search(query=rows[names[1]]).json()["error"], (
            "the own index lacks it, and its file is not read"
        )
        assert opened == []
        assert served.get(f"/images/{rows[names[0]]}/thumbnail").status_code == 200
        assert served.search(query=rows[names[0]]).status_code == 200
