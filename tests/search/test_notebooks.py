"""Searching in notebooks: every kind of photograph, several at once, and hits and explanations as pictures and tables."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from conftest import draw_scene, view_of
from polyvoc.errors import ImageError, OptionError
from polyvoc.features.pictures import GAP, INLIER, OUTLINE, encode_array, encode_image
from polyvoc.search.display import SHOWN
from polyvoc.search.hits import Hit, Hits, SearchFailure, SearchResult
from polyvoc.search.index import Index
from polyvoc.search.query import Photo


@pytest.fixture(scope="module")
def index(_session_coded_index: Path) -> Index:
    """An index of the photographs, to read."""
    return Index.open(_session_coded_index)


@pytest.fixture(scope="module")
def png(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photograph that is stored without loss: all kinds of queries have the same pixels."""
    path = tmp_path_factory.mktemp("png") / "tower.png"
    view_of(draw_scene(2), "b").save(path)
    return path


def plain(hits: Hits) -> list[tuple[Any, ...]]:
    return [(hit.image, hit.score, hit.probability, hit.inliers) for hit in hits]


# -- kinds of photographs


def test_every_kind_of_photograph_gives_the_same_hits(index: Index, png: Path) -> None:
    expected = plain(index.search(png))
    image = Image.open(png)
    turned = image.rotate(90, expand=True)
    turned.getexif()[0x0112] = 6  # to be turned by 270 degrees
    pixels = np.asarray(image)
    with png.open("rb") as file:
        file.read(10)  # read from its start all the same
        kinds: list[Photo] = [
            str(png), png.read_bytes(), io.BytesIO(png.read_bytes()), file, Image.open(png), turned, pixels,
            np.asfortranarray(pixels), pixels[:, ::-1][:, ::-1], memoryview(png.read_bytes()),  # type: ignore[list-item]
            index.features(png), image.convert("RGBA"),
        ]  # fmt: skip
        assert expected and all(plain(index.search(kind)) == expected for kind in kinds)
    grey = np.asarray(image.convert("L"))
    assert [plain(index.search(one)) for one in (grey, grey[:, :, None], image.convert("L"))] == [expected] * 3
    assert index.search(np.int64(3)) == index.search(3)  # type: ignore[arg-type]


def test_deep_and_indexed_pictures_are_used_as_their_files_are(tmp_path: Path) -> None:
    scene = draw_scene(1)
    deep = Image.fromarray(np.asarray(scene.convert("L"), np.uint16) * 257)
    assert deep.mode.startswith("I;16")
    for image in (scene.convert("P"), scene.convert("LA"), scene.convert("CMYK"), deep, scene.convert("L").convert("F")):
        assert Image.open(io.BytesIO(encode_image(image))).size == scene.size


@pytest.mark.parametrize(
    "photo, message",
    [
        (np.zeros((50, 60)), r"array of float64 \[50, 60\]: not a photograph; give uint8"),
        (np.zeros((50, 60, 4), np.uint8), r"array of uint8 \[50, 60, 4\]"),
        (np.zeros((0, 60), np.uint8), r"array of uint8 \[0, 60\]"),
        (io.StringIO("text"), "not open in binary mode"),
        (3.5, "float: not a photograph; give a path"),
        (None, "NoneType: not a photograph"),
        (b"no image", "not an image of a known format"),
        (np.zeros((5, 5), np.uint8), "too small"),
    ],
)
def test_what_is_no_photograph_raises_on_one_line(index: Index, photo: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message) as caught:
        index.search(photo)
    assert "\n" not in str(caught.value)


def test_broken_pictures_and_closed_files_raise(index: Index, png: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.png").write_bytes(png.read_bytes()[:3000])
    with Image.open(tmp_path / "cut.png") as image, pytest.raises(ImageError, match=r"cut\.png: cannot be used"):
        index.search(image)
    file = png.open("rb")
    file.close()
    with pytest.raises(ImageError, match=r"tower\.png: cannot be read .* open it again"):
        index.search(file)
    with pytest.raises(OptionError, match="True is not the id of an image"):
        index.search(True)


def test_arrays_are_written_without_loss() -> None:
    rng = np.random.default_rng(1)
    for shape in ((7, 5), (5, 7, 3)):
        pixels = rng.integers(0, 256, shape).astype(np.uint8)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_array(pixels)))), pixels)


# -- several photographs


@pytest.mark.parametrize("threads", [1, 2])
def test_many_searches_are_single_ones_in_their_order(index: Index, photographs: Path, threads: int) -> None:
    paths = sorted(photographs.glob("*.jpg"))[:4]
    photos: list[Photo] = [paths[0], photographs / "nowhere.jpg", 5, paths[1].read_bytes(), np.zeros((9, 9)), str(paths[2])]
    steps: list[tuple[str, int, int]] = []
    results = index.search_many(photos, threads=threads, top=3, progress=lambda *step: steps.append(step))
    assert steps == [("searching", done, 6) for done in range(1, 7)]
    for photo, result in zip(photos, results, strict=True):
        if isinstance(result, SearchResult):
            assert plain(result.hits) == plain(index.search(photo, top=3)) and result.options.top == 3
    failed = [result for result in results if isinstance(result, SearchFailure)]
    assert [result in failed for result in results] == [False, True, False, False, True, False]
    assert "no such file" in failed[0].error and "not a photograph" in failed[1].error
    assert [result.query for result in results[:3]] == [str(paths[0]), str(photos[1]), index.image(5).path]
    assert index.search_many([]) == []
    with pytest.raises(OptionError, match="image 99 is not in the index"):
        index.search_many([1, 99])


