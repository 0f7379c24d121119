"""The page in a real browser: everything that it offers is done once, as people do it with mouse, finger and keyboard."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

import browsers
import servers
from browsers import PHONE, Drag, Watch, asks, seen, tab_to
from conftest import draw_scene
from polyvoc.cli.demo_photos import find_photographs, make_collection
from polyvoc.index.writer import IndexWriter

NAMES = ("astronaut", "camera", "cat", "coffee", "coins", "motorcycle", "page", "retina", "rocket")
TRAP = "<img src=x onerror=document.body.remove()>"
TOKEN = "a-token-of-the-browser-tests"


def quiet(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demonstration's photographs (two pages of them), questions, and an index."""
    folder = tmp_path_factory.mktemp("world")
    found = find_photographs()
    make_collection({name: found[name] for name in NAMES}, folder, quiet, long_side=400)  # quick
    draw_scene(7).save(folder / "photos" / f"{TRAP}.jpg")
    draw_scene(8).save(folder / "new.jpg")
    (folder / "broken.jpg").write_bytes((folder / "queries" / "cat.jpg").read_bytes()[:600])
    collage(folder, "cat", "coffee").save(folder / "collage.jpg", quality=92)
    with IndexWriter.open(folder / "photos.polyvoc") as writer:
        writer.update([folder / "photos"])
    return folder


def collage(folder: Path, left: str, right: str) -> Image.Image:
    """Give two photographs of the collection side by side, each 300 wide and high."""
    both = Image.new("RGB", (600, 300))
    for x, name in ((0, left), (300, right)):
        with Image.open(folder / "photos" / f"{name}-original.jpg") as photograph:
            both.paste(photograph.resize((300, 300)), (x, 0))
    return both


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(browser: Browser, world: Path) -> Iterator[str]:
    with servers.running(world / "photos.polyvoc", "--write") as server:
        yield server.url


