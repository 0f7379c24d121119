"""The demonstration, on drawn photographs: quick, and without scikit-image."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from polyvoc.cli.demo import CORNERS, TOP, DemoAnswer, DemoReport, find_photographs, look, make_collection, run_demo
from polyvoc.cli.main import app
from polyvoc.errors import OptionError
from polyvoc.search.hits import Hit
from polyvoc.vocabulary.vocabulary import Vocabulary

VIEWS = {"original", "viewpoint", "turned", "crop", "dark", "small", "noisy"}


def quiet(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def drawn(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Path, Path]]:
    """Three drawn photographs in the place of those of scikit-image."""
    found = {name: (photographs / f"{name}-a.jpg",) * 2 for name in ("bridge", "tower", "wall")}
    monkeypatch.setattr("polyvoc.cli.demo.find_photographs", lambda: found)
    return found


def test_the_demonstration(drawn: object, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    report = run_demo(tmp_path / "out", quiet, vocabularies)
    names = {path.stem for path in (tmp_path / "out" / "photos").iterdir()}
    assert names == {f"{name}-{view}" for name in ("bridge", "tower", "wall") for view in VIEWS}
    assert report.n_images == report.n_right == 21
    assert report.first_right >= 2  # drawings have less to offer than photographs
    assert report.mean_average_precision > 0.6
    html = report.page.read_text(encoding="utf-8")
    assert html.count('class="frame right"') + html.count('class="frame wrong"') == 3 * TOP
    assert html.count("<line ") == html.count('<g class="all">') + html.count('<g class="fewer">') > 5


def test_it_runs_again_over_an_old_folder(drawn: object, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    first = run_demo(tmp_path, quiet, vocabularies)
    photos = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "photos").iterdir()}
    second = run_demo(tmp_path, quiet, vocabularies)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "photos").iterdir()} == photos
    assert second.answers == first.answers


def test_the_command(
    drawn: object, vocabularies: tuple[Vocabulary, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.index.folder.default_vocabularies", lambda: vocabularies)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["questions"], told["images"], told["right"]) == (3, 21, 21)
    assert len(told["answers"][0]["hits"]) == TOP
    people = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert people.exit_code == 0
    assert f"Page: {tmp_path / 'index.html'}" in people.stdout
    assert people.stdout.count(" right ") == sum(hit["right"] for a in told["answers"] for hit in a["hits"][:5])
    assert "Try next: polyvoc serve" in people.stderr


def test_without_scikit_image_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install"):
        find_photographs()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_photographs_of_scikit_image_are_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "skimage"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "data" / "chelsea.png").touch()
    (package / "data" / "motorcycle_left.png").touch()  # without its other half
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "skimage", raising=False)  # another test may have imported the real one
    assert find_photographs() == {"cat": (package / "data" / "chelsea.png",) * 2}


# -- measures


def hits(*names: str) -> list[Hit]:
    return [Hit(number, f"/photos/{name}.jpg", 1.0) for number, name in enumerate(names)]


def test_measures_by_hand() -> None:
    answer = DemoAnswer("cat", Path("q.jpg"), hits("cat-a", "catalogue-a", "cat-b", "dog-a"), n_right=3)
    assert [answer.is_right(hit) for hit in answer.hits] == [True, False, True, False]
    assert answer.found == 2
    assert answer.average_precision == pytest.approx((1 / 1 + 2 / 3 + 0) / 3)
    perfect = DemoAnswer("dog", Path("q.jpg"), hits("dog-a", "cat-a"), n_right=1)
    nothing = DemoAnswer("cow", Path("q.jpg"), [], n_right=2)
    report = DemoReport(Path("i"), Path("p"), 6, 100, 1.0, [answer, perfect, nothing])
    assert (report.first_right, report.found, report.n_right) == (2, 3, 6)
    assert report.mean_average_precision == pytest.approx((5 / 9 + 1 + 0) / 3)


# -- views


def test_looking_at_the_whole_gives_the_whole(photographs: Path) -> None:
    image = Image.open(photographs / "wall-a.jpg")
    seen = look(image, CORNERS * image.size, (1.0, 1.0))
    assert seen.size == image.size
    assert np.abs(np.asarray(seen, int) - np.asarray(image, int)).max() <= 1


def test_looking_at_a_turned_quadrilateral_turns(photographs: Path) -> None:
    image = Image.open(photographs / "wall-a.jpg")
    quarter = np.roll(CORNERS * image.size, -1, axis=0)  # the top right corner becomes the top left one
    seen = look(image, quarter, (1.0, 1.0))
    turned = image.transpose(Image.Transpose.ROTATE_90)
    assert seen.size == turned.size
    assert np.abs(np.asarray(seen, int) - np.asarray(turned, int)).max() <= 1


def test_views_show_the_photograph_only(tmp_path: Path) -> None:
    for size in ((300, 200), (200, 300)):
        white = tmp_path / "white.png"
        Image.new("RGB", size, "white").save(white)
        questions = make_collection({"white": (white, white)}, tmp_path / str(size), quiet)
        for path in [*questions.values(), *(tmp_path / str(size) / "photos").glob("white-[ovtc]*.jpg")]:
            assert np.asarray(Image.open(path)).min() > 240, path  # nothing black from outside
