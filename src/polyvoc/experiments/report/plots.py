"""Plots as SVG from the records of `figures.py`. The only module that imports matplotlib."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from polyvoc.errors import OptionError
from polyvoc.experiments.report.figures import Figure, Panel, Series, Style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["Figure", "Panel", "Series", "save_svg", "svg"]
PANEL = 480, 310  # points: wide enough to read beside another, narrow enough for a telephone
COLUMNS = 3  # panels in a row, at most
DENSE = 24  # a line through more points than this has no markers
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Six colours for light and for dark, in this order. Found by search: their least distance is 0.13 in OKLab for normal sight
# and for simulated protanopia, deuteranopia and tritanopia (Machado 2009); contrast with the page is at least 3.
LIGHT = "#255ecf", "#be4218", "#13a593", "#8a4980", "#d48200", "#4d2179"
DARK = "#438ef8", "#f56635", "#4be4b6", "#c587a4", "#efc839", "#b6b2ff"
MARKERS = "o", "s", "^", "D", "v", "P"  # one per colour: a plot printed in grey can still be read
# Placeholders that matplotlib draws with; replaced by the true colours in the SVG.
INK, BACK = "#010203", "#010204"
SERIES = tuple(f"#0102{number:02x}" for number in range(16, 16 + len(LIGHT)))
RC: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "font.size": 12,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.titlesize": 12.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.left": False,
    "xtick.minor.size": 0,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.09,
    "lines.linewidth": 2,
    "lines.markersize": 6,
} | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK)


def svg(figure: Figure, prefix: str = "") -> str:
    """Return an SVG element for a page, light or dark, without the title and the note.

    All its ids begin with the prefix (default: one made from the content), so that one page can hold several.
    """
    figure = figure.coloured()
    prefix = prefix or "plot-" + hashlib.sha256(json.dumps(figure.as_dict()).encode()).hexdigest()[:10]
    root = _tree(figure, prefix)
    colours = {INK: "currentColor", BACK: "var(--plot-back, Canvas)"}
    _paint(root, colours | {stand_in: f"var(--plot-{number})" for number, stand_in in enumerate(SERIES)})
    root.attrib |= {"id": prefix, "class": "plot", "role": "img", "style": "max-width: 100%; height: auto"}
    style, title = ElementTree.Element("style"), ElementTree.Element("title")
    style.text = (
        f"#{prefix}{{{_variables(LIGHT)}}}@media screen and (prefers-color-scheme:dark){{#{prefix}{{{_variables(DARK)}}}}}"
    )
    title.text = _clean(figure.title)
    root[:0] = [title, style]
    return ElementTree.tostring(root, encoding="unicode")


def save_svg(figure: Figure, path: Path) -> None:
    """Write a separate file: on white, with title and note, in colours that any viewer of SVG can show."""
    root = _tree(figure.coloured(), "plot")
    _paint(root, {INK: "#1d1d1f", BACK: "#ffffff", **dict(zip(SERIES, LIGHT, strict=True))})
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    note = textwrap.wrap(_clean(figure.note), int(width / 5.6))
    lines = [(-16.0, "bold 14px", _short(figure.title, int(width / 7.5)))]
    lines += [(height + 16 * number, "10.5px", line) for number, line in enumerate(note, 1)]
    for y, font, line in lines:
        ElementTree.SubElement(root, "text", x="8", y=f"{y:g}", fill="#1d1d1f", style=f"font: {font} {FONT}").text = line
    height += 40 + 16 * len(note) + 8
    root.insert(0, ElementTree.Element("rect", y="-40", width="100%", height="100%", fill="#ffffff"))
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "height": f"{height:g}", "viewBox": f"0 -40 {width:g} {height:g}"}
    path.write_text(ElementTree.tostring(root, encoding="unicode") + "\n", encoding="utf-8")


def _variables(colours: Iterable[str]) -> str:
    return ";".join(f"--plot-{number}:{colour}" for number, colour in enumerate(colours))


def _tree(figure: Figure, prefix: str) -> ElementTree.Element:
    """Return the drawing of matplotlib without namespaces, metadata and unused ids."""
    root = ElementTree.fromstring(_drawn(figure, prefix))
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        parent.attrib = {name.rpartition("}")[2]: value for name, value in parent.attrib.items()}
        # Its style of all elements ("*") would reach into the page.
        parent[:] = [child for child in parent if child.tag.rpartition("}")[2] not in {"style", "metadata"}]
    used = {name for node in root.iter() for value in node.attrib.values() for name in re.findall(r"^(?:url\()?#(\w+)", value)}
    for node in root.iter():
        if node.attrib.get("id") not in used:
            node.attrib.pop("id", None)
        for name in {"id", "href", "clip-path"} & node.attrib.keys():
            node.attrib[name] = re.sub(r"^((?:url\()?#)?", rf"\g<1>{prefix}-", node.attrib[name])
    box = root.attrib["viewBox"]
    root.attrib = {"viewBox": box, "width": box.split()[2], "stroke-linejoin": "round"}
    return root


def _paint(root: ElementTree.Element, colours: Mapping[str, str]) -> None:
    for node in root.iter():
        if "style" in node.attrib:
            style = re.sub("'DejaVu Sans'[^;]*", FONT, node.attrib["style"])  # measured with it, drawn with the reader's
            node.attrib["style"] = re.sub("#0102..", lambda match: colours[match[0]], style)


def _drawn(figure: Figure, salt: str) -> str:
    """Return the SVG of matplotlib, independent of the user's settings, which are not changed."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise OptionError(f"plots need matplotlib ({error}): pip install 'polyvoc[report]'") from None
    columns = _columns(figure)
    size = PANEL[0] * columns / 72, PANEL[1] * math.ceil(len(figure.panels) / columns) / 72  # inches
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a letter that only the reader's fonts have
        mpl.rcdefaults()
        mpl.rcParams.update({**RC, "svg.hashsalt": salt})
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasSVG(canvas)
        _fill(canvas, figure)
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return text.getvalue()


