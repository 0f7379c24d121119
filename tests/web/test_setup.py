"""The first run: a server without an index lists folders below its roots, indexes one, and goes on to search."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import draw_scene
from polyvoc.errors import NotAllowedError, NotAnIndexError, OptionError
from polyvoc.index.build import LocalWorkers
from polyvoc.web import setup
from polyvoc.web.jobs import Cancelled, JobResult, Jobs
from polyvoc.web.settings import Settings
from polyvoc.web.setup import FolderChooser
from servers import BEARER, TOKEN, Gate, Served, refused, serving, wait_until


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with photographs, other folders, and links that lead out of it."""
    home = tmp_path / "home"
    for name in ("pictures/trip", "documents", ".hidden/secret", "old.polyvoc", "Ünï ☃"):
        (home / name).mkdir(parents=True)
    for number, name in enumerate(("a.jpg", "b.jpg", "trip/c.jpg")):
        draw_scene(number, (240, 180)).save(home / "pictures" / name)
    (home / "pictures" / "broken.jpg").write_bytes(b"no photograph")
    (tmp_path / "outside" / "private").mkdir(parents=True)
    draw_scene(9, (240, 180)).save(tmp_path / "outside" / "x.jpg")
    (home / "link").symlink_to(tmp_path / "outside")
    return home


@pytest.fixture
def first(home: Path, tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "none.polyvoc", root=(str(home),), beside=True) as served:
        yield served


def wait_for_end(served: Served) -> dict[str, Any]:
    wait_until(lambda: served.get("/setup").json()["state"] not in ("idle", "running"))
    return dict(served.get("/setup").json())


def test_folder_is_chosen_indexed_and_searched(first: Served, home: Path) -> None:
    about = first.get("/about").json()
    assert about["setup"] is True
    for path in ("/health", "/images", "/statistics"):
        assert "choose a folder" in refused(first.get(path), 409)
    assert first.get("/").status_code == first.get("/metrics").status_code == 200
    assert first.get("/setup").json()["state"] == "idle"
    listing = first.get("/setup/folders").json()
    assert [entry["name"] for entry in listing["folders"]] == ["documents", "pictures", "Ünï ☃"]
    assert (listing["path"], listing["parent"], listing["photographs"]) == (str(home), None, 0)
    pictures = first.get("/setup/folders", params={"path": listing["folders"][1]["path"]}).json()
    assert (pictures["index"], pictures["indexed"]) == (str(home / "pictures.polyvoc"), False)
    assert (pictures["parent"], pictures["photographs"]) == (str(home), 3)
    started = first.post("/setup", params={"folder": pictures["path"]})
    assert started.status_code == 202 and started.json()["state"] == "running"
    ended = wait_for_end(first)
    assert (ended["state"], ended["error"], ended["n_problems"]) == ("done", "", 1)
    assert "broken.jpg" in ended["problems"][0]["path"]
    assert (home / "pictures.polyvoc" / "catalogue.sqlite").is_file()
    assert first.get("/about").json()["images"] == 3
    assert first.search(home / "pictures" / "a.jpg").json()["hits"][0]["path"] == str(home / "pictures" / "a.jpg")
    assert first.get("/images/1/thumbnail").status_code == 200
    refused(first.post("/setup", params={"folder": pictures["path"]}), 409)  # there is an index now


@pytest.mark.parametrize(
    "folder",
    [
        "{home}/../outside", "{home}/link", "{home}/link/private", "{home}/pictures/../../outside", "{home}/.hidden", "/",
        "{home}/.hidden/secret", "{home}/old.polyvoc", "{home}/nowhere", "{home}-elsewhere", "{home}/pictures/a.jpg",
        "../outside", "pictures",
    ],
)  # fmt: skip
def test_nothing_outside_of_the_roots_can_be_chosen(home: Path, folder: str) -> None:
    """Neither by "..", nor by a link; and what is outside looks the same whether it exists or not."""
    chooser = FolderChooser([home])
    with pytest.raises(NotAllowedError, match="--root"):
        chooser.require(folder.format(home=home))


def test_refusals_do_not_tell_what_exists(first: Served, home: Path) -> None:
    lines = {
        refused(first.get("/setup/folders", params={"path": path}), 403)
        for path in ("/etc", "/nonexistent", str(home / "link"), str(home / ".hidden"))
    }
    assert len(lines) == 1
    refused(first.post("/setup", params={"folder": str(home / "link")}), 403)
    assert not (home / "link.polyvoc").exists() and first.get("/setup").json()["state"] == "idle"
    assert "\\0" not in refused(first.get("/setup/folders", params={"path": f"{home}\0"}), 403)


def test_roots_that_are_links_and_several_roots(home: Path, tmp_path: Path) -> None:
    (tmp_path / "also").symlink_to(home / "pictures")
    chooser = FolderChooser([tmp_path / "also", home / "documents"])
    assert [entry["path"] for entry in chooser.list_folders("")["folders"]] == [str(home / "pictures"), str(home / "documents")]
    assert chooser.list_folders(str(tmp_path / "also"))["parent"] == ""
    assert chooser.list_folders(str(home / "pictures" / "trip"))["parent"] == str(home / "pictures")
    with pytest.raises(OptionError, match="--root"):
        FolderChooser([tmp_path / "missing"])