@pytest.fixture(scope="module")
def api(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def image(api: httpx.Client) -> Callable[[str], int]:
    """Give the number of an image by its name."""
    known = {
        found["name"]: found["image"] for page in (0, 1) for found in api.get("/images", params={"page": page}).json()["images"]
    }
    return lambda name: known[f"{name}.jpg"]


@pytest.fixture(scope="module")
def usual(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(**browsers.USUAL)
    context.set_default_timeout(browsers.PATIENCE)
    yield context
    context.close()


@pytest.fixture
def watch(usual: BrowserContext, server: str) -> Iterator[Watch]:
    with Watch(usual, server) as watch:
        yield watch


def hit(page: Page, rank: int, name: str = "") -> Locator:
    """Give the link of a hit, of which the name may be wanted."""
    return page.get_by_role("link", name=re.compile(rf"^{rank}\. {name}"))


def said(page: Page, text: str) -> Locator:
    """Give where the view says something, a pattern; not what is repeated for screen readers."""
    return page.get_by_role("main").get_by_text(re.compile(text))


def done(page: Page) -> None:
    """Wait until a search has been answered completely."""
    expect(said(page, r"^\d+ photographs? in ")).to_be_visible()


def heading(page: Page, text: str) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(text))


def linked(page: Page) -> dict[str, str]:
    """Give what the address of the view says."""
    return {name: values[0] for name, values in parse_qs(page.url.partition("?")[2]).items()}


def upload(page: Page, photo: Path) -> None:
    """Choose a photograph, and see it searched with."""
    page.get_by_label("Choose a photograph").set_input_files(photo)
    heading(page, f"What shows the same as {re.escape(photo.name)}")
    done(page)


def test_the_watch_is_awake(usual: BrowserContext, server: str) -> None:
    with pytest.raises(AssertionError, match="beware"), Watch(usual, server) as watch:
        page = watch.open()
        page.evaluate(MISBEHAVE)
        assert page.evaluate(browsers.FAINT) == [["faint", 1.0]]
        told = "\n".join(watch.problems)
    assert all(
        part in told for part in ("warning: beware", "uncaught: late", "http://elsewhere.test/", "Content Security Policy")
    )


MISBEHAVE = """async () => {
  console.warn("beware");
  setTimeout(() => { throw "late"; });
  await fetch("http://elsewhere.test/").catch(() => null);
  const text = Object.assign(document.createElement("p"), { textContent: "faint" });
  text.style.color = text.style.backgroundColor = "grey";
  document.querySelector("main").append(text);
  await new Promise((resolve) => setTimeout(resolve, 50));
}"""


# -- a photograph comes in


def test_dropped(watch: Watch, world: Path) -> None:
    page = watch.open()
    expect(page).to_have_title("Search · polyvoc")
    drag = Drag(page, world / "queries" / "cat.jpg")
    expect(page.get_by_text("Drop it: ask with this photograph")).to_be_visible()
    drag.drop()
    expect(page.get_by_text("Drop it: ask with this photograph")).to_be_hidden()
    expect(hit(page, 1, "cat-")).to_be_visible()
    done(page)
    expect(hit(page, 1, "cat-.*: score .*, verified, .* matches agree")).to_be_visible()
    expect(page.locator(".tile[data-rank='1'] svg.outline polygon")).not_to_have_count(0)
    assert re.search(r"#/search\?query=[\w-]+$", page.url)


def test_chosen(watch: Watch, world: Path) -> None:
    page = watch.open()
    upload(page, world / "queries" / "motorcycle.jpg")
    expect(hit(page, 1, "motorcycle-")).to_be_visible()
    page.get_by_label("Another photograph").set_input_files(world / "queries" / "rocket.jpg")
    expect(hit(page, 1, "rocket-")).to_be_visible()


def test_pasted(watch: Watch, world: Path) -> None:
    page = watch.open()
    out = io.BytesIO()
    with Image.open(world / "queries" / "coffee.jpg") as photograph:
        photograph.save(out, "PNG")
    browsers.put_in_clipboard(page, out.getvalue())
    page.keyboard.press("Control+V")
    heading(page, "What shows the same as image.png")
    expect(hit(page, 1, "coffee-")).to_be_visible()


def test_clicked(watch: Watch) -> None:
    page = watch.open()
    samples = page.get_by_role("list", name="Photographs of the collection").get_by_role("link")
    expect(samples).to_have_count(12)
    label = samples.nth(3).get_attribute("aria-label") or ""
    samples.nth(3).click()
    heading(page, re.escape(label.removeprefix("Ask with ")))
    done(page)
    expect(page.locator(".tile[data-rank='1'] .badge")).to_have_text("itself")


def test_nothing_is_found_where_nothing_is_sure(watch: Watch, tmp_path: Path) -> None:
    draw_scene(977).save(tmp_path / "stranger.png")
    page = watch.open()
    upload(page, tmp_path / "stranger.png")
    expect(page.locator(".tile[data-rank='1'] .badge")).to_have_text(re.compile(r"^(< )?\d+ %$"))
    expect(page.locator(".badge.verified")).to_have_count(0)
    said(page, "All rules").click()
    with page.expect_request(asks("sure=0.95")):
        page.get_by_role("spinbutton", name="sure").fill("0.95")
        page.keyboard.press("Enter")
    expect(said(page, "Nothing found that shows the same thing with a probability of 95 % or more")).to_be_visible()
    expect(hit(page, 1)).to_have_count(0)
    page.get_by_role("link", name="Show what is less sure").click()
    expect(hit(page, 1)).to_be_visible()


def test_a_broken_file_is_refused_in_one_line(watch: Watch, world: Path) -> None:
    page = watch.open()
    watch.expect_status(422)
    Drag(page, world / "broken.jpg").drop()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("broken.jpg")
    assert "\n" not in alert.locator("p").inner_text()
    heading(page, "Find the photographs")
    upload(page, world / "queries" / "cat.jpg")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_forgotten_upload(watch: Watch, world: Path) -> None:
    watch.expect_status(404, 404, 404)
    page = watch.open("#/search?query=uForgottenForgotten")
    heading(page, "This photograph is forgotten")
    expect(said(page, "Drop it again, or choose it again")).to_be_visible()
    page.get_by_label("Choose it again").set_input_files(world / "queries" / "cat.jpg")
    expect(hit(page, 1, "cat-")).to_be_visible()
    for view in ("matches?image=0&", "compare?"):
        page.goto(f"{watch.address}#/{view}query=uForgottenForgotten")
        expect(said(page, "The photograph that asked is forgotten")).to_be_visible()


def test_a_busy_server_is_asked_again(watch: Watch, image: Callable[[str], int]) -> None:
    page = watch.open()
    asked = []

    def busy_once(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": "busy"})
        else:
            route.continue_()

    watch.expect_status(503)
    page.route("**/search?*", busy_once)
    page.goto(f"{watch.address}#/search?query={image('cat-original')}")
    expect(page.get_by_text("The server is busy; trying again in 1 s")).to_be_visible()
    expect(hit(page, 1, "cat-")).to_be_visible()
    expect(page.get_by_text("The server is busy")).to_be_hidden()
    assert len(asked) == 2 and len(set(asked)) == 1


# -- a region asks


def editor(page: Page) -> Locator:
    return page.get_by_role("group", name=re.compile("Enter marks a region"))


def points(page: Page, *shares: tuple[float, float]) -> list[tuple[float, float]]:
    """Give places on the photograph that asks, as shares of its width and height, in pixels of the screen."""
    editor(page).scroll_into_view_if_needed()
    box = editor(page).bounding_box()
    assert box is not None
    return [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in shares]


def assert_region(page: Page, *expected: float) -> None:
    """See the region in the link, within what a pixel of the screen is in the photograph."""
    expect(page).to_have_url(re.compile("region="))
    assert [float(value) for value in linked(page)["region"].split(",")] == pytest.approx(expected, abs=3)


def test_a_region_by_mouse(watch: Watch, world: Path) -> None:
    page = watch.open()
    upload(page, world / "collage.jpg")
    for left, right, name in ((0.02, 0.45, "cat-"), (0.55, 0.98, "coffee-")):
        start, middle, end = points(page, (right, 0.05), (left + 0.2, 0.5), (left, 0.95))
        with page.expect_request(asks("region=")) as asked:
            page.mouse.move(*start)
            page.mouse.down()
            page.mouse.move(*middle)
            page.mouse.move(*end)
            page.mouse.up()
        assert_region(page, 600 * left, 15, 600 * right, 285)
        assert parse_qs(asked.value.url)["region"] == [linked(page)["region"]]
        expect(hit(page, 1, name)).to_be_visible()
        done(page)
        ranking = page.get_by_role("list", name="Results").get_by_role("link", name=re.compile(r"verified, \d+ matches agree"))
        assert all(name in (label.get_attribute("aria-label") or "") for label in ranking.all()[:3])
    page.get_by_role("button", name="Whole photograph").click()
    expect(page).not_to_have_url(re.compile("region="))
    page.go_back()
    assert_region(page, 330, 15, 588, 285)


def test_a_region_is_moved_and_pulled(watch: Watch, world: Path) -> None:
    page = watch.open()
    upload(page, world / "collage.jpg")
    page.goto(f"{watch.address}#/search?query={linked(page)['query']}&region=30,30,270,270")
    expect(editor(page)).to_have_attribute("data-region", "30,30,270,270")
    for start, end, region in (
        ((0.25, 0.5), (0.75, 0.5), (330, 30, 570, 270)),
        ((0.95, 0.9), (0.99, 0.5), (330, 30, 594, 150)),
    ):
        here, there = points(page, start, end)
        page.mouse.move(*here)
        page.mouse.down()
        page.mouse.move(*there)
        page.mouse.up()
        assert_region(page, *region)


def test_a_region_by_finger(watch: Watch, world: Path) -> None:
    page = watch.open_anew(**PHONE)
    upload(page, world / "collage.jpg")
    page.get_by_role("button", name="Mark a part").tap()
    with page.expect_request(asks("region=")):
        browsers.touch(page, points(page, (0.55, 0.1), (0.7, 0.4), (0.95, 0.9)))
    assert_region(page, 330, 30, 570, 270)
    expect(hit(page, 1, "coffee-")).to_be_visible()


def test_a_region_by_keyboard(watch: Watch, world: Path) -> None:
    page = watch.open()
    upload(page, world / "collage.jpg")
    editor(page).focus()
    page.keyboard.press("Enter")
    assert_region(page, 150, 75, 450, 225)
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    expect(page).to_have_url(re.compile("region=174,75,474,213"))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("region="))


# -- why a hit answers


@pytest.fixture
def explained(api: httpx.Client, image: Callable[[str], int]) -> tuple[str, dict[str, Any]]:
    """Give the link to a matches view, and what the server says about it."""
    asked = {"query": image("cat-crop"), "image": image("cat-viewpoint")}
    return f"#/matches?{urlencode(asked)}", api.get("/explain", params={**asked, "limit": 1000}).json()


def test_the_matches_view(watch: Watch, world: Path) -> None:
    page = watch.open()
    upload(page, world / "queries" / "cat.jpg")
    hit(page, 1).click()
    heading(page, r"Why cat-.*\.jpg answers cat\.jpg")
    expect(said(page, r"^\d+ of \d+ matches agree on one arrangement; they carry \d+ % of the weight\.$")).to_be_visible()
    drawing = page.get_by_role("group", name=re.compile("^Matches of cat.jpg and cat-"))
    expect(drawing).to_be_visible()
    lines = drawing.locator(".lines path.link")
    assert lines.count() == int(drawing.get_attribute("data-shown") or 0) > 10
    page.get_by_role("link", name="Next hit").click()
    expect(said(page, "hit 2 of 24")).to_be_visible()
    page.keyboard.press("p")
    expect(said(page, "hit 1 of 24")).to_be_visible()
    page.get_by_role("link", name="All results").click()
    expect(hit(page, 1, "cat-")).to_be_visible()


def test_lines_tell_sets_weights_and_inliers(watch: Watch, explained: tuple[str, dict[str, Any]]) -> None:
    link, explanation = explained
    page = watch.open(f"{link}&which=all&most=1000")
    drawing = page.get_by_role("group", name=re.compile("^Matches of"))
    lines = drawing.locator(".lines path.link")
    matches = explanation["matches"]
    agreeing = sum(match["inlier"] for match in matches)
    expect(lines).to_have_count(len(matches))
    assert drawing.locator(".lines path.link.agrees").count() == agreeing > 5
    assert drawing.locator(".lines path.link.stray").count() == len(matches) - agreeing > 5
    everywhere = 2 ** explanation["n_vocabularies"] - 1
    whole = sum(match["mask"] == everywhere for match in matches)
    assert drawing.locator(".lines path.link.all").count() == whole
    colours = {kind: style(drawing.locator(f".lines path.link.agrees.{kind}").first, "stroke") for kind in ("all", "one")}
    assert len(set(colours.values())) == 2
    opacity = {kind: float(style(drawing.locator(f".lines path.link.{kind}").first, "opacity")) for kind in ("agrees", "stray")}
    assert opacity["agrees"] > 2 * opacity["stray"]
    widths = [float(line.get_attribute("stroke-width") or 0) for line in (lines.last, lines.first)]
    assert widths[0] > widths[1]  # the heaviest lies on top


def place(dot: Locator) -> tuple[float, float]:
    """Give where a match ends, in pixels of the screen."""
    x, y = dot.evaluate(
        """(dot) => {
          dot.ownerSVGElement.scrollIntoView({ block: "center" });
          const { x, y } = dot.getPointAtLength(0).matrixTransform(dot.getScreenCTM());
          return [x, y];
        }"""
    )
    return x, y


def style(element: Locator, name: str) -> str:
    return element.evaluate("(element, name) => getComputedStyle(element).getPropertyValue(name)", name)


def test_pointing_at_a_match_tells_what_is_known(watch: Watch, explained: tuple[str, dict[str, Any]]) -> None:
    link, explanation = explained
    page = watch.open(link)
    drawing = page.get_by_role("group", name=re.compile("^Matches of"))
    card = page.get_by_role("complementary", name="Match")
    expect(card).to_have_text("Point at a match, tap it, or go through them with the arrow keys.")
    page.mouse.move(*place(drawing.locator(".dots path").last))
    expect(card.get_by_role("heading")).to_have_text(re.compile(r"Match \d+ of \d+"))
    match = explanation["matches"][int(card.locator("[data-match]").get_attribute("data-match") or -1)]
    told = card.inner_text()
    words = [word for word in match["words"] if word is not None]
    assert words and all(f"word {word}" in told for word in words)
    assert told.count("words differ") == match["words"].count(None)
    assert (match["sets"] if match["sets"] != "intersection" else "intersection of all") in told
    for name in ("ratio", "weight"):
        said = re.search(rf"{name}\s+([\d.,e+-]+)", told, re.IGNORECASE)
        assert said and float(said[1].replace(",", "")) == pytest.approx(match[name], rel=0.01)
    assert ("agrees" if match["inlier"] else "does not agree") in told
    expect(card.get_by_role("img", name=re.compile("^Patch in"))).to_have_count(2)
    drawing.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    expect(card.get_by_role("heading")).to_have_text(re.compile("Match 1 of"))


def test_filters_and_slider(watch: Watch, explained: tuple[str, dict[str, Any]]) -> None:
    link, explanation = explained
    page = watch.open(link)
    drawing = page.get_by_role("group", name=re.compile("^Matches of"))
    agreeing = [match for match in explanation["matches"] if match["inlier"]]
    expect(drawing).to_have_attribute("data-shown", str(min(120, len(agreeing))))
    page.get_by_role("radio", name="all", exact=True).check(force=True)
    expect(page).to_have_url(re.compile("which=all"))
    slider = page.get_by_role("slider", name=re.compile("^Heaviest"))
    slider.focus()
    page.keyboard.press("End")
    expect(drawing).to_have_attribute("data-shown", str(len(explanation["matches"])))
    entry = page.get_by_role("button", name=re.compile("^one only"))
    alone = sum(match["mask"].bit_count() == 1 for match in explanation["matches"])
    expect(entry).to_have_text(re.compile(rf"\b{alone}$"))
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "false")
    expect(drawing.locator(".lines path.one")).to_have_count(0)
    expect(page).to_have_url(re.compile("hide=one"))
    slider.focus()
    page.keyboard.press("Home")
    expect(drawing).to_have_attribute("data-shown", "1")
    page.get_by_role("radio", name="dots").check(force=True)
    expect(drawing.locator(".lines path")).to_have_count(0)
    assert linked(page).items() >= {"which": "all", "hide": "one", "most": "1", "draw": "dots"}.items()


