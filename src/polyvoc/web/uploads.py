"""Photographs that were sent to ask with: kept for a while, so that links to their answers work and rules can be tried."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from polyvoc.errors import OptionError
from polyvoc.records import Features, Floats
from polyvoc.witness import NO_PIXELS

MOST = 64  # kept at a time: 1.5 MB each
SECONDS = 3600.0


@dataclass(frozen=True, eq=False)
class Upload:
    """One of them: what is asked, and a picture to look at. The file itself is not kept."""

    name: str
    features: Features
    vector: Floats | None  # of the global embedding, if the index has one
    picture: bytes  # JPEG without metadata

    def embed(self) -> Floats:
        """Give the vector."""
        if self.vector is None:
            raise OptionError(NO_PIXELS)
        return self.vector


class Uploads:
    """The latest photographs, under names that cannot be guessed."""

    def __init__(self, most: int = MOST, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
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
