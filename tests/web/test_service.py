"""The served index: results equal those of the command line, new commits are served, and edits leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from typer.testing import CliRunner

from commands import answer, searched
from conftest import SCENES, VIEWS, draw_scene
from onnxfiles import chain
from polyvoc.cli.main import app
from polyvoc.errors import UnreachableError
from polyvoc.features.decode import _Process
from polyvoc.index.folder import IndexFolder
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.web.service import DAMAGED, Service, Upload
from servers import PATIENCE, Gate, Served, jpeg, refused, serving, upload, wait_until, without_times

SIDE = (160, 120)
PHOTO = jpeg(draw_scene(77))
NDJSON = {"Accept": "application/x-ndjson"}
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"preset": "fast"},
    {"preset": "best", "top": 5},
    {"merge": "b0"},
    {"min_probability": 0.5},
    {"merge": "b1", "hamming": 20, "sigma": 16.0},
    {"merge": "b2", "hamming": "none"},
    {"merge": "bayes", "burstiness": "intra"},
    {"merge": "posterior", "line": "0.5,0.25", "c": 2.0},
    {"idf": "plain", "norm": "sqrt-tf", "verify": 0},
    {"sets": "image", "merge": "posterior", "burstiness": "none"},
    {"preset": "paper", "vocabularies": 1},
    {"preset": "paper", "idf_power": 2, "norm": "distinct"},
    {"assignments": 3, "merge": "b1"},
    {"expand": 2, "verify": 10, "top": 3},
]


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a new commit with every request."""
    monkeypatch.setattr("polyvoc.web.service.REFRESH_SECONDS", 0.0)


@pytest.fixture(scope="module")
def queries(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path | int, dict[str, Any]]]:
    """Fifty queries: photographs, parts of them, rotated, small and grey ones, images of the index, regions, and options."""
    folder = tmp_path_factory.mktemp("queries")
    paths = [photographs / f"{scene}-{view}.jpg" for scene in SCENES for view in VIEWS]
    queries: list[tuple[Path | int, dict[str, Any]]] = []
    for number, path in enumerate(paths):
        image = Image.open(path)
        part, grey = folder / f"{path.stem} {number} é.png", folder / f"{path.stem}.webp"
        image.crop((20, 10, 300, 240)).rotate(7 * number).save(part)
        image.convert("L").resize((300, 220)).save(grey, quality=90)
        chosen = [PARAMETERS[(number + shift) % len(PARAMETERS)] for shift in range(4)]
        region = {"region": f"{10 + number},20,{250.5 + number},200"}
        queries += [(path, chosen[0]), (part, chosen[1]), (grey, {**chosen[2], **region}), (number + 1, chosen[3])]
    return [*queries, (3, {"region": "0,0,200,200"}), (paths[0], {"smooth": 0.0, "norm": "tf"})]


def flags(parameters: dict[str, Any]) -> list[object]:
    """Return the flags of the command line for parameters of a request."""
    words: list[object] = []
    for name, value in parameters.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "preset":
            words += [f"--{value}"]
        else:
            words += [flag, *(value.split(",") if name in ("region", "line") else [value])]
    return words


def test_results_equal_those_of_the_command_line(served: Served, queries: list[Any], _session_index: Path) -> None:
    assert len({(str(photo), json.dumps(parameters)) for photo, parameters in queries}) == len(queries) == 50
    n_hits = 0
    for photo, parameters in queries:
        stored = isinstance(photo, int)
        expected = searched(*(["--image"] if stored else []), photo, "--index", _session_index, *flags(parameters))
        response = served.search(query=photo, **parameters) if stored else served.search(photo, **parameters)
        assert response.status_code == 200, response.text
        assert without_times(response.json()) == without_times(expected), (photo, parameters)
        n_hits += len(expected["hits"])
    assert n_hits > 100


