"""Addresses and fsspec: S3, archives, web."""

from __future__ import annotations

import hashlib
import math
import os
import re
import tarfile
import threading
import unicodedata
import zipfile
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyvoc.errors import ImageError, OptionError, PolyvocError, UnreachableError
from polyvoc.threads import ordered_map
from polyvoc.types import Problem, Source

_WEB = ("http", "https")
_NO_HOST = ("file", "local", "memory", "zip", "tar", "libarchive", "github", "git")  # whose addresses may hold ":" and "@"
_HOST = re.compile(r"[^/?#]*")
_ODD_PORT = re.compile(r":(?!\d*$)")  # no port but a password with a "/" or "?" in it
_IN_TEXT = re.compile(r"(?i)(https?://)(?:[^\s/?#'\"]*@)?([^\s?'\"]*)(\?[^\s'\"]*)?")


def refuse_password(url: str) -> None:
    """Refuse an address, or a chain of them, with a password."""
    if any(map(_has_password, url.split("::"))):
        raise OptionError(f"{shown_url(url)}: holds a password; give it in the environment instead, as docs/stores.md says")


def refuse_query(url: str) -> None:
    """Refuse an address that an index could not keep."""
    if has_query(url):
        raise OptionError(
            f"{shown_url(url)}: what follows the '?' may be secret, or expire, so no index keeps it; download it first"
        )


def has_query(url: str) -> bool:
    """Tell whether an address asks a web server for something: in other stores a `?` is part of a name."""
    return any("?" in link and _protocol(link) in _WEB for link in url.split("::"))


def redact(path: str) -> str:
    """Give an address, or a chain of them, without what may be secret; a path stays as it is."""
    return "::".join(map(_masked, path.split("::")))


def shown_url(url: str) -> str:
    """Give an address without what may be secret, on one line."""
    text = redact(url)
    return text if text.isprintable() else ascii(text)


def redact_text(text: str) -> str:
    """Give a text without what may be secret in the web addresses that it quotes."""
    return _IN_TEXT.sub(lambda found: found[1] + found[2] + ("?..." if found[3] else ""), text)


def _masked(link: str) -> str:
    rest = link.partition("://")[2]
    kept = rest.partition("?")[0] + "?..." if has_query(link) else rest
    if _has_password(link):
        _, at, after = kept.rpartition("@")
        kept = f"...@{after}" if at else "..."
    return link.removesuffix(rest) + kept if rest else link


def _has_password(link: str) -> bool:
    """Tell whether there is a password; on the web a name alone is one: there it mostly is a token."""
    found = _HOST.match(link.partition("://")[2])
    user, at, host = found[0].rpartition("@") if found else ("", "", "")
    if not _protocol(link) or _protocol(link) in _NO_HOST:
        return False
    if _protocol(link) in _WEB:
        return bool(at) or _ODD_PORT.search(host) is not None
    return bool(at) and ":" in user


def _protocol(link: str) -> str:
    return link.partition("://")[0].lower() if "://" in link else ""


