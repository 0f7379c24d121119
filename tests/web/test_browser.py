"""The page in Chromium: every function used once with mouse, touch and keyboard, on screens, phones and private servers."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

import browsers
import servers
from browsers import PHONE, Drag, Watch, expect_same_text, is_search, tab_to
from conftest import draw_scene
from page_objects import Ui, position, style, visits
from polyvoc.cli.demo_photos import find_photographs, make_collection
from polyvoc.index.writer import IndexWriter

NAMES = ("astronaut", "camera", "cat", "coffee", "coins", "motorcycle", "page", "retina", "rocket")
CATS = ("cat-original.jpg", "cat-small.jpg", "cat-crop.jpg")
MARKUP = "<img src=x onerror=document.body.remove()>"
TOKEN = "a-token-of-the-browser-tests"
ImageId = Callable[[str], int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the photographs of the demo (two pages of them), queries, and an index."""
    folder = tmp_path_factory.mktemp("world")
    sources = find_photographs()
    chosen = {name: sources[name] for name in NAMES}
    make_collection(chosen, folder, lambda stage, done, total: None, long_side=400)  # quick
    draw_scene(7).save(folder / "photos" / f"{MARKUP}.jpg")
    draw_scene(8).save(folder / "new.jpg")
    (folder / "broken.jpg").write_bytes((folder / "queries" / "cat.jpg").read_bytes()[:600])
    collage = Image.new("RGB", (600, 300))
    for x, name in ((0, "cat"), (300, "coffee")):
        with Image.open(folder / "photos" / f"{name}-original.jpg") as photograph:
            collage.paste(photograph.resize((300, 300)), (x, 0))
    collage.save(folder / "collage.jpg", quality=92)
    with IndexWriter.open(folder / "photos.polyvoc") as writer:
        writer.update([folder / "photos"])
    return folder


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
def image(api: httpx.Client) -> ImageId:
    """The id of an image by its name."""
    rows = [row for page in (0, 1) for row in api.get("/images", params={"page": page}).json()["images"]]
    ids = {row["name"]: row["image"] for row in rows}
    return lambda name: ids[f"{name}.jpg"]


@pytest.fixture(scope="module")
def usual(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(**browsers.USUAL)
    context.set_default_timeout(browsers.TIMEOUT)
    yield context
    context.close()


@pytest.fixture
def watch(usual: BrowserContext, server: str) -> Iterator[Watch]:
    with Watch(usual, server) as watch:
        yield watch


@pytest.fixture
def ui(watch: Watch) -> Ui:
    """The start view in a new tab."""
    return Ui(watch.open())


@pytest.fixture
def phone(watch: Watch) -> Ui:
    return Ui(watch.open_anew(**PHONE))


MISBEHAVE = """async () => {
  console.warn("beware");
  setTimeout(() => { throw "late"; });
  await fetch("http://elsewhere.test/").catch(() => null);
  const text = Object.assign(document.createElement("p"), { textContent: "faint" });
  text.style.color = text.style.backgroundColor = "grey";
  document.querySelector("main").append(text);
  await new Promise((resolve) => setTimeout(resolve, 50));
}"""


def test_watch_reports_errors_warnings_and_foreign_requests(usual: BrowserContext, server: str) -> None:
    with pytest.raises(AssertionError, match="beware"), Watch(usual, server) as watch:
        page = watch.open()
        page.evaluate(MISBEHAVE)
        assert page.evaluate(browsers.LOW_CONTRAST) == [["faint", 1.0]]
        problems = "\n".join(watch.problems)
    for part in ("warning: beware", "uncaught: late", "http://elsewhere.test/", "Content Security Policy"):
        assert part in problems


def test_drop(ui: Ui, world: Path) -> None:
    expect(ui.page).to_have_title("Search · polyvoc")
    drag = Drag(ui.page, world / "queries" / "cat.jpg")
    hint = ui.page.get_by_text("Drop to search with this photograph")
    expect(hint).to_be_visible()
    drag.drop()
    expect(hint).to_be_hidden()
    ui.expect_hit(1, "cat-")
    ui.expect_results()
    ui.expect_hit(1, "cat-.*: probability .*, .* consistent matches")
    expect(ui.page.locator(".tile[data-rank='1'] svg.outline polygon")).not_to_have_count(0)
    assert re.search(r"#/search\?query=[\w-]+$", ui.page.url)


def test_choose_and_paste(ui: Ui, world: Path) -> None:
    ui.upload(world / "queries" / "motorcycle.jpg")
    ui.expect_hit(1, "motorcycle-")
    ui.page.get_by_label("Another photograph").set_input_files(world / "queries" / "rocket.jpg")
    ui.expect_hit(1, "rocket-")
    out = io.BytesIO()
    with Image.open(world / "queries" / "coffee.jpg") as photograph:
        photograph.save(out, "PNG")
    browsers.put_in_clipboard(ui.page, out.getvalue())
    ui.press("Control+V")
    ui.expect_heading("Results for image.png")
    ui.expect_hit(1, "coffee-")


def test_click_on_a_sample(ui: Ui) -> None:
    expect(ui.collection).to_have_count(12)
    label = ui.collection.nth(3).get_attribute("aria-label") or ""
    ui.collection.nth(3).click()
    ui.expect_heading(re.escape(label.removeprefix("Search with ")))
    ui.expect_results()
    expect(ui.page.locator(".tile[data-rank='1'] .badge")).to_have_text("query")


def test_minimum_probability_may_leave_no_hits(ui: Ui, tmp_path: Path) -> None:
    draw_scene(977).save(tmp_path / "unknown.png")
    ui.upload(tmp_path / "unknown.png")
    ui.expect_text("^Nothing found in ")
    ui.expect_text("^No photograph is likely to show the same thing")
    nearest = ui.page.get_by_role("list", name="Nearest").get_by_role("listitem")
    expect(nearest).to_have_count(3)
    expect(nearest.first.locator(".badge")).to_have_text(re.compile(r"^(< )?\d+ %$"))
    expect(ui.verified).to_have_count(0)
    expect(ui.hit(4)).to_be_hidden()
    ui.text("^Still less likely: 21 photographs").click()
    ui.expect_hit(4)
    ui.text("Expert settings").click()
    ui.set_number("min_probability", "0.95")
    ui.expect_text("Nothing found with a probability of at least 95 %")
    expect(ui.hit(1)).to_have_count(0)
    ui.link_named("Show less probable hits").click()
    ui.expect_hit(1)


def test_threshold_is_remembered(watch: Watch, image: ImageId) -> None:
    """The slider folds and unfolds hits without a search, and the next tab has it, too."""
    ui = Ui(watch.open_anew(f"#/search?query={image('cat-crop')}"))
    ui.expect_text("^6 other likely photographs in ")
    likely = ui.page.get_by_role("list", name="Results").get_by_role("listitem")
    shown = likely.count()
    expect(ui.link_named("^Show more$")).to_be_hidden()  # further hits are less probable than those in the fold
    tops = [ui.page.locator(f"#results .tile >> nth=0 >> {part}").bounding_box() for part in ("xpath=.", ".thumbnail")]
    assert tops[0] and tops[1] and tops[1]["y"] - tops[0]["y"] <= 1, "no gap between the border of a tile and its picture"
    slider = ui.page.get_by_role("slider", name="Likely from")
    slider.focus()
    ui.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "5 %")
    assert likely.count() >= shown == 7  # with the query
    ui.text("^Perhaps: ").click()
    expect(ui.link_named("^Show more$")).to_be_visible()
    probabilities = [
        float(text) for text in re.findall(r"probability (?:[<>] )?(\d+) %", ui.page.locator("#ranking").aria_snapshot())
    ]
    assert probabilities == sorted(probabilities, reverse=True) and len(probabilities) == 23
    again = ui.page.context.new_page()
    again.goto(ui.page.url)
    expect(again.get_by_role("slider", name="Likely from")).to_have_attribute("aria-valuetext", "5 %")


