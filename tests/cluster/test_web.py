"""The page and the HTTP interface of an index on a cluster: the same responses, and what is missing while machines fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import browsers
from clusters import Nodes, impatient, quiet, ray, shards_of, wait_until
from conftest import SCENES
from polyvoc.index.writer import IndexWriter
from servers import BEARER, TOKEN, Served, refused, serving, upload

pytestmark = quiet
FLAGS: list[dict[str, Any]] = [{}, {"preset": "fast"}, {"preset": "best"}, {"merge": "posterior"}, {"preset": "paper"}]


@pytest.fixture
def index(photographs: Path, tmp_path: Path) -> Path:
    """An index of several segments."""
    path = tmp_path / "photos.polyvoc"
    with IndexWriter.open(path) as writer:
        for scene in SCENES:
            writer.update(sorted(photographs.glob(f"{scene}-*.jpg")))
    return path


def without_seconds(result: dict[str, Any]) -> dict[str, Any]:
    assert result.pop("seconds")
    return result


def lose(served: Served, shard: int) -> None:
    """End the actors of a shard, without a restart."""
    for replica in shards_of(served.service.index).replicas.shards[shard]:
        ray.kill(replica.actor)
    wait_until(lambda: not served.search(query="1").json().get("complete"))


def test_responses_are_those_of_one_machine(nodes: Nodes, index: Path, photographs: Path) -> None:
    with serving(index) as local, serving(index, cluster=nodes.options(2)) as remote:
        for flags in FLAGS:
            for photo, query in ((photographs / "wall-b.jpg", {}), (None, {"query": "3"}), (None, {"query": "5"})):
                one, other = (served.search(photo, **query, **flags).json() for served in (remote, local))
                assert without_seconds(one) == without_seconds(other) and one["complete"]
        for path in (
            "/explain?query=2&image=3",
            "/explain?query=2&image=3&merge=b1",
            "/statistics",
            "/images",
            "/images/4/thumbnail",
            "/health",
        ):
            one, other = remote.get(path), local.get(path)
            assert one.status_code == other.status_code == 200 and one.content == other.content


def test_photographs_are_added_and_removed(nodes: Nodes, index: Path, photographs: Path) -> None:
    with serving(index, cluster=nodes.options(2), write=True, token=TOKEN) as remote:
        photo = photographs / "wall-b.jpg"
        before = remote.get("/health").json()["images"]
        copy = ("copy.jpg", photo.read_bytes() + b" ")  # the same pixels, another file
        (added,) = remote.client.post("/images", files={"photos": copy}, headers=BEARER).json()["added"]
        hits = remote.search(photo, top=3).json()["hits"]
        assert added["image"] in [hit["image"] for hit in hits]
        assert remote.client.delete(f"/images/{added['image']}", headers=BEARER).status_code == 200
        assert added["image"] not in [hit["image"] for hit in remote.search(photo).json()["hits"]]
        assert remote.get("/health").json()["images"] == before


def test_a_result_lists_missing_images_or_fails(nodes: Nodes, index: Path, photographs: Path) -> None:
    with serving(index, cluster=nodes.options(2)) as remote:
        ids = {row["image"] for row in remote.get("/images").json()["images"]}
        lose(remote, 0)
        result = remote.search(photographs / "wall-b.jpg", top=100).json()
        missing = {image for first, last in result["missing"] for image in range(first, last + 1)}
        assert missing and missing < ids and not missing & {hit["image"] for hit in result["hits"]}
        held = str(min(ids - missing))
        assert remote.search(query=held, top=100).json()["missing"] == result["missing"]
        assert f"image {min(missing)} " in refused(remote.search(query=str(min(missing))), 503)
        with impatient(remote.service.index):
            response = remote.search(photographs / "wall-b.jpg", require_all=True)
        assert re.search("[12] of 2 shards", refused(response, 503)) and int(response.headers["retry-after"]) > 0


def test_the_page_shows_how_many_images_are_missing(nodes: Nodes, index: Path, photographs: Path) -> None:
    with browsers.launched() as browser, serving(index, cluster=nodes.options(2)) as remote:
        context = browser.new_context(**browsers.USUAL)
        url = str(remote.client.base_url).rstrip("/")
        with browsers.Watch(context, url) as watch:
            page = watch.open()
            name = remote.client.post("/queries", files={"photo": upload(photographs / "wall-b.jpg")}).json()["query"]
            page.goto(f"{url}/#/search?query={name}")
            expect(page.get_by_role("link", name=re.compile(r"^1\. wall-"))).to_be_visible()
            expect(page.get_by_text(re.compile(r" in \d.*s · ")).first).to_be_visible()
            expect(page.get_by_text("not searched")).to_have_count(0)
            lose(remote, 1)
            page.goto(f"{url}/#/search?query={name}&top=7")
            expect(page.get_by_text(re.compile(r"\d+ photographs? not searched: machines unavailable")).first).to_be_visible()
        context.close()
