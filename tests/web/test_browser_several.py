"""The page of a server of several indexes in Chromium: one ranking, and the matches of each kind in a colour of their own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

import browsers
import servers
from browsers import Watch
from page_objects import Ui, style


@pytest.fixture(scope="module")
def server(_session_coded_index: Path, _session_orb_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("several")
    sift = shutil.copytree(_session_coded_index, folder / "photos.polyvoc")
    orb = shutil.copytree(_session_orb_index, folder / "photos.orb.polyvoc")
    with servers.running("--index", sift, "--index", orb) as server:
        yield server.url


@pytest.fixture
def watch(server: str) -> Iterator[Watch]:
    with browsers.launched() as browser:
        context = browser.new_context(**browsers.USUAL)
        context.set_default_timeout(browsers.TIMEOUT)
        with Watch(context, server) as watch:
            yield watch


def test_matches_of_two_kinds(watch: Watch, server: str, photographs: Path) -> None:
    ui = Ui(watch.open())
    ui.expect_text("among 12 photographs")
    for name, shown in (("Browse", True), ("Statistics", True), ("Groups", False), ("Copies", False)):
        expect(ui.link_named(f"^{name}$")).to_have_count(int(shown))
    ui.upload(photographs / "tower-b.jpg")
    ui.expect_hit(1, "tower-")
    badge = ui.page.locator(".tile[data-rank='1'] .badge")
    expect(badge).to_have_attribute("title", re.compile(r"photos\.orb\.polyvoc \(orb\) .* %, photos\.polyvoc \(sift\) .* %"))
    ui.hit(1).click()
    expect(ui.lightbox).to_contain_text(re.compile(r"\(orb\) .* %, photos\.polyvoc \(sift\) .* %"))
    ui.press("Escape")
    ui.why("tower-a")

    ui.expect_text(r"^orb: [\d,]+ of [\d,]+ matches are consistent .* sift: \d+ of \d+ matches are consistent")
    request = {"query": ui.params["query"], "image": ui.params["image"], "limit": "1000"}
    parts = httpx.get(f"{server}explain", params=request, timeout=60).json()["parts"]
    inliers = {part["kind"]: sum(match["inlier"] for match in part["matches"]) for part in parts}
    assert list(inliers) == ["orb", "sift"] and min(inliers.values()) > 10
    slider = ui.page.get_by_role("slider", name="Highest weights")
    slider.focus()
    ui.press("End")
    colours = {}
    for number, (kind, count) in enumerate(inliers.items()):
        lines = ui.drawing.locator(f".lines path.link.kind-{number}")
        expect(lines).to_have_count(count)
        entry = ui.button(f"^{kind} {count}$")
        colours[kind] = style(lines.first, "stroke")
        assert colours[kind] == style(entry.locator(".swatch"), "background-color")
    assert len(set(colours.values())) == 2
    expect(ui.drawing.locator(".outline-line")).to_have_count(1)

    ui.button("^orb ").click()
    expect(ui.lines).to_have_count(inliers["sift"])
    ui.expect_url("hide=kind-0")
    ui.drawing.focus()
    ui.press("ArrowRight")
    ui.expect_match(f"^Match 1 of {inliers['sift']}$")
    expect(ui.card).to_contain_text(re.compile(r"Kind\s*sift"))

    ui.link_named("^Statistics$").click()
    rows = ui.page.get_by_role("table").first.get_by_role("row")
    expect(rows).to_have_text(
        [re.compile("^index"), re.compile(r"photos\.orb\.polyvocorb12"), re.compile(r"photos\.polyvocsift12")]
    )
    ui.expect_text("^12 photographs in 2 indexes")
    ui.expect_text("^Needs at least one vocabulary")
    ui.check("photos.polyvoc")
    expect(ui.page.locator("#length-plots figure")).to_have_count(2)
    watch.expect_status(409)
    ui.go("#/groups")
    expect(ui.page.get_by_role("alert")).to_contain_text("serve one of them")