# -- rules


def test_two_rules_side_by_side(watch: Watch, api: httpx.Client, image: Callable[[str], int]) -> None:
    query = image("coins-dark")
    page = watch.open(f"#/search?query={query}")
    done(page)
    page.get_by_role("link", name="Compare two rules").click()
    heading(page, "Two rules, one photograph")
    rules = {"left": {"merge": "b1", "verify": 0}, "right": {}}
    assert_ranked(page, api, query, rules)
    page.get_by_role("region", name="Rules on the left").get_by_role("radio", name="fast").check(force=True)
    expect(page).to_have_url(re.compile("left=preset%3Dfast"))
    assert_ranked(page, api, query, {"left": {"preset": "fast"}, "right": {}})
    page.get_by_role("button", name="Swap sides").click()
    assert_ranked(page, api, query, {"left": {}, "right": {"preset": "fast"}})
    page.get_by_role("list", name="Ranking on the left").get_by_role("link").first.click()
    heading(page, "Why coins-dark.jpg answers coins-dark.jpg")


def assert_ranked(page: Page, api: httpx.Client, query: int, rules: dict[str, dict[str, Any]]) -> None:
    """See both rankings as the server gives them, how many are in both, and a line for each of these."""
    found = {}
    for side, options in rules.items():
        answer = api.post("/search", params={"query": query, "top": 20, **options}).json()
        found[side] = [hit["image"] for hit in answer["hits"]]
        rows = page.get_by_role("list", name=f"Ranking on the {side}").get_by_role("listitem")
        for rank in (0, len(found[side]) - 1):
            expect(rows.nth(rank)).to_have_attribute("data-image", str(found[side][rank]))
        assert [int(row.get_attribute("data-image") or -1) for row in rows.all()] == found[side]
    shared = set(found["left"][:10]) & set(found["right"][:10])
    expect(said(page, f"{len(shared)} of the top 10 are in both.")).to_be_visible()
    expect(page.locator("svg.moves path")).to_have_count(len(set(found["left"]) & set(found["right"])))


