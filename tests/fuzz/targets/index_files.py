"""Files of an index: one of them replaced, then opened, searched and checked.

An input is the path of a file within the index, a line break, and its new content.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import polyvoc
from fuzz.laws import check_line, one_line_errors, scratch
from polyvoc.index.check import check
from polyvoc.search.index import Index
from polyvoc.search.links import link
from samples import build, coded, collection

MAX_BYTES = 65_536
BREAK = b"\n"
SEARCHES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"smooth": 0.3}),
    (5, {"merge": "bayes", "burstiness": "none", "verify": 0}),
    (5, {"merge": "likelihood", "verify": 3}),
)


def target(data: bytes) -> None:
    """Open, search and check an index with one file of another content."""
    name, _, content = data.partition(BREAK)
    path = _file(name)
    if path is None:
        return
    original = path.read_bytes()
    _replace(path, content)
    try:
        with one_line_errors(), polyvoc.open(_index()) as index:
            _search(index)
        with one_line_errors():
            for line in check(_index()):
                check_line(line)
    finally:
        _replace(path, original)


def mutable(data: bytes) -> int:
    """Return where the part of an input begins that is worth changing."""
    return data.find(BREAK) + 1


def _search(index: Index) -> None:
    """Search with stored images, by codes and by words; scores are numbers, and no image is found twice."""
    for image, changes in SEARCHES:
        with one_line_errors():
            hits = index.search(image, threads=1, **changes)
            assert all(np.isfinite(hit.score) for hit in hits)
            assert len({hit.image for hit in hits}) == len(hits)
    with one_line_errors():
        index.explain(1, 5)


@cache
def _index() -> Path:
    """Make a small index with codes, words, signatures and links."""
    path = scratch("index") / "photos.polyvoc"
    build(path, collection(8), coded()).close()
    with polyvoc.IndexWriter.open(path) as writer, polyvoc.open(path) as index:
        link(writer, index.stored_queries)
    return path


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(_index()).as_posix() for path in _index().rglob("*") if path.is_file()))


def _file(name: bytes) -> Path | None:
    text = name.decode(errors="replace")
    return _index() / text if text in _names() else None


def _replace(path: Path, content: bytes) -> None:
    """Write a new file under the name: a map of the last one keeps its bytes."""
    partial = scratch("index") / "partial"
    partial.write_bytes(content)
    shutil.move(partial, path)


def seeds() -> Iterator[bytes]:
    """Yield every file as it is."""
    for name in _names():
        yield name.encode() + BREAK + (_index() / name).read_bytes()
