"""Photographs below folders and addresses: listed, read, and compared with their earlier state."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from polyvoc.errors import ImageError, OptionError, UnreachableError, one_line
from polyvoc.storage.exclusions import IGNORE_FILE, Exclusions
from polyvoc.storage.files import DIGEST_BYTES, checksum
from polyvoc.storage.stores import (
    ErrorHandler,
    absolute_url,
    display_name,
    is_url,
    is_url_below,
    list_files,
    open_source,
    read_url,
    remote_version,
    url_exists,
)
from polyvoc.types import Location, Problem, Source

Folder = str | os.PathLike[str]  # or a single file, or an address in a store: that is always a str
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".tif", ".tiff", ".gif", ".bmp",
    ".jp2", ".j2k", ".jpx", ".pbm", ".pgm", ".ppm", ".pnm", ".pfm", ".avif", ".heic", ".heif", ".hif", ".heics", ".heifs",
})  # fmt: skip
# Read where a package of the extra `formats` is installed, else counted as skipped.
EXTRA_SUFFIXES = {
    "pillow_jxl": frozenset({".jxl"}),
    "rawpy": frozenset({
        ".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".erf", ".iiq", ".kdc", ".mef", ".mos", ".mrw", ".nef", ".nrw", ".orf",
        ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f",
    }),
}  # fmt: skip
MAX_SUFFIX = 10  # characters; a longer one is part of a name
NO_SUFFIX, EXCLUDED = "others", "excluded"  # kinds: of files without a suffix; of files and folders that patterns leave out
STREAM_BYTES = 256 << 20  # a larger file is not held in memory, but read twice: for its digest and for its pixels


@dataclass(frozen=True, slots=True)
class FileState:
    """Size and time of a file: if both are the same, it is taken as unchanged."""

    size: int | None
    changed: int | None  # modification time in nanoseconds


def absolute_path(path: Folder) -> str:
    """Return a path or an address as the catalogue stores it: absolute."""
    return absolute_url(path) if isinstance(path, str) and is_url(path) else os.path.abspath(path)


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path is one of the roots or lies below one of them."""
    return any(
        is_url_below(path, root) if is_url(root) else path == root or path.startswith(root.rstrip(os.sep) + os.sep)
        for root in roots
    )


def roots_above(path: str, roots: AbstractSet[str]) -> Iterator[str]:
    """Yield those of many roots, as `absolute_path` returns them, that a path is or lies below.

    Single files may have been given as roots, any number: the folders of the path are looked up, not all roots compared.
    """
    if is_url(path):
        yield from (root for root in roots if is_below(path, [root]))
        return
    folder = path
    while folder.strip(os.sep):
        if folder in roots:
            yield folder
        folder = folder.rpartition(os.sep)[0]
    if os.sep in roots and path.startswith(os.sep):
        yield os.sep


def path_range(root: str) -> tuple[bytes, bytes]:
    """Return two limits, as the catalogue stores paths, between which all paths below a root lie; some others may, too."""
    head = root.partition("::")[0].rstrip("/") if is_url(root) else root.rstrip(os.sep)
    # A separator follows, or the "::" of an address: both lie between these two characters.
    return os.fsencode(head + "."), os.fsencode(head + "^")


class MissingFolderError(OptionError):
    """A given folder does not exist."""


def check_folders(folders: Iterable[Folder]) -> None:
    """Raise OptionError if a folder does not exist, UnreachableError if a store cannot be reached."""
    for folder in folders:
        root = absolute_path(folder)
        if not (url_exists(root) if is_url(root) else os.path.exists(root)):
            raise _no_folder(folder)


def list_photographs(folders: Sequence[Folder], on_error: ErrorHandler | None = None, exclude: Sequence[str] = (),
                     skipped: Counter[str] | None = None,
                     disks: set[str] | None = None) -> Iterator[tuple[str, FileState]]:  # fmt: skip
    """Yield (absolute path, state) of the photographs below folders, or of single files, sorted by name.

    Skips hidden folders, indexes, links to folders, and what patterns (`exclude`) or ignore files leave out. Files that are
    left out, or are no photographs by their names, are counted by kind in `skipped`; folders where another disk is mounted
    are added to `disks`. What cannot be read is reported to `on_error`, or raises OptionError; a folder that does not exist
    raises MissingFolderError.
    """
    count = Counter[str]() if skipped is None else skipped
    mounted = set[str]() if disks is None else disks
    report = on_error or _raise_option_error
    for folder in folders:
        root = absolute_path(folder)
        if is_url(root):
            yield from _list_store(root, report, exclude, count)
        elif os.path.isfile(root):
            yield root, file_state(root)
        elif os.path.isdir(root):
            yield from _list_folder(root, report, exclude, count, mounted)
        else:
            raise _no_folder(folder)


def kind_of_file(name: str) -> str:
    """Return the kind of a file as users name it: "MP4", by its suffix."""
    suffix = os.path.splitext(name)[1][1:]
    return suffix.upper() if suffix.isascii() and suffix.isalnum() and len(suffix) <= MAX_SUFFIX else NO_SUFFIX


def file_state(path: str) -> FileState:
    """Return the state of a file. Raise OSError or ImageError if it is not available."""
    return FileState(*remote_version(path)) if is_url(path) else _state(os.stat(path))


def is_unchanged(path: str, state: FileState) -> bool:
    """Return whether a file still has a state; False if it is not available."""
    try:
        return file_state(path) == state
    except (OSError, ImageError):
        return False


