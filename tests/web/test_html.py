"""HTML reports: well formed, self-contained, and safe with any file name."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from polyvoc.web.html import Fold, Picture, document, figures, paragraph, ranking

HOSTILE = '<script>alert("1 & 2")</script>\udce9'
VOID = {"meta", "img"}  # elements without an end tag here


class Parser(HTMLParser):
    """Lists the elements; fails where end tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def html() -> str:
    """A page with every part, and hostile text everywhere."""
    query = Picture(b"jpeg", HOSTILE, href="file:///a%22b.jpg")
    hits = [Picture(b"1", "one", "1.", HOSTILE, mark="right"), Picture(None, HOSTILE, mark="wrong")]
    rest = Fold(HOSTILE, [Picture(b"3", HOSTILE)])
    return document(HOSTILE, [paragraph(HOSTILE), figures([("3", HOSTILE)]), ranking(HOSTILE, query, hits, HOSTILE, rest=rest)])


def test_a_page_is_well_formed_self_contained_and_escaped(html: str) -> None:
    parser = Parser()
    parser.feed(html)
    assert parser.open == []
    assert [parser.elements.count(name) for name in ("figure", "img", "details", "script")] == [4, 3, 1, 0]
    assert not re.search(r'(src|href)="(?!data:image/jpeg;base64,|file:///)', html)
    assert "@import" not in html and "url(" not in html
    assert "&lt;script&gt;" in html
    html.encode("utf-8")  # without the bytes of names that are not text


def test_a_page_shows_marks_missing_files_and_two_colour_schemes(html: str) -> None:
    assert html.count('class="frame right"') == html.count('class="frame wrong"') == 1
    assert "file not found" in html
    assert "color-scheme: light dark" in html and "prefers-color-scheme: dark" in html
    assert "Nothing found." in ranking("x", Picture(b"", "x"), [])