Entry = dict[str, Any]  # what fsspec tells of a file or folder
State = tuple[int | None, int | None]  # size, and a number that changes with the content: of its time, or of its checksum
_TIMES = (
    "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "modified", "modificationTime", "modify", "created"
)  # fmt: skip
_WHOLE_SECONDS = ("LastModified", "Last-Modified", "last_modified")  # some listings tell more of these than is told of one file
_MILLISECONDS = ("modificationTime",)  # of WebHDFS
_CHECKSUMS = ("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "sha", "CRC", "modify")  # the last, of FTP, may be any text


def version_of(entry: Entry) -> State:
    """Give the state of a file."""
    size = entry.get("size")
    return (None if size is None else int(size)), modified_at(entry)


def modified_at(entry: Entry) -> int | None:
    """Give a number that changes with a file: the nanoseconds of its time, else 63 bits of its checksum, else None."""
    for key in _TIMES:
        time = _nanoseconds(entry.get(key))
        if time is not None:
            time = time // 1000 if key in _MILLISECONDS else time
            return time // 10**9 * 10**9 if key in _WHOLE_SECONDS else time
    for key in _CHECKSUMS:
        if entry.get(key) is not None:
            return int.from_bytes(hashlib.blake2b(str(entry[key]).encode(), digest_size=8).digest()) >> 1
    return None


def _nanoseconds(time: object) -> int | None:
    """Give a time, in whichever form a store tells it, in nanoseconds since 1970."""
    if isinstance(time, str):
        time = _parsed(time)
    if isinstance(time, datetime):
        time = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return round(time * 1e9) if isinstance(time, int | float) and math.isfinite(time) else None


def _parsed(text: str) -> datetime | None:
    for parse in (datetime.fromisoformat, parsedate_to_datetime, _of_ftp):
        try:
            return parse(text)
        except ValueError:
            continue
    return None


def _of_ftp(text: str) -> datetime:
    """Read a time as RFC 3659 writes it: 20240102030405, or with a fraction of the second."""
    return datetime.strptime(text, "%Y%m%d%H%M%S.%f" if "." in text else "%Y%m%d%H%M%S").replace(tzinfo=UTC)


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


def is_url(path: object) -> bool:
    """Tell whether a path is an address in a store."""
    return isinstance(path, str) and _URL.match(path) is not None


def absolute_url(url: str) -> str:
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


def is_url_below(url: str, root: str) -> bool:
    """Tell whether an address is the root or lies in it."""
    (head, _, tail), (root_head, _, root_tail) = url.partition("::"), root.partition("::")
    inside = head.rstrip("/") == root_head.rstrip("/") or head.startswith(root_head.rstrip("/") + "/")
    return inside and tail == root_tail


def url_parts(path: str) -> tuple[str, ...]:
    """Give the names that a path, or an address within its store, consists of."""
    if not is_url(path):
        return Path(path).parts
    return tuple(part for part in path.partition("::")[0].partition("://")[2].split("/") if part)


def base_name(path: str) -> str:
    """Give the last name of a path or an address."""
    return url_parts(path)[-1] if is_url(path) and url_parts(path) else Path(path).name


def url_exists(url: str) -> bool:
    """Tell whether there is a file or a folder."""
    try:
        _look(url)
    except UnreachableError:
        raise
    except ImageError:
        return False
    return True


def remote_version(url: str) -> State:
    """Ask the store for the size of a file, and for the number that changes with it."""
    return version_of(_look(url)[2])


def read_url(url: str, most: int = MAX_BYTES) -> bytes:
    """Give what a file holds; refuse one of more than `most` bytes before it is read."""
    store, path, entry = _look(url)
    _refuse_unfit(url, entry, most)
    with _named(url), _turn(store):
        content = _stream(store, path, most) if entry.get("size") is None else bytes(store.cat_file(path))
    _refuse_unfit(url, {**entry, "size": len(content)}, most)
    with _digests_lock:
        _digests[url] = version_of(entry), _checksum(content)
        _digests.move_to_end(url)
        while len(_digests) > REMEMBERED:
            _digests.popitem(last=False)
    return content


def remote_digest(url: str, expected: State) -> str | None:
    """Give the BLAKE2 checksum of a file, 32 hex digits; None if it is not in the state that is expected.

    One that was read a moment ago, and has not changed, is not read again.
    """
    if remote_version(url) != expected:
        return None
    known = _digests.get(url)
    if known is None or known[0] != expected:
        read_url(url)
        known = _digests.get(url)
    return known[1] if known is not None and known[0] == expected else None


def list_files(
    root: str, wanted: Callable[[str], bool] = lambda name: True, complain: Callable[[Problem], None] | None = None
) -> Iterator[Listed]:
    """Give the files below an address, or a single one, with their states: folder by folder, in the order of their names.

    Hidden folders, and indexes of polyvoc, are passed over, and so are files whose name is not `wanted`. What cannot be
    listed is an `UnreachableError`, or told to `complain`.
    """
    told = complain or _refuse_url
    store, path, found = _look(root)
    if found["type"] == "file" and found.get("mimetype") != "text/html":  # which is how a web server lists a folder
        yield root, *version_of(found)
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
        folders = [one for one in entries if one[1]["type"] == "directory" and _is_open(base_name(one[0]))]
        yield from _settled([one for one in entries if one[1]["type"] != "directory" and wanted(base_name(one[0]))], told)
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
            told(Problem(address, f"{shown_url(address)}: its name holds '::', which no address can; rename it"))
        elif inner and not has_query(address):  # S3 lists a folder in itself, a web server the ways to sort it
            found[inner] = address, entry
    return [found[inner] for inner in sorted(found)]


def _settled(files: list[tuple[str, Entry]], told: Callable[[Problem], None]) -> Iterator[Listed]:
    """Give files with their states; ask for those that the listing does not tell: of links, and of files on web servers."""
    if not any(_is_vague(entry) for _, entry in files):
        yield from ((url, *version_of(entry)) for url, entry in files if entry["type"] == "file")
        return
    with closing(ordered_map(_asked, files, ASKED_AT_ONCE, "polyvoc-list")) as answers:
        for (url, _), answer in answers:
            if isinstance(answer, UnreachableError):
                told(Problem(url, str(answer)))
            elif not isinstance(answer, ImageError) and answer["type"] == "file":  # else a link to nothing, or to a folder
                yield url, *version_of(answer)


def _asked(file: tuple[str, Entry]) -> Entry | ImageError:
    url, entry = file
    try:
        return _look(url)[2] if _is_vague(entry) else entry
    except ImageError as error:
        return error


def _is_vague(entry: Entry) -> bool:
    return bool(entry.get("islink")) or version_of(entry) == (None, None)


def _is_open(folder: str) -> bool:
    return folder == "." or not (folder.startswith(".") or folder.endswith(".polyvoc"))  # "." is the first of many archives


def _refuse_url(problem: Problem) -> None:
    raise UnreachableError(problem.reason)


def _refuse_unfit(url: str, entry: Entry, most: int) -> None:
    size = entry.get("size")
    if entry["type"] == "directory":
        raise ImageError(f"{shown_url(url)}: a folder, not a photograph; name a file in it")
    if entry["type"] != "file":
        raise ImageError(f"{shown_url(url)}: not a regular file; name a photograph")
    if size == 0:
        raise ImageError(f"{shown_url(url)}: empty file; replace or remove it")
    if size is not None and size > most:
        raise ImageError(f"{shown_url(url)}: {size:,} bytes, the limit is {most:,}; reduce it first")


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
    return _archive(head.partition("://")[0], tail, *remote_version(tail)), str(core.strip_protocol(head))


@lru_cache(maxsize=ARCHIVES)
def _archive(protocol: str, tail: str, size: int | None, changed: int | None) -> Any:
    """Open an archive; one that was replaced since has another state, and is opened anew."""
    try:
        store = _fsspec().url_to_fs(f"{protocol}://::{tail}", skip_instance_cache=True)[0]
        if protocol == "tar":
            _demand_end(store)
        return store
    except _BROKEN as error:  # perhaps it is not all there yet
        raise UnreachableError(
            f"{shown_url(tail)}: not a whole archive ({_reason(error)}); replace it, or leave it out"
        ) from error


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
        raise OptionError(
            f"{shown_url(url)}: a package is missing ({_reason(error)}); install it: pip install {package}"
        ) from None
    except _BROKEN as error:
        raise ImageError(f"{shown_url(url)}: broken ({_reason(error)}); replace or remove it") from error
    except Exception as error:  # every store raises its own
        if "Protocol not known" in str(error):
            raise OptionError(
                f"{shown_url(url)}: no such kind of store; give s3://, gs://, https://, zip://::, file:// ..."
            ) from None
        if _is_gone(error):
            raise ImageError(f"{shown_url(url)}: no such file; check the address") from error
        reason = _reason(error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error)
        raise UnreachableError(f"{shown_url(url)}: cannot be reached ({reason}); check address and credentials") from error


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
    return redact_text(text)[:200] or type(error).__name__


def display_name(source: Source) -> str:
    """Give the name of a source for messages, on one line whatever the file is called."""
    name = f"image of {len(source)} bytes" if isinstance(source, bytes) else redact(str(source))
    harmful = {"Cc", "Cs", "Zl", "Zp"}  # controls, halves of characters, breaks of lines: would tear or garble the message
    return ascii(name) if any(unicodedata.category(character) in harmful for character in name) else name
