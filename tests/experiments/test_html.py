"""The page of a report: whole, self-contained, safe whatever its texts, with the paper's figures apart from ours."""

from __future__ import annotations

import re

import pytest

from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.html import _cell, _numeric, markdown, render_report
from polyvoc.experiments.report.report import Report, Row, Section, Table, TableCell
from report_helpers import elements

HOSTILE = '<script>alert("1 & 2")</script>\udce9 `<b>` ` | \\'


def text_of(html: str) -> str:
    return re.sub("<[^>]+>", " ", html)


@pytest.fixture(scope="module")
def html() -> str:
    curves = [Series(HOSTILE, [1, 2], [3, 4]), Series("paper", [1, 2], [3, 5], style="paper")]
    figure = Figure(HOSTILE, [Panel(HOSTILE, HOSTILE, curves, HOSTILE), Panel("K", "mAP", curves)], HOSTILE)
    numbers = TableCell(57.321, 2, 55.1, 59.44, 58.51, note=HOSTILE)
    rows = [[HOSTILE, numbers, HOSTILE], Row([HOSTILE], "header"), Row(["p", numbers], "best")]
    table = Table(HOSTILE, [HOSTILE, "ours", "x"], rows)
    sections = [
        Section("table3", f"Table 3: {HOSTILE}", [HOSTILE], [table, table], [figure, figure], "partly", HOSTILE),
        Section("figure4", "Fig. 4", figures=[figure], verdict="does not"),
        Section("table6", HOSTILE),
    ]
    return render_report(Report(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], sections))


def test_a_page_is_well_formed_escaped_and_needs_nothing_else(html: str) -> None:
    seen = elements(html)
    assert seen.count("table") == 2
    assert seen.count("svg") == 6  # a panel is a plot of its own
    assert seen.count("main") == seen.count("nav") == seen.count("h1") == 1
    assert set(re.findall(r'(?:src|href)="([^#][^"]*)"', html)) == set()
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "script" not in seen and "&lt;script&gt;" in html
    assert "<code>&lt;b&gt;</code>" in html  # what stands in backticks is code
    html.encode("utf-8")


def test_links_lead_somewhere_and_ids_are_unique(html: str) -> None:
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(set(ids)) == len(ids)
    targets = re.findall(r'(?:href="|url\()#([^")]+)', html)
    assert {"table3", "figure4", "table6"} <= set(targets) <= set(ids)


def test_it_is_for_light_dark_paper_and_narrow_screens(html: str) -> None:
    for query in ("prefers-color-scheme: dark", "@media print", "max-width: 36rem", "overflow-x: auto", "position: sticky"):
        assert query in html
    assert html.count('class="scroll" tabindex="0"') == 2  # whoever has no mouse can scroll too


def test_verdicts_are_words_not_only_colours(html: str) -> None:
    words = text_of(html)
    assert words.count("partly reproduces") == 2  # at a glance, and in its section
    assert words.count("does not reproduce") == 2
    assert html.count('role="img" aria-label="partly reproduces"') == 1  # in the contents
    assert 'class="verdict half"' in html


def test_the_contents_split_headings_at_the_colon() -> None:
    empty = Section("efficiency", "Efficiency", tables=[Table("none", ["a"], [])])
    html = render_report(Report("t", "", [], [Section("table3", "Table 3: methods: all"), empty]))
    assert elements(html).count("table") == 1  # one without rows
    assert '<a href="#table3"><b>Table 3</b><small>methods: all</small></a>' in html
    assert '<a href="#efficiency"><b>Efficiency</b></a>' in html
    assert "What reproduces" not in html  # nothing was judged
    assert "What was measured" not in html
    assert "How to read it" in html


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (TableCell(57.321, 2, 55.1, 59.444, 58.51), "57.32 [55.10, 59.44] paper 58.51"),
        (TableCell(57.321, 1), "57.3"),
        (TableCell(1234567, 0, paper="about 10⁶"), "1,234,567 paper about 10⁶"),
        (TableCell(-0.001), "0.00"),
        (TableCell(-3.5, 1), "−3.5"),
        (TableCell(3.5, 1, 2, 5, 8.64, difference=True), "+3.5 [+2.0, +5.0] paper +8.6"),
        (TableCell(-3.5, 1, -5, -2, difference=True), "−3.5 [−5.0, −2.0]"),
        (TableCell(None, note="not at hand"), "– not at hand"),
        (TableCell(None), "–"),
        (TableCell(None, low=1, high=2), "–"),  # no interval of nothing
        (TableCell(None, paper=49.9, digits=1), "paper 49.9"),
        (TableCell(None, paper=49.9, digits=1, note="why"), "– paper 49.9 why"),
        (TableCell(float("nan"), 2, float("nan"), 1.0), "–"),
        ("text", "text"),
    ],
)
def test_cells(shown: TableCell | str, text: str) -> None:
    assert " ".join(text_of(_cell(shown)).split()) == text


@pytest.mark.parametrize(
    ("low", "high", "tone"),
    [(0.1, 2.0, "ours up"), (-2.0, -0.1, "ours down"), (-0.1, 0.2, "even"), (0.0, 1.0, "even"), (None, None, "ours")],
)
def test_a_difference_has_colour_only_if_its_interval_leaves_out_zero(low: float | None, high: float | None, tone: str) -> None:
    assert f'class="{tone}"' in _cell(TableCell(0.05, 2, low, high, difference=True))
    assert 'class="ours"' in _cell(TableCell(0.05, 2, low, high))


def test_columns_of_numbers_are_aligned() -> None:
    rows = [["1", TableCell(1), "1,204", "two", "12.1 %"], ["b", "", "−3", "4", "–"]]
    assert _numeric(Table("t", ["rule", "value", "count", "words", "share"], rows)) == [False, True, True, False, True]
    assert _numeric(Table("t", ["a", "b"], [])) == [False, False]
    assert _numeric(Table("t", ["a", "b"], [Row(["words", "words"], "header"), ["x", TableCell(1)]])) == [False, True]


def test_markdown() -> None:
    rows = [
        ["`b1`", TableCell(50.3, 2, 48.2, 52.4, 49.87), TableCell(None, note="no | Oxford")],
        Row(["with HE"], "header"),
        Row(["`a|b` a*b", TableCell(81.2, 1, paper="81"), "x_y"], "best"),
    ]
    assert markdown(Table("Holidays, *mAP*", ["method", "2x20K", "[Oxford]"], rows)) == (
        "**Holidays, \\*mAP\\***\n\n"
        "| method | 2x20K | \\[Oxford\\] |\n"
        "|---|--:|---|\n"
        "| `b1` | 50.30 [48.20, 52.40] (paper 49.87) | – (no \\| Oxford) |\n"
        "| **with HE** |  |  |\n"
        "| **`a\\|b` a\\*b** | **81.2 (paper 81)** | **x\\_y** |\n"
    )


def test_markdown_of_hostile_texts_has_one_line_per_row() -> None:
    text = markdown(Table(HOSTILE, ["a\nb", "c"], [[HOSTILE, TableCell(1, note="x\ny")]]))
    assert len(text.splitlines()) == 5
    assert "<script" not in text.replace("\\<script", "")
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()[2:]] == [3, 3, 3]
