"""Photographs that come and go while an index is served: nothing is lost, nothing is left behind."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from test_web_server import wait_until

from conftest import draw_scene
from polyvoc.index.writer import IndexWriter
from servers import PATIENCE, Served, jpeg, refused, serving

PHOTO = jpeg(draw_scene(91, (300, 220)))


def send(served: Served, name: str = "x.jpg") -> Any:
    return served.client.post("/images", files={"photos": (name, PHOTO)})


def kept(served: Served) -> list[str]:
    folder = served.service.settings.kept_photographs
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("photos", [None, Path("somewhere/else")])
def test_a_relative_path_is_as_good_as_any(index_path: Path, photos: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    (index_path.parent / "here").mkdir()
    monkeypatch.chdir(index_path.parent / "here")
    with serving(Path("..") / index_path.name, write=True, photos=photos, workers=1) as served:
        (added,) = send(served).json()["added"]
        assert added["path"] == os.path.abspath(added["path"]) and Path(added["path"]).exists()
        assert served.get(f"/images/{added['image']}/thumbnail").status_code == 200


def test_who_leaves_while_adding_still_adds(index_path: Path) -> None:
    with serving(index_path, write=True, workers=1) as served:
        before = served.get("/health").json()["images"]
        request = served.client.build_request("POST", "/images", files={"photos": ("x.jpg", PHOTO)})
        head = f"POST /images HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {request.headers['content-type']}\r\n"
        body = request.read()
        with socket.create_connection(served.address[:2], timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: served.get("/health").json()["images"] == before + 1)
        assert len(kept(served)) == 1


def test_what_cannot_be_indexed_is_not_kept(index_path: Path) -> None:
    with serving(index_path, write=True, workers=1) as served:
        with IndexWriter.open(index_path):
            refused(send(served), 503)
        assert kept(served) == []
        assert send(served).status_code == 201
        with IndexWriter.open(index_path):
            refused(send(served), 503)
        assert len(kept(served)) == 1  # it was there before


def test_an_index_made_anew_at_its_place_is_noticed(index_path: Path, photographs: Path, vocabularies: Any) -> None:
    """What is served then is the new one, also its pictures."""
    with serving(index_path, write=True, workers=1) as served:
        old = served.get("/images/1/thumbnail").content
        shutil.rmtree(index_path)
        with IndexWriter.open(index_path, vocabularies[:1]) as writer:
            writer.update([photographs / "wall-b.jpg"])
        wait_until(lambda: served.get("/health").json()["images"] == 1)
        assert served.get("/about").json()["vocabularies"] == 1
        assert served.get("/images/1").json()["name"] == "wall-b.jpg"
        assert served.get("/images/1/thumbnail").content != old
        assert served.search(photographs / "wall-a.jpg").status_code == 200
