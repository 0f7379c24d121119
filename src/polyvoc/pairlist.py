"""Lists of image pairs as COLMAP and hloc read them: two names on a line, with a space between."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from polyvoc.errors import ExchangeError, OptionError
from polyvoc.storage import writing


def write(path: str | os.PathLike[str], pairs: Iterable[tuple[str, str]]) -> int:
    """Write pairs of image names to a file, which appears whole or not at all; gives how many."""
    lines = [f"{first} {second}\n" for first, second in _checked(pairs)]
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    with writing(target):
        try:
            partial.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return len(lines)


def read(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Read pairs of image names; empty lines, and those that begin with #, are passed over."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ExchangeError(f"{path} cannot be read ({error.strerror or error}); give a list of pairs") from None
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        names = line.split()
        if not names or names[0].startswith("#"):
            continue
        if len(names) != 2:
            raise ExchangeError(f"{path}: line {number} holds {len(names)} names, not 2; write: NAME1 NAME2")
        pairs.append((names[0], names[1]))
    return pairs


def _checked(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        for name in pair:
            if name.split() != [name] or name.startswith("#"):
                raise OptionError(f"{name!r} cannot stand in a list of pairs, where a space ends a name; rename the photograph")
        yield pair
