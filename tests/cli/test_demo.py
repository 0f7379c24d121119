"""The demonstration, on drawn photographs: quick, and without scikit-image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import answer, refuse, run
from polyvoc.cli.demo_photos import (
    CORNERS,
    TOP,
    DemoReport,
    DemoResult,
    find_photographs,
    make_collection,
    render,
    run_demo,
)
from polyvoc.errors import OptionError
from polyvoc.search.hits import Hit
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet

VIEWS = {"original", "viewpoint", "turned", "crop", "dark", "small", "noisy"}


def quiet(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def drawn(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three drawn photographs instead of those of scikit-image."""
    found = {name: (photographs / f"{name}-a.jpg",) * 2 for name in ("bridge", "tower", "wall")}
    monkeypatch.setattr("polyvoc.cli.demo_photos.find_photographs", lambda: found)


def test_demo_and_its_second_run(drawn: None, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    report = run_demo(tmp_path, quiet, vocabularies)
    photos = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "photos").iterdir()}
    assert {path.stem for path in photos} == {f"{name}-{view}" for name in ("bridge", "tower", "wall") for view in VIEWS}
    assert report.n_images == report.n_right == 21
    assert report.first_right >= 2  # drawings have less texture than photographs
    assert report.mean_average_precision > 0.6
    html = report.page.read_text(encoding="utf-8")
    assert html.count('class="frame right"') + html.count('class="frame wrong"') == 3 * TOP
    again = run_demo(tmp_path, quiet, vocabularies)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "photos").iterdir()} == photos
    assert again.results == report.results


def test_command(
    drawn: None, vocabularies: tuple[Vocabulary, ...], fine: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VocabularySet, "default", lambda kind: VocabularySet(vocabularies, fine))
    result = answer("demo", "--out", tmp_path)
    assert (result["queries"], result["images"], result["right"]) == (3, 21, 21)
    assert len(result["results"][0]["hits"]) == TOP
    shown = run("demo", "--out", tmp_path)
    assert shown.exit_code == 0
    assert f"Page: {tmp_path / 'index.html'}" in shown.stdout
    assert shown.stdout.count(" right ") == sum(hit["right"] for one in result["results"] for hit in one["hits"][:5])
    assert "Try next: polyvoc serve" in shown.stderr


def test_without_scikit_image_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install"):
        find_photographs()
    assert "pip install" in refuse("demo", "--out", tmp_path / "out")
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


@pytest.mark.parametrize("module", ["demo", "duplicates"])
def test_command_modules_import_the_work_in_the_command(module: str) -> None:
    code = f"import sys, polyvoc.cli.{module}; print(*(name for name in sys.modules if name.startswith('polyvoc.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"polyvoc.cli.demo_photos", "polyvoc.duplicates.groups", "polyvoc.web.html"} & set(done.stdout.split())


def test_measures_by_hand() -> None:
    def hits(*names: str) -> list[Hit]:
        return [Hit(number, f"/photos/{name}.jpg", 1.0) for number, name in enumerate(names)]

    result = DemoResult("cat", Path("q.jpg"), hits("cat-a", "catalogue-a", "cat-b", "dog-a"), n_right=3)
    assert [result.is_right(hit) for hit in result.hits] == [True, False, True, False]
    assert result.found == 2
    assert result.average_precision == pytest.approx((1 / 1 + 2 / 3 + 0) / 3)
    perfect = DemoResult("dog", Path("q.jpg"), hits("dog-a", "cat-a"), n_right=1)
    nothing = DemoResult("cow", Path("q.jpg"), [], n_right=2)
    report = DemoReport(Path("i"), Path("p"), 6, 100, 1.0, [result, perfect, nothing])
    assert (report.first_right, report.found, report.n_right) == (2, 3, 6)
    assert report.mean_average_precision == pytest.approx((5 / 9 + 1 + 0) / 3)


@pytest.mark.parametrize("quarters", [0, 1])
def test_rendering_the_whole_or_rotated_photograph(photographs: Path, quarters: int) -> None:
    """Where the top right corner becomes the top left one, the photograph is rotated by a quarter."""
    image = Image.open(photographs / "wall-a.jpg")
    rendered = render(image, np.roll(CORNERS * image.size, -quarters, axis=0))
    expected = np.rot90(np.asarray(image, int), quarters)
    assert rendered.size == expected.shape[1::-1]
    assert np.abs(np.asarray(rendered, int) - expected).max() <= 1


def test_views_show_the_photograph_only(tmp_path: Path) -> None:
    for size in ((300, 200), (200, 300)):
        white = tmp_path / "white.png"
        Image.new("RGB", size, "white").save(white)
        queries = make_collection({"white": (white, white)}, tmp_path / str(size), quiet)
        for path in [*queries.values(), *(tmp_path / str(size) / "photos").glob("white-[ovtc]*.jpg")]:
            assert np.asarray(Image.open(path)).min() > 240, path  # nothing black from outside
