"""Addresses of photographs in stores: S3, web servers, archives; read through fsspec."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
import tarfile
import threading
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

from polyvoc.errors import ImageError, OptionError, PolyvocError, UnreachableError, one_line
from polyvoc.threads import ordered_map
from polyvoc.types import Problem, Source

Entry = dict[str, Any]  # what fsspec reports of a file or folder
Version = tuple[int | None, int | None]  # size, and a number that changes with the content: from its time or its checksum
ErrorHandler = Callable[[Problem], None]  # called for each file or folder that cannot be read

SETTINGS = "POLYVOC_STORES"  # in the environment: settings of fsspec by address, as JSON
MAX_BYTES = 1 << 30  # of a photograph: several of them must fit into memory
INFO_THREADS = 16  # for files whose version a listing lacks
OPEN_ARCHIVES = 8
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = re.compile(r"[^/?#]*")
_NO_PORT = re.compile(r":(?!\d*$)")  # not a port but a password with a "/" or "?" in it
_URL_IN_TEXT = re.compile(r"(?i)(https?://)(?:[^\s/?#'\"]*@)?([^\s?'\"]*)(\?[^\s'\"]*)?")
_WEB = ("http", "https")
_SERVICES = ("s3", "s3a", "gs", "gcs")  # whose addresses name a bucket, and no host
_AZURE = ("az", "abfs", "abfss")  # name an account after "@"
_NO_HOST = ("file", "local", "memory", "zip", "tar", "libarchive", "github", "git")  # whose addresses may hold ":" and "@"
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}  # control characters, surrogates, line and paragraph separators
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
             "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol"}  # fmt: skip
_TIMES = (
    "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "modified", "modificationTime", "modify", "created"
)  # fmt: skip
_WHOLE_SECONDS = ("LastModified", "Last-Modified", "last_modified")  # some listings have fractions that `info` lacks
_MILLISECONDS = ("modificationTime",)  # WebHDFS
_CHECKSUMS = ("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "sha", "CRC", "modify")  # the last, of FTP, may be any text
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)
_archive_lock = threading.RLock()  # an archive has one read position


def is_url(path: object) -> bool:
    """Return whether a path is an address in a store."""
    return isinstance(path, str) and _URL.match(path) is not None


def absolute_url(url: str) -> str:
    """Return an address as an index stores it: also the path of an archive is absolute. Raise OptionError for a secret."""
    _check_password(url)
    if has_query(url):
        raise OptionError(f"{display_name(url)}: the part after '?' may be secret or expire; download the file instead")
    head, chained, tail = url.partition("::")
    if head.startswith("file://"):
        head = "file://" + _local_path(head.removeprefix("file://")).rstrip("/") + "/" * head.endswith("/")
    return head + chained + (tail if not tail or is_url(tail) or "::" in tail else _local_path(tail))


def is_url_below(url: str, root: str) -> bool:
    """Return whether an address is the root or lies below it."""
    (head, _, tail), (root_head, _, root_tail) = url.partition("::"), root.partition("::")
    inside = head.rstrip("/") == root_head.rstrip("/") or head.startswith(root_head.rstrip("/") + "/")
    return inside and tail == root_tail


def url_parts(path: str) -> tuple[str, ...]:
    """Return the parts of a path, or of an address within its store."""
    if not is_url(path):
        return Path(path).parts
    return tuple(part for part in path.partition("::")[0].partition("://")[2].split("/") if part)


def base_name(path: str) -> str:
    """Return the last part of a path or an address."""
    return url_parts(path)[-1] if is_url(path) and url_parts(path) else Path(path).name


def parent_url(url: str) -> str:
    """Return the address of the folder that holds a file."""
    head, chained, tail = url.partition("::")
    protocol, _, path = head.partition("://")
    if "/" not in path and not chained:
        return url  # a host or a bucket
    return f"{protocol}://{path.rpartition('/')[0]}{chained}{tail}"


def has_query(url: str) -> bool:
    """Return whether an address on the web has a query string; in other stores a `?` is part of a name."""
    return any("?" in link and _protocol(link) in _WEB for link in url.split("::"))


def redact(path: str) -> str:
    """Return an address, or a chain of them, without passwords and query strings; a path is returned unchanged."""
    return "::".join(map(_redact_link, path.split("::")))


def display_name(source: Source) -> str:
    """Return the name of a source for messages: redacted, on one line."""
    name = f"image of {len(source)} bytes" if isinstance(source, bytes) else redact(str(source))
    return ascii(name) if any(unicodedata.category(character) in _UNPRINTABLE for character in name) else name


def url_exists(url: str) -> bool:
    """Return whether an address is a file or a folder."""
    try:
        _look_up(url)
    except ImageError as error:
        if isinstance(error, UnreachableError):
            raise
        return False
    return True


def remote_version(url: str) -> Version:
    """Return the size of a file, and a number that changes with it."""
    return _version(_look_up(url)[2])


def read_url(url: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file. Raise ImageError if it is larger than `max_bytes`, if possible before reading it."""
    store, path, entry = _look_up(url)
    _check_entry(url, entry, max_bytes)
    with _store_errors(url), _lock_for(store):
        if entry.get("size") is None:
            with store.open(path, "rb") as file:
                content = bytes(file.read(max_bytes + 1))
        else:
            content = bytes(store.cat_file(path))
    _check_entry(url, {**entry, "size": len(content)}, max_bytes)
    return content


