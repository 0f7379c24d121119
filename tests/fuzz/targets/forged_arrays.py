"""Arrays of a segment with other content and checksums that fit it: whatever they hold, no kernel leaves its arrays.

An input is the name of an array, a line break, and its new bytes, cut or completed by zeros.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

import polyvoc
from corruption import Arrays, forge
from fuzz.laws import one_line_errors, scratch
from fuzz.targets.index_files import BREAK, MAX_BYTES, _index, _search, mutable
from polyvoc.index.segment import Segment

__all__ = ["MAX_BYTES", "mutable", "seeds", "target"]


def target(data: bytes) -> None:
    """Open and search an index with one forged array."""
    name, _, content = data.partition(BREAK)
    if name.decode(errors="replace") not in _arrays():
        return

    def change(arrays: Arrays) -> None:
        array = arrays[name.decode()]
        array.view(np.uint8).reshape(-1)[:] = np.frombuffer(content[: array.nbytes].ljust(array.nbytes, b"\0"), np.uint8)

    copy = _copy()
    forge(copy, change)
    with one_line_errors(), polyvoc.open(copy) as index:
        _search(index)


def _copy() -> Path:
    target = scratch("index") / "forged.polyvoc"
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(_index(), target))


@cache
def _arrays() -> dict[str, bytes]:
    """Return the bytes of the arrays, by name."""
    segment = Segment.open(next((_index() / "segments").iterdir()))
    return {name: array.tobytes() for name, array in {"ids": segment.ids, **segment.arrays}.items() if array.size}


def seeds() -> Iterator[bytes]:
    """Yield every array as it is."""
    for name, content in _arrays().items():
        yield name.encode() + BREAK + content
