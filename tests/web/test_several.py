"""A server of several indexes: its answers are those of the library, and what one index alone can do is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polyvoc
from conftest import draw_scene
from polyvoc.errors import OptionError
from polyvoc.index.writer import IndexWriter
from polyvoc.search.info import image_info
from polyvoc.search.photographs import STRIDE
from polyvoc.search.several import Indexes
from polyvoc.web.settings import Settings
from servers import Served, refused, serving, without_times


@pytest.fixture(scope="module")
def sift(_session_coded_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(_session_coded_index, tmp_path_factory.mktemp("sift") / "photos.polyvoc"))


@pytest.fixture(scope="module")
def orb(_session_orb_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(_session_orb_index, tmp_path_factory.mktemp("orb") / "photos.orb.polyvoc"))


@pytest.fixture(scope="module")
def both(sift: Path, orb: Path) -> Iterator[Indexes]:
    with polyvoc.open([sift, orb]) as both:
        yield both


@pytest.fixture(scope="module")
def served(sift: Path, orb: Path) -> Iterator[Served]:
    with serving(sift, others=(orb,), originals=True) as served:
        yield served


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return json.loads(json.dumps(value))


def ranking(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(hit["path"], hit["probability"], hit["score"], hit["inliers"]) for hit in result["hits"]]


@pytest.mark.parametrize("parameters", [{}, {"preset": "best", "top": 3}, {"region": "40,30,300,240"}, {"verify": 0}])
def test_a_search_is_that_of_the_library(served: Served, both: Indexes, photographs: Path, parameters: dict[str, Any]) -> None:
    region = tuple(map(float, parameters["region"].split(","))) if "region" in parameters else None
    options = {name: value for name, value in parameters.items() if name != "region"}
    for photo in (photographs / "market-c.jpg", 3, STRIDE + 5):
        stored = isinstance(photo, int)
        response = served.search(query=photo, **parameters) if stored else served.search(photo, **parameters)
        assert response.status_code == 200, response.text
        expected = both.search(photo, region=region, **options)  # type: ignore[arg-type]
        assert response.json()["hits"] == plain(expected.to_dict()["hits"])
        assert response.json()["query"] == (both.image(photo).path if isinstance(photo, int) else str(photo))
        parts = response.json()["hits"][0]["parts"]
        assert [part["kind"] for part in parts] == ["orb", "sift"] and parts[0].keys() >= {"index", "probability", "inliers"}


def test_a_stored_upload_has_the_features_of_each_kind(served: Served, both: Indexes, photographs: Path) -> None:
    photo = photographs / "tower-b.jpg"
    name = served.store(photo)
    numbers = [len(index.features(photo)) for index in both.indexes]
    size = {"width": 360, "height": 270, "features": sum(numbers)}
    assert served.get(f"/queries/{name}").json() == {"query": name, "name": str(photo), **size}
    expected = plain(both.search(photo).to_dict()["hits"])
    assert served.search(query=name).json()["hits"] == expected
    streamed = served.post("/search", params={"query": name}, headers={"Accept": "application/x-ndjson"}).text.splitlines()
    (final,) = map(json.loads, streamed)
    assert final["stage"] == "done" and final["hits"] == expected
    many = served.post("/search/batch", params={"query": [name, "99", str(STRIDE + 1)]}).json()
    assert many[0]["hits"] == expected and "not in the index" in many[1]["error"] and many[2]["hits"]


def test_a_photograph_without_features_of_one_kind_is_searched_with_the_other(served: Served, both: Indexes) -> None:
    """ORB finds nothing near the border of a small picture; SIFT does."""
    from servers import jpeg

    small = jpeg(draw_scene(0).crop((100, 100, 148, 148)))
    found = served.search(small).json()["hits"]
    assert found == plain(both.search(small).to_dict()["hits"])
    assert {part["kind"] for hit in found for part in hit["parts"]} == {"sift"}


def test_an_explanation_has_the_matches_of_each_kind(served: Served, both: Indexes, photographs: Path) -> None:
    name = served.store(photographs / "tower-b.jpg")
    hit = next(hit for hit in both.search(photographs / "tower-b.jpg") if hit.path.endswith("tower-a.jpg"))
    for query in (name, hit.image):
        found = served.get("/explain", params={"query": query, "image": hit.image, "limit": 7}).json()
        assert found["image"]["path"] == hit.path and found["query"]["width"] == 360
        assert [(part["kind"], part["index"]) for part in found["parts"]] == [
            (index.folder.kind.name, str(index.folder.path)) for index in both.indexes
        ]
        photo = photographs / "tower-b.jpg" if query == name else hit.image
        expected = both.explain(photo, hit.image).as_dict(None, found["query"], 7)
        assert found["parts"] == plain(expected["parts"])
        for part in found["parts"]:
            assert part["inliers"] > 10 and len(part["matches"]) == 7 and part["outline"]


def test_the_images_of_all_are_one_list(served: Served, both: Indexes, photographs: Path) -> None:
    rows = plain([image_info(row) for row in both])
    assert served.get("/images").json() == {"images": rows, "total": 12, "page": 0, "pages": 1}
    page = served.get("/images", params={"page": 1, "size": 5}).json()
    assert page == {"images": rows[5:10], "total": 12, "page": 1, "pages": 3}
    found = served.get("/images", params={"find": "tower", "folder": str(photographs), "size": 2}).json()
    assert found["total"] == 3 and [row["path"][-11:] for row in found["images"]] == ["tower-a.jpg", "tower-b.jpg"]
    wanted = [rows[7]["image"], rows[2]["image"], 99]
    assert served.get("/images", params={"image": wanted}).json()["images"] == [rows[2], rows[7]]
    assert served.get("/images", params={"find": "nothing"}).json()["total"] == 0
    assert served.get("/folders").json() == {"folders": [{"path": str(photographs), "images": 12}], "total": 1}
    other = served.get(f"/images/{STRIDE + 4}").json()
    assert other == {**plain(image_info(both.image(STRIDE + 4))), "available": True}
    for image in (rows[0]["image"], STRIDE + 4):
        assert served.get(f"/images/{image}/thumbnail").headers["content-type"] == "image/jpeg"
        assert served.get(f"/images/{image}/file").content == Path(both.image(image).path).read_bytes()
    for image in (99, 2 * STRIDE + 1, STRIDE + 99):
        assert "not in the index" in refused(served.get(f"/images/{image}"), 404)


def test_what_a_page_and_a_monitor_need_to_know(served: Served, sift: Path, orb: Path) -> None:
    about = served.get("/about").json()
    names = sorted([sift, orb])
    assert about["indexes"] == [path.name for path in names] and about["index"] == ", ".join(about["indexes"])
    assert about["images"] == 12 and about["choices"]["merge"] == ["codes"] and about["vocabularies"] == 0
    assert about["probabilities"] and not (about["fuse"] or about["smooth"] or about["write"])
    assert "paper" not in about["presets"]  # the index of ORB has no words
    statistics = served.get("/statistics").json()
    assert statistics["photographs"] == 12
    assert [one["index"] for one in statistics["indexes"]] == [str(path) for path in names]
    assert all(one["images"] == 12 and "list_lengths" in one for one in statistics["indexes"])
    assert served.get("/health").json() == {"status": "ok", "commit": about["commit"], "images": 12}
    assert "polyvoc_images 12.0" in served.get("/metrics").text
    schemas = served.get("/openapi.json").json()["components"]["schemas"]
    assert {"index", "kind", "probability", "inliers"} <= schemas["HitPart"]["properties"].keys()


def test_neither_order_nor_an_index_beside_itself_matters(
    served: Served, sift: Path, orb: Path, photographs: Path, tmp_path: Path
) -> None:
    photo = photographs / "bridge-c.jpg"
    copy = Path(shutil.copytree(sift, tmp_path / "copy.polyvoc"))
    with serving(orb, others=(sift,)) as turned:
        assert without_times(turned.search(photo).json()) == without_times(served.search(photo).json())
        assert turned.get("/images").json() == served.get("/images").json()
    with serving(sift) as one, serving(sift, others=(copy, sift)) as beside:
        expected, found = one.search(photo).json(), beside.search(photo).json()
        assert ranking(found) == ranking(expected) and len(found["hits"]) == len(expected["hits"]) > 3
        assert "parts" not in expected["hits"][0] and len(found["hits"][0]["parts"]) == 3
        assert beside.get("/images").json()["total"] == 12
        explained = beside.get("/explain", params={"query": found["hits"][0]["image"], "image": found["hits"][1]["image"]})
        assert [part["kind"] for part in explained.json()["parts"]] == ["sift"]


def test_a_commit_of_any_index_is_served(
    _session_coded_index: Path, _session_orb_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.web.service.REFRESH_SECONDS", 0.0)
    pairs = ((_session_coded_index, "a"), (_session_orb_index, "b"))
    parts = [Path(shutil.copytree(index, tmp_path / name)) for index, name in pairs]
    scene = draw_scene(99)
    scene.save(tmp_path / "new.jpg", quality=92)
    with serving(parts[0], others=(parts[1],)) as served:
        commits = [served.get("/health").json()["commit"]]
        for kinds, part in ((["orb"], parts[1]), (["sift", "orb"], parts[0])):
            with IndexWriter.open(part) as writer:
                writer.update([tmp_path / "new.jpg"])
            (hit, *_) = served.search(tmp_path / "new.jpg").json()["hits"]
            assert hit["path"] == str(tmp_path / "new.jpg") and [one["kind"] for one in hit["parts"]] == kinds
            assert served.get("/images", params={"find": "new.jpg"}).json()["total"] == 1
            assert [one["images"] for one in served.get("/statistics").json()["indexes"]].count(13) == len(kinds)
            commits.append(served.get("/health").json()["commit"])
        assert commits == sorted(set(commits)) and served.get("/about").json()["images"] == 13
        shutil.rmtree(parts[1])
        assert served.search(query=1).status_code == 200 and served.get("/health").json()["status"] == "stale"


def test_what_is_for_one_index_is_refused_in_one_line(served: Served, sift: Path, orb: Path, photographs: Path) -> None:
    for path in ("/groups", "/duplicates"):
        assert "serve one of them" in refused(served.get(path), 409)
    for path in ("/images", "/groups", "/duplicates", "/duplicates/undo"):
        assert "read-only; serve one index with --write" in refused(served.post(path), 403)
    assert "read-only" in refused(served.delete(1), 403)
    assert "this server has an index" in refused(served.get("/setup"), 409)
    for parameters in ({"fuse": True}, {"smooth": 1}, {"since": 0}, {"preset": "paper"}, {"merge": "b1"}):
        refused(served.search(photographs / "wall-a.jpg", **parameters), 422)
        refused(served.search(query=1, **parameters), 422)
    for settings in ({"write": True}, {"photos": Path("more")}):
        with pytest.raises(OptionError, match=r"only searched; .* serve one of them"):
            Settings(sift, others=(orb,), **settings)  # type: ignore[arg-type]
