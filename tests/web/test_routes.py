"""Each route: what it answers, and how it refuses."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

import polyvoc
from conftest import draw_scene
from polyvoc.features.decode import read_thumbnail
from polyvoc.index.writer import IndexWriter
from polyvoc.options import SearchOptions
from polyvoc.search.explain import name_set
from polyvoc.search.index import Index
from polyvoc.search.info import image_info, index_distributions, index_info, list_images
from polyvoc.web.schemas import OPTIONS
from servers import Served, jpeg, refused, serving, upload


@pytest.fixture(scope="module")
def served(_session_index: Path) -> Iterator[Served]:
    with serving(_session_index, originals=True) as served:
        yield served


@pytest.fixture(scope="module")
def index(_session_index: Path) -> Iterator[Index]:
    with Index.open(_session_index) as index:
        yield index


@pytest.fixture(scope="module")
def writable(_session_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = Path(shutil.copytree(_session_index, tmp_path_factory.mktemp("served") / "photos.polyvoc"))
    with serving(path, write=True) as served:
        yield served


def keep(served: Served, photo: Path | bytes) -> str:
    response = served.client.post("/queries", files={"photo": upload(photo)})
    assert response.status_code == 201, response.text
    return str(response.json()["query"])


# --- search -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({}, "send one photograph in the field 'photo', or name one with query="),
        ({"query": "1", "top": "0"}, "top: Input should be greater than or equal to 1"),
        ({"query": "1", "top": "1001"}, "top: Input should be less than or equal to 1000"),
        ({"query": "1", "top": "many"}, "top: Input should be a valid integer, unable to parse string as an integer"),
        ({"query": "1", "merge": "b9"}, "merge: Input should be 'likelihood', 'posterior', 'bayes', 'b0', 'b1' or 'b2'"),
        ({"query": "1", "nonsense": "1"}, "nonsense: no such parameter"),
        ({"query": "1", "evidence": "/etc/passwd"}, "evidence: no such parameter"),
        ({"query": "1", "fuse": "true"}, None),
        ({"query": "1", "smooth": "1"}, None),
        ({"query": "1", "sure": "1.5"}, "sure: Input should be less than or equal to 1"),
        ({"query": "1", "sure": "nan"}, None),
        ({"query": "1", "region": "1,2,3"}, None),
        ({"query": "1", "region": "nan,0,1,1"}, None),
        ({"query": "1", "region": "9,9,1,1"}, None),
        ({"query": "1", "line": "1"}, None),
        ({"query": "1", "hamming": "inf"}, None),
        ({"query": "1", "sigma": "nan"}, None),
        ({"query": "1", "c": "inf"}, None),
        ({"query": ""}, None),
        (
            {"query": "1", "url": "http://example.org/x.jpg"},
            "addresses are not fetched; upload the photograph in the field 'photo'",
        ),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(served: Served, parameters: dict[str, str], line: str | None) -> None:
    told = refused(served.search(**parameters), 422)
    assert line is None or told == line


def test_a_photograph_and_a_query_exclude_each_other(served: Served, photographs: Path) -> None:
    refused(served.search(photographs / "wall-a.jpg", query="1"), 422)


@pytest.mark.parametrize("query", ["99", "0", "9" * 19, "9" * 40, "uNobodyKeptThis", "../1", "file:///etc/passwd", "-1", "１"])
def test_a_query_that_is_not_there_is_absent(served: Served, query: str) -> None:
    refused(served.search(query=query), 404)
    refused(served.get("/explain", params={"query": query, "image": 1}), 404)
    assert served.client.post("/search/batch", params={"query": query}).json()[0]["query"] == query


def test_a_text_in_place_of_a_photograph_is_refused(served: Served) -> None:
    response = served.client.post("/search", files={"photo": (None, "http://example.org/x.jpg")})
    assert refused(response, 422).endswith("addresses are not fetched; upload the photograph in the field 'photo'")


def test_what_fails_before_the_first_line_is_an_ordinary_failure(served: Served) -> None:
    lines = {"Accept": "application/x-ndjson"}
    refused(served.client.post("/search", files={"photo": ("x.jpg", b"no")}, headers=lines), 422)
    refused(served.client.post("/search?query=99", headers=lines), 404)


def test_what_fails_after_the_first_line_is_the_last_line(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Index.find

    def fail(*arguments: Any) -> Any:
        found(*arguments)
        raise polyvoc.errors.OptionError("too late")

    monkeypatch.setattr(Index, "find", fail)
    stream = served.client.post("/search?query=1", headers={"Accept": "application/x-ndjson"})
    assert stream.status_code == 200
    first, last = map(json.loads, stream.text.splitlines())
    assert first["stage"] == "scored" and last == {"stage": "failed", "error": "too late"}


def test_a_batch_of_nothing_is_refused(served: Served) -> None:
    refused(served.client.post("/search/batch"), 422)
    refused(served.client.post("/search/batch", params={"query": ["1"] * 65}), 422)
    refused(served.client.post("/search/batch", files=[("photos", ("x.jpg", b"x"))] * 65), 422)


# --- queries ------------------------------------------------------------------------------------------------------------------


def test_a_kept_photograph_has_facts_and_a_picture(served: Served, photographs: Path, index: Index) -> None:
    photo = photographs / "market-b.jpg"
    query = keep(served, photo)
    facts = served.get(f"/queries/{query}").json()
    found = index.features(photo)
    assert facts == {"query": query, "name": str(photo), "width": 360, "height": 270, "features": len(found)}
    picture = served.get(f"/queries/{query}/picture?side=160")
    assert picture.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(picture.content)).size == (160, 120)


def test_names_of_kept_photographs_cannot_be_guessed(served: Served, photographs: Path) -> None:
    names = {keep(served, photographs / "market-b.jpg") for _ in range(3)}
    assert len(names) == 3 and all(len(name) >= 16 and not name.isdigit() for name in names)


def test_what_is_not_kept_is_absent(served: Served) -> None:
    for path in ("/queries/uNothing", "/queries/uNothing/picture", "/queries/1"):
        assert "send it again" in refused(served.get(path), 404)
    refused(served.get("/queries/" + "x" * 41), 422)
    refused(served.get("/queries/uNothing/picture?side=161"), 422)
    refused(served.client.post("/queries"), 422)


# --- explain ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", [None, (20.0, 20.0, 300.0, 250.0)])
def test_an_explanation_is_that_of_the_library(served: Served, photographs: Path, index: Index, region: Any) -> None:
    photo, image = photographs / "tower-b.jpg", 7
    asked = {"query": keep(served, photo), "image": image, "merge": "posterior", "limit": 40}
    told = served.get("/explain", params={**asked, **({"region": ",".join(map(str, region))} if region else {})}).json()
    options = SearchOptions(**{**vars(index.default_options), "merge": "posterior"})
    found = index.explain(photo, image, options, region)
    assert told["n_matches"] == np.count_nonzero((found.weight > 0) | found.inlier) > 40 == len(told["matches"])
    assert told["score"] == pytest.approx(float(found.weight.sum()))
    assert told["inliers"] == int(found.inlier.sum()) > 10
    assert told["image"] == {**image_info(index.image(image)), "available": True}
    assert told["query"] == {"name": str(photo), "width": 360, "height": 270}
    assert np.allclose(told["transform"], found.transform) and len(told["outline"]) == 4
    for number, match in enumerate(told["matches"]):
        assert match["query_xy"] == found.query_xy[number].tolist() and match["image_xy"] == found.feature_xy[number].tolist()
        assert [-1 if word is None else word for word in match["words"]] == found.words[number].tolist()
        assert [-1 if distance is None else distance for distance in match["distances"]] == found.distance[number].tolist()
        assert match["mask"] == found.mask[number] == sum(1 << k for k, word in enumerate(match["words"]) if word is not None)
        assert match["sets"] == name_set(match["mask"], told["n_vocabularies"])
        assert match["weight"] == pytest.approx(float(found.weight[number]))
        assert match["inlier"] is bool(found.inlier[number])
    weights = [match["weight"] for match in told["matches"]]
    assert weights == sorted(weights, reverse=True)


def test_matches_that_say_nothing_are_left_out(served: Served, photographs: Path, index: Index) -> None:
    """They share a word, but their signatures are too far apart to count."""
    photo = photographs / "tower-b.jpg"
    told = served.get("/explain", params={"query": keep(served, photo), "image": 7, "limit": 5000}).json()
    found = index.explain(photo, 7)
    assert told["n_matches"] == len(told["matches"]) == np.count_nonzero((found.weight > 0) | found.inlier) < len(found.weight)
    assert all(match["weight"] > 0 or match["inlier"] for match in told["matches"])
    assert told["score"] == pytest.approx(float(found.weight.sum()))


def test_an_image_of_the_collection_is_explained_too(served: Served) -> None:
    told = served.get("/explain", params={"query": "1", "image": 1}).json()
    assert told["query"]["width"] == told["image"]["width"] == 360
    assert told["inliers"] > 100


@pytest.mark.parametrize(("mask", "name"), [(3, "intersection"), (1, "vocabulary 1"), (2, "vocabulary 2")])
def test_sets_of_two_vocabularies_have_names(mask: int, name: str) -> None:
    assert name_set(mask, 2) == name


def test_sets_of_three_vocabularies_have_names() -> None:
    assert [name_set(mask, 3) for mask in (4, 5, 7)] == ["vocabulary 3", "vocabularies 1, 3", "intersection"]


def test_an_explanation_needs_a_query_and_an_image(served: Served) -> None:
    assert refused(served.get("/explain"), 422) == "query: Field required; image: Field required"
    refused(served.get("/explain", params={"query": "1", "image": "99"}), 404)
    refused(served.get("/explain", params={"query": "1", "image": str(1 << 63)}), 422)
    refused(served.get("/explain", params={"query": "1", "image": "1", "limit": "5001"}), 422)


# --- collection ---------------------------------------------------------------------------------------------------------------


def test_pages_make_up_the_collection(served: Served, index: Index) -> None:
    whole = list_images(index)
    pages = [served.get("/images", params={"page": page, "size": 5}).json() for page in range(4)]
    assert [len(page["images"]) for page in pages] == [5, 5, 2, 0]  # the last is beyond the end
    assert [image for page in pages for image in page["images"]] == whole
    assert all((page["total"], page["pages"], page["page"]) == (12, 3, number) for number, page in enumerate(pages))
    assert served.get("/images", params={"page": 10**9, "size": 200}).json()["images"] == []
    for wrong in ({"page": -1}, {"size": 0}, {"size": 201}, {"page": 10**9 + 1}, {"find": "x" * 201}, {"order": "name"}):
        refused(served.get("/images", params=wrong), 422)


NAMES = ("Plain.JPG", "100%.jpg", "under_score.jpg", "underXscore.jpg", "back\\slash.jpg", "Éclair ☃.jpg", "b\udcffytes.jpg")


@pytest.mark.parametrize(
    ("find", "found"),
    [
        ("plain.jpg", {0}),
        ("PLAIN", {0}),
        ("0%", {1}),
        ("%", {1}),
        ("r_s", {2}),
        ("_score", {2}),
        ("score", {2, 3}),
        ("k\\s", {4}),
        ("\\", {4}),
        ("Éclair", {5}),
        ("☃", {5}),
        ("ytes.jpg", {6}),
        ("'; DROP TABLE images; --", set()),
        (".jpg", set(range(7))),
    ],
)
def test_a_text_is_found_in_names(named: Served, find: str, found: set[int]) -> None:
    told = named.get("/images", params={"find": find}).json()
    assert {row["name"] for row in told["images"]} == {NAMES[number] for number in found}
    assert told["total"] == len(found)


def test_a_text_with_an_end_inside_is_refused(named: Served) -> None:
    """SQLite would stop reading there, and find everything."""
    assert "find" in refused(named.get("/images", params={"find": "\0nothing"}), 422)


@pytest.fixture(scope="module")
def named(vocabularies: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("named")
    (folder / "p").mkdir()
    for seed, name in enumerate(NAMES):
        with open(os.path.join(folder, "p", name), "wb") as file:
            file.write(jpeg(draw_scene(seed, (160, 120))))
    with IndexWriter.open(folder / "named.polyvoc", vocabularies) as writer:
        writer.update([folder / "p"])
    with serving(folder / "named.polyvoc", originals=True, workers=1) as served:
        yield served


def test_names_that_are_not_text_pass_everywhere(named: Served) -> None:
    """An image whose name is not text has facts, a thumbnail, a file and answers, like any other."""
    (row,) = named.get("/images", params={"find": "ytes.jpg"}).json()["images"]
    assert json.loads(named.get(f"/images/{row['image']}").text)["name"] == NAMES[6]
    assert named.get(f"/images/{row['image']}/thumbnail").status_code == 200
    assert named.get(f"/images/{row['image']}/file").status_code == 200
    assert named.search(query=row["image"]).json()["hits"][0]["path"] == row["path"]


def test_the_name_of_a_file_does_not_break_a_header(named: Served) -> None:
    for row in named.get("/images").json()["images"]:
        header = named.get(f"/images/{row['image']}/file").headers["content-disposition"]
        assert header.isascii() and header.isprintable() and header.startswith("inline; filename")


def test_facts_of_an_image(served: Served, index: Index) -> None:
    for row in index.images():
        assert served.get(f"/images/{row.image}").json() == {**image_info(row), "available": True}
    assert refused(served.get("/images/99"), 404) == "image 99 is not in the index"
    for wrong in ("-1", "one", "1.5", str(1 << 63), "1e3"):
        refused(served.get(f"/images/{wrong}"), 422)


@pytest.mark.parametrize("side", [160, 320, 640, 1600])
def test_thumbnails_are_those_of_the_library(served: Served, photographs: Path, side: int) -> None:
    told = served.get(f"/images/1/thumbnail?side={side}")
    assert told.content == read_thumbnail(photographs / "bridge-a.jpg", side)
    assert told.headers["content-type"] == "image/jpeg" and told.headers["cache-control"] == "private, no-cache"


def test_a_browser_need_not_fetch_a_picture_twice(served: Served, photographs: Path) -> None:
    """But it must ask whether it is still the same: another index may be served at this address next."""
    for path in ("/images/1/thumbnail", f"/queries/{keep(served, photographs / 'wall-a.jpg')}/picture"):
        first = served.get(path)
        again = served.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert served.get(path, headers={"If-None-Match": '"another"'}).content == first.content


def test_a_narrow_photograph_can_be_looked_at(writable: Served) -> None:
    """It has enough pixels for features, but not so its thumbnail."""
    narrow = jpeg(draw_scene(8, (900, 120)))
    kept = writable.client.post("/queries", files={"photo": ("narrow.jpg", narrow)}).json()
    added = writable.client.post("/images", files={"photos": ("narrow.jpg", narrow)}).json()["added"][0]
    for path in (f"/queries/{kept['query']}/picture", f"/images/{added['image']}/thumbnail"):
        picture = Image.open(io.BytesIO(writable.get(path, params={"side": 160}).content))
        assert picture.size == (160, 21)
    assert writable.client.delete(f"/images/{added['image']}").status_code == 200


def test_a_thumbnail_is_made_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    first = served.get("/images/2/thumbnail?side=160").content
    monkeypatch.setattr(served.service.decoders, "thumbnail", None)
    assert served.get("/images/2/thumbnail?side=160").content == first
    refused(served.get("/images/2/thumbnail?side=100"), 422)
    refused(served.get("/images/99/thumbnail"), 404)


def test_files_are_given_when_asked_for(served: Served, photographs: Path) -> None:
    told = served.get("/images/3/file")
    assert told.content == (photographs / "bridge-c.jpg").read_bytes()
    assert told.headers["content-type"] == "image/jpeg"


def test_files_are_not_given_otherwise(writable: Served) -> None:
    assert "--originals" in refused(writable.get("/images/3/file"), 403)


def test_statistics_are_those_of_the_library(served: Served, index: Index) -> None:
    told = served.get("/statistics").json()
    assert told == json.loads(json.dumps({**index_info(index), **index_distributions(index)}))


# --- writing ------------------------------------------------------------------------------------------------------------------


def test_photographs_are_added_found_and_removed(writable: Served) -> None:
    photo = jpeg(draw_scene(77))
    before = writable.get("/health").json()
    files = [("photos", ("new.jpg", photo)), ("photos", ("broken.jpg", photo[:500])), ("photos", ("blank.png", blank()))]
    told = writable.client.post("/images", files=files)
    assert told.status_code == 201
    (added,), problems = told.json()["added"], told.json()["problems"]
    assert added["name"].startswith("new-") and (added["width"], added["height"]) == (360, 270)
    assert [problem["path"].split("-")[0] for problem in problems] == ["broken.jpg", "blank"]
    folder = writable.service.settings.kept_photographs
    assert {path.name.split("-")[0] for path in folder.iterdir()} <= {"new", "narrow"}  # what cannot be used is not kept
    assert writable.get("/statistics").json()["problems"] == []
    assert writable.search(photo).json()["hits"][0]["image"] == added["image"]
    assert writable.get(f"/images/{added['image']}/thumbnail").status_code == 200
    assert writable.get("/health").json()["images"] == before["images"] + 1

    removed = writable.client.delete(f"/images/{added['image']}")
    assert removed.json() == {"removed": added["image"]}
    assert (folder / added["name"]).exists()  # its file stays
    assert writable.get("/health").json()["images"] == before["images"]
    assert added["image"] not in [hit["image"] for hit in writable.search(photo).json()["hits"]]
    for path in ("", "/thumbnail"):  # a thumbnail that was cached as well
        refused(writable.get(f"/images/{added['image']}{path}"), 404)
    refused(writable.client.delete(f"/images/{added['image']}"), 404)
    refused(writable.search(query=added["image"]), 404)


def blank() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (300, 200), "white").save(out, "PNG")
    return out.getvalue()


def test_a_photograph_sent_twice_is_one(writable: Served) -> None:
    photo = jpeg(draw_scene(78, (200, 150)))
    same = [("photos", ("twice.jpg", photo))] * 2
    (first,) = writable.client.post("/images", files=same).json()["added"]
    (again,) = writable.client.post("/images", files=same[:1]).json()["added"]
    assert first == again
    (other,) = writable.client.post("/images", files=[("photos", ("twice.jpg", jpeg(draw_scene(79, (200, 150)))))]).json()[
        "added"
    ]
    assert other["image"] != first["image"] and other["path"] != first["path"]
    assert writable.get(f"/images/{first['image']}").json()["available"]


def test_adding_nothing_is_refused(writable: Served) -> None:
    refused(writable.client.post("/images"), 422)
    told = writable.client.post("/images", files=[("photos", ("x.jpg", b"no"))])
    assert told.status_code == 201 and told.json()["added"] == [] and len(told.json()["problems"]) == 1


def test_a_server_that_only_reads_refuses_to_write(served: Served, photographs: Path) -> None:
    for response in (
        served.client.post("/images", files={"photos": upload(photographs / "wall-a.jpg")}),
        served.client.delete("/images/1"),
    ):
        assert "--write" in refused(response, 403)
    assert served.get("/images/1").status_code == 200


# --- operation ----------------------------------------------------------------------------------------------------------------


def test_health_tells_of_the_index(served: Served, index: Index) -> None:
    assert served.get("/health").json() == {"status": "ok", "commit": index.commit, "images": 12}


def test_about_tells_what_a_page_needs(served: Served, index: Index) -> None:
    told = served.get("/about").json()
    assert told["version"] == polyvoc.__version__ and told["index"] == "photos.polyvoc"
    assert (told["images"], told["vocabularies"], told["bits"], told["commit"]) == (12, 2, 64, index.commit)
    assert told["probabilities"] and told["presets"]["best"]["sure"] == 0
    assert (told["write"], told["originals"], told["token"], told["fuse"], told["smooth"]) == (
        False,
        True,
        "none",
        False,
        False,
    )
    assert set(told["presets"]) == {"fast", "default", "best"}
    assert set(told["texts"]) == set(OPTIONS)
    assert told["choices"]["merge"] == ["likelihood", "posterior", "bayes", "b0", "b1", "b2"]
    assert told["limits"] == {"upload_bytes": 32_000_000, "pixels": 100_000_000}


def samples(served: Served) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(served.get("/metrics").text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_metrics_count(served: Served) -> None:
    before = samples(served)
    for path in ("/images/1", "/images/2", "/images/99", "/nowhere"):
        served.get(path)
    served.search(query="1")
    after = samples(served)

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0)

    assert grown("polyvoc_requests_total", "GET", "/images/{image}", "200") == 2
    assert grown("polyvoc_requests_total", "GET", "/images/{image}", "404") == 1
    assert grown("polyvoc_requests_total", "GET", "none", "404") == 1
    assert grown("polyvoc_request_seconds_count", "/search") == grown("polyvoc_stage_seconds_count", "score") == 1
    assert after["polyvoc_images",] == 12 and after["polyvoc_searches_running",] == after["polyvoc_searches_waiting",] == 0
    assert "process_resident_memory_bytes" in {key[0] for key in after}


def test_the_page_is_served(served: Served) -> None:
    page = served.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for name in ("app.js", "style.css"):
        assert served.get(f"/page/{name}").status_code == 200


@pytest.mark.parametrize("path", ["/nowhere", "/docs", "/redoc", "/page/nowhere.js", "/images/1/nowhere", "/search/1"])
def test_what_is_not_there_is_absent(served: Served, path: str) -> None:
    refused(served.get(path), 404)


def test_other_methods_are_refused(served: Served) -> None:
    for method, path in (("GET", "/search"), ("POST", "/health"), ("TRACE", "/"), ("PUT", "/search")):
        refused(served.client.request(method, path), 405)
    for method in ("PUT", "PATCH"):
        refused(served.client.request(method, "/images/1"), 403)  # of a server that only reads


def test_what_nobody_expects_is_one_line(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(type(served.service), "listing", fail)
    told: httpx.Response = served.get("/images")
    assert refused(told, 500) == "unexpected ZeroDivisionError; the server's log has more"
    assert "a secret" not in told.text