def file_digest(path: str, state: FileState) -> str | None:
    """Return the digest of a file, 32 hex digits; None if it cannot be read or no longer has the given state."""
    try:
        digest = _digest(read_url(path)) if is_url(path) else checksum(Path(path))
    except (OSError, ImageError):
        return None
    return digest if is_unchanged(path, state) else None


def is_indexed_file(path: str, indexed: FileState, digest: str | None, max_bytes: float = math.inf) -> bool:
    """Return whether a file is the indexed one: the same time and size, or else the same bytes, at most `max_bytes` of them.

    Raise UnreachableError if its store does not respond.
    """
    try:
        state = file_state(path)  # the size first: what has none, such as a pipe, must not be read
        if state == indexed:
            return True
        same_size = state.size == indexed.size and digest is not None
        return same_size and (state.size or 0) <= max_bytes and file_digest(path, state) == digest
    except UnreachableError:
        raise
    except (OSError, ValueError, ImageError):
        return False


def read_with_digest(path: Location) -> tuple[Source, str]:
    """Return the bytes of a file, or its path if it is above STREAM_BYTES, and its digest. Raise ImageError if unreadable."""
    if isinstance(path, str) and is_url(path):
        content = read_url(path)
        return content, _digest(content)
    with open_source(path) as file:
        try:
            if os.fstat(file.fileno()).st_size > STREAM_BYTES:
                return path, checksum(Path(path))
            content = file.read()
        except (OSError, MemoryError) as error:
            raise UnreachableError(f"{display_name(path)}: cannot be read ({one_line(error)}); try again later") from error
    return content, _digest(content)


def _list_store(
    root: str, report: ErrorHandler, exclude: Sequence[str], skipped: Counter[str]
) -> Iterator[tuple[str, FileState]]:
    exclusions = Exclusions().within(root, exclude)

    def wanted(name: str) -> bool:
        if _is_photograph(name):
            return True
        if not name.startswith("."):
            skipped[kind_of_file(name)] += 1
        return False

    try:
        for url, size, changed in list_files(root, wanted, report):
            if exclusions.layers and exclusions.exclude_below(root, url):
                skipped[EXCLUDED] += 1
            else:
                yield url, FileState(size, changed)
    except UnreachableError as error:
        report(Problem(root, str(error)))
    except ImageError:
        raise _no_folder(root) from None


def _list_folder(root: str, report: ErrorHandler, exclude: Sequence[str], skipped: Counter[str],
                 disks: set[str]) -> Iterator[tuple[str, FileState]]:  # fmt: skip
    pending = [(root, Exclusions().within(root, exclude))]
    while pending:
        folder, exclusions = pending.pop()
        subfolders = []
        try:
            with os.scandir(folder) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
            if any(entry.name == IGNORE_FILE for entry in entries):
                exclusions = exclusions.with_file(folder)
        except OSError as error:
            report(_unreadable(folder, error))
            continue
        except OptionError as error:
            report(Problem(folder, str(error)))
            continue
        for entry in entries:
            is_folder, is_photograph = entry.is_dir(follow_symlinks=False), _is_photograph(entry.name)
            if is_folder and (entry.name.startswith(".") or entry.name.endswith(".polyvoc")):
                continue
            if exclusions.exclude(entry.path, is_folder):
                skipped[EXCLUDED] += is_folder or is_photograph
            elif is_folder:
                subfolders.append((entry.path, exclusions))
                if os.path.ismount(entry.path):
                    disks.add(entry.path)
            elif is_photograph:
                state = _entry_state(entry, report)
                if state is not None:
                    yield entry.path, state
            elif not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                skipped[kind_of_file(entry.name)] += 1
        pending += reversed(subfolders)


def _entry_state(entry: os.DirEntry[str], report: ErrorHandler) -> FileState | None:
    """Return the state of a file; None if it is none, has just been deleted, or cannot be read, which is reported."""
    try:
        status = os.stat(entry.path)
    except OSError as error:
        # Just deleted, or a link to nothing; else the disk or the network fails.
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            report(_unreadable(entry.path, error))
        return None
    return _state(status) if stat.S_ISREG(status.st_mode) else None


def _state(status: os.stat_result) -> FileState:
    # A disk may store any date; the catalogue has 64 bits, which end in the years 1677 and 2262.
    return FileState(status.st_size, max(-(1 << 63), min(status.st_mtime_ns, (1 << 63) - 1)))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def _is_photograph(name: str) -> bool:
    if name.startswith("._"):  # what macOS writes beside files on other disks: no photograph, whatever its suffix
        return False
    return os.path.splitext(name)[1].lower() in image_suffixes()


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of photographs that can be read here."""
    return IMAGE_SUFFIXES.union(*(suffixes for package, suffixes in EXTRA_SUFFIXES.items() if find_spec(package) is not None))


def readable_with_extra(kinds: Iterable[str]) -> list[str]:
    """Return which kinds of skipped files could be read if the extra `formats` was installed."""
    missing = frozenset[str]().union(*EXTRA_SUFFIXES.values()) - image_suffixes()
    return [kind for kind in kinds if f".{kind.lower()}" in missing]


def _no_folder(folder: Folder) -> MissingFolderError:
    return MissingFolderError(f"{folder} does not exist; give a folder of photographs")


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(path, f"{path}: cannot be read ({error.strerror or error}); change its permissions, or omit it")


def _raise_option_error(problem: Problem) -> NoReturn:
    raise OptionError(problem.reason)
