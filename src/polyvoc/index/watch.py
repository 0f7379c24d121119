"""Wait for changes below folders: by the events of the system with watchfiles, else, and for stores, by looking at times.

Events can be lost, and a network disk has none for what other machines write: everything is looked at now and then as well.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from polyvoc.errors import PolyvocError
from polyvoc.storage.exclusions import IGNORE_FILE
from polyvoc.storage.folders import is_below, list_photographs
from polyvoc.storage.stores import is_url

POLL_SECONDS = 5.0  # between two looks at folders without events; is a folder there that was not?
LOOK_SECONDS = 300.0  # between two looks at everything, whatever the events; at stores, a minute
STORE_SECONDS = 60.0
QUIET_MILLISECONDS = 500  # without another event: many files are copied at once
GROUP_MILLISECONDS = 3000  # of events that are reported together, at most


def wait_for_changes(folders: Sequence[str], index: Path, exclude: Sequence[str] = (), seconds: float = POLL_SECONDS,
                     events: bool = True, stop: Event | None = None) -> Iterator[None]:  # fmt: skip
    """Yield whenever something may have changed below folders, until `stop`; changes of the index itself are passed over.

    Without watchfiles, or `events`, folders are listed every `seconds`.
    """
    stop = stop or Event()
    try:
        import watchfiles
    except ImportError:
        events = False
    if events and not all(map(is_url, folders)):
        yield from _by_events(watchfiles, folders, index, seconds, stop)
    else:
        yield from _by_looking(folders, exclude, STORE_SECONDS if all(map(is_url, folders)) else seconds, stop)


def _by_events(watchfiles: Any, folders: Sequence[str], index: Path, seconds: float, stop: Event) -> Iterator[None]:
    own = os.path.abspath(index)
    pause = STORE_SECONDS if any(map(is_url, folders)) else LOOK_SECONDS
    looked = -math.inf  # what has changed before the first event could come is found after the first pause
    present = _present(folders)
    while not stop.is_set():
        if not present:
            stop.wait(seconds)
        else:
            found = watchfiles.watch(
                *present, watch_filter=lambda _, path: _matters(path, own), debounce=GROUP_MILLISECONDS,
                step=QUIET_MILLISECONDS, rust_timeout=int(1000 * seconds), yield_on_timeout=True, raise_interrupt=True,
                ignore_permission_denied=True, stop_event=stop,
            )  # fmt: skip
            for changes in found:
                if _present(folders) != present:
                    break
                if changes or time.monotonic() - looked >= pause:
                    looked = time.monotonic()
                    yield
            found.close()
        now = _present(folders)
        if now != present:  # a disk was connected, or removed
            present = now
            yield


def _by_looking(folders: Sequence[str], exclude: Sequence[str], seconds: float, stop: Event) -> Iterator[None]:
    before = None
    while not stop.wait(seconds):
        now = _listing(folders, exclude)
        if now != before:
            before = now
            yield


def _present(folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if not is_url(folder) and os.path.exists(folder)]


def _matters(path: str, index: str) -> bool:
    """Return whether a changed path can be that of a photograph or of a folder of some."""
    name = os.path.basename(path)
    return not is_below(path, [index]) and ".polyvoc/" not in path and (not name.startswith(".") or name == IGNORE_FILE)


def _listing(folders: Sequence[str], exclude: Sequence[str]) -> str:
    """Return a digest of all photographs below folders and their states; a folder that cannot be read counts as empty."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in folders:
        try:
            for path, state in list_photographs([folder], lambda problem: digest.update(os.fsencode(problem.reason)), exclude):
                digest.update(os.fsencode(path) + repr(state).encode())
        except PolyvocError as error:
            digest.update(str(error).encode(errors="backslashreplace"))
    return digest.hexdigest()