def test_photograph_opens_large(watch: Watch, image: ImageId) -> None:
    """By click and keyboard; it has a link, and Back closes it."""
    query = image("cat-crop")
    ui = Ui(watch.open(f"#/search?query={query}"))
    ui.expect_results()
    ui.hit(2).click()
    expect(ui.lightbox.locator("svg.outline polygon")).to_have_count(2)
    expect(ui.lightbox.locator("img")).to_have_js_property("complete", True)
    expect(ui.lightbox).to_contain_text(re.compile(r"probability .* consistent matches · score .* × .* image \d+"))
    first = ui.params["open"]
    ui.press("ArrowRight")
    expect(ui.page).not_to_have_url(re.compile(f"open={first}$"))
    ui.press("ArrowLeft")
    ui.expect_url(f"open={first}$")
    ui.page.reload()
    expect(ui.lightbox).to_be_visible()
    ui.press("Escape")
    ui.expect_url(rf"query={query}$")
    expect(ui.lightbox).to_be_hidden()
    ui.hit(3).click()
    expect(ui.lightbox).to_be_visible()
    ui.page.go_back()
    expect(ui.lightbox).to_be_hidden()
    ui.expect_hit(1)
    ui.hit(2).click()
    ui.link_named("^Search with this photo$").click()
    ui.expect_url(f"#/search.query={first}$")
    ui.go("#/browse?find=cat")
    ui.collection.first.click()
    expect(ui.lightbox).to_be_visible()
    expect(ui.link_named("^Why these match")).to_have_count(0)  # without a query
    ui.button("^Next photograph").click()
    ui.press("q")
    ui.expect_results()


def test_large_photograph_turned_by_a_finger(phone: Ui, image: ImageId) -> None:
    phone.go(f"#/browse?find=cat&open={image('cat-crop')}")
    box = phone.lightbox.bounding_box()
    assert box is not None and (box["width"], box["height"]) == (360, 740)
    before = phone.params["open"]
    browsers.touch(phone.page, [(300, 300), (200, 300), (100, 305)])
    expect(phone.page).not_to_have_url(re.compile(f"open={before}$"))
    phone.button("Close").click()  # Chromium takes a tap right after a swipe as the end of the swipe
    expect(phone.lightbox).to_be_hidden()


def test_filters_and_selection(watch: Watch, image: ImageId, world: Path) -> None:
    ui = Ui(watch.open("#/browse?find=cat"))
    ui.expect_text("^7 photographs with")
    ui.text("^Filter$").click()
    day = ui.page.locator("#collection time").first.inner_text()
    ui.page.get_by_label("Changed from", exact=True).fill("2001-01-01")
    ui.expect_url("changed_from=2001-01-01")
    ui.page.get_by_label("Changed until", exact=True).fill(day)
    ui.expect_text("^7 photographs with .* that pass the filter")
    ui.page.get_by_label("Changed until", exact=True).fill("2001-01-02")
    ui.expect_text("^No photographs with .* that pass the filter")
    ui.button("^Clear$").first.click()
    ui.expect_text("^7 photographs with “cat” in their path$")
    ui.go(f"#/search?query={image('cat-crop')}&folder={world}/elsewhere")
    ui.expect_text("^No hit passes the filter")
    ui.go(f"#/search?query={image('cat-crop')}&folder={world}/photos&changed_from={day}")
    ui.expect_hit(2)
    ui.button("^Select all$").click()  # of those in view: the fold is closed
    n_likely = ui.page.get_by_role("list", name="Results").get_by_role("listitem").count()
    ui.expect_text(f"^{n_likely} photographs selected$")
    ui.page.get_by_role("region", name="Selection").get_by_role("button", name="Clear").click()
    boxes = ui.page.get_by_role("checkbox", name=re.compile("^Select cat-"))
    boxes.nth(1).check(force=True)
    boxes.nth(2).check(force=True)
    ui.expect_text("^2 photographs selected$")
    files = {}
    for kind in ("CSV", "JSON"):
        with ui.page.expect_download() as download:
            ui.button(f"^{kind}$").click()
        files[kind] = Path(download.value.path()).read_text(encoding="utf-8")
    rows = json.loads(files["JSON"])
    assert [row["path"] for row in rows] == [line.split(",")[1] for line in files["CSV"].splitlines()[1:]]
    assert all(row["probability"] > 0.5 and row["changed"].startswith(day) and Path(row["path"]).is_file() for row in rows)
    ui.page.get_by_role("region", name="Selection").get_by_role("button", name="Clear").click()
    expect(ui.page.get_by_role("region", name="Selection")).to_be_hidden()


def test_broken_file_gives_one_line(watch: Watch, ui: Ui, world: Path) -> None:
    watch.expect_status(422)
    Drag(ui.page, world / "broken.jpg").drop()
    alert = ui.page.get_by_role("alert")
    expect(alert).to_contain_text("broken.jpg")
    assert "\n" not in alert.locator("p").inner_text()
    ui.expect_heading("Find the photographs")
    ui.upload(world / "queries" / "cat.jpg")
    expect(alert).to_have_count(0)


