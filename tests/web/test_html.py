"""The pages: whole, self-contained, and safe whatever files are called."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from polyvoc.web.html import Line, Picture, Side, document, figures, matches, paragraph, ranking

HOSTILE = '<script>alert("1 & 2")</script>\udce9'
EMPTY = {"meta", "img", "circle", "line", "image"}  # elements without an end here


class Balance(HTMLParser):
    """Fails where an element is not closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(html: str) -> list[str]:
    balance = Balance()
    balance.feed(html)
    assert balance.open == []
    return balance.seen


def whole() -> str:
    query = Picture(b"jpeg", HOSTILE, href="file:///a%22b.jpg")
    hits = [Picture(b"1", "one", "1.", HOSTILE, mark="right"), Picture(None, HOSTILE, mark="wrong")]
    lines = [Line((10, 20), (30, 40), True), Line((1, 2), (3, 4), False)]
    sides = Side(b"left", 100, 200), Side(b"right", 300, 100)
    body = [
        paragraph(HOSTILE),
        figures([("3", HOSTILE)]),
        ranking(HOSTILE, query, hits, HOSTILE),
        matches(HOSTILE, *sides, lines, (HOSTILE, "all", "fewer")),
    ]
    return document(HOSTILE, body)


def test_a_page_is_well_formed_and_needs_nothing_else() -> None:
    html = whole()
    seen = elements(html)
    assert seen.count("figure") == 3
    assert seen.count("img") == 2
    assert seen.count("line") == 2
    assert not re.search(r'(src|href)="(?!data:image/jpeg;base64,|file:///)', html)
    assert "@import" not in html
    assert "url(" not in html


def test_everything_is_escaped() -> None:
    html = whole()
    assert "script" not in elements(html)
    assert "&lt;script&gt;" in html
    html.encode("utf-8")  # bytes of names that are no text do not get in


def test_marks_become_frames() -> None:
    html = whole()
    assert html.count('class="frame right"') == 1
    assert html.count('class="frame wrong"') == 1


def test_a_photograph_that_is_gone_has_a_place() -> None:
    assert "file not there" in whole()


def test_no_answers_are_said() -> None:
    assert "Nothing found." in ranking("x", Picture(b"", "x"), [])


def test_light_and_dark() -> None:
    assert "color-scheme: light dark" in whole()
    assert "prefers-color-scheme: dark" in whole()


@pytest.mark.parametrize(("left", "right"), [((0.0, 0.0), (0.0, 0.0)), ((99.0, 199.0), (299.0, 99.0))])
def test_lines_end_on_their_features(left: tuple[float, float], right: tuple[float, float]) -> None:
    sides = Side(b"", 100, 200), Side(b"", 300, 100)
    html = matches("x", *sides, [Line(left, right, True)], ("", "", ""))
    x1, y1, x2, y2 = (float(re.search(f' {name}="([^"]*)"', html)[1]) for name in ("x1", "y1", "x2", "y2"))  # type: ignore[index]
    # Both are 600 high: the left one is enlarged 3 times, the right one 6 times and begins at 300 + 12.
    assert (x1, y1) == ((left[0] + 0.5) * 3, (left[1] + 0.5) * 3)
    assert (x2, y2) == ((right[0] + 0.5) * 6 + 312, (right[1] + 0.5) * 6)
