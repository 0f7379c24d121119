"""The first run: a server without an index offers folders of this machine, and indexes the one that is chosen."""

from __future__ import annotations

import logging
import os
import shlex
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from polyvoc.errors import NotAllowedError, OptionError
from polyvoc.index.writer import IndexWriter
from polyvoc.storage.folders import IMAGE_SUFFIXES, is_below, list_photographs
from polyvoc.types import Progress
from polyvoc.web.jobs import JobResult, Jobs
from polyvoc.web.settings import Settings

logger = logging.getLogger("polyvoc.web")
MAX_FOLDERS = 1000  # of a list
MAX_ENTRIES = 100_000  # of a folder that are looked at
SUFFIX = ".polyvoc"


class FolderChooser:
    """The folders that may be chosen: those below some roots, links resolved."""

    def __init__(self, roots: Sequence[str | os.PathLike[str]]) -> None:
        """Set the roots; raise OptionError if one is not a folder."""
        self.roots = tuple(dict.fromkeys(map(os.path.realpath, roots)))
        for root, given in zip(self.roots, roots, strict=False):
            if not os.path.isdir(root):
                raise OptionError(f"{given} is not a folder; give another --root")

    def require(self, folder: str) -> str:
        """Return the real path of a folder; raise NotAllowedError unless it is below a root and no part of it is hidden.

        One that does not exist is not allowed either: the response is the same, whatever lies outside of the roots.
        """
        if os.path.isabs(folder) and "\0" not in folder:
            path = os.path.realpath(folder)
            root = next((root for root in self.roots if is_below(path, [root])), None)
            if root is not None and not _is_hidden(os.path.relpath(path, root)) and os.path.isdir(path):
                return path
        raise NotAllowedError("not a folder below the roots of this server; start it with --root FOLDER to allow another")

    def list_folders(self, folder: str) -> dict[str, Any]:
        """Return the folders in a folder, or the roots for "", and how many photographs lie directly in it."""
        if not folder and len(self.roots) > 1:
            return {"path": "", "parent": None, "folders": [{"path": root, "name": root} for root in self.roots],
                    "photographs": 0, "more": False}  # fmt: skip
        path = self.require(folder or self.roots[0])
        names, photographs = _scan(path)
        folders = [{"path": os.path.join(path, name), "name": name} for name in names[:MAX_FOLDERS]]
        parent: str | None = os.path.dirname(path)
        if path in self.roots:
            parent = "" if len(self.roots) > 1 else None
        more = len(names) > MAX_FOLDERS
        return {"path": path, "parent": parent, "folders": folders, "photographs": photographs, "more": more}


def _is_hidden(relative: str) -> bool:
    return any((part.startswith(".") and part != os.curdir) or part.endswith(SUFFIX) for part in relative.split(os.sep))


def _scan(folder: str) -> tuple[list[str], int]:
    """Return the names of the folders in a folder, without links, hidden ones and indexes, and its number of photographs."""
    names, photographs = [], 0
    try:
        with os.scandir(folder) as entries:
            for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False):
                if entry.is_dir(follow_symlinks=False):
                    if not _is_hidden(entry.name):
                        names.append(entry.name)
                elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and not entry.name.startswith("."):
                    photographs += 1
    except OSError as error:
        raise OptionError(f"{folder}: cannot be read ({error.strerror or error}); choose another folder") from None
    return sorted(names, key=lambda name: (name.casefold(), name)), photographs


class FirstRun:
    """Chooses and indexes a folder; then the server goes on with the index."""

    def __init__(self, settings: Settings, jobs: Jobs, open_index: Callable[[Path], None]) -> None:
        """Prepare; `open_index` is called with the index when it is complete."""
        self._settings = settings
        self._jobs = jobs
        self._open_index = open_index
        self.chooser = FolderChooser(settings.root or [Path.home()])

    def start(self, folder: str) -> dict[str, Any]:
        """Start indexing a folder; return the state of the job."""
        path = self.chooser.require(folder)
        return self._jobs.start("indexing", "reading the folder", lambda progress: self._index(path, progress))

    def list_folders(self, folder: str) -> dict[str, Any]:
        """Return the folders in a folder, and where the index of the folder would be, or is."""
        listing = self.chooser.list_folders(folder)
        path, place = listing["path"], None
        if path:
            with suppress(OptionError):
                place = self.place_of(path)
        return {**listing, "index": None if place is None else str(place), "indexed": place is not None and place.is_dir()}

    def place_of(self, folder: str) -> Path:
        """Return where the index of a folder is made: beside it, unless the server was started with a place for it."""
        if not self._settings.beside:
            return self._settings.index
        if os.path.dirname(folder) == folder:
            raise OptionError(
                f"no index can be made beside {folder}; choose another folder, or start with: polyvoc serve INDEX"
            )
        return Path(f"{folder}{SUFFIX}")

    def _index(self, folder: str, progress: Progress) -> JobResult:
        """Bring the index of a folder up to date, and open it."""
        # A link that is put into the place of the folder after it was chosen is not followed.
        if os.path.realpath(folder) != folder or not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise OptionError(f"{folder} has been replaced meanwhile; choose it again")
        if next(list_photographs([folder], lambda problem: None), None) is None:
            raise OptionError(f"{folder} holds no photographs; choose another folder")
        place = self.place_of(folder)
        progress("loading vocabularies", 0, 0)
        with IndexWriter.open(place) as writer:
            report = writer.update([folder], progress=progress)
        photographs = report.added + report.replaced + report.moved + report.unchanged
        if photographs == 0:
            reason = report.problems[0].reason if report.problems else "unknown"
            raise OptionError(f"no photograph of {folder} can be used ({reason}); choose another folder")
        progress("opening the index", 0, 0)
        self._open_index(place)
        logger.info("serving %s; the next time: polyvoc serve %s", folder, shlex.quote(str(place)))
        return JobResult(report.problems, report.skipped, photographs)
