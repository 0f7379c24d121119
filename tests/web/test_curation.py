"""Groups and copies over HTTP: found by jobs, listed in pages, decided on, moved and moved back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from conftest import draw_scene
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.web import curation
from servers import BEARER, TOKEN, Gate, Served, refused, serving, wait_until


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, vocabularies: Any) -> Path:
    """Two photographs with altered copies, an identical file, and two others; indexed, not compared."""
    folder = tmp_path_factory.mktemp("curated")
    photos = folder / "photos"
    photos.mkdir()
    for number in (1, 2, 3, 4):
        draw_scene(number, (420, 300)).save(photos / f"scene{number}.png")
    with Image.open(photos / "scene1.png") as scene:
        scene.resize((294, 210)).save(photos / "scene1-small.jpg", quality=90)
        scene.crop((30, 20, 400, 290)).save(photos / "scene1-crop.jpg", quality=90)
    with Image.open(photos / "scene2.png") as scene:
        scene.save(photos / "scene2-low.jpg", quality=60)
    shutil.copy(photos / "scene3.png", photos / "scene3-again.png")
    with IndexWriter.open(folder / "photos.polyvoc", vocabularies) as writer:
        writer.update([photos])
    return folder


@pytest.fixture
def world(collection: Path, tmp_path: Path) -> Path:
    """A copy of the collection: tests move its files."""
    shutil.copytree(collection, tmp_path / "world")
    with IndexWriter.open(tmp_path / "world" / "photos.polyvoc") as writer:
        writer.remove([collection / "photos"])
        writer.update([tmp_path / "world" / "photos"])
    return tmp_path / "world"


@pytest.fixture
def managed(world: Path) -> Iterator[Served]:
    with serving(world / "photos.polyvoc", write=True) as served:
        yield served


def finish(served: Served, path: str) -> dict[str, Any]:
    """Start a job and wait for its end."""
    assert served.post(path).status_code == 202
    wait_until(lambda: served.get("/job").json()["state"] != "running")
    state = dict(served.get("/job").json())
    assert state["state"] == "done", state
    return state


def names(group: dict[str, Any]) -> set[str]:
    return {group["best"]["name"], *(copy["name"] for copy in group["copies"])}


def test_copies_are_found_decided_on_moved_and_moved_back(managed: Served, world: Path) -> None:
    before = managed.get("/duplicates").json()
    assert (before["compared"], before["not_compared"], before["manage"]) == (False, 8, True)
    assert [names(group) for group in before["groups"]] == [{"scene3.png", "scene3-again.png"}]  # by digest alone
    finish(managed, "/duplicates")
    found = managed.get("/duplicates").json()
    assert (found["compared"], found["not_compared"], found["total"], found["pages"]) == (True, 0, 3, 1)
    by_name = {name: group for group in found["groups"] for name in names(group)}
    assert names(by_name["scene1.png"]) == {"scene1.png", "scene1-small.jpg", "scene1-crop.jpg"}
    assert by_name["scene3.png"]["copies"][0]["kind"] == "identical"
    low = by_name["scene2.png"]
    assert (low["best"]["name"], low["copies"][0]["kind"], low["copies"][0]["verdict"]) == ("scene2.png", "copy", None)
    pages = [managed.get("/duplicates", params={"page": page, "size": 1}).json() for page in range(4)]
    assert [group for page in pages for group in page["groups"]] == found["groups"] and pages[0]["pages"] == 3

    # A verdict lasts: a group that is wholly decided is not shown again, and one that is none falls apart.
    pair = {"first": low["best"]["image"], "second": low["copies"][0]["image"]}
    for verdict, total, hidden in (("copy", 2, 1), ("different", 2, 0), ("none", 3, 0)):
        assert managed.post("/duplicates/verdict", params={**pair, "verdict": verdict}).status_code == 200
        now = managed.get("/duplicates").json()
        assert (now["total"], now["hidden"]) == (total, hidden), verdict
    assert managed.get("/duplicates", params={"decided": True}).json()["total"] == 3

    # Files are moved by the user's choice, not by ours: here the best goes and the copy stays.
    assert "keep one" in refused(managed.post("/duplicates/move", params={"image": list(pair.values())}), 422)
    moved = managed.post("/duplicates/move", params={"image": [pair["first"]]}).json()
    assert not moved["problems"] and Path(moved["folder"]).parent == world / "photos-moved"
    ((origin, target),) = ((one["from"], one["to"]) for one in moved["moved"])
    assert (Path(origin).exists(), Path(target).is_file(), Path(target).name) == (False, True, "scene2.png")
    refused(managed.get(f"/images/{pair['first']}"), 404)
    after = managed.get("/duplicates").json()
    assert (after["total"], after["undoable"]) == (2, 1)
    back = managed.post("/duplicates/undo").json()
    assert back["moved"] == [{"from": target, "to": origin}] and not back["problems"]
    assert Path(origin).is_file() and not Path(target).exists()
    assert managed.get("/images", params={"find": "scene2.png"}).json()["total"] == 1
    assert managed.get("/duplicates").json()["undoable"] == 0
    assert "no move" in refused(managed.post("/duplicates/undo"), 404)


def test_only_files_of_groups_that_are_unchanged_are_moved(managed: Served, world: Path) -> None:
    finish(managed, "/duplicates")
    rows = {row["name"]: row["image"] for row in managed.get("/images").json()["images"]}
    assert "in no group" in refused(managed.post("/duplicates/move", params={"image": [rows["scene4.png"]]}), 422)
    draw_scene(99, (420, 300)).save(world / "photos" / "scene1.png")
    result = managed.post("/duplicates/move", params={"image": [rows["scene1-small.jpg"]]}).json()
    assert not result["moved"] and "has changed since it was indexed" in result["problems"][0]["reason"]
    assert (world / "photos" / "scene1-small.jpg").is_file()


def test_groups_are_the_images_that_links_connect(managed: Served, world: Path) -> None:
    assert managed.get("/groups").json() == {"groups": [], "total": 0, "images": 0, "linked": False, "page": 0, "pages": 0}
    finish(managed, "/groups")
    result = managed.get("/groups").json()
    assert (result["linked"], result["total"], result["images"]) == (True, len(result["groups"]), 7)
    largest = {row["name"] for row in result["groups"][0]["images"]}
    assert largest == {"scene1.png", "scene1-small.jpg", "scene1-crop.jpg"}
    assert all(group["total"] == len(group["images"]) >= 2 and group["links"] >= 1 for group in result["groups"])
    second = managed.get("/groups", params={"page": 1, "size": 1}).json()
    assert second["groups"] == result["groups"][1:2] and second["pages"] == 3
    with Index.open(world / "photos.polyvoc") as index:
        assert index.links is not None and len(index.links.links) == sum(group["links"] for group in result["groups"])


CHANGES = ["/duplicates", "/duplicates/verdict?first=1&second=2&verdict=same", "/duplicates/move?image=1", "/duplicates/undo"]


@pytest.mark.parametrize("path", [*CHANGES, "/groups"])
def test_changes_need_a_server_for_writing(served: Served, path: str) -> None:
    assert "--write" in refused(served.post(path), 403)
    assert "--write" in refused(served.client.delete("/job"), 403)


@pytest.mark.parametrize("path", CHANGES)
def test_files_are_moved_on_a_server_for_this_machine_only(copied_index: Path, path: str) -> None:
    with serving(copied_index, write=True, token=TOKEN, allow_host=("photos.example",)) as served:
        refused(served.post(path), 401)
        assert "for this machine alone" in refused(served.post(path, headers=BEARER), 403)
        assert served.get("/duplicates").json()["manage"] is served.get("/about").json()["manage"] is False


@pytest.mark.parametrize("path", [*CHANGES, "/groups"])
def test_pages_of_other_origins_change_nothing(copied_index: Path, path: str) -> None:
    with serving(copied_index, write=True, cors=("http://evil.example",)) as served:
        refused(served.post(path, headers={"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}), 403)


def test_unknown_images_have_no_verdict(managed: Served) -> None:
    refused(managed.post("/duplicates/verdict", params={"first": 1, "second": 999, "verdict": "copy"}), 404)
    refused(managed.post("/duplicates/verdict", params={"first": 1, "second": 2, "verdict": "perhaps"}), 422)
    assert "image 999" in refused(managed.post("/duplicates/move", params={"image": [999]}), 422)
    assert json.loads(managed.get("/job").text)["state"] == "idle"


def test_searches_and_lists_do_not_wait_for_groups_and_copies(
    managed: Served, world: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are computed anew for each probability that a client names."""
    monkeypatch.setattr(curation, "find_duplicates", gate.before(curation.find_duplicates))
    with ThreadPoolExecutor(6) as clients:
        waiting = [clients.submit(managed.get, "/duplicates", params={"min_probability": 0.5 + n / 100}) for n in range(6)]
        gate.wait_for()
        assert managed.get("/images").json()["total"] == 8
        assert managed.search(world / "photos" / "scene4.png").json()["likely"] >= 1
        gate.open.set()
        assert all(one.result().status_code == 200 for one in waiting)


def test_an_index_that_was_moved_with_its_photographs_is_opened(world: Path, tmp_path: Path) -> None:
    """By the first run: all photographs are recognised as moved, and none is new or unchanged."""
    (world / "photos").rename(tmp_path / "renamed")
    (world / "photos.polyvoc").rename(tmp_path / "renamed.polyvoc")
    with serving(tmp_path / "none.polyvoc", root=(str(tmp_path),), beside=True) as served:
        assert served.post("/setup", params={"folder": str(tmp_path / "renamed")}).status_code == 202
        wait_until(lambda: served.get("/setup").json()["state"] != "running")
        state = served.get("/setup").json()
        assert (state["state"], state["error"], state["photographs"]) == ("done", "", 8)