def test_rules_are_switched(watch: Watch, api: httpx.Client, image: Callable[[str], int]) -> None:
    query = image("rocket-crop")
    about = api.get("/about").json()
    page = watch.open(f"#/search?query={query}")
    done(page)
    said(page, "All rules").click()
    merge = page.get_by_role("combobox", name="merge")
    assert {"b0", "b1", "b2", "bayes", "posterior"} <= set(about["choices"]["merge"])
    for rule in about["choices"]["merge"]:
        if rule == about["presets"]["default"]["merge"]:
            continue
        with page.expect_request(asks(f"merge={rule}")):
            merge.select_option(rule)
        expect(page).to_have_url(re.compile(f"merge={rule}"))
        expect(said(page, f"^\\d+ photographs? in .* · default, merge {rule}$")).to_be_visible()
        assert_hits(page, api, query, {"merge": rule})


def test_other_options(watch: Watch, api: httpx.Client, image: Callable[[str], int]) -> None:
    query = image("rocket-crop")
    page = watch.open(f"#/search?query={query}")
    done(page)
    said(page, "All rules").click()
    with page.expect_request(asks("hamming=20")):
        page.get_by_role("spinbutton", name="hamming").fill("20")
        page.keyboard.press("Enter")
    with page.expect_request(asks("hamming=20", "burstiness=none")):
        page.get_by_role("combobox", name="burstiness", exact=True).select_option("none")
    with page.expect_request(asks("verify=0")):
        page.get_by_role("spinbutton", name="verify").fill("0")
        page.keyboard.press("Enter")
    expect(said(page, "by scores alone · default, hamming 20")).to_be_visible()
    assert linked(page).items() >= {"hamming": "20", "burstiness": "none", "verify": "0"}.items()
    expect(page.locator(".badge.verified")).to_have_count(0)
    assert_hits(page, api, query, {"hamming": 20, "burstiness": "none", "verify": 0})
    page.get_by_role("button", name="Reset").click()
    expect(page).to_have_url(re.compile(rf"#/search\?query={query}$"))
    with page.expect_request(asks("preset=best")):
        page.get_by_role("radio", name="best").check(force=True)
    expect(said(page, "· best$")).to_be_visible()


