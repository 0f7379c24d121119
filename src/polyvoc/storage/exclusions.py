"""Which files and folders below a root are left out: patterns that the user gives, and ignore files. Both as in gitignore."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyvoc.errors import OptionError, one_line

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".polyvocignore"
MAX_BYTES = 1 << 20  # of an ignore file


@dataclass(frozen=True)
class Exclusions:
    """Patterns by the folder that they are relative to, the outermost first: the last one that fits a path decides."""

    layers: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def within(self, folder: str, lines: Iterable[str]) -> Exclusions:
        """Return these with further patterns for what lies below a folder. Raise OptionError for one that is none."""
        patterns = [line for line in lines if line.strip()]
        if not patterns:  # as a rule: the library need not be loaded
            return self
        return Exclusions((*self.layers, (folder.rstrip("/" + os.sep) + "/", _parse(patterns))))

    def with_file(self, folder: str) -> Exclusions:
        """Return these with the patterns of the ignore file in a folder. Raise OSError or OptionError if it is unusable."""
        path = os.path.join(folder, IGNORE_FILE)
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise OptionError(f"{path}: longer than {MAX_BYTES >> 20} MB; shorten it")
        try:
            return self.within(folder, os.fsdecode(text.removeprefix(codecs.BOM_UTF8)).splitlines())
        except OptionError as error:
            raise OptionError(f"{path}: {error}") from None

    def exclude(self, path: str, is_folder: bool = False) -> bool:
        """Return whether a path is left out."""
        for base, spec in reversed(self.layers):
            found = spec.check_file(path.removeprefix(base) + "/" * is_folder).include
            if found is not None:
                return bool(found)
        return False

    def exclude_below(self, root: str, path: str) -> bool:
        """Return whether a path is left out, or one of the folders that it lies in, below a root."""
        base = root.rstrip("/") + "/"
        parts = path.removeprefix(base).split("/")
        folders = (base + "/".join(parts[:count]) for count in range(1, len(parts)))
        return any(self.exclude(folder, True) for folder in folders) or self.exclude(path)


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise OptionError for a pattern that is none."""
    _parse(list(patterns))


def _parse(lines: list[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        pass
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError as error:
            raise OptionError(
                f"{line!r} is not a pattern ({one_line(error)}); give one as in gitignore, such as '*.gif'"
            ) from None
    raise AssertionError(lines)
