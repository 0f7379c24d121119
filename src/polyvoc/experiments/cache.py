"""A cache of slow results: folders and JSON files named by a digest of all inputs. Several processes may share it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from polyvoc.storage.files import replace_file, write_error, write_errors, write_folder
from polyvoc.types import Array


def default_cache() -> Path:
    """Return the folder of the cache: POLYVOC_CACHE, or the user's cache folder."""
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("POLYVOC_CACHE") or Path(user) / "polyvoc")


def digest_of(*values: Any) -> str:
    """Return a name for plain values that changes with any of them."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


@cache
def current_commit() -> str:
    """Return the commit of the sources, with "-dirty" if they were changed since; nothing outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def store_folder(folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """Write a folder of a cache; if another process was quicker, its folder stays."""
    own = folder.with_name(f"{folder.name}.{os.getpid()}")
    write_folder(own, arrays, meta)
    try:
        own.rename(folder)
    except OSError as error:
        shutil.rmtree(own, ignore_errors=True)
        if not folder.is_dir():
            raise write_error(folder, error) from None


def load_or_make(path: Path, make: Callable[[], Any]) -> Any:
    """Return the JSON value of a file; if there is none, make it and write it there."""
    if not path.is_file():
        value = make()
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as partial:
            partial.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))