def test_results_by_codes_equal_those_of_the_command_line(
    coded: Served, queries: list[Any], _session_coded_index: Path
) -> None:
    merges = set()
    for photo, parameters in queries:
        if "merge" in parameters:  # by words, as without codes
            continue
        stored = isinstance(photo, int)
        expected = searched(*(["--image"] if stored else []), photo, "--index", _session_coded_index, *flags(parameters))
        response = coded.search(query=photo, **parameters) if stored else coded.search(photo, **parameters)
        assert response.status_code == 200, response.text
        assert without_times(response.json()) == without_times(expected), (photo, parameters)
        merges.add((expected["options"]["merge"], stored, "region" in parameters))
    assert {("codes", stored, region) for stored in (False, True) for region in (False, True)} <= merges


def test_a_photograph_added_to_an_index_with_codes_is_found_until_it_is_removed(coded: Served) -> None:
    photo = jpeg(draw_scene(91))
    (added,) = coded.add(photo).json()["added"]
    best = coded.search(photo).json()["hits"][0]
    assert (best["image"], best["probability"] > 0.99) == (added["image"], True)
    assert coded.search(query=added["image"]).json()["hits"][0]["image"] == added["image"]
    assert coded.delete(added["image"]).json() == {"removed": added["image"]}
    assert added["image"] not in [hit["image"] for hit in coded.search(photo).json()["hits"]]