def assert_hits(page: Page, api: httpx.Client, query: int, options: dict[str, Any]) -> None:
    """See the hits that the server gives, in their order."""
    answer = api.post("/search", params={"query": query, "top": 24, **options}).json()
    tiles = page.get_by_role("list", name="Results").locator("[data-image]")
    expect(tiles).to_have_count(len(answer["hits"]))
    assert [int(tile.get_attribute("data-image") or -1) for tile in tiles.all()] == [hit["image"] for hit in answer["hits"]]


# -- the collection and the index


def test_browsing(watch: Watch) -> None:
    page = watch.open()
    page.get_by_role("link", name="Browse").click()
    tiles = page.get_by_role("list", name="Photographs of the collection").get_by_role("link")
    expect(said(page, "64 photographs, 1 to 60 shown")).to_be_visible()
    expect(tiles).to_have_count(60)
    page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Next page").click()
    expect(page).to_have_url(re.compile(r"#/browse\?page=2$"))
    expect(tiles).to_have_count(4)
    page.get_by_role("searchbox", name="Find by name").fill("coffee")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/browse\?find=coffee$"))
    expect(said(page, "7 photographs with “coffee” in their path")).to_be_visible()
    expect(tiles).to_have_count(7)
    tiles.first.click()
    heading(page, "What shows the same as coffee-")