def test_expired_upload(watch: Watch, world: Path) -> None:
    watch.expect_status(404, 404, 404)
    ui = Ui(watch.open("#/search?query=uExpiredExpiredExp"))
    ui.expect_heading("This upload has expired")
    ui.expect_text("Drop it again, or choose it again")
    ui.page.get_by_label("Choose it again").set_input_files(world / "queries" / "cat.jpg")
    ui.expect_hit(1, "cat-")
    for view in ("matches?image=0&", "compare?"):
        ui.go(f"#/{view}query=uExpiredExpiredExp")
        ui.expect_text("The uploaded query has expired")


def test_busy_server_is_retried(watch: Watch, ui: Ui, image: ImageId) -> None:
    def busy(route: Route) -> None:
        route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": "busy"})

    watch.expect_status(503)
    ui.page.route("**/search?*", busy, times=1)
    ui.go(f"#/search?query={image('cat-original')}")
    message = ui.page.get_by_text("The server is busy; retrying in 1 s")
    expect(message).to_be_visible()
    ui.expect_hit(1, "cat-")
    expect(message).to_be_hidden()


def test_region_by_mouse(ui: Ui, world: Path) -> None:
    ui.upload(world / "collage.jpg")
    for left, right, name in ((0.02, 0.45, "cat-"), (0.55, 0.98, "coffee-")):
        with ui.page.expect_request(is_search("region=")) as request:
            ui.drag((right, 0.05), (left + 0.2, 0.5), (left, 0.95))
        ui.expect_region(600 * left, 15, 600 * right, 285)
        assert parse_qs(request.value.url)["region"] == [ui.params["region"]]
        ui.expect_hit(1, name)
        ui.expect_results()
        hits = ui.page.get_by_role("list", name="Results").get_by_role(
            "link", name=re.compile(r"probability .* %, \d+ consistent")
        )
        assert all(name in (hit.get_attribute("aria-label") or "") for hit in hits.all()[:3])
    ui.button("Whole photograph").click()
    expect(ui.page).not_to_have_url(re.compile("region="))
    ui.page.go_back()
    ui.expect_region(330, 15, 588, 285)
    ui.go(f"#/search?query={ui.params['query']}&region=30,30,270,270")
    expect(ui.region_editor).to_have_attribute("data-region", "30,30,270,270")
    ui.drag((0.25, 0.5), (0.75, 0.5))  # moved
    ui.expect_region(330, 30, 570, 270)
    ui.drag((0.95, 0.9), (0.99, 0.5))  # by a corner
    ui.expect_region(330, 30, 594, 150)


def test_region_by_touch(phone: Ui, world: Path) -> None:
    phone.upload(world / "collage.jpg")
    phone.button("Select a region").tap()
    with phone.page.expect_request(is_search("region=")):
        browsers.touch(phone.page, phone.query_points((0.55, 0.1), (0.7, 0.4), (0.95, 0.9)))
    phone.expect_region(330, 30, 570, 270)
    phone.expect_hit(1, "coffee-")


def test_region_by_keyboard(ui: Ui, world: Path) -> None:
    ui.upload(world / "collage.jpg")
    ui.region_editor.focus()
    ui.press("Enter")
    ui.expect_region(150, 75, 450, 225)
    ui.press("ArrowRight", "ArrowRight", "Shift+ArrowUp")
    ui.expect_url("region=174,75,474,213")
    ui.press("Escape")
    expect(ui.page).not_to_have_url(re.compile("region="))


Explained = tuple[str, dict[str, Any]]  # the link to a matches view, and the explanation of the server


def explain(api: httpx.Client, image: ImageId, **options: Any) -> Explained:
    request = {"query": image("cat-crop"), "image": image("cat-viewpoint"), **options}
    return f"#/matches?{urlencode(request)}", api.get("/explain", params={**request, "limit": 1000}).json()


@pytest.fixture
def explained(api: httpx.Client, image: ImageId) -> Explained:
    """By words of several vocabularies."""
    return explain(api, image, merge="posterior")


@pytest.fixture
def explained_by_codes(api: httpx.Client, image: ImageId) -> Explained:
    return explain(api, image)


def test_matches_view(ui: Ui, world: Path) -> None:
    ui.upload(world / "queries" / "cat.jpg")
    ui.why("cat-")
    ui.expect_heading(r"Why these match: cat\.jpg and cat-.*\.jpg")
    ui.expect_text(r"^\d+ of \d+ matches are consistent with one geometric transform, with \d+ % of the total weight\.$")
    expect(ui.page.get_by_role("group", name=re.compile("^Matches of cat.jpg and cat-"))).to_be_visible()
    assert ui.lines.count() == int(ui.drawing.get_attribute("data-shown") or 0) > 10
    ui.link_named("next hit").click()
    ui.expect_text("hit 2 of 24")
    ui.press("p")
    ui.expect_text("hit 1 of 24")
    ui.link_named("All results").click()
    ui.expect_hit(1, "cat-")


def test_lines_show_sets_weights_and_inliers(watch: Watch, explained: Explained) -> None:
    link, explanation = explained
    ui = Ui(watch.open(f"{link}&which=all&shown=1000"))
    matches = explanation["matches"]
    inliers = sum(match["inlier"] for match in matches)
    in_all = sum(match["mask"] == 2 ** explanation["n_vocabularies"] - 1 for match in matches)
    expect(ui.lines).to_have_count(len(matches))

    def lines(kind: str) -> Any:
        return ui.drawing.locator(f".lines path.link.{kind}")

    assert lines("inlier").count() == inliers > 5
    assert lines("outlier").count() == len(matches) - inliers > 5
    assert lines("all").count() == in_all
    assert style(lines("inlier.all").first, "stroke") != style(lines("inlier.one").first, "stroke")
    assert float(style(lines("inlier").first, "opacity")) > 2 * float(style(lines("outlier").first, "opacity"))
    widths = [float(line.get_attribute("stroke-width") or 0) for line in (ui.lines.last, ui.lines.first)]
    assert widths[0] > widths[1]  # the highest weight is on top


