"""What takes long is kept under a name made from all that it depends on; several processes may share a cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from polyvoc.storage.files import write_error, write_errors, write_folder


def default_cache() -> Path:
    """Give the folder of the cache: POLYVOC_CACHE, or the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("POLYVOC_CACHE") or Path(home) / "polyvoc")


def digest_of(*values: Any) -> str:
    """Give a name for plain values that changes with any of them."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def keep(folder: Path, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Write a folder of a cache, whole or not at all; if another process was quicker, its folder stays."""
    own = folder.with_name(f"{folder.name}.{os.getpid()}")
    write_folder(own, arrays, meta)
    try:
        own.rename(folder)
    except OSError as error:
        shutil.rmtree(own, ignore_errors=True)
        if not folder.is_dir():
            raise write_error(folder, error) from None


def remember(path: Path, make: Callable[[], Any]) -> Any:
    """Give the JSON value of a file, or make it and write it there."""
    if not path.is_file():
        value = make()
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(json.dumps(value), encoding="utf-8")
            partial.replace(path)
    return json.loads(path.read_text(encoding="utf-8"))
