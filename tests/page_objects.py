"""The web page by the names and texts that a user sees: searches, regions, matches, options, and a table of all views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from browsers import is_search


@dataclass(frozen=True)
class View:
    """A view with all that can be set in its link, and the text that it shows when it is complete."""

    name: str
    link: str  # {query} and {other} are images
    text: str


RESULTS = r"^(\d+ (other )?(likely )?photographs?|Nothing found) in "  # of a search that is complete
SIDES = urlencode({"left": "merge=b1&verify=0", "right": "preset=best"})
VIEWS = [
    View("start", "#/", "Or search with one of these"),
    View("search", "#/search?query={query}&region=10,10,150,140&merge=b1&top=6", RESULTS),
    View("nothing", "#/search?query={query}&region=10,10,30,30", RESULTS),
    View("large", "#/search?query={query}&open={other}", RESULTS),
    View("matches", "#/matches?query={query}&merge=posterior&image={other}&which=all&shown=30&hide=one", r"hit \d+ of"),
    View("codes", "#/matches?query={query}&image={other}&which=all&shown=30", r"hit \d+ of"),
    View("image sets", "#/matches?query={query}&preset=paper&image={other}&which=all&shown=30", r"dashed: by other features"),
    View("compare", f"#/compare?query={{query}}&{SIDES}", "are in both"),
    View("browse", "#/browse?page=2", "61 to 64 shown"),
    View("find", "#/browse?find=camera", "^7 photographs with"),
    View("groups", "#/groups", "not been compared with one another yet"),
    View("copies", "#/duplicates", r"64 photographs not compared yet$"),
    View("statistics", "#/statistics", "Disk space"),
    View("api", "#/api", "All routes"),
]


class Ui:
    """One tab of the browser."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._address = page.url.partition("#")[0]
        self.main = page.get_by_role("main")
        photographs = page.get_by_role("list", name="Photographs of the collection")
        self.collection = photographs.get_by_role("link", name=re.compile("^(Show .* large|Search with (?!this photo:))"))
        self.lightbox = page.get_by_role("dialog", name=re.compile("^Photograph "))
        self.verified = page.locator(".badge.verified")
        self.region_editor = page.get_by_role("group", name=re.compile("Enter selects a region"))
        self.drawing = page.get_by_role("group", name=re.compile("^Matches of"))
        self.lines = self.drawing.locator(".lines path.link")
        self.card = page.get_by_role("complementary", name="Match")

    def go(self, link: str) -> None:
        self.page.goto(self._address + link)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def link(self) -> str:
        return self.page.url.removeprefix(self._address)

    @property
    def params(self) -> dict[str, str]:
        """The parameters of the link."""
        return {name: values[0] for name, values in parse_qs(self.page.url.partition("?")[2]).items()}

    # -- what is shown

    def text(self, pattern: str) -> Locator:
        """Text of the view, not its repetition for screen readers."""
        return self.main.get_by_text(re.compile(pattern))

    def link_named(self, name: str) -> Locator:
        return self.page.get_by_role("link", name=re.compile(name))

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=re.compile(name))

    def hit(self, rank: int, name: str = "") -> Locator:
        return self.link_named(rf"^{rank}\. {name}")

    def expect_hit(self, rank: int, name: str = "") -> None:
        expect(self.hit(rank, name)).to_be_visible()

    def expect_text(self, pattern: str) -> None:
        expect(self.text(pattern)).to_be_visible()

    def expect_heading(self, pattern: str) -> None:
        expect(self.page.get_by_role("heading", level=1)).to_have_text(re.compile(pattern))

    def expect_url(self, pattern: str) -> None:
        expect(self.page).to_have_url(re.compile(pattern))

    def expect_results(self) -> None:
        """Wait until a search is complete."""
        self.expect_text(RESULTS)

    def why(self, name: str) -> None:
        """Show the matches of a hit."""
        self.link_named(f"^Why these match: {name}").first.click()

    def expect_match(self, title: str) -> None:
        """Wait until the card shows a match."""
        expect(self.page.get_by_role("heading", name=re.compile(title))).to_be_visible()

    def expect_loaded_samples(self) -> None:
        expect(self.page.locator("#samples .thumbnail.loaded")).to_have_count(12)
        pictures = self.page.locator("#samples img")
        assert pictures.evaluate_all("(pictures) => pictures.every((picture) => picture.naturalWidth > 0)")

    # -- searches

    def upload(self, photo: Path) -> None:
        """Choose a photograph and wait for its results."""
        self.page.get_by_label("Choose a photograph").set_input_files(photo)
        self.expect_heading(f"Results for {re.escape(photo.name)}")
        self.expect_results()

    def set_number(self, option: str, value: str) -> None:
        with self.page.expect_request(is_search(f"{option}={value}")):
            self.page.get_by_role("spinbutton", name=option.replace("_", " ")).fill(value)
            self.press("Enter")

    def set_choice(self, option: str, value: str) -> None:
        with self.page.expect_request(is_search(f"{option}={value}")):
            self.page.get_by_role("combobox", name=option, exact=True).select_option(value)

    def choices(self, option: str) -> list[str]:
        options = self.page.get_by_role("combobox", name=option.replace("_", " "), exact=True).locator("option")
        return options.evaluate_all("(all) => all.map((one) => one.value)")

    def check(self, name: str) -> None:
        """Select a radio button."""
        self.page.get_by_role("radio", name=name, exact=True).check(force=True)

    def search(self, query: int) -> None:
        """Search with an image of the collection, and show the expert settings."""
        self.go(f"#/search?query={query}")
        self.expect_results()
        self.text("Expert settings").click()

    def assert_hits(self, api: httpx.Client, query: int, options: dict[str, Any]) -> None:
        """Compare the tiles with the hits of the server."""
        result = api.post("/search", params={"query": query, "top": 24, **options}).json()
        tiles = self.page.locator("#ranking [data-rank]")
        expect(tiles).to_have_count(len(result["hits"]))
        shown = {int(tile.get_attribute("data-rank") or 0): int(tile.get_attribute("data-image") or -1) for tile in tiles.all()}
        assert shown == {rank: hit["image"] for rank, hit in enumerate(result["hits"], start=1)}

    def assert_rankings(self, api: httpx.Client, query: int, options: dict[str, dict[str, Any]]) -> None:
        """Compare both rankings with the server, and the number of images in both with the summary and the lines."""
        hits = {}
        for side, values in options.items():
            result = api.post("/search", params={"query": query, "top": 20, **values}).json()
            hits[side] = [hit["image"] for hit in result["hits"]]
            rows = self.page.get_by_role("list", name=f"Ranking on the {side}").get_by_role("listitem")
            for rank in (0, len(hits[side]) - 1):
                expect(rows.nth(rank)).to_have_attribute("data-image", str(hits[side][rank]))
            assert [int(row.get_attribute("data-image") or -1) for row in rows.all()] == hits[side]
        shared = set(hits["left"][:10]) & set(hits["right"][:10])
        self.expect_text(f"{len(shared)} of the top 10 are in both.")
        expect(self.page.locator("svg.moves path")).to_have_count(len(set(hits["left"]) & set(hits["right"])))

    # -- regions

    def query_points(self, *fractions: tuple[float, float]) -> list[tuple[float, float]]:
        """Screen positions of points of the query, given as fractions of its width and height."""
        self.region_editor.scroll_into_view_if_needed()
        box = self.region_editor.bounding_box()
        assert box is not None
        return [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in fractions]

    def drag(self, *fractions: tuple[float, float]) -> None:
        """Drag the mouse over the query."""
        first, *rest = self.query_points(*fractions)
        self.page.mouse.move(*first)
        self.page.mouse.down()
        for point in rest:
            self.page.mouse.move(*point)
        self.page.mouse.up()

    def expect_region(self, *expected: float) -> None:
        """Wait for a region in the link, within what one screen pixel is in the image."""
        self.expect_url("region=")
        assert [float(value) for value in self.params["region"].split(",")] == pytest.approx(expected, abs=3)


def position(dot: Locator) -> tuple[float, float]:
    """The screen position where a match ends."""
    dot.evaluate("(dot) => dot.ownerSVGElement.scrollIntoView({ block: 'center' })")
    x, y = dot.evaluate("(dot) => ((p) => [p.x, p.y])(dot.getPointAtLength(0).matrixTransform(dot.getScreenCTM()))")
    return x, y


def style(element: Locator, name: str) -> str:
    return element.evaluate("(element, name) => getComputedStyle(element).getPropertyValue(name)", name)


def visits(ui: Ui, image: Callable[[str], int]) -> Iterator[View]:
    """Open every view, one after the other, and wait until it is complete."""
    for view in VIEWS:
        ui.go(view.link.format(query=image("cat-crop"), other=image("cat-viewpoint")))
        ui.expect_text(view.text)
        yield view
