"""Random figures for tests of reports, and a check that HTML is well formed."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import strategies as st

from polyvoc.experiments.report.figures import Figure, Panel, Series

NUMBERS = st.floats(-1e6, 1e6)
GAPS = st.none() | NUMBERS | st.just(float("nan")) | st.just(float("inf"))
EMPTY = {"meta", "img", "circle", "line", "image"}  # elements without an end


@st.composite
def series(draw: st.DrawFn) -> Series:
    x = draw(st.lists(NUMBERS, max_size=4))
    y = draw(st.lists(GAPS, min_size=len(x), max_size=len(x)))
    ends = draw(st.sampled_from([(), tuple(y)]))
    style = draw(st.sampled_from(["line", "points", "bars", "steps", "paper"]))
    labels = draw(st.sampled_from([(), ("here",) * len(x)]))
    return Series(draw(st.text(max_size=5)), x, y, ends, ends, style, draw(st.none() | st.integers(0, 9)), labels)


@st.composite
def figures(draw: st.DrawFn) -> Figure:
    text = st.text(max_size=5)
    panels = st.builds(Panel, text, text, st.lists(series(), max_size=3), text, ticks=st.lists(text, max_size=3))
    return Figure(draw(text), draw(st.lists(panels, min_size=1, max_size=2)), draw(text))


class _Balance(HTMLParser):
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
    """Return the tags of a page in order, after a check that all are closed."""
    balance = _Balance()
    balance.feed(html)
    assert balance.open == []
    return balance.seen