def test_statistics(watch: Watch, api: httpx.Client) -> None:
    facts = api.get("/statistics").json()
    page = watch.open("#/statistics")
    cards = page.get_by_role("list", name="Facts").get_by_role("listitem")
    for number, value in enumerate((facts["images"], facts["features"], len(facts["vocabularies"]))):
        expect(cards.nth(number).locator("b")).to_have_text(f"{value:,}")
    for place, plots in (("#ratio-plots", facts["ratios"]), ("#length-plots", facts["list_lengths"])):
        figures = page.locator(place).get_by_role("figure")
        expect(figures).to_have_count(len(plots))
        for figure, plot in zip(figures.all(), plots, strict=True):
            heights = figure.locator("rect.bar").evaluate_all("(bars) => bars.map((bar) => Number(bar.getAttribute('height')))")
            assert [height > 0 for height in heights] == [count > 0 for count in plot["counts"]]
            assert heights.index(max(heights)) == plot["counts"].index(max(plot["counts"]))
            table = figure.locator("td.number").all_text_contents()
            assert [int(text.replace(",", "")) for text in table] == plot["counts"]
    expect(said(page, f"Seen on {facts['sampled_features']:,} features")).to_be_visible()


def test_photographs_are_added_and_removed(watch: Watch, world: Path) -> None:
    page = watch.open("#/browse")
    page.get_by_label("Add photographs").locator("input").or_(page.locator("#add-input")).set_input_files(
        [world / "new.jpg", world / "broken.jpg"]
    )
    expect(said(page, "1 photograph added.")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text=re.compile("^broken.jpg: "))).to_be_visible()
    expect(said(page, "65 photographs")).to_be_visible()
    page.goto(f"{watch.address}#/")
    upload(page, world / "new.jpg")
    expect(hit(page, 1, "new")).to_be_visible()
    page.goto(f"{watch.address}#/browse?find=new")
    page.get_by_role("button", name=re.compile("^Remove new.* from the collection$")).click()
    question = page.get_by_role("group", name=re.compile(r"^Remove new.*\?$"))
    expect(question.get_by_role("button", name="Keep")).to_be_focused()
    question.get_by_role("button", name=re.compile("^Yes, remove new")).click()
    expect(page.get_by_text(re.compile("new.* was removed from the collection"))).to_be_visible()
    expect(said(page, "No photographs with “new” in their path.")).to_be_visible()
    assert (world / "new.jpg").exists()


def test_names_are_text(watch: Watch, image: Callable[[str], int]) -> None:
    trap = image(TRAP)
    page = watch.open("#/browse?find=onerror")
    expect(page.get_by_role("link", name=f"Ask with {TRAP}.jpg")).to_be_visible()
    page.get_by_text(f"{TRAP}.jpg", exact=True).click()
    expect(said(page, f"photos/{re.escape(TRAP)}.jpg$")).to_be_visible()
    for link in (
        f"search?query={trap}",
        f"matches?query={trap}&image={trap}",
        f"compare?query={trap}",
        f"browse?{urlencode({'find': TRAP})}",
    ):
        page.goto(f"{watch.address}#/{link}")
        expect(said(page, re.escape(f"{TRAP}.jpg")).first).to_be_visible()
    page.get_by_role("button", name=f"Remove {TRAP}.jpg from the collection").click()
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("[onerror], img[src=x]")).to_have_count(0)


# -- links, history