def test_matches_by_codes_have_no_sets(watch: Watch, explained_by_codes: Explained) -> None:
    """Neither the controls nor the card name vocabularies, and a link with hidden sets hides nothing."""
    link, explanation = explained_by_codes
    matches = explanation["matches"]
    assert explanation["n_vocabularies"] == 1
    ui = Ui(watch.open(f"{link}&which=all&shown=1000&hide=all,one"))
    expect(ui.lines).to_have_count(len(matches))
    inliers = sum(match["inlier"] for match in matches)
    assert ui.drawing.locator(".lines path.link.inlier").count() == inliers > 5
    expect(ui.page.get_by_role("group", name="Sets")).to_have_count(0)
    ui.drawing.focus()
    ui.press("ArrowRight")
    ui.expect_match(f"Match 1 of {len(matches)}$")
    shown = dict(zip(ui.card.locator("dt").all_inner_texts(), ui.card.locator("dd").all_inner_texts(), strict=True))
    assert list(shown) == ["Weight", "Geometry", "Word", "Distance"]
    assert (shown["Word"], shown["Distance"]) == (str(matches[0]["words"][0]), str(matches[0]["distances"][0]))
    assert shown["Geometry"] == ("consistent" if matches[0]["inlier"] else "not consistent")
    assert float(shown["Weight"].split()[0].replace(",", "")) == pytest.approx(matches[0]["weight"], rel=0.01)
    text = ui.main.inner_text().lower()
    assert not re.search("vocabular|intersection|ratio", text)


def test_matches_by_sets_of_images(watch: Watch, api: httpx.Client, image: ImageId) -> None:
    """The colour is that of the image's set; matches that share fewer words than their image are dashed and thinner."""
    request = {"query": image("coins-crop"), "image": image("coins-viewpoint"), "preset": "paper"}
    matches = api.get("/explain", params={**request, "limit": 1000}).json()["matches"]
    link = f"#/matches?{urlencode(request)}"
    by_image = [number for number, match in enumerate(matches) if match["set_mask"] != match["mask"]]
    ui = Ui(watch.open(f"{link}&which=all&shown=1000"))
    expect(ui.lines).to_have_count(len(matches))
    ui.expect_text("^Image in the lists of vocabularies$")
    expect(ui.text("^dashed: by other features of the image")).to_have_text(re.compile(rf"\b{len(by_image)}$"))
    expect(ui.button(r"^all \(intersection\)")).to_have_text(re.compile(rf"\b{sum(m['set_mask'] == 3 for m in matches)}$"))
    dashed, solid = (ui.drawing.locator(f".lines path.link.all{kind}") for kind in (".by-image", ":not(.by-image)"))
    assert dashed.count() == len(by_image) > 5
    assert style(dashed.first, "stroke") == style(solid.first, "stroke")
    assert style(dashed.first, "stroke-dasharray") != style(solid.first, "stroke-dasharray") == "none"
    ui.drawing.focus()
    ui.press(*["ArrowRight"] * (by_image[0] + 1))
    ui.expect_match(f"Match {by_image[0] + 1} of")
    (own,) = (k for k, word in enumerate(matches[by_image[0]]["words"], start=1) if word is not None)
    assert re.search(rf"intersection of all 2, by its image\s+This match\s+vocabulary {own} only", ui.card.inner_text())
    ui.go(f"{link}&sets=feature&which=all&shown=1000")
    ui.expect_text("^Same word in vocabularies$")
    expect(ui.text("^dashed")).to_have_count(0)
    expect(ui.drawing.locator(".by-image")).to_have_count(0)


def test_card_of_a_match(watch: Watch, explained: Explained) -> None:
    link, explanation = explained
    ui = Ui(watch.open(link))
    expect(ui.card).to_have_text("Point at a match, tap it, or select one with the arrow keys.")
    ui.page.mouse.move(*position(ui.drawing.locator(".dots path").last))
    ui.expect_match(r"Match \d+ of \d+")
    match = explanation["matches"][int(ui.card.locator("[data-match]").get_attribute("data-match") or -1)]
    text = ui.card.inner_text()
    words = [word for word in match["words"] if word is not None]
    assert words and all(f"word {word}" in text for word in words)
    assert text.count("different words") == match["words"].count(None)
    assert (match["sets"] if match["sets"] != "intersection" else "intersection of all") in text
    for name in ("ratio", "weight"):
        value = re.search(rf"{name}\s+([\d.,e+-]+)", text, re.IGNORECASE)
        assert value and float(value[1].replace(",", "")) == pytest.approx(match[name], rel=0.01)
    assert ("not consistent" in text) is not match["inlier"] and "consistent" in text
    expect(ui.card.get_by_role("img", name=re.compile("^Patch in"))).to_have_count(2)
    ui.drawing.focus()
    ui.press("Escape", "ArrowRight")
    ui.expect_match("Match 1 of")


def test_filters_and_slider(watch: Watch, explained: Explained) -> None:
    link, explanation = explained
    matches = explanation["matches"]
    ui = Ui(watch.open(link))

    def expect_shown(number: int) -> None:
        expect(ui.drawing).to_have_attribute("data-shown", str(number))

    expect_shown(min(120, sum(match["inlier"] for match in matches)))
    ui.check("all")
    ui.expect_url("which=all")
    slider = ui.page.get_by_role("slider", name=re.compile("^Highest weights"))
    slider.focus()
    ui.press("End")
    expect_shown(len(matches))
    entry = ui.button("^one only")
    expect(entry).to_have_text(re.compile(rf"\b{sum(match['mask'].bit_count() == 1 for match in matches)}$"))
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "false")
    expect(ui.drawing.locator(".lines path.one")).to_have_count(0)
    ui.expect_url("hide=one")
    slider.focus()
    ui.press("Home")
    expect_shown(1)
    ui.check("dots")
    expect(ui.drawing.locator(".lines path")).to_have_count(0)
    assert ui.params.items() >= {"which": "all", "hide": "one", "shown": "1", "draw": "dots"}.items()


def test_compare_view(ui: Ui, api: httpx.Client, image: ImageId) -> None:
    query = image("coins-dark")
    ui.search(query)
    ui.link_named("Compare settings").click()
    ui.expect_heading("Compare search settings")
    ui.assert_rankings(api, query, {"left": {"merge": "b1", "verify": 0}, "right": {}})
    ui.page.get_by_role("region", name="Search on the left").get_by_role("radio", name="fast").check(force=True)
    ui.expect_url("left=preset%3Dfast")
    ui.assert_rankings(api, query, {"left": {"preset": "fast"}, "right": {}})
    ui.button("Swap sides").click()
    ui.assert_rankings(api, query, {"left": {}, "right": {"preset": "fast"}})
    ui.page.get_by_role("list", name="Ranking on the left").get_by_role("link").first.click()
    ui.expect_heading("Why these match: coins-dark.jpg and coins-dark.jpg")