def test_failures_are_one_line_and_another_folder_may_be_chosen(first: Served, home: Path) -> None:
    first.post("/setup", params={"folder": str(home / "documents")})
    ended = wait_for_end(first)
    assert ended["state"] == "failed" and "holds no photographs; choose another folder" in ended["error"]
    assert not (home / "documents.polyvoc").exists()
    shutil.copy(home / "pictures" / "broken.jpg", home / "documents")
    first.post("/setup", params={"folder": str(home / "documents")})
    assert "can be used" in wait_for_end(first)["error"]
    first.post("/setup", params={"folder": str(home / "pictures" / "trip")})
    assert wait_for_end(first)["state"] == "done"
    assert first.get("/health").json()["images"] == 1


def test_cancelled_indexing_is_continued(home: Path, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "given.polyvoc"  # not beside the folder: the server was started with a place
    monkeypatch.setattr(LocalWorkers, "work", gate.before(LocalWorkers.work))
    with serving(place, root=(str(home),)) as served:
        served.post("/setup", params={"folder": str(home / "pictures")})
        gate.wait_for()
        assert "still running" in refused(served.post("/setup", params={"folder": str(home / "pictures")}), 422)
        assert served.client.delete("/setup").status_code == 200
        gate.open.set()
        assert wait_for_end(served)["state"] == "cancelled"
        refused(served.get("/images"), 409)
        served.post("/setup", params={"folder": str(home / "pictures")})
        assert wait_for_end(served)["state"] == "done"
        assert served.get("/health").json()["images"] == 3
    assert place.is_dir() and not (home / "pictures.polyvoc").exists()


def test_a_folder_that_becomes_a_link_is_not_followed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require = FolderChooser.require

    def replaced(self: FolderChooser, folder: str) -> str:
        path = require(self, folder)
        os.rename(path, f"{path}-before")
        os.symlink(tmp_path / "outside", path)
        return path

    monkeypatch.setattr(setup.FolderChooser, "require", replaced)
    with serving(tmp_path / "none.polyvoc", root=(str(home),)) as served:
        served.post("/setup", params={"folder": str(home / "pictures")})
        assert "replaced" in wait_for_end(served)["error"]


OTHER = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}


def test_pages_of_other_origins_may_not_list_or_index(home: Path, tmp_path: Path) -> None:
    """Not even those that are allowed to search."""
    with serving(tmp_path / "none.polyvoc", root=(str(home),), cors=("http://evil.example",)) as served:
        for method, path in (("GET", "/setup"), ("GET", "/setup/folders"), ("POST", "/setup?folder=/x"), ("DELETE", "/setup")):
            refused(served.client.request(method, path, headers=OTHER), 403)
        status, _ = served.raw_get("/setup/folders", "evil.example")
        assert status == 421


def test_with_a_token_even_the_names_of_folders_need_it(home: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "none.polyvoc", root=(str(home),), token=TOKEN) as served:
        for method, path in (("GET", "/setup"), ("GET", "/setup/folders"), ("POST", "/setup?folder=/x"), ("DELETE", "/setup")):
            refused(served.client.request(method, path), 401)
            assert served.client.request(method, path, headers=BEARER).status_code in (200, 403)


PUBLIC = [{"host": "0.0.0.0"}, {"allow_host": ("photos.example",)}, {"forwarded_by": ("127.0.0.1",)}]


@pytest.mark.parametrize("public", PUBLIC, ids=lambda one: next(iter(one)))
def test_only_a_server_for_this_machine_begins_without_an_index(tmp_path: Path, public: dict[str, Any]) -> None:
    index = tmp_path / "none.polyvoc"
    assert Settings(index).sets_up and not Settings(index, **public).sets_up
    (tmp_path / "file").write_text("")
    assert not Settings(tmp_path / "file").sets_up, "what is there may be a damaged index"
    with pytest.raises(NotAnIndexError), serving(index, **public):
        pass


def test_server_with_an_index_has_nothing_to_choose(served: Served) -> None:
    for method, path in (("GET", "/setup"), ("GET", "/setup/folders"), ("POST", "/setup?folder=/"), ("DELETE", "/setup")):
        assert "has an index" in refused(served.client.request(method, path), 409)


def test_jobs_report_unexpected_errors_and_can_be_cancelled(gate: Gate) -> None:
    jobs = Jobs()

    def fail(progress: Any) -> JobResult:
        progress("failing", 1, 2)
        raise RuntimeError("secret")

    jobs.start("job", "stage", fail)
    wait_until(lambda: jobs.state()["state"] == "failed")
    assert "RuntimeError" in jobs.state()["error"] and "secret" not in jobs.state()["error"]
    assert (jobs.state()["stage"], jobs.state()["done"], jobs.state()["total"]) == ("failing", 1, 2)

    def loop(progress: Any) -> JobResult:
        gate.before(lambda: None)()
        progress("on", 0, 0)
        raise AssertionError("it goes on")

    jobs.start("job", "stage", loop)
    gate.wait_for()
    jobs.cancel()
    gate.open.set()
    wait_until(lambda: jobs.state()["state"] == "cancelled")
    assert issubclass(Cancelled, KeyboardInterrupt), "indexing keeps what was read"
    jobs.close()
