"""The page and the HTTP interface of an index that a cluster holds: as they are, and honest while machines are down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import browsers
from clusters import Nodes, cluster, eventually, quiet, ray
from conftest import SCENES
from polyvoc.index.writer import IndexWriter
from polyvoc.options import ClusterOptions
from servers import BEARER, TOKEN, Served, refused, serving, upload

pytestmark = quiet
FLAGS: list[dict[str, Any]] = [{}, {"preset": "fast"}, {"preset": "best"}, {"merge": "posterior", "hamming": 24}]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster(2) as made:
        yield made


@pytest.fixture
def index(photographs: Path, tmp_path: Path) -> Path:
    """An index of several segments."""
    path = tmp_path / "photos.polyvoc"
    with IndexWriter.open(path) as writer:
        for scene in SCENES:
            writer.update(sorted(photographs.glob(f"{scene}-*.jpg")))
    return path


def without_seconds(answer: dict[str, Any]) -> dict[str, Any]:
    assert answer.pop("seconds")
    return answer


def lose(served: Served, shard: int) -> None:
    """Let a shard be gone for good."""
    fleet = served.service.index._fleet
    assert fleet is not None
    for replica in fleet.shards[shard]:
        ray.kill(replica.actor)
    eventually(lambda: not served.search(query="1").json().get("complete"))


def test_answers_of_a_cluster_are_those_of_one_machine(nodes: Nodes, index: Path, photographs: Path) -> None:
    with serving(index) as local, serving(index, cluster=ClusterOptions(nodes.address, shards=2)) as far:
        for flags in FLAGS:
            for photo, asked in ((photographs / "wall-b.jpg", {}), (None, {"query": "3"}), (None, {"query": "5"})):
                one, other = (served.search(photo, **asked, **flags).json() for served in (far, local))
                assert without_seconds(one) == without_seconds(other) and one["complete"]
        for path in ("/explain?query=2&image=3", "/statistics", "/images", "/images/4/thumbnail", "/health"):
            one, other = far.get(path), local.get(path)
            assert one.status_code == other.status_code == 200 and one.content == other.content


def test_photographs_are_added_and_removed(nodes: Nodes, index: Path, photographs: Path) -> None:
    with serving(index, cluster=ClusterOptions(nodes.address, shards=2), write=True, token=TOKEN) as far:
        photo = photographs / "wall-b.jpg"
        before = far.get("/health").json()["images"]
        copy = ("copy.jpg", photo.read_bytes() + b" ")  # the same pixels, another file
        (added,) = far.client.post("/images", files={"photos": copy}, headers=BEARER).json()["added"]
        hits = far.search(photo, top=3).json()["hits"]
        assert added["image"] in [hit["image"] for hit in hits]
        assert far.client.delete(f"/images/{added['image']}", headers=BEARER).status_code == 200
        assert added["image"] not in [hit["image"] for hit in far.search(photo).json()["hits"]]
        assert far.get("/health").json()["images"] == before


def test_an_answer_says_what_it_lacks_or_fails(nodes: Nodes, index: Path) -> None:
    with serving(index, cluster=ClusterOptions(nodes.address, shards=2, patience=3)) as far:
        every = {row["image"] for row in far.get("/images").json()["images"]}
        lose(far, 0)
        here = next(str(image) for image in sorted(every) if far.search(query=str(image)).status_code == 200)
        answer = far.search(query=here, top=100).json()
        lacking = {image for first, last in answer["missing"] for image in range(first, last + 1)}
        assert lacking and lacking < every and not lacking & {hit["image"] for hit in answer["hits"]}
        response = far.search(query=here, whole=True)
        assert "1 of 2 shards did not answer" in refused(response, 503) and int(response.headers["retry-after"]) > 0
        gone = far.search(query=str(min(lacking)))
        assert f"image {min(lacking)} is not on the machines that answer" in refused(gone, 503)


def test_the_page_says_what_an_answer_lacks(nodes: Nodes, index: Path, photographs: Path) -> None:
    with browsers.launched() as browser, serving(index, cluster=ClusterOptions(nodes.address, shards=2)) as far:
        context = browser.new_context(**browsers.USUAL)
        url = str(far.client.base_url).rstrip("/")
        with browsers.Watch(context, url) as watch:
            page = watch.open()
            name = far.client.post("/queries", files={"photo": upload(photographs / "wall-b.jpg")}).json()["query"]
            page.goto(f"{url}/#/search?query={name}")
            expect(page.get_by_role("link", name=re.compile(r"^1\. wall-"))).to_be_visible()
            expect(page.get_by_text(re.compile("verified ·")).first).to_be_visible()
            expect(page.get_by_text("not searched")).to_have_count(0)
            lose(far, 1)
            page.goto(f"{url}/#/search?query={name}&top=7")
            expect(page.get_by_text(re.compile(r"\d+ photographs? not searched: machines unavailable")).first).to_be_visible()
        context.close()
