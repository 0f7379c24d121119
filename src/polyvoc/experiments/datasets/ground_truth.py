"""The ground truth of revisited Oxford and Paris, which is published as a pickle: read as plain data, then checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyvoc.experiments.datasets.descriptor_files import reading, refuse
from polyvoc.experiments.datasets.stackmachine import Numbers, Refused, load_plain, short

MAX_BYTES = 64 << 20  # the published files have less than one megabyte
MAX_ANSWERS = 4_000_000  # in all; entries may share one list, so a small file could hold any number
MAX_NAME = 200  # characters
AGAIN = "get gnd_roxford5k.pkl or gnd_rparis6k.pkl again from the authors of the revisited protocol"
Region = tuple[float, float, float, float]


@dataclass(frozen=True)
class RevisitedEntry:
    """The right answers to one question, as numbers of images: easy to find, hard to find, junk."""

    region: Region  # x1, y1, x2, y2 of the thing in the query, in pixels
    easy: tuple[int, ...]
    hard: tuple[int, ...]
    junk: tuple[int, ...]


@dataclass(frozen=True)
class RevisitedTruth:
    """What `gnd_roxford5k.pkl` or `gnd_rparis6k.pkl` says; names are those of files without their suffix."""

    images: tuple[str, ...]  # the database; an image's number is its place here
    queries: tuple[str, ...]
    entries: tuple[RevisitedEntry, ...]  # one per query


def read_ground_truth(path: Path | str) -> RevisitedTruth:
    """Give the ground truth in a pickle of the revisited protocol, written by any Python; no code that it names runs."""
    path = Path(path)
    with reading(path) as (file, size):
        if size > MAX_BYTES:
            refuse(path, f"{size} bytes are too many for a ground truth", AGAIN)
        try:
            return _truth(load_plain(file.read(MAX_BYTES)))
        except Refused as error:
            refuse(path, str(error), AGAIN)


def _truth(content: Any) -> RevisitedTruth:
    _check_keys(content, ("imlist", "qimlist", "gnd"), "it")
    images, queries = _names(content["imlist"], "imlist"), _names(content["qimlist"], "qimlist")
    gnd = content["gnd"]
    if not isinstance(gnd, list | tuple) or len(gnd) != len(queries):
        raise Refused(f"'gnd' should be a list of {len(queries)} entries, one for each name in 'qimlist'")
    entries = []
    answers = 0
    for number, content_of_entry in enumerate(gnd):
        entry = _entry(content_of_entry, f"entry {number} of 'gnd'", len(images))
        answers += len(entry.easy) + len(entry.hard) + len(entry.junk)
        if answers > MAX_ANSWERS:
            raise Refused(f"holds more than {MAX_ANSWERS} answers, which may be an attack")
        entries.append(entry)
    return RevisitedTruth(images, queries, tuple(entries))


def _entry(content: Any, what: str, images: int) -> RevisitedEntry:
    _check_keys(content, ("bbx", "easy", "hard", "junk"), what)
    easy, hard, junk = (_numbers(content[part], f"{part!r} of {what}", images) for part in ("easy", "hard", "junk"))
    return RevisitedEntry(_region(content["bbx"], f"'bbx' of {what}"), easy, hard, junk)


def _check_keys(content: Any, keys: tuple[str, ...], what: str) -> None:
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise Refused(f"is no revisited ground truth: {what} has no {missing[0]!r}")


def _names(content: Any, what: str) -> tuple[str, ...]:
    """Give names that are safe as parts of a path: a published file must not lead out of its folder."""
    if not isinstance(content, list | tuple) or not content:
        raise Refused(f"{what!r} should be a list of names")
    for place, name in enumerate(content):
        if not isinstance(name, str):
            raise Refused(f"{what!r} should hold names, but number {place} is a {_type(name)}")
        unsafe = ".." in name or name == "." or any(letter in name for letter in "/\\:") or not name.isprintable()
        if not name.strip() or len(name) > MAX_NAME or unsafe:
            raise Refused(f"{what!r} holds {short(name)} (number {place}), which is no name of a file")
    return tuple(content)


def _numbers(content: Any, what: str, images: int) -> tuple[int, ...]:
    values = _listed(content, what, images)
    for value in values:
        if type(value) is not int or not 0 <= value < images:  # True is an int, too
            found = f"is {value}" if type(value) is int else f"is a {_type(value)}"
            raise Refused(f"{what} should hold numbers of images from 0 to {images - 1}, but one {found}")
    return tuple(values)


def _region(content: Any, what: str) -> Region:
    values = _listed(content, what, 4)
    if len(values) != 4 or not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        raise Refused(f"{what} should be four finite numbers")
    x1, y1, x2, y2 = map(float, values)
    if not (x1 < x2 and y1 < y2):
        raise Refused(f"{what} should be x1, y1, x2, y2 of a region, but is {x1:g}, {y1:g}, {x2:g}, {y2:g}")
    return x1, y1, x2, y2


def _listed(content: Any, what: str, most: int) -> list[Any]:
    """Give the members of a list or an array, after a look at their number."""
    values = content.values if isinstance(content, Numbers) else content
    if values is None or not isinstance(content, list | tuple | Numbers):
        raise Refused(f"{what} should be a list or an array, not a {_type(content)}")
    if len(values) > most:
        raise Refused(f"{what} has {len(values)} members, at most {most} make sense")
    return list(values) if isinstance(content, list | tuple) else values.tolist()


def _type(value: Any) -> str:
    return "numpy array" if isinstance(value, Numbers) else type(value).__name__
