"""Plots: whole SVG that reads on light and dark, the same every time, safe whatever series are called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from hypothesis import given, settings

from polyvoc.errors import OptionError
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.plots import DARK, LIGHT, MARKERS, PANEL, _amount, _columns, _pens, save_svg
from polyvoc.experiments.report.plots import svg as plots_svg
from report_helpers import figures

HOSTILE = '</text><script>alert("$1 & 2$")</script> #010203 url(#p) \x00\udce9 検索 _'
STYLES = "line", "points", "bars", "steps", "paper"


def figure(name: str = "bayes", style: str = "line", y: tuple[float | None, ...] = (1.0, None, 3.0)) -> Figure:
    drawn = Series(name, [1, 2, 3], y, [0, 1, 2], [2, 3, 4], style)  # type: ignore[arg-type]
    return Figure("A plot", [Panel("K", "mAP", [drawn])], "A note")


def ids(svg: str) -> list[str]:
    return [node.attrib["id"] for node in ElementTree.fromstring(svg).iter() if "id" in node.attrib]


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]


def saved(figure: Figure) -> str:
    with tempfile.TemporaryDirectory() as folder:
        save_svg(figure, Path(folder) / "plot.svg")
        return (Path(folder) / "plot.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("style", STYLES)
def test_text_is_text_and_every_colour_is_for_both_pages(style: str) -> None:
    svg = plots_svg(figure(style=style))
    assert {"bayes", "K", "mAP", "1", "2", "3"} <= set(texts(svg))
    assert "<title>A plot</title>" in svg
    assert "currentColor" in svg
    assert not re.search(r"(stroke|fill): #", svg)
    assert "var(--plot-0)" in svg or style == "paper"
    assert "prefers-color-scheme:dark" in svg
    # It needs nothing else and does not reach into the page.
    assert not any(part in svg for part in ("DejaVu", "http", "*{"))
    assert not re.search(r"20\d\d-\d\d", svg)


def test_ids_are_a_plots_own() -> None:
    one, other, same = plots_svg(figure()), plots_svg(figure("b1")), plots_svg(figure(), "again")
    for svg in (one, other, same):
        assert len(set(ids(svg))) == len(ids(svg)) > 2
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) < set(ids(svg))
    assert not set(ids(one)) & set(ids(other))
    assert not set(ids(one)) & set(ids(same))
    assert all(name.startswith("again") for name in ids(same))


def test_the_same_every_time_whatever_the_users_settings() -> None:
    before = plots_svg(figure())
    with mpl.rc_context({"lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}):
        settings = dict(mpl.rcParams)
        assert plots_svg(figure()) == before
        assert dict(mpl.rcParams) == settings
    code = (
        "import json, sys; from polyvoc.experiments.report.plots import Figure, svg;"
        "print(svg(Figure.from_dict(json.load(sys.stdin))), 'matplotlib.pyplot' in sys.modules)"
    )
    given = {"input": json.dumps(figure().as_dict()), "env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}}
    done = subprocess.run([sys.executable, "-c", code], **given, capture_output=True, text=True, check=True)  # type: ignore[call-overload]
    assert done.stdout.strip() == before + " False"


@pytest.mark.parametrize("draw", [plots_svg, saved], ids=["inline", "file"])
def test_everything_is_escaped(draw: Callable[[Figure], str]) -> None:
    panel = Panel(HOSTILE, HOSTILE, [Series(HOSTILE, [0], [1]), Series("_x", [0], [1])], HOSTILE, ticks=[HOSTILE])
    svg = draw(Figure(HOSTILE, [panel], HOSTILE))
    root = ElementTree.fromstring(svg)  # a control character would be refused
    assert not any(node.tag.endswith("script") for node in root.iter())
    assert any("#010203 url(#p)" in text for text in texts(svg))
    assert any(text.startswith('</text><script>alert("$1 & 2$")') for text in texts(svg))
    assert "_x" in texts(svg)


@settings(max_examples=12, deadline=None)
@given(figures())
def test_whatever_can_be_described_can_be_drawn(figure: Figure) -> None:
    assert ElementTree.fromstring(plots_svg(figure)).tag == "svg"


@pytest.mark.parametrize("style", STYLES)
def test_a_plot_without_values_is_labelled(style: str) -> None:
    for drawn in (Series("s", [], [], style=style), Series("s", [1, 2], [None, None], [1, 1], [2, 2], style)):  # type: ignore[arg-type]
        assert "nothing measured" in texts(plots_svg(Figure("", [Panel("x", "y", [drawn])])))
    assert "nothing measured" in texts(plots_svg(Figure("", [Panel("x", "y", [])])))
    assert "nothing measured" not in texts(plots_svg(figure(style=style)))


def test_published_figures_are_hollow_and_grey() -> None:
    paper = Series("paper", [1, 2], [1, 2], style="paper")
    svg = plots_svg(Figure("", [Panel("", "", [paper])]))
    assert "stroke-dasharray" in svg and "var(--plot-back, Canvas)" in svg
    assert "stroke: var(--plot-" not in svg
    coloured = Series("paper", [1, 2], [1, 2], style="paper", color=2)
    assert "stroke: var(--plot-2)" in plots_svg(Figure("", [Panel("", "", [coloured])]))


@pytest.mark.parametrize("style", STYLES[:4])
def test_an_interval_is_a_band_along_a_line_and_a_thin_bar_elsewhere(style: str) -> None:
    shown = "fill-opacity: 0.16" if style in ("line", "steps") else "stroke-opacity: 0.6;"
    bare = Series("bayes", [1, 2, 3], [1, None, 3], style=style)  # type: ignore[arg-type]
    assert shown in plots_svg(figure(style=style))
    assert shown not in plots_svg(Figure("A plot", [Panel("K", "mAP", [bare])]))


def test_points_have_their_labels_beside_them() -> None:
    drawn = Series("s", [1, 2, 3], [4, None, 5], style="points", labels=["first", "a gap", "third"])
    written = texts(plots_svg(Figure("", [Panel("", "", [drawn])])))
    assert {"first", "third"} <= set(written) and "a gap" not in written


def test_rows_of_panels_are_filled_evenly() -> None:
    assert [_columns(Figure("", [Panel("x", "y", [])] * n)) for n in (1, 3, 4, 5, 7)] == [1, 3, 2, 3, 3]


def test_bars_of_several_series_stand_beside_each_other() -> None:
    bars = [Series(name, [0, 1], [4, 5], style="bars") for name in "ab"]
    pens = _pens(Figure("", [Panel("", "", bars)]).coloured().panels[0])
    assert [pen.shift for pen in pens] == pytest.approx([-0.2, 0.2])
    assert [pen.width for pen in pens] == pytest.approx([0.4, 0.4])
    published = Panel("", "", [*bars, Series("p", [0], [4], style="paper", color=1), Series("q", [0], [4], style="paper")])
    pens = _pens(Figure("", [published]).coloured().panels[0])
    assert [pen.shift for pen in pens[2:]] == pytest.approx([0.2, 0.0])  # on the bar of its colour, or between all


def test_few_measured_values_are_the_ticks() -> None:
    assert list(map(_amount, (0, 0.3, -2, 999, 20_000, 1_500_000))) == ["0", "0.3", "−2", "999", "20K", "1.5M"]
    drawn = [Series("s", [1500, 1501, 10_000, 1_000_000], [1, 2, 3, 4])]
    ticks = texts(plots_svg(Figure("", [Panel("", "", drawn, xscale="log")])))
    assert {"1.5K", "10K", "1M"} <= set(ticks)
    assert "1.501K" not in ticks  # it would run into its neighbour
    named = Panel("", "", [Series("s", [0, 1], [1, 2], style="bars")], ticks=["B0", "B1"])
    assert {"B0", "B1"} <= set(texts(plots_svg(Figure("", [named]))))


def test_the_colours_are_apart_from_both_pages() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert len(LIGHT) == len(DARK) == len(MARKERS)
    assert all(1.05 / (luminance(colour) + 0.05) >= 3 for colour in LIGHT)  # WCAG 2.1, graphics on white
    assert all((luminance(colour) + 0.05) / (luminance("#212327") + 0.05) >= 3 for colour in DARK)


def test_a_file_of_its_own_is_white_with_title_and_note() -> None:
    svg = saved(Figure("Three", figure().panels * 4, "word " * 200))
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root[0].attrib["fill"] == "#ffffff"
    assert "Three" in texts(svg) and "word " * 9 + "word" in svg
    assert "var(" not in svg and "currentColor" not in svg
    assert float(root.attrib["width"]) == 2 * PANEL[0]  # two beside each other, two below
    assert float(root.attrib["height"]) > 2 * PANEL[1]


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r"pip install 'polyvoc\[report\]'"):
        plots_svg(figure())


def heat_map(mark: float | None = 2.0) -> Figure:
    rows = [
        Series("plain idf", [0, 1], [2.5, -1.0], [1.0, -2.0], [4.0, 0.0], "heat"),
        Series("no idf", [0, 1], [None, 0.5], [None, 0.1], [None, 0.9], "heat"),
    ]
    return Figure("A map", [Panel("norm", "idf", rows, ticks=["tf", "none"], mark=mark)])


def test_a_heat_map_names_rows_columns_and_values_and_frames_those_that_include_the_mark() -> None:
    drawn = plots_svg(heat_map())
    assert {"plain idf", "no idf", "tf", "none", "+2.5", "\N{MINUS SIGN}1.0", "+0.5"} <= set(texts(drawn))
    frames = [len(re.findall("stroke: #1d1d1f", plots_svg(heat_map(mark)))) for mark in (None, 2.0, 0.5)]
    assert [count - frames[0] for count in frames] == [0, 1, 1]  # 1 to 4 includes 2; 0.1 to 0.9 includes 0.5
    assert Figure.from_dict(heat_map().as_dict()) == heat_map()


def test_a_heat_map_is_a_panel_of_its_own() -> None:
    with pytest.raises(OptionError, match="mixes a heat map with other series"):
        Panel("x", "y", [Series("a", [0], [1.0], style="heat"), Series("b", [0], [1.0])])