def _columns(figure: Figure) -> int:
    """Return the panels of a row: as few rows as there must be, filled evenly."""
    rows = math.ceil(len(figure.panels) / COLUMNS)
    return math.ceil(len(figure.panels) / rows)


def _fill(canvas: Canvas, figure: Figure) -> None:
    columns = _columns(figure)
    grid = canvas.subplots(math.ceil(len(figure.panels) / columns), columns, squeeze=False)
    legend: dict[tuple[str, Style, str], Artist] = {}
    for axes in grid.flat[len(figure.panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, figure.panels, strict=False):
        _label(axes, panel)
        if not any(value is not None for series in panel.series for value in series.y):
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", alpha=0.6)
            continue
        if panel.series[0].style == "heat":
            _draw_heat(axes, panel)
            continue
        _scale(axes, panel)
        for series, pen in zip(panel.series, _pens(panel), strict=True):
            legend.setdefault((series.name, series.style, pen.colour), _draw(axes, series, pen, bool(panel.ticks)))
        if any(series.style == "bars" for series in panel.series) and axes.dataLim.y0 >= 0:
            axes.set_ylim(bottom=0)
    named = {key: artist for key, artist in legend.items() if key[0]}
    _legend(canvas, [_short(name, 52) for name, _, _ in named], list(named.values()), columns * PANEL[0])


def _draw_heat(axes: Axes, panel: Panel) -> None:
    """Draw a heat map: a row for each series, blue above zero and red below, cells that include the mark in a frame."""
    from matplotlib.patches import Rectangle

    largest = max(abs(value) for series in panel.series for value in series.y if value is not None) or 1.0
    digits = 1 if largest >= 1 else 2
    for row, series in enumerate(panel.series):
        for column, value in enumerate(series.y):
            if value is None:
                continue
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=_tint(value / largest), edgecolor="none"))
            text = f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color="#1d1d1f")
            low, high = (series.low[column], series.high[column]) if series.low else (None, None)
            if panel.mark is not None and low is not None and high is not None and low <= panel.mark <= high:
                frame = Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, fill=False, edgecolor="#1d1d1f", linewidth=1.6)
                axes.add_patch(frame)
    axes.grid(visible=False)
    axes.set(xlim=(-0.5, len(panel.ticks) - 0.5), ylim=(len(panel.series) - 0.5, -0.5))
    axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    axes.set_yticks(range(len(panel.series)), [_short(series.name, 24) for series in panel.series])
    axes.tick_params(labelsize=9.5, length=0)


def _tint(share: float) -> str:
    """Return a colour from red (-1) by white (0) to blue (1), pale enough for dark text."""
    end = (90, 150, 235) if share > 0 else (235, 115, 85)
    red, green, blue = (round(250 + min(abs(share), 1.0) * (channel - 250)) for channel in end)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _label(axes: Axes, panel: Panel) -> None:
    axes.set_title(_short(panel.title, 58))
    axes.set_xlabel(_short(panel.x, 66))
    axes.set_ylabel(_short(panel.y, 40))


