"""Chromium driven by playwright, and a watch that fails on any console error, uncaught exception or foreign request."""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, WebError, expect, sync_playwright

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
OFF = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in OFF)]
TIMEOUT = 120_000  # ms; generous, for busy machines
SCREEN = {"width": 1280, "height": 800}
USUAL: Any = {"viewport": SCREEN, "reduced_motion": "reduce"}  # animations take time
PHONE: Any = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}

COPY = """(text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);
}"""
# Texts of a page with less contrast than WCAG 2.2 requires (1.4.3, level AA).
LOW_CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
# Whether the focus is visible: an outline of the element, or of its label, that nothing covers.
FOCUS = """async () => {
  const active = document.activeElement;
  const near = [active, active.nextElementSibling, active.closest("label")].filter(Boolean);
  await Promise.allSettled(near.flatMap((element) => element.getAnimations().map((animation) => animation.finished)));
  const outlined = near.filter((element) => {
    const { outlineStyle, outlineWidth } = getComputedStyle(element);
    const shown = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    return shown && outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
  });
  const open = outlined.some((element) => {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    const middle = (low, high, room) => (Math.max(0, low) + Math.min(room, high)) / 2;
    const there = document.elementFromPoint(middle(left, right, innerWidth), middle(top, bottom, innerHeight));
    return there !== null && (near.includes(there) || element.contains(there) || there.contains(element));
  });
  const name = active.getAttribute("aria-label") ?? active.closest("label")?.innerText ?? active.innerText;
  return { name: name.trim(), visible: open };
}"""


def command() -> str:
    """Return the command of the browser; skip without one, or fail if POLYVOC_BROWSER names one that is missing."""
    wanted = os.environ.get("POLYVOC_BROWSER")
    path = next(filter(None, map(shutil.which, [wanted] if wanted else COMMANDS)), None)
    if path is None and wanted:
        pytest.fail(f"POLYVOC_BROWSER={wanted}: no such command")
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(COMMANDS)}, or name one with POLYVOC_BROWSER")
    return path


@contextmanager
def launched() -> Iterator[Browser]:
    """Run a browser."""
    path = command()
    expect.set_options(timeout=TIMEOUT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Watch:
    """Opens pages of a server and records every error, warning and foreign request. Use it in a `with` statement."""

    def __init__(self, usual: BrowserContext, address: str) -> None:
        self.address = address
        self.problems: list[str] = []
        self._usual = usual  # its cache has the files of the page
        self._others: list[BrowserContext] = []
        self._expected: list[str] = []
        self._listeners = {"console": self._on_console, "weberror": self._on_error, "request": self._on_request}

    def __enter__(self) -> Watch:
        self._listen(self._usual)
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        for context in self._others:
            context.close()
        for page in self._usual.pages:
            page.close()
        for event, listener in self._listeners.items():
            self._usual.remove_listener(event, listener)
        if kind is None:
            assert not self.problems, "; ".join(self.problems)
            assert not self._expected, f"expected, but missing: {', '.join(self._expected)}"

    def open(self, link: str = "#/") -> Page:
        """Open a link in a new tab."""
        return self._go(self._usual.new_page(), link)

    def open_anew(self, link: str = "#/", script: str | None = None, **options: Any) -> Page:
        """Open a link in a new context; the script runs before those of the page."""
        browser = self._usual.browser
        assert browser is not None
        context = browser.new_context(**{**USUAL, **options})
        context.set_default_timeout(TIMEOUT)
        self._others.append(context)
        self._listen(context)
        if script:
            context.add_init_script(script)
        return self._go(context.new_page(), link)

    def _go(self, page: Page, link: str) -> Page:
        page.goto(self.address + link)
        page.locator("body[data-ready], #token-form").wait_for()
        return page

    def _listen(self, context: BrowserContext) -> None:
        for event, listener in self._listeners.items():
            context.on(event, listener)

    def _on_error(self, error: WebError) -> None:
        self.problems.append(f"uncaught: {error.error}")

    def expect_status(self, *statuses: int) -> None:
        """Expect one console message for each status: the browser writes one when a request fails."""
        self._expected += [f"status of {status} " for status in statuses]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning", "assert"):
            return
        expected = next((line for line in self._expected if line in message.text), None)
        if expected is not None:
            self._expected.remove(expected)
        else:
            self.problems.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.address, f"blob:{self.address}", "data:")):
            self.problems.append(f"foreign request: {request.url}")


class Drag:
    """Files dragged over a page from outside, as a desktop does."""

    def __init__(self, page: Page, *files: Path) -> None:
        self._session = page.context.new_cdp_session(page)
        self._data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        self._dispatch("dragEnter")
        self._dispatch("dragOver")

    def drop(self) -> None:
        """Drop the files."""
        self._dispatch("drop")

    def _dispatch(self, kind: str) -> None:
        position = {"x": SCREEN["width"] / 2, "y": SCREEN["height"] / 2}
        self._session.send("Input.dispatchDragEvent", {"type": kind, **position, "data": self._data})


def put_in_clipboard(page: Page, png: bytes) -> None:
    """Copy a picture to the clipboard, as another program does."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(COPY, base64.b64encode(png).decode())


def is_search(*parts: str) -> Callable[[Request], bool]:
    """Return a predicate for search requests with these parts in their URL."""
    return lambda request: request.method == "POST" and "/search?" in request.url and all(part in request.url for part in parts)


def touch(page: Page, points: Sequence[tuple[float, float]]) -> None:
    """Put a finger on the first point, move it through the others, lift it."""
    session = page.context.new_cdp_session(page)
    for kind, (x, y) in zip(["touchStart"] + ["touchMove"] * (len(points) - 1), points, strict=True):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    session.detach()


def accessible_text(page: Page) -> str:
    """Return the view as assistive technology reads it, without durations, which vary."""
    return re.sub(r"\d[\d.]* m?s\b", "DURATION", page.locator("main").aria_snapshot())


def expect_same_text(page: Page, other: Page) -> None:
    """Wait until two pages read the same: pictures of either may still be loading."""
    deadline = time.monotonic() + TIMEOUT / 1000
    while accessible_text(page) != accessible_text(other) and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert accessible_text(page) == accessible_text(other)


def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    """Press Tab until an element with this name (a pattern) has the focus; every focus on the way must be visible."""
    visited = []
    for _ in range(150):
        page.keyboard.press(key)
        focus = page.evaluate(FOCUS)
        visited.append(focus["name"])
        assert focus["visible"], f"the focus is not visible: {visited}"
        if re.search(name, focus["name"]):
            return
    raise AssertionError(f"Tab does not reach {name}: {visited}")