def test_options(ui: Ui, api: httpx.Client, image: ImageId) -> None:
    query = image("rocket-crop")
    ui.search(query)
    rules = ui.choices("merge")
    assert rules == ["codes", "posterior", "bayes", "b0", "b1", "b2"]  # likelihood needs signatures
    for rule in rules[1:]:
        ui.set_choice("merge", rule)
        ui.expect_url(f"merge={rule}")
        ui.expect_text(f" in .* · default, merge {rule}$")
        ui.assert_hits(api, query, {"merge": rule})
    ui.set_number("vocabularies", "1")
    with ui.page.expect_request(is_search("vocabularies=1", "burstiness=none")):
        ui.set_choice("burstiness", "none")
    ui.set_number("verify", "0")
    ui.expect_text("by score only · default, .*vocabularies 1")
    options = {"merge": "b2", "vocabularies": "1", "burstiness": "none", "verify": "0"}
    assert ui.params.items() >= options.items()
    expect(ui.verified).to_have_count(0)
    ui.assert_hits(api, query, options)
    ui.button("Reset").click()
    ui.expect_url(rf"#/search\?query={query}$")
    with ui.page.expect_request(is_search("preset=best")):
        ui.check("best")
    ui.expect_text("· best$")


def test_options_of_the_paper(ui: Ui, api: httpx.Client, image: ImageId) -> None:
    query = image("rocket-crop")
    ui.search(query)
    with ui.page.expect_request(is_search("preset=paper")):
        ui.check("paper")
    ui.expect_text("^as in the paper: Bayes merging of two vocabularies, sets of images$")
    ui.assert_hits(api, query, {"preset": "paper"})
    shown = {name: ui.page.locator(f"[data-option='{name}']").input_value() for name in ("merge", "vocabularies", "norm")}
    assert shown == {"merge": "bayes", "vocabularies": "2", "norm": "features"}
    chosen = ui.page.get_by_role("combobox", name="sets", exact=True).locator("option:checked")
    expect(chosen).to_have_text("auto — images")
    ui.set_choice("merge", "posterior")
    expect(chosen).to_have_text("auto — features")
    ui.set_choice("sets", "image")
    expect(chosen).to_have_text("image — images")
    ui.set_number("vocabularies", "1")
    ui.assert_hits(api, query, {"preset": "paper", "merge": "posterior", "sets": "image", "vocabularies": 1})


def test_options_of_words_are_hidden_where_codes_are_compared(ui: Ui, image: ImageId) -> None:
    query = image("rocket-crop")
    ui.search(query)

    def expect_shown(*expected: str) -> None:
        every = ("merge", "assignments", "verify", "norm", "burstiness", "vocabularies")
        for name in every:
            expect(ui.page.locator(f"[data-option='{name}']")).to_be_visible(visible=name in expected)

    expect_shown("merge", "assignments", "verify")
    ui.set_choice("merge", "b1")
    expect_shown("merge", "assignments", "verify", "norm", "burstiness", "vocabularies")
    ui.button("Reset").click()
    expect_shown("merge", "assignments", "verify")
    ui.go(f"#/search?query={query}&norm=tf")  # what the link changes is shown
    ui.expect_text("· default, norm tf$")
    expect_shown("merge", "assignments", "verify", "norm")


def test_options_have_the_help_choices_and_limits_of_the_server(ui: Ui, api: httpx.Client, image: ImageId) -> None:
    ui.go(f"#/search?query={image('rocket-crop')}&merge=posterior")
    ui.expect_results()
    ui.text("Expert settings").click()
    about = api.get("/about").json()
    texts = about["texts"]
    schemas = {one["name"]: one["schema"] for one in api.get("/openapi.json").json()["paths"]["/search"]["post"]["parameters"]}
    shown = ui.page.locator("[data-option]").evaluate_all("(all) => all.map((one) => one.dataset.option)")
    # The last ones: the index has no links, no embeddings and no signatures.
    hidden = {"top", "since", "require_all", "smooth", "fuse", "hamming", "sigma"}
    assert set(shown) == texts.keys() - hidden
    for name in shown:
        field, schema = ui.page.locator(f"[data-option='{name}']"), schemas[name]["anyOf"][0]
        expect(field).to_have_accessible_description(texts[name])
        assert "enum" not in schema or ui.choices(name) == [one for one in schema["enum"] if one in about["choices"][name]]
        for limit, attribute in (("minimum", "min"), ("maximum", "max")):
            assert limit not in schema or float(field.get_attribute(attribute) or "nan") == schema[limit]


def test_browse(ui: Ui) -> None:
    ui.link_named("Browse").click()
    ui.expect_text("64 photographs, 1 to 60 shown")
    expect(ui.collection).to_have_count(60)
    ui.page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Next page").click()
    ui.expect_url(r"#/browse\?page=2$")
    expect(ui.collection).to_have_count(4)
    ui.page.get_by_role("searchbox", name="Find by name").fill("coffee")
    ui.press("Enter")
    ui.expect_url(r"#/browse\?find=coffee$")
    ui.expect_text("7 photographs with “coffee” in their path")
    expect(ui.collection).to_have_count(7)
    ui.link_named("^Search with this photo: coffee-").first.click()
    ui.expect_heading("Results for coffee-")


def test_statistics(watch: Watch, api: httpx.Client) -> None:
    info = api.get("/statistics").json()
    ui = Ui(watch.open("#/statistics"))
    cards = ui.page.get_by_role("list", name="Summary").get_by_role("listitem")
    fine = info["fine_vocabulary"]
    for number, value in enumerate((info["images"], info["features"], len(info["vocabularies"]), fine["size"])):
        expect(cards.nth(number).locator("b")).to_have_text(f"{value:,}")
    expect(cards.nth(3)).to_contain_text(f"codes of {fine['bits']} bits")
    row = ui.page.get_by_role("row").filter(has_text=fine["fingerprint"])
    expect(row.get_by_role("rowheader")).to_have_text("fine, of codes")
    for name, plots in (("ratio", info["ratios"]), ("length", info["list_lengths"])):
        figures = ui.page.locator(f"#{name}-plots").get_by_role("figure")
        expect(figures).to_have_count(len(plots))
        for figure, plot in zip(figures.all(), plots, strict=True):
            heights = figure.locator("rect.bar").evaluate_all("(bars) => bars.map((bar) => Number(bar.getAttribute('height')))")
            assert [height > 0 for height in heights] == [count > 0 for count in plot["counts"]]
            assert heights.index(max(heights)) == plot["counts"].index(max(plot["counts"]))
            table = figure.locator("td.number").all_text_contents()
            assert [int(text.replace(",", "")) for text in table] == plot["counts"]
    ui.expect_text(f"Measured on {info['sampled_features']:,} sampled features")


