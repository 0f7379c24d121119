"""What does a store tell of a file? Its size and, in one form or another, a number that changes with its content."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

Entry = dict[str, Any]  # what fsspec tells of a file or folder
State = tuple[int | None, int | None]  # size, and a number that changes with the content: of its time, or of its checksum

_TIMES = (
    "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "modified", "modificationTime", "modify", "created"
)  # fmt: skip
_WHOLE_SECONDS = ("LastModified", "Last-Modified", "last_modified")  # some listings tell more of these than is told of one file
_MILLISECONDS = ("modificationTime",)  # of WebHDFS
_CHECKSUMS = ("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "sha", "CRC", "modify")  # the last, of FTP, may be any text


def state_of(entry: Entry) -> State:
    """Give the state of a file."""
    size = entry.get("size")
    return (None if size is None else int(size)), change(entry)


def change(entry: Entry) -> int | None:
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