def test_results_of_a_batch_equal_those_of_the_command_line(
    served: Served, photographs: Path, _session_index: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes((photographs / "wall-a.jpg").read_bytes()[:900])
    paths = [photographs / "tower-b.jpg", broken, photographs / "market-c.jpg"]
    command = CliRunner().invoke(app, ["search", *map(str, paths), "--image", "4", "--index", str(_session_index), "--json"])
    assert command.exit_code == 1  # because of the broken one, which is reported on stderr as well
    response = served.post("/search/batch", files=[("photos", upload(path)) for path in paths], params={"query": "4"})
    results, expected = (
        [one if "error" in one else without_times(one) for one in values]
        for values in (response.json(), json.loads(command.stdout)["results"])
    )
    assert results == expected
    assert [("error" in one) for one in results] == [False, True, False, False]


def test_a_stream_ends_with_the_plain_result(served: Served, photographs: Path) -> None:
    photo = photographs / "bridge-c.jpg"
    stream = served.post("/search", files={"photo": upload(photo)}, headers=NDJSON)
    assert stream.headers["content-type"].startswith(NDJSON["Accept"])
    first, last = map(json.loads, stream.text.splitlines())
    assert (first.pop("stage"), last.pop("stage")) == ("scored", "done")
    assert without_times(last) == without_times(served.search(photo).json())
    assert without_times(first) == {**without_times(served.search(photo, verify=0).json()), "options": last["options"]}
    assert all(hit["inliers"] == 0 for hit in first["hits"])
    (line,) = served.post("/search?query=2&preset=fast", headers=NDJSON).text.splitlines()  # without verification
    assert json.loads(line)["stage"] == "done"


def test_a_stored_upload_has_the_results_of_the_upload(served: Served, photographs: Path) -> None:
    photo = photographs / "tower-c.jpg"
    direct = served.search(photo, region="10,10,200,200").json()
    by_name = served.search(query=served.store(photo), region="10,10,200,200").json()
    assert {**by_name, "seconds": 0} == {**direct, "seconds": 0}


def test_statistics_are_what_info_prints(served: Served, copied_index: Path) -> None:
    assert served.get("/statistics").json() == answer("info", "--index", copied_index, "--distributions")


def test_fusion_with_a_global_embedding(photographs: Path, vocabularies: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Pixels are decoded in another process, and results equal those of the command line."""
    pytest.importorskip("onnxruntime", reason="models need onnxruntime: pip install 'polyvoc[embedding]'")
    folder, photo = tmp_path_factory.mktemp("embedded"), photographs / "market-b.jpg"
    path, model = folder / "photos.polyvoc", folder / "colours.onnx"
    model.write_bytes(chain("GlobalAveragePool", "Flatten", output=(1, 3)))  # the mean of each colour
    with IndexWriter.open(path, vocabularies, embedding=model) as writer:
        writer.update([photographs])
    with serving(path) as served:
        expected = searched(photo, "--fuse", "--index", path)
        fused = served.search(photo, fuse=True).json()
        assert without_times(fused) == without_times(expected) and "embed" in fused["seconds"]
        assert [hit["score"] for hit in served.search(photo).json()["hits"]] != [hit["score"] for hit in fused["hits"]]
        stored = served.store(photo)
        assert served.search(query=stored, fuse=True).json()["hits"] == fused["hits"]
        assert served.search(query=3, fuse=True).status_code == 200
        for query in ({"photo": photo}, {"query": stored}, {"query": 3}):
            assert "fuse" in refused(served.search(**query, fuse=True, region="10,10,200,200"), 422)


def index_scenes(path: Path, folder: Path, *seeds: int) -> None:
    """Add photographs to an index, as another process would."""
    photos = [folder / f"{seed}.jpg" for seed in seeds]
    for seed, photo in zip(seeds, photos, strict=True):
        photo.write_bytes(jpeg(draw_scene(seed, SIDE)))
    with IndexWriter.open(path) as writer:
        writer.update(photos)


def test_a_new_commit_is_served_without_a_restart(index_path: Path, tmp_path: Path) -> None:
    photo = jpeg(draw_scene(50, SIDE))
    with serving(index_path, workers=1) as served:
        before, old = served.get("/health").json(), served.service.index
        index_scenes(index_path, tmp_path, 50)
        after = served.get("/health").json()
        assert after["images"] == before["images"] + 1 and after["commit"] > before["commit"]
        hit = served.search(photo).json()["hits"][0]
        assert hit["path"].endswith("50.jpg")
        assert served.get(f"/images/{hit['image']}/thumbnail").status_code == 200
        assert len(old) == 12 and old.search(1)[0].image == 1  # the old snapshot stays valid
        with IndexWriter.open(index_path) as writer:
            writer.remove([tmp_path / "50.jpg"])
        assert served.get("/health").json()["images"] == 12
        assert hit["image"] not in [one["image"] for one in served.search(photo).json()["hits"]]


def test_a_search_that_runs_during_a_commit_uses_the_old_one(
    index_path: Path, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(index_path, workers=1) as served, ThreadPoolExecutor(1) as client:
        expected = served.search(query=1).json()["hits"]
        monkeypatch.setattr(Index, "search", gate.before(Index.search))
        response = client.submit(httpx.post, f"{served.client.base_url}search?query=1", timeout=PATIENCE)
        gate.wait_for()
        index_scenes(index_path, tmp_path, 50, 51, 52)
        assert served.get("/health").json()["images"] == 15
        gate.open.set()
        assert response.result().json()["hits"] == expected
        assert served.search(query=1).json()["hits"] != expected  # more images change the weights


def test_results_beside_a_writer_are_those_of_some_commit(index_path: Path, tmp_path: Path) -> None:
    photo = jpeg(draw_scene(1, SIDE))
    done, results = threading.Event(), []

    def search(url: str) -> None:
        while not done.is_set():
            response = httpx.post(f"{url}search?preset=fast", files={"photo": photo}, timeout=PATIENCE)
            results.append(tuple((hit["image"], hit["score"]) for hit in response.json()["hits"]))

    def hits_now() -> tuple[tuple[int, float], ...]:
        with Index.open(index_path) as index:
            return tuple((hit.image, hit.score) for hit in index.search(photo, preset="fast"))

    with serving(index_path, write=True, workers=2) as served:
        commits = [hits_now()]
        with ThreadPoolExecutor(2) as clients:
            searches = [clients.submit(search, str(served.client.base_url)) for _ in range(2)]
            for seed in range(60, 62):
                index_scenes(index_path, tmp_path, seed)
                commits.append(hits_now())
                (added,) = served.add(jpeg(draw_scene(seed + 100, SIDE)), f"{seed}.jpg").json()["added"]
                commits.append(hits_now())
                assert served.delete(added["image"]).json() == {"removed": added["image"]}
                commits.append(hits_now())
            done.set()
            for future in searches:
                future.result()
    assert results
    assert [result for result in results if not any(is_result_of(result, commit) for commit in commits)] == []


def is_result_of(result: tuple[tuple[int, float], ...], commit: tuple[tuple[int, float], ...]) -> bool:
    """Return whether a result is that of a commit, without an image that was removed while it was searched."""
    rest = iter(commit)
    return all(any(hit == other for other in rest) for hit in result) and len(result) >= len(commit) - 1


def test_of_a_commit_that_is_damaged_the_rest_is_served(index_path: Path, tmp_path: Path) -> None:
    with serving(index_path, workers=1) as served:
        expected = served.search(query=1).json()["hits"]
        known = set((index_path / "segments").iterdir())
        index_scenes(index_path, tmp_path, 50)
        (fresh,) = set((index_path / "segments").iterdir()) - known
        hidden = Path(shutil.move(fresh, tmp_path / "hidden"))
        health = served.get("/health").json()
        assert (health["status"], health["images"]) == ("damaged", 12)
        result = served.search(query=1).json()
        assert [hit["image"] for hit in result["hits"]] == [hit["image"] for hit in expected]
        assert not result["complete"] and result["missing"] and result["damage"] == [DAMAGED]
        shutil.move(hidden, fresh)
        health = served.get("/health").json()
        assert (health["status"], health["images"]) == ("ok", 13)


def test_another_index_at_the_same_path_is_served(index_path: Path, photographs: Path, vocabularies: Any) -> None:
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


PHOTO = jpeg(draw_scene(91, (300, 220)))


def saved_files(served: Served) -> list[str]:
    folder = served.service.settings.photo_folder
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("photos", [None, Path("somewhere/else")])
def test_relative_paths_become_absolute(index_path: Path, photos: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    (index_path.parent / "here").mkdir()
    monkeypatch.chdir(index_path.parent / "here")
    with serving(Path("..") / index_path.name, write=True, photos=photos, workers=1) as served:
        (added,) = served.add(PHOTO).json()["added"]
        assert added["path"] == os.path.abspath(added["path"]) and Path(added["path"]).exists()
        assert served.get(f"/images/{added['image']}/thumbnail").status_code == 200


def test_adding_goes_on_when_the_client_disconnects(index_path: Path) -> None:
    with serving(index_path, write=True, workers=1) as served:
        before = served.get("/health").json()["images"]
        request = served.client.build_request("POST", "/images", files={"photos": ("x.jpg", PHOTO)})
        head = f"POST /images HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {request.headers['content-type']}\r\n"
        body = request.read()
        with socket.create_connection(served.address[:2], timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: served.get("/health").json()["images"] == before + 1)
        assert len(saved_files(served)) == 1


def test_a_locked_index_is_read_but_not_written(index_path: Path) -> None:
    """Files that could not be indexed are deleted, but not one that was there before."""
    with serving(index_path, write=True, workers=1) as served:
        for n_files in (0, 1):
            with IndexWriter.open(index_path):
                for response in (served.add(PHOTO), served.delete(1)):
                    assert "is being written by another process" in refused(response, 503)
                    assert int(response.headers["retry-after"]) >= 1
                assert served.search(query=1).status_code == 200
            assert len(saved_files(served)) == n_files
            assert served.add(PHOTO).status_code == 201
        assert served.delete(1).status_code == 200


def killing(patch: pytest.MonkeyPatch, times: int) -> None:
    """Have the next processes that get a photograph killed."""
    left, ask = list(range(times)), _Process._ask

    def kill(process: _Process, *values: Any) -> Any:
        if left:
            left.pop()
            os.kill(process.pid, signal.SIGKILL)
        return ask(process, *values)

    patch.setattr(_Process, "_ask", kill)


def test_a_decoder_that_dies_costs_no_photograph(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decoded by another one; if that dies, too, the client may try again, and nothing was added."""
    with serving(index_path, write=True) as served:
        for path in ("/search", "/queries"):
            with monkeypatch.context() as patch:
                killing(patch, 1)
                assert served.post(path, files={"photo": ("new.jpg", PHOTO)}).status_code in (200, 201)
            with monkeypatch.context() as patch:
                killing(patch, 2)
                response = served.post(path, files={"photo": ("new.jpg", PHOTO)})
            assert refused(response, 503) == "new.jpg: could not be decoded now (SIGKILL); try again"
            assert "Retry-After" in response.headers
        with monkeypatch.context() as patch:  # while it is checked
            killing(patch, 2)
            assert "try again" in refused(served.add(PHOTO, "new.jpg"), 503)
        assert not any(served.service.settings.photo_folder.glob("new*"))
        for times in (1, 2, 3):  # while it is indexed
            with monkeypatch.context() as patch:
                patch.setattr(Service, "check", lambda *_: None)
                killing(patch, times)
                added = served.add(PHOTO, "new.jpg").json()
            assert len(added["added"]) == 1 and added["problems"] == []
            assert served.delete(added["added"][0]["image"]).status_code == 200


def test_no_photograph_is_decoded_in_the_server(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.features.pixels._open_header", lambda *_: pytest.fail("decoded in the server"))
    with serving(index_path, write=True) as served:
        added = served.add(PHOTO, "new.jpg").json()
        assert len(added["added"]) == 1 and added["problems"] == []
        image = added["added"][0]["image"]
        assert served.get(f"/images/{image}/thumbnail").status_code == 200
        assert served.search(PHOTO).json()["hits"][0]["image"] == image
        assert served.search(query=image, assignments=2).status_code == 200


def test_a_full_disk_is_reported(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with serving(index_path, write=True, workers=1) as served:
        monkeypatch.setattr(Path, "write_bytes", full)
        assert "the disk is full" in refused(served.add(PHOTO), 507)
        assert saved_files(served) == [] and served.search(query=1).status_code == 200


def test_a_full_temporary_folder_is_reported(
    index_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    photo = jpeg(draw_scene(60, (2000, 1500))) * 3  # large enough for a file
    with serving(index_path, workers=1) as served:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
        line = refused(served.search(photo), 507)
        assert "the upload cannot be stored (No such file or directory)" in line and line in caplog.text
        monkeypatch.undo()
        assert served.search(photo).status_code == 200


def test_a_photograph_that_cannot_be_decoded_now_is_not_dropped(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is added, so that the whole request can be sent again."""
    with serving(index_path, workers=1, write=True) as served:
        original, calls = Service.check, []

        def check(service: Service, upload: Upload) -> None:
            calls.append(upload.name)
            if len(calls) == 2:
                raise UnreachableError(f"{upload.name}: the decoder has died; try again later")
            original(service, upload)

        monkeypatch.setattr(Service, "check", check)
        photos = [("photos", (f"{seed}.jpg", jpeg(draw_scene(seed, SIDE)))) for seed in (61, 62, 63)]
        response = served.post("/images", files=photos)
        assert "the decoder has died" in refused(response, 503) and int(response.headers["retry-after"]) > 0
        assert served.get("/health").json()["images"] == 12
        assert list(served.service.settings.photo_folder.iterdir()) == []
        assert len(served.post("/images", files=photos).json()["added"]) == 3


def test_additions_load_no_vocabularies(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the served index, unless another one was made at its path."""
    loaded: list[IndexFolder] = []
    original = IndexFolder.vocabularies
    monkeypatch.setattr(IndexFolder, "vocabularies", lambda folder: loaded.append(folder) or original(folder))
    with serving(index_path, workers=1, write=True) as served:
        assert len(loaded) == 1
        for seed in (64, 65):
            (added,) = served.add(jpeg(draw_scene(seed, SIDE))).json()["added"]
            assert served.search(jpeg(draw_scene(seed, SIDE))).json()["hits"][0]["image"] == added["image"]
        assert len(loaded) == 1


def test_an_index_that_is_gone_is_not_created_again(index_path: Path, tmp_path: Path) -> None:
    with serving(index_path, write=True, workers=1) as served:
        index_path.rename(tmp_path / "moved.polyvoc")
        assert served.add(PHOTO).status_code >= 400
        assert served.delete(1).status_code >= 400
        assert not index_path.exists()