def shared_links(image: Callable[[str], int]) -> dict[str, str]:
    """Give a link to every view, with what can be set in it."""
    query, other = image("cat-crop"), image("cat-viewpoint")
    sides = urlencode({"left": "merge=b1&verify=0", "right": "preset=best"})
    return {
        "home": "#/",
        "search": f"#/search?query={query}&region=10,10,150,140&merge=b1&top=6",
        "matches": f"#/matches?query={query}&merge=posterior&image={other}&which=all&most=30&hide=one",
        "compare": f"#/compare?query={query}&{sides}",
        "browse": "#/browse?page=2",
        "find": "#/browse?find=camera",
        "statistics": "#/statistics",
        "api": "#/api",
    }


# What each view says once everything is there.
SETTLED = {
    "home": "Or start from one of these",
    "search": r"^\d+ photographs? in",
    "matches": r"hit \d+ of",
    "compare": "are in both",
    "browse": "61 to 64 shown",
    "find": "^7 photographs with",
    "statistics": "Where the bytes are",
    "api": "All addresses",
}


def visit(watch: Watch, page: Page, link: str, view: str) -> None:
    """Go to a view, and wait until everything is there."""
    page.goto(watch.address + link)
    expect(said(page, SETTLED[view])).to_be_visible()


def test_a_shared_link_shows_the_same(watch: Watch, image: Callable[[str], int]) -> None:
    first, second = watch.open(), watch.open_anew()
    for view, link in shared_links(image).items():
        visit(watch, first, link, view)
        second.goto("about:blank")  # so that nothing is left of the view before
        visit(watch, second, first.url.removeprefix(watch.address), view)
        assert (second.url, second.title()) == (first.url, first.title())
        if view != "home":  # which begins with any photographs
            assert seen(second) == seen(first)


def test_the_link_is_copied(watch: Watch) -> None:
    page = watch.open_anew("#/browse?page=2", permissions=["clipboard-read", "clipboard-write"])
    expect(said(page, "61 to 64 shown")).to_be_visible()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("status").filter(has_text="in the clipboard")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_back_and_forward(watch: Watch, image: Callable[[str], int]) -> None:
    page = watch.open()
    page.get_by_role("searchbox").fill("motorcycle")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Ask with motorcycle-original.jpg").click()
    done(page)
    page.get_by_role("radio", name="fast").check(force=True)
    expect(said(page, "by scores alone · fast$")).to_be_visible()
    hit(page, 2, "motorcycle-").click()
    heading(page, "Why motorcycle-")
    page.go_back()
    expect(said(page, "· fast$")).to_be_visible()
    expect(page.get_by_role("radio", name="fast")).to_be_checked()
    page.go_back()
    expect(said(page, "· default$")).to_be_visible()
    expect(page.get_by_role("radio", name="default")).to_be_checked()
    page.go_back()
    expect(said(page, "7 photographs with")).to_be_visible()
    page.go_back()
    heading(page, "Find the photographs")
    for _ in range(4):
        page.go_forward()
    heading(page, "Why motorcycle-")


# -- screens, keys, colours


def test_nothing_is_wider_than_a_phone(watch: Watch, image: Callable[[str], int]) -> None:
    page = watch.open_anew(**PHONE)
    for view, link in shared_links(image).items():
        visit(watch, page, link, view)
        width, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert width <= room == 360, view


def test_a_search_on_a_phone(watch: Watch) -> None:
    page = watch.open_anew(**PHONE)
    expect(page.get_by_label("Take a photograph")).to_be_attached()
    expect(said(page, "Take a photograph")).to_be_visible()
    page.get_by_role("list", name="Photographs of the collection").get_by_role("link").nth(5).tap()
    done(page)
    hit(page, 2).tap()
    drawing = page.get_by_role("group", name=re.compile("^Matches of"))
    expect(drawing).to_be_visible()
    box = drawing.bounding_box()
    assert box is not None and box["width"] > 300
    page.touchscreen.tap(*place(drawing.locator(".dots path").last))
    expect(page.get_by_role("heading", name=re.compile(r"^Match \d+ of"))).to_be_visible()
    page.get_by_role("link", name="All results").tap()
    done(page)