def open_source(source: Source) -> IO[bytes]:
    """Open bytes, a local file or an address. Raise ImageError unless it is a regular file: reading a pipe might never end."""
    if isinstance(source, str) and is_url(source):
        return io.BytesIO(read_url(source))
    if isinstance(source, bytes):
        _check_entry(source, {"type": "file", "size": len(source)})
        return io.BytesIO(source)
    try:
        status = os.stat(source)
        kind = "file" if stat.S_ISREG(status.st_mode) else "directory" if stat.S_ISDIR(status.st_mode) else "other"
        _check_entry(source, {"type": kind, "size": status.st_size})
        return open(source, "rb")
    except FileNotFoundError as error:
        raise ImageError(f"{display_name(source)}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        reason = f"cannot be opened ({one_line(error)}); check the path and its permissions"
        raise UnreachableError(f"{display_name(source)}: {reason}") from error


def list_files(
    root: str, is_wanted: Callable[[str], bool] = lambda name: True, on_error: ErrorHandler | None = None
) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield (address, *version) of each file below an address, or of a single file: by folder, sorted by name.

    Skips hidden folders, indexes, and unwanted names. What cannot be listed is reported to `on_error`, or raises.
    """
    report = on_error or _raise_unreachable
    store, path, entry = _look_up(root)
    if entry["type"] == "file" and entry.get("mimetype") != "text/html":  # a web server shows a folder as a page
        yield root, *_version(entry)
        return
    with _store_errors(root):
        list_folder = _lister(store)
    pending = [(root, path)]
    while pending:
        url, path = pending.pop()
        try:
            with _store_errors(url):
                entries = _with_addresses(url, path, list_folder(path), report)
        except ImageError as error:
            report(Problem(url, str(error)))
            continue
        folders = [(address, e) for address, e in entries if e["type"] == "directory" and not _is_hidden(base_name(address))]
        files = [(address, e) for address, e in entries if e["type"] != "directory" and is_wanted(base_name(address))]
        yield from _with_versions(files, report)
        pending += [(address, str(entry["name"])) for address, entry in reversed(folders)]


def _check_password(url: str) -> None:
    if any(map(_has_password, url.split("::"))):
        raise OptionError(f"{display_name(url)}: holds a password; pass it in the environment instead (docs/stores.md)")


def _redact_link(link: str) -> str:
    rest = link.partition("://")[2]
    kept = rest.partition("?")[0] + "?..." if has_query(link) else rest
    if _has_password(link):
        _, at, after = kept.rpartition("@")
        kept = f"...@{after}" if at else "..."
    return link.removesuffix(rest) + kept if rest else link


def _has_password(link: str) -> bool:
    """Return whether there is a password; on the web a user name alone counts, which mostly is a token."""
    host = _HOST.match(link.partition("://")[2])
    user, at, host_port = host[0].rpartition("@") if host else ("", "", "")
    if not _protocol(link) or _protocol(link) in _NO_HOST:
        return False
    if _protocol(link) in _WEB:
        return bool(at) or _NO_PORT.search(host_port) is not None
    return bool(at) and ":" in user


def _protocol(link: str) -> str:
    return link.partition("://")[0].lower() if "://" in link else ""


def _reason(error: BaseException) -> str:
    """Return the text of an error on one line, without the secrets of web addresses in it."""
    return _URL_IN_TEXT.sub(lambda url: url[1] + url[2] + ("?..." if url[3] else ""), one_line(error, None))[:200]


def _version(entry: Entry) -> Version:
    return (None if entry.get("size") is None else int(entry["size"])), _modified(entry)


def _modified(entry: Entry) -> int | None:
    """Return a number that changes with a file: its time in nanoseconds, else 63 bits of its checksum, else None."""
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
    """Return a time, in any form that stores use, in nanoseconds since 1970."""
    if isinstance(time, str):
        time = _parse_time(time)
    if isinstance(time, datetime):
        time = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return round(time * 1e9) if isinstance(time, int | float) and math.isfinite(time) else None


def _parse_time(text: str) -> datetime | None:
    ftp = "%Y%m%d%H%M%S.%f" if "." in text else "%Y%m%d%H%M%S"  # RFC 3659: perhaps with a fraction of the second
    for parse in (datetime.fromisoformat, parsedate_to_datetime, lambda time: datetime.strptime(time, ftp)):
        with suppress(ValueError):
            return parse(text)
    return None


def _lister(store: Any) -> Callable[[str], list[Entry]]:
    """Return a function that lists a folder of a store; of an archive, from its table of contents, which is read once."""

    def list_folder(folder: str) -> list[Entry]:
        store.invalidate_cache()  # else every folder of a large bucket would stay in memory
        with _lock_for(store):
            return list(store.ls(folder, detail=True))

    if not hasattr(store, "dir_cache"):
        return list_folder
    list_folder("")  # reads the table of contents
    folders: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in list(store.dir_cache.values()):
        folders[str(entry["name"]).rpartition("/")[0]].append(entry)
    return lambda folder: folders[folder.strip("/")]


def _with_addresses(url: str, folder: str, entries: list[Entry], report: ErrorHandler) -> list[tuple[str, Entry]]:
    """Return the entries of a folder with their addresses, sorted by name."""
    head, chained, tail = url.partition("::")
    head += "" if head.endswith("/") else "/"
    by_name = {}
    for entry in entries:
        name = str(entry["name"]).removeprefix(folder.rstrip("/")).strip("/")
        address = f"{head}{name}{chained}{tail}"
        if "::" in name:
            report(Problem(address, f"{display_name(address)}: '::' in its name separates addresses; rename it"))
        elif name and not has_query(address):  # S3 lists a folder in itself, a web server links that sort it
            by_name[name] = address, entry
    return [by_name[name] for name in sorted(by_name)]


def _with_versions(files: list[tuple[str, Entry]], report: ErrorHandler) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield files with their versions; look up those that the listing lacks: of links, and of files on web servers."""
    if not any(map(_lacks_version, files)):
        yield from ((url, *_version(entry)) for url, entry in files if entry["type"] == "file")
        return
    with closing(ordered_map(_full_entry, files, INFO_THREADS, "polyvoc-list")) as entries:
        for (url, _), entry in entries:
            if isinstance(entry, UnreachableError):
                report(Problem(url, str(entry)))
            elif not isinstance(entry, ImageError) and entry["type"] == "file":  # else a link to nothing, or to a folder
                yield url, *_version(entry)


def _full_entry(file: tuple[str, Entry]) -> Entry | ImageError:
    try:
        return _look_up(file[0])[2] if _lacks_version(file) else file[1]
    except ImageError as error:
        return error


def _lacks_version(file: tuple[str, Entry]) -> bool:
    return bool(file[1].get("islink")) or _version(file[1]) == (None, None)


def _is_hidden(folder: str) -> bool:
    return folder != "." and (folder.startswith(".") or folder.endswith(".polyvoc"))  # many archives begin with a folder "."


def _raise_unreachable(problem: Problem) -> NoReturn:
    raise UnreachableError(problem.reason)


def _look_up(url: str) -> tuple[Any, str, Entry]:
    """Return the store of an address, the path within it, and its current entry."""
    _check_password(url)
    with _store_errors(url):
        store, path = _open_store(url)
        if not path.strip("/"):
            return store, path, {"name": path, "type": "directory", "size": 0}  # the root of the store, which may be empty
        store.invalidate_cache()
        with _lock_for(store):
            return store, path, store.info(path)


def _check_entry(source: Source, entry: Entry, max_bytes: float = math.inf) -> None:
    """Raise ImageError if an entry is not a file, or of a size that cannot be read."""
    size, reason = entry.get("size"), None
    if entry["type"] == "directory":
        reason = "a folder, not a photograph; name a file in it"
    elif entry["type"] != "file":
        reason = "not a regular file; name a photograph"
    elif size == 0:
        reason = "empty file; replace or remove it"
    elif size is not None and size > max_bytes:
        reason = f"{size:,} bytes, the limit is {max_bytes:,}; reduce it first"
    if reason is not None:
        raise ImageError(f"{display_name(source)}: {reason}")


def _open_store(url: str) -> tuple[Any, str]:
    """Return the store of an address, and the path within it."""
    core = _fsspec()
    head, chained, tail = url.partition("::")
    if not chained or not is_url(head):  # "simplecache::s3://..." is S3 behind a cache
        store, path = core.url_to_fs(url, **_settings_of(url))
        return store, str(path)
    return _open_archive(head.partition("://")[0], tail, *remote_version(tail)), str(core.strip_protocol(head))


@lru_cache(maxsize=OPEN_ARCHIVES)
def _open_archive(protocol: str, tail: str, size: int | None, changed: int | None) -> Any:
    """Open an archive; one that was replaced has another version and is opened anew."""
    try:
        store = _fsspec().url_to_fs(f"{protocol}://::{tail}", skip_instance_cache=True, **_settings_of(tail))[0]
        if protocol == "tar":
            _check_tar_end(store)
        return store
    except _BROKEN as error:  # perhaps it is still being written
        raise UnreachableError(f"{display_name(tail)}: incomplete archive ({_reason(error)}); replace or omit it") from error


def _check_tar_end(store: Any) -> None:
    """Raise ReadError unless a tar archive ends with zeros: `tarfile` accepts one cut off, or damaged, between two files."""
    store.fo.seek(store.tar.offset)  # where `tarfile` stopped
    if store.fo.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")


def _lock_for(store: Any) -> AbstractContextManager[Any]:
    """Return a lock for a store that only one thread at a time may use."""
    return nullcontext() if store.async_impl or "file" in store.protocol else _archive_lock


# -- settings and credentials: each belongs to one host, whatever addresses an index names


def _settings_of(url: str) -> dict[str, dict[str, Any]]:
    """Return fsspec's settings for an address, by protocol; raise OptionError for settings that would go to every host."""
    bound, settings = _bound_settings(os.environ.get(SETTINGS) or "{}"), {}
    for link in filter(is_url, url.split("::")):
        protocol = _protocol(link)
        found = [prefix for prefix in bound if is_url_below(link, prefix)]
        own = dict(bound[max(found, key=len)]) if found else {}
        if protocol in _WEB:
            own["get_client"] = _same_host_client
        if _names_host(link):
            _check_shared_settings(protocol)
        if own:
            settings[protocol] = own
    return settings


@lru_cache(maxsize=1)
def _bound_settings(text: str) -> dict[str, dict[str, Any]]:
    """Read settings by the address below which they hold; raise OptionError, which does not repeat them, if it is no such."""
    try:
        settings = json.loads(text)
        valid = all(is_url(root) and url_parts(root) and isinstance(own, dict) for root, own in settings.items())
    except (ValueError, AttributeError):
        valid = False
    if not valid:
        wanted = """as in '{"https://host": {"headers": {...}}}' (docs/stores.md)"""
        raise OptionError(f"{SETTINGS} should hold settings by address, {wanted}")
    return dict(settings)


def _names_host(link: str) -> bool:
    """Return whether an address chooses the machine that gets its settings; a bucket is one of a service."""
    protocol = _protocol(link)
    if protocol in _AZURE:
        return "@" in link
    return protocol not in (*_SERVICES, *_NO_HOST)


def _check_shared_settings(protocol: str) -> None:
    """Raise OptionError for settings of fsspec, such as FSSPEC_HTTP, that each host would get that an address names."""
    from fsspec.config import conf

    names = _fsspec().get_filesystem_class(protocol).protocol
    for name in (names,) if isinstance(names, str) else names:
        if conf.get(name):
            raise OptionError(f"FSSPEC_{name.upper()}, or fsspec's configuration file, would send its settings to every host; "
                              f"set {SETTINGS} for a single host instead (docs/stores.md)")  # fmt: skip


async def _same_host_client(**settings: Any) -> Any:
    """Return a client of aiohttp that does not follow a redirect to another host, nor sends credentials there."""
    import aiohttp

    async def check_redirect(session: Any, context: Any, redirect: Any) -> None:
        location = redirect.response.headers.get("Location") or redirect.response.headers.get("URI") or ""
        target = redirect.url.join(type(redirect.url)(location))
        same = (target.scheme, target.port) == (redirect.url.scheme, redirect.url.port)
        secured = (redirect.url.scheme, redirect.url.port, target.scheme, target.port) == ("http", 80, "https", 443)
        if target.host != redirect.url.host or not (same or secured):
            raise UnreachableError(f"{display_name(str(redirect.url))}: redirects to {target.host}:{target.port}, which is "
                                   "another host and not followed; give the address there")  # fmt: skip

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(check_redirect)
    return aiohttp.ClientSession(trace_configs=[trace], **settings)


def _fsspec() -> Any:
    try:
        import fsspec.core
    except ImportError:
        raise OptionError("photographs in stores need fsspec; install it: pip install 'polyvoc[stores]'") from None
    return fsspec.core


@contextmanager
def _store_errors(url: str) -> Iterator[None]:
    """Translate every error of a store into one line that names the address."""
    name = display_name(url)
    try:
        yield
    except PolyvocError:
        raise
    except ImportError as error:
        protocol = next((link for link in re.findall(r"(?:^|::)([^:/]+)://", url) if link in _PACKAGES), "")
        package = _PACKAGES.get(protocol, "the missing package")
        raise OptionError(f"{name}: a package is missing ({_reason(error)}); install it: pip install {package}") from None
    except _BROKEN as error:
        raise ImageError(f"{name}: broken ({_reason(error)}); replace or remove it") from error
    except Exception as error:  # every store has its own classes
        if isinstance(error.__cause__, PolyvocError):  # a redirect
            raise error.__cause__ from None
        if "Protocol not known" in str(error):
            raise OptionError(f"{name}: unknown kind of store; use s3://, gs://, https://, zip://::, file:// ...") from None
        if _is_gone(error):
            raise ImageError(f"{name}: no such file; check the address") from error
        reason = _reason(error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error)
        raise UnreachableError(f"{name}: cannot be reached ({reason}); check address and credentials") from error


def _is_gone(error: Exception) -> bool:
    """Return whether there is no such file: fsspec raises FileNotFoundError, too, if a web server does not respond."""
    cause = error.__cause__
    responded = not isinstance(cause, TimeoutError) and not type(cause).__module__.startswith("aiohttp")
    return isinstance(error, FileNotFoundError) and (responded or getattr(cause, "status", None) in (404, 410))


def _local_path(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
