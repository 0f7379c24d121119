"""Each route: its results and its errors."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

import polyvoc
from conftest import draw_scene
from polyvoc.errors import OptionError
from polyvoc.features.decode import read_thumbnail
from polyvoc.index.writer import IndexWriter
from polyvoc.search.explain import name_set
from polyvoc.search.index import Index
from polyvoc.search.info import image_info, list_images
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from polyvoc.web.schemas import OPTIONS
from polyvoc.web.service import count_folders
from servers import Served, jpeg, refused, serving

SETTINGS = {"originals": True}
NDJSON = {"Accept": "application/x-ndjson"}


@pytest.fixture(scope="module")
def index(_session_index: Path) -> Iterator[Index]:
    with Index.open(_session_index) as index:
        yield index


@pytest.fixture(scope="module")
def writable(_session_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = Path(shutil.copytree(_session_index, tmp_path_factory.mktemp("served") / "photos.polyvoc"))
    with serving(path, write=True) as served:
        yield served


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({"query": None}, "upload one photograph in the field 'photo', or name one with query="),
        ({"top": "0"}, "top: Input should be greater than or equal to 1"),
        ({"top": "1001"}, "top: Input should be less than or equal to 1000"),
        ({"top": "many"}, "top: Input should be a valid integer, unable to parse string as an integer"),
        ({"merge": "b9"}, "merge: Input should be 'codes', 'likelihood', 'posterior', 'bayes', 'b0', 'b1' or 'b2'"),
        ({"nonsense": "1"}, "nonsense: no such parameter"),
        ({"likelihood_table": "/etc/passwd"}, "likelihood_table: no such parameter"),
        ({"code_table": "x"}, "code_table: no such parameter"),
        ({"merge": "codes"}, "merge='codes' needs an index with codes; this one has none"),
        ({"min_probability": "1.5"}, "min_probability: Input should be less than or equal to 1"),
        *(({name: "nan"}, name) for name in ("min_probability", "sigma", "line", "hamming", "c")),
        *(({name: "inf"}, name) for name in ("c", "hamming")),
        *(({"region": region}, "region") for region in ("1,2,3", "nan,0,1,1", "9,9,1,1")),
        ({"fuse": "true"}, "fuse"),
        ({"smooth": "1"}, "smooth"),
        ({"query": ""}, "query"),
        ({"url": "http://example.org/x.jpg"}, "URLs are not fetched; upload the photograph in the field 'photo'"),
    ],
)  # fmt: skip
def test_an_invalid_search_is_rejected(served: Served, parameters: dict[str, str | None], line: str) -> None:
    given = {name: value for name, value in {"query": "1", **parameters}.items() if value is not None}
    assert line in refused(served.search(**given), 422)


def test_a_query_is_one_photograph(served: Served, photographs: Path) -> None:
    refused(served.search(photographs / "wall-a.jpg", query="1"), 422)
    response = served.post("/search", files={"photo": (None, "http://example.org/x.jpg")})
    assert refused(response, 422).endswith("URLs are not fetched; upload the photograph in the field 'photo'")
    refused(served.post("/search/batch"), 422)
    refused(served.post("/search/batch", params={"query": ["1"] * 65}), 422)
    refused(served.post("/search/batch", files=[("photos", ("x.jpg", b"x"))] * 65), 422)


PATHS = ("/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/", "../../x.jpg", "1/../2", "~/x.jpg")


@pytest.mark.parametrize("query", ["99", "0", "9" * 19, "9" * 40, "uNotStored", "-1", "１", *PATHS])
def test_an_unknown_query_is_not_found(served: Served, query: str) -> None:
    refused(served.search(query=query), 404)
    refused(served.get("/explain", params={"query": query, "image": 1}), 404)
    assert served.post("/search/batch", params={"query": query}).json()[0]["query"] == query


def test_an_error_is_the_response_or_the_last_line_of_a_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(served.post("/search", files={"photo": ("x.jpg", b"no")}, headers=NDJSON), 422)
    refused(served.post("/search?query=99", headers=NDJSON), 404)
    original = Index.search

    def fail(*arguments: Any, **options: Any) -> Any:
        original(*arguments, **options)
        raise OptionError("too late")

    monkeypatch.setattr(Index, "search", fail)
    stream = served.post("/search?query=1", headers=NDJSON)
    assert stream.status_code == 200
    first, last = map(json.loads, stream.text.splitlines())
    assert first["stage"] == "scored" and last == {"stage": "failed", "error": "too late"}


def test_a_stored_upload_has_a_name_a_size_and_a_picture(served: Served, photographs: Path, index: Index) -> None:
    photo = photographs / "market-b.jpg"
    names = {served.store(photo) for _ in range(3)}
    assert len(names) == 3 and all(len(name) >= 16 and not name.isdigit() for name in names)  # hard to guess
    for name in names:
        size = {"width": 360, "height": 270, "features": len(index.features(photo))}
        assert served.get(f"/queries/{name}").json() == {"query": name, "name": str(photo), **size}
        picture = served.get(f"/queries/{name}/picture?side=160")
        assert picture.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(picture.content)).size == (160, 120)


def test_an_unknown_stored_upload_is_not_found(served: Served) -> None:
    for path in ("/queries/uNothing", "/queries/uNothing/picture", "/queries/1"):
        assert "upload the photograph again" in refused(served.get(path), 404)
    refused(served.get("/queries/" + "x" * 41), 422)
    refused(served.get("/queries/uNothing/picture?side=161"), 422)
    refused(served.post("/queries"), 422)


def test_no_hit_stands_above_a_more_probable_one(served: Served, photographs: Path) -> None:
    unknown = io.BytesIO()
    draw_scene(977).save(unknown, "PNG")
    for photo, found in ((photographs / "wall-b.jpg", True), (unknown.getvalue(), False)):
        for preset in ("default", "best"):  # "fast" cannot tell hits from noise among 12 photographs
            result = served.search(photo, preset=preset, top=12).json()
            probabilities = [hit["probability"] for hit in result["hits"]]
            assert len(probabilities) > 3 and probabilities == sorted(probabilities, reverse=True)
            assert result["likely"] == sum(one >= 0.5 for one in probabilities) and (result["likely"] > 0) is found
            assert result["nothing_found"] is not found


def test_the_system_of_the_paper_is_a_preset(served: Served, index: Index) -> None:
    result = served.search(query=1, preset="paper", top=4).json()
    assert result["options"] == json.loads(json.dumps(replace(index.preset("paper"), top=4).as_dict()))
    assert [(hit["image"], hit["score"]) for hit in result["hits"]] == [
        (hit.image, pytest.approx(hit.score)) for hit in index.search(1, preset="paper", top=4)
    ]
    changed = served.search(query=1, preset="paper", vocabularies=1, sets="feature", idf_power=2, norm="distinct").json()
    given = {"vocabularies": 1, "sets": "feature", "idf_power": 2, "norm": "distinct"}
    assert changed["options"].items() >= {**given, "merge": "bayes", "idf": "plain"}.items()
    assert served.search(query=1, preset="paper", vocabularies="none").json()["options"]["vocabularies"] is None
    assert "at most 2, as many as the index has" in refused(served.search(query=1, vocabularies=3), 422)
    for wrong in ({"vocabularies": 0}, {"vocabularies": 10}, {"idf_power": 3}, {"sets": "photo"}, {"preset": "thesis"}):
        refused(served.search(query=1, **wrong), 422)


def test_an_explanation_by_sets_of_images(served: Served, photographs: Path, index: Index) -> None:
    photo = photographs / "tower-b.jpg"
    parameters = {"query": served.store(photo), "image": 7, "preset": "paper", "limit": 5000}
    result, expected = served.get("/explain", params=parameters).json(), index.explain(photo, 7, preset="paper")
    counted = np.flatnonzero((expected.weight > 0) | expected.inlier)
    assert result["image_sets"] is expected.image_sets is True
    assert [match["set_mask"] for match in result["matches"]] == expected.set_mask[counted].tolist()
    assert all(match["sets"] == name_set(match["set_mask"], 2) for match in result["matches"])
    assert any(match["set_mask"] != match["mask"] for match in result["matches"])
    features = served.get("/explain", params={**parameters, "sets": "feature"}).json()
    assert features["image_sets"] is False and all(match["set_mask"] == match["mask"] for match in features["matches"])
    one = served.get("/explain", params={**parameters, "vocabularies": 1}).json()
    assert (one["n_vocabularies"], one["image_sets"]) == (1, False) and len(one["matches"][0]["words"]) == 1


@pytest.mark.parametrize("region", [None, (20.0, 20.0, 300.0, 250.0)])
def test_an_explanation_is_that_of_the_library(served: Served, photographs: Path, index: Index, region: Any) -> None:
    photo, image = photographs / "tower-b.jpg", 7
    parameters = {"query": served.store(photo), "image": image, "merge": "posterior", "limit": 40}
    result = served.get("/explain", params={**parameters, **({"region": ",".join(map(str, region))} if region else {})}).json()
    expected = index.explain(photo, image, merge="posterior", region=region)
    assert result["n_matches"] == np.count_nonzero((expected.weight > 0) | expected.inlier) > 40 == len(result["matches"])
    assert result["score"] == pytest.approx(float(expected.weight.sum()))
    assert result["inliers"] == int(expected.inlier.sum()) > 10
    assert result["image"] == {**image_info(index.image(image)), "available": True}
    assert result["query"] == {"name": str(photo), "width": 360, "height": 270}
    assert np.allclose(result["transform"], expected.transform) and len(result["outline"]) == 4
    for n, match in enumerate(result["matches"]):
        assert match["query_xy"] == expected.query_xy[n].tolist() and match["image_xy"] == expected.feature_xy[n].tolist()
        assert [-1 if word is None else word for word in match["words"]] == expected.words[n].tolist()
        assert [-1 if distance is None else distance for distance in match["distances"]] == expected.distance[n].tolist()
        assert match["mask"] == expected.mask[n] == sum(1 << k for k, word in enumerate(match["words"]) if word is not None)
        assert match["sets"] == name_set(match["mask"], result["n_vocabularies"])
        assert match["weight"] == pytest.approx(float(expected.weight[n]))
        assert match["inlier"] is bool(expected.inlier[n])
    weights = [match["weight"] for match in result["matches"]]
    assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize("stored", [False, True])
def test_an_explanation_by_codes(coded: Served, photographs: Path, _session_coded_index: Path, stored: bool) -> None:
    with Index.open(_session_coded_index) as index:
        photo = index.image(8).image if stored else photographs / "tower-b.jpg"
        expected = index.explain(photo, 7)
    query = photo if isinstance(photo, int) else coded.store(photo)
    result = coded.get("/explain", params={"query": query, "image": 7, "limit": 40}).json()
    assert (result["n_vocabularies"], result["image_sets"]) == (1, False)
    assert result["n_matches"] == np.count_nonzero((expected.weight > 0) | expected.inlier) > 40 == len(result["matches"])
    assert result["score"] == pytest.approx(float(expected.weight.sum()))
    assert result["inliers"] == int(expected.inlier.sum()) > 10
    assert np.allclose(result["transform"], expected.transform) and len(result["outline"]) == 4
    for n, match in enumerate(result["matches"]):
        assert match["query_xy"] == expected.query_xy[n].tolist() and match["image_xy"] == expected.feature_xy[n].tolist()
        (word,), (distance,) = match["words"], match["distances"]
        assert (word, distance) == (expected.words[n, 0], expected.distance[n, 0]) and 0 <= word < 1000 and 0 <= distance <= 128
        assert (match["mask"], match["set_mask"], match["sets"], match["ratio"]) == (1, 1, "intersection", 1)
        assert match["weight"] == pytest.approx(float(expected.weight[n]))
        assert match["inlier"] is bool(expected.inlier[n])


def test_names_of_sets() -> None:
    assert [name_set(mask, 2) for mask in (1, 2, 3)] == ["vocabulary 1", "vocabulary 2", "intersection"]
    assert [name_set(mask, 3) for mask in (4, 5, 7)] == ["vocabulary 3", "vocabularies 1, 3", "intersection"]


def test_matches_that_contribute_nothing_are_left_out(served: Served, photographs: Path, index: Index) -> None:
    """They share a word, but their signatures are too far apart."""
    photo = photographs / "tower-b.jpg"
    result = served.get("/explain", params={"query": served.store(photo), "image": 7, "limit": 5000}).json()
    expected = index.explain(photo, 7)
    n_matches = np.count_nonzero((expected.weight > 0) | expected.inlier)
    assert result["n_matches"] == len(result["matches"]) == n_matches < len(expected.weight)
    assert all(match["weight"] > 0 or match["inlier"] for match in result["matches"])
    assert result["score"] == pytest.approx(float(expected.weight.sum()))


def test_an_explanation_needs_a_query_which_may_be_of_the_index_and_an_image(served: Served) -> None:
    result = served.get("/explain", params={"query": "1", "image": 1}).json()
    assert result["query"]["width"] == result["image"]["width"] == 360
    assert result["inliers"] > 100
    assert refused(served.get("/explain"), 422) == "query: Field required; image: Field required"
    refused(served.get("/explain", params={"query": "1", "image": "99"}), 404)
    refused(served.get("/explain", params={"query": "1", "image": str(1 << 63)}), 422)
    refused(served.get("/explain", params={"query": "1", "image": "1", "limit": "5001"}), 422)


def test_pages_list_all_images(served: Served, index: Index) -> None:
    expected = list_images(index)
    pages = [served.get("/images", params={"page": page, "size": 5}).json() for page in range(4)]
    assert [len(page["images"]) for page in pages] == [5, 5, 2, 0]  # the last is beyond the end
    assert [image for page in pages for image in page["images"]] == expected
    assert all((page["total"], page["pages"], page["page"]) == (12, 3, number) for number, page in enumerate(pages))
    assert served.get("/images", params={"page": 10**9, "size": 200}).json()["images"] == []
    too_large = {"size": 201}, {"page": 10**9 + 1}, {"find": "x" * 201}
    for wrong in ({"page": -1}, {"size": 0}, *too_large, {"order": "name"}, {"find": "\0nothing"}):  # \0 would end it in SQLite
        refused(served.get("/images", params=wrong), 422)


def test_images_are_filtered_by_folder_date_and_id(served: Served, index: Index, photographs: Path) -> None:
    expected = list_images(index)
    day = expected[0]["changed"][:10]

    def found(**filters: Any) -> list[int]:
        page = served.get("/images", params={"size": 200, **filters}).json()
        assert page["total"] == len(page["images"])
        return [row["image"] for row in page["images"]]

    everything = [row["image"] for row in expected]
    assert found(folder=str(photographs), changed_from="1980-01-01", changed_until=day, image=everything) == everything
    assert found(folder=str(photographs)[:-1]) == found(folder=f"{photographs}/x") == [], "a folder is a whole name"
    assert found(changed_from="9999-12-31") == found(changed_until="0001-01-01") == []
    assert found(changed_until="9999-12-31", image=[3, 1]) == [1, 3]
    assert found(find=expected[0]["name"], image=everything) == [expected[0]["image"]]
    for wrong in ({"changed_from": "yesterday"}, {"image": "x"}, {"image": ["1"] * 201}, {"folder": "a\0"}):
        refused(served.get("/images", params=wrong), 422)


def test_folders_are_counted_with_all_below(served: Served, photographs: Path) -> None:
    assert served.get("/folders").json() == {"folders": [{"path": str(photographs), "images": 12}], "total": 1}
    paths = ["/a/b/1.jpg", "/a/b/c/2.jpg", "/a/d/3.jpg", "s3://bucket/x/4.jpg", "name"]
    counts = {row["path"]: row["images"] for row in count_folders(paths)["folders"]}
    assert counts == {"/a": 3, "/a/b": 2, "/a/b/c": 1, "/a/d": 1, "s3://bucket/x": 1}


NAMES = ("Plain.JPG", "100%.jpg", "under_score.jpg", "underXscore.jpg", "back\\slash.jpg", "Éclair ☃.jpg", "b\udcffytes.jpg")


@pytest.mark.parametrize(
    ("find", "found"),
    [("plain.jpg", {0}), ("PLAIN", {0}), ("0%", {1}), ("%", {1}), ("r_s", {2}), ("_score", {2}), ("score", {2, 3}),
     ("k\\s", {4}), ("\\", {4}), ("Éclair", {5}), ("☃", {5}), ("ytes.jpg", {6}), (".jpg", set(range(7))),
     ("'; DROP TABLE images; --", set())],
)  # fmt: skip
def test_images_are_found_by_a_text_in_their_path(named: Served, find: str, found: set[int]) -> None:
    page = named.get("/images", params={"find": find}).json()
    assert {row["name"] for row in page["images"]} == {NAMES[number] for number in found}
    assert page["total"] == len(found)


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


def test_any_file_name_is_served(named: Served) -> None:
    """Also one that is not text; and none breaks the header of its file."""
    (row,) = named.get("/images", params={"find": "ytes.jpg"}).json()["images"]
    assert json.loads(named.get(f"/images/{row['image']}").text)["name"] == NAMES[6]
    assert named.get(f"/images/{row['image']}/thumbnail").status_code == 200
    assert named.search(query=row["image"]).json()["hits"][0]["path"] == row["path"]
    for row in named.get("/images").json()["images"]:
        response = named.get(f"/images/{row['image']}/file")
        header = response.headers["content-disposition"]
        assert response.status_code == 200 and header.isascii() and header.isprintable()
        assert header.startswith("inline; filename")


def test_details_of_an_image(served: Served, index: Index) -> None:
    for row in index.images():
        assert served.get(f"/images/{row.image}").json() == {**image_info(row), "available": True}
    assert refused(served.get("/images/99"), 404) == "image 99 is not in the index"
    for wrong in ("-1", "one", "1.5", str(1 << 63), "1e3"):
        refused(served.get(f"/images/{wrong}"), 422)


def test_thumbnails_are_those_of_the_library(served: Served, photographs: Path) -> None:
    for side in (160, 320, 640, 1600):
        response = served.get(f"/images/1/thumbnail?side={side}")
        assert response.content == read_thumbnail(photographs / "bridge-a.jpg", side)
        assert (response.headers["content-type"], response.headers["cache-control"]) == ("image/jpeg", "private, no-cache")


def test_a_browser_checks_a_picture_and_does_not_fetch_it_again(served: Served, photographs: Path) -> None:
    """Another index may be served at this address next."""
    for path in ("/images/1/thumbnail", f"/queries/{served.store(photographs / 'wall-a.jpg')}/picture"):
        first = served.get(path)
        again = served.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert served.get(path, headers={"If-None-Match": '"another"'}).content == first.content


def test_a_narrow_photograph_has_a_thumbnail(writable: Served) -> None:
    """The photograph has enough pixels for features, but its thumbnail has not."""
    narrow = jpeg(draw_scene(8, (900, 120)))
    stored, added = writable.store(narrow), writable.add(narrow, "narrow.jpg").json()["added"][0]["image"]
    for path in (f"/queries/{stored}/picture", f"/images/{added}/thumbnail"):
        picture = Image.open(io.BytesIO(writable.get(path, params={"side": 160}).content))
        assert picture.size == (160, 21)
    assert writable.delete(added).status_code == 200


def test_a_thumbnail_is_made_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    first = served.get("/images/2/thumbnail?side=160").content
    monkeypatch.setattr(served.service.decoders, "thumbnail", None)
    assert served.get("/images/2/thumbnail?side=160").content == first
    refused(served.get("/images/2/thumbnail?side=100"), 422)
    refused(served.get("/images/99/thumbnail"), 404)


def test_original_files_need_a_setting(served: Served, writable: Served, photographs: Path) -> None:
    response = served.get("/images/3/file")
    assert response.content == (photographs / "bridge-c.jpg").read_bytes()
    assert response.headers["content-type"] == "image/jpeg"
    assert "--originals" in refused(writable.get("/images/3/file"), 403)


def test_photographs_are_added_found_and_removed(writable: Served) -> None:
    photo, blank = jpeg(draw_scene(77)), jpeg(Image.new("RGB", (300, 200), "white"))
    before = writable.get("/health").json()
    files = [("photos", ("new.jpg", photo)), ("photos", ("broken.jpg", photo[:500])), ("photos", ("blank.jpg", blank))]
    response = writable.post("/images", files=files)
    assert response.status_code == 201
    (added,), problems = response.json()["added"], response.json()["problems"]
    assert added["name"].startswith("new-") and (added["width"], added["height"]) == (360, 270)
    assert [problem["path"].split("-")[0] for problem in problems] == ["broken.jpg", "blank"]
    folder = writable.service.settings.photo_folder
    assert {path.name.split("-")[0] for path in folder.iterdir()} <= {"new", "narrow"}  # unusable files are deleted
    assert writable.get("/statistics").json()["problems"] == []
    assert writable.search(photo).json()["hits"][0]["image"] == added["image"]
    assert writable.get(f"/images/{added['image']}/thumbnail").status_code == 200
    assert writable.get("/health").json()["images"] == before["images"] + 1

    assert writable.delete(added["image"]).json() == {"removed": added["image"]}
    assert (folder / added["name"]).exists()
    assert writable.get("/health").json()["images"] == before["images"]
    assert added["image"] not in [hit["image"] for hit in writable.search(photo).json()["hits"]]
    for path in ("", "/thumbnail"):  # also a cached thumbnail
        refused(writable.get(f"/images/{added['image']}{path}"), 404)
    refused(writable.delete(added["image"]), 404)
    refused(writable.search(query=added["image"]), 404)
    refused(writable.post("/images"), 422)


def test_a_photograph_is_added_once_and_another_of_the_same_name_does_not_replace_it(writable: Served) -> None:
    photo, other_photo = (jpeg(draw_scene(seed, (200, 150))) for seed in (78, 79))
    (first,) = writable.post("/images", files=[("photos", ("same.jpg", photo))] * 2).json()["added"]
    (again,) = writable.add(photo, "same.jpg").json()["added"]
    (other,) = writable.add(other_photo, "same.jpg").json()["added"]
    assert first == again
    assert other["image"] != first["image"] and other["path"] != first["path"]
    assert (Path(first["path"]).read_bytes(), Path(other["path"]).read_bytes()) == (photo, other_photo)
    assert writable.get(f"/images/{first['image']}").json()["available"]


def test_health_and_about(served: Served, index: Index) -> None:
    assert served.get("/health").json() == {"status": "ok", "commit": index.commit, "images": 12}
    about = served.get("/about").json()
    expected = {"version": polyvoc.__version__, "index": "photos.polyvoc", "images": 12, "vocabularies": 2, "bits": 64}
    expected |= {"commit": index.commit, "probabilities": True, "token": "none", "originals": True}
    expected |= {"write": False, "fuse": False, "smooth": False}
    assert {name: about[name] for name in expected} == expected
    assert set(about["presets"]) == {"fast", "default", "best", "paper"} and about["presets"]["best"]["min_probability"] == 0
    assert set(about["texts"]) == set(OPTIONS) and about["image_sets"] == ["bayes", "b2"]
    assert about["choices"]["merge"] == ["likelihood", "posterior", "bayes", "b0", "b1", "b2"]  # without codes
    assert about["limits"] == {"upload_bytes": 32_000_000, "pixels": 100_000_000}


def test_about_offers_what_the_index_has_codes_words_or_signatures_for(
    coded: Served, photographs: Path, fine: Vocabulary, tmp_path: Path
) -> None:
    about = coded.get("/about").json()
    assert (about["vocabularies"], about["bits"]) == (2, 0)
    assert about["choices"]["merge"] == ["codes", "posterior", "bayes", "b0", "b1", "b2"]
    assert {name: values["merge"] for name, values in about["presets"].items()} == {
        "fast": "codes", "default": "codes", "best": "codes", "paper": "bayes",
    }  # fmt: skip
    for merge in about["choices"]["merge"]:
        assert coded.search(query=1, merge=merge).json()["hits"][0]["image"] == 1, merge
    assert "needs an index with signatures" in refused(coded.search(query=1, merge="likelihood"), 422)
    with IndexWriter.open(tmp_path / "codes.polyvoc", VocabularySet((), fine)) as writer:
        writer.update([photographs])
    with serving(tmp_path / "codes.polyvoc") as served:
        about = served.get("/about").json()
        assert (about["vocabularies"], about["choices"]["merge"]) == (0, ["codes"])
        assert set(about["presets"]) == {"fast", "default", "best"}
        assert served.search(query=1).json()["hits"][0]["image"] == 1
        statistics = served.get("/statistics").json()
        assert (statistics["vocabularies"], statistics["list_lengths"], statistics["ratios"]) == ([], [], [])
        assert "needs words, and this index holds codes only" in refused(served.search(query=1, preset="paper"), 422)


def samples(served: Served) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(served.get("/metrics").text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_metrics_count(served: Served) -> None:
    before = samples(served)
    for path in ("/images/1", "/images/2", "/images/99", "/nowhere"):
        served.get(path)
    served.search(query="1")
    after = samples(served)

    def increase(*key: str) -> float:
        return after[key] - before.get(key, 0)

    assert increase("polyvoc_requests_total", "GET", "/images/{image}", "200") == 2
    assert increase("polyvoc_requests_total", "GET", "/images/{image}", "404") == 1
    assert increase("polyvoc_requests_total", "GET", "none", "404") == 1
    assert increase("polyvoc_request_seconds_count", "/search") == increase("polyvoc_stage_seconds_count", "score") == 1
    assert after["polyvoc_images",] == 12 and after["polyvoc_searches_running",] == after["polyvoc_searches_waiting",] == 0
    assert "process_resident_memory_bytes" in {key[0] for key in after}
    for cache in ("queries", "thumbnails", "statistics"):
        assert 0 <= after["polyvoc_cache_bytes", cache] <= after["polyvoc_cache_limit_bytes", cache]


def test_metrics_show_what_caches_hold(served: Served, photographs: Path) -> None:
    before = samples(served)["polyvoc_cache_bytes", "queries"]
    stored = served.store(photographs / "wall-a.jpg")
    upload = served.service.uploads.get(stored)
    assert upload is not None
    (found,) = upload.features.kinds
    assert upload.size > found.descriptors.nbytes + len(upload.picture)
    assert samples(served)["polyvoc_cache_bytes", "queries"] == before + upload.size


def test_the_page_is_served_but_no_unknown_path_or_method(served: Served) -> None:
    for path, kind in (("/", "text/html"), ("/page/app.js", "text/javascript"), ("/page/style.css", "text/css")):
        assert served.get(path).headers["content-type"].startswith(kind)
    for path in ("/nowhere", "/docs", "/redoc", "/page/nowhere.js", "/images/1/nowhere", "/search/1"):
        refused(served.get(path), 404)
    for method, path in (("GET", "/search"), ("POST", "/health"), ("TRACE", "/"), ("PUT", "/search")):
        refused(served.client.request(method, path), 405)


def test_an_unexpected_error_is_one_line_without_details(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(type(served.service), "list_images", fail)
    response = served.get("/images")
    assert "ZeroDivisionError" in refused(response, 500) and "a secret" not in response.text
