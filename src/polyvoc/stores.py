"""Here is an address: which files are below it, and what is in them? The only door to fsspec: S3, GCS, zip archives, HTTP ...

A location is a `str` with a protocol, `s3://bucket/photos`. One within an archive is a chain, `zip://a.jpg::s3://bucket/photos.zip`:
what comes before the first `::` lies in what comes after it. Addresses stay as they are given: `pathlib` would lose a slash.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import threading
import zipfile
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyvoc.entries import Entry, State, state_of
from polyvoc.errors import ImageError, OptionError, PolyvocError, UnreachableError
from polyvoc.lookahead import in_order
from polyvoc.masking import has_query, refuse_password, refuse_query, shown, shown_text
from polyvoc.records import Problem

Listed = tuple[str, int | None, int | None]  # address and state

MAX_BYTES = 1 << 30  # of a photograph: more would not fit into memory several times
ASKED_AT_ONCE = 16  # files whose state no listing tells
REMEMBERED = 4096  # digests of what was read last
ARCHIVES = 8  # kept open
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
             "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol"}  # fmt: skip
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)

_turns = threading.RLock()  # archives are read by one thread at a time
_digests: OrderedDict[str, tuple[State, str]] = OrderedDict()  # read last comes last
_digests_lock = threading.Lock()


# --- addresses ----------------------------------------------------------------------------------------------------------------


def is_url(path: object) -> bool:
    """Tell whether a path is an address in a store."""
    return isinstance(path, str) and _URL.match(path) is not None


def absolute(url: str) -> str:
    """Give an address as an index may keep it: without secrets, and with the same meaning in every folder.

    An archive on this machine may be named by a relative path.
    """
    refuse_password(url)
    refuse_query(url)
    head, chained, tail = url.partition("::")
    if head.startswith("file://"):
        slash = "/" if head.endswith("/") else ""
        head = "file://" + _local(head.removeprefix("file://")).rstrip("/") + slash
    return head + chained + (tail if not tail or is_url(tail) or "::" in tail else _local(tail))


def is_below(url: str, root: str) -> bool:
    """Tell whether an address is the root or lies in it."""
    (head, _, tail), (root_head, _, root_tail) = url.partition("::"), root.partition("::")
    inside = head.rstrip("/") == root_head.rstrip("/") or head.startswith(root_head.rstrip("/") + "/")
    return inside and tail == root_tail


def parts(path: str) -> tuple[str, ...]:
    """Give the names that a path, or an address within its store, consists of."""
    if not is_url(path):
        return Path(path).parts
    return tuple(part for part in path.partition("::")[0].partition("://")[2].split("/") if part)


def name(path: str) -> str:
    """Give the last name of a path or an address."""
    return parts(path)[-1] if is_url(path) and parts(path) else Path(path).name


# --- files --------------------------------------------------------------------------------------------------------------------


def exists(url: str) -> bool:
    """Tell whether there is a file or a folder."""
    try:
        _look(url)
    except UnreachableError:
        raise
    except ImageError:
        return False
    return True


def state(url: str) -> State:
    """Ask the store for the size of a file, and for the number that changes with it."""
    return state_of(_look(url)[2])


def read(url: str, most: int = MAX_BYTES) -> bytes:
    """Give what a file holds; refuse one of more than `most` bytes before it is read."""
    store, path, entry = _look(url)
    _refuse_unfit(url, entry, most)
    with _named(url), _turn(store):
        content = _stream(store, path, most) if entry.get("size") is None else bytes(store.cat_file(path))
    _refuse_unfit(url, {**entry, "size": len(content)}, most)
    with _digests_lock:
        _digests[url] = state_of(entry), _checksum(content)
        _digests.move_to_end(url)
        while len(_digests) > REMEMBERED:
            _digests.popitem(last=False)
    return content


def digest(url: str, expected: State) -> str | None:
    """Give the BLAKE2 checksum of a file, 32 hex digits; None if it is not in the state that is expected.

    One that was read a moment ago, and has not changed, is not read again.
    """
    if state(url) != expected:
        return None
    known = _digests.get(url)
    if known is None or known[0] != expected:
        read(url)
        known = _digests.get(url)
    return known[1] if known is not None and known[0] == expected else None


def listed(
    root: str, wanted: Callable[[str], bool] = lambda name: True, complain: Callable[[Problem], None] | None = None
) -> Iterator[Listed]:
    """Give the files below an address, or a single one, with their states: folder by folder, in the order of their names.

    Hidden folders, and indexes of polyvoc, are passed over, and so are files whose name is not `wanted`. What cannot be
    listed is an `UnreachableError`, or told to `complain`.
    """
    told = complain or _refuse
    store, path, found = _look(root)
    if found["type"] == "file" and found.get("mimetype") != "text/html":  # which is how a web server lists a folder
        yield root, *state_of(found)
        return
    with _named(root):
        list_folder = _lister(store)
    waiting = [(root, path)]
    while waiting:
        url, path = waiting.pop()
        try:
            with _named(url):
                entries = _addressed(url, path, list_folder(path), told)
        except ImageError as error:
            told(Problem(url, str(error)))
            continue
        folders = [one for one in entries if one[1]["type"] == "directory" and _is_open(name(one[0]))]
        yield from _settled([one for one in entries if one[1]["type"] != "directory" and wanted(name(one[0]))], told)
        waiting += [(url, str(entry["name"])) for url, entry in reversed(folders)]


def _lister(store: Any) -> Callable[[str], list[Entry]]:
    """Give a function that lists a folder of a store.

    An archive would be searched from its beginning to its end for each of its folders: it is searched once.
    """

    def list_folder(folder: str) -> list[Entry]:
        store.invalidate_cache()  # else every folder of a large bucket would stay in memory
        with _turn(store):
            return list(store.ls(folder, detail=True))

    if not hasattr(store, "dir_cache"):
        return list_folder
    list_folder("")  # reads the table of contents
    folders: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in list(store.dir_cache.values()):
        folders[str(entry["name"]).rpartition("/")[0]].append(entry)
    return lambda folder: folders[folder.strip("/")]


def _addressed(url: str, folder: str, entries: list[Entry], told: Callable[[Problem], None]) -> list[tuple[str, Entry]]:
    """Give what lies in a folder by its address, in the order of the names."""
    head, chained, tail = url.partition("::")
    head += "" if head.endswith("/") else "/"
    found = {}
    for entry in entries:
        inner = str(entry["name"]).removeprefix(folder.rstrip("/")).strip("/")
        address = f"{head}{inner}{chained}{tail}"
        if "::" in inner:
            told(Problem(address, f"{shown(address)}: its name holds '::', which no address can; rename it"))
        elif inner and not has_query(address):  # S3 lists a folder in itself, a web server the ways to sort it
            found[inner] = address, entry
    return [found[inner] for inner in sorted(found)]


def _settled(files: list[tuple[str, Entry]], told: Callable[[Problem], None]) -> Iterator[Listed]:
    """Give files with their states; ask for those that the listing does not tell: of links, and of files on web servers."""
    if not any(_is_vague(entry) for _, entry in files):
        yield from ((url, *state_of(entry)) for url, entry in files if entry["type"] == "file")
        return
    with closing(in_order(_asked, files, ASKED_AT_ONCE, "polyvoc-list")) as answers:
        for (url, _), answer in answers:
            if isinstance(answer, UnreachableError):
                told(Problem(url, str(answer)))
            elif not isinstance(answer, ImageError) and answer["type"] == "file":  # else a link to nothing, or to a folder
                yield url, *state_of(answer)


def _asked(file: tuple[str, Entry]) -> Entry | ImageError:
    url, entry = file
    try:
        return _look(url)[2] if _is_vague(entry) else entry
    except ImageError as error:
        return error


def _is_vague(entry: Entry) -> bool:
    return bool(entry.get("islink")) or state_of(entry) == (None, None)


def _is_open(folder: str) -> bool:
    return folder == "." or not (folder.startswith(".") or folder.endswith(".polyvoc"))  # "." is the first of many archives


def _refuse(problem: Problem) -> None:
    raise UnreachableError(problem.reason)


def _refuse_unfit(url: str, entry: Entry, most: int) -> None:
    size = entry.get("size")
    if entry["type"] == "directory":
        raise ImageError(f"{shown(url)}: a folder, not a photograph; name a file in it")
    if entry["type"] != "file":
        raise ImageError(f"{shown(url)}: not a regular file; name a photograph")
    if size == 0:
        raise ImageError(f"{shown(url)}: empty file; replace or remove it")
    if size is not None and size > most:
        raise ImageError(f"{shown(url)}: {size:,} bytes, the limit is {most:,}; reduce it first")


# --- stores -------------------------------------------------------------------------------------------------------------------


def _look(url: str) -> tuple[Any, str, Entry]:
    """Give the store of an address, the path within it, and what the store tells of it now."""
    refuse_password(url)
    with _named(url):
        store, path = _opened(url)
        if not path.strip("/"):
            return store, path, {"name": path, "type": "directory", "size": 0}  # the whole store, which may be empty
        store.invalidate_cache()
        with _turn(store):
            return store, path, store.info(path)


def _opened(url: str) -> tuple[Any, str]:
    """Give the store of an address, and the path within it."""
    core = _fsspec()
    head, chained, tail = url.partition("::")
    if not chained or not is_url(head):  # "simplecache::s3://..." is s3 in another guise
        store, path = core.url_to_fs(url)
        return store, str(path)
    return _archive(head.partition("://")[0], tail, *state(tail)), str(core.strip_protocol(head))


@lru_cache(maxsize=ARCHIVES)
def _archive(protocol: str, tail: str, size: int | None, changed: int | None) -> Any:
    """Open an archive; one that was replaced since has another state, and is opened anew."""
    try:
        store = _fsspec().url_to_fs(f"{protocol}://::{tail}", skip_instance_cache=True)[0]
        if protocol == "tar":
            _demand_end(store)
        return store
    except _BROKEN as error:  # perhaps it is not all there yet
        raise UnreachableError(f"{shown(tail)}: not a whole archive ({_reason(error)}); replace it, or leave it out") from error


def _demand_end(store: Any) -> None:
    """Refuse a tar archive that does not end as one should, with a block of zeros.

    `tarfile` takes one that is cut off where a file would begin, or damaged there, for one that ends there.
    """
    store.fo.seek(store.tar.offset)  # where it stopped
    if store.fo.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")


def _turn(store: Any) -> AbstractContextManager[Any]:
    """Let one thread at a time use a store that is not made for several: an archive has one place where it is read."""
    return nullcontext() if store.async_impl or "file" in store.protocol else _turns


def _stream(store: Any, path: str, most: int) -> bytes:
    """Read a file whose size nobody knows, at most one byte too many."""
    with store.open(path, "rb") as file:
        return bytes(file.read(most + 1))


def _fsspec() -> Any:
    try:
        import fsspec.core
    except ImportError:
        raise OptionError("photographs in stores need fsspec; install it: pip install 'polyvoc[stores]'") from None
    return fsspec.core


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Turn whatever stores raise into one line that names the address."""
    try:
        yield
    except PolyvocError:
        raise
    except ImportError as error:
        protocol = next((link for link in re.findall(r"(?:^|::)([^:/]+)://", url) if link in _PACKAGES), "")
        package = _PACKAGES.get(protocol, "the package that is named")
        raise OptionError(f"{shown(url)}: a package is missing ({_reason(error)}); install it: pip install {package}") from None
    except _BROKEN as error:
        raise ImageError(f"{shown(url)}: broken ({_reason(error)}); replace or remove it") from error
    except Exception as error:  # every store raises its own
        if "Protocol not known" in str(error):
            raise OptionError(
                f"{shown(url)}: no such kind of store; give s3://, gs://, https://, zip://::, file:// ..."
            ) from None
        if _is_gone(error):
            raise ImageError(f"{shown(url)}: no such file; check the address") from error
        reason = _reason(error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error)
        raise UnreachableError(f"{shown(url)}: cannot be reached ({reason}); check address and credentials") from error


def _is_gone(error: Exception) -> bool:
    """Tell whether a store has answered that there is no such file.

    fsspec says so, too, when a web server does not answer at all; what it was then is the cause.
    """
    cause = error.__cause__
    answered = not isinstance(cause, TimeoutError) and not type(cause).__module__.startswith("aiohttp")
    return isinstance(error, FileNotFoundError) and (answered or getattr(cause, "status", None) in (404, 410))


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()  # as `storage.checksum` gives it


def _local(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _reason(error: BaseException) -> str:
    """Give an error's text on one short line, or its kind if it has none."""
    text = " ".join((getattr(error, "strerror", None) or str(error)).split())
    return shown_text(text)[:200] or type(error).__name__
