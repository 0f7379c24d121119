"""A real browser before a real server, and a watch over what pages do in it: nothing may go wrong, not even unseen."""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, WebError, expect, sync_playwright

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 20_000  # ms; a busy machine is slow, a broken page never gets there
SCREEN = {"width": 1280, "height": 800}
USUAL: Any = {"viewport": SCREEN, "reduced_motion": "reduce"}  # motion costs time
PHONE: Any = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}

COPY = """(text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);
}"""
# How far the text of a page stands out from what lies behind it, where that is less than WCAG 2.2 wants (1.4.3, level AA).
FAINT = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
# Is the focus to be seen: an outline at the element, or at what stands for it, that nothing covers?
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
    """Give the browser's command; without one skip, unless POLYVOC_BROWSER says that there must be one."""
    wanted = os.environ.get("POLYVOC_BROWSER")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else COMMANDS)), None)
    if found is None and wanted:
        pytest.fail(f"POLYVOC_BROWSER is {wanted}, and there is no such command")
    if found is None:
        pytest.skip(f"no browser: install one of {', '.join(COMMANDS)}, or name one with POLYVOC_BROWSER")
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """Run a browser."""
    found = command()
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


class Watch:
    """Opens pages of a server and notes every error, warning and request elsewhere. Use it in a `with` statement."""

    def __init__(self, usual: BrowserContext, address: str) -> None:
        self.address = address
        self.problems: list[str] = []
        self._usual = usual  # has the page's files already: quick
        self._others: list[BrowserContext] = []
        self._expected: list[str] = []
        self._listeners = {"console": self._hear, "weberror": self._note, "request": self._see}

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
            assert not self._expected, f"expected, and did not come: {', '.join(self._expected)}"

    def open(self, link: str = "#/") -> Page:
        """Open a link in a page of its own."""
        return self._go(self._usual.new_page(), link)

    def open_anew(self, link: str = "#/", script: str | None = None, **options: Any) -> Page:
        """Open a link as a stranger, in a context of its own; the script runs before those of the page."""
        browser = self._usual.browser
        assert browser is not None
        context = browser.new_context(**{**USUAL, **options})
        context.set_default_timeout(PATIENCE)
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

    def _note(self, error: WebError) -> None:
        self.problems.append(f"uncaught: {error.error}")

    def expect_status(self, *statuses: int) -> None:
        """Bear one line for each status, which the browser writes by itself when a request is refused."""
        self._expected += [f"status of {status} " for status in statuses]

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning", "assert"):
            return
        known = next((line for line in self._expected if line in message.text), None)
        if known is not None:
            self._expected.remove(known)
        else:
            self.problems.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def _see(self, request: Request) -> None:
        if not request.url.startswith((self.address, f"blob:{self.address}", "data:")):
            self.problems.append(f"asked elsewhere: {request.url}")


class Drag:
    """Files that are dragged over a page from outside, as the desktop does it."""

    def __init__(self, page: Page, *files: Path) -> None:
        self._session = page.context.new_cdp_session(page)
        self._data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        self._do("dragEnter")
        self._do("dragOver")

    def drop(self) -> None:
        """Let them go."""
        self._do("drop")

    def _do(self, kind: str) -> None:
        where = {"x": SCREEN["width"] / 2, "y": SCREEN["height"] / 2}
        self._session.send("Input.dispatchDragEvent", {"type": kind, **where, "data": self._data})


def put_in_clipboard(page: Page, png: bytes) -> None:
    """Copy a picture, as another program does."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(COPY, base64.b64encode(png).decode())


def asks(*parts: str) -> Callable[[Request], bool]:
    """Tell requests that search, with these parts in their address."""
    return lambda request: request.method == "POST" and "/search?" in request.url and all(part in request.url for part in parts)


def touch(page: Page, points: Sequence[tuple[float, float]]) -> None:
    """Put a finger on the first point, move it through the others, lift it."""
    session = page.context.new_cdp_session(page)
    for kind, (x, y) in zip(["touchStart"] + ["touchMove"] * (len(points) - 1), points, strict=True):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    session.detach()


def seen(page: Page) -> str:
    """Give what the view says to assistive technology, without durations, which differ from time to time."""
    return re.sub(r"\d[\d.]* m?s\b", "some time", page.locator("main").aria_snapshot())


def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    """Press Tab until something of this name (a pattern) has the focus, which is to be seen all the way."""
    way = []
    for _ in range(150):
        page.keyboard.press(key)
        focus = page.evaluate(FOCUS)
        way.append(focus["name"])
        assert focus["visible"], f"the focus cannot be seen: {way}"
        if re.search(name, focus["name"]):
            return
    raise AssertionError(f"Tab does not lead to {name}: {way}")