def test_add_and_remove(watch: Watch, world: Path) -> None:
    ui = Ui(watch.open("#/browse"))
    ui.page.locator("#add-input").set_input_files([world / "new.jpg", world / "broken.jpg"])
    ui.expect_text("1 photograph added.")
    expect(ui.page.get_by_role("listitem").filter(has_text=re.compile("^broken.jpg: "))).to_be_visible()
    ui.expect_text("65 photographs")
    ui.go("#/")
    ui.upload(world / "new.jpg")
    ui.expect_hit(1, "new")
    ui.go("#/browse?find=new")
    ui.button("^Remove new.* from the collection$").click()
    dialog = ui.page.get_by_role("group", name=re.compile(r"^Remove new.*\?$"))
    expect(dialog.get_by_role("button", name="Keep")).to_be_focused()
    dialog.get_by_role("button", name=re.compile("^Yes, remove new")).click()
    expect(ui.page.get_by_text(re.compile("new.* was removed from the collection"))).to_be_visible()
    ui.expect_text("No photographs with “new” in their path.")
    assert (world / "new.jpg").exists()


def test_names_are_never_markup(watch: Watch, image: ImageId) -> None:
    query = image(MARKUP)
    ui = Ui(watch.open("#/browse?find=onerror"))
    expect(ui.page.get_by_role("link", name=f"Show {MARKUP}.jpg large")).to_be_visible()
    ui.page.get_by_text(f"{MARKUP}.jpg", exact=True).click()
    ui.expect_text(f"photos/{re.escape(MARKUP)}.jpg$")
    find = urlencode({"find": MARKUP})
    for link in (f"search?query={query}", f"matches?query={query}&image={query}", f"compare?query={query}", f"browse?{find}"):
        ui.go(f"#/{link}")
        expect(ui.text(re.escape(f"{MARKUP}.jpg")).first).to_be_visible()
    ui.page.get_by_role("button", name=f"Remove {MARKUP}.jpg from the collection").click()
    ui.button("Keep").click()
    expect(ui.page.locator("[onerror], img[src=x]")).to_have_count(0)


def test_shared_link_shows_the_same_view(watch: Watch, image: ImageId) -> None:
    first, second = Ui(watch.open()), Ui(watch.open_anew())
    for view in visits(first, image):
        second.page.goto("about:blank")  # so that nothing of the previous view remains
        second.go(first.link)
        second.expect_text(view.text)
        assert (second.page.url, second.page.title()) == (first.page.url, first.page.title())
        if view.name != "start":  # its samples are random
            expect_same_text(second.page, first.page)


def test_back_and_forward(ui: Ui) -> None:
    ui.page.get_by_role("searchbox").fill("motorcycle")
    ui.press("Enter")
    ui.link_named("Search with this photo: motorcycle-original.jpg").click()
    ui.expect_results()
    ui.check("fast")
    ui.expect_text("by score only · fast$")
    ui.why("motorcycle-(?!original)")
    ui.expect_heading("Why these match: motorcycle-")
    for preset in ("fast", "default"):
        ui.page.go_back()
        ui.expect_text(f"· {preset}$")
        expect(ui.page.get_by_role("radio", name=preset)).to_be_checked()
    ui.page.go_back()
    ui.expect_text("7 photographs with")
    ui.page.go_back()
    ui.expect_heading("Find the photographs")
    for _ in range(4):
        ui.page.go_forward()
    ui.expect_heading("Why these match: motorcycle-")


def test_search_on_a_phone_and_no_view_is_wider(phone: Ui, image: ImageId) -> None:
    expect(phone.page.get_by_label("Take a photograph")).to_be_attached()
    phone.expect_text("Take a photograph")
    phone.collection.nth(5).tap()
    phone.expect_results()
    phone.hit(2).tap()
    phone.link_named("^Why these match$").tap()
    expect(phone.drawing).to_be_visible()
    box = phone.drawing.bounding_box()
    assert box is not None and box["width"] > 300
    phone.page.touchscreen.tap(*position(phone.drawing.locator(".dots path").last))
    phone.expect_match(r"^Match \d+ of")
    phone.link_named("All results").tap()
    phone.expect_results()
    for view in visits(phone, image):
        width, room = phone.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert width <= room == 360, view.name


def test_keyboard_only(ui: Ui) -> None:
    expect(ui.collection.first).to_be_visible()
    tab_to(ui.page, "^Search with [a-z-]+.jpg")
    ui.press("Enter")
    ui.expect_results()
    tab_to(ui.page, r"^1\. ")
    ui.press("ArrowRight")
    expect(ui.hit(2)).to_be_focused()
    ui.press("Enter")
    expect(ui.lightbox).to_be_visible()
    ui.press("w")
    ui.expect_heading("^Why ")
    ui.expect_text("hit 2 of 24")
    tab_to(ui.page, "^Matches of .* use the arrow keys")
    ui.press("ArrowDown")
    ui.expect_match("^Match 1 of")
    ui.press("Alt+ArrowDown")  # a shortcut of the browser
    ui.expect_match("^Match 1 of")
    tab_to(ui.page, "^All results$", "Shift+Tab")
    ui.press("Enter")
    ui.expect_hit(1)


ADD_END = "(main) => main.append(Object.assign(document.createElement('button'), { textContent: 'the end' }))"


def test_every_focus_is_visible(ui: Ui, image: ImageId) -> None:
    for view in visits(ui, image):
        ui.page.locator("#skip").evaluate("(first) => { first.focus(); first.blur(); }")  # where Tab continues
        ui.main.evaluate(ADD_END)
        tab_to(ui.page, "^Copy path$" if view.name == "large" else "^the end$")


