"""Contents of folders, to compare before and after."""

from __future__ import annotations

import os
from pathlib import Path

from polyvoc.duplicates.move import JOURNAL


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder, by relative path, without journals of moves."""
    files = {}
    for root, _, names in os.walk(os.fsencode(folder)):
        for name in names:
            path = os.path.join(root, name)
            if os.fsdecode(name) != JOURNAL:
                with open(path, "rb") as file:
                    files[os.fsdecode(os.path.relpath(path, os.fsencode(folder)))] = file.read()
    return files
