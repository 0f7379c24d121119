"""Uploaded queries, thumbnails and statistics kept in memory, the least recently used dropped first."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from polyvoc.search.query import PhotoFeatures
from polyvoc.types import Floats32

T = TypeVar("T")
UPLOAD_SECONDS = 3600.0


@dataclass(frozen=True, eq=False)
class StoredUpload:
    """An uploaded query: its features and a picture. The file itself is not kept."""

    name: str
    features: PhotoFeatures
    vector: Floats32 | None  # global embedding, if the index has one
    picture: bytes  # JPEG without metadata

    @property
    def size(self) -> int:
        """Return its bytes."""
        arrays = [array for one in self.features.kinds for array in (one.xy, one.scale, one.angle, one.descriptors)]
        arrays += [] if self.vector is None else [self.vector]
        return len(self.picture) + len(self.name) + sum(array.nbytes for array in arrays)


class _Cache(Generic[T]):
    """Values by key: up to a total size in bytes, and each until some seconds after its last use."""

    def __init__(
        self, limit: int, size_of: Callable[[T], int], seconds: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self._size_of = size_of
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()  # (time of last use, value), oldest first
        self._size = 0

    @property
    def size(self) -> int:
        """Return the total size of the values."""
        with self._lock:
            self._drop_expired()
            return self._size

    def get(self, key: Hashable) -> T | None:
        """Return a value, or None."""
        with self._lock:
            now = self._drop_expired()
            if key not in self._entries:
                return None
            _, value = self._entries.pop(key)
            self._entries[key] = now, value  # the newest
            return value

    def put(self, key: Hashable, value: T) -> None:
        """Store a value; drop others to make room."""
        with self._lock:
            now = self._drop_expired()
            if key in self._entries:
                self._size -= self._size_of(self._entries.pop(key)[1])
            self._entries[key] = now, value
            self._size += self._size_of(value)
            while self._size > self.limit:
                self._drop_oldest()

    def _drop_expired(self) -> float:
        now = self._clock()
        while self._entries and next(iter(self._entries.values()))[0] < now - self._seconds:
            self._drop_oldest()
        return now

    def _drop_oldest(self) -> None:
        _, (_, value) = self._entries.popitem(last=False)
        self._size -= self._size_of(value)


class UploadCache(_Cache[StoredUpload]):
    """The most recently used uploads, under names that cannot be guessed."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep up to `max_bytes`, each upload until an hour after its last use."""
        super().__init__(max_bytes, lambda upload: upload.size, UPLOAD_SECONDS, clock)

    def store(self, upload: StoredUpload) -> str:
        """Store an upload; return its name."""
        name = "u" + secrets.token_urlsafe(12)  # a letter first: a number is the id of an image
        self.put(name, upload)
        return name


class BytesCache(_Cache[bytes]):
    """The most recently used thumbnails, or other results as bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Keep up to `max_bytes`."""
        super().__init__(max_bytes, len)

    def get_or_make(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the bytes of a key, made now if they are not cached."""
        content = self.get(key)
        if content is None:
            content = make()
            self.put(key, content)
        return content