def _scale(axes: Axes, panel: Panel) -> None:
    """Set scales and ticks; few values of x are their own ticks, so that a tick is a measured value."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.tick_params(labelsize=11, length=3)
    axes.set_xscale(panel.xscale)
    axes.set_yscale(panel.yscale)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _amount(value)))
        axis.set_minor_formatter(NullFormatter())
    values = sorted({value for series in panel.series for value in series.x})
    counts = values[-1] - values[0] <= 12 and all(value == round(value) for value in values)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), [_short(name, max(4, 80 // len(panel.ticks))) for name in panel.ticks])
    elif counts or (panel.xscale == "log" and len(values) <= 8):
        axes.set_xticks(_roomy(values) if panel.xscale == "log" else values)


def _roomy(values: Sequence[float]) -> list[float]:
    """Return those of ascending values whose labels do not run into each other on a log scale."""
    kept = list(values[:1])
    for value in values[1:]:
        if math.log(value / kept[-1]) >= 0.07 * math.log(values[-1] / values[0]):
            kept.append(value)
    return kept


@dataclass(frozen=True)
class _Pen:
    """How one series of a panel is drawn."""

    colour: str
    marker: str
    shift: float  # of a bar from its x, beside the bars of other series
    width: float  # of a bar


def _pens(panel: Panel) -> list[_Pen]:
    """Return a pen for each series: colours in turn, published ones grey, bars side by side."""
    bars = [series for series in panel.series if series.style == "bars"]
    places = sorted({value for series in bars for value in series.x})
    room = 0.8 * min((b - a for a, b in pairwise(places)), default=1.0)
    pens: list[_Pen] = []
    width = room / max(len(bars), 1)
    for series in panel.series:
        before = [other.style for other in panel.series[: len(pens)]]
        grey = series.color is None  # only published series come without a colour here
        number = (before.count("paper") if series.color is None else series.color) % len(SERIES)
        place = next((place for place, bar in enumerate(bars) if bar.color == series.color), None)
        shift = 0.0 if place is None else (place + 0.5) * width - room / 2  # a published point is on the bar of its colour
        pens.append(_Pen(INK if grey else SERIES[number], MARKERS[number], shift, width))
    return pens


def _draw(axes: Axes, series: Series, pen: _Pen, named: bool) -> Artist:
    """Draw a series with its intervals, and return its artist for the legend."""
    x, y = [value + pen.shift for value in series.x], _gaps(series.y)
    artist: Artist
    if series.style == "bars":
        artist = axes.bar(x or [0], y or [0], 0.92 * pen.width, color=pen.colour, alpha=0.85)[0]
    elif series.style == "paper":
        hollow: Any = {"markerfacecolor": BACK, "markeredgewidth": 1.4, "markersize": 6.5, "lw": 1.3, "alpha": 0.85}
        dashes: Any = "none" if named else (0, (4, 2.5))  # between names there is nothing to follow
        (artist,) = axes.plot(x, y, ls=dashes, color=pen.colour, marker=pen.marker, **hollow)
    else:
        fit = len(x) == 2 and not series.low  # two points without intervals: a straight line whose ends were not measured
        bare = series.style == "steps" or (series.style == "line" and (fit or len(x) > DENSE))
        look: Any = {"ls": "none" if series.style == "points" else "-", "marker": "" if bare else pen.marker}
        shape = "steps-mid" if series.style == "steps" else "default"
        (artist,) = axes.plot(x, y, color=pen.colour, markeredgewidth=0, drawstyle=shape, **look)
    if series.low:
        _interval(axes, series, x, pen)
    for number, (place, value, label) in enumerate(zip(x, y, series.labels, strict=False)):
        if label and not math.isnan(value):  # in turns below and above, so that neighbours do not run into each other
            shift, side = ((5, -9), "left") if number % 2 == 0 else ((-5, 6), "right")
            axes.annotate(_short(label, 40), (place, value), shift, textcoords="offset points", fontsize=8.5, ha=side)
    return artist


def _interval(axes: Axes, series: Series, x: list[float], pen: _Pen) -> None:
    """Draw a translucent band along a line, a thin bar through anything else; none where there is no y."""
    low, high = (
        [math.nan if y is None else end for y, end in zip(series.y, _gaps(ends), strict=True)]
        for ends in (series.low, series.high)
    )
    if series.style in {"line", "steps"}:
        step: Any = "mid" if series.style == "steps" else None
        axes.fill_between(x, low, high, step=step, color=pen.colour, alpha=0.16, linewidth=0)
    else:
        ink = INK if series.style == "bars" else pen.colour
        axes.vlines(x, low, high, color=ink, alpha=0.6, linewidth=1.4)


def _legend(canvas: Canvas, names: Sequence[str], artists: Sequence[Artist], width: int) -> None:
    if names:
        columns = next((count for count in range(len(names), 1, -1) if _spread(names, count) <= width), 1)
        blank = [" "] * len(names)  # names come later: matplotlib would leave out those with an underscore in front
        drawn = canvas.legend(artists, blank, loc="outside upper left", ncols=columns, columnspacing=1.4, handlelength=1.8)
        for text, name in zip(drawn.get_texts(), names, strict=True):
            text.set_text(name)


def _spread(names: Sequence[str], columns: int) -> float:
    """Return roughly how wide a legend of so many columns is, in points."""
    rows = math.ceil(len(names) / columns)
    return sum(52 + 6.4 * max(map(len, names[first : first + rows])) for first in range(0, len(names), rows))


def _gaps(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _amount(value: float) -> str:
    """Return a number as the field writes it: 20K words, 1M images."""
    size, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "K") if abs(value) >= 1e3 else (1.0, "")
    return f"{value / size:.4g}{unit}".replace("-", "\N{MINUS SIGN}")


def _clean(text: str) -> str:
    """Return text that XML can hold: no control characters, no bytes of file names that are no text."""
    return re.sub("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufffe\\uffff]", " ", text)


def _short(text: str, length: int) -> str:
    text = _clean(text)
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
