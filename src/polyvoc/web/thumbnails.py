"""Small pictures, kept in memory up to a number of bytes: those looked at last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

BYTES = 64_000_000


class Thumbnails:
    """The pictures that were asked for last."""

    def __init__(self, most_bytes: int = BYTES) -> None:
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
