"""Uploaded queries and thumbnails kept in memory."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from polyvoc.errors import OptionError
from polyvoc.search.fuse import NO_PIXELS
from polyvoc.types import Features, Floats32

THUMBNAIL_BYTES = 64_000_000


class ThumbnailCache:
    """The pictures that were asked for last."""

    def __init__(self, most_bytes: int = THUMBNAIL_BYTES) -> None:
        """Begin without any."""
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()  # longest unused first
        self.bytes = 0

    def get(self, key: Hashable) -> bytes | None:
        """Give a picture if it is kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, jpeg: bytes) -> None:
        """Keep a picture; others make room for it."""
        with self._lock:
            self.bytes += len(jpeg) - len(self._kept.pop(key, b""))
            self._kept[key] = jpeg
            while self.bytes > self._most:
                self.bytes -= len(self._kept.popitem(last=False)[1])

    def get_or_make(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Give a picture, made now if it is not kept."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found


MAX_UPLOADS = 64  # kept at a time: 1.5 MB each
UPLOAD_SECONDS = 3600.0


@dataclass(frozen=True, eq=False)
class Upload:
    """One of them: what is asked, and a picture to look at. The file itself is not kept."""

    name: str
    features: Features
    vector: Floats32 | None  # of the global embedding, if the index has one
    picture: bytes  # JPEG without metadata

    def embed(self) -> Floats32:
        """Give the vector."""
        if self.vector is None:
            raise OptionError(NO_PIXELS)
        return self.vector


class UploadCache:
    """The latest photographs, under names that cannot be guessed."""

    def __init__(
        self, most: int = MAX_UPLOADS, seconds: float = UPLOAD_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep `most` of them, each for so many seconds after it was last asked for."""
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Upload]] = OrderedDict()  # longest unused first

    def keep(self, upload: Upload) -> str:
        """Keep a photograph; gives its name."""
        name = "u" + secrets.token_urlsafe(12)  # a letter first: a number is an image of the collection
        with self._lock:
            now = self._forget()
            self._kept[name] = now, upload
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> Upload | None:
        """Give a photograph; None once it is forgotten."""
        with self._lock:
            now = self._forget()
            found = self._kept.pop(name, None)
            if found is None:
                return None
            self._kept[name] = now, found[1]
            return found[1]

    def __len__(self) -> int:
        """Count them."""
        with self._lock:
            self._forget()
            return len(self._kept)

    def _forget(self) -> float:
        """Forget those whose time is over; gives what time it is."""
        now = self._clock()
        while self._kept and next(iter(self._kept.values()))[0] < now - self._seconds:
            self._kept.popitem(last=False)
        return now