def test_copy_link_and_shortcuts(watch: Watch) -> None:
    ui = Ui(watch.open_anew("#/browse?page=2", permissions=["clipboard-read", "clipboard-write"]))
    ui.expect_text("61 to 64 shown")
    ui.button("Copy link").click()
    expect(ui.page.get_by_role("status").filter(has_text="Link copied")).to_be_visible()
    assert ui.page.evaluate("navigator.clipboard.readText()") == ui.page.url
    dialog = ui.page.get_by_role("dialog", name="Keyboard shortcuts")
    ui.press("?")
    expect(dialog).to_be_visible()
    ui.press("Escape")
    expect(dialog).to_be_hidden()
    ui.press("/")
    expect(ui.page.get_by_role("searchbox", name="Find by name")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(watch: Watch, image: ImageId, scheme: str) -> None:
    ui = Ui(watch.open_anew(color_scheme=scheme))
    backgrounds = set()
    for view in visits(ui, image):
        assert ui.page.evaluate(browsers.LOW_CONTRAST) == [], view.name
        backgrounds.add(background(ui.page))
    (colour,) = backgrounds
    assert (sum(map(int, re.findall(r"\d+", colour)[:3])) > 600) is (scheme == "light")


def background(page: Page) -> str:
    return style(page.locator("body"), "background-color")


def test_colours_are_stored(watch: Watch) -> None:
    page = watch.open_anew(color_scheme="light")
    colours = page.get_by_role("button", name="Colours")
    for name in ("automatic", "light", "dark"):
        expect(colours).to_have_accessible_name(f"Colours: {name}")
        if name != "dark":
            colours.click()
    dark = background(page)
    page.reload()
    expect(colours).to_have_accessible_name("Colours: dark")
    assert background(page) == dark


COUNT_ANIMATIONS = """
window.animated = 0;
const animate = Element.prototype.animate;
Element.prototype.animate = function (...how) { window.animated += 1; return animate.apply(this, how); };
"""
LASTING = "document.getAnimations().filter((one) => one.effect.getComputedTiming().activeDuration > 10).length"


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_reduced_motion(watch: Watch, image: ImageId, motion: str) -> None:
    link = f"#/search?query={image('rocket-crop')}&preset=fast"
    ui = Ui(watch.open_anew(link, COUNT_ANIMATIONS, reduced_motion=motion))
    ui.expect_results()
    ui.text("Expert settings").click()
    ui.set_choice("merge", "b0")
    ui.expect_text("· fast, merge b0$")
    assert (ui.page.evaluate("window.animated") == 0) is (motion == "reduce")
    assert ui.page.evaluate(LASTING) == 0 or motion == "no-preference"


def test_token_of_a_private_server(usual: BrowserContext, world: Path) -> None:
    """From the link, and typed: a wrong one, then the right one."""
    environment = {"POLYVOC_TOKEN": TOKEN}
    with (
        servers.running(world / "photos.polyvoc", "--private", environment=environment) as private,
        Watch(usual, private.url) as watch,
    ):
        ui = Ui(watch.open_anew(f"#token={TOKEN}"))
        ui.expect_loaded_samples()
        assert ui.page.url == f"{private.url}#/"
        assert ui.page.evaluate("history.length") <= 2
        ui.collection.first.click()
        ui.expect_results()
        ui.page.reload()
        ui.expect_results()
        assert TOKEN not in json.dumps(ui.page.context.cookies())
        watch.expect_status(401, 401)
        ui = Ui(watch.open_anew())
        field = ui.page.get_by_role("textbox", name=re.compile("^Token"))
        field.fill("wrong")
        ui.button("Continue").click()
        expect(ui.page.get_by_role("alert")).to_have_text("The server rejected this token.")
        field.fill(TOKEN)
        ui.press("Enter")
        ui.expect_loaded_samples()
        expect(ui.button("Continue")).to_have_count(0)


@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_first_run_from_a_folder_to_the_first_hit(usual: BrowserContext, world: Path, tmp_path: Path, device: str) -> None:
    """Choose a folder with the keyboard or by touch, read what could not be used, go on to search."""
    pictures = tmp_path / "home" / "pictures"
    pictures.mkdir(parents=True)
    for name in ("cat-original", "cat-crop", "coffee-original"):
        shutil.copy(world / "photos" / f"{name}.jpg", pictures)
    shutil.copy(world / "broken.jpg", pictures)
    (pictures / "film.mp4").write_bytes(b"")
    with (
        servers.running(tmp_path / "none.polyvoc", "--root", tmp_path / "home") as server,
        Watch(usual, server.url) as watch,
    ):
        ui = Ui(watch.open_anew(**(PHONE if device == "phone" else {"color_scheme": "dark"})))
        ui.expect_heading("Choose a folder of photographs")
        expect(ui.page.get_by_role("navigation", name="Views")).to_be_hidden()
        assert ui.page.evaluate(browsers.LOW_CONTRAST) == []
        folder = ui.button("^pictures$")
        if device == "phone":
            folder.tap()
        else:
            tab_to(ui.page, "^pictures$")
            ui.press("Enter")
        ui.expect_text("4 photographs directly in this folder")
        if device == "phone":
            ui.button("^Index this folder$").tap()
        else:
            tab_to(ui.page, "^Index this folder$")
            ui.press("Enter")
        ui.expect_text(r"^3 photographs ready in \d+ s. Other files were skipped: 1 MP4.$")
        ui.expect_heading("^Your photographs can be searched$")
        ui.text("^1 file could not be used$").click()
        ui.expect_text("^broken.jpg: ")
        width, room = ui.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert width <= room and ui.page.evaluate(browsers.LOW_CONTRAST) == []
        ui.button("^Go on to search$").click()
        ui.upload(world / "queries" / "cat.jpg")
        ui.expect_hit(1, "cat-")
        ui.page.reload()
        ui.expect_hit(1, "cat-")
    assert (tmp_path / "none.polyvoc").is_dir()


@pytest.fixture(scope="module")
def curated(browser: Browser, world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server of a few photographs and copies of them, compared and linked: its address and the folder of the photographs."""
    folder = tmp_path_factory.mktemp("curated")
    (folder / "photos").mkdir()
    for name in ("cat-original", "cat-viewpoint", "coffee-original"):
        shutil.copy(world / "photos" / f"{name}.jpg", folder / "photos")
    shutil.copy(folder / "photos" / "coffee-original.jpg", folder / "photos" / f"{MARKUP}.jpg")
    with Image.open(folder / "photos" / "cat-original.jpg") as photograph:
        width, height = photograph.size
        photograph.resize((width * 2 // 3, height * 2 // 3)).save(folder / "photos" / "cat-small.jpg", quality=85)
        photograph.crop((20, 10, width - 20, height - 5)).save(folder / "photos" / "cat-crop.jpg", quality=80)
    with IndexWriter.open(folder / "photos.polyvoc") as writer:
        writer.update([folder / "photos"])
    with servers.running(folder / "photos.polyvoc", "--write") as server:
        yield server.url, folder / "photos"


def test_groups_and_copies(usual: BrowserContext, curated: tuple[str, Path]) -> None:
    """Both are computed with progress; verdicts by key, the difference of two files, a move and its undo."""
    address, photos = curated
    with Watch(usual, address) as watch:
        ui = Ui(watch.open("#/groups"))
        ui.button("^Find groups$").click()
        ui.expect_text(r"^2 groups of \d photographs$")
        first = ui.page.get_by_role("region", name=re.compile("^Group 1: "))
        expect(first.get_by_role("link", name=re.compile("^Show .*cat-original.jpg large$"))).to_be_visible()
        first.get_by_role("link", name=re.compile("^Show .* large$")).nth(1).click()
        expect(ui.lightbox).to_be_visible()
        ui.press("w")
        ui.expect_heading("^Why these match")

        ui.go("#/duplicates")
        ui.expect_text("^1 group, 1 file besides those to keep · 6 photographs not compared yet$")  # by digest alone
        ui.button("^Compare 6 photographs$").click()
        ui.expect_text(r"^2 groups, \d files besides those to keep")
        cats = ui.page.get_by_role("region", name=re.compile("^Group 1: "))
        pair = cats.get_by_role("group", name="cat-small.jpg and cat-original.jpg", exact=True)
        pair.get_by_role("button", name="Difference").click()
        drawing = pair.get_by_role("img", name=re.compile("^Difference of cat-small"))
        expect(drawing).to_be_visible()
        pair.get_by_role("radio", name="both").check(force=True)
        expect(drawing).to_have_attribute("data-mode", "half")
        expect(pair).to_have_class(re.compile("current"))
        ui.press("d")
        expect(drawing).to_be_hidden()
        with ui.page.expect_response(lambda response: "verdict=copy" in response.url and response.ok):
            ui.press("1")
        expect(pair.get_by_role("button", name="Copy")).to_have_attribute("aria-pressed", "true")
        expect(pair).not_to_have_class(re.compile("current"))  # the next pair is
        ui.page.reload()
        expect(pair.get_by_role("button", name="Copy")).to_have_attribute("aria-pressed", "true")

        again = ui.page.get_by_role("region", name=re.compile("^Group 2: 2 files"))
        again.get_by_role("radio", name="keep this one").last.check()
        kept = again.locator("figure:has(input:checked) .name").inner_text()
        before = sorted(path.name for path in photos.iterdir())
        again.get_by_role("button", name="Move the others").click()
        expect(ui.page.get_by_role("status").filter(has_text="1 file moved to ")).to_be_visible()
        expect(again).to_have_count(0)
        left = sorted(path.name for path in photos.iterdir())
        assert len(left) == len(before) - 1 and kept in left
        ui.button("^Undo the last move$").click()
        expect(again).to_be_visible()
        assert sorted(path.name for path in photos.iterdir()) == before
        expect(ui.page.locator("[onerror], img[src=x]")).to_have_count(0)


@pytest.fixture(scope="module")
def compared(curated: tuple[str, Path]) -> tuple[str, Path]:
    """The same with groups and copies found."""
    for work in ("groups", "duplicates"):
        httpx.post(f"{curated[0]}{work}").raise_for_status()
        servers.wait_until(lambda: httpx.get(f"{curated[0]}job").json()["state"] == "done")
    return curated


def test_copies_open_large(usual: BrowserContext, compared: tuple[str, Path]) -> None:
    with Watch(usual, compared[0]) as watch:
        ui = Ui(watch.open("#/duplicates"))
        copy = ui.link_named("^Show cat-small.jpg large$")
        copy.click()
        expect(ui.lightbox).to_contain_text("cat-small.jpg")
        ui.press("m")  # nothing is moved behind it
        ui.press("Escape")
        expect(ui.lightbox).to_be_hidden()
        expect(copy).to_be_visible()
        assert (compared[1] / "cat-small.jpg").is_file()


def test_what_is_no_copy_by_a_verdict_is_not_moved(usual: BrowserContext, compared: tuple[str, Path]) -> None:
    moves: list[str] = []

    def note(route: Route) -> None:
        moves.append(route.request.url)
        route.fulfill(json={"moved": [], "problems": [], "folder": "none"})

    address, _ = compared
    with Watch(usual, address) as watch:
        ui = Ui(watch.open("#/duplicates"))
        cats = ui.page.get_by_role("region", name=re.compile("^Group 1: 3 files"))
        images = {name: cats.locator(f"figure:has([title$='{name}'])").get_attribute("data-image") for name in CATS}
        pair = cats.get_by_role("group", name=re.compile("^cat-crop.jpg and "))
        pair.get_by_role("button", name="Different").click()
        expect(pair.get_by_role("button", name="Different")).to_have_attribute("aria-pressed", "true")
        ui.page.route("**/duplicates/move?*", note)
        cats.get_by_role("button", name="Move the others").click()
        expect(ui.page.get_by_role("status").filter(has_text="0 files moved to none")).to_be_visible()
        assert [parse_qs(urlsplit(url).query)["image"] for url in moves] == [[images["cat-small.jpg"]]]
        for name in ("cat-small.jpg", "cat-crop.jpg"):
            choice = {"first": images["cat-original.jpg"], "second": images[name], "verdict": "none"}
            httpx.post(f"{address}duplicates/verdict", params=choice).raise_for_status()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_groups_and_copies_on_a_phone(usual: BrowserContext, compared: tuple[str, Path], scheme: str) -> None:
    with Watch(usual, compared[0]) as watch:
        ui = Ui(watch.open_anew(**PHONE, color_scheme=scheme))
        for view in ("groups", "duplicates"):
            ui.go(f"#/{view}")
            expect(ui.page.get_by_role("region", name=re.compile("^Group 1: "))).to_be_visible()
            width, room = ui.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert width <= room == 360, view
            assert ui.page.evaluate(browsers.LOW_CONTRAST) == [], view
        tab_to(ui.page, "^(Copy|Another shot|Different)$")