def test_keyboard_alone(watch: Watch) -> None:
    page = watch.open()
    expect(page.get_by_role("link", name=re.compile("^Ask with ")).first).to_be_visible()
    tab_to(page, "^Ask with [a-z]")
    page.keyboard.press("Enter")
    done(page)
    tab_to(page, r"^1\. ")
    page.keyboard.press("ArrowRight")
    expect(hit(page, 2)).to_be_focused()
    page.keyboard.press("Enter")
    heading(page, "^Why ")
    expect(said(page, "hit 2 of 24")).to_be_visible()
    tab_to(page, "^Matches of .* arrow keys go through them")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", name=re.compile("^Match 1 of"))).to_be_visible()
    page.keyboard.press("Alt+ArrowDown")  # belongs to the browser
    expect(page.get_by_role("heading", name=re.compile("^Match 1 of"))).to_be_visible()
    tab_to(page, "^All results$", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(hit(page, 1)).to_be_visible()


def test_every_control_shows_its_focus(watch: Watch, image: Callable[[str], int]) -> None:
    page = watch.open()
    for view, link in shared_links(image).items():
        visit(watch, page, link, view)
        page.locator("#skip").evaluate("(first) => { first.focus(); first.blur(); }")  # Tab goes on from here
        page.get_by_role("main").evaluate(ADD_END)
        tab_to(page, "^the end$")


ADD_END = "(main) => main.append(Object.assign(document.createElement('button'), { textContent: 'the end' }))"


def test_the_list_of_keys(watch: Watch) -> None:
    page = watch.open("#/statistics")
    expect(said(page, SETTLED["statistics"])).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Find by name")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(watch: Watch, image: Callable[[str], int], scheme: str) -> None:
    page = watch.open_anew(color_scheme=scheme)
    grounds = set()
    for view, link in shared_links(image).items():
        visit(watch, page, link, view)
        assert page.evaluate(browsers.FAINT) == [], view
        grounds.add(style(page.locator("body"), "background-color"))
    red, green, blue = map(int, re.findall(r"\d+", grounds.pop())[:3])
    assert (red + green + blue > 600) is (scheme == "light")
    assert not grounds


def test_colours_are_chosen_and_kept(watch: Watch) -> None:
    page = watch.open_anew(color_scheme="light")
    colours = page.get_by_role("button", name="Colours")
    for name in ("automatic", "light", "dark"):
        expect(colours).to_have_accessible_name(f"Colours: {name}")
        if name != "dark":
            colours.click()
    dark = style(page.locator("body"), "background-color")
    page.reload()
    expect(colours).to_have_accessible_name("Colours: dark")
    assert style(page.locator("body"), "background-color") == dark


COUNT_ANIMATIONS = """
window.animated = 0;
const animate = Element.prototype.animate;
Element.prototype.animate = function (...how) { window.animated += 1; return animate.apply(this, how); };
"""


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_motion_only_where_it_is_liked(watch: Watch, image: Callable[[str], int], motion: str) -> None:
    page = watch.open_anew(f"#/search?query={image('rocket-crop')}&preset=fast", COUNT_ANIMATIONS, reduced_motion=motion)
    done(page)
    said(page, "All rules").click()
    page.get_by_role("combobox", name="merge").select_option("b0")
    expect(said(page, "· fast, merge b0$")).to_be_visible()
    assert (page.evaluate("window.animated") == 0) is (motion == "reduce")
    lasting = page.evaluate(
        "document.getAnimations().filter((one) => one.effect.getComputedTiming().activeDuration > 10).length"
    )
    assert lasting == 0 or motion == "no-preference"


# -- a private server


@pytest.fixture(scope="module")
def private(browser: Browser, world: Path) -> Iterator[str]:
    with servers.running(world / "photos.polyvoc", "--private", environment={"POLYVOC_TOKEN": TOKEN}) as server:
        yield server.url


def pictures_load(page: Page) -> None:
    samples = page.get_by_role("list", name="Photographs of the collection").locator("img")
    expect(samples).to_have_count(12)
    expect(page.locator("#samples .thumbnail.loaded")).to_have_count(12)
    assert samples.evaluate_all("(pictures) => pictures.every((picture) => picture.naturalWidth > 0)")


def test_the_token_is_taken_from_the_link(usual: BrowserContext, private: str) -> None:
    with Watch(usual, private) as watch:
        page = watch.open_anew(f"#token={TOKEN}")
        pictures_load(page)
        assert page.url == f"{private}#/"
        assert page.evaluate("history.length") <= 2
        page.get_by_role("link", name=re.compile("^Ask with ")).first.click()
        done(page)
        page.reload()
        done(page)
        assert TOKEN not in json.dumps(page.context.cookies())


def test_a_wrong_token_is_asked_again(usual: BrowserContext, private: str) -> None:
    with Watch(usual, private) as watch:
        watch.expect_status(401, 401)
        page = watch.open_anew()
        page.get_by_role("textbox", name=re.compile("^Token")).fill("wrong")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("alert")).to_have_text("The server does not take this token.")
        page.get_by_role("textbox", name=re.compile("^Token")).fill(TOKEN)
        page.keyboard.press("Enter")
        pictures_load(page)
        expect(page.get_by_role("button", name="Go on")).to_have_count(0)
