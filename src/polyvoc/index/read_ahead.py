"""Reading in large pieces, ahead of a scan: from a cold disk one page fault after another takes several times as long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import Segment
from polyvoc.kernels.postings import read_ahead
from polyvoc.threads import count_threads, thread_map
from polyvoc.types import Array, Words

GAP = 1 << 14  # bytes between two lists that are read along: fewer, larger pieces
FORGET = 600.0  # seconds after which lists may have left the memory and are requested again


@dataclass(eq=False)
class RequestedLists:
    """Which lists of a segment were requested, and since when. May be shared by threads."""

    words: npt.NDArray[np.bool_]  # [fine + 1]; the last for words -1, which have no list
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, segment: Segment) -> RequestedLists:
        """Return those of a segment; none after FORGET seconds."""
        found = _REQUESTED.get(segment)
        if found is None or time.monotonic() > found.since + FORGET:
            found = _REQUESTED[segment] = cls(np.arange(segment.fine + 1) == segment.fine)
        return found

    def add(self, words: Words) -> npt.NDArray[np.int64]:
        """Add the words of a query [Q, A]; return those that are new, in order."""
        wanted = words.ravel()
        new = np.unique(wanted[~self.words[wanted]]).astype(np.int64)
        self.words[new] = True
        return new


_REQUESTED: WeakKeyDictionary[Segment, RequestedLists] = WeakKeyDictionary()


def read_lists(segment: Segment, words: Words, threads: int | None = None) -> None:
    """Have the lists of a query's words [Q, A] read in large pieces before a scan reads them page by page.

    From a cold disk this is several times faster. A list is requested once in FORGET seconds, not for every query.
    """
    numbers, arrays = RequestedLists.of(segment).add(words), segment.arrays

    def read(part: npt.NDArray[np.int64]) -> None:
        for values in (*arrays["codes"], arrays["code_images"]):
            read_ahead(part, arrays["code_starts"], values, GAP // values.itemsize)

    if len(numbers):
        thread_map(read, np.array_split(numbers, count_threads(threads)), threads)


def read_features(segment: Segment, positions: Sequence[int] | Array) -> None:
    """Have what verification needs of images read in large pieces; their codes lie in lists that were scanned."""
    numbers, arrays = np.sort(np.asarray(positions, np.int64)), segment.arrays
    if segment.n_features:
        pairs = arrays["positions"].view(np.uint32).ravel(), arrays["shapes"].view(np.uint16).ravel()  # one number per feature
        for values in (arrays["code_words"], *pairs):
            read_ahead(numbers, arrays["feature_starts"], values, GAP // values.itemsize)
