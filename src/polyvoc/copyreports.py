"""Groups of copies as people and programs read them: lines in the terminal, a page with pictures, CSV, JSON."""

from __future__ import annotations

import csv
import io
from typing import Any

from polyvoc import answers, console, images, page
from polyvoc.copies.groups import Copy, Group, Photograph, day, in_bytes
from polyvoc.duplicates import Duplicates
from polyvoc.records import Progress

COLUMNS = (
    "group", "role", "path", "probability", "via", "alteration", "width", "height", "bytes", "changed", "reason",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # with which a spreadsheet takes a text for a formula
BEST, COPY = "best", "copy"
STYLE = ".answers .frame img { object-fit: contain; }"  # what a crop lacks should be seen


def as_dict(found: Duplicates) -> dict[str, Any]:
    """Give plain values for JSON."""
    return {
        "sure": found.sure,
        "photographs": found.photographs,
        "waiting": found.waiting,
        "groups": [
            {
                "best": {**_facts(group.best), "reason": group.reason},
                "copies": [
                    {
                        **_facts(copy.photograph),
                        "probability": round(copy.probability, 6),
                        "via": copy.via,
                        "identical": copy.identical,
                        "alteration": copy.in_words(group.best),
                        "transform": copy.transform.tolist(),
                    }
                    for copy in group.copies
                ],
            }
            for group in found.groups
        ],
        "pairs": [
            {
                "first": link.first,
                "second": link.second,
                "probability": round(link.probability, 6),
                "identical": link.identical,
                "transform": link.transform.tolist(),
            }
            for link in found.links
        ],
    }


def _facts(photograph: Photograph) -> dict[str, Any]:
    size = {"width": photograph.width, "height": photograph.height, "bytes": photograph.bytes}
    return {"path": photograph.path, "image": photograph.image, **size, "changed": day(photograph.changed)}


def as_csv(found: Duplicates) -> str:
    """Give one row per photograph of a group; no cell is a formula, whatever files are called."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(COLUMNS)
    for number, group in enumerate(found.groups, start=1):
        table.writerow(map(_cell, _row(number, BEST, group.best, [1.0, "", ""], group.reason)))
        for copy in group.copies:
            told = [round(copy.probability, 4), copy.via or "", copy.in_words(group.best)]
            table.writerow(map(_cell, _row(number, COPY, copy.photograph, told, "")))
    return out.getvalue()


def _row(number: int, role: str, one: Photograph, told: list[Any], reason: str) -> list[Any]:
    return [number, role, one.path, *told, one.width, one.height, one.bytes, day(one.changed), reason]


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "backslashreplace").decode("utf-8")  # names of files need not be text
    return "'" + text if text.startswith(FORMULA) else text


def as_page(found: Duplicates, progress: Progress | None = None) -> str:
    """Give a page that shows every group, its best photograph marked."""
    n_copies = sum(len(group.copies) for group in found.groups)
    body = [
        page.figures([
            (f"{found.photographs:,}", "photographs"),
            (f"{len(found.groups):,}", "groups of copies"),
            (f"{n_copies:,}", "copies besides the best ones"),
            (in_bytes(spare(found)), "in these copies"),
        ]),
        page.paragraph(
            f"Copies with a probability of at least {found.sure:g}, among pairs that are alike at all. The photograph on the "
            "left of each group is the one to keep. Nothing is deleted."
        ),
    ]  # fmt: skip
    for number, group in enumerate(found.groups, start=1):
        body.append(_section(number, group))
        if progress is not None:
            progress("pictures", number, len(found.groups))
    return page.document("polyvoc: copies among photographs", body, STYLE)


def _section(number: int, group: Group) -> str:
    best = answers.picture(group.best.path, "keep", _measures(group.best))
    shown = [
        answers.picture(copy.photograph.path, _chance(copy), f"{_told(group, copy)}; {_measures(copy.photograph)}")
        for copy in group.copies
    ]
    marked = page.Picture(best.jpeg, best.title, best.rank, best.note, best.href, "right")
    return page.ranking(f"Group {number}: {len(group.copies) + 1} photographs", marked, shown, group.reason)


def show(found: Duplicates, seconds: float) -> None:
    """Print the groups."""
    for number, group in enumerate(found.groups, start=1):
        console.write(f"group {number}")
        console.write("  keep ", console.linked(group.best.path), f" {_measures(group.best)}; {group.reason}")
        for copy in group.copies:
            console.write(f"  {_chance(copy)} ", console.linked(copy.photograph.path), f" {_told(group, copy)}")
    n_copies = sum(len(group.copies) for group in found.groups)
    console.write(
        f"{len(found.groups):,} groups, {n_copies:,} copies besides the best ({in_bytes(spare(found))}), among "
        f"{found.photographs:,} photographs, {seconds:.1f} s"
    )


def spare(found: Duplicates) -> int:
    """Count the bytes of the copies besides the best ones."""
    return sum(copy.photograph.bytes for group in found.groups for copy in group.copies)


def _chance(copy: Copy) -> str:
    """Say a probability: 1.00 is that of identical files alone."""
    return "1.00" if copy.identical else f"{min(copy.probability, 0.99):.2f}"


def _told(group: Group, copy: Copy) -> str:
    through = "" if copy.via is None else f" (by way of {images.describe(copy.via)})"
    return copy.in_words(group.best) + through


def _measures(photograph: Photograph) -> str:
    size = f"{photograph.width} x {photograph.height}, " if photograph.width else ""
    return size + in_bytes(photograph.bytes)
