"""Observe which files are opened: for indexes that name files of somebody else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_watched: list[tuple[str, list[str]]] = []


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.fsdecode(arguments[0])
        for root, opened in _watched:
            if path == root or path.startswith(root + os.sep):
                opened.append(path)


sys.addaudithook(_notice)  # it stays: there is no way to remove one


@contextmanager
def opened_files(root: Path) -> Iterator[list[str]]:
    """Yield a list of the files at or below a path that Python opens within the block."""
    watched = (str(root), list[str]())
    _watched.append(watched)
    try:
        yield watched[1]
    finally:
        _watched.remove(watched)