# -- hits as a table, a dictionary and a page


def test_hits_as_a_table_and_a_dictionary(index: Index, png: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hits = index.search(png, top=4)
    table = hits.to_pandas()
    assert list(table.columns) == [column.name for column in fields(Hit)] and len(table) == 4
    assert table["path"].tolist() == [hit.path for hit in hits] and table["probability"].is_monotonic_decreasing
    assert isinstance(table, pandas.DataFrame) and list(Hits().to_pandas().columns) == list(table.columns)
    values = hits[:2].to_dict()
    assert [one["image"] for one in values["hits"]] == [hit.image for hit in hits[:2]] and values["complete"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match="to_pandas needs pandas; install it: pip install pandas"):
        hits.to_pandas()


class Parser(HTMLParser):
    """Lists the elements and their attributes; fails where end tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in {"img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(html: str, tag: str) -> list[dict[str, str | None]]:
    parser = Parser()
    parser.feed(html)
    assert parser.open == []
    return [attributes for name, attributes in parser.found if name == tag]


def test_hits_show_thumbnails_and_outlines(index: Index, png: Path) -> None:
    hits = index.search(png, top=6)
    html = hits._repr_html_()
    assert len(elements(html, "img")) == 6 and len(html) < 200_000
    assert len(elements(html, "polygon")) == sum(hit.outline is not None for hit in hits) > 0
    assert all(str(one["src"]).startswith("data:image/jpeg;base64,") for one in elements(html, "img"))
    assert not elements(html, "script") and not re.search(r"url\(|https?:|@import", html)
    assert html.startswith(f"<div><p>{len(hits.likely)} likely</p>") and "perhaps: " in html
    assert elements(hits[:1]._repr_html_(), "img") == elements(html, "img")[:1]


def test_hits_of_files_that_may_not_be_read_have_names_only(index: Index, png: Path, tmp_path: Path) -> None:
    hits = index.search(png, top=3)
    elsewhere = Hits(replace(hit, path=str(png)) for hit in hits)
    elsewhere.trust = hits.trust
    unknown = Hits(hits)  # of no index
    gone = Hits([replace(hits[0], path=str(Path(hits[0].path).parent / "gone.jpg"))])
    gone.trust = hits.trust
    for shown in (elsewhere, unknown, gone):
        html = shown._repr_html_()
        assert not elements(html, "img") and html.count("no picture") == len(shown)


def test_hostile_names_are_escaped_and_long_lists_cut() -> None:
    name = '<script>alert("1 & 2")</script>\udce9\n'
    hits = Hits(Hit(number, f"/x/{name}", 1.0, outline=((0, 0), (1, 0), (1, 1), (0, 1))) for number in range(SHOWN + 5))
    html = hits._repr_html_()
    assert not elements(html, "script") and "&lt;script&gt;" in html and "5 more" in html
    assert "\n" not in html.strip() and html.encode("utf-8")
    assert "Nothing found" in Hits()._repr_html_()
    assert "likely to show the same thing" in Hits([Hit(1, "a.jpg", 1.0, probability=0.1)])._repr_html_()


# -- explanations as pictures


def test_an_explanation_is_drawn(index: Index, png: Path) -> None:
    for photo in (png, np.asarray(Image.open(png)), 5):
        hit = next(hit for hit in index.search(photo) if hit.inliers and hit.image != 5)
        explanation = index.explain(photo, hit)
        picture = explanation.draw(long_side=320)
        assert isinstance(picture, Image.Image) and picture.size == (320 + GAP + 320, 240)
        colours = {colour for _, colour in picture.getcolors(1 << 20)}
        assert {INLIER, OUTLINE} <= colours
        fewer = explanation.draw(long_side=320, limit=0)
        assert INLIER not in {colour for _, colour in fewer.getcolors(1 << 20)}
        assert explanation.draw(320, all_matches=True).tobytes() != picture.tobytes()
    assert index.explain(png, hit.image).draw(320).size == picture.size


def test_a_drawing_needs_both_photographs(index: Index, png: Path) -> None:
    explanation = index.explain(index.features(png), 3)
    with pytest.raises(OptionError, match="draw needs the pixels of the query"):
        explanation.draw()
    with pytest.raises(OptionError, match="draw needs both photographs"):
        replace(explanation, sources=None).draw()


# -- the index


def test_an_index_can_be_iterated_counted_and_printed(index: Index) -> None:
    rows = list(index)
    assert rows == list(index.images()) and len(rows) == len(index) == 12
    assert repr(index) == f"<polyvoc.Index of {index.folder.path}: 12 images, commit {index.commit}>"
    words = Index.from_words([np.array([[1, 2]])], (5, 5))
    assert repr(words) == "<polyvoc.Index of words: 1 images, commit 0>"
