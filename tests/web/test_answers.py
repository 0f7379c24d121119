"""The command line and the HTTP interface answer the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from commands import answer
from conftest import SCENES, VIEWS
from polyvoc.cli.main import app
from servers import Served, serving, upload

FLAGS: list[dict[str, Any]] = [
    {},
    {"preset": "fast"},
    {"preset": "best", "top": 5},
    {"merge": "b0"},
    {"sure": 0.5},
    {"merge": "b1", "hamming": 20, "sigma": 16.0},
    {"merge": "b2", "hamming": "none"},
    {"merge": "bayes", "burstiness": "intra", "burstiness_on": "all"},
    {"merge": "posterior", "line": "0.5,0.25", "c": 2.0},
    {"idf": "plain", "norm": "sqrt-tf", "verify": 0},
    {"sets": "image", "merge": "posterior", "burstiness": "none"},
    {"assignments": 3, "merge": "b1"},
    {"expansion": "hamming", "expand": 2, "verify": 10, "top": 3},
]


@pytest.fixture(scope="module")
def served(_session_index: Path) -> Iterator[Served]:
    with serving(_session_index) as served:
        yield served


@pytest.fixture(scope="module")
def questions(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path | int, dict[str, Any]]]:
    """Fifty questions: photographs, parts of them, turned, small and grey ones, images of the index, regions, and rules."""
    folder = tmp_path_factory.mktemp("questions")
    names = [photographs / f"{scene}-{view}.jpg" for scene in SCENES for view in VIEWS]
    asked: list[tuple[Path | int, dict[str, Any]]] = []
    for number, path in enumerate(names):
        image = Image.open(path)
        made = folder / f"{path.stem} {number} é.png"
        image.crop((20, 10, 300, 240)).rotate(7 * number).save(made)
        grey = folder / f"{path.stem}.webp"
        image.convert("L").resize((300, 220)).save(grey, quality=90)
        rules = [FLAGS[(number + shift) % len(FLAGS)] for shift in range(4)]
        region = {"region": f"{10 + number},20,{250.5 + number},200"}
        asked += [(path, rules[0]), (made, rules[1]), (grey, {**rules[2], **region}), (number + 1, rules[3])]
    return [*asked, (3, {"region": "0,0,200,200"}), (names[0], {"smooth": 0.0, "norm": "self"})]


def flags(parameters: dict[str, Any]) -> list[object]:
    """Give parameters of a request as they are typed."""
    typed: list[object] = []
    for name, value in parameters.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "preset":
            typed += [] if value == "default" else [f"--{value}"]
        elif name in ("region", "line"):
            typed += [flag, *value.split(",")]
        else:
            typed += [flag, value]
    return typed


def without_times(told: dict[str, Any]) -> dict[str, Any]:
    """Keep the stages, in their order, and forget how long they took."""
    assert all(isinstance(value, (int, float)) and value >= 0 for value in told["seconds"].values())
    return {**told, "seconds": list(told["seconds"])}


def test_fifty_questions_have_the_same_answer(served: Served, questions: list[Any], _session_index: Path) -> None:
    assert len(questions) == 50
    assert len({(str(asked), json.dumps(rules)) for asked, rules in questions}) == 50
    n_hits = 0
    for asked, rules in questions:
        photo = ["--image", asked] if isinstance(asked, int) else [asked]
        typed = answer("search", *photo, "--index", _session_index, *flags(rules))
        query = {"query": asked} if isinstance(asked, int) else {}
        response = served.search(None if isinstance(asked, int) else asked, **query, **rules)
        assert response.status_code == 200, response.text
        assert without_times(response.json()) == without_times(typed), (asked, rules)
        n_hits += len(typed["hits"])
    assert n_hits > 100


def test_several_photographs_have_the_same_answers(
    served: Served, photographs: Path, _session_index: Path, tmp_path: Path
) -> None:
    broken, empty = tmp_path / "broken.jpg", tmp_path / "empty.jpg"
    broken.write_bytes((photographs / "wall-a.jpg").read_bytes()[:900])
    empty.write_bytes(b"")
    paths = [photographs / "tower-b.jpg", broken, photographs / "market-c.jpg"]
    typed = CliRunner().invoke(app, ["search", *map(str, paths), "--image", "4", "--index", str(_session_index), "--json"])
    assert typed.exit_code == 1  # of the broken one, which is told of on stderr as well
    response = served.client.post("/search/batch", files=[("photos", upload(path)) for path in paths], params={"query": "4"})
    assert response.status_code == 200

    def plain(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one if "error" in one else without_times(one) for one in told]

    assert plain(response.json()) == plain(json.loads(typed.stdout))
    assert [("error" in one) for one in response.json()] == [False, True, False, False]


def test_the_lines_of_a_stream_end_with_the_plain_answer(served: Served, photographs: Path) -> None:
    photo = photographs / "bridge-c.jpg"
    plain = served.search(photo)
    stream = served.client.post("/search", files={"photo": upload(photo)}, headers={"Accept": "application/x-ndjson"})
    assert stream.headers["content-type"].startswith("application/x-ndjson")
    first, last = map(json.loads, stream.text.splitlines())
    assert (first.pop("stage"), last.pop("stage")) == ("scored", "done")
    assert without_times(last) == without_times(plain.json())
    assert without_times(first) == {**without_times(served.search(photo, verify=0).json()), "options": last["options"]}
    assert all(hit["inliers"] == 0 for hit in first["hits"])


def test_a_stream_without_verification_has_one_line(served: Served) -> None:
    stream = served.client.post("/search?query=2&preset=fast", headers={"Accept": "application/x-ndjson"})
    (line,) = stream.text.splitlines()
    assert json.loads(line)["stage"] == "done"


def test_a_kept_photograph_answers_as_when_it_is_sent(served: Served, photographs: Path) -> None:
    photo = photographs / "tower-c.jpg"
    kept = served.client.post("/queries", files={"photo": upload(photo)})
    assert kept.status_code == 201
    sent = served.search(photo, region="10,10,200,200").json()
    known = served.search(query=kept.json()["query"], region="10,10,200,200").json()
    assert {**known, "seconds": 0} == {**sent, "seconds": 0}


def test_statistics_are_what_info_prints(served: Served, _session_index: Path) -> None:
    assert served.get("/statistics").json() == answer("info", "--index", _session_index, "--distributions")
